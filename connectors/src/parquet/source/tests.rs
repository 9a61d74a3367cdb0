use std::fs;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray};
use parquet::basic::Compression;
use serde_json::Value;
use turnflow_engine::connector::{Mode, Offsets};
use turnflow_engine::spec::from_str;

use super::*;
use crate::readers::columnar::tests::{as_arrow, as_parquet};
use crate::testing::Turns;

/// A file with a row for each line; a line that is not a turn becomes a row without one.
pub(crate) fn table_of(lines: &[u8]) -> Vec<u8> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let rows: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap_or_default()).collect();
    let text = |field: &str| -> ArrayRef {
        Arc::new(StringArray::from_iter(rows.iter().map(|row| row.get(field).and_then(Value::as_str))))
    };
    let turns: ArrayRef =
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.get("turn").and_then(Value::as_i64))));
    let columns = [
        ("conversation_id", text("conversation_id")),
        ("turn", turns),
        ("speaker", text("speaker")),
        ("text", text("text")),
    ];
    as_parquet(&table(columns), Compression::SNAPPY)
}

fn table<const N: usize>(columns: [(&str, ArrayRef); N]) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn numbers(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn turns(texts_of: &[&str]) -> RecordBatch {
    let count = texts_of.len();
    table([
        ("conversation_id", texts(&vec!["c"; count])),
        ("turn", numbers(&vec![1; count])),
        ("speaker", texts(&vec!["user"; count])),
        ("text", texts(texts_of)),
    ])
}

fn source(directory: &Path, ron: &str) -> Parquet {
    from_str::<ParquetConfig>(ron).unwrap().source(directory)
}

fn read(directory: &Path, ron: &str) -> Vec<String> {
    let (turns, _) = Turns::run(source(directory, ron), Mode::Once).all();
    turns.iter().map(|turn| turn.record.text.to_string()).collect()
}

#[test]
fn columns_have_the_names_that_the_configuration_gives() {
    let directory = tempfile::tempdir().unwrap();
    let at = TimestampMillisecondArray::from(vec![Some(1_795_643_809_500), None]);
    let batch = table([
        ("session", numbers(&[7, -7])),
        ("n", numbers(&[1, 2])),
        ("who", texts(&["user", "agent"])),
        ("utterance", texts(&["Hello.", "Hi."])),
        ("text", texts(&["another column", "another column"])),
        ("at", Arc::new(at)),
        ("channel", texts(&["web", "mail"])),
    ]);
    fs::write(directory.path().join("t.arrow"), as_arrow(&batch)).unwrap();
    let ron = r#"(path: "t.arrow", conversation_id: "session", turn: "n", speaker: "who", text: "utterance",
                  timestamp: "at")"#;
    let (turns, dead) = Turns::run(source(directory.path(), ron), Mode::Once).all();
    assert_eq!(dead, [""; 0]);
    let record = &turns[0].record;
    assert_eq!((&*record.conversation_id, &*record.text, record.timestamp), ("7", "Hello.", Some(1_795_643_809.5)));
    assert_eq!(Value::Object(record.extra.clone()), serde_json::json!({"channel": "web"}));
    assert_eq!((&*turns[1].record.conversation_id, turns[1].record.timestamp), ("-7", None));
    assert!(turns[1].position.ends_with("t.arrow:2"), "{}", turns[1].position);
}

#[test]
fn rows_that_are_no_turns_are_dead_letters() {
    let directory = tempfile::tempdir().unwrap();
    let long = "x".repeat(2000);
    let batch = table([
        ("conversation_id", texts(&["c", "c", "c", "c"])),
        ("turn", numbers(&[1, 0, 1, 2])),
        ("speaker", texts(&["user", "user", "cat", "user"])),
        ("text", texts(&["one", "two", "three", &long])),
    ]);
    fs::write(directory.path().join("t.parquet"), as_parquet(&batch, Compression::SNAPPY)).unwrap();
    let (turns, dead) =
        Turns::run(source(directory.path(), "(path: \"t.parquet\", max_row_bytes: 1000)"), Mode::Once).all();
    assert_eq!(turns.len(), 1);
    assert!(dead[0].contains("t.parquet:2: not a turn record: `turn` counts from 1"), "{dead:?}");
    assert!(dead[1].contains("t.parquet:3: not a turn record: unknown variant `cat`"), "{dead:?}");
    assert!(dead[2].contains("t.parquet:4: the row has ") && dead[2].contains("more than 1000"), "{dead:?}");
}

