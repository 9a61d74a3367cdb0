//! The examples, run.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use notify::{RecursiveMode, Watcher};

#[test]
fn search_in_process_finds_sections_of_the_handbook() {
    let program = env!("CARGO_BIN_EXE_search_in_process");
    let output = Command::new(program).args(["reciprocal", "rank", "fusion"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().count() >= 1 && text.contains(".md#"), "{text}");
    assert!(!Command::new(program).output().unwrap().status.success(), "no words, no search");
}

fn own_components(arguments: &[&str], directory: &Path) -> Output {
    let program = env!("CARGO_BIN_EXE_own_components");
    Command::new(program).args(arguments).current_dir(directory).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The example's pipeline, with a spool of its own.
fn world() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/own_components/pipeline.ron");
    let handbook = Path::new(env!("CARGO_MANIFEST_DIR")).join("handbook");
    let pipeline = fs::read_to_string(example).unwrap().replace("../../handbook", handbook.to_str().unwrap());
    fs::write(directory.path().join("pipeline.ron"), pipeline).unwrap();
    fs::create_dir(directory.path().join("inbox")).unwrap();
    directory
}

fn ask(world: &Path, number: u32, question: &str) {
    let turn = serde_json::json!({"conversation_id": "c", "turn": number, "speaker": "user", "text": question});
    let inbox = world.join("inbox");
    fs::write(inbox.join("new"), turn.to_string()).unwrap();
    fs::rename(inbox.join("new"), inbox.join(format!("{number}.json"))).unwrap();
}

fn answers(world: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(world.join("answers.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn own_components_are_checked_documented_and_run() {
    let world = world();
    let world = world.path();
    let checked = own_components(&["check", "pipeline.ron"], world);
    assert!(checked.status.success(), "{}", text(&checked));
    let wrong = own_components(&["check", "pipeline.ron", "--set", "nodes.long.long={}"], world);
    assert!(!wrong.status.success() && text(&wrong).contains("no acronyms are given"), "{}", text(&wrong));
    let list = own_components(&["docs"], world);
    assert!(["Acronyms", "Paragraphs", "Spool"].iter().all(|name| text(&list).contains(name)), "{}", text(&list));
    let docs = own_components(&["docs", "Acronyms"], world);
    assert!(text(&docs).contains("The long form of each acronym."), "{}", text(&docs));

    ask(world, 1, "What is the k of RRF?");
    let ran = own_components(&["run", "pipeline.ron", "--once"], world);
    assert!(ran.status.success(), "{}", text(&ran));
    let answers = answers(world);
    assert_eq!(answers[0]["query"], "What is the k of RRF? reciprocal rank fusion");
    assert!(answers[0]["hits"][0]["text"].as_str().unwrap().contains("reciprocal rank fusion"), "{}", answers[0]);
}

/// A file goes when a checkpoint has its answer, and after a restart nothing is answered twice.
#[test]
fn an_own_source_is_told_what_is_safe() {
    let world = world();
    let world = world.path();
    let (told, changed) = mpsc::channel();
    let tell = move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| event.kind.is_remove()) {
            let _ = told.send(());
        }
    };
    let mut watcher = notify::recommended_watcher(tell).unwrap();
    watcher.watch(&world.join("inbox"), RecursiveMode::NonRecursive).unwrap();
    for number in [1, 2] {
        ask(world, number, "What is an epoch?");
        let program = env!("CARGO_BIN_EXE_own_components");
        let mut run = Command::new(program)
            .args(["run", "pipeline.ron"])
            .current_dir(world)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(120);
        while fs::read_dir(world.join("inbox")).unwrap().count() > 0 {
            assert!(Instant::now() < until, "the file is still there: {:?}", answers(world));
            assert!(run.try_wait().unwrap().is_none(), "the run ended early");
            // The timeout is for a run that ends early.
            let _ = changed.recv_timeout(Duration::from_secs(1));
        }
        run.kill().unwrap();
        run.wait().unwrap();
        assert_eq!(answers(world).len() as u32, number);
    }
}
