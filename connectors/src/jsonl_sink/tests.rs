//! Tests of writing, of rotation, and of recovery after a restart.

mod older;

use std::fs;

use turnflow_engine::connector::{RecoveredAnswers, Search};

use super::*;
use crate::testing::answer;

fn sink(base: &Path, append: bool) -> JsonLinesSink {
    let ron = format!("(input: \"a\", path: \"deep/er/out.jsonl\", append: {append})");
    let mut sink = turnflow_engine::spec::from_str::<JsonLinesSinkConfig>(&ron).unwrap().sink(base).unwrap();
    sink.begin().unwrap();
    sink
}

fn with_key(key: &str) -> AnswerRecord {
    AnswerRecord { key: key.into(), answer: format!("answer to {key}").into(), ..answer() }
}

fn deliver(sink: &mut JsonLinesSink, keys: &[&str]) {
    for key in keys {
        sink.append(&with_key(key)).unwrap();
    }
}

/// The keys of a file's lines; a line that is not an answer stands for itself.
fn keys(path: &Path) -> Vec<String> {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    let key = |line: &str| serde_json::from_str::<AnswerRecord>(line).map(|answer| answer.key.to_string());
    text.lines().map(|line| key(line).unwrap_or_else(|_| line.to_owned())).collect()
}

/// Whether the marked file exists, and the answers that are found.
fn recover(sink: &mut JsonLinesSink, since: Option<&SinkPosition>) -> (bool, Box<dyn RecoveredAnswers>) {
    let Recovered { is_there, answers } = sink.kept().unwrap().recover(Search { since, ..Search::default() }).unwrap();
    (is_there, answers)
}

/// Which of `keys` a new sink finds after a mark, and whether the marked file exists.
fn recovered(base: &Path, since: Option<&SinkPosition>, keys: &[&str]) -> (bool, Vec<String>) {
    let (is_there, mut answers) = recover(&mut sink(base, true), since);
    let found = keys.iter().filter(|key| answers.found(key).is_some()).map(|key| (*key).to_owned());
    (is_there, found.collect())
}

