//! Aggregates metrics of tasks for tables and plots.

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

/// The value of a retrieval or answer metric of a task.
pub(super) fn value(task: &TaskReport, metric: &str) -> Option<f64> {
    task.retrieval.get(metric).or_else(|| task.generation.get(metric)).copied()
}

/// The means of groups of tasks with the same label, sorted by label.
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

/// The turn number as a label; turns from 9 on, of which there are few, share one label.
pub(super) fn turn(task: &TaskReport) -> Option<String> {
    Some(if task.turn >= 9 { "9+".to_owned() } else { task.turn.max(1).to_string() })
}

/// The mean of a metric, over the tasks that have it.
pub(super) fn mean(report: &Report, metric: &str) -> Option<Interval> {
    let values: Vec<f64> = report.tasks.iter().filter_map(|task| value(task, metric)).collect();
    (!values.is_empty()).then(|| bootstrap(&values))
}

/// Compares two runs on their common tasks.
pub(super) fn difference(first: &Report, second: &Report, metric: &str) -> Option<Difference> {
    let other: BTreeMap<&str, f64> =
        second.tasks.iter().filter_map(|task| Some((task.id.as_str(), value(task, metric)?))).collect();
    let pairs: Vec<(f64, f64)> =
        first.tasks.iter().filter_map(|task| Some((value(task, metric)?, *other.get(task.id.as_str())?))).collect();
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    (!a.is_empty()).then(|| compare(&a, &b))
}

/// A bin of scores: mean score, share of answerable tasks, number of tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bin {
    pub score: f64,
    pub answerable: f64,
    pub tasks: usize,
}

/// The share of answerable tasks by score, in ten bins of about equal size. The score is
/// `checks.confidence`, or else the score of the best passage scaled to 0 to 1.
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
            ("best score, scaled to 0 to 1", points)
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
