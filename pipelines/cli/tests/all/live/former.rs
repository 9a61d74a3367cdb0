//! Sinks that get another file, and logs that are rotated, around a kill: nothing is answered twice, and nothing is lost.

use std::fs;

use turnflow_engine::connector::Mode;
use turnflow_engine::run::{Engine, Options};

use super::gates::{add, copy_files, end, gate, line, options, plan_of, plan_to, plan_with};
use crate::support::{answers, until};

/// A reload gives the sink another file while a turn is answered; its answer goes to the old file,
/// and the process is killed before a checkpoint knows of it.
#[test]
fn an_answer_in_the_former_file_is_not_written_to_the_new_one() {
    for (number, second) in ["two.jsonl", "other/two.jsonl"].into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("other")).unwrap();
        let (state, saved) = (dir.join("state"), dir.join("saved"));
        let name = format!("former {number}");
        let log: String = (0..3).map(|id| line(&format!("c{id}"), 1, "user", "q")).collect();
        fs::write(dir.join("turns.jsonl"), log).unwrap();
        let follow = || Options { turns: Mode::Follow, ..options(Some(&state), 1) };
        let engine = Engine::start(plan_to(dir, &name, "max_in_flight: 1", "one.jsonl", ""), follow()).unwrap();
        gate(&name).add_permits(2);
        until("two answers", || engine.delivered() == 2 && engine.in_flight() == 1);
        // A reload writes a checkpoint, which covers them.
        let other = plan_to(dir, &name, "max_in_flight: 1, idle_s: 1000", "one.jsonl", "");
        engine.reload(other, &|| false).unwrap();
        engine.reload(plan_to(dir, &name, "max_in_flight: 1", second, ""), &|| false).unwrap();
        // What a kill after the answer leaves: the answer, and the state from before it.
        copy_files(&state, &saved);
        gate(&name).add_permits(1);
        until("the third answer", || answers(&dir.join("one.jsonl")).len() == 3);
        engine.abort();
        drop(engine);
        fs::remove_dir_all(&state).unwrap();
        fs::rename(&saved, &state).unwrap();
        let engine = Engine::start(plan_to(dir, &name, "max_in_flight: 64", second, ""), follow()).unwrap();
        add(dir, &line("c9", 1, "user", "q"));
        gate(&name).add_permits(10);
        until("the new turn", || answers(&dir.join(second)).iter().any(|answer| &*answer.conversation_id == "c9"));
        engine.stop();
        engine.join().unwrap();
        assert_eq!(answers(&dir.join("one.jsonl")).len(), 3);
        assert_eq!(answers(&dir.join(second)).len(), 1, "only the new turn");
        // And once a checkpoint covers all of it, the former file is not read any more.
        fs::remove_file(dir.join("one.jsonl")).unwrap();
        let engine =
            Engine::start(plan_to(dir, &name, "max_in_flight: 64", second, ""), options(Some(&state), 1)).unwrap();
        end(engine);
        assert_eq!(answers(&dir.join(second)).len(), 1);
    }
}

/// Each restart after a kill gives the sink another file, and each process is killed before its first checkpoint.
#[test]
fn restarts_that_change_the_file_again_and_again_answer_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (state, saved) = (dir.join("state"), dir.join("saved"));
    let name = "again and again";
    gate(name).add_permits(1000);
    let log: String = (0..3).map(|id| line(&format!("c{id}"), 1, "user", "q")).collect();
    fs::write(dir.join("turns.jsonl"), log).unwrap();
    let plan = |file: &str| plan_to(dir, name, "max_in_flight: 4", file, "");
    end(Engine::start(plan("0.jsonl"), options(Some(&state), 1)).unwrap());
    let files = ["1.jsonl", "2.jsonl", "3.jsonl", "0.jsonl", "4.jsonl"];
    for (at, file) in files.iter().enumerate() {
        let engine = Engine::start(plan(file), Options { turns: Mode::Follow, ..options(Some(&state), 1) }).unwrap();
        copy_files(&state, &saved);
        let asked = format!("c{}", at + 10);
        add(dir, &line(&asked, 1, "user", "q"));
        until("the new turn", || answers(&dir.join(file)).iter().any(|answer| *answer.conversation_id == *asked));
        engine.abort();
        drop(engine);
        fs::remove_dir_all(&state).unwrap();
        fs::rename(&saved, &state).unwrap();
    }
    end(Engine::start(plan("5.jsonl"), options(Some(&state), 1)).unwrap());
    let mut all: Vec<String> = Vec::new();
    for file in files.iter().chain(&["5.jsonl"]) {
        all.extend(answers(&dir.join(file)).iter().map(|answer| answer.conversation_id.to_string()));
    }
    all.sort();
    assert_eq!(all, ["c0", "c1", "c10", "c11", "c12", "c13", "c14", "c2"]);
}

