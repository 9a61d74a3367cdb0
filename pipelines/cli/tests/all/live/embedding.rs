//! What a change of a corpus costs.

use std::fs;
use std::path::Path;

use turnflow_engine::run::Options;

use super::WORDS;
use crate::support::{Asked, Outcome, model, plan_of};

fn dense(model: &Path, source: &str) -> String {
    format!(
        r#"Pipeline(
    models: {{ "minilm": Onnx(path: {:?}, tokenizer: {:?}) }},
    corpora: {{ "docs": Corpus(source: {source}, chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 10),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 10),
        "fused": Rrf(inputs: ["lexical", "dense"], top: 10),
    }},
)"#,
        model.join("model.onnx"),
        model.join("tokenizer.json")
    )
}

fn rows(path: &Path, rows: &[String]) {
    let lines: Vec<String> = rows
        .iter()
        .enumerate()
        .map(|(id, text)| serde_json::json!({"_id": format!("r{id}"), "text": text}).to_string())
        .collect();
    fs::write(path, lines.join("\n") + "\n").unwrap();
}

/// One row edited in a file of 500 costs one embedding; a duplicate none; a restart none.
#[test]
fn only_what_changed_is_embedded() {
    let Some(model) = model("minilm-int8") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("docs.jsonl");
    let mut texts: Vec<String> = (0..500).map(|n| format!("Row {n} tells of {}.", WORDS[n % 20])).collect();
    texts[499] = texts[0].clone();
    rows(&path, &texts);
    let options = Options { state: Some(dir.path().join("state")), ..Options::default() };
    let text = dense(&model, "JsonLines(path: \"docs.jsonl\")");
    let mut asked = Asked::start(plan_of(dir.path(), &text), options.clone());
    assert_eq!(asked.embedded(), 499, "a duplicate is embedded once");

    texts[123] = "Row 123 tells of a zeppelin.".into();
    rows(&path, &texts);
    asked.ask_until("zeppelin", "the edited row", |outcome| outcome.documents("lexical") == ["r123"]);
    assert_eq!(asked.embedded(), 500, "one edited row is one embedding");

    texts[7] = texts[8].clone();
    rows(&path, &texts);
    asked.ask_until("Row 7", "the row that is another's copy", |outcome| outcome.documents("lexical")[0] != "r7");
    assert_eq!(asked.embedded(), 500, "a copy is none");
    drop(asked);

    let mut asked = Asked::start(plan_of(dir.path(), &text), options);
    assert_eq!(asked.embedded(), 0, "a restart embeds nothing");
    let nearest = asked.ask("an airship, the zeppelin").documents("dense");
    assert_eq!(nearest[0], "r123");
}

#[test]
fn a_renamed_file_costs_no_embedding() {
    let Some(model) = model("minilm-int8") else { return };
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("old.md"), "The keeper winds the lamp at dusk.").unwrap();
    fs::write(docs.join("other.md"), "Nets are mended in winter.").unwrap();
    let text = dense(&model, "Directory(path: \"docs\")");
    let mut asked = Asked::start(plan_of(dir.path(), &text), Options::default());
    assert_eq!(asked.embedded(), 2);
    fs::rename(docs.join("old.md"), docs.join("new.md")).unwrap();
    let found = |outcome: &Outcome| outcome.documents("lexical") == ["new.md"];
    asked.ask_until("Who winds the lamp?", "the file under its new name", found);
    assert_eq!(asked.ask("Who winds the lamp?").documents("dense").len(), 2);
    assert_eq!(asked.embedded(), 2);
}
