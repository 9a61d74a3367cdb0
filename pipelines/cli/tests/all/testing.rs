//! `turnflow test`: tests that pass, that fail, and that say what cannot be.

use std::fs;
use std::path::Path;

use serde_json::Value as Json;
use turnflow::CATALOG;
use turnflow_engine::plan::plan_file;

use crate::command_line::{Ended, run};
use crate::support::{model, root};

/// A pipeline with a language model that needs no file, and a test in it that holds.
const PIPELINE: &str = r#"Pipeline(
    models: { "llm": OpenAi(url: "http://127.0.0.1:9/v1", model: "none") },
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": Generate(input: "lexical", model: "llm"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
    tests: [
        Test(
            name: "the reply is the answer",
            corpora: {"docs": [Doc(id: "a", text: "The ferry leaves at noon."), Doc(id: "b", text: "A lamp.")]},
            models: {"llm": Replies(["At noon [1]."])},
            turns: [User("When does the ferry leave?")],
            expect: [Expect(status: Answered, answer: "At noon", answer_matches: "^At .*\\[1\\]\\.$", hits: ["a"], not_hits: ["b"])],
        ),
    ],
)"#;

fn directory(beside: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("p.ron"), PIPELINE).unwrap();
    fs::write(dir.path().join("docs.jsonl"), "{\"_id\": \"own\", \"text\": \"The pipeline's own lamp.\"}\n").unwrap();
    if !beside.is_empty() {
        fs::write(dir.path().join("p.test.ron"), beside).unwrap();
    }
    dir
}

fn test(path: &Path, more: &[&str]) -> Ended {
    run(path, &[&["test", "p.ron"], more].concat())
}

#[test]
fn tests_in_the_file_run_and_change_nothing() {
    let dir = directory("");
    let ended = test(dir.path(), &[]).good();
    assert!(ended.out.starts_with("ok      p.ron: the reply is the answer ("), "{ended:?}");
    assert!(ended.out.ends_with("\n1 test: 1 ok, 0 failed\n"), "{ended:?}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");

    // Tests are no part of what the pipeline says.
    let hash = || plan_file(&dir.path().join("p.ron"), &[], &CATALOG).plan.unwrap().hash;
    let with = hash();
    let without = format!("{})", PIPELINE.split("    tests:").next().unwrap());
    fs::write(dir.path().join("p.ron"), without).unwrap();
    assert_eq!(hash(), with);
    test(dir.path(), &[]).one_line(1, &["`p.ron` has no tests", "`p.test.ron`"]);
}

#[test]
fn failures_say_what_was_expected_and_what_nodes_gave() {
    let dir = directory(
        r#"[
    Test(
        name: "wrong on purpose",
        models: {"llm": Replies(["Green.", (when: "ferry", reply: "Blue.")])},
        set: {"nodes.lexical.top": 1},
        turns: [User("And the lamp?"), User("And the ferry or the lamp?")],
        expect: [
            Expect(turn: 1, answer: "Red", status: Idk),
            Expect(turn: 2, answer: "Blue.", hits: ["elsewhere"], warnings: ["without it"],
                hits_in: (node: "lexical", contains: ["own"], not: ["own"])),
        ],
    ),
    Test(
        name: "no reply is left",
        models: {"llm": Replies([])},
        turns: [User("And the lamp?")],
        expect: [Expect(answer: "x")],
    ),
]"#,
    );
    let ended = test(dir.path(), &[]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(1), ""), "{ended:?}");
    for told in [
        "FAILED  p.ron: wrong on purpose",
        "p.test.ron:8:52: turn 1, status\n    expected: Idk\n    found:    Answered: \"Green.\"",
        "p.test.ron:8:37: turn 1, answer\n    expected: \"Red\" in it\n    found:    \"Green.\"",
        "turn 2, hits\n    expected: `elsewhere`\n    found:    `own`",
        "turn 2, warnings\n    expected: a warning that contains \"without it\"",
        "turn 2, hits_in\n    expected: no `own` among those of `lexical`",
        "node outputs for turn 2:\n    query: query \"And the ferry or the lamp?\"\n    lexical: 1 hit",
        "`Replies` has no reply left for the prompt … \"",
        "Question: And the lamp?",
        "\n3 tests: 1 ok, 2 failed\n",
    ] {
        assert!(ended.out.contains(told), "{told:?} is not in\n{}", ended.out);
    }
    assert!(!ended.out.contains("turn 2, answer"), "{}", ended.out);

    let filtered = test(dir.path(), &["--filter", "the reply"]).good();
    assert!(filtered.out.ends_with("1 test: 1 ok, 0 failed, 2 skipped\n"), "{filtered:?}");
    let json = run(dir.path(), &["test", "p.test.ron", "--json"]);
    let told: Json = serde_json::from_str(&json.out).unwrap();
    assert_eq!((json.code, &told["ok"], &told["failed"]), (Some(1), &1.into(), &2.into()), "{told}");
    assert_eq!(told["tests"][1]["failures"][0]["what"], "status", "{told}");
}

