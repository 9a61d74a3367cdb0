//! Restarts: what was answered stays answered, and conversations go on.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use turnflow_engine::connector::Mode;
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::run::{Engine, Options};

use crate::support::{answers, plan_of, until};

pub const ANSWERING: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": UserTurns(input: "turns", last: 3),
        "hits": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "hits"),
        "final": IdkNormalize(input: "answer"),
        "out": JsonLinesSink(input: "final", path: "answers.jsonl"),
    },
)"#;

/// A directory with a document, in which the pipeline above runs.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("docs")).unwrap();
    fs::write(dir.path().join("docs/a.md"), "The ferry leaves the harbour at noon.").unwrap();
    dir
}

fn say(dir: &Path, conversation: &str, turn: u32, text: &str) {
    let mut log = fs::OpenOptions::new().create(true).append(true).open(dir.join("turns.jsonl")).unwrap();
    let record = serde_json::json!({
        "conversation_id": conversation, "turn": turn, "speaker": "user", "text": text,
    });
    writeln!(log, "{record}").unwrap();
}

fn start(dir: &Path, turns: Mode) -> Engine {
    let options = Options { state: Some(dir.join("state")), turns, corpora: turns, ..Options::default() };
    Engine::start(plan_of(dir, ANSWERING), options).unwrap()
}

/// Runs until all that is there is answered; gives how many turns were.
fn once(dir: &Path) -> usize {
    let engine = start(dir, Mode::Once);
    until("the end", || engine.has_ended());
    let delivered = engine.delivered();
    engine.join().unwrap();
    delivered
}

fn queries(dir: &Path) -> Vec<String> {
    answers(&dir.join("answers.jsonl")).iter().map(|answer| answer.query.to_string()).collect()
}

#[test]
fn a_restart_answers_only_what_is_new_and_knows_the_conversation() {
    let dir = place();
    let dir = dir.path();
    say(dir, "c", 1, "ferry");
    say(dir, "d", 1, "gull");
    assert_eq!(once(dir), 2);
    assert_eq!(once(dir), 0, "nothing is answered twice");
    say(dir, "c", 2, "noon");
    assert_eq!(once(dir), 1);
    assert_eq!(queries(dir)[2], "ferry noon", "the history has outlived the process");
}

/// As a kill between the answer and the checkpoint leaves it: the file knows more.
#[test]
fn what_the_file_has_is_not_answered_again_even_without_a_checkpoint() {
    let dir = place();
    let dir = dir.path();
    for turn in 1..=3 {
        say(dir, "c", turn, &format!("ferry {turn}"));
    }
    assert_eq!(once(dir), 3);
    fs::remove_file(dir.join("state/turns.redb")).unwrap();
    say(dir, "c", 4, "harbour");
    let before: Vec<AnswerRecord> = answers(&dir.join("answers.jsonl"));
    assert_eq!(once(dir), 1);
    let after = answers(&dir.join("answers.jsonl"));
    assert_eq!(after[..3], before[..]);
    assert_eq!(&*after[3].query, "ferry 2 ferry 3 harbour");
    let mut keys: Vec<_> = after.iter().map(|answer| answer.key.clone()).collect();
    keys.dedup();
    assert_eq!(keys.len(), 4);
}

/// Torn by a crash in the middle of a write: the answer is not there, so it is given again.
#[test]
fn an_answer_that_was_cut_off_is_given_again() {
    let dir = place();
    let dir = dir.path();
    say(dir, "c", 1, "ferry");
    say(dir, "c", 2, "noon");
    assert_eq!(once(dir), 2);
    let whole = fs::read(dir.join("answers.jsonl")).unwrap();
    fs::write(dir.join("answers.jsonl"), &whole[..whole.len() - 20]).unwrap();
    let again = once(dir);
    assert!((1..=2).contains(&again), "{again}");
    let after = answers(&dir.join("answers.jsonl"));
    assert_eq!(after.iter().map(|answer| answer.turn).collect::<Vec<_>>(), [1, 2]);
}