#[test]
fn whole_lines_after_whatever_was_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/out.jsonl");
    sink(directory.path(), true).append(&answer()).unwrap();
    let line = serde_json::to_string(&answer()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{line}\n"));
    fs::write(&path, "{\"torn").unwrap();
    let mut sink_again = sink(directory.path(), true);
    sink_again.append(&answer()).unwrap();
    sink_again.append(&answer()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{{\"torn\n{line}\n{line}\n"));
    drop(sink(directory.path(), false));
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = |path: &str| {
        let config: JsonLinesSinkConfig =
            turnflow_engine::spec::from_str(&format!("(input: \"a\", path: {path:?})")).unwrap();
        config.sink(directory.path()).err().unwrap().to_string()
    };
    fs::create_dir(directory.path().join("x")).unwrap();
    let told = error("x");
    assert!(told.starts_with("cannot open `") && told.contains("/x`"), "{told}");
    // Root may write anywhere, but not below a file.
    fs::write(directory.path().join("file"), "").unwrap();
    let told = error("file/below/out.jsonl");
    assert!(told.starts_with("cannot create `") && told.contains("/file/below`: "), "{told}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_with_the_path() {
    let config: JsonLinesSinkConfig = turnflow_engine::spec::from_str("(input: \"a\", path: \"/dev/full\")").unwrap();
    let mut sink = config.sink(Path::new("")).unwrap();
    assert!(sink.kept().is_none(), "a device keeps no answers");
    let error = sink.append(&answer()).unwrap_err().to_string();
    assert!(error.starts_with("cannot append to `/dev/full`: "), "{error}");
}

#[test]
fn what_is_there_is_found_behind_the_mark() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = sink(directory.path(), true);
    let start = first.mark();
    deliver(&mut first, &["a"]);
    let small = first.mark();
    deliver(&mut first, &["b", "c"]);
    first.kept().unwrap().syncing()().unwrap();
    let all = ["a", "b", "c", "d"];
    assert_eq!(recovered(directory.path(), Some(&start), &all), (true, vec!["a".into(), "b".into(), "c".into()]));
    assert_eq!(recovered(directory.path(), Some(&small), &all), (true, vec!["b".into(), "c".into()]));
    assert_eq!(recovered(directory.path(), Some(&first.mark()), &all), (true, vec![]));
    assert_eq!(recovered(directory.path(), None, &all), (true, vec!["a".into(), "b".into(), "c".into()]));
    // The answer's text; none for a failed turn.
    let failed = AnswerRecord { status: turnflow_engine::record::Status::Failed, answer: "".into(), ..with_key("d") };
    first.append(&failed).unwrap();
    let mut second = sink(directory.path(), true);
    let (is_there, mut answers) = recover(&mut second, Some(&small));
    assert!(is_there);
    let found: Vec<_> = all.iter().map(|key| answers.found(key)).collect();
    assert_eq!(found, [None, Some("answer to b".into()), Some("answer to c".into()), Some("".into())]);
    // A file that is emptied at the start holds no answers.
    let mut emptied = sink(directory.path(), false);
    let (is_there, mut answers) = recover(&mut emptied, Some(&start));
    assert_eq!((is_there, answers.count(), answers.found("a")), (false, 0, None));
}

#[test]
fn marks_that_do_not_fit_are_not_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/out.jsonl");
    let mut first = sink(directory.path(), true);
    let names: Vec<String> = (0..30).map(|number| format!("k{number}")).collect();
    deliver(&mut first, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let mark = first.mark();
    let with = |log: &str, length: u64| SinkPosition { log: log.into(), length, content: mark.content.clone() };
    for mark in [
        with("", mark.length),
        with("{}", 0),
        with(&mark.log, u64::MAX),
        with(&mark.log, mark.length + 1),
        with(&mark.log.replace("\"head\":\"", "\"head\":\"0"), mark.length),
    ] {
        assert_eq!(recovered(directory.path(), Some(&mark), &["k0", "k29"]).1, ["k0", "k29"], "{mark:?}");
    }
    // Truncated, and then written by another program.
    fs::write(&path, "not ours\n").unwrap();
    assert_eq!(recovered(directory.path(), Some(&mark), &["k0"]), (false, vec![]));
    fs::write(&path, "x".repeat(100_000)).unwrap();
    assert_eq!(recovered(directory.path(), Some(&mark), &["k0"]), (false, vec![]));
}

#[test]
fn an_answer_that_was_cut_off_is_taken_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/out.jsonl");
    let mut first = sink(directory.path(), true);
    deliver(&mut first, &["a"]);
    let mark = first.mark();
    let line = serde_json::to_string(&with_key("b")).unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    for since in [None, Some(&mark)] {
        for cut in [1, 5, 19, 100, line.len() - 1] {
            fs::write(&path, format!("{whole}{}", &line[..cut])).unwrap();
            let mut second = sink(directory.path(), true);
            let (is_there, mut answers) = recover(&mut second, since);
            assert!(is_there);
            assert_eq!(fs::read_to_string(&path).unwrap(), whole);
            assert_eq!((answers.found("a").is_some(), answers.found("b")), (since.is_none(), None));
            deliver(&mut second, &["b"]);
            assert_eq!(keys(&path), ["a", "b"]);
        }
        // After a power loss, the file has its length, but zeros in place of the line's end.
        for cut in [0, 30] {
            fs::write(&path, [whole.as_bytes(), &line.as_bytes()[..cut], &[0; 5000]].concat()).unwrap();
            let mut second = sink(directory.path(), true);
            recover(&mut second, since);
            assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        }
        // The power failed while such a line was being removed: its first block had been cleared, its length was the old
        // one.
        for cleared in [1, 28, line.len() - 1] {
            let rest = &line.as_bytes()[cleared..];
            fs::write(&path, [whole.as_bytes(), &vec![0; cleared], rest].concat()).unwrap();
            let mut second = sink(directory.path(), true);
            recover(&mut second, since);
            assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        }
        // Only the newline is missing.
        fs::write(&path, format!("{whole}{line}")).unwrap();
        let mut second = sink(directory.path(), true);
        let (_, mut answers) = recover(&mut second, since);
        assert_eq!(answers.found("b"), Some("answer to b".into()));
        deliver(&mut second, &["c"]);
        assert_eq!(keys(&path), ["a", "b", "c"]);
        // Lines of other programs stay.
        for foreign in ["{\"other", "text", "{\"other\": 1}"] {
            fs::write(&path, format!("{whole}{foreign}")).unwrap();
            let mut second = sink(directory.path(), true);
            recover(&mut second, since);
            deliver(&mut second, &["c"]);
            assert_eq!(keys(&path), ["a", foreign, "c"]);
        }
    }
    // A mark that was taken before the line was removed says nothing about the file from then on.
    fs::write(&path, [whole.as_bytes(), &[0; 5000]].concat()).unwrap();
    let mut second = sink(directory.path(), true);
    second.mark();
    recover(&mut second, None);
    deliver(&mut second, &["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"]);
    let after = second.mark();
    assert!(after.length > 4096, "{after:?}");
    assert!(recover(&mut sink(directory.path(), true), Some(&after)).0);
    // The mark was taken after the line was torn, so it includes the torn line.
    fs::write(&path, format!("{whole}{}", &line[..50])).unwrap();
    let torn = sink(directory.path(), true).mark();
    let mut second = sink(directory.path(), true);
    assert!(recover(&mut second, Some(&torn)).0);
    deliver(&mut second, &["c"]);
    assert_eq!(keys(&path), ["a", &line[..50], "c"]);
}

