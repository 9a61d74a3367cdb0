//! Sources with a mapping: a mapping that is put right, records that none reads, messages in a row, and the commands that
//! read a log by the mapping of a pipeline.

use std::fs;
use std::path::Path;

use super::{Ended, run};
use turnflow_engine::dead_letter::DeadLetter;

use crate::support::answers;

/// A directory with a document and a pipeline whose source has these fields, and a sink.
fn directory(source: &str, sink: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("docs.jsonl"), "{\"_id\": \"a\", \"text\": \"The ferry leaves at ten.\"}\n").unwrap();
    pipeline(dir.path(), source, sink);
    dir
}

fn pipeline(dir: &Path, source: &str, sink: &str) {
    let pipeline = format!(
        r#"Pipeline(
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": {source},
        "query": FullConversation(input: "turns", last: 20),
        "found": Bm25(input: "query", corpus: "docs"),
        "answer": ExtractiveAnswer(input: "found"),
        "out": {sink},
    }},
)"#
    );
    fs::write(dir.join("p.ron"), pipeline).unwrap();
}

const FILE: &str = "JsonLinesSink(input: \"answer\", path: \"out.jsonl\")";
const SCREEN: &str = "Stdout(input: \"answer\", body: Jq(\"[.conversation_id, .turn, .query]\"))";
const BY_FILE: &str = "JsonLines(path: \"log.jsonl\", map: JqFile(\"m.jq\"))";
const RIGHT: &str = "{conversation: .c, speaker: (.s | role), text: .x}";

fn said(conversation: &str, speaker: &str, text: &str) -> String {
    format!("{{\"c\":\"{conversation}\",\"s\":\"{speaker}\",\"x\":\"{text}\"}}\n")
}

/// What was asked, as `conversation turn query`.
fn asked(dir: &Path) -> Vec<String> {
    let shown = |answer: turnflow_engine::record::AnswerRecord| {
        format!("{} {} {}", answer.conversation_id, answer.turn, answer.query)
    };
    answers(&dir.join("out.jsonl")).into_iter().map(shown).collect()
}

/// Ended with 1 and a last line that has these words.
#[track_caller]
fn failed(ended: &Ended, words: &[&str]) {
    let last = ended.err.lines().last().unwrap_or_default();
    assert!(ended.code == Some(1) && words.iter().all(|word| last.contains(word)), "{ended:?}");
}

#[test]
fn a_mapping_that_is_put_right_reads_the_log_again() {
    for (wrong, told) in [
        ("error(\"no\")", "no turn was answered: 2 records could not be read; log.jsonl:1: not mapped: no"),
        (
            "{conversation: .c, speaker: (.s | role), text: .text}",
            "no turn was answered: `turns` has read 2 records, and none gave a turn (2 without text)",
        ),
        ("empty", "none gave a turn (2 no message)"),
    ] {
        for sink in [FILE, SCREEN] {
            let dir = directory(BY_FILE, sink);
            let once = || run(dir.path(), &["run", "p.ron", "--once"]);
            fs::write(dir.path().join("log.jsonl"), said("k", "user", "When?") + &said("k", "user", "And?")).unwrap();
            fs::write(dir.path().join("m.jq"), wrong).unwrap();
            failed(&once(), &[told]);
            failed(&once(), &["no turn was answered"]);
            fs::write(dir.path().join("m.jq"), RIGHT).unwrap();
            let ended = once().good();
            if sink == FILE {
                assert_eq!(asked(dir.path()).len(), 2, "{wrong}: {}", ended.err);
                assert!(once().good().err.contains("no new turns: earlier runs answered all of them"));
                assert_eq!(asked(dir.path()).len(), 2);
            } else {
                assert_eq!(ended.out.lines().count(), 2, "{wrong}: {ended:?}");
                assert_eq!(once().good().out, ended.out, "a run with `--once` answers the whole log");
            }
            let letters = run(dir.path(), &["dead-letters", "p.ron"]).good().out;
            assert_eq!(letters, "no dead letters\n", "{wrong}");
        }
    }
}

