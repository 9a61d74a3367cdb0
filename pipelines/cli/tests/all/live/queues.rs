//! What waits is bounded, and one conversation holds up no other.

use std::fs;
use std::time::{Duration, Instant};

use turnflow_engine::connector::Mode;
use turnflow_engine::run::{Engine, Options};

use super::gates::{end, gate, line, options, plan_to, plan_with, took};
use crate::support::{answers, until};

#[test]
fn a_busy_conversation_does_not_hold_up_the_others() {
    for workers in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let log: String = (1..=3000)
            .map(|turn| line("busy", turn, "user", "q"))
            .chain((0..20).map(|other| line(&format!("c{other}"), 1, "user", "q")))
            .collect();
        fs::write(dir.path().join("turns.jsonl"), log).unwrap();
        let name = format!("busy {workers}");
        let engine = Engine::start(plan_with(dir.path(), &name, "max_in_flight: 2"), options(None, workers)).unwrap();
        let out = dir.path().join("answers.jsonl");
        until("the log to be read", || engine.queued() >= 3020 - 2);
        for answered in 1..=60 {
            gate(&name).add_permits(1);
            until("an answer", || engine.delivered() >= answered);
        }
        let others = answers(&out).iter().filter(|answer| &*answer.conversation_id != "busy").count();
        assert_eq!(others, 20, "they take turns with the busy one");
        gate(&name).add_permits(10_000);
        end(engine);
        let turns: Vec<u32> = answers(&out)
            .iter()
            .filter(|answer| &*answer.conversation_id == "busy")
            .map(|answer| answer.turn)
            .collect();
        assert_eq!(turns, (1..=3000).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_read_ahead_is_bounded_in_number_and_bytes() {
    let long = "x".repeat(300 << 10);
    for (name, bounds, text, most) in [
        ("number", "max_queued: 50", "hm", 50),
        // The one that passes the bound is still taken.
        ("bytes", "max_queued_mb: 1", long.as_str(), 4),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let agents = if name == "number" { 5000 } else { 40 };
        let log: String = [line("c", 1, "user", "q")]
            .into_iter()
            .chain((0..agents).map(|turn| line("c", turn + 2, "agent", text)))
            .chain([line("c", 9999, "user", "last")])
            .collect();
        fs::write(dir.path().join("turns.jsonl"), log).unwrap();
        let engine = Engine::start(plan_with(dir.path(), name, bounds), options(None, 1)).unwrap();
        // The first one has left the queue by then.
        until("as many as may be read ahead", || engine.in_flight() == 1 && engine.queued() == most);
        // A turn in another source's conversation, as long as it likes, changes nothing of it.
        assert!((0..1000).all(|_| engine.queued() == most));
        gate(name).add_permits(2);
        end(engine);
        let all = answers(&dir.path().join("answers.jsonl"));
        assert_eq!(all.iter().map(|answer| answer.turn).collect::<Vec<_>>(), [1, 9999]);
    }
}

#[test]
fn latency_counts_from_when_the_record_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let log: String = (1..=2).map(|turn| line("c", turn, "user", "q")).collect();
    fs::write(dir.path().join("turns.jsonl"), log).unwrap();
    let engine = Engine::start(plan_with(dir.path(), "latency", "max_in_flight: 64"), options(None, 1)).unwrap();
    until("both to be read", || engine.outstanding() == 2);
    let read = Instant::now();
    std::thread::park_timeout(Duration::from_millis(50));
    gate("latency").add_permits(1);
    until("the first answer", || engine.delivered() == 1);
    let waited = read.elapsed();
    gate("latency").add_permits(1);
    end(engine);
    let all = answers(&dir.path().join("answers.jsonl"));
    assert!(all[1].latency_ms >= waited.as_secs_f64() * 1000.0, "{} {waited:?}", all[1].latency_ms);
}

/// Conversations that are not held in memory know all the same what was said, from the store.
#[test]
fn conversations_beyond_those_held_in_memory_are_in_the_store() {
    for workers in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let name = format!("held {workers}");
        gate(&name).add_permits(10_000);
        let log: String = (1..=4)
            .flat_map(|turn| (0..60).map(move |id| line(&format!("c{id}"), turn, "user", &format!("q{turn} of {id}"))))
            .collect();
        fs::write(dir.path().join("turns.jsonl"), log).unwrap();
        let plan = plan_with(dir.path(), &name, "max_held: 2, max_in_flight: 4");
        end(Engine::start(plan, options(Some(&state), workers)).unwrap());
        let all = answers(&dir.path().join("answers.jsonl"));
        assert_eq!(all.len(), 240);
        for answer in all.iter().filter(|answer| answer.turn == 4) {
            let id = &answer.conversation_id[1..];
            let expected: Vec<String> = (1..4).map(|turn| format!("q{turn} of {id} to q{turn} of {id}")).collect();
            assert_eq!(*answer.query, *expected.join(" "));
        }
    }
}

