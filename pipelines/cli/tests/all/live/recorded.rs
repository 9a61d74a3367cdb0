//! The log's own replies, judged: each once, however often the process ends, and again when their passages change.

use std::fs;
use std::path::Path;

use serde_json::json;
use turnflow_engine::connector::Mode;
use turnflow_engine::run::{Engine, Options};

use crate::support::{answers, plan_of, until};

const PIPELINE: &str = r#"Pipeline(
    mode: Live(standing: 500),
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "named": References(input: "query", corpus: "docs"),
        "found": Bm25(input: "query", corpus: "docs", top: 3),
        "hits": Fallback(inputs: ["named", "found"], on_empty: true),
        "reply": Recorded(input: "hits"),
        "checked": SelfCheck(input: "reply", min_overlap: 0.6),
        "out": JsonLinesSink(input: "checked", path: "answers.jsonl"),
    },
)"#;

fn start(dir: &Path, mode: Mode) -> Engine {
    let options =
        Options { workers: 2, state: Some(dir.join("state")), turns: mode, corpora: mode, ..Options::default() };
    Engine::start(plan_of(dir, PIPELINE), options).unwrap()
}

fn write_docs(dir: &Path, ferry: &str) {
    let rows = [json!({"_id": "ferry", "text": ferry}), json!({"_id": "lamp", "text": "The lamp is lit at dusk."})];
    fs::write(dir.join("docs.new"), rows.map(|row| row.to_string() + "\n").concat()).unwrap();
    fs::rename(dir.join("docs.new"), dir.join("docs.jsonl")).unwrap();
}

fn line(conversation: &str, turn: u32, speaker: &str, text: &str, contexts: &[&str]) -> String {
    let mut line = json!({"conversation_id": conversation, "turn": turn, "speaker": speaker, "text": text});
    if !contexts.is_empty() {
        line["contexts"] = json!(contexts);
    }
    line.to_string() + "\n"
}

fn append(dir: &Path, lines: &[String]) {
    use std::io::Write;
    let mut file = fs::OpenOptions::new().create(true).append(true).open(dir.join("turns.jsonl")).unwrap();
    file.write_all(lines.concat().as_bytes()).unwrap();
}

/// Conversation, turn, revision, retracted, status, question, documents.
fn told(dir: &Path) -> Vec<String> {
    let mut told: Vec<String> = answers(&dir.join("answers.jsonl"))
        .into_iter()
        .map(|one| {
            let documents: Vec<&str> = one.hits.iter().map(|hit| &*hit.document).collect();
            let status = format!("{:?}", one.status);
            format!(
                "{}/{} r{}{} {status} {} {documents:?}",
                one.conversation_id,
                one.turn,
                one.revision,
                if one.retracted { "-" } else { "" },
                one.query
            )
        })
        .collect();
    told.sort();
    told
}

#[test]
fn a_recorded_reply_is_judged_when_it_has_come_and_again_after_an_edit() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_docs(dir, "The ferry leaves at noon from the pier.");
    let begin = [
        line("a", 1, "agent", "Welcome!", &[]),
        line("a", 2, "user", "When does the ferry leave?", &[]),
        line("a", 2, "agent", "The ferry leaves at noon from the pier.", &["ferry"]),
        line("b", 1, "user", "When is the lamp lit?", &[]),
    ];
    append(dir, &begin);
    let once = |expected: &[&str]| {
        let engine = start(dir, Mode::Once);
        until("the end", || engine.has_ended());
        engine.join().unwrap();
        assert_eq!(told(dir), expected);
    };
    let first = r#"a/2 r0 Answered When does the ferry leave? ["ferry"]"#;
    once(&[first]);
    // The reply comes to another process; its passages are those that are found.
    append(dir, &[line("b", 1, "agent", "The lamp is lit at dusk.", &[])]);
    let second = r#"b/1 r0 Answered When is the lamp lit? ["lamp"]"#;
    once(&[first, second]);
    // Nothing is judged twice.
    once(&[first, second]);
    // The document does not bear out the reply any more.
    write_docs(dir, "Boats are repaired in the yard.");
    once(&[
        first,
        r#"a/2 r0- Answered When does the ferry leave? ["ferry"]"#,
        r#"a/2 r1 Idk When does the ferry leave? ["ferry"]"#,
        second,
    ]);
}
