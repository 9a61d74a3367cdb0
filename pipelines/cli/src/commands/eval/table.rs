//! Tables of retrieval figures for the terminal.

use serde_json::{Map, Value as Json, json};
use turnflow_engine::wording::count;

use super::evaluation::Scored;
use turnflow_eval::metrics::{self, Level, Scores};
use turnflow_eval::significance::{Difference, bootstrap, compare};

/// Prints a node's figures by cutoff.
pub(super) fn print(node: &str, scores: &Scores, tasks: usize, seconds: Option<f64>, level: Option<Level>) {
    let what = match level {
        Some(Level::Document) => "documents",
        Some(Level::Passage) => "passages",
        None => "passages (none of them is judged)",
    };
    println!(
        "{} with judgements, {}{}; hits of `{node}`, as {what}",
        count(scores.per_query.len(), "query"),
        count(tasks, "task"),
        took(seconds)
    );
    println!("{:10}{}", "", metrics::CUTOFFS.map(|cutoff| format!("{:>9}", format!("@{cutoff}"))).concat());
    for metric in ["recall", "ndcg", "map", "precision", "hit"] {
        print!("{metric:10}");
        for cutoff in metrics::CUTOFFS {
            match scores.mean.get(&format!("{metric}@{cutoff}")) {
                Some(value) => print!("{value:9.4}"),
                None => print!("{:>9}", ""),
            }
        }
        println!();
    }
    if let Some(value) = scores.mean.get("mrr") {
        println!("{:10}{value:9.4}", "mrr");
    }
}

fn took(seconds: Option<f64>) -> String {
    seconds.map_or(String::new(), |seconds| format!(", {seconds:.1} s"))
}

/// The figures that retrieval papers report.
const SHOWN: [&str; 5] = ["recall@5", "recall@10", "ndcg@5", "ndcg@10", "map@10"];

/// Means over the queries, with 95 % confidence intervals.
pub(super) fn intervals(scores: &Scores) -> Json {
    let interval = |metric: &str| {
        let values: Vec<f64> = scores.per_query.values().filter_map(|figures| figures.get(metric)).collect();
        (metric.to_owned(), json!(bootstrap(&values)))
    };
    SHOWN.into_iter().map(interval).collect::<Map<_, _>>().into()
}

/// Prints how two runs differ on the queries with judgements; returns the differences as JSON.
pub(super) fn print_against(name: &str, scores: &Scores, other: &Scores) -> Json {
    println!("\nagainst {name}, query by query");
    println!("{:12}{:>9}{:>9}{:>10}{:>20}{:>9}{:>14}", "", "this", "other", "diff", "95 %", "p", "better, worse");
    let mut differences = Map::new();
    for metric in SHOWN {
        let of = |scores: &Scores, query: &String| scores.per_query.get(query).and_then(|figures| figures.get(metric));
        let pairs = scores.per_query.keys().filter_map(|query| Some((of(scores, query)?, of(other, query)?)));
        let (first, second): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let Difference { interval, p, better, worse } = compare(&first, &second);
        let mean = |values: &[f64]| (values.iter().sum::<f64>() + 0.0) / values.len().max(1) as f64;
        println!(
            "{metric:12}{:9.4}{:9.4}{:+10.4}{:>20}{p:9.4}{:>14}",
            mean(&first),
            mean(&second),
            plain(interval.mean),
            format!("{:+.4} to {:+.4}", plain(interval.low), plain(interval.high)),
            format!("{better}, {worse}"),
        );
        differences.insert(metric.to_owned(), json!(Difference { interval, p, better, worse }));
    }
    differences.into()
}

/// Removes the sign of values that round to 0.
fn plain(value: f64) -> f64 {
    if value.abs() < 5e-5 { 0.0 } else { value }
}

/// Prints the figures, one line per node.
pub(super) fn print_side_by_side(scored: &[(String, Scored)], tasks: usize, seconds: Option<f64>) {
    let queries = scored.first().map_or(0, |(_, scored)| scored.scores.per_query.len());
    println!("{} with judgements, {}{}", count(queries, "query"), count(tasks, "task"), took(seconds));
    let width = scored.iter().map(|(node, _)| node.chars().count()).max().unwrap_or(0);
    println!("{:width$}{}", "", SHOWN.map(|metric| format!("{metric:>11}")).concat());
    for (node, Scored { scores, .. }) in scored {
        let value = |metric: &str| scores.mean.get(metric).map_or(String::new(), |value| format!("{value:.4}"));
        println!("{node:width$}{}", SHOWN.map(|metric| format!("{:>11}", value(metric))).concat());
    }
}
