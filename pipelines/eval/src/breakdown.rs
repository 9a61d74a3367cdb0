//! Breaks an evaluation's metrics down by kind of task: first and later turns,
//! collection, MTRAG's annotations.

use std::collections::BTreeMap;

use serde::Serialize;

use super::metrics::{Figures, Scores};
use super::tasks::Task;

/// The mean metrics of a group of queries.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Number of scored queries.
    pub queries: usize,
    /// Their mean metrics.
    pub metrics: Figures,
}

/// The groups of a task: pairs of dimension and value.
///
/// The dimensions are `turn` (`first`, `later`), `collection`, `answerability`,
/// `question_type`, `multi_turn` and `standalone` (`yes`, `no`); those that the
/// task does not set are omitted. As in MTRAG's table 4 (section 5.3), only later
/// turns have the dimension `standalone`.
pub fn kinds(task: &Task) -> Vec<(&'static str, &str)> {
    let mut kinds = vec![("turn", if task.turn <= 1 { "first" } else { "later" })];
    kinds.extend(task.collection.iter().map(|name| ("collection", name.as_str())));
    kinds.extend(task.answerability.iter().map(|kind| ("answerability", kind.as_str())));
    kinds.extend(task.question_types.iter().map(|kind| ("question_type", kind.as_str())));
    kinds.extend(task.multi_turn.iter().map(|kind| ("multi_turn", kind.as_str())));
    let standalone = task.standalone.filter(|_| task.turn > 1);
    kinds.extend(standalone.map(|standalone| ("standalone", if standalone { "yes" } else { "no" })));
    kinds
}

/// The metrics by kind of task: dimension → value → group, written as `"by"` in the JSON output;
/// see [`kinds`]. A task with two question types is in both groups.
pub fn by_kind(tasks: &[Task], scores: &Scores) -> BTreeMap<String, BTreeMap<String, Group>> {
    let mut members: BTreeMap<&str, BTreeMap<&str, Vec<&Figures>>> = BTreeMap::new();
    for task in tasks {
        let Some(figures) = scores.per_query.get(&task.id) else {
            continue;
        };
        for (dimension, value) in kinds(task) {
            members.entry(dimension).or_default().entry(value).or_default().push(figures);
        }
    }
    let group = |(value, rows): (&str, Vec<&Figures>)| {
        let queries = rows.len();
        Some((value.to_owned(), Group { queries, metrics: Figures::mean(rows)? }))
    };
    let groups = |(dimension, values): (&str, BTreeMap<&str, Vec<&Figures>>)| {
        (dimension.to_owned(), values.into_iter().filter_map(group).collect())
    };
    members.into_iter().map(groups).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Qrels, Run, score};

    fn task(id: &str, turn: u32, collection: &str, question_types: &[&str]) -> Task {
        Task {
            id: id.to_owned(),
            conversation_id: "c".to_owned(),
            turn,
            collection: Some(collection.to_owned()),
            input: Vec::new(),
            answerability: None,
            question_types: question_types.iter().map(|kind| (*kind).to_owned()).collect(),
            multi_turn: Vec::new(),
            standalone: None,
            contexts: Vec::new(),
            target: None,
            other_targets: Vec::new(),
        }
    }

    #[test]
    fn counts_a_task_in_each_of_its_groups() {
        let tasks = [task("a", 1, "x", &[]), task("b", 2, "x", &["P", "Q"]), task("unjudged", 1, "y", &[])];
        let judged = |query: &str| (query.to_owned(), [("d".to_owned(), 1)].into());
        let qrels = Qrels::from([judged("a"), judged("b")]);
        let run = Run::from([("b".to_owned(), vec![("d".to_owned(), 1.0)])]);
        let by = by_kind(&tasks, &score(&qrels, &run));

        let json = serde_json::to_value(&by).expect("json");
        assert_eq!(json["turn"]["first"]["metrics"]["recall@5"], 0.0);
        assert_eq!(json["turn"]["later"]["metrics"]["recall@5"], 1.0);
        assert_eq!(by["collection"].keys().collect::<Vec<_>>(), ["x"]);
        assert_eq!(json["collection"]["x"]["metrics"]["mrr"], 0.5);
        assert_eq!(json["collection"]["x"]["queries"], 2);
        assert_eq!(by["question_type"]["P"], by["question_type"]["Q"]);
        assert!(!by.contains_key("answerability"));
    }

    #[test]
    fn later_turns_are_standalone_or_not() {
        for (turn, standalone, want) in [
            (2, Some(true), ("standalone", "yes")),
            (2, Some(false), ("standalone", "no")),
            (2, None, ("collection", "x")),
            (1, Some(true), ("collection", "x")),
        ] {
            let task = Task { standalone, ..task("a", turn, "x", &[]) };
            assert_eq!(kinds(&task).last(), Some(&want));
        }
    }
}
