use std::sync::atomic::AtomicUsize;

use super::*;
use crate::testing::answer;

fn open(directory: &tempfile::TempDir, config: &AnswersConfig) -> Answers {
    config.open(Place::File(directory.path().join(FILE))).unwrap()
}

fn config(keep: u64) -> AnswersConfig {
    AnswersConfig { input: "a".into(), keep, keep_mb: 1, mode: None }
}

fn record(conversation: &str, key: &str) -> AnswerRecord {
    AnswerRecord { conversation_id: conversation.into(), key: key.into(), ..answer() }
}

fn put(sink: &Answers, records: &[AnswerRecord]) {
    sink.put(Delivery::new(records, &AtomicUsize::new(0))).unwrap();
}

fn keys(answers: &[LoggedAnswer]) -> Vec<(u64, &str)> {
    answers.iter().map(|answer| (answer.number, &*answer.record.key)).collect()
}

#[test]
fn a_reader_goes_on_after_a_number_in_all_or_one_conversation() {
    let directory = tempfile::tempdir().unwrap();
    let sink = open(&directory, &config(100));
    let log = sink.log().unwrap();
    let mut last = log.last();
    put(&sink, &[record("x", "1"), record("y", "2"), record("x", "3")]);
    assert!(last.has_changed().unwrap());
    assert_eq!(*last.borrow_and_update(), 3);
    assert_eq!(keys(&log.read(AnswersOf::All, 0, 2).unwrap()), [(1, "1"), (2, "2")]);
    assert_eq!(keys(&log.read(AnswersOf::All, 2, 2).unwrap()), [(3, "3")]);
    assert_eq!(keys(&log.read(AnswersOf::Conversation("x"), 0, 10).unwrap()), [(1, "1"), (3, "3")]);
    assert_eq!(keys(&log.read(AnswersOf::Conversation("x"), 1, 10).unwrap()), [(3, "3")]);
    assert!(log.read(AnswersOf::Conversation("z"), 0, 10).unwrap().is_empty());
    assert!(log.read(AnswersOf::All, u64::MAX, 10).unwrap().is_empty());
    drop((sink, log));
    let sink = open(&directory, &config(100));
    assert_eq!(*sink.log().unwrap().last().borrow(), 3);
    put(&sink, &[record("x", "4")]);
    assert_eq!(keys(&sink.log().unwrap().read(AnswersOf::Conversation("x"), 1, 10).unwrap()), [(3, "3"), (4, "4")]);
}

#[test]
fn the_oldest_answers_are_removed_beyond_the_bounds() {
    let directory = tempfile::tempdir().unwrap();
    let sink = open(&directory, &config(2));
    let log = sink.log().unwrap();
    put(&sink, &[record("x", "1"), record("x", "2")]);
    put(&sink, &[record("x", "3")]);
    assert_eq!(keys(&log.read(AnswersOf::All, 0, 10).unwrap()), [(2, "2"), (3, "3")]);
    assert_eq!(keys(&log.read(AnswersOf::Conversation("x"), 0, 10).unwrap()), [(2, "2"), (3, "3")]);
    // An answer larger than the limit of the log is kept until the next one arrives.
    let long = AnswerRecord { answer: "long ".repeat(1 << 18).into(), ..record("y", "4") };
    put(&sink, &[long]);
    assert_eq!(keys(&log.read(AnswersOf::All, 0, 10).unwrap()), [(4, "4")]);
    put(&sink, &[record("x", "5")]);
    assert_eq!(keys(&log.read(AnswersOf::All, 0, 10).unwrap()), [(5, "5")]);
}

fn of(caller: &str, key: &str) -> AnswerRecord {
    let mut record = record("x", key);
    record.extra.insert("principal".to_owned(), serde_json::json!({ "name": caller }));
    record
}

/// Reason: one caller's turns pushed out another's answer before it was read.
#[test]
fn nobody_pushes_out_the_answers_of_another_caller() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = open(&directory, &config(10));
    put(&sink, &[of("b", "b0"), record("y", "nobody's")]);
    for round in 0..4 {
        let many: Vec<AnswerRecord> = (0..7).map(|at| of("a", &format!("a{round}{at}"))).collect();
        put(&sink, &many);
        if round == 1 {
            drop(sink);
            sink = open(&directory, &config(10));
        }
    }
    let log = sink.log().unwrap();
    let page = log.read(AnswersOf::All, 0, 100).unwrap();
    assert_eq!(keys(&log.read(AnswersOf::Caller("b"), 0, 9).unwrap()), [(1, "b0")]);
    assert_eq!(keys(&log.read(AnswersOf::Caller(""), 0, 9).unwrap()), [(2, "nobody's")]);
    assert_eq!(log.read(AnswersOf::Caller("a"), 0, 3).unwrap().len(), 3);
    assert!(log.read(AnswersOf::Caller("b"), 1, 9).unwrap().is_empty());
    let found: Vec<&str> = page.iter().map(|answer| &*answer.record.key).collect();
    assert_eq!(found, ["b0", "nobody's", "a26", "a30", "a31", "a32", "a33", "a34", "a35", "a36"][..], "{found:?}");
    assert_eq!(sink.recover(Search::default()).unwrap().answers.count(), 10, "numbers have gaps");
    // Many answers of few bytes do not push out few of many bytes, and the other way round.
    let directory = tempfile::tempdir().unwrap();
    let sink = open(&directory, &config(1000));
    put(&sink, &[of("b", "b0")]);
    for at in 0..20 {
        put(&sink, &[AnswerRecord { answer: "long ".repeat(1 << 15).into(), ..of("a", &at.to_string()) }]);
    }
    assert_eq!(keys(&sink.log().unwrap().read(AnswersOf::All, 0, 1).unwrap()), [(1, "b0")]);
}

/// Reason: a disk may report an error after it has written.
#[test]
fn answers_that_reached_the_disk_in_spite_of_an_error_are_not_added_again() {
    let directory = tempfile::tempdir().unwrap();
    let sink = open(&directory, &config(100));
    put(&sink, &[record("x", "1")]);
    sink.store.forget(1);
    put(&sink, &[record("x", "1"), record("x", "2")]);
    assert_eq!(keys(&sink.log().unwrap().read(AnswersOf::All, 0, 10).unwrap()), [(1, "1"), (2, "2")]);
}

/// Reason: a restart looks for what earlier processes wrote, not for what this one writes meanwhile.
#[test]
fn a_restart_finds_what_was_there_at_its_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = open(&directory, &config(3));
    put(&sink, &[record("x", "1"), record("x", "2")]);
    let mark = sink.mark();
    put(&sink, &[record("x", "3"), AnswerRecord { revision: 1, ..record("x", "3") }]);
    drop(sink);
    sink = open(&directory, &config(3));
    let mut after = sink.recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
    let mut all = sink.recover(Search::default()).unwrap();
    put(&sink, &[record("x", "4")]);
    assert!(after.is_there && all.is_there);
    assert_eq!((after.answers.count(), all.answers.count()), (2, 3), "the oldest one is removed");
    let mut found = |key: &str| [after.answers.found(key).is_some(), all.answers.found(key).is_some()];
    assert_eq!(found("2"), [false, false]);
    assert_eq!((found("3"), found("3/1"), found("4")), ([true, true], [true, true], [false, false]));
    let other = SinkPosition { log: "another".into(), length: 1, content: None };
    assert!(!sink.recover(Search { since: Some(&other), ..Search::default() }).unwrap().is_there);
}
