//! Stored tables: other programs that know Lance read and write them, and those of earlier versions are taken over.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, RecordBatchIterator, StringArray};
use arrow_schema::{DataType, Field, Schema};
use futures::TryStreamExt;
use turnflow_tables::{Batches, Mode, Table};

use crate::command_line::run;
use crate::serve::python;
use crate::support::model;

fn rows(numbers: impl IntoIterator<Item = u32>) -> Batches {
    let numbers: Vec<u32> = numbers.into_iter().collect();
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let schema = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Utf8, true),
        Field::new("vector", DataType::FixedSizeList(item.clone(), 2), true),
    ]));
    let ids: ArrayRef = Arc::new(StringArray::from_iter_values(numbers.iter().map(|number| format!("d{number}"))));
    let values: ArrayRef = Arc::new(numbers.iter().flat_map(|number| [*number as f32, 1.0]).collect::<Float32Array>());
    let vectors: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, values, None));
    let batch = RecordBatch::try_new(schema.clone(), vec![ids, vectors]);
    Box::new(RecordBatchIterator::new([batch], schema))
}

async fn read(table: &Table) -> Vec<u32> {
    let batches: Vec<RecordBatch> = table.scan(Some(&["id"])).await.unwrap().try_collect().await.unwrap();
    let number = |id: &str| id.strip_prefix('d').unwrap().parse().unwrap();
    batches.iter().flat_map(|batch| batch.column(0).as_string::<i32>().iter().flatten().map(number)).collect()
}

#[track_caller]
fn runs(python: &Path, script: &str, arguments: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    let done = Command::new(python).arg(script).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}\n{error}", String::from_utf8_lossy(&done.stdout));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_programs_read_and_write_the_tables() {
    let (Some(lance), Some(lancedb)) = (python::with("pylance==14.0.2"), python::with("lancedb==0.40.0")) else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().to_str().unwrap();
    let path = |name: &str| format!("{directory}/{name}.lance");
    let mut ours = Table::write(&path("ours"), rows(0..1000), Mode::Create).await.unwrap();
    ours.tag("before").await.unwrap();
    ours.append(rows(1000..1002)).await.unwrap();
    ours.delete("id", &HashSet::from(["d3"])).await.unwrap();
    runs(&lance, "lance_tables.py", &["read", directory]);
    runs(&lancedb, "lancedb_tables.py", &[directory]);
    runs(&lance, "lance_tables.py", &["write", directory]);
    ours.catch_up().await.unwrap();
    let expected: Vec<u32> = (0..1002).filter(|n| ![3, 5].contains(n)).chain([7001]).collect();
    assert_eq!(read(&ours).await, expected);
    ours.append(rows([8000])).await.unwrap();
    ours.delete("id", &HashSet::from(["d6"])).await.unwrap();
    ours.compact(10_000).await.unwrap();
    ours.remove_old_versions(false).await.unwrap();
    for version in ["2.0", "2.1", "2.2"] {
        let mut theirs = Table::open(&path(&format!("theirs-{version}"))).await.unwrap();
        let expected: Vec<u32> = (0..300).filter(|n| *n != 250).collect();
        assert_eq!(read(&theirs).await, expected, "{version}");
        let lengths = theirs.scan(Some(&["length", "id"])).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
        assert_eq!(lengths[0].schema().field(0).name(), "length");
        theirs.delete("id", &HashSet::from(["d0"])).await.unwrap();
        theirs.compact(1000).await.unwrap();
        theirs.remove_old_versions(true).await.unwrap();
        assert_eq!((read(&theirs).await.len(), theirs.fragments()), (298, 1), "{version}");
    }
    runs(&lance, "lance_tables.py", &["again", directory]);
    // The stored passages of a corpus.
    let row = |n: usize| {
        let (title, text) = (format!("Fähre {n}"), format!("The ferry {n} leaves.").repeat(n));
        serde_json::json!({"_id": format!("d{n}"), "title": title, "text": text, "metadata": {"line": n as f64 + 0.5}})
    };
    let corpus: Vec<String> = (1..200).map(|n| row(n).to_string()).collect();
    fs::write(place.path().join("docs.jsonl"), corpus.join("\n")).unwrap();
    let pipeline = r#"Pipeline(
        corpora: {"docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole())},
        nodes: {
            "turns": Stdin(),
            "question": LastTurn(input: "turns"),
            "found": Bm25(input: "question", corpus: "docs"),
            "out": Stdout(input: "found"),
        },
    )"#;
    fs::write(place.path().join("p.ron"), pipeline).unwrap();
    run(place.path(), &["index", "p.ron", "--state", "state"]).good();
    runs(&lance, "lance_tables.py", &["passages", directory]);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.path() {
            directory if directory.is_dir() => copy(&directory, &to.join(entry.file_name())),
            file => drop(fs::copy(file, to.join(entry.file_name())).unwrap()),
        }
    }
}

/// The state directory of a version that used the whole of Lance: seven documents, the vectors of six of which were
/// appended one by one, and two tags.
#[test]
fn the_state_of_an_earlier_version_is_taken_over_without_one_encoding() {
    let Some(minilm) = model("minilm-int8") else { return };
    let place = tempfile::tempdir().unwrap();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/earlier-state"), place.path());
    let file = |name: &str| -> PathBuf { minilm.join(name) };
    let pipeline = format!(
        r#"Pipeline(
            models: {{"minilm": Onnx(path: {:?}, tokenizer: {:?}, pooling: Mean, max_tokens: 256)}},
            corpora: {{"docs": Corpus(source: Directory(path: "docs"), chunk: Whole())}},
            nodes: {{
                "turns": JsonLines(path: "turns.jsonl"),
                "question": LastTurn(input: "turns"),
                "dense": Dense(input: "question", corpus: "docs", model: "minilm"),
                "out": JsonLinesSink(input: "dense", path: "out.jsonl"),
            }},
        )"#,
        file("model.onnx"),
        file("tokenizer.json"),
    );
    fs::write(place.path().join("p.ron"), pipeline).unwrap();
    fs::write(place.path().join("turns.jsonl"), "").unwrap();
    let index = || run(place.path(), &["index", "p.ron", "--state", "state"]).good().out;
    assert!(index().starts_with("docs: 7 documents, 7 chunks, 0 chunks embedded"), "{}", index());
    // What is added goes into the same table.
    fs::write(place.path().join("docs/d9.txt"), "A ninth ferry.").unwrap();
    assert!(index().starts_with("docs: 8 documents, 8 chunks, 1 chunk embedded"));
    assert!(index().starts_with("docs: 8 documents, 8 chunks, 0 chunks embedded"));
    let tag = |name: &str| run(place.path(), &["tag", "p.ron", name, "--state", "state"]).good().out;
    // Copies have other times.
    assert_eq!(tag("third"), "docs: 8 documents, 8 of them new or changed, 0 deleted\n");
    let question = "{\"conversation_id\": \"a\", \"turn\": 1, \"speaker\": \"user\", \"text\": \"the second ferry\"}\n";
    fs::write(place.path().join("log.jsonl"), question).unwrap();
    let tags = ["--tag", "first", "--against", "p.ron", "--against-tag", "second"];
    let replay = [&["replay", "p.ron", "--log", "log.jsonl", "--tags", "state"][..], &tags].concat();
    let compared = run(place.path(), &replay);
    assert!(compared.out.contains("d2.txt"), "{}\n{}", compared.out, compared.err);
}
