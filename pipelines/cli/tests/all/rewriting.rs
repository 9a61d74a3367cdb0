//! What rewriting by rules is worth, on the conversations of MTRAG.

use std::fs;
use std::process::Command;

use crate::support::data;

/// Why it exists: the rules' word lists and weights can be changed with the best intentions.
#[test]
fn rules_find_more_than_the_last_turn_and_the_last_two() {
    let Some(data) = data("mtrag") else { return };
    let directory = tempfile::tempdir().unwrap();
    let corpus = |name: &str| {
        let path = data.join(format!("corpus/{name}.jsonl"));
        format!("{name:?}: Corpus(source: JsonLines(path: {path:?}), chunk: Whole()),")
    };
    let corpora: String = ["clapnq", "cloud", "fiqa", "govt"].map(corpus).concat();
    let turns = data.join("turns.dev.jsonl");
    let ndcg = |query: &str| -> f64 {
        let pipeline = format!(
            "Pipeline(name: \"rewriting\", corpora: {{ {corpora} }}, nodes: {{ \
             \"turns\": JsonLines(path: {turns:?}), \
             \"query\": {query}, \
             \"lexical\": Bm25(input: \"query\", corpus: FromTurn, tokenizer: English, top: 10), \
             }})"
        );
        fs::write(directory.path().join("rewriting.ron"), pipeline).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_turnflow"))
            .args(["eval", "rewriting.ron", "--json", "figures.json"])
            .arg("--tasks")
            .arg(data.join("tasks.dev.jsonl"))
            .arg("--qrels")
            .arg(data.join("qrels.dev.tsv"))
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let figures = fs::read(directory.path().join("figures.json")).unwrap();
        let figures: serde_json::Value = serde_json::from_slice(&figures).unwrap();
        figures["metrics"]["ndcg@5"].as_f64().unwrap()
    };
    let last = ndcg("LastTurn(input: \"turns\")");
    let two = ndcg("UserTurns(input: \"turns\", last: 2)");
    let rules = ndcg("RuleRewrite(input: \"turns\")");
    // 0.740, 0.774 and 0.815 when this was written.
    assert!(rules > last + 0.05 && rules > two + 0.02, "last {last}, two {two}, rules {rules}");
}
