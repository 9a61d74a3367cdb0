//! Further answers to a turn.

use serde_json::json;
use turnflow_engine::connector::{ReviewError, ReviewQueue, Verdict};
use turnflow_engine::record::AnswerRecord;

use super::{Bench, DECLINED, answer, declined, list, open, says};
use crate::queue::Counts;

/// The answer is taken back, and this one follows.
fn revised(number: usize, revision: u32, status: &str, text: &str) -> [AnswerRecord; 2] {
    let epoch = revision + 1;
    [
        answer(number, json!({"revision": revision - 1, "retracted": true, "epoch": revision})),
        answer(number, json!({"revision": revision, "status": status, "answer": text, "epoch": epoch})),
    ]
}

#[test]
fn a_revision_replaces_the_open_answer_in_its_place() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &[declined(0), declined(1)]);
    let before = list(&queue, false)[0].id.clone();
    bench.take(&queue, &revised(0, 1, "answered", "At noon."));
    let items = list(&queue, false);
    assert_eq!(open(&queue), ["c0", "c1"]);
    assert_eq!((&*items[0].answer, items[0].revision, &*items[0].rules[0]), ("At noon.", 1, "declined"));
    // A verdict on the former answer does not count for this one.
    let error = queue.judge(&before, &says(Verdict::Bad)).unwrap_err();
    assert!(matches!(&error, ReviewError::Replaced { now } if *now == items[0].id), "{error}");
    // The former one is delivered again, as after a kill, and so is the revision.
    bench.take(&queue, &[declined(0)]);
    bench.take(&queue, &revised(0, 1, "answered", "At noon."));
    assert_eq!(list(&queue, false), items);
    // A revision that says the same is nothing new.
    let file = bench.file();
    bench.take(&queue, &[answer(0, json!({"revision": 2, "answer": "At noon.", "epoch": 9}))]);
    assert_eq!((list(&queue, false), bench.file()), (items, file));
}

#[test]
fn a_judged_answer_is_queued_again_if_it_says_something_else_and_a_rule_takes_it() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &[declined(0)]);
    queue.judge(&list(&queue, false)[0].id, &says(Verdict::Bad)).unwrap();
    bench.take(&queue, &revised(0, 1, "answered", "At noon."));
    assert_eq!(open(&queue), [""; 0]);
    // It says the same as the one that was judged.
    bench.take(&queue, &revised(0, 2, "idk", "x"));
    assert_eq!(open(&queue), [""; 0]);
    bench.take(&queue, &revised(0, 3, "idk", "Nobody knows."));
    assert_eq!(open(&queue), ["c0"]);
    assert_eq!(list(&queue, true).len(), 1);
    // Now that is replaced, and the judged one stays.
    bench.take(&queue, &revised(0, 4, "answered", "At one."));
    assert_eq!((&*list(&queue, false)[0].answer, &*list(&queue, true)[0].answer), ("At one.", "x"));
    queue.judge(&list(&queue, false)[0].id, &says(Verdict::Good)).unwrap();
    assert_eq!(queue.counts().unwrap(), Counts { open: 0, judged: 2, left_out: 0 });
    // Of a turn, the last judged answer counts.
    let judged = queue.judged().unwrap();
    assert_eq!((judged.len(), &*judged[0].answer), (1, "At one."));
    assert_eq!(bench.open().judged().unwrap(), judged);
}

#[test]
fn a_question_that_was_deleted_is_in_no_list() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &[declined(0), declined(1), declined(2)]);
    queue.judge(&list(&queue, false)[0].id, &says(Verdict::Good)).unwrap();
    let gone = |number| answer(number, json!({"status": "idk", "retracted": true, "withdrawn": true}));
    bench.take(&queue, &[gone(0), gone(1), gone(7)]);
    assert_eq!((open(&queue), list(&queue, true).len()), (vec!["c2".to_owned()], 0));
    let file = bench.file();
    bench.take(&queue, &[gone(0), gone(1)]);
    assert_eq!(bench.file(), file);
    assert_eq!(bench.open().counts().unwrap(), Counts { open: 1, judged: 0, left_out: 0 });
}
