//! `turnflow impact`: what it tells equals what asking all questions on both versions tells.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::Numbers;

const PIPELINE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "old"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "hits"),
        "final": IdkNormalize(input: "answer"),
        "out": JsonLinesSink(input: "final", path: "answers.jsonl"),
    },
)"#;

const QUESTIONS: usize = 80;

fn turnflow(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnflow")).current_dir(dir).args(arguments).output().unwrap()
}

fn json_of(dir: &Path, file: &str) -> Value {
    serde_json::from_slice(&fs::read(dir.join(file)).unwrap()).unwrap()
}

/// Two versions of 400 documents, of which few differ, and questions.
fn place(dir: &Path) {
    let mut numbers = Numbers::new(21);
    for version in ["old", "new"] {
        fs::create_dir(dir.join(version)).unwrap();
    }
    for n in 0..400 {
        let text = numbers.text(40);
        let name = format!("{n}.md");
        if n != 398 {
            fs::write(dir.join("old").join(&name), &text).unwrap();
        }
        let new = if n % 100 == 3 { format!("{text} {}", numbers.text(4)) } else { text };
        if n != 397 {
            fs::write(dir.join("new").join(&name), new).unwrap();
        }
    }
    let turn = |n: usize| {
        json!({"conversation_id": format!("c{n}"), "turn": 1, "speaker": "user", "text": numbers.text(3)}).to_string()
    };
    let turns: Vec<String> = (0..QUESTIONS).map(turn).collect();
    fs::write(dir.join("turns.jsonl"), turns.join("\n") + "\n").unwrap();
    fs::write(dir.join("p.ron"), PIPELINE).unwrap();
}

const NEW: &str = "corpora.docs.source.path=\"new\"";

#[test]
fn only_what_the_difference_can_reach_is_answered_again_and_nothing_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    place(dir);
    let impact = ["impact", "p.ron", "--questions", "turns.jsonl", "--set", NEW];
    let done = turnflow(dir, &[&impact[..], &["--format", "json", "-o", "impact.json"]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let told = json_of(dir, "impact.json");
    assert_eq!((&told["questions"], told["documents"].as_object().unwrap().len()), (&json!(QUESTIONS), 6), "{told}");
    assert_eq!((&told["documents"]["397.md"], &told["documents"]["398.md"]), (&json!("removed"), &json!("added")));
    let again = told["answered_again"].as_u64().unwrap();
    assert!(again > 0 && again < QUESTIONS as u64 * 2 / 3, "{again} of {QUESTIONS} answered again");

    for (set, file) in [(None, "before.json"), (Some(NEW), "after.json")] {
        let replay = ["replay", "p.ron", "--log", "turns.jsonl", "-o", file];
        let set: Vec<&str> = set.into_iter().flat_map(|set| ["--set", set]).collect();
        assert!(turnflow(dir, &[&replay[..], &set].concat()).status.success());
    }
    let said = |record: &Value| {
        let hits = record["hits"].as_array().unwrap();
        let hits: Vec<String> = hits.iter().map(|hit| format!("{} {}", hit["passage"], hit["text"])).collect();
        format!("{} {} {hits:?}", record["status"], record["answer"])
    };
    let (before, after) = (json_of(dir, "before.json"), json_of(dir, "after.json"));
    let both = before.as_array().unwrap().iter().zip(after.as_array().unwrap());
    let differ: BTreeSet<String> = both
        .filter(|(before, after)| said(before) != said(after))
        .map(|(before, _)| before["conversation_id"].to_string())
        .collect();
    let affected = told["affected"].as_array().unwrap().iter();
    let affected: BTreeSet<String> = affected.map(|one| one["conversation_id"].to_string()).collect();
    assert!(!differ.is_empty());
    assert_eq!(affected, differ);
}

#[test]
fn a_report_has_the_form_that_is_asked_for_and_can_fail_a_check() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (version, text) in [("old", "The ferry leaves at noon."), ("new", "The lamp is lit by the keeper.")] {
        fs::create_dir(dir.join(version)).unwrap();
        fs::write(dir.join(version).join("ferry.md"), text).unwrap();
    }
    let turn = json!({"conversation_id": "c", "turn": 1, "speaker": "user", "text": "When does the ferry leave?"});
    fs::write(dir.join("turns.jsonl"), format!("{turn}\n")).unwrap();
    fs::write(dir.join("p.ron"), PIPELINE).unwrap();
    let impact = ["impact", "p.ron", "--questions", "turns.jsonl", "--set", NEW];
    for (form, part) in [
        ("text", "1 lost, 0 changed, 0 gained"),
        ("markdown", "| lost | 1 |"),
        ("html", "<article class=lost>"),
        ("json", "\"fate\": \"lost\""),
    ] {
        let done = turnflow(dir, &[&impact[..], &["--format", form]].concat());
        let out = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && out.contains(part), "{form}: {out} {}", String::from_utf8_lossy(&done.stderr));
    }
    for (fails, code) in [("lost", 1), ("gained,changed", 0), ("gained,lost", 1)] {
        let done = turnflow(dir, &[&impact[..], &["--fail-on", fails]].concat());
        assert_eq!(done.status.code(), Some(code), "{fails}");
    }
    // The standing turns of a run are questions, too.
    fs::write(dir.join("live.ron"), PIPELINE.replace("Pipeline(", "Pipeline(mode: Live(), ")).unwrap();
    assert!(turnflow(dir, &["run", "live.ron", "--once", "--state", "state"]).status.success());
    let of_state = ["impact", "p.ron", "--questions", "state", "--set", NEW];
    let done = turnflow(dir, &of_state);
    let out = String::from_utf8_lossy(&done.stdout);
    assert!(out.contains("1 lost"), "{out} {}", String::from_utf8_lossy(&done.stderr));
    for (questions, part) in [("old", "has no standing turns"), ("nothing", "cannot read `nothing`")] {
        let done = turnflow(dir, &["impact", "p.ron", "--questions", questions, "--set", NEW]);
        assert_eq!(done.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&done.stderr).contains(part), "{questions}");
    }
}
