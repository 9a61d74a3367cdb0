//! `turnflow review`: a queue of a real run, verdicts on it, and what `eval`, `tune`, `calibrate` and `test` make of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::{run, turnflow};
use crate::support::{Numbers, until};

const PIPELINE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "stemmed": Bm25(input: "query", corpus: "docs"),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace),
        "fused": Hybrid(inputs: ["plain", "stemmed"]),
        "answer": ExtractiveAnswer(input: "fused"),
        "evidence": Evidence(input: "answer", lists: ["stemmed", "plain"]),
        "final": IdkNormalize(input: "evidence"),
        "out": JsonLinesSink(input: "final", path: "answers.jsonl"),
        "review": Review(input: "final", path: "review.jsonl", rules: {
            "declined": (of: Declined),
            "sample": (share: SHARE),
        }),
    },
)"#;

const THINGS: [&str; 8] = ["ferry", "museum", "bakery", "library", "castle", "harbour", "school", "bridge"];

fn turn(conversation: &str, text: &str) -> String {
    json!({"conversation_id": conversation, "turn": 1, "speaker": "user", "text": text, "timestamp": 1_000_000_000})
        .to_string()
        + "\n"
}

/// A directory with the pipeline and its documents.
fn directory(share: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("p.ron", &PIPELINE.replace("SHARE", share));
    let passage = |(at, thing): (usize, &&str)| {
        format!("{{\"_id\": \"{thing}\", \"text\": \"The {thing} opens at {at} and is in the street {at}.\"}}\n")
    };
    write("docs.jsonl", &THINGS.iter().enumerate().map(passage).collect::<String>());
    directory
}

