//! Nothing is lost, and nothing is queued twice, whenever the process ends.

use std::fs::{self, OpenOptions};
use std::io::Write as _;

use turnflow_engine::connector::{ReviewQueue, Verdict};
use turnflow_engine::record::AnswerRecord;

use super::{Bench, DECLINED, declined, list, open, says};
use crate::queue::{Counts, Queue};

#[test]
fn a_kill_within_a_write_loses_nothing_and_queues_nothing_twice() {
    let bench = Bench::new(DECLINED);
    let records: Vec<AnswerRecord> = (0..4).map(declined).collect();
    bench.take(&bench.open(), &records);
    let queue = bench.open();
    queue.judge(&list(&queue, false)[1].id, &says(Verdict::Bad)).unwrap();
    let (whole, items) = (fs::read(bench.path()).unwrap(), list(&queue, false));
    drop(queue);
    for length in 0..whole.len() {
        fs::write(bench.path(), &whole[..length]).unwrap();
        let queue = bench.open();
        bench.take(&queue, &records);
        // What was acknowledged is there; what was not is delivered again.
        let counts = queue.counts().unwrap();
        assert_eq!((counts.open + counts.judged, counts.left_out), (4, 0), "{length}");
        let judged = counts.judged == 1;
        assert_eq!(judged, length == whole.len(), "{length}");
        drop(queue);
        assert_eq!(bench.open().counts().unwrap(), counts);
    }
    fs::write(bench.path(), &whole).unwrap();
    assert_eq!(list(&bench.open(), false), items);
}

/// Why it exists: a file of one line without an end was taken for a journal whose first line a kill had cut off.
#[test]
fn a_file_of_something_else_is_not_overwritten() {
    for other in ["{\"my\":\"data\"}", "notes", "{\"journal\":{\"form\":1}} and more", "\0\u{1}"] {
        let bench = Bench::new(DECLINED);
        fs::write(bench.path(), other).unwrap();
        let error = Queue::open("review", &bench.path()).and_then(|queue| queue.counts()).unwrap_err().to_string();
        assert!(error.contains("move the file away"), "{error}");
        assert_eq!(fs::read_to_string(bench.path()).unwrap(), other);
    }
}

/// Why it exists: after an editor had replaced the file, verdicts went to a file that nobody could read any more.
#[test]
fn another_file_in_the_place_of_the_journal_is_gone_on_with() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &[declined(0), declined(1)]);
    let copy = bench.path().with_extension("copy");
    fs::copy(bench.path(), &copy).unwrap();
    fs::rename(&copy, bench.path()).unwrap();
    let id = list(&queue, false)[0].id.clone();
    queue.judge(&id, &says(Verdict::Bad)).unwrap();
    let counts = queue.counts().unwrap();
    assert_eq!((counts.open, counts.judged), (1, 1));
    assert_eq!(bench.open().counts().unwrap(), counts, "the verdict is in the file that is there");
    // It was moved away: another one begins.
    fs::rename(bench.path(), &copy).unwrap();
    bench.take(&queue, &[declined(2)]);
    assert_eq!((open(&queue), open(&bench.open())), (vec!["c2".to_owned()], vec!["c2".to_owned()]));
}

#[test]
fn a_reader_does_not_wait_for_a_line_that_is_being_written() {
    let bench = Bench::new(DECLINED);
    bench.take(&bench.open(), &[declined(0)]);
    OpenOptions::new().append(true).open(bench.path()).unwrap().write_all(b"{\"item\":{").unwrap();
    let reader = Queue::existing("review", &bench.path()).unwrap().unwrap();
    assert_eq!(open(&reader), ["c0"]);
    bench.take(&bench.open(), &[declined(1)]);
    assert_eq!(open(&reader), ["c0", "c1"]);
    // It was moved away, and another one has begun.
    fs::write(bench.path(), "{\"journal\":{\"form\":1}}\n").unwrap();
    assert_eq!(open(&reader), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_after_which_all_is_as_before() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &[declined(0)]);
    queue.break_journal(Some(std::path::Path::new("/dev/full")));
    queue.take(&[declined(1), declined(2)], &bench.wanted()).unwrap_err();
    queue.judge(&list(&queue, false)[0].id, &says(Verdict::Bad)).unwrap_err();
    assert_eq!(queue.counts().unwrap(), Counts { open: 1, judged: 0, left_out: 0 });
    queue.break_journal(None);
    bench.take(&queue, &[declined(1), declined(2)]);
    assert_eq!((open(&queue), open(&bench.open())), (vec!["c0".into(), "c1".into(), "c2".into()], open(&queue)));
}

#[test]
fn another_file_is_no_queue() {
    let bench = Bench::new(DECLINED);
    for (text, reason) in [
        ("{\"conversation_id\":\"c\"}\n", "review.jsonl:1: this is no line of a review queue"),
        ("{\"gone\":{\"key\":\"k\"}}\n", "review.jsonl:1: this is no review queue"),
        ("{\"journal\":{\"form\":9}}\n", "a newer version of turnflow wrote this queue (form 9)"),
    ] {
        fs::write(bench.path(), text).unwrap();
        let error = Queue::open("review", &bench.path()).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
