//! What was judged, as `eval`, `tune`, `calibrate` and `test` read it.
//!
//! | file | has |
//! |---|---|
//! | `tasks.jsonl` | the questions, with right answers as `targets`, and with `answerability` where it is known |
//! | `qrels.tsv` | passages that are relevant (1), and passages that are not (0) |
//! | `review.test.ron` | a test of each question whose outcome is known |
//!
//! A good answer makes the passages that it cites relevant, or its first passage if it cites none, unless the verdict names
//! passages itself. A question is answerable if an answer was good, if there is a correction, or if it was bad to decline; it
//! is not if it was good to decline. What the verdict says itself counts. An answer that is wrong says nothing about this.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use turnflow_engine::connector::{Judgement, ReviewItem, Verdict};
use turnflow_engine::record::Status;

/// The files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// `tasks.jsonl`.
    pub tasks: String,
    /// `qrels.tsv`.
    pub qrels: String,
    /// `review.test.ron`.
    pub tests: String,
    /// Number of tasks, of judgements of passages, and of tests.
    pub counts: [u64; 3],
    /// Number of answers about which people are unsure: they are in no file.
    pub unsure: u64,
    /// The ids of the tasks: no two tasks have the same one.
    ids: BTreeSet<String>,
}

/// Whether a table of judgements gives an id back.
fn is_name(id: &str) -> bool {
    !id.is_empty() && id.trim() == id && !id.contains(char::is_control)
}

/// What a verdict says of a question.
struct Said<'a> {
    item: &'a ReviewItem,
    judgement: &'a Judgement,
}

impl Export {
    /// The files of answers that were judged.
    pub fn of(items: &[ReviewItem]) -> Self {
        let mut export = Self { qrels: "query-id\tcorpus-id\tscore\n".to_owned(), ..Self::default() };
        for item in items {
            match &item.judgement {
                Some(Judgement { verdict: Verdict::Unsure, .. }) => export.unsure += 1,
                Some(judgement) => export.add(&Said { item, judgement }),
                None => {}
            }
        }
        export.tests = format!("// Made of verdicts by `turnflow review --export`.\n[\n{}]\n", export.tests);
        export
    }

    fn add(&mut self, said: &Said<'_>) {
        let Said { item, judgement } = said;
        if said.question().trim().is_empty() {
            return;
        }
        let mut id = said.id("");
        // Turns of two logs may have the same names.
        if !self.ids.insert(id.clone()) {
            id = said.id(&item.id);
            self.ids.insert(id.clone());
        }
        let mut task = Map::new();
        task.insert("task_id".into(), json!(id));
        task.insert("conversation_id".into(), json!(item.conversation_id));
        task.insert("turn".into(), json!(item.turn));
        task.extend(item.collection.as_ref().map(|collection| ("collection".to_owned(), json!(collection))));
        // What was searched needs no conversation before it.
        task.insert("input".into(), json!([{ "speaker": "user", "text": said.question() }]));
        task.extend(said.answerability().map(|word| ("answerability".to_owned(), json!([word]))));
        task.extend(said.target().map(|text| ("targets".to_owned(), json!([{ "speaker": "agent", "text": text }]))));
        task.insert("review".into(), json!({ "id": item.id, "verdict": judgement.verdict, "rules": item.rules }));
        let _ = writeln!(self.tasks, "{}", Value::Object(task));
        self.counts[0] += 1;
        let grades =
            said.relevant().into_iter().map(|id| (id, 1)).chain(judgement.irrelevant.iter().map(|id| (&**id, 0)));
        for (passage, grade) in grades.filter(|(passage, _)| is_name(passage)) {
            let _ = writeln!(self.qrels, "{id}\t{passage}\t{grade}");
            self.counts[1] += 1;
        }
        self.test(said, &id);
    }

    /// Adds a test, if the outcome is known.
    fn test(&mut self, said: &Said<'_>, id: &str) {
        let status = match said.answerability() {
            Some("ANSWERABLE") => "Answered",
            Some(_) => "Idk",
            None => return,
        };
        let list = |ids: &[&str]| ids.iter().map(|id| format!("{id:?}")).collect::<Vec<_>>().join(", ");
        let mut expect = format!("status: {status}");
        let relevant = said.relevant();
        if status == "Answered" && !relevant.is_empty() {
            let _ = write!(expect, ", hits: [{}]", list(&relevant));
        }
        let question = said.question();
        let collection = said.item.collection.as_ref();
        let collection = collection.map(|name| format!("        collection: Some({name:?}),\n")).unwrap_or_default();
        let _ = writeln!(
            self.tests,
            "    Test(\n        name: {id:?},\n{collection}        turns: [User({question:?})],\n        expect: [Expect({expect})],\n    ),"
        );
        self.counts[2] += 1;
    }
}

impl Said<'_> {
    /// The id of the task, without what a table of judgements would not give back; with the id of the answer, it is its own.
    fn id(&self, of_answer: &str) -> String {
        let Self { item, .. } = self;
        let conversation = item.conversation_id.replace(char::is_control, " ");
        let of_answer = if of_answer.is_empty() { String::new() } else { format!("-{of_answer}") };
        format!("{}{of_answer}<::>{}", conversation.trim(), item.turn)
    }

    fn question(&self) -> &str {
        let Self { item, .. } = self;
        if item.query.trim().is_empty() { &item.question } else { &item.query }
    }

    /// Whether the documents answer the question, in the words of MTRAG's tasks, if it is known.
    fn answerability(&self) -> Option<&'static str> {
        let Self { item, judgement } = self;
        let is_answerable = judgement.answerable.or_else(|| match (judgement.verdict, item.status) {
            _ if judgement.correction.is_some() => Some(true),
            (Verdict::Good, Status::Answered) | (Verdict::Bad, Status::Idk) => Some(true),
            (Verdict::Good, Status::Idk) => Some(false),
            _ => None,
        })?;
        Some(if is_answerable { "ANSWERABLE" } else { "UNANSWERABLE" })
    }

    /// The right answer, if it is known.
    fn target(&self) -> Option<&str> {
        let Self { item, judgement } = self;
        let is_good = judgement.verdict == Verdict::Good && item.status == Status::Answered && !item.answer.is_empty();
        judgement.correction.as_deref().or_else(|| is_good.then_some(&*item.answer))
    }

    /// The relevant passages.
    fn relevant(&self) -> Vec<&str> {
        let Self { item, judgement } = self;
        if !judgement.relevant.is_empty() {
            return judgement.relevant.iter().map(String::as_str).collect();
        }
        if judgement.verdict != Verdict::Good || item.status != Status::Answered {
            return Vec::new();
        }
        let is_not = |id: &&str| !judgement.irrelevant.iter().any(|other| other == id);
        let cited = item.hits.iter().filter(|hit| hit.cited).map(|hit| &*hit.passage);
        match cited.clone().next() {
            Some(_) => cited.filter(is_not).collect(),
            None => item.hits.first().map(|hit| &*hit.passage).filter(is_not).into_iter().collect(),
        }
    }
}
