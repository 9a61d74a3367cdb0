//! Measurements that hold on any machine.

use std::fs;

use super::run;
use crate::support::{model, root};

/// Growth in MB that is no leak: 7 were seen, and 18 with a memory pattern kept for each shape.
/// It is for what grows much faster; what grows slowly is seen only in the long form.
const GROWTH: f64 = 64.0;

#[test]
fn the_report_is_json_and_asks_the_pipelines_own_log() {
    let directory = super::directory();
    let none = run(directory.path(), &["bench", "lexical.ron", "--set", "nodes.turns=Stdin()"]);
    none.one_line(1, &["give one with --turns"]);
    let turns = r#"{"conversation_id": "c", "turn": 1, "speaker": "user", "text": "Where is the ferry?"}"#;
    fs::write(directory.path().join("log.jsonl"), format!("{turns}\n")).unwrap();
    let log = "nodes.turns=JsonLines(path: \"log.jsonl\")";
    let ended = run(directory.path(), &["bench", "lexical.ron", "--set", log, "--format", "json"]).good();
    let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&report["turns"], &report["failed"]), (&1.into(), &0.into()), "{report}");
    assert!(report["latency_ms"]["p99"].as_f64() > Some(0.0), "{report}");
}

/// The command is a process of its own, in whose memory no other test has a share.
#[test]
fn memory_stays_while_models_alternate() {
    if !cfg!(target_os = "linux") {
        println!("skipped: resident memory is read as on Linux");
        return;
    }
    let (Some(dense), Some(sparse)) = (model("minilm-int8"), model("splade")) else { return };
    let directory = tempfile::tempdir().unwrap();
    let fields = |path: &std::path::Path| {
        let file = |name: &str| path.join(name).display().to_string();
        format!("path: {:?}, tokenizer: {:?}, max_tokens: 64", file("model.onnx"), file("tokenizer.json"))
    };
    // No cross-encoder is among what packages have: the sparse encoder, whose output is a
    // number a term, stands in for one with as many classes.
    let pipeline = format!(
        r#"Pipeline(
    models: {{ "dense": Onnx({}), "sparse": OnnxSparse({}), "pairs": CrossEncoder({}) }},
    nodes: {{ "turns": Stdin(), "query": LastTurn(input: "turns") }},
)"#,
        fields(&dense),
        fields(&sparse),
        fields(&sparse)
    );
    fs::write(directory.path().join("pipeline.ron"), pipeline).unwrap();
    let texts = root().join("examples/passages.jsonl").display().to_string();
    let ended = run(directory.path(), &["bench", "pipeline.ron", "--memory", "20", "--texts", &texts]).good();
    for what in ["`dense`: vectors, token vectors", "`pairs`: scores of pairs", "`sparse`: weighted terms"] {
        assert!(ended.out.contains(what), "{}", ended.out);
    }
    let row = |line: &str| line.split_whitespace().map(|field| field.parse().ok()).collect::<Option<Vec<f64>>>();
    let resident: Vec<f64> = ended.out.lines().filter_map(row).filter(|row| row.len() == 3).map(|row| row[1]).collect();
    assert_eq!(resident.len(), 11, "{}", ended.out);
    assert!(resident[10] < resident[0] + GROWTH, "{}", ended.out);
}
