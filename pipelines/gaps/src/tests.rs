//! The sink, with vectors of words instead of a model's.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use turnflow_engine::component::{ComponentContext, Model, Models};
use turnflow_engine::connector::{AnswerSink, Delivery};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};
use turnflow_engine::record::AnswerRecord;

use crate::book::Book;
use crate::journal::{Journal, Line};
use crate::report::{Kind, Report, State};
use crate::sink::{GapsConfig, GapsSink};

/// Each word is a component.
struct Words;

impl Embedder for Words {
    fn dimension(&self) -> usize {
        64
    }

    fn embed(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let vector = |text: &String| -> Vector {
            let mut vector = vec![0.0_f32; 64];
            for word in text.to_lowercase().split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 3) {
                let place =
                    word.bytes().fold(7_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
                vector[place % 64] += 1.0;
            }
            vector.into()
        };
        ready(Ok(texts.iter().map(vector).collect())).boxed()
    }
}

struct Bench {
    runtime: Runtime,
    directory: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { runtime: Runtime::new().unwrap(), directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self, more: &str) -> GapsConfig {
        let (path, edits) = (self.path("gaps.jsonl"), self.path("edits.jsonl"));
        let ron = format!("(input: \"a\", model: \"m\", path: {path:?}, edits: Some({edits:?}), settle_s: 0.1{more})");
        turnflow_engine::spec::from_str(&ron).unwrap()
    }

    fn models(fingerprint: &str) -> Models {
        let model = Model { fingerprint: fingerprint.into(), embedder: Some(Arc::new(Words)), ..Model::default() };
        Models::from([("m".to_owned(), Arc::new(model))])
    }

    fn sink_of(&self, more: &str, fingerprint: &str) -> Result<GapsSink, String> {
        let context = ComponentContext::alone("gaps", self.runtime.handle().clone());
        self.config(more).sink(&context, &Self::models(fingerprint)).map_err(|error| error.to_string())
    }

    fn sink(&self) -> GapsSink {
        self.sink_of("", "one").unwrap()
    }

    fn deliver(&self, sink: &mut GapsSink, answers: &[AnswerRecord]) -> Result<(), String> {
        let taken = AtomicUsize::new(0);
        let delivered = self.runtime.block_on(sink.deliver(Delivery::new(answers, &taken)));
        delivered.map_err(|error| error.to_string())
    }

    fn book(&self) -> Book {
        let mut book = Book::new(None);
        Journal::read(&self.path("gaps.jsonl"), |line| book.take(line)).unwrap();
        book
    }

    fn report(&self) -> Report {
        Report::of(&self.book(), 1_000.0)
    }

