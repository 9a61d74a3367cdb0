//! Tests of slow sinks: which turns wait for them, and which do not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::*;
use crate::component::*;
use crate::connector::{AnswerSink, ConnectorError, Delivery, TurnOutput, TurnSource};
use crate::record::{PortType, Query, TurnRecord, Value};
use crate::spec::from_tree;

/// The slow sink accepts one answer per permit.
static PERMITS: Semaphore = Semaphore::const_new(0);
/// The answers that each sink has accepted.
static TAKEN: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());

/// Number of builds of a sink that hangs.
static HUNG: AtomicUsize = AtomicUsize::new(0);

static SINKS: LazyLock<Catalog> = LazyLock::new(|| Catalog {
    operators: vec![OperatorKind {
        name: "Repeat",
        inputs: const { &[InputPort::one(PortType::Turns)] },
        output: PortType::Queries,
        summary: "",
        fields: Repeat::fields,
        parse: |tree, sources| Ok(Box::new(from_tree::<Repeat>(tree, sources)?)),
    }],
    turn_sources: vec![TurnSourceKind::of::<Counted>("Counted", "")],
    sinks: vec![SinkKind::of::<Taking>("Taking", "")],
    models: vec![],
    chunkers: vec![],
    corpus_sources: vec![],
    passages: None,
    reference: String::new(),
});

/// A source of this many conversations, of two turns each.
#[derive(Clone, Debug, Deserialize)]
struct Counted {
    conversations: usize,
}

impl Configured for Counted {}

impl TurnSourceConfig for Counted {
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn TurnSource> {
        built(Ok(Box::new(self.clone())))
    }
}

impl TurnSource for Counted {
    fn run(self: Box<Self>, _: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        for turn in 1..=2 {
            for conversation in 0..self.conversations {
                let line = format!(
                    r#"{{"conversation_id": "{conversation}", "turn": {turn}, "speaker": "user", "text": "t{turn}"}}"#
                );
                let record = TurnRecord::parse(line.as_bytes()).unwrap();
                output.send(SourcedTurn { record, position: "here".into(), history: None, place: None })?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Repeat {
    #[serde(rename = "input")]
    _input: String,
}

impl Configured for Repeat {}

impl OperatorConfig for Repeat {
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(self.clone())))
    }
}

impl Operator for Repeat {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move { Ok(Value::Query(Query::new(call.turn.text.clone()))) }.boxed()
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Taking {
    #[serde(rename = "input")]
    _input: String,
    name: String,
    #[serde(default)]
    slow: bool,
    /// Whether its build waits for ever, as for a server that does not answer.
    #[serde(default)]
    hangs: bool,
}

impl Configured for Taking {}

impl SinkConfig for Taking {
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        async move {
            if self.hangs {
                HUNG.fetch_add(1, Ordering::AcqRel);
                std::future::pending::<()>().await;
            }
            Ok(Box::new(self.clone()) as Box<dyn AnswerSink>)
        }
        .boxed()
    }
}

impl AnswerSink for Taking {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            for answer in delivery.answers() {
                if self.slow {
                    PERMITS.acquire().await.unwrap().forget();
                }
                assert!(answer.error.is_none(), "{answer:?}");
                let taken = format!("{} {} {}", answer.conversation_id, answer.turn, answer.query);
                TAKEN.lock().entry(self.name.clone()).or_default().push(taken);
                delivery.took(1);
            }
            Ok(())
        }
        .boxed()
    }
}

fn taken(name: &str) -> Vec<String> {
    TAKEN.lock().get(name).cloned().unwrap_or_default()
}

fn planned(text: &str) -> Plan {
    let planned = plan(load_str("test.ron", Path::new(""), text, &[]), &SINKS);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

fn start(text: &str, workers: usize) -> Engine {
    let options = Options { turns: Mode::Once, workers, ..Options::default() };
    Engine::start(planned(text), options).unwrap()
}

#[test]
fn a_reload_whose_sink_never_opens_can_be_cancelled_and_does_not_hold_up_the_end() {
    let text = |hangs| {
        format!(
            r#"Pipeline(nodes: {{
                "turns": Counted(conversations: 1),
                "query": Repeat(input: "turns"),
                "out": Taking(input: "query", name: "hung", hangs: {hangs}),
            }})"#
        )
    };
    let engine =
        Engine::start(planned(&text(false)), Options { sources: TurnSources::None, ..Options::default() }).unwrap();
    let hung = || HUNG.load(Ordering::Acquire);
    let cancelled = engine.reload(planned(&text(true)), &|| hung() == 1);
    assert!(matches!(cancelled, Err(ReloadError::GivenUp)), "{cancelled:?}");
    std::thread::scope(|scope| {
        let reload = scope.spawn(|| engine.reload(planned(&text(true)), &|| false));
        until("the sink to be built again", || hung() == 2);
        engine.stop();
        assert!(matches!(reload.join().unwrap(), Err(ReloadError::GivenUp)));
    });
    engine.join().unwrap();
}

#[test]
fn a_slow_sink_holds_back_only_what_goes_to_it() {
    const MOST: usize = 4;
    const CONVERSATIONS: usize = 100;
    let engine = start(
        &format!(
            r#"Pipeline(
    conversations: (max_in_flight: {MOST}),
    nodes: {{
        "to slow": Counted(conversations: {CONVERSATIONS}), "a": Repeat(input: "to slow"),
        "slow": Taking(input: "a", name: "slow", slow: true),
        "to fast": Counted(conversations: {CONVERSATIONS}), "b": Repeat(input: "to fast"),
        "fast": Taking(input: "b", name: "fast", slow: false),
    }},
)"#
        ),
        2,
    );
    until("the fast sink to have all", || taken("fast").len() == 2 * CONVERSATIONS);
    until("the slow sink to be behind", || engine.sinks().iter().any(|sink| sink.pending >= MOST));
    let pending = engine.sinks().iter().map(|sink| sink.pending).max().unwrap();
    assert!(pending <= 2 * MOST, "{pending} answers wait for a sink that takes none");
    assert_eq!(taken("slow").len(), 0);
    until("no place to be taken", || engine.in_flight() == 0);
    PERMITS.add_permits(2 * CONVERSATIONS);
    engine.join().unwrap();
    let slow = taken("slow");
    assert_eq!(slow.len(), 2 * CONVERSATIONS);
    assert_eq!(slow.iter().collect::<BTreeSet<_>>().len(), 2 * CONVERSATIONS, "not every answer arrived once");
    for conversation in 0..CONVERSATIONS {
        let of = |turn: usize| slow.iter().position(|taken| *taken == format!("{conversation} {turn} t{turn}"));
        assert!(of(1).unwrap() < of(2).unwrap(), "not in the order of the conversation");
    }
}

#[test]
fn a_sink_that_takes_nothing_does_not_hold_up_an_end() {
    let engine = start(
        r#"Pipeline(nodes: {
        "turns": Counted(conversations: 3), "a": Repeat(input: "turns"),
        "never": Taking(input: "a", name: "never", slow: true),
    })"#,
        1,
    );
    until("answers to wait", || engine.sinks()[0].pending > 0);
    drop(engine);
}
