//! `turnflow replay`: where two plays of a log part.

use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use crate::command_line::run;

const PIPELINE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "nothing.jsonl"),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 5),
        "fused": Rrf(inputs: ["lexical"], top: 5),
    },
)"#;

fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("p.ron", PIPELINE);
    let doc = |id: &str, text: &str| format!("{{\"_id\": \"{id}\", \"text\": \"{text}\"}}\n");
    let old = [
        doc("ferry", "The ferry leaves the north pier at noon."),
        doc("lamp", "The keeper lights the lamp in the tower at dusk."),
        doc("island", "The lamp of the island is seen from the ferry."),
    ];
    write("docs.jsonl", &old.concat());
    write("new.jsonl", &[&old[..2], &[doc("island", "Nobody lives on the island now.")]].concat().concat());
    let turn = |conversation: &str, turn: u32, speaker: &str, text: &str| {
        format!(
            "{{\"conversation_id\": \"{conversation}\", \"turn\": {turn}, \"speaker\": \"{speaker}\", \"text\": \"{text}\"}}\n"
        )
    };
    let log = [
        turn("a", 1, "user", "When does the ferry leave?"),
        turn("a", 1, "agent", "At noon."),
        "no turn\n".to_owned(),
        turn("b", 1, "user", "Who lights the lamp?"),
        turn("a", 2, "user", "And from which pier?"),
    ];
    write("log.jsonl", &log.concat());
    dir
}

fn compared(path: &Path, more: &[&str]) -> (String, Json) {
    let arguments = [&["replay", "p.ron", "--log", "log.jsonl", "--json", "out.json"], more].concat();
    let ended = run(path, &arguments).good();
    assert_eq!(ended.err, "log.jsonl:3: not a turn record: expected ident at line 1 column 2: skipped\n");
    (ended.out, serde_json::from_str(&fs::read_to_string(path.join("out.json")).unwrap()).unwrap())
}

#[test]
fn a_pipeline_is_the_same_as_itself() {
    let dir = directory();
    let (out, json) = compared(dir.path(), &["--against", "p.ron"]);
    assert_eq!(out, "3 turns: 3 the same, 0 differ\n");
    assert_eq!((&json["turns"], &json["same"]), (&3.into(), &3.into()));
    assert!(!dir.path().join(".turnflow").exists(), "nothing is left behind");
}

#[test]
fn turns_part_at_the_first_node_that_differs() {
    let dir = directory();
    // Another setting: the first node that differs is where it is.
    let (out, json) = compared(dir.path(), &["--against-set", "nodes.lexical.top=1"]);
    assert!(out.contains("first difference at lexical") && out.contains("p.ron with nodes.lexical.top=1"), "{out}");
    assert!(json["stages"].as_object().unwrap().keys().all(|stage| stage == "lexical"), "{json}");

    // Another corpus: a passage is gone from what the turns find, and the others are rarer.
    let (out, json) = compared(dir.path(), &["--against-set", "corpora.docs.source.path=\"new.jsonl\""]);
    assert_eq!((&json["turns"], &json["differ"]), (&3.into(), &3.into()), "{out}");
    assert_eq!(json["differing"][1]["question"], "Who lights the lamp?");
    assert!(out.contains("- 2 island ("), "{out}");

    // Other nodes: told of, and what is common is compared.
    let other =
        PIPELINE.replace("\"query\": LastTurn(input: \"turns\")", "\"query\": UserTurns(input: \"turns\", last: 2)");
    let other =
        other.replace("\"fused\": Rrf(inputs: [\"lexical\"], top: 5)", "\"cut\": Rrf(inputs: [\"lexical\"], top: 1)");
    fs::write(dir.path().join("q.ron"), other).unwrap();
    let (out, json) = compared(dir.path(), &["--against", "q.ron"]);
    assert!(out.contains("only p.ron has: `fused` (Rrf)\nonly q.ron has: `cut` (Rrf)\n"), "{out}");
    let stages = json["stages"].as_object().unwrap();
    assert_eq!((&stages["query"], &stages["fused (only in one)"]), (&1.into(), &2.into()), "{out}");
    let difference = ["replay", "p.ron", "--log", "log.jsonl", "--against", "q.ron", "--fail-on-difference"];
    assert_eq!(run(dir.path(), &difference).code, Some(1));
}

