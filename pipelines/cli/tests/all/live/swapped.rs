//! Sources that return, sinks that get each other's files, and reloads while a sink accepts nothing.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use turnflow_engine::connector::Mode;
use turnflow_engine::plan::Plan;
use turnflow_engine::run::{Engine, Options, ReloadError};

use super::gates::{add, copy_files, gate, line, options, plan_nodes, plan_to};
use crate::support::{answers, until};

fn follow(state: &Path) -> Options {
    Options { turns: Mode::Follow, ..options(Some(state), 1) }
}

/// What a kill leaves: everything that was written to other files, and this state.
fn kill(engine: Engine, state: &Path, saved: &Path) {
    engine.abort();
    drop(engine);
    fs::remove_dir_all(state).unwrap();
    fs::rename(saved, state).unwrap();
}

fn conversations(file: &Path) -> Vec<String> {
    answers(file).iter().map(|answer| answer.conversation_id.to_string()).collect()
}

/// A process is killed before its last checkpoint. The next one starts without one of the sources, and a reload adds it
/// again: to a sink that is new, or to one that has got answers of another source meanwhile.
#[test]
fn a_source_that_returns_answers_nothing_twice() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (state, saved) = (dir.join("state"), dir.join("saved"));
        let name = format!("returns {is_shared}");
        gate(&name).add_permits(2);
        fs::write(dir.join("turns.jsonl"), "").unwrap();
        let log: String = (0..3).map(|id| line(&format!("c{id}"), 1, "user", "q")).collect();
        fs::write(dir.join("more.jsonl"), log).unwrap();
        let nodes = |of_second: &str| {
            format!(
                r#""turns": JsonLines(path: "turns.jsonl"),
                "answer": Gate(input: "turns", name: "{name}"),
                "out": JsonLinesSink(input: "answer", path: "one.jsonl"),
                {of_second}"#
            )
        };
        let second = |source: &str| {
            format!(
                r#""second": Gate(input: "{source}", name: "{name}"),
                "out2": JsonLinesSink(input: "second", path: "two.jsonl"),"#
            )
        };
        let more = r#""more": JsonLines(path: "more.jsonl"),"#;
        let both = |most: &str| plan_nodes(dir, most, &nodes(&(more.to_owned() + &second("more"))));
        let engine = Engine::start(both("max_in_flight: 1"), follow(&state)).unwrap();
        until("two answers", || engine.delivered() == 2 && engine.in_flight() == 1);
        // A reload writes a checkpoint, which covers them.
        engine.reload(both("max_in_flight: 1, idle_s: 1000"), &|| false).unwrap();
        copy_files(&state, &saved);
        gate(&name).add_permits(1);
        let two = dir.join("two.jsonl");
        until("the third answer", || answers(&two).len() == 3);
        kill(engine, &state, &saved);

        let without = if is_shared { nodes(&second("turns")) } else { nodes("") };
        let engine = Engine::start(plan_nodes(dir, "max_in_flight: 8", &without), follow(&state)).unwrap();
        gate(&name).add_permits(100);
        add(dir, &line("new", 1, "user", "q"));
        until("the new turn", || engine.delivered() == 1 && engine.in_flight() == 0);
        engine.reload(both("max_in_flight: 8"), &|| false).unwrap();
        add_to(&dir.join("more.jsonl"), &line("c3", 1, "user", "q"));
        until("the turn after those that are known", || conversations(&two).contains(&"c3".to_owned()));
        engine.stop();
        engine.join().unwrap();
        let mut all = conversations(&two);
        all.sort();
        let expected: &[&str] = if is_shared { &["c0", "c1", "c2", "c3", "new"] } else { &["c0", "c1", "c2", "c3"] };
        assert_eq!(all, expected, "shared: {is_shared}");
    }
}

fn add_to(log: &Path, more: &str) {
    let mut log = fs::OpenOptions::new().append(true).open(log).unwrap();
    std::io::Write::write_all(&mut log, more.as_bytes()).unwrap();
}

