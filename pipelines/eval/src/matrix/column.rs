//! Columns: metrics of a row's result, of all tasks or of a group.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value as Json;

use super::RowResult;
use super::config::ColumnConfig;
use crate::{generation, metrics};

/// The harmonic mean of RB_alg, RB_llm and RL_F; it is not a mean over tasks.
const HARMONIC: &str = "hm";
/// Its parts.
const PARTS: [&str; 3] = ["rb_alg", "rb_llm", "rl_f"];
/// Whether the answer is an IDK answer.
pub(super) const IDK: &str = "idk";
/// Shares of the abstention report; they are not means over tasks.
const SHARES: [&str; 3] = ["answerability_accuracy", "over_abstention", "under_abstention"];
/// The dimensions of groups; see [`kinds`](crate::breakdown::kinds).
const DIMENSIONS: [&str; 6] = ["turn", "collection", "answerability", "question_type", "multi_turn", "standalone"];

/// The unit of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A value from 0 to 1, shown in per cent.
    Percent,
    /// A count, shown as it is.
    Count,
}

/// A column of a matrix.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// The heading.
    pub title: String,
    /// The metric.
    pub metric: String,
    /// Dimension and value of the group that counts.
    pub by: Option<(String, String)>,
    /// The unit.
    pub unit: Unit,
}

/// Why a column is invalid: the field and the reason.
pub(super) struct ColumnFault {
    pub field: &'static str,
    pub message: String,
    pub given: String,
    pub choices: Vec<&'static str>,
}

/// The names of all metrics of columns.
fn names() -> Vec<&'static str> {
    let answers = generation::METRICS.iter().map(|metric| metric.name);
    metrics::METRICS.into_iter().chain(answers).chain([HARMONIC, IDK]).chain(SHARES).collect()
}

impl Column {
    pub(super) fn new(config: ColumnConfig) -> Result<Self, ColumnFault> {
        let ColumnConfig { metric, title, by } = config;
        if !names().contains(&metric.as_str()) {
            let message = format!("there is no metric `{metric}`");
            return Err(ColumnFault { field: "metric", message, given: metric, choices: names() });
        }
        if let Some((dimension, _)) = &by {
            if !DIMENSIONS.contains(&dimension.as_str()) {
                let message = format!("tasks are not grouped by `{dimension}`");
                return Err(ColumnFault {
                    field: "by",
                    message,
                    given: dimension.clone(),
                    choices: DIMENSIONS.to_vec(),
                });
            }
            if SHARES.contains(&metric.as_str()) {
                let message = format!("`{metric}` is reported for all tasks only");
                return Err(ColumnFault { field: "by", message, given: String::new(), choices: Vec::new() });
            }
        }
        let group = by.as_ref().map_or(String::new(), |(_, value)| format!(" {value}"));
        let title = title.unwrap_or_else(|| format!("{metric}{group}"));
        let unit = if ["words", "characters"].contains(&metric.as_str()) { Unit::Count } else { Unit::Percent };
        Ok(Self { title, metric, by, unit })
    }

    /// Whether it needs answers.
    pub fn is_of_answers(&self) -> bool {
        !metrics::METRICS.contains(&self.metric.as_str())
    }

    /// The values of the tasks that count and have the metric; empty if it is not a mean over tasks.
    pub fn values<'r>(&self, result: &'r RowResult) -> BTreeMap<&'r str, f64> {
        self.of(result, &self.metric)
    }

    fn of<'r>(&self, result: &'r RowResult, metric: &str) -> BTreeMap<&'r str, f64> {
        let counts = |kinds: &[(String, String)]| self.by.as_ref().is_none_or(|by| kinds.contains(by));
        let tasks = result.tasks.iter().filter(|(_, task)| counts(&task.kinds));
        tasks.filter_map(|(id, task)| Some((id.as_str(), *task.figures.get(metric)?))).collect()
    }

    /// The figure of a row; `None` if no task has the metric.
    pub fn value(&self, result: &RowResult) -> Option<f64> {
        let mean = |metric: &str| {
            let values = self.of(result, metric);
            (!values.is_empty()).then(|| values.values().sum::<f64>() / values.len() as f64)
        };
        match self.metric.as_str() {
            HARMONIC => generation::report::harmonic_mean(PARTS.map(mean)),
            share if SHARES.contains(&share) => {
                let abstention = result.figures.get("generation")?.get("abstention")?;
                abstention.get(share)?.get("rate").and_then(Json::as_f64)
            }
            metric => mean(metric),
        }
    }

    /// A value in the unit of the column.
    pub fn scaled(&self, value: f64) -> f64 {
        match self.unit {
            Unit::Percent => 100.0 * value,
            Unit::Count => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::TaskFigures;

    fn column(metric: &str, by: Option<(&str, &str)>) -> Column {
        let by = by.map(|(kind, value)| (kind.to_owned(), value.to_owned()));
        let config = ColumnConfig { metric: metric.to_owned(), title: None, by };
        Column::new(config).unwrap_or_else(|fault| panic!("{}", fault.message))
    }

    #[test]
    fn a_column_counts_the_tasks_of_its_group() {
        let task = |kind: &str, figures: [(&str, f64); 3]| TaskFigures {
            kinds: vec![("turn".to_owned(), kind.to_owned())],
            figures: figures.map(|(name, value)| (name.to_owned(), value)).into(),
        };
        let tasks = [
            ("a", task("first", [("rb_alg", 0.2), ("rb_llm", 0.4), ("rl_f", 0.6)])),
            ("b", task("later", [("rb_alg", 0.4), ("rb_llm", 0.4), ("words", 12.0)])),
        ];
        let tasks = tasks.map(|(id, task)| (id.to_owned(), task)).into();
        let result = RowResult { tasks, ..RowResult::default() };
        let near = |column: Column, want: Option<f64>| {
            let found = column.value(&result);
            assert!(found.zip(want).map_or(found == want, |(a, b)| (a - b).abs() < 1e-12), "{found:?}, not {want:?}");
        };
        near(column("rb_alg", None), Some(0.3));
        near(column("rb_alg", Some(("turn", "later"))), Some(0.4));
        near(column("rb_alg", Some(("turn", "none"))), None);
        // 3 / (1 / 0.3 + 1 / 0.4 + 1 / 0.6)
        near(column("hm", None), Some(0.4));
        near(column("hm", Some(("turn", "later"))), None);
        near(column("over_abstention", None), None);
        assert_eq!(column("words", None).scaled(12.0), 12.0);
        assert_eq!(column("hm", Some(("turn", "later"))).title, "hm later");
        assert!(column("hm", None).is_of_answers() && !column("mrr", None).is_of_answers());
    }
}
