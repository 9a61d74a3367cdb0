//! Tests of finding files again.

use super::rotated::{rotated, rotation_of};
use super::*;

fn mark_of(path: &Path) -> (FileMark, u64) {
    let file = File::open(path).unwrap();
    let metadata = file.metadata().unwrap();
    let head = head_of(&file, metadata.len()).unwrap();
    (FileMark::new("x", &metadata, &head, metadata.len()), metadata.len())
}

fn stands(path: &Path, (mark, length): &(FileMark, u64)) -> String {
    match find(path, mark, *length) {
        MarkedFile::Here(_) => "here".to_owned(),
        MarkedFile::Away(_, path) => path.file_name().unwrap().to_str().unwrap().to_owned(),
        MarkedFile::Gone => "gone".to_owned(),
    }
}

#[test]
fn files_are_found_by_what_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (log, old) = (at("t.jsonl"), at("t.jsonl.1"));
    fs::write(&log, "one\ntwo\n").unwrap();
    fs::write(at("other"), "one\ntwo\nthree\n").unwrap();
    let mark = mark_of(&log);
    assert_eq!(stands(&log, &mark), "here");
    fs::OpenOptions::new().append(true).open(&log).unwrap().set_len(100).unwrap();
    assert_eq!(stands(&log, &mark), "here");
    // Under a name that is not the log's, the same file is found, but not another one that starts the same.
    fs::rename(&log, at("elsewhere")).unwrap();
    assert_eq!(stands(&log, &mark), "elsewhere");
    fs::rename(at("elsewhere"), &log).unwrap();
    // The log was copied and truncated.
    fs::copy(&log, &old).unwrap();
    fs::write(&log, "new\n").unwrap();
    assert_eq!(stands(&log, &mark), "t.jsonl.1");
    fs::write(&old, "one").unwrap();
    assert_eq!(stands(&log, &mark), "gone");
    // A restored backup has another inode.
    fs::write(at("backup"), "one\ntwo\nthree\n").unwrap();
    fs::rename(at("backup"), &log).unwrap();
    assert_eq!(stands(&log, &mark), "here");
    // The same inode, but with a different start.
    let mark = mark_of(&log);
    fs::write(&log, "One\ntwo\nthree\n").unwrap();
    assert_eq!(stands(&log, &mark), "gone");
    fs::remove_file(&log).unwrap();
    assert_eq!(stands(&log, &mark), "gone");
}

/// A file system gives the inode of a deleted file to the next new one.
#[test]
fn another_file_with_the_inode_of_an_empty_one_is_not_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("t.jsonl"), "").unwrap();
    let (mark, length) = mark_of(&at("t.jsonl"));
    let has_created = mark.created.is_some();
    fs::rename(at("t.jsonl"), at("kept")).unwrap();
    let expected = if has_created { "kept" } else { "gone" };
    assert_eq!(stands(&at("t.jsonl"), &(mark.clone(), length)), expected, "it was renamed");
    // The inode, as if it had been given to a file that was created later.
    let later = FileMark { created: mark.created.map(|created| created - 1), ..mark.clone() };
    fs::write(at("kept"), "of another log\n").unwrap();
    assert_eq!(stands(&at("t.jsonl"), &(later.clone(), length)), "gone");
    fs::rename(at("kept"), at("t.jsonl")).unwrap();
    assert_eq!(stands(&at("t.jsonl"), &(later, length)), if has_created { "gone" } else { "here" });
    // A mark of an earlier version, or of a file system without times of creation.
    let unknown = FileMark { created: None, ..mark };
    assert_eq!(stands(&at("t.jsonl"), &(unknown.clone(), length)), "here");
    fs::rename(at("t.jsonl"), at("kept")).unwrap();
    assert_eq!(stands(&at("t.jsonl"), &(unknown, length)), "gone");
}

#[test]
fn marks_that_are_none_are_refused() {
    let metadata = tempfile::tempfile().unwrap().metadata().unwrap();
    let mark = FileMark { device: 1, inode: 2, created: None, ..FileMark::new("a", &metadata, b"0123456789", 4) };
    assert_eq!(FileMark::parse(&mark.to_log(), 4), Some(mark.clone()));
    // The hash covers the length.
    assert_eq!(FileMark::parse(&mark.to_log(), 5), None);
    assert_eq!(FileMark::parse(&mark.to_log(), u64::MAX), None);
    // A mark of a beginning covers the content at that time, but no more than is compared.
    assert_eq!(FileMark::parse_beginning(&mark.to_log()), Some(mark.clone()));
    assert_eq!(FileMark::parse_beginning(&mark.to_log().replace("_bytes\":4", "_bytes\":4097")), None);
    for log in ["", "null", "{}", "[1]", "\0", &"[".repeat(100_000), &mark.to_log().replace('1', "-1")] {
        assert_eq!(FileMark::parse(log, 4), None, "{log:.40}");
    }
}

