//! The queue with its journal.

mod conforms;
mod exported;
mod judged;
mod kept;
mod revisions;
mod rules;

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use turnflow_engine::connector::{Judgement, ReviewDocument, ReviewItem, ReviewPage, ReviewQueue, Verdict};
use turnflow_engine::record::{AnswerRecord, Asked};

use crate::queue::{Counts, Queue, Wanted};
use crate::sink::ReviewConfig;

/// A node `review` in a directory of its own.
struct Bench {
    directory: TempDir,
    config: ReviewConfig,
}

impl Bench {
    fn new(fields: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = config(&directory.path().join("review.jsonl").display().to_string(), fields);
        Self { directory, config }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("review.jsonl")
    }

    /// Starts a process.
    fn open(&self) -> Queue {
        Queue::open("review", &self.path()).unwrap()
    }

    fn take(&self, queue: &Queue, records: &[AnswerRecord]) -> Counts {
        queue.take(records, &self.wanted()).unwrap()
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted { rules: &self.config.rules, max_open: self.config.max_open }
    }

    fn file(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap()
    }
}

fn config(path: &str, fields: &str) -> ReviewConfig {
    turnflow_engine::spec::from_str(&format!("(input: \"x\", path: {path:?}, {fields})")).unwrap()
}

/// An answer to a turn of its own.
fn answer(number: usize, fields: Value) -> AnswerRecord {
    let mut record = json!({
        "conversation_id": format!("c{number}"), "turn": 1, "revision": 0, "key": format!("k{number}"),
        "status": "answered", "query": format!("question {number}?"), "answer": "x",
        "hits": [
            {"passage": "a#0", "document": "a", "score": 1.0, "text": "first"},
            {"passage": "b#0", "document": "b", "score": 0.5, "text": "second"},
        ],
        "stamp": {"pipeline": "p", "epoch": 1, "models": {}}, "latency_ms": 100.0,
    });
    let fields = fields.as_object().unwrap().clone();
    let epoch = fields.get("epoch").cloned().unwrap_or(json!(1));
    record.as_object_mut().unwrap().extend(fields);
    record["stamp"]["epoch"] = epoch;
    record.as_object_mut().unwrap().remove("epoch");
    serde_json::from_value(record).unwrap()
}

fn declined(number: usize) -> AnswerRecord {
    answer(number, json!({ "status": "idk" }))
}

fn list(queue: &Queue, judged: bool) -> Vec<ReviewItem> {
    queue.list(&ReviewPage { judged, limit: 1000, ..ReviewPage::default() }).unwrap().items
}

/// The conversations of the open answers.
fn open(queue: &Queue) -> Vec<String> {
    list(queue, false).iter().map(|item| item.conversation_id.to_string()).collect()
}

fn says(verdict: Verdict) -> Judgement {
    let (relevant, irrelevant) = Default::default();
    Judgement { verdict, correction: None, answerable: None, relevant, irrelevant, comment: None, by: None, at: 0.0 }
}

const DECLINED: &str = r#"rules: { "declined": (of: Declined) }"#;

#[test]
fn an_answer_that_a_rule_takes_is_queued_with_what_a_person_needs() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    let long = "x".repeat(5000);
    let hits: Vec<Value> =
        (0..12).map(|hit| json!({"passage": format!("p{hit}"), "document": "d", "score": 1.0, "text": long})).collect();
    let mut record = answer(
        0,
        json!({"status": "idk", "answer": "I do not know.", "hits": hits,
        "checks": {"citations": [2]}}),
    );
    record.question = Some(Asked { text: "And on Sundays?".into(), collection: Some("docs".into()) });
    record.stamp.warnings = ["node: a fallback".to_owned()].into();
    record.timestamp = Some(77.0);
    bench.take(&queue, &[record, answer(1, json!({}))]);
    let items = list(&queue, false);
    let [item] = &items[..] else { panic!("{items:?}") };
    assert_eq!((&*item.question, &*item.query, &*item.answer), ("And on Sundays?", "question 0?", "I do not know."));
    assert_eq!(
        (item.collection.as_deref(), &item.more_documents[..]),
        (Some("docs"), &[ReviewDocument { document: "d".into(), corpus: None }][..])
    );
    assert_eq!((item.rules.len(), &*item.rules[0], item.at), (1, "declined", 77.0));
    assert_eq!((item.hits.len(), item.more_hits, &item.warnings[..]), (10, 2, &["node: a fallback".to_owned()][..]));
    assert!(item.hits.iter().all(|hit| hit.cut && hit.text.chars().count() == 2001));
    let cited: Vec<&str> = item.hits.iter().filter(|hit| hit.cited).map(|hit| &*hit.passage).collect();
    assert_eq!(cited, ["p1"]);
}

