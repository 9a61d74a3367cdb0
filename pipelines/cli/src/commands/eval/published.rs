//! `eval --published`: scores the published answers of models, beside their published scores and those of people.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::evaluation::{Ready, Subject};
use super::{EvalArgs, generation, predictions};
use crate::commands::output::check_file;
use crate::commands::{Fault, Outcome, write};
use turnflow_engine::wording::count;
use turnflow_eval::published::{Comparison, Published};

/// Our names of metrics, in the order of the tables.
const METRICS: [&str; 7] =
    ["rouge_l", "bert_recall", "bert_k_precision", "rb_alg", "rb_llm", "rl_f", "answerability_right"];
/// What people judged, with the headings of MTRAG's table 6.
const PEOPLE: [(&str, &str); 6] = [
    ("win-rate", "WR"),
    ("faithfulness", "F"),
    ("appropriateness", "A"),
    ("naturalness", "N"),
    ("completeness", "C"),
    ("all", "all"),
];

pub(super) fn run(args: &EvalArgs, folder: &Path) -> Outcome {
    check_file("--output", args.output.as_deref())?;
    let published = Published::read(folder).map_err(|error| Fault::Told(error.into()))?;
    let mut ours = BTreeMap::new();
    for (model, answers) in &published.answers {
        let metrics = args.metrics.as_deref().map(generation::Metrics::read).transpose()?;
        let nodes = vec![predictions::NODE.to_owned()];
        let subject = Subject { tasks: &published.tasks, qrels: None, nodes };
        let mut evaluation =
            Ready::new(subject, None, metrics, &args.engine)?.run(&args.engine, Some(answers), false)?;
        evaluation.score_answers(&published.tasks)?;
        if evaluation.failed.0 > 0 {
            eprintln!("warning: {} of `{model}` have no answer", count(evaluation.failed.0, "task"));
        }
        ours.insert(model.clone(), evaluation.figures.remove("tasks").unwrap_or_default());
    }
    let comparison = published.compare(&ours);
    print(&comparison);
    if let Some(path) = &args.output {
        let mut figures = json!(comparison);
        figures["tasks"] = Json::Object(ours.into_iter().collect());
        write(path, &format!("{figures:#}\n"))?;
    }
    Ok(())
}

fn print(comparison: &Comparison) {
    let models = count(comparison.models.len(), "model");
    println!("{} of {models} to {}", count(comparison.answers, "answer"), count(comparison.tasks, "task"));
    let width = comparison.models.keys().map(String::len).max().unwrap_or(0).max(METRICS[6].len()) + 1;
    println!("\n{:width$}{:20}{:>8}{:>11}{:>6}", "", "", "ours", "published", "n");
    for (model, means) in &comparison.models {
        for metric in METRICS {
            if let Some(pair) = means.get(metric) {
                println!("{model:width$}{metric:20}{:8.4}{:11.4}{:6}", pair.ours, pair.published, pair.n);
            }
        }
    }
    println!(
        "\n{:width$}{:>6}{:>8}{:>17}{:>18}",
        "answer by answer", "n", "equal", "mean difference", "rank correlation"
    );
    for metric in METRICS {
        let Some(found) = comparison.agreement.get(metric) else { continue };
        let correlation = found.correlation.map_or(String::new(), |value| format!("{value:.3}"));
        println!("{metric:width$}{:6}{:8}{:17.4}{correlation:>18}", found.n, found.equal, found.difference);
    }
    let missing: Vec<&str> = METRICS.into_iter().filter(|metric| !comparison.agreement.contains_key(metric)).collect();
    if !missing.is_empty() {
        println!("not compared, because ours needs a model that the metrics file lacks: {}", missing.join(", "));
    }
    if comparison.people.is_empty() {
        return;
    }
    println!("\n{:width$}{}", "people", PEOPLE.map(|(_, title)| format!("{title:>8}")).concat());
    for (model, judged) in &comparison.people {
        let cell = |(property, _)| judged.get(property).map_or(String::new(), |value| format!("{value:.2}"));
        println!("{model:width$}{}", PEOPLE.map(|property| format!("{:>8}", cell(property))).concat());
    }
    println!("\nrank correlation with people, and weighted by how often a judgement occurs");
    println!(
        "{:width$}{:10}{}",
        "",
        "",
        PEOPLE[..5].iter().map(|(_, title)| format!("{title:>16}")).collect::<String>()
    );
    for metric in METRICS {
        for (ours, whose) in [(false, "published"), (true, "ours")] {
            let of = |property: &str| {
                let mut all = comparison.correlations.iter();
                all.find(|one| one.metric == metric && one.ours == ours && one.property == property)
            };
            if PEOPLE.iter().all(|(property, _)| of(property).is_none()) {
                continue;
            }
            let cell =
                |property| of(property).map_or(String::new(), |one| format!("{:.3} {:.3}", one.plain, one.weighted));
            let cells: String = PEOPLE[..5].iter().map(|(property, _)| format!("{:>16}", cell(*property))).collect();
            println!("{metric:width$}{whose:10}{cells}");
        }
    }
}