/// All turns are answered when a reload sends the answers to another file, or puts a sink with another name and file
/// in the place of the old one; the process is killed at once.
#[test]
fn a_kill_right_after_an_idle_reload_answers_nothing_again() {
    for (number, (second, renamed)) in
        [("other/two.jsonl", false), ("two.jsonl", true), ("other/two.jsonl", true)].into_iter().enumerate()
    {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("other")).unwrap();
        let (state, saved) = (dir.join("state"), dir.join("saved"));
        let name = format!("idle {number}");
        gate(&name).add_permits(100);
        let log: String = (0..10).map(|id| line(&format!("c{id}"), 1, "user", "q")).collect();
        fs::write(dir.join("turns.jsonl"), log).unwrap();
        let to = |file: &str, is_renamed: bool| {
            let id = if is_renamed { "renamed" } else { "out" };
            plan_of(dir, &name, "max_in_flight: 8", id, file, "")
        };
        let follow = || Options { turns: Mode::Follow, ..options(Some(&state), 1) };
        let engine = Engine::start(to("one.jsonl", false), follow()).unwrap();
        until("the answers", || answers(&dir.join("one.jsonl")).len() == 10);
        // A reload writes a checkpoint, which covers them.
        let other = plan_of(dir, &name, "max_in_flight: 9", "out", "one.jsonl", "");
        engine.reload(other, &|| false).unwrap();
        engine.reload(to(second, renamed), &|| false).unwrap();
        copy_files(&state, &saved);
        engine.abort();
        drop(engine);
        fs::remove_dir_all(&state).unwrap();
        fs::rename(&saved, &state).unwrap();
        add(dir, &line("new", 1, "user", "q"));
        let engine = Engine::start(to(second, renamed), follow()).unwrap();
        let there = || answers(&dir.join(second));
        until("the new turn", || there().iter().any(|answer| &*answer.conversation_id == "new"));
        engine.stop();
        engine.join().unwrap();
        assert_eq!((answers(&dir.join("one.jsonl")).len(), there().len()), (10, 1), "{second} {renamed}");
    }
}

/// A log is rotated and begins with the record that it began with before, so that turn, place and text are the same: it is
/// the same record, and those after it are answered.
#[test]
fn a_turn_like_the_first_of_a_rotated_log_is_the_same_record() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let state = dir.join("state");
    let name = "like the first";
    gate(name).add_permits(100);
    let ping = line("ping", 1, "user", "q");
    fs::write(dir.join("turns.jsonl"), ping.clone() + &line("c1", 1, "user", "q")).unwrap();
    let follow = || Options { turns: Mode::Follow, ..options(Some(&state), 1) };
    let there = || answers(&dir.join("answers.jsonl"));
    let engine = Engine::start(plan_with(dir, name, "max_in_flight: 8"), follow()).unwrap();
    until("two answers", || there().len() == 2);
    engine.stop();
    engine.join().unwrap();
    // The checkpoint is lost, so the answers are found in the file, not by a mark.
    fs::remove_dir_all(&state).unwrap();
    let engine = Engine::start(plan_with(dir, name, "max_in_flight: 8"), follow()).unwrap();
    add(dir, &line("c2", 1, "user", "q"));
    until("the third answer", || there().len() == 3 && engine.in_flight() == 0);
    // A reload writes a checkpoint; with it, the replay is over.
    engine.reload(plan_with(dir, name, "max_in_flight: 9"), &|| false).unwrap();
    fs::rename(dir.join("turns.jsonl"), dir.join("turns.jsonl.1")).unwrap();
    fs::write(dir.join("turns.jsonl"), ping + &line("c3", 1, "user", "q")).unwrap();
    until("the answer after it", || there().iter().any(|answer| &*answer.conversation_id == "c3"));
    assert_eq!(engine.repeated(), 1);
    engine.stop();
    engine.join().unwrap();
    assert_eq!(there().len(), 4);
}
