//! `turnflow maintain`.

use std::fs;

use serde_json::Value;

use super::{LEXICAL, directory, real_model, run};

#[test]
fn what_is_stored_is_kept_in_shape_and_what_nobody_reads_is_told() {
    let directory = directory();
    let path = directory.path();
    let maintain = |more: &[&str]| {
        let arguments = ["maintain", "lexical.ron", "--state", "state"];
        run(path, &[&arguments[..], more].concat())
    };
    maintain(&[]).one_line(1, &["`state` is not a state directory", "turnflow index"]);
    for edit in 0..12 {
        let row = format!("{{\"_id\": \"r{edit}\", \"text\": \"Row {edit} of the log of the pier.\"}}\n");
        fs::write(path.join("docs.jsonl"), row).unwrap();
        run(path, &["index", "lexical.ron", "--state", "state"]).good();
    }
    let told = maintain(&[]).good().out;
    assert!(told.contains("state directory: ") && !told.contains("no retriever"), "{told}");
    let again: Value = serde_json::from_str(&maintain(&["--format", "json"]).good().out).unwrap();
    assert_eq!(again["unused"], Value::Array(Vec::new()));
    assert!(again["stores"][0]["index"].as_str().unwrap().contains("bm25"), "{again}");

    // Another tokenizer is another index, and the one before is read by nobody.
    fs::write(path.join("lexical.ron"), LEXICAL.replace("corpus: \"docs\"", "corpus: \"docs\", tokenizer: Whitespace"))
        .unwrap();
    let told = maintain(&[]).good().out;
    assert!(told.contains("unused by any retriever: ") && told.contains("--unused removes it"), "{told}");
    let told = maintain(&["--unused"]).good().out;
    assert!(told.contains(": no retriever uses it"), "{told}");
    assert!(!maintain(&[]).good().out.contains("retriever"));
    run(path, &["verify", "lexical.ron", "--state", "state"]).good();
}

#[test]
fn what_models_gave_is_looked_after_too() {
    let directory = directory();
    let path = directory.path();
    let Some(real) = real_model(path) else { return };
    let with = |arguments: &[&str]| {
        let real = real.iter().map(String::as_str);
        run(path, &arguments.iter().copied().chain(real).collect::<Vec<_>>())
    };
    with(&["run", "answering.ron", "--once", "--state", "state"]).good();
    let told = with(&["maintain", "answering.ron", "--state", "state"]).good().out;
    assert!(told.contains("memo.redb: ") && told.contains("turns.redb: "), "{told}");
}

/// The index of an optional model that is missing belongs to the pipeline, and nobody knows its name without the model.
#[test]
fn indexes_stay_while_an_optional_model_is_missing() {
    let directory = directory();
    let path = directory.path();
    let pipeline = LEXICAL.replace(
        "Pipeline(",
        r#"Pipeline(models: { "minilm": Onnx(path: "gone.onnx", tokenizer: "gone.json", optional: true) },"#,
    );
    let more = r#""dense": Dense(input: "query", corpus: "docs", model: "minilm"),
        "found": Fallback(inputs: ["dense", "a<b & \"c\""]), },"#;
    let end = pipeline.rfind("    },\n)").unwrap();
    fs::write(path.join("optional.ron"), format!("{}{more}\n)", &pipeline[..end])).unwrap();
    let indexed = run(path, &["index", "optional.ron", "--state", "state"]);
    assert_eq!(indexed.code, Some(0), "{indexed:?}");
    let index = path.join("state/corpora/docs/dense-0123456789abcdef");
    fs::create_dir_all(&index).unwrap();
    let kept = run(path, &["maintain", "optional.ron", "--state", "state", "--unused"]);
    assert!(kept.code == Some(0) && kept.err.contains("model `minilm` is not loaded"), "{kept:?}");
    assert!(index.exists());
    let removed = run(path, &["maintain", "lexical.ron", "--state", "state", "--unused"]);
    assert!(removed.code == Some(0) && !index.exists(), "{removed:?}");
}
