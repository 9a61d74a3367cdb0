//! `turnflow gaps`, and what a pipeline in live mode tells of edits.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::model;

const PIPELINE: &str = r#"Pipeline(
    models: { "minilm": Onnx(path: "MODEL/model.onnx", tokenizer: "MODEL/tokenizer.json") },
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Headings()) },
    mode: Live(),
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs"),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm"),
        "fused": Rrf(inputs: ["lexical", "dense"]),
        "answer": ExtractiveAnswer(input: "fused", model: "minilm"),
        "final": IdkNormalize(input: "answer", min_support: Some(0.45)),
        "gaps": Gaps(input: "final", model: "minilm", path: "gaps.jsonl", edits: Some("edits.jsonl")),
        "edits": JsonLines(path: "edits.jsonl"),
        "edit": LastTurn(input: "edits"),
        "told": JsonLinesSink(input: "edit", path: "told.jsonl"),
    },
)"#;

const QUESTIONS: [&str; 6] = [
    "Can I get a refund after 30 days?",
    "Is a refund possible after thirty days?",
    "How do I get my money back after 30 days?",
    "What does shipping to Norway cost?",
    "Do you sell gift cards?",
    "Are gift cards available?",
];

/// Waits until what a function gives meets a condition.
fn until<T: std::fmt::Debug>(what: &str, get: impl Fn() -> T, holds: impl Fn(&T) -> bool) -> T {
    let begun = Instant::now();
    loop {
        let got = get();
        if holds(&got) {
            return got;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "waited for {what}: {got:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_edit_says_which_questions_it_settled_and_which_it_broke() {
    let Some(model) = model("minilm-int8") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("docs")).unwrap();
    fs::write(path("docs/shipping.md"), "# Shipping\nShipping to Norway costs 12 euros.\n").unwrap();
    fs::write(path("docs/hours.md"), "# Hours\nThe shop is open from Monday to Friday, 9 to 17.\n").unwrap();
    fs::write(path("p.ron"), PIPELINE.replace("MODEL", &model.display().to_string())).unwrap();
    let turn = |(i, text): (usize, &&str)| {
        serde_json::json!({"conversation_id": format!("c{i}"), "turn": 1, "speaker": "user", "text": text,
            "timestamp": 1_000_000_000 + i})
        .to_string()
    };
    let turns: Vec<String> = QUESTIONS.iter().enumerate().map(turn).collect();
    fs::write(path("turns.jsonl"), turns.join("\n") + "\n").unwrap();
    fs::write(path("edits.jsonl"), "").unwrap();
    let turnflow = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
        command.args(args).current_dir(dir.path());
        command
    };
    let none = turnflow(&["gaps", "p.ron"]).output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("a run of this pipeline writes it"), "{none:?}");

    let mut run = turnflow(&["run", "p.ron", "--state", "state"]).spawn().unwrap();
    let gaps = |args: &[&str]| {
        let out = turnflow(&[&["gaps", "p.ron"], args].concat()).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let report = || serde_json::from_str::<Value>(&gaps(&["--all", "--format", "json"])).unwrap_or_default();
    let before = until("the first answers", report, |report| report["turns"] == 6);
    assert_eq!((&before["open_questions"], &before["open_gaps"]), (&Value::from(5), &Value::from(2)), "{before:#}");
    let gap = before["gaps"][0].clone();
    assert_eq!((&gap["open"], &gap["state"]), (&Value::from(3), &Value::from("open")));
    // When it was asked, not when it was answered.
    assert_eq!(gap["first"], 1e9, "{gap:#}");
    let (id, name) = (gap["id"].as_str().unwrap(), gap["name"].as_str().unwrap());

    fs::write(path("docs/refunds.md"), "# Refunds\nA refund after 30 days is possible: you get your money back.\n")
        .unwrap();
    let told = || fs::read_to_string(path("told.jsonl")).unwrap_or_default();
    let first = until("the record of the edit", told, |told| told.ends_with('\n'));
    let record: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    let expected = format!("refunds.md: 3 of 3 questions like \"{name}\" are answered now");
    assert_eq!((&record["query"], &record["settled"][0]["gap"]), (&Value::from(expected), &Value::from(id)));

    fs::remove_file(path("docs/shipping.md")).unwrap();
    let second = until("the record of the other edit", told, |told| told.lines().count() == 2 && told.ends_with('\n'));
    let record: Value = serde_json::from_str(second.lines().nth(1).unwrap()).unwrap();
    assert_eq!(record["query"], "shipping.md: 1 answer does not hold any more");
    assert_eq!(record["broken"][0]["question"], "What does shipping to Norway cost?");

    // While it runs.
    let text = gaps(&[]);
    assert!(text.starts_with("3 questions without an answer, in 2 gaps; 6 turns were seen.\n"), "{text}");
    let one = gaps(&["--gap", id]);
    assert!(one.contains("settled by refunds.md") && one.contains(", by refunds.md"), "{one}");
    let markdown = gaps(&["--format", "markdown", "--all"]);
    assert!(markdown.contains("- [x] **") && markdown.contains("- [ ] **"), "{markdown}");
    assert_eq!(gaps(&["--format", "csv", "--all"]).lines().count(), 4);
    let open = before["gaps"][1]["id"].as_str().unwrap();
    assert!(turnflow(&["gaps", "p.ron", "--dismiss", open, "--reason", "we sell none"]).status().unwrap().success());
    assert_eq!(report()["open_questions"], 1);
    assert!(turnflow(&["gaps", "p.ron", "--export", "set"]).status().unwrap().success());
    let qrels = fs::read_to_string(path("set/qrels.tsv")).unwrap();
    assert!(qrels.contains("c0<::>1\trefunds.md#0\t1\n"), "{qrels}");
    assert_eq!(fs::read_to_string(path("set/tasks.jsonl")).unwrap().lines().count(), 4);

    run.kill().unwrap();
    run.wait().unwrap();
    let unknown = turnflow(&["gaps", "p.ron", "--gap", "g99"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no gap `g99`"), "{unknown:?}");
}