#[test]
fn lines_that_are_not_ours_do_not_hurt() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/out.jsonl");
    let mut first = sink(directory.path(), true);
    deliver(&mut first, &["a"]);
    let ours = fs::read(&path).unwrap();
    let mut bytes = Vec::new();
    let long = vec![b'x'; 70 << 20];
    let lines: [&[u8]; 8] = [
        b"\xff\xfe\0",
        b"[1, 2]",
        b"{\"key\": \"\"}",
        b"{\"key\": 7}",
        b"{\"key\": \"unfinished",
        b"\r",
        &b"[".repeat(100_000),
        &long,
    ];
    for line in lines {
        bytes.extend(line);
        bytes.push(b'\n');
    }
    bytes.extend(&ours);
    fs::write(&path, bytes).unwrap();
    assert_eq!(recovered(directory.path(), None, &["", "7", "unfinished", "a"]).1, ["a"]);
    // A field of the turn that has the name of one of the record's own.
    let mut passed = with_key("b");
    passed.extra.insert("key".into(), "theirs".into());
    first.append(&passed).unwrap();
    assert_eq!(recovered(directory.path(), None, &["theirs", "b"]).1, ["b"]);
}

#[test]
fn a_file_that_is_taken_away_gets_a_successor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/out.jsonl");
    let old = directory.path().join("deep/er/out.jsonl.1");
    for append in [true, false] {
        let mut first = sink(directory.path(), append);
        deliver(&mut first, &["a"]);
        let before = first.mark();
        deliver(&mut first, &["b"]);
        fs::rename(&path, &old).unwrap();
        deliver(&mut first, &["c"]);
        assert_eq!((keys(&old), keys(&path)), (vec!["a".into(), "b".into()], vec!["c".into()]));
        // The earlier mark finds the rest of the old file and the new file.
        let all = ["a", "b", "c"];
        assert_eq!(recovered(directory.path(), Some(&before), &all), (true, vec!["b".into(), "c".into()]));
        assert_eq!(recovered(directory.path(), Some(&first.mark()), &all), (true, vec![]));
        first.kept().unwrap().syncing()().unwrap();
        fs::remove_dir_all(directory.path().join("deep")).unwrap();
        deliver(&mut first, &["d"]);
        assert_eq!(keys(&path), ["d"]);
        // A file that another program has created is continued.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "theirs\n").unwrap();
        deliver(&mut first, &["e"]);
        assert_eq!(keys(&path), ["theirs", "e"]);
        fs::remove_dir_all(directory.path().join("deep")).unwrap();
    }
}