#[test]
fn answers_are_printed_and_compared_with_those_that_were_given() {
    let dir = directory();
    let answers = run(dir.path(), &["replay", "p.ron", "--log", "log.jsonl"]).good().out;
    let lines: Vec<Json> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let asked: Vec<(&str, u64)> =
        lines.iter().map(|line| (line["conversation_id"].as_str().unwrap(), line["turn"].as_u64().unwrap())).collect();
    assert_eq!(asked, [("a", 1), ("b", 1), ("a", 2)], "in the order of the log");
    fs::write(dir.path().join("answers.jsonl"), &answers).unwrap();
    let (out, _) = compared(dir.path(), &["--answers", "answers.jsonl"]);
    assert_eq!(out, "3 turns: 3 the same, 0 differ\n");

    let withdrawn = "{\"conversation_id\": \"b\", \"turn\": 1, \"retracted\": true}\n";
    fs::write(dir.path().join("answers.jsonl"), format!("{answers}{withdrawn}")).unwrap();
    let (out, _) = compared(dir.path(), &["--answers", "answers.jsonl"]);
    assert!(out.contains("no answer is recorded") && out.ends_with("1 differ (1 at the record)\n"), "{out}");

    let replay = |more: &[&str]| run(dir.path(), &[&["replay", "p.ron"], more].concat());
    fs::write(dir.path().join("answers.jsonl"), "{}\n").unwrap();
    let wrong = replay(&["--log", "log.jsonl", "--answers", "answers.jsonl"]);
    assert!(wrong.code == Some(1) && wrong.err.contains("`answers.jsonl`, line 1: not an answer record"), "{wrong:?}");
    replay(&["--log", "gone.jsonl"]).one_line(1, &["cannot read `gone.jsonl`"]);
    fs::write(dir.path().join("empty.jsonl"), "").unwrap();
    replay(&["--log", "empty.jsonl"]).one_line(1, &["`empty.jsonl` has no user turn"]);
}

#[test]
fn documents_of_two_times_are_compared() {
    let dir = directory();
    let path = dir.path();
    let tag = |arguments: &[&str]| run(path, &[&["tag", "p.ron", "--state", "state"], arguments].concat());
    assert_eq!(tag(&["monday"]).good().out, "docs: 3 documents, 3 of them new or changed, 0 deleted\n");
    tag(&["monday"]).one_line(1, &["already has a tag `monday`"]);
    tag(&["a/b"]).one_line(1, &["`a/b` cannot be a tag"]);
    fs::copy(path.join("new.jsonl"), path.join("docs.jsonl")).unwrap();
    assert_eq!(tag(&["tuesday"]).good().out, "docs: 3 documents, 1 of them new or changed, 0 deleted\n");
    let listed = tag(&[]).good().out;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split([' ', ',']).nth(1)).collect();
    assert_eq!(names, ["monday", "tuesday"], "{listed}");
    // As now, and as of a tag that is the same.
    let (out, _) = compared(path, &["--against-tag", "tuesday", "--tags", "state"]);
    assert_eq!(out, "3 turns: 3 the same, 0 differ\n");
    // Two times: as between the two files.
    let (out, json) = compared(path, &["--tag", "monday", "--against-tag", "tuesday", "--tags", "state"]);
    assert_eq!((&json["turns"], &json["differ"]), (&3.into(), &3.into()), "{out}");
    assert!(out.contains("p.ron as of `monday`") && out.contains("p.ron as of `tuesday`"), "{out}");
    assert!(out.contains("- 2 island ("), "{out}");
    let replay = ["replay", "p.ron", "--log", "log.jsonl", "--tags", "state"];
    let unknown = run(path, &[&replay[..], &["--tag", "sunday"]].concat());
    assert!(
        unknown.code == Some(1) && unknown.err.contains("no tag `sunday`; it has `monday`, `tuesday`"),
        "{unknown:?}"
    );
    assert_eq!(tag(&["monday", "--remove"]).good().out, "");
    assert_eq!(tag(&["--json"]).good().out.lines().count(), 1);
    tag(&["monday", "--remove"]).one_line(1, &["no tag `monday`"]);
}