#[test]
fn what_a_mapping_refused_is_mapped_again() {
    let dir = directory(BY_FILE, FILE);
    let odd = "{\"c\":\"k\",\"s\":\"user\",\"y\":\"And on Sundays?\"}\n";
    let log = said("k", "user", "When?") + odd + &said("k", "user", "And back?") + "no JSON\n";
    fs::write(dir.path().join("log.jsonl"), log).unwrap();
    fs::write(dir.path().join("m.jq"), RIGHT.replace(".x", "(.x // error(\"no text\"))")).unwrap();
    run(dir.path(), &["run", "p.ron", "--once"]).good();
    assert_eq!(asked(dir.path()).len(), 2);
    fs::write(dir.path().join("m.jq"), RIGHT.replace(".x", "(.x // .y)")).unwrap();
    // What is answered is not read again.
    let told = run(dir.path(), &["run", "p.ron", "--once"]).good().err;
    assert!(told.contains("the mapping has changed") && told.contains("dead-letters --retry"), "{told}");
    assert_eq!(asked(dir.path()).len(), 2);
    let told = run(dir.path(), &["dead-letters", "p.ron", "--retry"]);
    assert!(told.code == Some(1) && told.err.contains("1 turn answered; 1 failed again"), "{told:?}");
    let all = asked(dir.path());
    assert!(all.len() == 3 && all[2].starts_with("k 3 ") && all[2].ends_with("And on Sundays?"), "{all:?}");
    // It sees what was said before it.
    assert!(all[2].contains("When?") && all[2].contains("And back?"), "{all:?}");
    let letters = run(dir.path(), &["dead-letters", "p.ron"]).good().out;
    assert!(letters.starts_with("turns: 1 dead letter\n") && letters.contains("not JSON"), "{letters}");
    // Numbers go on after that.
    let log = fs::read_to_string(dir.path().join("log.jsonl")).unwrap() + &said("k", "user", "Thanks?");
    fs::write(dir.path().join("log.jsonl"), log).unwrap();
    run(dir.path(), &["run", "p.ron", "--once"]).good();
    let all = asked(dir.path());
    assert!(all.len() == 4 && all[3].starts_with("k 4 ") && all[3].contains("And on Sundays?"), "{all:?}");
}

#[test]
fn what_is_retried_sees_what_was_said_before_it_and_stands_there() {
    let dir = directory("JsonLines(path: \"log.jsonl\")", FILE);
    let path = dir.path();
    let turn = |turn: u32, speaker: &str, text: &str| {
        format!("{{\"conversation_id\":\"k\",\"turn\":{turn},\"speaker\":\"{speaker}\",\"text\":\"{text}\"}}\n")
    };
    let log = turn(1, "user", "When?") + "odd\n" + &turn(3, "user", "And back?");
    fs::write(path.join("log.jsonl"), log).unwrap();
    run(path, &["run", "p.ron", "--once", "--state", "state"]).good();
    // What the producer meant.
    let letters = path.join("state/dead-letters.jsonl");
    let letter = |record: &str, position: &str| {
        let letter = DeadLetter::new("turns", position, "an old reason", record.trim_end().as_bytes());
        serde_json::to_string(&letter).unwrap() + "\n"
    };
    let retried = letter(&turn(2, "agent", "At ten, madam."), "log.jsonl:9")
        + &letter(&turn(2, "user", "Whence?"), "log.jsonl:2");
    fs::write(&letters, retried).unwrap();
    run(path, &["dead-letters", "p.ron", "--retry", "--state", "state"]).good();
    let all = asked(path);
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all[2].starts_with("k 2 ") && all[2].contains("When?") && !all[2].contains("back"), "{all:?}");
    let log = fs::read_to_string(path.join("log.jsonl")).unwrap() + &turn(4, "user", "Thanks?");
    fs::write(path.join("log.jsonl"), log).unwrap();
    run(path, &["run", "p.ron", "--once", "--state", "state"]).good();
    let last = &asked(path)[3];
    let order = ["When?", "Whence?", "At ten, madam.", "And back?", "Thanks?"].map(|said| last.find(said));
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{last}");
}

#[test]
fn a_source_of_another_kind_says_that_it_reads_again() {
    let dir = directory(BY_FILE, FILE);
    fs::write(dir.path().join("m.jq"), "{id: .x, conversation: .c, speaker: (.s | role), text: .x}").unwrap();
    fs::write(dir.path().join("log.jsonl"), said("k", "user", "When?")).unwrap();
    run(dir.path(), &["run", "p.ron", "--once"]).good();
    pipeline(dir.path(), "Files(glob: \"l*.jsonl\", map: JqFile(\"m.jq\"))", FILE);
    for is_told in [true, false] {
        let told = run(dir.path(), &["run", "p.ron", "--once"]).good().err;
        assert_eq!(told.contains("a source of another kind"), is_told, "{told}");
    }
    assert_eq!(asked(dir.path()), ["k 1 When?"]);
}