#[test]
fn records_of_a_log_are_turns_by_the_mapping() {
    let test = r#"[Test(
        name: "a log",
        models: {"llm": Replies(["At noon [1]."])},
        records: ["{\"c\": 1, \"who\": \"human\", \"t\": \"The lamp?\"}", "{\"c\": 1, \"who\": \"system\"}"],
        expect: [Expect(turn: 1, query: "The lamp?", hits: ["own"])],
    )]"#;
    let dir = directory(test);
    let map = "JsonLines(path: \"turns.jsonl\", map: Jq(\"{conversation: .c, speaker: (.who | role), text: .t}\"))";
    let mapped = PIPELINE.replace("JsonLines(path: \"turns.jsonl\")", map);
    fs::write(dir.path().join("p.ron"), mapped).unwrap();
    let ended = self::test(dir.path(), &["--filter", "a log"]).good();
    assert!(ended.out.contains("1 test: 1 ok, 0 failed"), "{ended:?}");
    fs::write(dir.path().join("p.ron"), PIPELINE).unwrap();
    let ended = self::test(dir.path(), &["--filter", "a log"]);
    assert!(ended.code == Some(1) && ended.err.contains("no source of the pipeline has `map`"), "{ended:?}");
}

#[test]
fn mistakes_are_told_at_their_place() {
    let dir = directory("");
    for (line, place, message) in [
        ("Test(name: 5, turns: [User(\"x\")], expect: [Expect()])", "1:13", "`name` cannot be `5`"),
        ("Test(nam: \"x\", turns: [User(\"x\")], expect: [Expect()])", "1:7", "did you mean `name`?"),
        ("Test(name: \"x\", turns: [Agent(\"x\")], expect: [Expect()])", "1:25", "no turn is the user's"),
        ("Test(name: \"x\", turns: [Usr(\"x\")], expect: [Expect()])", "1:26", "did you mean `User`?"),
        ("Test(name: \"x\", turns: [User(\"x\")], expect: [])", "1:46", "nothing is expected"),
        ("Test(name: \"x\", turns: [User(\"x\")], expect: [Expect(turn: 2)])", "1:60", "the user has no turn 2"),
        ("Test(name: \"x\", turns: [User(\"x\")], expect: [Expect(answer_matches: \"(\")])", "1:70", "valid regular"),
        ("Test(name: \"x\", turns: [User(\"x\")], expect: [Expect(anser: \"\")])", "1:54", "did you mean `answer`?"),
        (
            "Test(name: \"x\", turns: [User(\"x\")], expect: [Expect(hits_in: (node: \"lexcal\"))])",
            "1:63",
            "did you mean `lexical`?",
        ),
        (
            "Test(name: \"x\", set: {\"nodes.lexcal.top\": 1}, turns: [User(\"x\")], expect: [Expect()])",
            "1:25",
            "did you mean `lexical`?",
        ),
        (
            "Test(name: \"x\", set: {\"nodes.lexical.top\": 0}, turns: [User(\"x\")], expect: [Expect()])",
            "1:45",
            "`top` is 0, out of range",
        ),
        (
            "Test(name: \"x\", models: {\"lm\": Replies([])}, turns: [User(\"x\")], expect: [Expect()])",
            "1:28",
            "did you mean `llm`?",
        ),
        (
            "Test(name: \"x\", models: {\"llm\": Replies(5)}, turns: [User(\"x\")], expect: [Expect()])",
            "1:42",
            "expected a list",
        ),
        (
            "Test(name: \"x\", corpora: {\"dcs\": []}, turns: [User(\"x\")], expect: [Expect()])",
            "1:29",
            "did you mean `docs`?",
        ),
        ("Test(name: \"x\", set: 5, turns: [User(\"x\")], expect: [Expect()])", "1:23", "`set` must be a map"),
        (
            "Test(name: \"x\", turns: [User(\"x\")], expect: [Expect(notes: [\"a\"], warnings: [\"b\"])])",
            "1:54",
            "`notes` is the old name of `warnings`, and both are given",
        ),
        ("5", "1:1", "tests must be a list of `Test(…)`"),
    ] {
        let text = if line == "5" { line.to_owned() } else { format!("[{line}]") };
        fs::write(dir.path().join("p.test.ron"), text).unwrap();
        let ended = test(dir.path(), &["--filter", "x"]);
        assert_eq!(ended.code, Some(1), "{line}: {ended:?}");
        assert!(ended.err.contains(message), "{line}: {}", ended.err);
        assert!(ended.err.contains(&format!("p.test.ron:{place}")), "{line}: {place}: {}", ended.err);
    }
    // `check` leaves files of tests alone, and takes a pipeline with tests.
    let checked = run(dir.path(), &["check", "p.ron", "p.test.ron"]).good();
    assert!(checked.out.contains("p.ron: no errors\np.test.ron: tests of a pipeline"), "{checked:?}");
}

/// The tests that are shipped beside pipelines hold.
#[test]
fn shipped_tests_hold() {
    if model("minilm-int8").is_none() || model("smollm2").is_none() {
        return;
    }
    let ended = run(&root(), &["test", "pipelines/hybrid.ron", "pipelines/generate.ron"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(ended.out.ends_with("5 tests: 5 ok, 0 failed\n"), "{}", ended.out);
}
