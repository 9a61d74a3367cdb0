//! Figures of tasks, gathered for tables and plots.

use std::collections::BTreeMap;

use super::{Report, TaskReport};
use crate::generation::conditioning::Answerability;
use crate::significance::{Difference, Interval, bootstrap, compare};

/// A group of tasks with the mean of a metric.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub label: String,
    pub tasks: usize,
    pub interval: Interval,
}

/// A task's value of a metric, of whichever kind.
pub(super) fn value(task: &TaskReport, metric: &str) -> Option<f64> {
    task.retrieval.get(metric).or_else(|| task.generation.get(metric)).copied()
}

/// The means by what a task says of itself, in the order of the labels.
pub(super) fn bars(report: &Report, metric: &str, label: impl Fn(&TaskReport) -> Option<String>) -> Vec<Bar> {
    let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for task in &report.tasks {
        if let (Some(value), Some(label)) = (value(task, metric), label(task)) {
            groups.entry(label).or_default().push(value);
        }
    }
    let bar = |(label, values): (String, Vec<f64>)| Bar { label, tasks: values.len(), interval: bootstrap(&values) };
    groups.into_iter().map(bar).collect()
}

/// Turns from 1; the late ones, of which there are few, together.
pub(super) fn turn(task: &TaskReport) -> Option<String> {
    Some(if task.turn >= 9 { "9+".to_owned() } else { task.turn.max(1).to_string() })
}

/// The mean of a metric, over the tasks that have it.
pub(super) fn mean(report: &Report, metric: &str) -> Option<Interval> {
    let values: Vec<f64> = report.tasks.iter().filter_map(|task| value(task, metric)).collect();
    (!values.is_empty()).then(|| bootstrap(&values))
}

/// Two runs on the tasks that both have.
pub(super) fn difference(first: &Report, second: &Report, metric: &str) -> Option<Difference> {
    let other: BTreeMap<&str, f64> =
        second.tasks.iter().filter_map(|task| Some((task.id.as_str(), value(task, metric)?))).collect();
    let pairs: Vec<(f64, f64)> =
        first.tasks.iter().filter_map(|task| Some((value(task, metric)?, *other.get(task.id.as_str())?))).collect();
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    (!a.is_empty()).then(|| compare(&a, &b))
}

/// A bin of scores: their mean, the share that can be answered, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bin {
    pub score: f64,
    pub answerable: f64,
    pub tasks: usize,
}

/// How often tasks can be answered, by a score: `checks.confidence` where it is, else the best
/// passage's score brought to 0 to 1. Ten bins of about as many tasks each.
pub(super) fn reliability(report: &Report) -> Option<(&'static str, Vec<Bin>)> {
    let kind = |task: &TaskReport| match Answerability::named(task.answerability.as_deref()?)? {
        Answerability::Answerable | Answerability::Partial => Some(1.0),
        Answerability::Unanswerable | Answerability::Underspecified => Some(0.0),
        Answerability::Conversational => None,
    };
    let confidence = |task: &TaskReport| task.checks.get("confidence")?.as_f64();
    let best = |task: &TaskReport| task.hits.first().map(|hit| hit.score);
    let by = |score: &dyn Fn(&TaskReport) -> Option<f64>| -> Vec<(f64, f64)> {
        report.tasks.iter().filter_map(|task| Some((score(task)?, kind(task)?))).collect()
    };
    let (name, mut points) = match by(&confidence) {
        points if !points.is_empty() => ("confidence", points),
        _ => {
            let mut points = by(&best);
            let low = points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min);
            let high = points.iter().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
            if high <= low {
                return None;
            }
            points.iter_mut().for_each(|point| point.0 = (point.0 - low) / (high - low));
            ("best score, brought to 0 to 1", points)
        }
    };
    if points.is_empty() {
        return None;
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let size = points.len().div_ceil(10).max(1);
    let bin = |points: &[(f64, f64)]| {
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        Bin { score: mean(|point| point.0), answerable: mean(|point| point.1), tasks: points.len() }
    };
    Some((name, points.chunks(size).map(bin).collect()))
}