/// Rotated more than once between a checkpoint and the end of the process.
#[test]
fn files_that_came_and_went_meanwhile_are_looked_into() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join("deep/er").join(name);
    let mut first = sink(directory.path(), true);
    deliver(&mut first, &["a"]);
    let before = first.mark();
    for (seconds, (rotated, key)) in [("out.jsonl.2", "b"), ("out.jsonl.1", "c")].into_iter().enumerate() {
        deliver(&mut first, &[key]);
        fs::rename(at("out.jsonl"), at(rotated)).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds as u64);
        File::options().write(true).open(at(rotated)).unwrap().set_modified(time).unwrap();
    }
    deliver(&mut first, &["d"]);
    let all = ["a", "b", "c", "d"];
    assert_eq!(
        recovered(directory.path(), Some(&before), &all),
        (true, all[1..].iter().map(|key| (*key).into()).collect())
    );
}

/// A rotated file is recognised by its start, also if it is compressed. An empty file with the inode of another one
/// does not replace the others.
#[test]
fn a_marked_file_that_was_compressed_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join("deep/er").join(name);
    let mut first = sink(directory.path(), true);
    let empty = first.mark();
    deliver(&mut first, &["a"]);
    let before = first.mark();
    deliver(&mut first, &["b"]);
    drop(first);
    let plain = fs::read(at("out.jsonl")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &plain).unwrap();
    fs::write(at("out.jsonl.1.gz"), packed.finish().unwrap()).unwrap();
    // The same inode, as if a new file was created after the old one was deleted.
    fs::write(at("out.jsonl"), "").unwrap();
    for (since, count) in [(&empty, 2), (&before, 1)] {
        let mut second = sink(directory.path(), true);
        let (is_there, answers) = recover(&mut second, Some(since));
        assert_eq!((is_there, answers.count()), (true, count));
    }
    // Answers of another file do not count.
    fs::write(at("out.jsonl.1.gz"), b"").unwrap();
    assert_eq!(recovered(directory.path(), Some(&before), &["a"]), (false, vec![]));
}

/// A lost state directory, or a kill before the first checkpoint, leaves no mark.
#[test]
fn without_a_mark_all_that_was_rotated_away_is_looked_into() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join("deep/er").join(name);
    let mut first = sink(directory.path(), true);
    for (key, rotated) in [("a", "out.jsonl.2.gz"), ("b", "out.jsonl.1"), ("c", "out.2.jsonl"), ("d", "out.jsonl.old")]
    {
        deliver(&mut first, &[key]);
        fs::rename(at("out.jsonl"), at(rotated)).unwrap();
    }
    let plain = fs::read(at("out.jsonl.2.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &plain).unwrap();
    fs::write(at("out.jsonl.2.gz"), packed.finish().unwrap()).unwrap();
    // A file of another sink, and a file that nobody can read.
    fs::write(at("out.jsonl.live"), fs::read_to_string(at("out.jsonl.1")).unwrap().replace("\"b\"", "\"e\"")).unwrap();
    fs::write(at("out.jsonl.3.zst"), b"\x28\xB5\x2F\xFD and so on").unwrap();
    fs::write(at("out.jsonl.4.gz"), b"\x1F\x8B\x08 cut off").unwrap();
    let all = ["a", "b", "c", "d", "e"];
    for since in [None, Some(SinkPosition { log: "gone".into(), length: 9, content: None })] {
        let mut second = sink(directory.path(), true);
        let Recovered { is_there, mut answers } = second
            .recover(Search { since: since.as_ref(), others: &[at("out.jsonl.live")], ..Search::default() })
            .unwrap();
        assert_eq!((is_there, answers.count()), (since.is_none(), 4));
        let found: Vec<&str> = all.into_iter().filter(|key| answers.found(key).is_some()).collect();
        assert_eq!(found, ["a", "b", "c", "d"]);
        assert_eq!(answers.found("a"), Some("answer to a".into()));
    }
}

/// The files that a sink had before reloads, at a place that may be written in another way.
#[cfg(unix)]
#[test]
fn a_former_file_is_searched_unless_another_sink_has_it_or_it_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let mut old = sink(&base.join("old"), true);
    deliver(&mut old, &["a", "b"]);
    let former = [old.mark()];
    deliver(&mut old, &["c"]);
    let file = base.join("old/deep/er/out.jsonl");
    std::os::unix::fs::symlink(base.join("old"), base.join("link")).unwrap();
    let found = |search: Search<'_>| {
        let Recovered { is_there, mut answers } =
            sink(&base.join("new"), true).kept().unwrap().recover(search).unwrap();
        (is_there, ["a", "b", "c"].map(|key| answers.found(key).is_some()))
    };
    let search = Search { former: &former, ..Search::default() };
    assert_eq!(found(search), (true, [false, false, true]));
    // A checkpoint that names it describes what this sink has written.
    assert_eq!(found(Search { since: Some(&former[0]), ..search }), (true, [false, false, true]));
    assert_eq!(found(Search { since: Some(&former[0]), ..Search::default() }), (true, [false, false, true]));
    let whole = [SinkPosition { length: 0, ..former[0].clone() }];
    assert_eq!(found(Search { former: &whole, ..search }), (true, [true; 3]));
    for others in [[file.clone()], [base.join("link/deep/er/out.jsonl")]] {
        assert_eq!(found(Search { others: &others, others_had: &former, ..search }), (true, [false; 3]), "{others:?}");
        // Nobody knows yet that another sink has it: these may be this sink's answers.
        let unclear = sink(&base.join("new"), true).kept().unwrap().recover(Search { others: &others, ..search }).err();
        assert!(matches!(unclear, Some(ConnectorError::OfAnother { .. })), "{unclear:?}");
    }
    fs::remove_dir_all(base.join("old")).unwrap();
    assert_eq!(found(search), (true, [false; 3]));
}