#[test]
fn nothing_is_retried_beside_a_run() {
    let dir = directory(BY_FILE, FILE);
    fs::write(dir.path().join("m.jq"), RIGHT).unwrap();
    fs::write(dir.path().join("log.jsonl"), "odd\n").unwrap();
    run(dir.path(), &["run", "p.ron", "--once"]);
    let state = dir.path().join(".turnflow/p");
    let held = turnflow_engine::state::StateDirectory::open(&state).unwrap();
    run(dir.path(), &["dead-letters", "p.ron", "--retry"]).one_line(3, &["state", "in use"]);
    drop(held);
}

#[test]
fn another_log_is_read_alone() {
    let source = |path: &str| format!("JsonLines(path: {path:?}, map: JqFile(\"m.jq\"))");
    let dir = directory(&source("old.jsonl"), SCREEN);
    fs::write(dir.path().join("m.jq"), RIGHT).unwrap();
    for (path, conversation) in [("old.jsonl", "old"), ("new.jsonl", "new")] {
        fs::write(dir.path().join(path), said(conversation, "user", "When?")).unwrap();
        pipeline(dir.path(), &source(path), SCREEN);
        let out = run(dir.path(), &["run", "p.ron", "--once"]).good().out;
        assert_eq!(out, format!("[\"{conversation}\",1,\"When?\"]\n"));
    }
}

#[test]
fn records_that_no_turn_comes_of_are_an_error_that_names_the_preset() {
    let update = r#"{"update_id": 1, "message": {"message_id": 5, "date": 1772442900, "chat": {"id": 7, "type": "private"}, "from": {"id": 7, "is_bot": false, "first_name": "A"}, "text": "When?"}}"#;
    let other = r#"{"update_id": 0, "poll": {"id": "1"}}"#;
    for source in ["JsonLines(path: \"log.jsonl\")", "JsonLines(path: \"log.jsonl\", map: Preset(\"slack-events\"))"] {
        let dir = directory(source, FILE);
        fs::write(dir.path().join("log.jsonl"), format!("{other}\n{update}\n")).unwrap();
        failed(&run(dir.path(), &["run", "p.ron", "--once"]), &["no turn was answered", "telegram-updates"]);
    }
    // Nothing was there.
    let dir = directory(BY_FILE, FILE);
    fs::write(dir.path().join("m.jq"), RIGHT).unwrap();
    fs::write(dir.path().join("log.jsonl"), "").unwrap();
    let told = run(dir.path(), &["run", "p.ron", "--once"]).good().err;
    assert!(told.contains("no turns: the sources gave none"), "{told}");
}

#[test]
fn messages_in_a_row_all_stay_in_the_history() {
    let dir = directory(BY_FILE, FILE);
    fs::write(dir.path().join("m.jq"), RIGHT).unwrap();
    let log = [
        said("k", "user", "q1"),
        said("k", "assistant", "FIRST"),
        said("k", "assistant", "SECOND"),
        said("k", "assistant", "SECOND"),
        said("k", "user", "When does the ferry leave?"),
        said("k", "user", "q3"),
        said("k", "assistant", "LOGGED"),
        said("k", "user", "q4"),
        // Nobody but us answers here.
        said("l", "user", "When does the ferry leave?"),
        said("l", "user", "q6"),
    ];
    fs::write(dir.path().join("log.jsonl"), log.concat()).unwrap();
    let told = run(dir.path(), &["run", "p.ron", "--once"]).good().err;
    assert!(!told.contains("came again"), "{told}");
    let all = asked(dir.path());
    let expected = [
        "k 1 q1",
        "k 2 q1 FIRST SECOND SECOND When does the ferry leave?",
        "k 3 q1 FIRST SECOND SECOND When does the ferry leave? q3",
        "k 4 q1 FIRST SECOND SECOND When does the ferry leave? q3 LOGGED q4",
    ];
    let of_k: Vec<&String> = all.iter().filter(|asked| asked.starts_with("k ")).collect();
    assert_eq!(of_k, expected);
    assert!(all.iter().any(|asked| asked.starts_with("l 2 When") && asked.contains("leaves at ten")), "{all:?}");
    // A replay of the log, and of its turns, does the same.
    let turns = run(dir.path(), &["map", "--node", "turns", "p.ron", "log.jsonl"]).good().out;
    fs::write(dir.path().join("turns.jsonl"), turns).unwrap();
    for log in ["log.jsonl", "turns.jsonl"] {
        let out = run(dir.path(), &["replay", "p.ron", "--log", log]).good().out;
        let found = expected.iter().all(|expected| out.contains(&format!("\"{}\"", &expected[4..])));
        assert!(found && out.lines().count() == 6, "{log}: {out}");
    }
}

