//! An operator and a sink that let turns through when a test says so, and pipelines with them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use tokio::sync::Semaphore;
use turnflow_engine::component::{
    BuildFuture, Building, Call, ComponentContext, Configured, InputPort, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, SinkConfig, SinkKind, built, built_at_once,
};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery, Mode};
use turnflow_engine::plan::{Plan, plan};
use turnflow_engine::record::{Answer, PortType, Query, Status, Value};
use turnflow_engine::run::{Engine, Options};
use turnflow_engine::spec::load_str;

use crate::support::until;

/// By name, a test's own.
static GATES: LazyLock<Mutex<HashMap<String, Arc<Semaphore>>>> = LazyLock::new(Mutex::default);

pub(super) fn gate(name: &str) -> Arc<Semaphore> {
    GATES.lock().unwrap().entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
}

const GATE: OperatorKind = OperatorKind::of::<GateConfig>(
    "Gate",
    &[InputPort::one(PortType::Turns)],
    PortType::Answers,
    "an answer when the test says so",
);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GateConfig {
    #[serde(rename = "input")]
    _input: String,
    name: String,
}

impl Configured for GateConfig {}

impl OperatorConfig for GateConfig {
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

const SLOW: SinkKind = SinkKind::of::<SlowConfig>("Slow", "takes an answer when the test says so");

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlowConfig {
    #[serde(rename = "input")]
    _input: String,
    name: String,
}

impl Configured for SlowConfig {}

impl SinkConfig for SlowConfig {
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
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
pub(super) type Took = Arc<Mutex<Vec<String>>>;

/// By name of the sink.
static TOOK: LazyLock<Mutex<HashMap<String, Took>>> = LazyLock::new(Mutex::default);

pub(super) fn took(name: &str) -> Took {
    TOOK.lock().unwrap().entry(name.to_owned()).or_default().clone()
}

pub(super) fn plan_with(dir: &Path, name: &str, conversations: &str) -> Plan {
    plan_to(dir, name, conversations, "answers.jsonl", "")
}

/// The answers go to a file, and to further sinks.
pub(super) fn plan_to(dir: &Path, name: &str, conversations: &str, file: &str, sinks: &str) -> Plan {
    plan_of(dir, name, conversations, "out", file, sinks)
}

/// The same with a sink of this name.
pub(super) fn plan_of(dir: &Path, name: &str, conversations: &str, sink: &str, file: &str, sinks: &str) -> Plan {
    let nodes = format!(
        r#""turns": JsonLines(path: "turns.jsonl"),
            "answer": Gate(input: "turns", name: "{name}"),
            "{sink}": JsonLinesSink(input: "answer", path: "{file}"),
            {sinks}"#
    );
    plan_nodes(dir, conversations, &nodes)
}

/// A plan with these nodes.
pub(super) fn plan_nodes(dir: &Path, conversations: &str, nodes: &str) -> Plan {
    let mut catalog = turnflow::catalog();
    catalog.operators.push(GATE);
    catalog.sinks.push(SLOW);
    let text = format!("Pipeline(conversations: ({conversations}), nodes: {{ {nodes} }})");
    let planned = plan(load_str("test.ron", dir, &text, &[]), &catalog);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

pub(super) fn line(conversation: &str, turn: usize, speaker: &str, text: &str) -> String {
    serde_json::json!({"conversation_id": conversation, "turn": turn, "speaker": speaker, "text": text}).to_string()
        + "\n"
}

pub(super) fn add(dir: &Path, more: &str) {
    let mut log = fs::OpenOptions::new().append(true).open(dir.join("turns.jsonl")).unwrap();
    std::io::Write::write_all(&mut log, more.as_bytes()).unwrap();
}

/// Copies the files of a state directory, as a kill at this moment leaves them.
pub(super) fn copy_files(state: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(state).unwrap().flatten().filter(|file| file.path().is_file()) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

pub(super) fn options(state: Option<&Path>, workers: usize) -> Options {
    Options { workers, state: state.map(Path::to_owned), turns: Mode::Once, corpora: Mode::Once, ..Options::default() }
}

pub(super) fn end(engine: Engine) {
    until("the end", || engine.has_ended());
    engine.join().unwrap();
}