/// The process has ended, the sink's path was edited, and the old file may have been rotated or moved too.
#[test]
fn a_sink_with_another_path_finds_what_it_has_at_the_old_one() {
    for (new, is_rotated) in [("new/out.jsonl", false), ("new/out.jsonl", true), ("out-2.jsonl", true)] {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path();
        let sink_at = |path: &str| {
            let ron = format!("(input: \"a\", path: \"{path}\")");
            turnflow_engine::spec::from_str::<JsonLinesSinkConfig>(&ron).unwrap().sink(base).unwrap()
        };
        let mut old = sink_at("out.jsonl");
        deliver(&mut old, &["a"]);
        let since = old.mark();
        deliver(&mut old, &["b"]);
        if is_rotated {
            fs::rename(base.join("out.jsonl"), base.join("out.jsonl.1")).unwrap();
        }
        deliver(&mut old, &["c"]);
        drop(old);
        let found = |search: Search<'_>| {
            let Recovered { is_there, mut answers } = sink_at(new).kept().unwrap().recover(search).unwrap();
            (is_there, ["a", "b", "c", "d"].map(|key| answers.found(key).is_some()))
        };
        let search = Search { since: Some(&since), ..Search::default() };
        assert_eq!(found(search), (true, [false, true, true, false]), "{new} {is_rotated}");
        // The new file also has answers when the next process starts.
        deliver(&mut sink_at(new), &["d"]);
        assert_eq!(found(search), (true, [false, true, true, true]), "{new} {is_rotated}");
        // Another sink has the old file: it exists, but is not searched.
        let others = [base.join("out.jsonl"), base.join(new)];
        let others_had = [since.clone()];
        let unclear = sink_at(new).kept().unwrap().recover(Search { others: &others, ..search }).err();
        assert!(matches!(unclear, Some(ConnectorError::OfAnother { .. })), "{new} {is_rotated}");
        let shared = Search { others: &others, others_had: &others_had, ..search };
        assert_eq!(found(shared), (true, [false, false, false, true]), "{new} {is_rotated}");
        // The old file was moved to the new path, or no longer exists.
        fs::rename(base.join(if is_rotated { "out.jsonl.1" } else { "out.jsonl" }), base.join(new)).unwrap();
        let (is_there, [a, b, ..]) = found(search);
        assert_eq!((is_there, a, b), (true, false, true), "{new} {is_rotated}");
        fs::remove_file(base.join(new)).unwrap();
        assert!(!found(search).0, "{new} {is_rotated}");
    }
}

