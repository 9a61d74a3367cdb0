//! `turnflow verify` finds what is wrong with what is stored, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, RecordBatchIterator};
use futures::TryStreamExt;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use serde_json::Value as Json;
use turnflow_engine::state::StateDirectory;
use turnflow_tables::{Mode, Table};

use crate::command_line::{Ended, run};
use crate::live::LEXICAL;
use crate::live::rebuild::{Edit, disturb, edits};
use crate::support::{model, runner};

/// A directory with a pipeline, documents, and the state that a history of them has left.
struct Lived {
    dir: tempfile::TempDir,
    /// The edits that come next.
    more: Vec<Vec<Edit>>,
}

impl Lived {
    fn through(seed: u8, pipeline: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("docs")).unwrap();
        fs::write(dir.path().join("p.ron"), pipeline).unwrap();
        let more = vec(edits(), 20).new_tree(&mut runner(seed, 1)).unwrap().current();
        let mut this = Self { dir, more };
        // A file that the history leaves alone, and some that it finds.
        fs::write(this.docs().join("sync.md"), "The keeper of the lamp. The ferry of the north. A gull in fog.")
            .unwrap();
        for at in 0..8 {
            fs::write(this.docs().join(format!("f{at}.md")), format!("The island of the {at}th anchor.")).unwrap();
        }
        // Each time a process of its own, so that nothing works on the state any more when it is
        // looked at.
        for _ in 0..6 {
            this.disturb();
            this.disturb();
            run(this.path(), &["index", "p.ron", "--state", "state"]).good();
        }
        this
    }

    fn disturb(&mut self) {
        let edits = self.more.pop().unwrap();
        disturb(&self.docs(), &edits);
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn docs(&self) -> PathBuf {
        self.path().join("docs")
    }

    fn verify(&self, more: &[&str]) -> Ended {
        run(self.path(), &[&["verify", "p.ron", "--state", "state"], more].concat())
    }

    fn told(&self, more: &[&str], code: i32) -> Json {
        let ended = self.verify(&[more, &["--format", "json"]].concat());
        assert_eq!(ended.code, Some(code), "{ended:?}");
        serde_json::from_str(&ended.out).unwrap()
    }

    /// The directory of the index with this beginning of its name.
    fn index(&self, key: &str) -> PathBuf {
        let found = fs::read_dir(self.path().join("state/corpora/docs")).unwrap().map(|entry| entry.unwrap().path());
        found.into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with(key)).unwrap()
    }

    /// Every file that is stored, with its bytes.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        fn collect(directory: &Path, into: &mut Vec<(PathBuf, Vec<u8>)>) {
            for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    collect(&entry, into)
                } else {
                    into.push((entry.clone(), fs::read(entry).unwrap()))
                }
            }
        }
        let mut files = Vec::new();
        collect(&self.path().join("state"), &mut files);
        files.sort();
        files
    }

    /// What of the state is not as it was.
    fn changed_since(&self, before: &[(PathBuf, Vec<u8>)]) -> Vec<PathBuf> {
        let now = self.files();
        let differs = |file: &&(PathBuf, Vec<u8>)| !(before.contains(file) && now.contains(file));
        before.iter().chain(&now).filter(differs).map(|(path, _)| path.clone()).collect()
    }

    /// Puts back what [`Lived::files`] gave.
    fn restore(&self, files: &[(PathBuf, Vec<u8>)]) {
        fs::remove_dir_all(self.path().join("state")).unwrap();
        for (path, bytes) in files {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
}

/// The largest file below a directory with this ending.
fn largest(directory: &Path, ending: &str) -> PathBuf {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push((path.metadata().unwrap().len(), path));
            }
        }
    }
    found.into_iter().max().unwrap().1
}

