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
    BuildFuture, Call, ComponentContext, InputPort, Models, Operator, OperatorConfig, OperatorError, OperatorKind,
    built_at_once,
};
use turnflow_engine::connector::Mode;
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

fn plan_with(dir: &Path, name: &str, conversations: &str) -> Plan {
    let mut catalog = turnflow::catalog();
    catalog.operators.push(GATE);
    let text = format!(
        r#"Pipeline(conversations: ({conversations}), nodes: {{
            "turns": JsonLines(path: "turns.jsonl"),
            "answer": Gate(input: "turns", name: "{name}"),
            "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
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
