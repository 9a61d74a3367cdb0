//! What waits is bounded, and one conversation holds up no other: an operator of the tests lets
//! turns through when it is told.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use tokio::sync::Semaphore;
use turnflow_engine::component::{
    BuildFuture, Building, Call, ComponentContext, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind, SinkConfig, SinkKind, built, built_at_once,
};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery, Mode};
use turnflow_engine::plan::{Plan, plan};
use turnflow_engine::record::{Answer, PortType, Query, Status, Value};
use turnflow_engine::run::{Engine, Options};
use turnflow_engine::spec::{from_tree, load_str};

use crate::support::{answers, until};

/// By name, a test's own.
static GATES: LazyLock<Mutex<HashMap<String, Arc<Semaphore>>>> = LazyLock::new(Mutex::default);

fn gate(name: &str) -> Arc<Semaphore> {
    GATES.lock().unwrap().entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
}

const GATE: OperatorKind = OperatorKind {
    name: "Gate",
    inputs: &[InputPort::one(PortType::Turns)],
    output: PortType::Answers,
    summary: "an answer when the test says so",
    parse: |tree, sources| Ok(Box::new(from_tree::<GateConfig>(tree, sources)?)),
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GateConfig {
    #[serde(rename = "input")]
    _input: String,
    name: String,
}

impl OperatorConfig for GateConfig {
    fn explain(&self) -> String {
        String::new()
    }
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(Gate(gate(&self.name)))))
    }
}

struct Gate(Arc<Semaphore>);

impl Operator for Gate {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            self.0.acquire().await.unwrap().forget();
            let said: Vec<&str> = call.turn.history.iter().map(|said| &*said.text).collect();
            Ok(Value::Answer(Arc::new(Answer {
                status: Status::Answered,
                query: Query::new(said.join(" ")),
                text: format!("to {}", call.turn.text).into(),
                hits: Vec::new(),
                support: None,
                checks: Default::default(),
            })))
        }
        .boxed()
    }
}

const SLOW: SinkKind = SinkKind {
    name: "Slow",
    summary: "takes an answer when the test says so",
    parse: |tree, sources| Ok(Box::new(from_tree::<SlowConfig>(tree, sources)?)),
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlowConfig {
    #[serde(rename = "input")]
    _input: String,
    name: String,
}

impl SinkConfig for SlowConfig {
    fn explain(&self) -> String {
        String::new()
    }
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn AnswerSink> {
        built(Ok(Box::new(Slow { gate: gate(&self.name), took: took(&self.name) })))
    }
}

struct Slow {
    gate: Arc<Semaphore>,
    took: Took,
}

impl AnswerSink for Slow {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            for answer in delivery.answers() {
                self.gate.acquire().await.unwrap().forget();
                self.took.lock().unwrap().push(format!("{} {}", answer.conversation_id, answer.turn));
                delivery.took(1);
            }
            Ok(())
        }
        .boxed()
    }
}

/// What a slow sink took.
type Took = Arc<Mutex<Vec<String>>>;

/// By name of the sink.
static TOOK: LazyLock<Mutex<HashMap<String, Took>>> = LazyLock::new(Mutex::default);

fn took(name: &str) -> Took {
    TOOK.lock().unwrap().entry(name.to_owned()).or_default().clone()
}

fn plan_with(dir: &Path, name: &str, conversations: &str) -> Plan {
    plan_to(dir, name, conversations, "answers.jsonl", "")
}

/// The answers go to a file, and to further sinks.
fn plan_to(dir: &Path, name: &str, conversations: &str, file: &str, sinks: &str) -> Plan {
    plan_of(dir, name, conversations, "out", file, sinks)
}

/// The same with a sink of this name.
fn plan_of(dir: &Path, name: &str, conversations: &str, sink: &str, file: &str, sinks: &str) -> Plan {
    let mut catalog = turnflow::catalog();
    catalog.operators.push(GATE);
    catalog.sinks.push(SLOW);
    let text = format!(
        r#"Pipeline(conversations: ({conversations}), nodes: {{
            "turns": JsonLines(path: "turns.jsonl"),
            "answer": Gate(input: "turns", name: "{name}"),
            "{sink}": JsonLinesSink(input: "answer", path: "{file}"),
            {sinks}
        }})"#
    );
    let planned = plan(load_str("test.ron", dir, &text, &[]), &catalog);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

fn line(conversation: &str, turn: usize, speaker: &str, text: &str) -> String {
    serde_json::json!({"conversation_id": conversation, "turn": turn, "speaker": speaker, "text": text}).to_string()
        + "\n"
}

fn add(dir: &Path, more: &str) {
    let mut log = fs::OpenOptions::new().append(true).open(dir.join("turns.jsonl")).unwrap();
    std::io::Write::write_all(&mut log, more.as_bytes()).unwrap();
}

/// Copies the files of a state directory, as a kill at this moment leaves them.
fn copy_files(state: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(state).unwrap().flatten().filter(|file| file.path().is_file()) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

fn options(state: Option<&Path>, workers: usize) -> Options {
    Options { workers, state: state.map(Path::to_owned), turns: Mode::Once, corpora: Mode::Once, ..Options::default() }
}

fn end(engine: Engine) {
    until("the end", || engine.has_ended());
    engine.join().unwrap();
}

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
        until("as many as may be read ahead", || engine.queued() == most);
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

/// A log is rotated and begins with the record that it began with before, so that turn, place and text are the same.
#[test]
fn a_turn_like_the_first_of_a_rotated_log_is_answered() {
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
    until("the same record's", || there().iter().filter(|answer| &*answer.conversation_id == "ping").count() == 2);
    engine.stop();
    engine.join().unwrap();
    assert_eq!(there().len(), 5);
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
