//! Tests of the bound of turns in flight: a stop and a reload while turns wait for a place.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::*;
use crate::ask::{AnswerStream, AskRequest};
use crate::component::*;
use crate::record::{PortType, Query, TurnRecord, Value};
use crate::spec::from_tree;

static GATED: LazyLock<Catalog> = LazyLock::new(|| Catalog {
    operators: vec![OperatorKind {
        name: "Gated",
        inputs: const { &[InputPort::one(PortType::Turns)] },
        output: PortType::Queries,
        summary: "",
        fields: Gated::fields,
        parse: |tree, sources| Ok(Box::new(from_tree::<Gated>(tree, sources)?)),
    }],
    turn_sources: CATALOG.turn_sources.clone(),
    sinks: vec![],
    models: vec![],
    chunkers: vec![],
    corpus_sources: vec![],
    passages: None,
    reference: String::new(),
});

/// Passes one turn for each permit.
struct Gate {
    begun: AtomicUsize,
    permits: Semaphore,
}

impl Gate {
    const fn new() -> Self {
        Self { begun: AtomicUsize::new(0), permits: Semaphore::const_new(0) }
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Acquire)
    }
}

static GATES: [Gate; 2] = [Gate::new(), Gate::new()];

#[derive(Clone, Debug, Deserialize)]
struct Gated {
    #[serde(rename = "input")]
    _input: String,
    gate: usize,
}

impl Configured for Gated {}

impl OperatorConfig for Gated {
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(self.clone())))
    }
}

impl Operator for Gated {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let gate = &GATES[self.gate];
            gate.begun.fetch_add(1, Ordering::AcqRel);
            gate.permits.acquire().await.unwrap().forget();
            Ok(Value::Query(Query::new(call.turn.text.clone())))
        }
        .boxed()
    }
}

fn planned(gate: usize, most: usize) -> Plan {
    let text = format!(
        r#"Pipeline(
    conversations: (max_in_flight: {most}),
    nodes: {{ "turns": Spoken(), "query": Gated(input: "turns", gate: {gate}) }},
)"#
    );
    let planned = plan(load_str("test.ron", Path::new(""), &text, &[]), &GATED);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

fn start(gate: usize, most: usize) -> Engine {
    Engine::start(planned(gate, most), Options { sources: TurnSources::None, workers: 2, ..Options::default() })
        .unwrap()
}

fn answered(stream: AnswerStream) -> Result<(), String> {
    futures::executor::block_on(stream.answer()).map(|_| ())
}

#[test]
fn a_stop_answers_turns_behind_callers_that_wait() {
    let (gate, engine) = (&GATES[0], start(0, 1));
    let first = engine.ask(AskRequest::new("first"));
    until("the first to begin", || gate.begun() == 1);
    let second = engine.ask(AskRequest::new("second"));
    let gone = engine.ask(AskRequest::new("gone"));
    assert_eq!(engine.waiting_callers(), 2);
    drop(gone);
    let record = br#"{"conversation_id": "a", "turn": 1, "speaker": "user", "text": "of no source"}"#;
    let record = TurnRecord::parse(record).unwrap();
    assert!(engine.submit(SourcedTurn { record, position: "here".into(), history: None, place: None }));
    until("the turn to wait", || engine.outstanding() == 2);
    engine.stop();
    assert_eq!(answered(second), Err("the run has ended".to_owned()));
    gate.permits.add_permits(9);
    assert_eq!(answered(first), Ok(()));
    until("the end", || engine.has_ended());
    assert_eq!(engine.delivered(), 1, "the turn that no restart would read again");
    engine.join().unwrap();
}

#[test]
fn a_reload_that_raises_the_bound_starts_who_waits() {
    let (gate, engine) = (&GATES[1], start(1, 1));
    let asked: Vec<AnswerStream> = (0..3).map(|at| engine.ask(AskRequest::new(at.to_string()))).collect();
    until("the first to begin", || gate.begun() == 1);
    assert_eq!(engine.waiting_callers(), 2);
    engine.reload(planned(1, 3), &|| false).unwrap();
    until("the others to begin", || gate.begun() == 3);
    gate.permits.add_permits(9);
    assert!(asked.into_iter().all(|stream| answered(stream).is_ok()));
    engine.stop();
    engine.join().unwrap();
}