/// Who stops a run does not wait for all that is read ahead: a restart reads it again.
#[test]
fn what_waits_when_a_run_is_stopped_is_answered_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let log: String = (1..=500).map(|turn| line("c", turn, "user", "q")).collect();
    fs::write(dir.path().join("turns.jsonl"), log).unwrap();
    let follow = Options { turns: Mode::Follow, ..options(Some(&state), 1) };
    let engine = Engine::start(plan_with(dir.path(), "stop", "max_in_flight: 64"), follow).unwrap();
    until("all to be read", || engine.outstanding() == 500);
    gate("stop").add_permits(3);
    until("some answers", || engine.delivered() == 3);
    until("the next turn, which a stop finishes", || engine.finishing() == 1);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| engine.stop());
        until("what waits to be let go", || engine.outstanding() == 1);
        gate("stop").add_permits(1);
        stopping.join().unwrap();
    });
    engine.join().unwrap();
    assert_eq!(answers(&dir.path().join("answers.jsonl")).len(), 4);
    gate("stop").add_permits(1000);
    end(Engine::start(plan_with(dir.path(), "stop", "max_in_flight: 64"), options(Some(&state), 1)).unwrap());
    let turns: Vec<u32> = answers(&dir.path().join("answers.jsonl")).iter().map(|answer| answer.turn).collect();
    assert_eq!(turns, (1..=500).collect::<Vec<_>>());
}

/// The answers of an earlier process are copied to a sink that lacks them. The log is not read on
/// while the sink is behind, and a stop reads the rest again.
#[test]
fn copies_for_a_slow_sink_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let state = dir.join("state");
    let log: String = (0..300).map(|id| line(&format!("c{}", id % 100), id / 100 + 1, "user", "q")).collect();
    fs::write(dir.join("turns.jsonl"), log).unwrap();
    gate("copied").add_permits(300);
    end(Engine::start(plan_with(dir, "copied", "max_in_flight: 64"), options(Some(&state), 1)).unwrap());
    fs::remove_dir_all(&state).unwrap();
    let slow = r#""slow": Slow(input: "answer", name: "slow"),"#;
    let plan = plan_to(dir, "copied", "max_in_flight: 8", "answers.jsonl", slow);
    let engine = Engine::start(plan, options(Some(&state), 2)).unwrap();
    let pending = || engine.sinks().iter().map(|sink| sink.pending).sum::<usize>();
    until("as many as may wait", || pending() >= 8);
    let most = (0..1000).map(|_| pending()).max().unwrap();
    // Two workers may both see the last room.
    assert!(most <= 10, "{most}");
    assert_eq!(engine.recovered(), 0, "none is applied before its copy is taken");
    gate("slow").add_permits(1000);
    end(engine);
    let took = took("slow");
    let mut took = took.lock().unwrap().clone();
    for id in 0..100 {
        let of: Vec<&String> = took.iter().filter(|of| of.starts_with(&format!("c{id} "))).collect();
        assert_eq!(of, [&format!("c{id} 1"), &format!("c{id} 2"), &format!("c{id} 3")]);
    }
    took.sort();
    took.dedup();
    assert_eq!((took.len(), answers(&dir.join("answers.jsonl")).len()), (300, 300));
}

/// Agent records are applied at once; what waits for a checkpoint is bounded all the same, and nothing is lost.
#[test]
fn what_waits_for_a_checkpoint_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let state = dir.join("state");
    let name = "agents";
    gate(name).add_permits(1);
    let long = "x".repeat(100_000);
    let mut log: String = (0..600).map(|id| line(&format!("c{id}"), 1, "agent", &long)).collect();
    log += &line("c7", 2, "user", "q");
    fs::write(dir.join("turns.jsonl"), log).unwrap();
    let engine = Engine::start(plan_with(dir, name, "max_held: 10"), options(Some(&state), 2)).unwrap();
    let mut most = 0;
    until("the end", || {
        most = most.max(engine.unwritten_bytes());
        engine.has_ended()
    });
    engine.join().unwrap();
    // Each of two workers may have read one batch more.
    assert!(most < 40 << 20, "{most}");
    let there = answers(&dir.join("answers.jsonl"));
    assert_eq!(there.len(), 1);
    assert!(there[0].query.contains("xxxx"), "the history is there: {:.100}", there[0].query);
}