#[test]
fn a_file_that_has_no_turns_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let no_text = turns(&["a"]).project(&[0, 1, 2]).unwrap();
    let wrong = table([
        ("conversation_id", texts(&["c"])),
        ("turn", Arc::new(Float64Array::from(vec![1.0]))),
        ("speaker", texts(&["user"])),
        ("text", texts(&["a"])),
    ]);
    let whole = as_parquet(&turns(&["a"]), Compression::SNAPPY);
    for (bytes, reason) in [
        (as_parquet(&no_text, Compression::SNAPPY), "there is no column `text` for `text`; the columns are `conver"),
        (as_parquet(&wrong, Compression::SNAPPY), "the column `turn` for `turn` holds Float64, not whole numbers"),
        (whole[..whole.len() - 3].to_vec(), "broken Parquet file"),
        (Vec::new(), "broken Parquet file"),
    ] {
        fs::write(directory.path().join("t.parquet"), &bytes).unwrap();
        let error = Turns::run(source(directory.path(), "(path: \"t.parquet\")"), Mode::Once).end(false).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("t.parquet") && error.contains(reason), "{error}");
        // One of several files does not end the source.
        fs::create_dir_all(directory.path().join("d")).unwrap();
        fs::write(directory.path().join("d/a.parquet"), &bytes).unwrap();
        fs::write(directory.path().join("d/b.parquet"), &whole).unwrap();
        let (turns, dead) = Turns::run(source(directory.path(), "(path: \"d\")"), Mode::Once).all();
        assert_eq!(turns.len(), 1);
        assert!(dead[0].contains("a.parquet") && dead[0].contains(reason), "{dead:?}");
    }
    let error = Turns::run(source(directory.path(), "(path: \"none.parquet\")"), Mode::Once).end(false).unwrap_err();
    assert!(error.to_string().contains("none.parquet"), "{error}");
}

#[test]
fn the_files_of_a_directory_are_read_by_name_and_each_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("2.parquet"), as_parquet(&turns(&["c", "d"]), Compression::SNAPPY)).unwrap();
    fs::write(at("1.feather"), as_arrow(&turns(&["a", "b"]))).unwrap();
    fs::write(at("_open.parquet"), "x").unwrap();
    fs::write(at("notes.txt"), "x").unwrap();
    fs::create_dir(at("3.parquet")).unwrap();
    assert_eq!(read(directory.path(), "(path: \".\")"), ["a", "b", "c", "d"]);
    let (all, _) = Turns::run(source(directory.path(), "(path: \".\")"), Mode::Once).all();
    let offsets: Offsets = all[..3].iter().filter_map(|turn| turn.place.clone()).collect();
    assert_eq!(offsets.iter().count(), 2);
    // A file that sorts before those that were read is not missed.
    fs::write(at("0.parquet"), as_parquet(&turns(&["first"]), Compression::SNAPPY)).unwrap();
    let (rest, _) = Turns::resuming(source(directory.path(), "(path: \".\")"), Mode::Once, offsets).all();
    assert_eq!(rest.iter().map(|turn| &*turn.record.text).collect::<Vec<_>>(), ["first", "d"]);
}

#[test]
fn a_file_that_has_changed_is_read_from_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let write = |texts: &[&str]| {
        let new = directory.path().join("_new");
        fs::write(&new, as_parquet(&turns(texts), Compression::SNAPPY)).unwrap();
        fs::rename(new, directory.path().join("t.parquet")).unwrap();
    };
    write(&["a", "b"]);
    let running = Turns::run(source(directory.path(), "(path: \"t.parquet\", follow: true)"), Mode::Follow);
    let (first, last) = (running.take(), running.take());
    assert_eq!((&*first.record.text, &*last.record.text), ("a", "b"));
    // The same content in another file is not another one.
    write(&["a", "b"]);
    write(&["x", "y"]);
    let changed = running.take();
    assert_eq!(&*changed.record.text, "x");
    let order = |turn: &turnflow_engine::connector::SourcedTurn| turn.place.as_ref().unwrap().order();
    assert!(order(&last) < order(&changed));
    running.end(true).unwrap_err();
    // So it is after a restart.
    let resumed = Turns::resume(source(directory.path(), "(path: \"t.parquet\")"), Mode::Once, last.place.clone());
    let (turns, _) = resumed.all();
    assert_eq!(turns.iter().map(|turn| &*turn.record.text).collect::<Vec<_>>(), ["x", "y"]);
    assert!(order(&last) < order(&turns[0]));
}

#[test]
fn a_followed_file_may_come_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let running = Turns::run(source(directory.path(), "(path: \"t.parquet\", follow: true)"), Mode::Follow);
    fs::write(&path, b"PAR1").unwrap();
    let new = directory.path().join("_new");
    fs::write(&new, as_parquet(&turns(&["a"]), Compression::SNAPPY)).unwrap();
    fs::rename(new, path).unwrap();
    assert_eq!(running.text(), "a");
    running.end(true).unwrap_err();
}
