//! A run whose answers decline, with alerts that a file sink gets: each once, whenever the process is killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Numbers, until};

const PIPELINE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Headings()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs"),
        "answer": ExtractiveAnswer(input: "hits"),
        "final": IdkNormalize(input: "answer"),
        "out": JsonLinesSink(input: "final", path: "answers.jsonl"),
        "alerts": Alerts(input: "final", path: "alerts.jsonl", time: Asked, rules: {
            "declined": (of: Declined, fire: Above(0.5), clear: Some(0.2), window_s: 20, at_least: 10, for_s: 3, keep_s: 3),
            "never": (of: Failed, fire: Above(0), at_least: 1),
        }),
        "fired": JsonLines(path: "alerts.jsonl"),
        "alert": LastTurn(input: "fired"),
        "told": JsonLinesSink(input: "alert", path: "told.jsonl"),
    },
)"#;

/// Turns in all, a second apart.
const TURNS: usize = 260;
/// Turns that come before each kill.
const STEP: usize = 10;
/// Numbers of turns with which the next alert is due at the latest.
const DUE: [usize; 4] = [70, 110, 170, 210];

/// A turn that has an answer, or none from 40 to 79 and from 140 to 179.
fn turn(number: usize) -> String {
    let is_known = !(40..80).contains(&number) && !(140..180).contains(&number);
    let text = if is_known { "When does the ferry leave?" } else { "Xylophones?" };
    json!({"conversation_id": format!("c{number}"), "turn": 1, "speaker": "user", "text": text,
        "timestamp": 1000 + number})
    .to_string()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may be within its write.
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn each_alert_is_told_once_over_kills() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("docs")).unwrap();
    fs::write(path("docs/ferry.md"), "# Ferry\nThe ferry leaves at noon.\n").unwrap();
    fs::write(path("p.ron"), PIPELINE).unwrap();
    fs::write(path("turns.jsonl"), "").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
        command.args(["run", "p.ron", "--state", "state"]).args(arguments).current_dir(dir.path());
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let mut random = Numbers::new(0x9e37_79b9_7f4a_7c15);
    let mut log = fs::OpenOptions::new().append(true).open(path("turns.jsonl")).unwrap();
    for end in (STEP..=TURNS).step_by(STEP) {
        let turns: Vec<String> = (end - STEP..end).map(turn).collect();
        log.write_all((turns.join("\n") + "\n").as_bytes()).unwrap();
        let mut process = run(&[]);
        // Now the process ends within the turns, now when an alert was written that no sink has yet.
        let (enough, due) = (end - random.below(STEP), DUE.iter().position(|due| *due == end));
        match due {
            Some(number) => until("an alert", || lines(&path("alerts.jsonl")).len() > number),
            None => until("answers", || lines(&path("answers.jsonl")).len() >= enough),
        }
        process.kill().unwrap();
        process.wait().unwrap();
    }
    // The first one answers what is left, the second one tells the alerts that it gave.
    for _ in 0..2 {
        assert!(run(&["--once"]).wait().unwrap().success());
    }
    assert_eq!(lines(&path("answers.jsonl")).len(), TURNS);
    let (alerts, told) = (lines(&path("alerts.jsonl")), lines(&path("told.jsonl")));
    let texts = |records: &[Value], field: &str| -> Vec<String> {
        records.iter().map(|record| record[field].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(&alerts, "state"), ["firing", "cleared", "firing", "cleared"], "{alerts:#?}");
    assert_eq!(texts(&alerts, "id"), ["alerts/1", "alerts/2", "alerts/3", "alerts/4"]);
    assert_eq!(texts(&alerts, "alert"), ["alerts/1", "alerts/1", "alerts/3", "alerts/3"]);
    assert_eq!(texts(&told, "query"), texts(&alerts, "text"));
    let ids: BTreeSet<String> = texts(&told, "id").into_iter().collect();
    assert_eq!((ids.len(), told.len()), (4, 4));
    for (alert, from) in [(&alerts[0], 1040.0), (&alerts[2], 1140.0)] {
        let since = alert["since"].as_f64().unwrap();
        assert!((from..from + 20.0).contains(&since), "{alert:#}");
        assert_eq!(alert["examples"][0]["question"], "Xylophones?");
    }
}
