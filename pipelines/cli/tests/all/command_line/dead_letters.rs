//! Dead letters: listed, and tried again.

use std::fs;
use std::path::Path;

use serde_json::Value;
use turnflow_engine::dead_letter::DeadLetter;

use super::{directory, real_model, run};
use crate::support::answers;

/// Writes letters as a run would have.
fn write(directory: &Path, letters: &[DeadLetter]) {
    fs::create_dir_all(directory.join("state")).unwrap();
    let lines: String = letters.iter().map(|letter| serde_json::to_string(letter).unwrap() + "\n").collect();
    fs::write(directory.join("state/dead-letters.jsonl"), lines).unwrap();
}

fn read(directory: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(directory.join("state/dead-letters.jsonl")).unwrap();
    let letters = text.lines().map(|line| serde_json::from_str::<DeadLetter>(line).unwrap());
    letters.map(|letter| (letter.position, letter.reason)).collect()
}

fn turn(conversation: &str, text: &str) -> String {
    format!(r#"{{"conversation_id": "{conversation}", "turn": 1, "speaker": "user", "text": "{text}"}}"#)
}

#[test]
fn they_are_listed_by_source_and_reason() {
    let directory = directory();
    let path = directory.path();
    let list = |more: &[&str]| {
        let arguments = ["dead-letters", "lexical.ron", "--state", "state"];
        run(path, &[&arguments[..], more].concat()).good().out
    };
    run(path, &["run", "lexical.ron", "--once", "--state", "state"]).good();
    // A restart does not repeat them.
    run(path, &["run", "lexical.ron", "--once", "--state", "state"]).good();
    let told = list(&[]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "turns: 2 dead letters"), "{told}");
    assert!(lines[1].starts_with("     1  turns.jsonl:3  not a turn record: `turn` counts from 1"), "{told}");
    let rows: Vec<Value> = list(&["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[0]["count"], &rows[0]["source"]), (2, &1.into(), &"turns".into()));
    assert_eq!(list(&["--reason", "counts from 1"]).lines().count(), 2);
    assert_eq!(list(&["--source", "docs"]), "no dead letters\n");

    // There is no sink, so there is nothing to try them for.
    write(path, &[DeadLetter::new("turns", "t:1", "old", turn("a", "When?").as_bytes())]);
    run(path, &["dead-letters", "lexical.ron", "--state", "state", "--retry"]).one_line(1, &["turns", "no sink"]);
}

#[test]
fn they_are_tried_again() {
    let directory = directory();
    let path = directory.path();
    let Some(real) = real_model(path) else { return };
    let retry = |more: &[&str]| {
        let arguments = ["dead-letters", "answering.ron", "--state", "state", "--retry"];
        let real = real.iter().map(String::as_str);
        run(path, &arguments.into_iter().chain(more.iter().copied()).chain(real).collect::<Vec<_>>())
    };
    let letter = |source: &str, position: &str, record: &str| {
        DeadLetter::new(source, position, "an old reason", record.as_bytes())
    };
    let truncated = DeadLetter { truncated: true, ..letter("turns", "t:5", &turn("e", "cut")) };
    write(
        path,
        &[
            letter("turns", "t:1", &turn("a", "When does the ferry leave?")),
            letter("turns", "t:2", "still no turn"),
            letter("docs", "docs.jsonl:9", "{}"),
            letter("turns", "t:3", &turn("a", "Who lights the lamp?")),
            letter("gone", "t:4", &turn("d", "?")),
            truncated,
        ],
    );
    let told = retry(&["--source", "nobody"]).good();
    assert!(told.err.contains("0 turns answered; 0 failed again"), "{told:?}");
    let told = retry(&[]);
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.out.starts_with("t:1  answered\nt:2  failed again: not a turn record: "), "{told:?}");
    for word in ["2 turns answered; 1 failed again", "1 truncated", "1 of corpora", "1 of unknown sources"] {
        assert!(told.err.contains(word), "{word}: {told:?}");
    }
    let mut given: Vec<_> =
        answers(&path.join("answers.jsonl")).iter().map(|answer| answer.hits[0].document.clone()).collect();
    given.sort();
    assert_eq!(given, [std::sync::Arc::<str>::from("ferry"), std::sync::Arc::<str>::from("lamp")]);
    let left = read(path);
    let positions: Vec<&str> = left.iter().map(|(position, _)| position.as_str()).collect();
    assert_eq!(positions, ["t:2", "docs.jsonl:9", "t:4", "t:5"]);
    assert!(left[0].1.starts_with("not a turn record") && left[1].1 == "an old reason", "{left:?}");

    write(path, &[letter("turns", "t:1", &turn("a", "Who lights the lamp?"))]);
    let told = retry(&["--json"]).good();
    let row: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((&row["position"], &row["answered"]), (&"t:1".into(), &true.into()), "{told:?}");
    assert_eq!(read(path), []);
}

/// A turn whose language model is down is a letter that can be tried again when it is up.
#[test]
fn turns_that_failed_are_tried_again() {
    let directory = directory();
    let path = directory.path();
    let pipeline = |url: &str| {
        let text = format!(
            r#"Pipeline(
    failed_turns: DeadLetter,
    retries: (attempts: 2, first_ms: 1),
    models: {{ "llm": OpenAi(url: "{url}", model: "m", retries: 0) }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": Generate(input: "hits", model: "llm"),
        "out": JsonLinesSink(input: "answer", path: "out.jsonl"),
    }},
)"#
        );
        fs::write(path.join("written.ron"), text).unwrap();
    };
    // Nobody listens there.
    pipeline("http://127.0.0.1:9/v1");
    run(path, &["run", "written.ron", "--once", "--state", "state"]).good();
    let failed = answers(&path.join("out.jsonl"));
    assert!(failed.len() == 2 && failed.iter().all(|answer| answer.error.is_some()), "{failed:?}");
    let letters = read(path);
    let of_turns = letters.iter().filter(|(_, reason)| reason.starts_with("node `answer`: ")).count();
    assert_eq!((letters.len(), of_turns), (4, 2), "{letters:?}");
    let (url, _) = crate::evaluation::server(|_| "At noon [1].");
    pipeline(&url);
    let told = run(path, &["dead-letters", "written.ron", "--state", "state", "--retry", "--reason", "node"]).good();
    assert!(told.err.contains("2 turns answered; 0 failed again"), "{told:?}");
    let answered: Vec<_> = answers(&path.join("out.jsonl")).into_iter().skip(2).collect();
    assert!(answered.len() == 2 && answered.iter().all(|answer| answer.answer.contains("At noon")), "{answered:?}");
    assert_eq!(read(path).len(), 2);
}