/// The directory that contains everything was moved, and the file was rotated in it.
#[test]
fn a_rotated_file_in_a_folder_that_was_moved_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let (before, after) = (directory.path().join("before"), directory.path().join("after"));
    let mut first = sink(&before, true);
    deliver(&mut first, &["a"]);
    let mark = first.mark();
    deliver(&mut first, &["b"]);
    drop(first);
    fs::rename(&before, &after).unwrap();
    fs::rename(after.join("deep/er/out.jsonl"), after.join("deep/er/out.jsonl.1")).unwrap();
    assert_eq!(recovered(&after, Some(&mark), &["a", "b"]), (true, vec!["b".into()]));
}

/// Something else may be at a former file's path; the start neither fails nor blocks.
#[cfg(unix)]
#[test]
fn a_former_path_with_something_else_is_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let file = base.join("old/deep/er/out.jsonl");
    let mut old = sink(&base.join("old"), true);
    deliver(&mut old, &["a"]);
    let former = [SinkPosition { length: 0, ..old.mark() }];
    let count = || {
        let mut new = sink(&base.join("new"), true);
        let search = Search { former: &former, ..Search::default() };
        new.kept().unwrap().recover(search).unwrap().answers.count()
    };
    assert_eq!(count(), 1);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(count(), 0, "a directory");
    fs::remove_dir(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert_eq!(count(), 0, "a pipe");
    fs::remove_dir_all(base.join("old/deep")).unwrap();
    fs::write(base.join("old/deep"), "").unwrap();
    assert_eq!(count(), 0, "a path below a file");
}

/// A link that stays, to a file that is rotated in the file's directory.
#[cfg(unix)]
#[test]
fn a_linked_file_that_was_rotated_is_found_beside_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let path = base.join("deep/er/out.jsonl");
    fs::create_dir_all(base.join("deep/er")).unwrap();
    fs::create_dir(base.join("data")).unwrap();
    std::os::unix::fs::symlink(base.join("data/real.jsonl"), &path).unwrap();
    let mut first = sink(base, true);
    deliver(&mut first, &["a", "b"]);
    let mark = first.mark();
    deliver(&mut first, &["c"]);
    drop(first);
    fs::rename(base.join("data/real.jsonl"), base.join("data/real.jsonl.1")).unwrap();
    let all = ["a", "b", "c"];
    assert_eq!(recovered(base, Some(&mark), &all), (true, vec!["c".into()]));
    assert_eq!(recovered(base, None, &all).1, all);
    // The link now leads to a new file, which is rotated too.
    deliver(&mut sink(base, true), &["d"]);
    fs::rename(base.join("data/real.jsonl.1"), base.join("data/real.jsonl.2")).unwrap();
    fs::rename(base.join("data/real.jsonl"), base.join("data/real.jsonl.1")).unwrap();
    assert_eq!(recovered(base, Some(&mark), &["a", "b", "c", "d"]), (true, vec!["c".into(), "d".into()]));
}

/// The name of a file that another sink has, or had when a checkpoint was written, may look like a rotation's.
#[test]
fn a_file_that_another_sink_had_is_not_a_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    deliver(&mut sink(base, true), &["a"]);
    let theirs = base.join("deep/er/out-2.jsonl");
    fs::rename(base.join("deep/er/out.jsonl"), &theirs).unwrap();
    assert_eq!(recovered(base, None, &["a"]).1, ["a"]);
    let metadata = fs::metadata(&theirs).unwrap();
    let head = fs::read(&theirs).unwrap();
    let log = FileMark::new(&theirs.display().to_string(), &metadata, &head, metadata.len()).to_log();
    let had = [SinkPosition { log, length: metadata.len(), content: None }];
    let search = Search { others_had: &had, ..Search::default() };
    assert_eq!(sink(base, true).kept().unwrap().recover(search).unwrap().answers.count(), 0);
}

