//! Arguments, streams, and the help that is at hand.

use std::process::Stdio;

use super::{Ended, directory, run, turnflow};

#[test]
fn wrong_usage_ends_with_two() {
    let directory = directory();
    for arguments in [
        &["frobnicate"][..],
        &[],
        &["check"],
        &["explain", "lexical.ron", "--set", "nodes"],
        &["run", "lexical.ron", "--workers", "0"],
        &["graph", "lexical.ron", "--format", "png"],
        &["bench", "lexical.ron", "--memory", "5"],
        &["bench", "lexical.ron", "--texts", "docs.jsonl"],
    ] {
        let ended = run(directory.path(), arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(ended.out.is_empty() && ended.err.contains("--help"), "{arguments:?}: {ended:?}");
    }
    let help = run(directory.path(), &["--help"]).good();
    assert!(help.out.contains("Exit codes: 0 success, 1 invalid input"), "{help:?}");
}

/// Why it exists: `turnflow explain … | head -1` must not end in a panic.
#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let directory = directory();
    for arguments in [&["explain", "lexical.ron"][..], &["check", "lexical.ron"], &["models", "list", "--root", "."]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended: Ended =
            turnflow(directory.path(), arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap().into();
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn the_reference_is_at_hand() {
    let directory = directory();
    let list = run(directory.path(), &["docs"]);
    assert!(list.out.contains("RerankEnsemble") && list.out.contains("OpenAi"), "{list:?}");
    let one = run(directory.path(), &["docs", "Bm25"]);
    assert!(one.out.contains("`k1`") && !one.out.contains("`lambda`"), "{one:?}");
    run(directory.path(), &["docs", "Bm52"]).one_line(1, &["did you mean `Bm25`?"]);
}

/// A pipeline over standard input and output, in a directory of its own.
const PRINTING: &str = r#"Pipeline(
    name: "printing",
    corpora: { "docs": Corpus(source: Directory(path: ".", pattern: "**/*.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "other/turns.txt"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs"),
        "answer": ExtractiveAnswer(input: "hits"),
        "out": Stdout(input: "answer"),
    },
) // A comment may be the end of a file."#;

fn printing() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("other")).unwrap();
    std::fs::write(directory.path().join("p.ron"), PRINTING).unwrap();
    let document = r#"{"_id": "a", "text": "The ferry \u001b[2J leaves at nine."}"#;
    std::fs::write(directory.path().join("docs.jsonl"), format!("{document}\n")).unwrap();
    let turn = |n: u32| {
        format!("{{\"conversation_id\": \"c{n}\", \"turn\": 1, \"speaker\": \"user\", \"text\": \"ferry\"}}\n")
    };
    std::fs::write(directory.path().join("other/turns.txt"), (0..5).map(turn).collect::<String>()).unwrap();
    directory
}

/// Why it exists: the run tried to print for ever.
#[test]
fn a_run_ends_when_nothing_reads_its_output_and_loses_nothing() {
    let directory = printing();
    let state = tempfile::tempdir().unwrap();
    let arguments = ["run", "p.ron", "--once", "--state", state.path().to_str().unwrap()];
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended: Ended =
        turnflow(directory.path(), &arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap().into();
    assert!(
        ended.code == Some(0) && ended.err.contains("sink `out`: nothing reads the standard output any more"),
        "{ended:?}"
    );
    let again = run(directory.path(), &arguments).good();
    assert_eq!(again.out.matches(", turn 1").count(), 5, "{again:?}");
}

/// What the hits' operator keeps is a test of its own.
#[test]
fn a_plan_shows_what_earlier_runs_have_measured() {
    let directory = printing();
    let explain = |arguments: &[&str]| run(directory.path(), &[&["explain", "p.ron"], arguments].concat()).good().out;
    assert!(!explain(&[]).contains("measured"));
    let component = directory.path().join("state/components/hits");
    std::fs::create_dir_all(&component).unwrap();
    std::fs::write(component.join("measured.txt"), "top: 100\nrecall@10 0.989; a search reads 12 of 2000 lists\n")
        .unwrap();
    let plan = explain(&["--state", "state"]);
    let lines: Vec<&str> = plan.lines().collect();
    let node = lines.iter().position(|line| line.contains("\"hits\" Bm25")).unwrap();
    assert_eq!(lines[node + 1].trim(), "measured: recall@10 0.989; a search reads 12 of 2000 lists", "{plan}");
    assert!(!explain(&[]).contains("measured"));
}

/// Why it exists: each dead letter became a document, and that a dead letter.
#[test]
fn a_corpus_that_would_index_the_dead_letters_is_refused() {
    let directory = printing();
    let refused = run(directory.path(), &["run", "p.ron", "--once", "--state", "state"]);
    assert!(
        refused.code == Some(3) && refused.err.contains("the corpus `docs` reads `state/dead-letters.jsonl`"),
        "{refused:?}"
    );
}

/// A document may try to control the terminal.
#[test]
fn an_answer_is_printed_without_control_characters() {
    let directory = printing();
    let state = tempfile::tempdir().unwrap();
    let state = state.path().to_str().unwrap();
    for more in [&[][..], &["--trace"], &["--stream"]] {
        let answer = run(directory.path(), &[&["ask", "p.ron", "ferry", "--state", state][..], more].concat()).good();
        assert!(answer.out.contains("[2J leaves at nine") && !answer.out.contains('\u{1b}'), "{answer:?}");
    }
    // The trace is not a part of the JSON.
    let json = run(directory.path(), &["ask", "p.ron", "ferry", "--state", state, "--trace", "--json"]).good();
    assert!(
        serde_json::from_str::<serde_json::Value>(&json.out).is_ok() && json.err.contains("hits: 1 hit"),
        "{json:?}"
    );
}

#[test]
fn a_directory_that_is_no_state_directory_is_an_error() {
    let directory = printing();
    for command in [&["dead-letters", "p.ron"][..], &["dead-letters", "p.ron", "--retry"], &["tag", "p.ron"]] {
        let ended = run(directory.path(), &[command, &["--state", "typo"]].concat());
        assert!(
            ended.code == Some(1) && ended.err.contains("`typo` is not a state directory"),
            "{command:?}: {ended:?}"
        );
    }
    for rate in ["NaN", "0", "1e9"] {
        let ended = run(directory.path(), &["bench", "p.ron", "--freshness", "1", "--rate", rate]);
        assert!(ended.code == Some(2) && ended.err.contains("--rate"), "{ended:?}");
    }
    run(directory.path(), &["models", "fetch", "nope"]).one_line(1, &["unknown model `nope`"]);
}