/// Rotated away, and nothing says where to look: the state is lost, or was never written.
#[test]
fn answers_that_were_rotated_away_are_found_without_a_checkpoint() {
    let dir = place();
    let dir = dir.path();
    for turn in 1..=50 {
        say(dir, &format!("c{}", turn % 7), turn, "ferry");
    }
    assert_eq!(once(dir), 50);
    for rotated in ["answers.jsonl.1", "answers.jsonl-20260101"] {
        fs::rename(dir.join("answers.jsonl"), dir.join(rotated)).unwrap();
        fs::remove_file(dir.join("state/turns.redb")).unwrap();
        assert_eq!(once(dir), 0, "{rotated}");
        assert!(answers(&dir.join("answers.jsonl")).is_empty());
    }
    say(dir, "c1", 51, "noon");
    assert_eq!(once(dir), 1);
}

const SECOND: &str = r#""second": JsonLinesSink(input: "final", path: "answers.jsonl.second"),
        "out": "#;

/// Every log begins with the same record, and both files are rotated while nothing runs. Unless the conversation has
/// expired, it is the same record; those after it are answered.
#[test]
fn a_record_that_every_log_begins_with_is_answered_once() {
    let dir = place();
    let dir = dir.path();
    for day in 1..=4 {
        for file in ["turns.jsonl", "answers.jsonl"] {
            for number in (0..day - 1).rev() {
                let name = |number| if number == 0 { file.to_owned() } else { format!("{file}.{number}") };
                fs::rename(dir.join(name(number)), dir.join(name(number + 1))).unwrap();
            }
        }
        say(dir, "ping", 1, "ferry?");
        say(dir, &format!("day {day}"), 1, "noon?");
        let expected: &[String] =
            if day == 1 { &["ping".to_owned(), "day 1".to_owned()] } else { &[format!("day {day}")] };
        assert_eq!(once(dir), expected.len(), "day {day}");
        assert_eq!(once(dir), 0, "day {day}");
        let answers = answers(&dir.join("answers.jsonl"));
        let conversations: Vec<_> = answers.iter().map(|answer| answer.conversation_id.to_string()).collect();
        assert_eq!(conversations, expected);
    }
}

/// A sink that is new gets what comes; the other has nothing twice, wherever it was rotated to.
#[test]
fn a_sink_that_is_new_is_no_reason_to_answer_again() {
    let dir = place();
    let dir = dir.path();
    for turn in 1..=50 {
        say(dir, "c", turn, "ferry");
    }
    assert_eq!(once(dir), 50);
    fs::rename(dir.join("answers.jsonl"), dir.join("answers.jsonl.1")).unwrap();
    let two = ANSWERING.replace("\"out\": ", SECOND);
    say(dir, "c", 51, "noon");
    for expected in [1, 0] {
        let options =
            Options { state: Some(dir.join("state")), turns: Mode::Once, corpora: Mode::Once, ..Options::default() };
        let engine = Engine::start(plan_of(dir, &two), options).unwrap();
        until("the end", || engine.has_ended());
        assert_eq!((engine.delivered(), engine.recovered()), (expected, 0));
        engine.join().unwrap();
    }
    for file in ["answers.jsonl", "answers.jsonl.second"] {
        let turns: Vec<u32> = answers(&dir.join(file)).iter().map(|answer| answer.turn).collect();
        assert_eq!(turns, [51], "{file}");
    }
    assert_eq!(answers(&dir.join("answers.jsonl.1")).len(), 50);
}

#[test]
fn two_runs_do_not_write_one_file() {
    let dir = place();
    let dir = dir.path();
    say(dir, "c", 1, "ferry");
    let engine = start(dir, Mode::Follow);
    until("the answer", || engine.delivered() == 1);
    let other = Options { state: Some(dir.join("other")), ..Options::default() };
    let told = Engine::start(plan_of(dir, ANSWERING), other.clone()).err().unwrap().to_string();
    assert!(told.contains("is written by another run of turnflow: stop that one, or give this one a"), "{told}");
    // A reload has a new sink for the same file beside the old one.
    let changed = plan_of(dir, &ANSWERING.replace("answers.jsonl\"", "answers.jsonl\", mode: Once"));
    engine.reload(changed, &|| false).unwrap();
    engine.stop();
    engine.join().unwrap();
    let engine = Engine::start(plan_of(dir, ANSWERING), other).unwrap();
    engine.stop();
    engine.join().unwrap();
    assert_eq!(answers(&dir.join("answers.jsonl")).len(), 1);
}