/// A crash may leave a mark of an empty file whose name did not reach the disk. No answers are lost with it.
#[test]
fn a_marked_empty_file_that_is_gone_lacks_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mark = sink(directory.path(), true).mark();
    fs::rename(directory.path().join("deep/er/out.jsonl"), directory.path().join("elsewhere")).unwrap();
    assert_eq!(recovered(directory.path(), Some(&mark), &["a"]), (true, vec![]));
}

/// A rotation renames many files one after another. Answers are found in all of them, whatever is renamed meanwhile.
#[test]
fn answers_are_found_while_files_are_rotated() {
    const FILES: usize = 60;
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path();
    let at = |number: usize| base.join(format!("deep/er/out.jsonl.{number}"));
    let keys: Vec<String> = (0..FILES + 1).map(|number| format!("key {number}")).collect();
    let all: Vec<&str> = keys.iter().map(String::as_str).collect();
    for (number, key) in all.iter().enumerate() {
        deliver(&mut sink(base, true), &[key]);
        if number < FILES {
            fs::rename(base.join("deep/er/out.jsonl"), at(number + 1)).unwrap();
        }
    }
    let mut present = sink(base, true);
    let oldest = present.mark();
    for trial in 0..40 {
        let mark = if trial % 2 == 0 { None } else { Some(&oldest) };
        std::thread::scope(|scope| {
            let rotation = scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_micros(trial as u64 * 50));
                for number in (1..=FILES + trial).rev() {
                    if at(number).exists() {
                        fs::rename(at(number), at(number + 1)).unwrap();
                    }
                }
            });
            let (_, found) = recovered(base, mark, &all);
            rotation.join().unwrap();
            assert!(mark.is_some() || found == all, "{trial}: {} of {}", found.len(), all.len());
            assert!(mark.is_none() || found.is_empty(), "{trial}: {found:?}");
        });
    }
    // The marked file itself disappears meanwhile.
    fs::rename(base.join("deep/er/out.jsonl"), at(1)).unwrap();
    deliver(&mut present, &["last"]);
    let (is_there, found) = recovered(base, Some(&oldest), &["last"]);
    assert!(is_there);
    assert_eq!(found, ["last"]);
}

/// Why it exists: files of answers that begin alike were taken for one another, and answers before the mark were not seen.
#[test]
fn a_file_that_only_begins_like_the_marked_one_is_searched_from_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/out.jsonl");
    let names = |what: &str, count: usize| (0..count).map(|number| format!("{what}{number}")).collect::<Vec<_>>();
    let fill = |sink: &mut JsonLinesSink, names: &[String]| {
        deliver(sink, &names.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let (alike, old, new) = (names("alike", 30), names("old", 20), names("new", 30));
    let mut first = sink(directory.path(), true);
    fill(&mut first, &alike);
    assert!(first.mark().length > crate::known_file::HEAD_BYTES as u64);
    fill(&mut first, &old);
    let mark = first.mark();
    drop(first);
    fs::remove_file(&path).unwrap();
    let mut second = sink(directory.path(), true);
    fill(&mut second, &alike);
    fill(&mut second, &new);
    drop(second);
    let asked = ["alike0", "new0", "new29"];
    assert_eq!(recovered(directory.path(), Some(&mark), &asked), (true, asked.map(String::from).to_vec()));
    // Someone has taken a line out: nothing that is there is written again, and nothing is read again from the beginning.
    let text = fs::read_to_string(&path).unwrap();
    let mark = sink(directory.path(), true).mark();
    let shorter: String = text.lines().filter(|line| !line.contains("new3")).map(|line| format!("{line}\n")).collect();
    fs::write(&path, shorter + &text[..200]).unwrap();
    let (is_there, found) = recovered(directory.path(), Some(&mark), &["alike0", "new3", "new29"]);
    assert_eq!(
        (is_there, found),
        (false, vec!["alike0".to_owned(), "new29".to_owned()]),
        "it is shorter than the mark"
    );
    fs::write(&path, text.replacen("answer to new3\"", "answer to new?\"", 1)).unwrap();
    assert_eq!(recovered(directory.path(), Some(&mark), &["new29"]), (true, vec!["new29".to_owned()]));
}
