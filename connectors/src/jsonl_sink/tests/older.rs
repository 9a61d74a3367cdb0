//! Tests of files that were complete before the current one: today's record may have the key of an answer of another
//! day, if both days' logs begin alike.

use super::super::recover::Torn;
use super::super::rotated::cut;
use super::*;
use crate::known_file::HEAD_BYTES;
use crate::watch::identity;

fn at(base: &Path, name: &str) -> PathBuf {
    base.join("deep/er").join(name)
}

fn pack(path: &Path, to: &Path) {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &fs::read(path).unwrap()).unwrap();
    fs::write(to, packed.finish().unwrap()).unwrap();
    fs::remove_file(path).unwrap();
}

/// Two days, each in a separate file and followed by a restart. Returns the mark of the second.
fn two_days(base: &Path) -> SinkPosition {
    let mut first = sink(base, true);
    deliver(&mut first, &["every day", "first day"]);
    first.mark();
    drop(first);
    fs::rename(at(base, "out.jsonl"), at(base, "out.jsonl.1")).unwrap();
    let mut second = sink(base, true);
    deliver(&mut second, &["second day"]);
    second.mark()
}

const KEYS: [&str; 4] = ["every day", "first day", "second day", "third day"];

#[test]
fn answers_of_an_older_file_are_not_those_of_a_new_record() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let mark = two_days(base);
    fs::rename(at(base, "out.jsonl.1"), at(base, "out.jsonl.2")).unwrap();
    fs::rename(at(base, "out.jsonl"), at(base, "out.jsonl.1")).unwrap();
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec![]));
    // Copied, compressed, and compressed while the marked file is too.
    fs::copy(at(base, "out.jsonl.2"), at(base, "out.jsonl.3")).unwrap();
    fs::remove_file(at(base, "out.jsonl.2")).unwrap();
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec![]));
    pack(&at(base, "out.jsonl.3"), &at(base, "out.jsonl.3.gz"));
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec![]));
    pack(&at(base, "out.jsonl.1"), &at(base, "out.jsonl.1.gz"));
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec![]));
    // A file that was already compressed when the mark was taken.
    let mut third = sink(base, true);
    deliver(&mut third, &["third day"]);
    let mark = third.mark();
    fs::rename(at(base, "out.jsonl"), at(base, "out.jsonl.0")).unwrap();
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec![]));
}

/// What was written after the mark is found, also in a file that is older: it was put back, and rotated again.
#[test]
fn an_older_file_that_has_grown_is_searched() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let mark = two_days(base);
    fs::rename(at(base, "out.jsonl"), at(base, "out.jsonl.2")).unwrap();
    fs::rename(at(base, "out.jsonl.1"), at(base, "out.jsonl")).unwrap();
    deliver(&mut sink(base, true), &["third day"]);
    fs::rename(at(base, "out.jsonl"), at(base, "out.jsonl.1")).unwrap();
    let (is_there, found) = recovered(base, Some(&mark), &KEYS);
    assert!(is_there);
    assert!(found.contains(&"third day".to_owned()), "{found:?}");
}

/// If the marked file is lost, a restart reads the whole log again, and every answer counts.
#[test]
fn all_are_searched_if_the_marked_file_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let mark = two_days(base);
    fs::remove_file(at(base, "out.jsonl")).unwrap();
    assert_eq!(recovered(base, Some(&mark), &KEYS), (false, vec!["every day".into(), "first day".into()]));
    pack(&at(base, "out.jsonl.1"), &at(base, "out.jsonl.1.gz"));
    assert_eq!(recovered(base, Some(&mark), &KEYS), (false, vec!["every day".into(), "first day".into()]));
}

/// A rotation that copies the file and truncates it keeps the inode.
#[test]
fn a_file_that_was_truncated_is_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let mut first = sink(base, true);
    let long = "long ".repeat(2 * HEAD_BYTES);
    deliver(&mut first, &["every day", &long]);
    first.mark();
    fs::copy(at(base, "out.jsonl"), at(base, "out.jsonl.1")).unwrap();
    File::options().write(true).open(at(base, "out.jsonl")).unwrap().set_len(0).unwrap();
    deliver(&mut first, &["second day"]);
    let mark = first.mark();
    deliver(&mut first, &["third day"]);
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec!["third day".into()]));
    fs::rename(at(base, "out.jsonl.1"), at(base, "out.jsonl.2")).unwrap();
    fs::rename(at(base, "out.jsonl"), at(base, "out.jsonl.1")).unwrap();
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec!["third day".into()]));
}

/// The same after a single answer that is longer than the part that a mark compares.
#[test]
fn a_file_that_was_truncated_after_its_first_answer_is_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let long = |key: &str| AnswerRecord { answer: "long ".repeat(HEAD_BYTES).into(), ..with_key(key) };
    let mut first = sink(base, true);
    first.append(&long("every day")).unwrap();
    first.mark();
    fs::copy(at(base, "out.jsonl"), at(base, "out.jsonl.1")).unwrap();
    File::options().write(true).open(at(base, "out.jsonl")).unwrap().set_len(0).unwrap();
    first.append(&long("second day")).unwrap();
    let mark = first.mark();
    drop(first);
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec![]));
    fs::rename(at(base, "out.jsonl.1"), at(base, "out.jsonl.2")).unwrap();
    fs::rename(at(base, "out.jsonl"), at(base, "out.jsonl.1")).unwrap();
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec![]));
}

/// Marks of earlier versions have no older files.
#[test]
fn a_mark_without_older_files_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let mut mark = two_days(base);
    let mut log: serde_json::Value = serde_json::from_str(&mark.log).unwrap();
    assert_eq!(log["older"].as_array().map(Vec::len), Some(1), "{log}");
    log.as_object_mut().unwrap().remove("older");
    mark.log = log.to_string().into();
    fs::rename(at(base, "out.jsonl"), at(base, "out.jsonl.0")).unwrap();
    assert_eq!(recovered(base, Some(&mark), &KEYS), (true, vec!["every day".into(), "first day".into()]));
}

/// Between the scan of a file and the removal of its torn end, the files may be rotated once more.
#[test]
fn a_torn_end_is_removed_from_no_other_file() {
    let directory = tempfile::tempdir().unwrap();
    let (torn, other) = (directory.path().join("torn"), directory.path().join("other"));
    fs::write(&torn, "whole\n{\"conv").unwrap();
    fs::write(&other, "another whole line\n").unwrap();
    let end = Torn { start: 6, length: 6, is_whole: false, is_ours: true };
    cut(&other, identity(&torn).unwrap(), &end);
    assert_eq!(fs::read(&other).unwrap(), b"another whole line\n");
    let longer = Torn { length: 5, ..end };
    cut(&torn, identity(&torn).unwrap(), &longer);
    assert_eq!(fs::read(&torn).unwrap(), b"whole\n{\"conv");
    cut(&torn, identity(&torn).unwrap(), &Torn { length: 6, ..longer });
    assert_eq!(fs::read(&torn).unwrap(), b"whole\n");
}
