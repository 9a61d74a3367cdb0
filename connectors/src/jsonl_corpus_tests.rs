//! Tests of a followed corpus file.

use std::fs;
use std::io::Write;

use super::*;
use crate::testing::Corpus;

fn source(path: &Path) -> JsonLines {
    let config: JsonLinesConfig = turnflow_engine::spec::from_str(r#"(path: "c.jsonl")"#).unwrap();
    config.source(path)
}

fn row(id: usize, text: &str) -> String {
    format!("{{\"_id\": \"{id}\", \"title\": \"t\", \"text\": \"{text}\"}}\n")
}

#[test]
fn unknown_fields_of_the_node_are_refused() {
    assert!(turnflow_engine::spec::from_str::<JsonLinesConfig>(r#"(path: "c", wach: false)"#).is_err());
}

#[test]
fn one_edited_row_of_many_is_one_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    let rows = |edited: &str| (0..500).map(|id| row(id, if id == 250 { edited } else { "same" })).collect::<String>();
    fs::write(&path, rows("old")).unwrap();
    let corpus = Corpus::run(source(directory.path()), Mode::Follow);
    assert_eq!(corpus.start().len(), 500);
    fs::write(&path, rows("new")).unwrap();
    assert_eq!(corpus.changes(), ["250=new"]);
    // Touched, but unchanged; then a removal, whose commit would come after one of the touch.
    fs::write(&path, rows("new")).unwrap();
    fs::write(&path, rows("new").replace(&row(7, "same"), "")).unwrap();
    assert_eq!(corpus.changes(), ["-7"]);
    corpus.nothing_more();
    assert!(matches!(corpus.end(true), Err(ConnectorError::Stopped(_))));
}

#[test]
fn write_and_rename_and_delete_and_make_again() {
    let directory = tempfile::tempdir().unwrap();
    let (path, temporary) = (directory.path().join("c.jsonl"), directory.path().join("c.tmp"));
    fs::write(&path, row(1, "a") + &row(2, "b")).unwrap();
    let corpus = Corpus::run(source(directory.path()), Mode::Follow);
    assert_eq!(corpus.start(), ["1=a", "2=b"]);
    fs::write(&temporary, row(1, "a") + &row(3, "c")).unwrap();
    fs::rename(&temporary, &path).unwrap();
    assert_eq!(corpus.changes(), ["-2", "3=c"]);
    fs::write(&path, "").unwrap();
    assert_eq!(corpus.changes(), ["-1", "-3"]);
    fs::remove_file(&path).unwrap();
    fs::write(&path, row(3, "again")).unwrap();
    assert_eq!(corpus.changes(), ["3=again"]);
}

#[test]
fn the_directory_may_be_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    let path = old.join("c.jsonl");
    fs::create_dir(&old).unwrap();
    fs::create_dir(&new).unwrap();
    fs::write(&path, row(1, "a")).unwrap();
    fs::write(new.join("c.jsonl"), row(1, "b")).unwrap();
    let corpus = Corpus::run(source(&old), Mode::Follow);
    assert_eq!(corpus.start(), ["1=a"]);
    fs::rename(&old, directory.path().join("aside")).unwrap();
    fs::rename(&new, &old).unwrap();
    corpus.until(&["1=b"]);
    fs::write(&path, row(1, "c")).unwrap();
    assert_eq!(corpus.changes(), ["1=c"]);
}

#[test]
fn bad_rows_are_told_of_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    let bad = "{\"_id\": \"x\"}\n{\"_id\": 1, \"text\": \"twice\"}\n\nnonsense\n{\"_id\": \"y\", \"text\": \"";
    let long = "z".repeat(100);
    let mut bytes = (row(1, "a") + bad + &long + "\"}\n").into_bytes();
    bytes.extend(b"{\"_id\": \"\xff\"}\n");
    bytes.extend(row(2, "b").into_bytes());
    fs::write(&path, &bytes).unwrap();
    let mut source = source(directory.path());
    source.max_line_bytes = 80;
    let corpus = Corpus::run(source, Mode::Follow);
    assert_eq!(corpus.start(), ["1=a", "2=b"]);
    let file = path.display();
    let expected = [
        format!("{file}:2: `text` is missing"),
        format!("{file}:3: `_id` \"1\" is already the id of an earlier row, which is kept"),
        format!("{file}:5: not a JSON object: expected ident at line 1 column 2"),
        format!("{file}:6: the line has 124 bytes, more than 80"),
        format!("{file}:7: not UTF-8: invalid byte at offset 9"),
    ];
    assert_eq!(corpus.dead(), expected);
    // The same bad lines, further down in the file, and a new one: only the new one is reported.
    let mut more = row(0, "first").into_bytes();
    more.extend(&bytes);
    more.extend(b"{}\n");
    fs::write(&path, more).unwrap();
    assert_eq!(corpus.changes(), ["0=first"]);
    assert_eq!(corpus.dead()[expected.len()..], [format!("{file}:10: `_id` is missing")]);
}