#[test]
fn commands_use_what_the_source_says_of_conversations() {
    let source = "JsonLines(path: \"log.jsonl\", map: Jq(\"{conversation: .c, speaker: (.s | role), text: .x, time: .t}\"), \
                  conversations: (burst_s: 10, with_agent: true))";
    let dir = directory(source, FILE);
    let line = |conversation: &str, speaker: &str, text: &str, time: u32| {
        format!("{{\"c\":\"{conversation}\",\"s\":\"{speaker}\",\"x\":\"{text}\",\"t\":{time}}}\n")
    };
    let log = [
        line("k", "user", "one", 100),
        line("k", "user", "two", 105),
        line("k", "assistant", "yes", 110),
        line("l", "user", "alone", 100),
    ];
    fs::write(dir.path().join("log.jsonl"), log.concat()).unwrap();
    run(dir.path(), &["run", "p.ron", "--once"]).good();
    assert_eq!(asked(dir.path()), ["k 1 one\ntwo"]);
    // Once an agent comes, the first question of the conversation is there, too.
    let more = log.concat() + &line("l", "assistant", "yes?", 120) + &line("l", "user", "at last", 130);
    fs::write(dir.path().join("log.jsonl"), more).unwrap();
    run(dir.path(), &["run", "p.ron", "--once"]).good();
    assert_eq!(asked(dir.path())[1..], ["l 1 alone", "l 2 alone yes? at last"]);
    fs::write(dir.path().join("log.jsonl"), log.concat()).unwrap();
    let mapped = run(dir.path(), &["map", "--node", "turns", "p.ron", "log.jsonl"]).good().out;
    assert!(mapped.lines().count() == 2 && mapped.contains("one\\ntwo"), "{mapped}");
    let records: Vec<String> = log.iter().map(|line| format!("r#\"{}\"#", line.trim_end())).collect();
    let test = format!(
        "[Test(name: \"burst\", records: [{}], expect: [Expect(turn: 1, query: \"one\\ntwo\")])]",
        records.join(", ")
    );
    fs::write(dir.path().join("p.test.ron"), test).unwrap();
    let tested = run(dir.path(), &["test", "p.ron"]).good().out;
    assert!(tested.contains("1 ok"), "{tested}");
    let measured = run(dir.path(), &["bench", "p.ron"]).good().out;
    assert!(measured.contains("turns: 1 in "), "{measured}");
    // Without a mapping, there is nothing that it could say.
    pipeline(dir.path(), "JsonLines(path: \"log.jsonl\", conversations: (burst_s: 10))", FILE);
    let wrong = run(dir.path(), &["check", "p.ron"]);
    assert!(wrong.code == Some(1) && wrong.out.contains("give a `map`, or leave `conversations` out"), "{}", wrong.out);
}

#[test]
fn the_query_of_a_database_is_used_to_try_its_mapping() {
    let source = "Sqlite(path: \"log.db\", query: \"SELECT rowid AS n, * FROM said WHERE kind = 'text'\", cursor: \"n\", \
                  map: Jq(\"{conversation: .chat, speaker: (.who | role), text: .body}\"))";
    let dir = directory(source, FILE);
    let database = rusqlite::Connection::open(dir.path().join("log.db")).unwrap();
    let rows = "CREATE TABLE said (chat, who, body, kind);
        INSERT INTO said VALUES ('k', 'user', 'When?', 'text'), ('k', 'user', '', 'typing'), ('k', 'assistant', 'At ten.', 'text');";
    database.execute_batch(rows).unwrap();
    let mapped = run(dir.path(), &["map", "--node", "turns", "p.ron", "log.db"]).good();
    assert_eq!(mapped.out.lines().count(), 2, "{mapped:?}");
    assert!(mapped.err.starts_with("2 records: 2 turns"), "{}", mapped.err);
}