#[test]
fn a_full_queue_counts_what_it_leaves_out() {
    let bench = Bench::new(r#"rules: { "all": (of: Any) }, max_open: 3"#);
    let mut queue = bench.open();
    let records: Vec<AnswerRecord> = (0..8).map(declined).collect();
    let full = Counts { open: 3, judged: 0, left_out: 5 };
    assert_eq!(bench.take(&queue, &records), full);
    // They come again, now and after a restart.
    assert_eq!(bench.take(&queue, &records), full);
    queue = bench.open();
    assert_eq!(bench.take(&queue, &records), full);
    assert_eq!(open(&queue), ["c0", "c1", "c2"]);
    // A verdict makes room for the next one, and none for those before.
    queue.judge(&list(&queue, false)[0].id, &says(Verdict::Good)).unwrap();
    assert_eq!(bench.take(&queue, &records[..]), Counts { open: 2, judged: 1, left_out: 5 });
    bench.take(&queue, &[declined(8), declined(9)]);
    assert_eq!(open(&queue), ["c1", "c2", "c8"]);
    assert_eq!(queue.counts().unwrap(), Counts { open: 3, judged: 1, left_out: 6 });
}

#[test]
fn the_list_has_pages() {
    let bench = Bench::new(r#"rules: { "all": (of: Any) }"#);
    let queue = bench.open();
    let records: Vec<AnswerRecord> = (0..7).map(declined).collect();
    bench.take(&queue, &records);
    let page = |judged: bool, after: Option<&str>| {
        let list = queue.list(&ReviewPage { judged, limit: 3, after: after.map(str::to_owned), rule: None }).unwrap();
        let names: Vec<String> = list.items.iter().map(|item| item.conversation_id.to_string()).collect();
        (names.join(" "), list.items.last().map(|item| item.id.to_string()), list.has_more)
    };
    let (first, last, more) = page(false, None);
    assert_eq!((&*first, more), ("c0 c1 c2", true));
    // The last one of the page is judged meanwhile.
    queue.judge(last.as_deref().unwrap(), &says(Verdict::Unsure)).unwrap();
    let (second, last, more) = page(false, last.as_deref());
    assert_eq!((&*second, more), ("c3 c4 c5", true));
    assert_eq!(page(false, last.as_deref()).0, "c6");
    for item in list(&queue, false) {
        queue.judge(&item.id, &says(Verdict::Bad)).unwrap();
    }
    let (newest, last, _) = page(true, None);
    assert_eq!((&*newest, &*page(true, last.as_deref()).0), ("c6 c5 c4", "c3 c1 c0"));
    // Of one rule.
    let of = |rule: &str| ReviewPage { judged: true, limit: 3, after: None, rule: Some(rule.to_owned()) };
    assert_eq!(queue.list(&of("all")).unwrap().items.len(), 3);
    assert_eq!(queue.list(&of("none")).unwrap().items.len(), 0);
    let unknown = ReviewPage { limit: 3, after: Some("none".into()), ..ReviewPage::default() };
    assert_eq!(queue.list(&unknown).unwrap_err().to_string(), "the queue has no `none`");
}