/// Turns bytes in the middle of a file into others.
fn flip(path: &Path, count: usize) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2 / 4 * 4;
    bytes[middle..middle + count].iter_mut().for_each(|byte| *byte ^= 0xff);
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_lived_through_a_history_is_what_a_rebuild_gives() {
    for seed in 1..=2 {
        let mut lived = Lived::through(seed, LEXICAL);
        let before = lived.files();
        let told = lived.told(&[], 0);
        assert_eq!((&told["equal"], &told["differences"]), (&Json::Bool(true), &Json::Array(vec![])), "{told}");
        for hits in told["hits"].as_array().unwrap() {
            assert!(hits["questions"].as_u64() > Some(0) && hits["questions"] == hits["same"], "{told}");
        }
        assert_eq!(lived.changed_since(&before), Vec::<PathBuf>::new());

        // What changes while nothing runs leaves the state behind, which is no fault.
        lived.disturb();
        fs::write(lived.docs().join("new.md"), "A ferry that nobody has indexed.").unwrap();
        let told = lived.told(&[], 0);
        let behind = &told["indexes"][0]["behind"];
        assert!(behind["new"].as_u64() >= Some(1), "{told}");
        assert_eq!(lived.changed_since(&before), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_damaged_inverted_index_is_found_and_repaired() {
    let lived = Lived::through(3, LEXICAL);
    for ending in [".term", ".store"] {
        let file = largest(&lived.index("bm25-english"), ending);
        flip(&file, 1);
        let before = lived.files();
        let ended = lived.verify(&[]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(ended.out.contains(&name) && ended.out.contains("bm25-english, stored, damage"), "{ended:?}");
        assert!(!ended.out.contains("bm25-whitespace, "), "{ended:?}");
        assert_eq!(lived.changed_since(&before), Vec::<PathBuf>::new(), "without --repair");
        let repaired = lived.verify(&["--repair"]).good();
        assert!(repaired.out.contains("repaired: docs, bm25-english"), "{repaired:?}");
        lived.verify(&[]).good();
    }
    // What is not there at all is behind, or gone.
    fs::remove_file(lived.index("bm25-english").join("meta.json")).unwrap();
    let told = lived.told(&[], 1);
    assert_eq!(told["differences"][0]["place"], "meta.json", "{told}");
}

#[test]
fn what_cannot_be_done_is_no_difference() {
    let lived = Lived::through(4, LEXICAL);
    lived.one(&["verify", "p.ron", "--state", "elsewhere"], "is not a state directory");
    let held = StateDirectory::open(&lived.path().join("state")).unwrap();
    lived.one(&["verify", "p.ron", "--state", "state"], "in use by another turnflow process");
    drop(held);
    fs::write(lived.path().join("questions.jsonl"), "where is the ferry?\n{\"_id\": \"a\"}\n").unwrap();
    let wrong = lived.verify(&["--questions", "questions.jsonl"]);
    wrong.one_line(1, &["questions.jsonl", "line 2", "`text`"]);
    fs::write(lived.path().join("questions.jsonl"), "where is the ferry?\n{\"text\": \"and the lamp\"}\n").unwrap();
    let told = lived.told(&["--questions", "questions.jsonl"], 0);
    assert_eq!(told["hits"][0]["questions"], 2, "{told}");
}

impl Lived {
    #[track_caller]
    fn one(&self, arguments: &[&str], word: &str) {
        run(self.path(), arguments).one_line(3, &[word]);
    }
}

/// All rows of the stored vectors, changed, in place of what is there.
fn rewrite(directory: &Path, change: impl Fn(&mut Vec<Vec<f32>>), keep: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let uri = directory.join("vectors.lance").to_string_lossy().into_owned();
        let dataset = Table::open(&uri).await.unwrap();
        let batches: Vec<RecordBatch> = dataset.scan(None).await.unwrap().try_collect().await.unwrap();
        // As earlier versions wrote it, without a check of each row, which would tell of the change.
        let schema = std::sync::Arc::new(batches[0].schema().project(&[0, 1]).unwrap());
        let mut changed = Vec::new();
        for (at, batch) in batches.iter().enumerate() {
            let lists = batch.column_by_name("vector").unwrap().as_fixed_size_list();
            let width = lists.value_length() as usize;
            let values = lists.values().as_primitive::<Float32Type>().values().to_vec();
            let mut rows: Vec<Vec<f32>> = values.chunks(width).map(<[f32]>::to_vec).collect();
            if at == 0 {
                change(&mut rows);
            }
            let arrow_schema::DataType::FixedSizeList(field, _) = lists.data_type() else { panic!() };
            let values: ArrayRef = std::sync::Arc::new(Float32Array::from(rows.concat()));
            let lists = FixedSizeListArray::new(field.clone(), width as i32, values, None);
            let hashes = batch.column_by_name("hash").unwrap().clone();
            let new = RecordBatch::try_new(schema.clone(), vec![hashes, std::sync::Arc::new(lists)]).unwrap();
            changed.push(Ok(new.slice(0, new.num_rows().min(keep))));
        }
        let rows = Box::new(RecordBatchIterator::new(changed, schema));
        Table::write(&uri, rows, Mode::Overwrite).await.unwrap();
    });
}

/// Why it exists: a vector that is readable and wrong is served for ever, and nobody notices.
#[test]
fn damaged_and_changed_vectors_are_found_and_repaired() {
    let Some(minilm) = model("minilm-int8") else { return };
    let (file, tokenizer) = (minilm.join("model.onnx"), minilm.join("tokenizer.json"));
    let pipeline = format!(
        r#"Pipeline(
    models: {{ "minilm": Onnx(path: {file:?}, tokenizer: {tokenizer:?}, threads: 1) }},
    corpora: {{ "docs": Corpus(source: Directory(path: "docs"), chunk: Sentences(size: 2, overlap: 1)) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, top: 20),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 20),
        "late": MultiVector(input: "query", corpus: "docs", model: "minilm", top: 20),
    }},
)"#
    );
    let lived = Lived::through(5, &pipeline);
    lived.verify(&[]).good();
    // Anew, so that all that is stored is in use.
    fs::remove_dir_all(lived.path().join("state")).unwrap();
    for at in 0..8 {
        let text = format!("The {at}th lamp is lit by its keeper. Its ferry leaves at noon.");
        fs::write(lived.docs().join(format!("lamp{at}.md")), text).unwrap();
    }
    run(lived.path(), &["index", "p.ron", "--state", "state"]).good();
    let told = lived.told(&[], 0);
    for index in told["indexes"].as_array().unwrap() {
        println!("{index}");
    }
    let good = lived.files();
    let dense = lived.index("dense");
    let data = largest(&dense, ".lance");

    // The kind of damage, and whether a restart would find it by itself.
    let cases: [(&str, &str, &dyn Fn()); 5] = [
        ("a file of a log is gone", "damage", &|| fs::remove_file(&data).unwrap()),
        ("a file ends early", "damage", &|| {
            let bytes = fs::read(&data).unwrap();
            fs::write(&data, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("bytes are flipped", "", &|| flip(&data, 4)),
        ("a vector is another's", "encoding", &|| rewrite(&dense, |rows| rows[0] = rows[1].clone(), usize::MAX)),
        ("a value is another", "encoding", &|| rewrite(&dense, |rows| rows[0][7] += 0.01, usize::MAX)),
    ];
    for (what, kind, damage) in cases {
        lived.restore(&good);
        damage();
        let told = lived.told(&[], 1);
        let differences = told["differences"].as_array().unwrap();
        assert!(differences.iter().all(|difference| difference["index"].as_str().unwrap().starts_with("dense")));
        assert!(differences[0]["kind"] == kind || kind.is_empty(), "{what}: {told}");
        println!("{what}: {}", differences[0]);
        let told = lived.told(&["--repair"], 0);
        assert_eq!(told["repaired"]["indexes"].as_array().unwrap().len(), 1, "{what}: {told}");
        lived.verify(&[]).good();
    }

    // Entries that are missing are computed by the next start.
    lived.restore(&good);
    rewrite(&dense, |_| {}, 1);
    let told = lived.told(&[], 0);
    let index =
        told["indexes"].as_array().unwrap().iter().find(|index| index["index"].as_str().unwrap().starts_with("dense"));
    assert!(index.unwrap()["behind"]["new"].as_u64() > Some(0), "{told}");
}

/// Answers that stand are compared with those of now.
#[test]
fn standing_answers_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let pipeline = r#"Pipeline(
        mode: Live(),
        corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
        nodes: {
            "turns": JsonLines(path: "turns.jsonl"),
            "query": LastTurn(input: "turns"),
            "hits": Bm25(input: "query", corpus: "docs", top: 3),
            "answer": ExtractiveAnswer(input: "hits"),
            "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
        },
    )"#;
    fs::write(path.join("p.ron"), pipeline).unwrap();
    let docs = |ferry: &str| {
        let line = |id: &str, text: &str| serde_json::json!({"_id": id, "text": text}).to_string() + "\n";
        fs::write(path.join("docs.jsonl"), line("a", ferry) + &line("b", "The lamp is lit by the keeper.")).unwrap();
    };
    docs("The ferry leaves at noon.");
    let turn = |id: &str, text: &str| {
        serde_json::json!({"conversation_id": id, "turn": 1, "speaker": "user", "text": text}).to_string() + "\n"
    };
    fs::write(path.join("turns.jsonl"), turn("c", "When does the ferry leave?") + &turn("d", "Who lights the lamp?"))
        .unwrap();
    run(path, &["run", "p.ron", "--once", "--state", "state"]).good();
    let told = run(path, &["verify", "p.ron", "--state", "state", "--all"]).good();
    assert!(told.out.contains("standing answers: 2 of 2 compared, 0 differ"), "{}", told.out);
    let sampled = run(path, &["verify", "p.ron", "--state", "state", "--sample", "1", "--format", "json"]).good();
    let sampled: Json = serde_json::from_str(&sampled.out).unwrap();
    assert_eq!((&sampled["standing"]["standing"], &sampled["standing"]["compared"]), (&2.into(), &1.into()));
    // What was edited while nothing ran is not answered yet.
    docs("The ferry leaves at one.");
    let differs = run(path, &["verify", "p.ron", "--state", "state", "--all"]);
    assert_eq!(differs.code, Some(1), "{differs:?}");
    assert!(differs.out.contains("2 compared, 1 differ") && differs.out.contains("When does the ferry"), "{differs:?}");
}
