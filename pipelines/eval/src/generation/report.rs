//! The report of scored answers: means, means by kind of task, and judge failures.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::conditioning::{Abstention, Answerability, Share};
use super::judge::Trouble;
use super::scorer::{Scored, Values};
use super::{METRICS, Status};
use crate::breakdown::kinds;
use crate::tasks::Task;

/// A mean, with its number of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Number of tasks that have the metric.
    pub n: usize,
}

/// Means by metric.
pub type Means = BTreeMap<&'static str, Mean>;

/// The means of a group of tasks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Number of tasks.
    pub tasks: usize,
    /// Means of the conditioned metrics.
    pub metrics: Means,
    /// Means of the raw metrics.
    pub raw: Means,
    /// Means of the metrics as the benchmark's scripts condition them.
    pub clarified: Means,
}

/// Judge calls that failed, or whose reply could not be parsed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Unjudged {
    /// Replies that could not be parsed.
    pub unread: usize,
    /// Calls that failed.
    pub failed: usize,
    /// The first error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The report of all answers.
#[derive(Clone, Debug)]
pub struct Report {
    /// All tasks.
    pub all: Group,
    /// Dimension → value → group.
    pub by: BTreeMap<&'static str, BTreeMap<String, Group>>,
    /// Abstention on the tasks that have an answerability.
    pub abstention: Abstention,
    /// Underspecified questions whose response asks for clarification.
    pub clarification: Share,
    /// Judge failures by metric; `idk` and `clarification` for the labels.
    pub unjudged: BTreeMap<&'static str, Unjudged>,
    /// Metrics that are not computed, with the reasons.
    pub left_out: Vec<(&'static str, &'static str)>,
    /// Tasks that failed.
    pub failed: usize,
    /// Tasks that have an answerability.
    pub labelled: usize,
    /// Tasks that are not part of the means conditioned as in the paper, by answerability.
    pub not_counted: BTreeMap<Answerability, usize>,
}

impl Report {
    /// The report of tasks and their scores, in the same order.
    pub fn new(tasks: &[Task], scored: &[Scored], left_out: Vec<(&'static str, &'static str)>) -> Self {
        let mut abstention = Abstention::default();
        let mut unjudged: BTreeMap<&'static str, Unjudged> = BTreeMap::new();
        let mut members: BTreeMap<&'static str, BTreeMap<String, Vec<&Scored>>> = BTreeMap::new();
        let mut not_counted = BTreeMap::new();
        let mut clarification = Share::default();
        for (task, scored) in tasks.iter().zip(scored) {
            let answerability = Answerability::of(task);
            match (answerability, scored.idk) {
                (Some(answerability), _) if scored.status == Status::Failed => abstention.add_failed(answerability),
                (Some(answerability), Some(idk)) => abstention.add(answerability, idk),
                (None, Some(idk)) => abstention.add_unlabelled(idk),
                _ => {}
            }
            if let Some(clarifies) = scored.clarifies {
                clarification.of += 1;
                clarification.count += usize::from(clarifies);
            }
            for (figure, trouble) in &scored.troubles {
                let unjudged = unjudged.entry(figure).or_default();
                match trouble {
                    Trouble::Unread => unjudged.unread += 1,
                    Trouble::Failed(_) => {
                        unjudged.failed += 1;
                        unjudged.reason.get_or_insert(trouble.to_string());
                    }
                }
            }
            for (dimension, value) in kinds(task) {
                members.entry(dimension).or_default().entry(value.to_owned()).or_default().push(scored);
            }
            let never = [Answerability::Underspecified, Answerability::Conversational];
            if let Some(kind) = answerability.filter(|kind| never.contains(kind)) {
                *not_counted.entry(kind).or_default() += 1;
            }
        }
        let groups = |(dimension, values): (_, BTreeMap<String, Vec<&Scored>>)| {
            (dimension, values.into_iter().map(|(value, members)| (value, group(&members))).collect())
        };
        Self {
            all: group(&scored.iter().collect::<Vec<_>>()),
            by: members.into_iter().map(groups).collect(),
            abstention,
            clarification,
            unjudged,
            left_out,
            labelled: tasks.iter().filter(|task| Answerability::of(task).is_some()).count(),
            failed: scored.iter().filter(|scored| scored.status == Status::Failed).count(),
            not_counted,
        }
    }