#[test]
fn an_unfinished_line_waits_and_what_may_follow_stands() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    fs::write(&path, row(1, "a") + &row(2, "b")).unwrap();
    let corpus = Corpus::run(source(directory.path()), Mode::Follow);
    corpus.start();
    // Rewritten in two steps; row 2 must not be deleted in between.
    let second = row(2, "new");
    fs::write(&path, row(1, "new") + &second[..12]).unwrap();
    assert_eq!(corpus.changes(), ["1=new"]);
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(second[12..].trim_end().as_bytes()).unwrap();
    assert_eq!(corpus.changes(), ["2=new"]);
    assert_eq!(corpus.dead(), [""; 0]);
}

#[test]
fn a_line_that_stays_unfinished_is_a_bad_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    fs::write(&path, row(1, "a") + &row(2, "b")).unwrap();
    let mut source = source(directory.path());
    source.torn = Duration::from_millis(1);
    let corpus = Corpus::run(source, Mode::Follow);
    corpus.start();
    fs::write(&path, row(1, "a") + "{\"_id\": \"2").unwrap();
    assert_eq!(corpus.changes(), ["-2"]);
    assert_eq!(corpus.dead().len(), 1);
}

#[test]
fn once_reads_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    let error = Corpus::run(source(directory.path()), Mode::Once).end(false).unwrap_err();
    assert!(matches!(error, ConnectorError::Io { action: "read", .. }), "{error}");
    let error = Corpus::run(source(directory.path()), Mode::Follow).end(false).unwrap_err();
    assert!(matches!(error, ConnectorError::Io { action: "read", .. }), "{error}");
    fs::write(&path, row(1, "a") + "{\"_id\"").unwrap();
    let corpus = Corpus::run(source(directory.path()), Mode::Once);
    assert_eq!(corpus.start(), ["1=a"]);
    assert_eq!(corpus.dead().len(), 1);
    corpus.end(false).unwrap();
}

/// The file is edited while too many files are open: no event arrives when there are fewer again.
#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_read_for_a_moment_is_read_again() {
    use turnflow_engine::connector::Stop;
    use turnflow_engine::dead_letter::DeadLetters;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    fs::write(&path, row(1, "a")).unwrap();
    let (sender, events) = crossbeam_channel::unbounded();
    let (_handle, stop) = Stop::new();
    let dead = DeadLetters::counted();
    let output = CorpusOutput::new(sender, std::sync::Arc::new(|| {}), dead, "corpus".into(), stop);
    let source = source(directory.path());
    let mut file = Followed::new(&source, &output);
    for (code, is_passing) in [(libc::EACCES, false), (libc::EMFILE, true)] {
        file.fault(&io::Error::from_raw_os_error(code));
        assert_eq!(file.due.is_some(), is_passing, "{code}");
    }
    assert_eq!(file.is_due(), None);
    std::thread::sleep(PASSING);
    assert!(!file.look(&Burst::default()));
    let last = file.is_due().unwrap();
    assert_eq!((last, file.look_again(last).unwrap(), file.is_due()), (false, 1, None));
    assert_eq!(events.len(), 1);
}

#[test]
fn a_mapping_makes_documents_of_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    let program =
        "if .gone then {id: .key, delete: true} else .pages[] | {id: .p, title: .t, text: .body, groups: .g} end";
    let fields = format!("(path: \"c.jsonl\", map: Jq({program:?}))");
    let config: JsonLinesConfig = turnflow_engine::spec::from_str(&fields).unwrap();
    let page =
        |id: &str, body: &str| format!("{{\"pages\": [{{\"p\": \"{id}\", \"body\": \"{body}\", \"g\": [\"x\"]}}]}}\n");
    let rows =
        format!("{}{}nope\n{}{{\"gone\": true, \"key\": \"b\"}}\n", page("a", "old"), page("b", "x"), page("a", "new"));
    fs::write(&path, rows.clone() + "{\"pages\": []}\n{\"pages\": [{\"p\": \"half").unwrap();
    let corpus = Corpus::run(config.source(directory.path()), Mode::Follow);
    let first = corpus.commit();
    corpus.started();
    assert_eq!(first[0].1.as_ref().unwrap().metadata.to_json()["groups"], serde_json::json!(["x"]));
    assert_eq!(crate::testing::told(first), ["a=new"]);
    let dead = corpus.dead();
    assert!(dead.len() == 1 && dead[0].contains("c.jsonl:3: not mapped"), "{dead:?}");
    fs::write(&path, rows + &page("c", "more")).unwrap();
    assert_eq!(corpus.changes(), ["c=more"]);
    assert_eq!(corpus.dead().len(), 1, "{:?}", corpus.dead());
    assert!(matches!(corpus.end(true), Err(ConnectorError::Stopped(_))));
}