/// A plan with two sinks.
fn two_sinks(dir: &Path, name: &str, most: &str, first: &str, second: &str) -> Plan {
    let second = format!(r#""out2": JsonLinesSink(input: "answer", path: "{second}"),"#);
    plan_to(dir, name, most, first, &second)
}

/// After a kill, nobody can tell which of two sinks has written the answers that no checkpoint covers. The start says so;
/// with the former files, it goes on, and then the files can be changed.
#[test]
fn sinks_that_swap_their_files_after_a_kill_are_refused_until_a_checkpoint_covers_all() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (state, saved) = (dir.join("state"), dir.join("saved"));
    let name = "swapped";
    gate(name).add_permits(2);
    fs::write(dir.join("turns.jsonl"), (0..3).map(|id| line(&format!("c{id}"), 1, "user", "q")).collect::<String>())
        .unwrap();
    let plan = |most: &str, first: &str, second: &str| two_sinks(dir, name, most, first, second);
    let engine = Engine::start(plan("max_in_flight: 1", "a.jsonl", "b.jsonl"), follow(&state)).unwrap();
    until("two answers", || engine.delivered() == 2 && engine.in_flight() == 1);
    engine.reload(plan("max_in_flight: 1, idle_s: 1000", "a.jsonl", "b.jsonl"), &|| false).unwrap();
    // A reload cannot swap them either, but it can move them one after the other.
    let refused = engine.reload(plan("max_in_flight: 1", "b.jsonl", "a.jsonl"), &|| false).unwrap_err().to_string();
    assert!(refused.contains("first give `out"), "{refused}");
    copy_files(&state, &saved);
    gate(name).add_permits(1);
    until("the third answers", || answers(&dir.join("a.jsonl")).len() == 3 && answers(&dir.join("b.jsonl")).len() == 3);
    kill(engine, &state, &saved);

    let refused = Engine::start(plan("max_in_flight: 8", "b.jsonl", "a.jsonl"), follow(&state)).err().unwrap();
    assert!(refused.to_string().contains("start once with the sinks' former files"), "{refused}");
    gate(name).add_permits(100);
    let ends = |first: &str, second: &str| {
        let engine = Engine::start(plan("max_in_flight: 8", first, second), options(Some(&state), 1)).unwrap();
        until("the end", || engine.has_ended());
        engine.join().unwrap();
    };
    ends("a.jsonl", "b.jsonl");
    ends("b.jsonl", "a.jsonl");
    add(dir, &line("c3", 1, "user", "q"));
    ends("b.jsonl", "a.jsonl");
    for file in ["a.jsonl", "b.jsonl"] {
        assert_eq!(conversations(&dir.join(file)), ["c0", "c1", "c2", "c3"], "{file}");
    }
}

/// A source cannot end while a sink accepts nothing. The reload says so and waits, and the old plan goes on; a further
/// change cancels it.
#[test]
fn a_reload_that_waits_for_a_sink_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let name = "full";
    gate(name).add_permits(100);
    fs::write(dir.join("turns.jsonl"), line("c0", 1, "user", "q")).unwrap();
    let nodes = |source: &str, file: &str| {
        format!(
            r#""turns": JsonLines(path: "turns.jsonl"{source}), "answer": Gate(input: "turns", name: "{name}"),
            "out": JsonLinesSink(input: "answer", path: "{file}"),"#
        )
    };
    let plan = |source: &str, file: &str| plan_nodes(dir, "max_in_flight: 8", &nodes(source, file));
    let engine = Engine::start(plan("", "/dev/full"), follow(&dir.join("state"))).unwrap();
    until("an error of the sink", || engine.sinks().iter().any(|sink| sink.fault.is_some()));
    let asked = AtomicUsize::new(0);
    let give_up = || asked.fetch_add(1, Ordering::Relaxed) > 100;
    let reloaded = engine.reload(plan(", max_line_bytes: 1000", "/dev/full"), &give_up);
    assert!(matches!(reloaded, Err(ReloadError::GivenUp)), "{reloaded:?}");
    add(dir, &line("c1", 1, "user", "q"));
    until("the old source to go on", || engine.sinks().iter().any(|sink| sink.pending == 2));
    // A change of the sink alone does not end the source; later turns go to the new file.
    engine.reload(plan("", "answers.jsonl"), &|| false).unwrap();
    add(dir, &line("c2", 1, "user", "q"));
    until("an answer in the new file", || conversations(&dir.join("answers.jsonl")).contains(&"c2".to_owned()));
    engine.abort();
}
