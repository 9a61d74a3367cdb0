//! The sections of the page.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json};

use super::escape::Text;
use super::series::{Bar, bars, difference, mean, reliability, turn, value};
use super::{Report, TaskReport, plot};

/// Retrieval metrics shown, as in papers.
const RETRIEVAL: [&str; 6] = ["recall@5", "recall@10", "ndcg@5", "ndcg@10", "map@10", "mrr"];
/// Answer metrics shown.
const GENERATION: [&str; 12] = [
    "rb_alg",
    "rb_llm",
    "rl_f",
    "rouge_l",
    "bert_recall",
    "bert_k_precision",
    "repass",
    "repass_entailment",
    "repass_contradiction",
    "repass_obligations",
    "repass_any",
    "repass_obligations_any",
];
/// Number of worst turns shown.
const WORST: usize = 25;

/// The metrics that the tasks have, in display order.
fn metrics(report: &Report) -> Vec<&'static str> {
    let there = |metric: &&str| report.tasks.iter().any(|task| value(task, metric).is_some());
    RETRIEVAL.into_iter().chain(GENERATION).filter(there).collect()
}

/// Means with confidence intervals, and the differences between two runs.
pub(super) fn summary(report: &Report, beside: Option<&Report>) -> String {
    let mut out = String::from(
        "<section><h2>Means</h2><table><thead><tr><th>metric</th><th>tasks</th><th>mean</th><th>95 %</th>",
    );
    if let Some(other) = beside {
        let _ = write!(
            out,
            "<th>{}</th><th>difference</th><th>95 %</th><th>p</th><th>better, worse</th>",
            Text(&super::html::name(other, report))
        );
    }
    out.push_str("</tr></thead><tbody>");
    for metric in metrics(report) {
        let Some(interval) = mean(report, metric) else { continue };
        let tasks = report.tasks.iter().filter(|task| value(task, metric).is_some()).count();
        let _ = write!(
            out,
            "<tr><td>{metric}</td><td>{tasks}</td><td><b>{:.4}</b></td><td>{:.3} to {:.3}</td>",
            interval.mean, interval.low, interval.high
        );
        if let Some(other) = beside {
            match (mean(other, metric), difference(report, other, metric)) {
                (Some(theirs), Some(difference)) => {
                    let sure = if difference.p < 0.05 { " class=\"sure\"" } else { "" };
                    let _ = write!(
                        out,
                        "<td>{:.4}</td><td{sure}>{:+.4}</td><td>{:+.3} to {:+.3}</td><td{sure}>{:.4}</td><td>{}, {}</td>",
                        theirs.mean,
                        plain(difference.interval.mean),
                        plain(difference.interval.low),
                        plain(difference.interval.high),
                        difference.p,
                        difference.better,
                        difference.worse
                    );
                }
                _ => out.push_str("<td colspan=\"5\">missing</td>"),
            }
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table>");
    if beside.is_some() {
        out.push_str(
            "<p class=\"note\">Differences are over the tasks that both runs have. p is the p-value of a paired \
             randomisation test; intervals are percentile bootstrap intervals.</p>",
        );
    }
    out + "</section>"
}

/// The metrics of each node, if several nodes were scored in one run.
pub(super) fn nodes(report: &Report) -> String {
    let Some(nodes) = report.figures.get("nodes").and_then(Json::as_object).filter(|nodes| nodes.len() > 1) else {
        return String::new();
    };
    let mut out = String::from("<section><h2>Nodes side by side</h2><table><thead><tr><th>node</th>");
    RETRIEVAL.iter().for_each(|metric| _ = write!(out, "<th>{metric}</th>"));
    out.push_str("</tr></thead><tbody>");
    for (node, figures) in nodes {
        let _ = write!(out, "<tr><td>{}</td>", Text(node));
        for metric in RETRIEVAL {
            match figures.get(metric).and_then(Json::as_f64) {
                Some(value) => _ = write!(out, "<td>{value:.4}</td>"),
                None => out.push_str("<td></td>"),
            }
        }
        out.push_str("</tr>");
    }
    out + "</tbody></table></section>"
}

/// The abstention table.
pub(super) fn abstention(report: &Report) -> String {
    let shares: Map<String, Json> = (report.figures.get("generation"))
        .and_then(|generation| generation.get("abstention")?.as_object().cloned())
        .unwrap_or_default();
    let rows: String = shares
        .iter()
        .filter_map(|(name, share)| {
            let (rate, count, of) = (share.get("rate")?.as_f64()?, share.get("count")?, share.get("of")?);
            Some(format!(
                "<tr><td>{}</td><td>{rate:.4}</td><td>{count} of {of}</td></tr>",
                Text(&name.replace('_', " "))
            ))
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("<section><h2>Abstention</h2><table><tbody>{rows}</tbody></table></section>")
}

/// The plots.
pub(super) fn plots(report: &Report, beside: Option<&Report>) -> String {
    let there = metrics(report);
    let chosen =
        ["ndcg@5", "recall@5", "rb_alg", "rouge_l"].into_iter().filter(|metric| there.contains(metric)).take(2);
    let mut out = String::from("<section><h2>By kind of task</h2><div class=\"plots\">");
    for metric in chosen {
        type Label = fn(&TaskReport) -> Option<String>;
        let kinds: [(&str, Label); 4] = [
            ("turn", turn),
            ("collection", |task| task.collection.clone()),
            ("answerability", |task| task.answerability.as_ref().map(|kind| kind.to_lowercase())),
            ("standalone", |task| task.standalone.map(|yes| if yes { "yes" } else { "no" }.to_owned())),
        ];
        for (kind, label) in kinds {
            let first = bars(report, metric, label);
            if first.len() < 2 {
                continue;
            }
            let second: Option<Vec<Bar>> = beside.map(|other| bars(other, metric, label));
            out.push_str(&plot::bars(&format!("{metric} by {kind}"), &first, second.as_deref()));
        }
    }
    out.push_str("</div>");
    if let Some((score, bins)) = reliability(report) {
        let second = beside.and_then(reliability).filter(|(other, _)| *other == score).map(|(_, bins)| bins);
        out.push_str("<div class=\"plots\">");
        out.push_str(&plot::reliability(score, &bins, second.as_deref()));
        out.push_str("</div>");
    }
    out + "<p class=\"note\">The number below each label counts tasks; lines are 95 % intervals.</p></section>"
}

/// The worst turns by the first available metric, with all details.
pub(super) fn worst(report: &Report, beside: Option<&Report>) -> String {
    let Some(metric) = ["rb_alg", "ndcg@5", "rouge_l", "map@10"]
        .into_iter()
        .find(|metric| report.tasks.iter().any(|task| value(task, metric).is_some()))
    else {
        return String::new();
    };
    let failed = |task: &&TaskReport| task.error.is_some();
    let mut tasks: Vec<&TaskReport> =
        report.tasks.iter().filter(|task| failed(task) || value(task, metric).is_some()).collect();
    let worth = |task: &TaskReport| if task.error.is_some() { -1.0 } else { value(task, metric).unwrap_or(0.0) };
    tasks.sort_by(|a, b| worth(a).total_cmp(&worth(b)));
    let shown: String = tasks.into_iter().take(WORST).map(|task| turn_details(task, metric, beside)).collect();
    format!(
        "<section><h2>Worst turns</h2><p class=\"note\">Failed turns, then the others by {metric}, worst first.</p>\
         {shown}</section>"
    )
}

fn turn_details(task: &TaskReport, metric: &str, beside: Option<&Report>) -> String {
    let question = task.said.last().map_or("", |(_, text)| text.as_str());
    let figure = value(task, metric).map_or("failed".to_owned(), |value| format!("{value:.3}"));
    let kind = [task.collection.as_deref(), task.answerability.as_deref()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ");
    let mut out = format!(
        "<details><summary><b>{figure}</b> turn {} <span class=\"kind\">{}</span> {}</summary>",
        task.turn,
        Text(&kind.to_lowercase()),
        Text(&short(question, 160))
    );
    let _ = write!(out, "<p class=\"note\">{}</p><dl>", Text(&task.id));
    for (speaker, text) in &task.said {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", Text(speaker), Text(text));
    }
    let mut row = |name: &str, text: &str| {
        if !text.trim().is_empty() {
            let _ = write!(out, "<dt class=\"key\">{name}</dt><dd>{}</dd>", Text(text));
        }
    };
    row("query", &task.query);
    row(&format!("answer ({})", task.status), &task.answer);
    if let Some(other) = beside.and_then(|other| other.tasks.iter().find(|other| other.id == task.id)) {
        row("the other run's answer", &other.answer);
    }
    row("reference", task.target.as_deref().unwrap_or_default());
    row("error", task.error.as_deref().unwrap_or_default());
    row("warnings", &task.warnings.join("; "));
    let figures = task.retrieval.iter().chain(&task.generation).map(|(name, value)| format!("{name} {value:.3}"));
    row("figures", &figures.collect::<Vec<_>>().join(", "));
    if !task.checks.is_empty() {
        row("checks", &Json::Object(task.checks.clone()).to_string());
    }
    out.push_str("</dl><ol>");
    for hit in &task.hits {
        let (class, mark) = match hit.grade {
            Some(grade) if grade > 0 => (" class=\"relevant\"", " ✓"),
            _ => ("", ""),
        };
        let _ = write!(
            out,
            "<li{class}><code>{}</code>{mark} {:.4}<br>{}</li>",
            Text(&hit.passage),
            hit.score,
            Text(&short(&hit.text, 400))
        );
    }
    out.push_str("</ol>");
    if !task.trace.is_empty() {
        out.push_str("<table class=\"trace\"><tbody>");
        for (node, gave) in &task.trace {
            let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", Text(node), Text(&short(gave, 1200)));
        }
        out.push_str("</tbody></table>");
    }
    out + "</details>"
}

/// Replaces values that round to 0 by 0, to drop their sign.
fn plain(value: f64) -> f64 {
    if value.abs() < 5e-5 { 0.0 } else { value }
}

fn short(text: &str, characters: usize) -> String {
    let mut shortened: String = text.chars().take(characters).collect();
    if shortened.len() < text.len() {
        shortened.push('…');
    }
    shortened
}