    /// Waits until the journal says that all edits are told.
    fn all_told(&self) {
        let begun = Instant::now();
        while !self.book().untold.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The records of edits, when there are so many.
    fn edits(&self, count: usize) -> Vec<Value> {
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(self.path("edits.jsonl")).unwrap_or_default();
            let edits: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if edits.len() >= count {
                return edits;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{edits:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// An answer: of a conversation, at an epoch, with the texts of its passages by document.
fn answer(conversation: &str, epoch: u64, status: &str, query: &str, passages: &[(&str, &str)]) -> AnswerRecord {
    let hit = |(document, text): &(&str, &str)| json!({"passage": format!("{document}#0"), "document": document, "score": 1.0, "text": text});
    let record = json!({
        "conversation_id": conversation, "turn": 1, "revision": epoch - 1, "key": format!("key-{conversation}"),
        "status": status, "query": query, "answer": format!("{status} at {epoch}"),
        "hits": passages.iter().map(hit).collect::<Vec<_>>(),
        "stamp": {"pipeline": "p", "epoch": epoch, "models": BTreeMap::<String, String>::new()},
        "latency_ms": 1.0, "user": "ada",
    });
    AnswerRecord { timestamp: Some(500.0), ..serde_json::from_value(record).unwrap() }
}

/// The same answer, retracted.
fn retracted(record: &AnswerRecord) -> AnswerRecord {
    AnswerRecord { retracted: true, ..record.clone() }
}

const OTHER: (&str, &str) = ("hours.md", "The office opens every morning.");

/// Why it exists: a file of one line without an end was overwritten.
#[test]
fn a_file_of_something_else_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gaps.jsonl");
    for other in ["{\"my\":\"data\"}", "notes"] {
        std::fs::write(&path, other).unwrap();
        let error = crate::journal::Journal::open(&path, |_| ()).unwrap_err().to_string();
        assert!(error.contains("move the file away"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
    }
    for torn in ["", "{\"jour"] {
        std::fs::write(&path, torn).unwrap();
        crate::journal::Journal::open(&path, |_| ()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}

#[test]
fn questions_that_are_alike_are_one_gap_with_a_name_and_terms() {
    let bench = Bench::new();
    let mut sink = bench.sink();
    let answers = [
        answer("1", 1, "idk", "refund after thirty days", &[OTHER]),
        answer("2", 1, "idk", "refund after thirty days please", &[OTHER]),
        answer("3", 1, "idk", "which password opens wifi", &[]),
        answer("4", 1, "answered", "when does office open every morning", &[OTHER]),
        answer("5", 1, "failed", "refund after thirty days", &[]),
    ];
    bench.deliver(&mut sink, &answers).unwrap();
    // The same again: a process was killed before it knew that the answers were taken.
    bench.deliver(&mut sink, &answers).unwrap();
    let report = bench.report();
    assert_eq!((report.turns, report.open_questions, report.open_gaps), (4, 3, 2));
    let [first, second] = &report.gaps[..] else { panic!("{report:?}") };
    assert_eq!((&*first.name, first.open, first.conversations, first.people), ("refund after thirty days", 2, 2, 1));
    assert!(first.terms.contains(&"refund".to_owned()), "{first:?}");
    assert_eq!((first.kind, first.state), (Kind::NoDocument, State::Open));
    assert_eq!((second.kind, second.passages.len()), (Kind::NoDocument, 0));
}

#[test]
fn an_edit_settles_and_another_one_breaks() {
    let bench = Bench::new();
    let mut sink = bench.sink();
    let refunds = ("refunds.md", "A refund after thirty days is possible.");
    let before = answer("1", 1, "idk", "refund after thirty days", &[OTHER]);
    let fine = answer("2", 1, "answered", "does office open every morning", &[OTHER]);
    bench.deliver(&mut sink, &[before.clone(), fine.clone()]).unwrap();
    let settled = answer("1", 2, "answered", "refund after thirty days", &[refunds, OTHER]);
    bench.deliver(&mut sink, &[retracted(&before), settled.clone()]).unwrap();
    let edits = bench.edits(1);
    assert_eq!(edits[0]["text"], "refunds.md: \"refund after thirty days\" is answered now");
    assert_eq!((&edits[0]["epoch"], &edits[0]["settled"][0]["gap"]), (&json!(2), &json!("g1")));
    let gap = &bench.report().gaps[0];
    assert_eq!((gap.state, gap.open, &*gap.by[0]), (State::Settled, 0, "refunds.md"));
    assert_eq!(*gap.entries[0].settled_by, [Arc::from("refunds.md#0")]);

    // The document goes, and so does the other one.
    let broken = answer("1", 3, "idk", "refund after thirty days", &[]);
    let lost = answer("2", 3, "idk", "does office open every morning", &[]);
    bench.deliver(&mut sink, &[retracted(&settled), broken, retracted(&fine), lost]).unwrap();
    let edits = bench.edits(2);
    assert_eq!(edits[1]["text"], "hours.md, refunds.md: 2 answers do not hold any more");
    assert_eq!(edits[1]["broken"][1]["before"], "answered at 1");
    let report = bench.report();
    assert_eq!((report.open_questions, report.gaps[0].state), (2, State::Reopened));
    assert!(report.gaps.iter().all(|gap| gap.state == State::Reopened), "{report:?}");
}

#[test]
fn a_question_that_is_deleted_is_in_no_gap() {
    let bench = Bench::new();
    let mut sink = bench.sink();
    let one = answer("1", 1, "idk", "refund after thirty days", &[OTHER]);
    let other = answer("2", 1, "idk", "does office open every morning", &[OTHER]);
    bench.deliver(&mut sink, &[one.clone(), other]).unwrap();
    let withdrawn = AnswerRecord { withdrawn: true, ..retracted(&one) };
    for _ in 0..2 {
        bench.deliver(&mut sink, std::slice::from_ref(&withdrawn)).unwrap();
    }
    let report = bench.report();
    assert_eq!((report.open_questions, report.gaps.len()), (1, 1), "{report:?}");
    // Its new version is another question.
    bench.deliver(&mut sink, &[answer("3", 1, "idk", "refund after sixty days", &[OTHER])]).unwrap();
    assert_eq!(bench.report().open_questions, 2);
}

#[test]
fn a_restart_goes_on_and_tells_what_was_not_told() {
    let bench = Bench::new();
    let refunds = ("refunds.md", "A refund after thirty days is possible.");
    let before = answer("1", 1, "idk", "refund after thirty days", &[OTHER]);
    {
        let mut sink = bench.sink_of(", threshold: Some(0.6)", "one").unwrap();
        bench.deliver(&mut sink, std::slice::from_ref(&before)).unwrap();
    }
    // A line that is cut off.
    let mut journal = fs::read(bench.path("gaps.jsonl")).unwrap();
    let whole = journal.len();
    journal.extend_from_slice(b"{\"fine\":{\"key\":\"x");
    fs::write(bench.path("gaps.jsonl"), &journal).unwrap();
    let mut sink = bench.sink();
    assert_eq!(fs::metadata(bench.path("gaps.jsonl")).unwrap().len() as usize, whole);
    let settled = answer("1", 2, "answered", "refund after thirty days", &[refunds]);
    bench.deliver(&mut sink, &[retracted(&before), settled]).unwrap();
    assert_eq!(bench.edits(1).len(), 1);
    bench.all_told();
    drop(sink);
    // The record of the edit was written, and the process was killed before the journal said so.
    let text = fs::read_to_string(bench.path("gaps.jsonl")).unwrap();
    let told = text.lines().position(|line| line.contains("\"told\"")).unwrap();
    let lines: Vec<&str> = text.lines().take(told).collect();
    fs::write(bench.path("gaps.jsonl"), lines.join("\n") + "\n").unwrap();
    assert_eq!(bench.book().untold.len(), 1);
    // And a part of the next one.
    let mut edits = fs::read(bench.path("edits.jsonl")).unwrap();
    edits.extend_from_slice(b"{\"conversation_id\":");
    fs::write(bench.path("edits.jsonl"), edits).unwrap();
    let _sink = bench.sink();
    bench.all_told();
    assert_eq!(bench.edits(1).len(), 1);
}

#[test]
fn a_journal_of_another_model_or_form_is_refused() {
    let bench = Bench::new();
    let mut sink = bench.sink();
    bench.deliver(&mut sink, &[answer("1", 1, "idk", "refund after thirty days", &[])]).unwrap();
    drop(sink);
    let error = bench.sink_of("", "two").err().unwrap();
    assert!(error.contains("has vectors of another model than `m` is now"), "{error}");
    for (text, expected) in [
        ("{\"journal\":{\"form\":99,\"model\":\"one\"}}\n", "a newer version of turnflow wrote this journal (form 99)"),
        ("{\"conversation_id\":\"a\"}\n", "gaps.jsonl:1: this is no line of a journal of gaps"),
        ("{\"told\":{\"number\":1}}\n", "this is no journal of gaps"),
    ] {
        fs::write(bench.path("gaps.jsonl"), text).unwrap();
        let error = bench.sink_of("", "one").err().unwrap();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_cannot_be_written_comes_again() {
    let bench = Bench::new();
    let mut sink = bench.sink();
    // Nothing can be appended to a journal whose end is a device.
    let journal = bench.path("gaps.jsonl");
    let kept = fs::read(&journal).unwrap();
    sink.break_journal(Path::new("/dev/full"));
    let asked = answer("1", 1, "idk", "refund after thirty days", &[]);
    let error = bench.deliver(&mut sink, std::slice::from_ref(&asked)).err().unwrap();
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(fs::read(&journal).unwrap(), kept);
    // The sink opens the journal again, and has not taken the answer for one that it knows.
    bench.deliver(&mut sink, &[asked]).unwrap();
    assert_eq!(bench.report().open_questions, 1);
}

#[test]
fn a_gap_can_be_put_aside_while_the_sink_writes() {
    let bench = Bench::new();
    let mut sink = bench.sink();
    bench.deliver(&mut sink, &[answer("1", 1, "idk", "refund after thirty days", &[])]).unwrap();
    let line = Line::Dismissed { group: 1, reason: Some("no".into()), at: 1.0 };
    Journal::note(&bench.path("gaps.jsonl"), &line).unwrap();
    bench.deliver(&mut sink, &[answer("2", 1, "idk", "which password opens wifi", &[])]).unwrap();
    let report = bench.report();
    assert_eq!((report.open_questions, report.gaps[1].state), (1, State::Dismissed));
    assert_eq!(report.gaps[1].reason.as_deref(), Some("no"));
}

#[test]
fn checks_of_the_answer_count() {
    let bench = Bench::new();
    let mut sink = bench.sink_of(", min_confidence: Some(0.5), min_entailment: Some(0.4)", "one").unwrap();
    let with = |conversation: &str, checks: Value| {
        let mut record = answer(conversation, 1, "answered", &format!("question number {conversation}"), &[]);
        record.checks = serde_json::from_value(checks).unwrap();
        record
    };
    let answers = [
        with("one", json!({"self_check": {"failed": ["numbers"]}})),
        with("two", json!({"confidence": 0.4})),
        with("three", json!({"nli": {"entailment": 0.1}})),
        with("four", json!({"self_check": {"failed": []}, "confidence": 0.9, "nli": {"entailment": 0.9}})),
    ];
    bench.deliver(&mut sink, &answers).unwrap();
    let book = bench.book();
    let outcomes: Vec<_> = book.questions.iter().map(|question| question.asked.outcome).collect();
    use crate::journal::Outcome::{Unsupported, Weak};
    assert_eq!(outcomes, [Unsupported, Weak, Unsupported]);
}