#[test]
fn what_came_between_is_told_by_name_time_and_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let write = |name: &str, seconds: u64, text: &str| {
        fs::write(at(name), text).unwrap();
        let file = File::options().write(true).open(at(name)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
    };
    write("t.jsonl", 60, "{6}");
    write("t.jsonl.1", 50, "{5}");
    write("t.jsonl-20260102", 40, "\u{feff}\n{4}");
    write("t.jsonl.3", 30, "{3}");
    write("t.jsonl.4", 20, "{2}");
    write("t.jsonl.5", 45, "");
    // Copies of an older log, of one between, of the one that was read, and of the present one.
    write("t.jsonl.copy6", 47, "{2}");
    write("t.jsonl.copy7", 51, "{5}");
    // It begins with all of another one, and has lines of its own.
    write("t.jsonl.0", 53, "{5} and {6}");
    write("t.jsonl.copy8", 52, "{3}");
    write("t.jsonl.copy9", 61, "{6}");
    write("t.jsonl.2.gz", 41, "\x1f packed");
    write("t.jsonl.bak", 42, "{8}");
    write("other.1", 43, "{9}");
    fs::create_dir(at("t.jsonl.7")).unwrap();
    let past = Past::of(&File::open(at("t.jsonl.3")).unwrap(), fs::read(at("t.jsonl.3")).unwrap()).unwrap();
    let Between { logs, unclear } = between(&at("t.jsonl"), &past, &[]);
    let logs: Vec<_> = logs.into_iter().map(|(path, _)| path).collect();
    assert_eq!(logs, ["t.jsonl-20260102", "t.jsonl.1", "t.jsonl.0"].map(at));
    let unclear: Vec<_> = unclear.into_iter().map(|(path, _)| path).collect();
    let names = ["2.gz", "bak", "copy6", "copy7", "copy8", "copy9"];
    assert_eq!(unclear, names.map(|name| at(&format!("t.jsonl.{name}"))));
    // Nothing comes after the newest log, whether or not there is a log at the path.
    let past = Past::of(&File::open(at("t.jsonl.1")).unwrap(), fs::read(at("t.jsonl.1")).unwrap()).unwrap();
    fs::remove_file(at("t.jsonl.copy9")).unwrap();
    fs::remove_file(at("t.jsonl.0")).unwrap();
    for _ in 0..2 {
        let Between { logs, unclear } = between(&at("t.jsonl"), &past, &[]);
        assert_eq!((logs.len(), unclear.len()), (0, 2), "{unclear:?}");
        let _ = fs::remove_file(at("t.jsonl"));
    }
}

#[test]
fn what_carries_the_name_of_a_log_is_its_own_unless_it_is_anothers() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let ours = ["a.1.jsonl", "a-2026-01-02.jsonl", "a.jsonl-20260102.gz", "a.jsonl.1", "a.jsonl.old"];
    let others = ["a.jsonl.live", "a.jsonl.live.1", "a.2.jsonl", "a.2.jsonl.1", "a.2.3.jsonl"];
    let foreign = ["b.jsonl.1", "a.json", "a1.jsonl", "a.old.jsonl", "ab.jsonl", ".a.jsonl.lock", "a"];
    for name in ours.iter().chain(&others).chain(&foreign) {
        fs::write(at(name), "x").unwrap();
    }
    fs::write(at("a.jsonl"), "x").unwrap();
    fs::create_dir(at("a.jsonl.7")).unwrap();
    let names = |path: &str, others: &[PathBuf]| -> Vec<String> {
        let files = rotated(&at(path), others).unwrap();
        files.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let written = [at("a.jsonl"), at("a.jsonl.live"), at("a.2.jsonl"), directory.path().join("away/a.jsonl.1")];
    let mut expected: Vec<&str> = ours.to_vec();
    expected.sort_unstable();
    assert_eq!(names("a.jsonl", &written), expected);
    assert_eq!(names("a.jsonl.live", &written), ["a.jsonl.live.1"]);
    assert_eq!(names("a.2.jsonl", &written), ["a.2.3.jsonl", "a.2.jsonl.1"]);
    assert!(rotated(&directory.path().join("none/a.jsonl"), &[]).is_err());
}

#[test]
fn names_of_rotated_logs() {
    let told = |name: &str| rotation_of(Path::new(name), Path::new("turns.jsonl"));
    for name in ["turns.jsonl.1", "turns.1.jsonl", "turns_1.jsonl.gz", "turns-20260101.jsonl.zst", "turns.jsonl.1.gz"] {
        assert_eq!(told(name), Some(Rotation::Numbered), "{name}");
    }
    for name in ["turns.jsonl.old", "turns.jsonl~", "turns.jsonl.7z", "turns.jsonl.gz"] {
        assert_eq!(told(name), Some(Rotation::Unnumbered), "{name}");
    }
    for name in ["turns1.jsonl", "turns.old.jsonl", "turns-eu.jsonl", "turns-Jan-01.jsonl.gz"] {
        assert_eq!(told(name), Some(Rotation::Unclear), "{name}");
    }
    for name in ["turns.json", "returns.jsonl", "1turns.jsonl", "turns..jsonl", "turnsold.jsonl"] {
        assert_eq!(told(name), None, "{name}");
    }
}