fn queue(path: &Path, arguments: &[&str]) -> Vec<Value> {
    let listed = run(path, &[&["review", "p.ron", "--format", "jsonl"], arguments].concat()).good();
    listed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_people_say_is_what_eval_tune_calibrate_and_test_take() {
    let directory = directory("1.0");
    let path = directory.path();
    let asked = |thing: &&str| turn(&format!("c-{thing}"), &format!("When does the {thing} open?"));
    let unknown = |at: usize| turn(&format!("u-{at}"), &format!("Xylophone number{at} lessons?"));
    // It finds something, and the documents do not answer it.
    let beside = |thing: &&str| turn(&format!("x-{thing}"), &format!("Is the {thing} red?"));
    // A text that tries to be more than a text.
    let hostile = turn("h\t\"1", "The castle?\") | \u{1b}[31m*x* `a`\n],[\u{0}\u{202e}");
    let turns = THINGS
        .iter()
        .map(asked)
        .chain((0..8).map(unknown))
        .chain(THINGS.iter().map(beside))
        .chain([hostile])
        .collect::<String>();
    fs::write(path.join("turns.jsonl"), turns).unwrap();
    run(path, &["review", "p.ron"]).one_line(1, &["there is no", "review.jsonl", "a run of this pipeline writes it"]);
    run(path, &["run", "p.ron", "--once", "--state", "state"]).good();

    let text = run(path, &["review", "p.ron", "--limit", "3"]).good().out;
    assert!(
        text.starts_with("25 answers open, 0 judged.\n")
            && text.ends_with("3 of 25 are shown; --limit N shows more.\n"),
        "{text}"
    );
    let markdown = run(path, &["review", "p.ron", "--format", "markdown"]).good().out;
    assert_eq!(markdown.matches("\n- [ ] **").count(), 25, "{markdown}");
    assert!(!markdown.contains("*x*") && !markdown.contains('\u{1b}'), "{markdown}");
    let all: Value = serde_json::from_str(&run(path, &["review", "p.ron", "--format", "json"]).good().out).unwrap();
    assert_eq!((&all["open"], &all["items"][0]["at"]), (&json!(25), &json!(1e9)), "{all:#}");
    let open = queue(path, &[]);
    assert_eq!(queue(path, &["--rule", "declined"]).len(), 8);

    // A line of the queue with a verdict is a verdict.
    let judged = |item: &Value| {
        let mut line = item.clone();
        let conversation = item["conversation_id"].as_str().unwrap();
        line["verdict"] = json!("good");
        if conversation == "c-bridge" {
            line["verdict"] = json!("bad");
            line["correction"] = json!("At \"seven\".");
            line["relevant"] = json!(["bridge"]);
            line["irrelevant"] = json!(["ferry"]);
        }
        if conversation.starts_with("x-") {
            line["verdict"] = json!("bad");
            line["answerable"] = json!(false);
        }
        if conversation == "u-7" {
            line["verdict"] = json!("unsure");
        }
        line.to_string() + "\n"
    };
    let lines: String = open.iter().map(judged).collect();
    let wrong = lines.clone() + "{\"id\": \"none\", \"verdict\": \"good\"}\n";
    fs::write(path.join("wrong.jsonl"), wrong).unwrap();
    run(path, &["review", "p.ron", "--verdicts", "wrong.jsonl"])
        .one_line(1, &["`wrong.jsonl`, line 26: the queue has no `none`", "No verdict was taken"]);
    fs::write(path.join("bad.jsonl"), "\n{\"id\": \"a\", \"verdict\": \"fine\"}\n{}\n").unwrap();
    run(path, &["review", "p.ron", "--verdicts", "bad.jsonl"])
        .one_line(1, &["line 2: unknown verdict `fine`", "; 1 line is wrong as well"]);
    assert_eq!(queue(path, &[]).len(), 25);
    fs::write(path.join("verdicts.jsonl"), &lines).unwrap();
    let take = ["review", "p.ron", "--verdicts", "verdicts.jsonl", "--by", "ann"];
    assert_eq!(run(path, &take).good().err, "25 verdicts taken; 0 answers open\n");
    let journal = fs::read_to_string(path.join("review.jsonl")).unwrap();
    assert_eq!(run(path, &take).good().err, "0 verdicts taken; 25 known already; 0 answers open\n");
    assert_eq!(fs::read_to_string(path.join("review.jsonl")).unwrap(), journal);
    let shown = run(path, &["review", "p.ron", "--judged", "--limit", "30"]).good().out;
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
    assert!(shown.contains("=> bad, by ann, on ") && shown.contains("it must say: At \"seven\"."), "{shown}");

    let export = run(path, &["review", "p.ron", "--export", "set"]).good();
    assert!(export.err.contains("24 tasks, 10 judgements and 24 tests in set; 1 left out"), "{export:?}");
    let labelled = ["--tasks", "set/tasks.jsonl", "--qrels", "set/qrels.tsv", "--state", "state"];
    let eval = ["eval", "p.ron", "--output", "scored.json", "--hits", "fused"];
    let scored = run(path, &[&eval, &labelled[..]].concat()).good();
    assert!(scored.err.contains("judges 9 of 24 tasks"), "{scored:?}");
    let figures: Value = serde_json::from_str(&fs::read_to_string(path.join("scored.json")).unwrap()).unwrap();
    // Eight that cite a passage or whose first one is right, and the hostile one.
    assert_eq!(figures["queries"], json!(9), "{figures:#}");
    assert!(figures["metrics"]["recall@5"].as_f64().unwrap() > 0.9, "{figures:#}");
    let tune = ["tune", "p.ron", "--node", "fused", "--output", "weights.ron"];
    let tuned = run(path, &[&tune, &labelled[..]].concat()).good();
    assert!(tuned.out.contains("9 questions") && tuned.out.contains("held out"), "{tuned:?}");
    let calibrate = ["calibrate", "p.ron", "--output", "threshold.ron"];
    let calibrated = run(path, &[&calibrate, &labelled[..2], &labelled[4..]].concat()).good();
    assert!(calibrated.out.contains("calibrated, held out") && path.join("threshold.ron").exists(), "{calibrated:?}");
    let both = "Pipeline(include: [\"p.ron\", \"threshold.ron\"], name: \"both\")";
    fs::write(path.join("both.ron"), both).unwrap();
    run(path, &["check", "both.ron"]).good();
    // None of these has put an answer into the queue.
    assert_eq!(fs::read_to_string(path.join("review.jsonl")).unwrap(), journal);
    // Of the tests, those fail whose answers were bad.
    fs::copy(path.join("set/review.test.ron"), path.join("p.test.ron")).unwrap();
    let tested = run(path, &["test", "p.ron"]);
    assert!(tested.code == Some(1) && tested.out.contains("24 tests: 16 ok, 8 failed"), "{tested:?}");
}

/// Turns in all, and turns that come before each kill.
const TURNS: usize = 240;
const STEP: usize = 8;

fn question(number: usize) -> String {
    let text = match number % 3 {
        0 => "Xylophones?".to_owned(),
        _ => format!("When does the {} open?", THINGS[number % THINGS.len()]),
    };
    turn(&format!("c{number}"), &text)
}

/// The rules that took each conversation.
fn taken(path: &Path) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for item in queue(path, &[]).into_iter().chain(queue(path, &["--judged"])) {
        let conversation = item["conversation_id"].as_str().unwrap().to_owned();
        assert!(all.insert(conversation, item["rules"].clone()).is_none(), "twice: {item:#}");
    }
    all
}

