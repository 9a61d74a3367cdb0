//! Weights that are learned.

use std::fs;

use super::{directory, run};

/// Two lists of which one is better: what is learned says so, and can be included.
#[test]
fn learned_weights_are_a_file_to_include() {
    let directory = directory();
    let path = directory.path();
    fs::write(
        path.join("fused.ron"),
        r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "stemmed": Bm25(input: "query", corpus: "docs"),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace),
        "other": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, k1: 0.1),
        "fused": Hybrid(inputs: ["plain", "stemmed"]),
    },
)"#,
    )
    .unwrap();
    let task = |id: usize, text: &str| format!("{{\"_id\": \"q{id}\", \"text\": \"{text}\"}}\n");
    // Only stemming finds "leaving" in "leaves"; the other words are in both.
    let tasks: String = (0..10).map(|id| task(id, "the leaving in the tower at the")).collect();
    fs::write(path.join("tasks.jsonl"), tasks).unwrap();
    let qrels: String = (0..10).map(|id| format!("q{id}\tferry\t1\n")).collect();
    fs::write(path.join("qrels.tsv"), format!("query-id\tcorpus-id\tscore\n{qrels}")).unwrap();

    let labelled = ["--tasks", "tasks.jsonl", "--qrels", "qrels.tsv"];
    let tuned =
        run(path, &[&["tune", "fused.ron", "--node", "fused", "--output", "learned.ron"], &labelled[..]].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");
    assert!(tuned.out.contains("10 questions") && tuned.out.contains("learned, held out"), "{tuned:?}");
    fs::write(path.join("best.ron"), "Pipeline(include: [\"fused.ron\", \"learned.ron\"], name: \"best\")").unwrap();
    assert_eq!(run(path, &["check", "best.ron"]).code, Some(0));
    let explained = run(path, &["explain", "best.ron"]);
    assert!(explained.out.contains("weights: ["), "{explained:?}");

    let both = run(path, &[&["eval", "best.ron", "--hits", "plain,stemmed,fused"], &labelled[..]].concat());
    let figures = |node: &str| both.out.lines().find(|line| line.starts_with(node)).map(str::to_owned);
    assert!(figures("stemmed").is_some() && figures("fused").is_some(), "{both:?}");

    // A model that the node does not need is not loaded: this one could not be.
    let dense = r#"models: { "none": Onnx(path: "model.onnx", tokenizer: "tokenizer.json") },
    nodes: { "dense": Dense(input: "query", corpus: "docs", model: "none") }"#;
    fs::write(path.join("more.ron"), format!("Pipeline(include: \"fused.ron\", {dense})")).unwrap();
    let tuned = run(path, &[&["tune", "more.ron", "--node", "fused"], &labelled[..]].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");

    run(path, &[&["tune", "fused.ron", "--node", "plain"], &labelled[..]].concat())
        .one_line(1, &["no node `plain` has weights to learn", "`fused`"]);
    run(path, &[&["eval", "fused.ron", "--hits", "nope"], &labelled[..]].concat())
        .one_line(1, &["no node `nope` outputs Hits"]);
}
