//! Indexes that are brought up to date, questions, runs, and the state that they keep.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::{Ending, directory, real_model, run, turnflow};
use crate::support::{answers, until};

#[test]
fn index_counts_and_does_nothing_twice() {
    let directory = directory();
    let index = |pipeline: &str, more: &[String]| {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        run(directory.path(), &[&["index", pipeline, "--state", "state"], more.as_slice()].concat()).good().out
    };
    for _ in 0..2 {
        let told = index("lexical.ron", &[]);
        assert!(told.starts_with("docs: 2 documents, 2 chunks, 0 chunks embedded, "), "{told}");
    }
    let Some(real) = real_model(directory.path()) else { return };
    let first = index("answering.ron", &real);
    assert!(first.starts_with("docs: 2 documents, 2 chunks, 2 chunks embedded, "), "{first}");
    let again = index("answering.ron", &real);
    assert!(again.starts_with("docs: 2 documents, 2 chunks, 0 chunks embedded, "), "{again}");
}

#[test]
fn index_names_what_could_not_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("good.md"), "The ferry leaves at ten.").unwrap();
    (10..22).for_each(|number| fs::write(docs.join(format!("{number}.docx")), "no archive").unwrap());
    let pipeline = r#"Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Whole()) },
    nodes: { "turns": Stdin(), "query": LastTurn(input: "turns"), "found": Bm25(input: "query", corpus: "docs") },
)"#;
    fs::write(dir.path().join("p.ron"), pipeline).unwrap();
    let told = run(dir.path(), &["index", "p.ron"]).good().out;
    assert!(told.starts_with("docs: 1 document, 1 chunk, "), "{told}");
    assert!(told.contains("\ndocs: 12 could not be read:\n    10.docx: broken docx"), "{told}");
    assert!(told.contains("\n    and 2 more: see the dead letters\n"), "{told}");
    let told: Value = serde_json::from_str(&run(dir.path(), &["index", "p.ron", "--json"]).good().out).unwrap();
    let corpus = &told["corpora"][0];
    assert_eq!((&corpus["read"], &corpus["documents"], &corpus["unreadable"]), (&1.into(), &1.into(), &12.into()));
    assert_eq!(corpus["unreadable_because"].as_array().map(Vec::len), Some(10), "{corpus}");
}

#[test]
fn ask_needs_answers() {
    let directory = directory();
    run(directory.path(), &["ask", "lexical.ron", "When?"]).one_line(1, &["Answers"]);
    let Some(real) = real_model(directory.path()) else { return };
    let ask = |more: &[&str]| {
        let real = real.iter().map(String::as_str);
        let arguments = ["ask", "answering.ron", "When does the ferry leave?", "--state", "state"];
        let arguments: Vec<&str> = arguments.into_iter().chain(more.iter().copied()).chain(real).collect();
        run(directory.path(), &arguments).good().out
    };
    let told = ask(&[]);
    assert!(told.starts_with("The ferry leaves the north pier at noon. [1]\n  [1] ferry ("), "{told}");
    let record: Value = serde_json::from_str(&ask(&["--json"])).unwrap();
    assert_eq!((&record["status"], &record["hits"][0]["document"]), (&"answered".into(), &"ferry".into()), "{record}");
    let traced = ask(&["--trace"]);
    assert!(traced.contains("query: query \"When does the ferry leave?\"\n"), "{traced}");
    assert!(!directory.path().join("answers.jsonl").exists(), "a question asked by hand goes to no sink");
}

