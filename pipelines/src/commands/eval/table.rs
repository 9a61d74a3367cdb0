//! What is retrieved, as a table on the terminal.

use super::Scored;
use crate::eval::metrics::{self, Level, Scores};

/// A node's figures by cutoff.
pub(super) fn print(node: &str, scores: &Scores, tasks: usize, seconds: Option<f64>, level: Option<Level>) {
    let what = match level {
        Some(Level::Document) => "documents",
        Some(Level::Passage) => "passages",
        None => "passages (none of them is judged)",
    };
    println!(
        "{} queries with judgements, {tasks} tasks{}; hits of `{node}`, as {what}",
        scores.per_query.len(),
        took(seconds)
    );
    println!("{:10}{:>9}{:>9}{:>9}{:>9}", "", "@1", "@3", "@5", "@10");
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

/// The figures that retrieval papers give, a line a node.
pub(super) fn print_side_by_side(scored: &[(&String, Scored)], tasks: usize, seconds: Option<f64>) {
    const SHOWN: [&str; 5] = ["recall@5", "recall@10", "ndcg@5", "ndcg@10", "map@10"];
    let queries = scored.first().map_or(0, |(_, scored)| scored.scores.per_query.len());
    println!("{queries} queries with judgements, {tasks} tasks{}", took(seconds));
    let width = scored.iter().map(|(node, _)| node.chars().count()).max().unwrap_or(0);
    println!("{:width$}{}", "", SHOWN.map(|metric| format!("{metric:>11}")).concat());
    for (node, Scored { scores, .. }) in scored {
        let value = |metric: &str| scores.mean.get(metric).map_or(String::new(), |value| format!("{value:.4}"));
        println!("{node:width$}{}", SHOWN.map(|metric| format!("{:>11}", value(metric))).concat());
    }
}