    /// The harmonic mean of RB_alg, RB_llm and RL_F, the ranking metric of SemEval-2026 task 8 (TechSSN, section 4.2;
    /// RAGTUM, table 2). It is of the means as the benchmark's scripts condition them; `None` if one of them is missing.
    pub fn harmonic_mean(&self) -> Option<f64> {
        harmonic_mean(["rb_alg", "rb_llm", "rl_f"].map(|name| self.all.clarified.get(name).map(|mean| mean.value)))
    }

    /// The object `"generation"` of the JSON output.
    pub fn json(&self) -> Json {
        let by = |values: &BTreeMap<String, Group>| -> Json {
            values.iter().map(|(value, group)| (value.clone(), group_json(group))).collect::<Map<_, _>>().into()
        };
        json!({
            "tasks": self.all.tasks,
            "failed": self.failed,
            "metrics": values(&self.all.metrics),
            "raw": values(&self.all.raw),
            "n": { "metrics": counts(&self.all.metrics), "raw": counts(&self.all.raw) },
            "harmonic_mean": self.harmonic_mean(),
            "abstention": self.abstention,
            "clarification": {
                "asked": self.clarification,
                "metrics": values(&self.all.clarified),
                "n": counts(&self.all.clarified),
            },
            "by": self.by.iter().map(|(dimension, values)| ((*dimension).to_owned(), by(values))).collect::<Map<_, _>>(),
            "unjudged": self.unjudged,
            "left_out": self.left_out.iter().copied().collect::<BTreeMap<_, _>>(),
            "not_counted": self.not_counted,
        })
    }
}

/// The harmonic mean of three values; `None` if one is missing, and 0 if one is 0.
pub fn harmonic_mean(parts: [Option<f64>; 3]) -> Option<f64> {
    let parts: Vec<f64> = parts.into_iter().collect::<Option<_>>()?;
    let is_zero = parts.iter().any(|part| *part <= 0.0);
    Some(if is_zero { 0.0 } else { 3.0 / parts.iter().map(|part| 1.0 / part).sum::<f64>() })
}

/// The scores of one task as JSON.
pub fn task_json(scored: &Scored) -> Json {
    json!({
        "status": scored.status,
        "idk": scored.idk,
        "clarifies": scored.clarifies,
        "metrics": scored.metrics,
        "by_scripts": scored.clarified,
        "raw": scored.raw,
    })
}

fn group(members: &[&Scored]) -> Group {
    let means = |of: fn(&Scored) -> &Values| -> Means {
        let mean = |name: &'static str| {
            let values: Vec<f64> = members.iter().filter_map(|scored| of(scored).get(name).copied()).collect();
            let n = values.len();
            (n > 0).then(|| (name, Mean { value: values.iter().sum::<f64>() / n as f64, n }))
        };
        METRICS.iter().filter_map(|metric| mean(metric.name)).collect()
    };
    Group {
        tasks: members.len(),
        metrics: means(|scored| &scored.metrics),
        raw: means(|scored| &scored.raw),
        clarified: means(|scored| &scored.clarified),
    }
}

fn group_json(group: &Group) -> Json {
    json!({ "tasks": group.tasks, "metrics": values(&group.metrics), "raw": values(&group.raw) })
}

/// The means by name, in the order of [`METRICS`].
fn values(means: &Means) -> Map<String, Json> {
    listed(means).map(|(name, mean)| (name.to_owned(), mean.value.into())).collect()
}

fn counts(means: &Means) -> Map<String, Json> {
    listed(means).map(|(name, mean)| (name.to_owned(), mean.n.into())).collect()
}

fn listed(means: &Means) -> impl Iterator<Item = (&'static str, &Mean)> {
    METRICS.iter().filter_map(|metric| Some((metric.name, means.get(metric.name)?)))
}