/// The reasons of the dead letters.
fn letters(dir: &Path) -> Vec<String> {
    let told = run(dir, &["dead-letters", "p.ron", "--json"]).good().out;
    let reason = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["reason"].to_string();
    told.lines().map(reason).collect()
}

const STRICT: &str = "{conversation: .c, speaker: (.s | role), text: (.x // error(\"no text\"))}";
const LENIENT: &str = "{conversation: .c, speaker: (.s | role), text: (.x // .y)}";

fn odd(conversation: &str, text: &str) -> String {
    said(conversation, "user", text).replace("\"x\"", "\"y\"")
}

#[test]
fn letters_of_records_that_are_gone_stay_and_are_mapped_once() {
    let dir = directory(BY_FILE, FILE);
    let path = dir.path();
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    let once = || run(path, &["run", "p.ron", "--once"]);
    let retry = || run(path, &["dead-letters", "p.ron", "--retry"]);
    write("log.jsonl", &(odd("k", "q1") + &odd("k", "q2")));
    write("m.jq", STRICT);
    failed(&once(), &["2 records could not be read"]);
    // The log is rotated before the mapping is put right.
    fs::rename(path.join("log.jsonl"), path.join("elsewhere")).unwrap();
    write("log.jsonl", &odd("k", "q3"));
    write("m.jq", LENIENT);
    once().good();
    assert_eq!(asked(path), ["k 1 q3"]);
    assert_eq!(letters(path).len(), 1, "both have one reason");
    retry().good();
    assert!(letters(path).is_empty());
    once().good();
    let all = asked(path);
    assert_eq!(all.len(), 3, "{all:?}");
}

#[test]
fn what_is_mapped_again_by_hand_is_not_answered_twice() {
    let dir = directory(BY_FILE, FILE);
    let path = dir.path();
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    write("log.jsonl", &(odd("k", "q1") + &odd("k", "q2")));
    write("m.jq", STRICT);
    failed(&run(path, &["run", "p.ron", "--once"]), &["2 records could not be read"]);
    // A program that leaves them out makes no answer, so they stay.
    write("m.jq", "empty");
    let told = run(path, &["dead-letters", "p.ron", "--retry"]);
    assert!(told.code == Some(1) && told.err.contains("0 turns answered; 2 failed again"), "{told:?}");
    assert!(letters(path).iter().all(|reason| reason.contains("no turn comes of it")));
    write("m.jq", LENIENT);
    run(path, &["dead-letters", "p.ron", "--retry"]).good();
    assert_eq!(asked(path), ["k 1 q1", "k 2 q1 q2"]);
    run(path, &["run", "p.ron", "--once"]).good();
    assert_eq!(asked(path).len(), 2, "{:?}", asked(path));
}

#[test]
fn a_source_without_a_turn_is_told_beside_one_that_has_some_and_a_folder_is_read_again() {
    let files = "Files(glob: \"logs/*.jsonl\")";
    let dir = directory(files, FILE);
    let path = dir.path();
    fs::create_dir(path.join("logs")).unwrap();
    fs::write(path.join("logs/a.jsonl"), said("k", "user", "q1") + &said("k", "user", "q2")).unwrap();
    failed(&run(path, &["run", "p.ron", "--once"]), &["2 records could not be read"]);
    fs::write(path.join("m.jq"), LENIENT).unwrap();
    pipeline(path, "Files(glob: \"logs/*.jsonl\", map: JqFile(\"m.jq\"))", FILE);
    run(path, &["run", "p.ron", "--once"]).good();
    assert_eq!(asked(path).len(), 2);
    assert!(letters(path).is_empty(), "{:?}", letters(path));
    let second = format!(
        "{BY_FILE}, \"more\": JsonLines(path: \"more.jsonl\", map: Jq(\"error(\\\"no\\\")\")), \"other\": LastTurn(input: \"more\"), \
         \"screen\": JsonLinesSink(input: \"other\", path: \"more.out\")"
    );
    fs::write(path.join("log.jsonl"), said("n", "user", "q3")).unwrap();
    fs::write(path.join("more.jsonl"), "{}\n").unwrap();
    pipeline(path, &second, FILE);
    for _ in 0..2 {
        failed(&run(path, &["run", "p.ron", "--once"]), &["1 record"]);
    }
}