#[test]
fn over_kills_each_answer_is_queued_once_and_none_is_missing() {
    let undisturbed = directory("0.3");
    fs::write(undisturbed.path().join("turns.jsonl"), (0..TURNS).map(question).collect::<String>()).unwrap();
    run(undisturbed.path(), &["run", "p.ron", "--once", "--state", "state"]).good();

    let disturbed = directory("0.3");
    let path = disturbed.path();
    fs::write(path.join("turns.jsonl"), "").unwrap();
    let mut log = fs::OpenOptions::new().append(true).open(path.join("turns.jsonl")).unwrap();
    let mut random = Numbers::new(0x2545_f491_4f6c_dd1d);
    let answers = || fs::read_to_string(path.join("answers.jsonl")).unwrap_or_default().matches('\n').count();
    let size = || fs::metadata(path.join("review.jsonl")).map_or(0, |file| file.len());
    let mut judged = 0;
    for end in (STEP..=TURNS).step_by(STEP) {
        log.write_all((end - STEP..end).map(question).collect::<String>().as_bytes()).unwrap();
        let before = size();
        let mut process = turnflow(path, &["run", "p.ron", "--state", "state"]).stderr(Stdio::null()).spawn().unwrap();
        // Now the process ends when the queue has just grown, now within the answers.
        match random.below(2) {
            0 => until("an answer in the queue", || size() > before),
            _ => {
                let enough = end - random.below(STEP);
                until("answers", || answers() >= enough);
            }
        }
        if random.below(3) == 0 && size() > before {
            // Somebody judges while it runs.
            let id = queue(path, &["--limit", "1"])[0]["id"].clone();
            fs::write(path.join("verdict.jsonl"), json!({"id": id, "verdict": "good"}).to_string()).unwrap();
            run(path, &["review", "p.ron", "--verdicts", "verdict.jsonl"]).good();
            judged += 1;
        }
        process.kill().unwrap();
        process.wait().unwrap();
    }
    run(path, &["run", "p.ron", "--once", "--state", "state"]).good();
    assert_eq!(answers(), TURNS);
    let (taken, expected) = (taken(path), taken(undisturbed.path()));
    assert_eq!(taken, expected);
    // The eighty that have no answer, and some three tenths of the others.
    assert!(expected.len() > 90 && expected.len() < 200, "{}", expected.len());
    assert!(judged > 0);
    assert_eq!(queue(path, &["--judged"]).len(), judged);
}