#[test]
fn answers_that_are_gone_are_given_again() {
    let dir = place();
    let dir = dir.path();
    say(dir, "c", 1, "ferry");
    assert_eq!(once(dir), 1);
    fs::remove_file(dir.join("answers.jsonl")).unwrap();
    assert_eq!(once(dir), 1);
    assert_eq!(queries(dir), ["ferry"], "and the conversation begins anew with it");
}

/// The log is followed, the process ends in the middle, and the log is rotated meanwhile.
#[test]
fn a_log_that_was_rotated_while_nothing_ran_is_read_to_its_end() {
    let dir = place();
    let dir = dir.path();
    say(dir, "c", 1, "ferry");
    let engine = start(dir, Mode::Follow);
    until("the answer", || engine.delivered() == 1);
    engine.stop();
    engine.join().unwrap();
    say(dir, "c", 2, "noon");
    fs::rename(dir.join("turns.jsonl"), dir.join("turns.jsonl.1")).unwrap();
    say(dir, "c", 3, "harbour");
    let engine = start(dir, Mode::Follow);
    until("the answers", || engine.delivered() == 2);
    engine.stop();
    engine.join().unwrap();
    assert_eq!(queries(dir), ["ferry", "ferry noon", "ferry noon harbour"]);
}

/// A kill lost the last checkpoint, and the next process ended before it could read the log again.
#[test]
fn a_process_that_reads_nothing_again_forgets_nothing() {
    let dir = place();
    let dir = dir.path();
    let (kept, log) = (dir.join("state/turns.redb"), dir.join("turns.jsonl"));
    say(dir, "c", 1, "ferry");
    assert_eq!(once(dir), 1);
    fs::copy(&kept, dir.join("before")).unwrap();
    say(dir, "c", 2, "noon");
    say(dir, "d", 1, "harbour");
    assert_eq!(once(dir), 2);
    fs::copy(dir.join("before"), &kept).unwrap();
    for _ in 0..2 {
        // As where the log's volume is not mounted yet.
        fs::create_dir_all(dir.join("hidden")).unwrap();
        fs::rename(&log, dir.join("hidden/turns")).unwrap();
        let engine = start(dir, Mode::Follow);
        engine.wait_ready().unwrap();
        engine.stop();
        engine.join().unwrap();
        fs::rename(dir.join("hidden/turns"), &log).unwrap();
    }
    assert_eq!(once(dir), 0, "all of it has been answered");
    assert_eq!(queries(dir).len(), 3);
    // And once it has been read again, what is looked for begins behind it.
    say(dir, "d", 2, "noon");
    assert_eq!(once(dir), 1);
    assert_eq!(queries(dir)[3], "harbour noon");
}

/// Only the sink that was there at the start knows what its file has: one that takes its place
/// before the log has been read again would get all of it a second time.
#[test]
fn a_reload_that_changes_a_sink_waits_until_the_log_is_read_again() {
    let dir = place();
    let dir = dir.path();
    let (log, hidden) = (dir.join("turns.jsonl"), dir.join("hidden"));
    for turn in 1..=3 {
        say(dir, "c", turn, "ferry");
    }
    assert_eq!(once(dir), 3);
    fs::remove_file(dir.join("state/turns.redb")).unwrap();
    // Nothing is read again before the log is there.
    fs::rename(&log, &hidden).unwrap();
    let engine = start(dir, Mode::Follow);
    engine.wait_ready().unwrap();
    let asked = AtomicUsize::new(0);
    let give_up = || asked.fetch_add(1, Ordering::Relaxed) > 100_000;
    let changed = plan_of(dir, &ANSWERING.replace("answers.jsonl\"", "answers.jsonl\", mode: Once"));
    std::thread::scope(|scope| {
        let reload = scope.spawn(|| engine.reload(changed, &give_up));
        until("the reload to wait", || reload.is_finished() || asked.load(Ordering::Relaxed) > 20);
        assert!(!reload.is_finished());
        fs::rename(&hidden, &log).unwrap();
        reload.join().unwrap().unwrap();
    });
    say(dir, "c", 4, "noon");
    until("the new turn", || engine.delivered() == 1);
    assert_eq!(engine.recovered(), 3);
    engine.stop();
    engine.join().unwrap();
    let turns: Vec<u32> = answers(&dir.join("answers.jsonl")).iter().map(|answer| answer.turn).collect();
    assert_eq!(turns, [1, 2, 3, 4]);
}