#[test]
fn a_state_directory_that_cannot_be_used_is_told_in_a_line() {
    let directory = directory();
    let index = |state: &str| run(directory.path(), &["index", "lexical.ron", "--state", state]);
    // Root may write anywhere, but not under a file.
    index("docs.jsonl/state").one_line(3, &["docs.jsonl/state"]);
    fs::create_dir(directory.path().join("newer")).unwrap();
    fs::write(directory.path().join("newer/format"), "turnflow state 99\n").unwrap();
    index("newer").one_line(3, &["newer", "turnflow state 99"]);

    let mut command = turnflow(directory.path(), &["run", "lexical.ron", "--state", "held"]);
    let held = Ending(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    // Written by who has the lock.
    until("the state directory", || directory.path().join("held/format").exists());
    index("held").one_line(3, &["held", "in use by another turnflow process"]);
    drop(held);
    // The lock went with the process that had it, however that ended.
    index("held").good();
}

#[test]
fn another_pipeline_on_a_state_directory_is_told_from_the_same_one_edited() {
    let directory = directory();
    let path = directory.path();
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    let lexical = fs::read_to_string(path.join("lexical.ron")).unwrap();
    let index = |pipeline: &str| run(path, &["index", pipeline, "--state", "state"]);
    index("lexical.ron").good();
    // Another one, whose parts have the same names.
    write("more.jsonl", "{\"_id\": \"bell\", \"text\": \"The bell rings twice.\"}\n");
    write("other.ron", &lexical.replace("docs.jsonl", "more.jsonl").replace("turns.jsonl", "asked.jsonl"));
    write("asked.jsonl", "");
    let words = ["lexical.ron", "other.ron", "docs.jsonl", "more.jsonl", "--state", "pipeline.json"];
    for command in [&["index"][..], &["run", "--once"], &["serve", "--listen", "127.0.0.1:0"]] {
        let arguments = [command, &["other.ron", "--state", "state"]].concat();
        run(path, &arguments).one_line(1, &words);
    }
    // The passages of the first one are as they were.
    run(path, &["verify", "lexical.ron", "--state", "state"]).good();
    // The same one, renamed and edited.
    write("renamed.ron", &lexical.replace("\"docs\"", "\"texts\"").replace("turns.jsonl", "asked.jsonl"));
    assert!(index("renamed.ron").good().out.starts_with("texts: 2 documents"));
    // The same file, whatever is in it.
    fs::copy(path.join("other.ron"), path.join("renamed.ron")).unwrap();
    assert!(index("renamed.ron").good().out.starts_with("docs: 1 document,"));
    index("lexical.ron").one_line(1, &["renamed.ron", "lexical.ron"]);
    // As the error says.
    fs::remove_file(path.join("state/pipeline.json")).unwrap();
    index("lexical.ron").good();
}

#[test]
fn a_run_answers_what_can_be_answered_and_keeps_the_rest() {
    let directory = directory();
    let path = directory.path();
    let run_once = |pipeline: &str, more: &[String]| {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        run(path, &[&["run", pipeline, "--once", "--state", "state"], more.as_slice()].concat()).good()
    };
    let letters = || -> Vec<Value> {
        let text = fs::read_to_string(path.join("state/dead-letters.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let ended = run_once("lexical.ron", &[]);
    assert_eq!(ended.out, "", "{ended:?}");
    assert!(ended.err.contains("2 turns answered, 2 dead letters"), "{ended:?}");
    let dead = letters();
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert_eq!((&dead[0]["position"], &dead[0]["record"]), (&"turns.jsonl:2".into(), &"this is no turn".into()));
    assert_eq!(dead[1]["position"], "turns.jsonl:3");
    for letter in &dead {
        assert_eq!(letter["source"], "turns");
        assert!(letter["reason"].as_str().is_some_and(|reason| reason.len() > 10), "{letter}");
    }

    let Some(real) = real_model(path) else { return };
    run_once("answering.ron", &real);
    let mut given = answers(&path.join("answers.jsonl"));
    given.sort_by(|a, b| a.conversation_id.cmp(&b.conversation_id));
    let given: Vec<(&str, &str)> =
        given.iter().map(|given| (&*given.conversation_id, &*given.hits[0].document)).collect();
    assert_eq!(given, [("a", "ferry"), ("b", "lamp")]);
}

#[test]
fn records_that_come_again_are_answered_once_and_new_versions_of_turns_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("docs.jsonl"), "{\"_id\": \"a\", \"text\": \"The ferry leaves at ten.\"}\n").unwrap();
    let pipeline = r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": FullConversation(input: "turns", last: 9),
        "hits": Bm25(input: "query", corpus: "docs"),
        "out": JsonLinesSink(input: "hits", path: "out.jsonl"),
    },
)"#;
    fs::write(path.join("p.ron"), pipeline).unwrap();
    let record = |speaker: &str, turn: u32, text: &str| {
        serde_json::json!({"conversation_id": "c", "turn": turn, "speaker": speaker, "text": text}).to_string() + "\n"
    };
    let once = |log: &str| {
        fs::write(path.join("turns.jsonl"), log).unwrap();
        let told = run(path, &["run", "p.ron", "--once", "--state", "state"]).good();
        let queries = answers(&path.join("out.jsonl")).into_iter().map(|answer| answer.query.to_string());
        (queries.collect::<Vec<_>>(), told.err)
    };
    let first = record("user", 1, "one") + &record("agent", 1, "reply") + &record("user", 2, "two");
    // A producer sends the last records again, as one that sends each at least once does.
    let again = record("agent", 1, "reply") + &record("user", 2, "two") + &record("user", 1, "one");
    let (queries, told) = once(&(first.clone() + &again));
    assert_eq!(queries, ["one", "one reply two"]);
    assert!(told.contains("2 turns answered, 3 sent twice"), "{told}");
    // In a new log, the first reply and the second question are edited.
    fs::rename(path.join("turns.jsonl"), path.join("turns.jsonl.1")).unwrap();
    let edited = record("agent", 1, "another") + &record("user", 2, "two, please") + &record("user", 3, "three");
    let (queries, told) = once(&edited);
    let expected = ["one", "one reply two", "one another two, please", "one another two, please three"];
    assert_eq!(queries, expected, "{told}");
    assert!(told.contains("2 turns answered"), "{told}");
    // Another log may begin with the same record.
    fs::rename(path.join("turns.jsonl"), path.join("turns.jsonl.2")).unwrap();
    let (queries, told) = once(&record("user", 3, "three"));
    assert_eq!(queries.len(), 5, "{told}");
}
