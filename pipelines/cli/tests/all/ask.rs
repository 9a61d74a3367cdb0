//! Turns that callers ask: many at once, a part of whom go away.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use tokio::sync::Semaphore;
use turnflow_engine::ask::{AnswerStream, AskRequest, Event};
use turnflow_engine::component::{
    BuildFuture, Call, ComponentContext, Configured, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind, built_at_once,
};
use turnflow_engine::connector::Mode;
use turnflow_engine::plan::plan;
use turnflow_engine::record::{Answer, PortType, Query, Speaker, Status, Utterance, Value};
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::spec::load_str;

use crate::support::{model, root, until};

/// Writes `half` at once, and the rest when the gate opens.
const WRITES: OperatorKind = OperatorKind::of::<WritesConfig>(
    "Writes",
    &[InputPort::one(PortType::Turns)],
    PortType::Answers,
    "an answer that is written in two pieces, for tests",
);

static GATE: Semaphore = Semaphore::const_new(0);
/// Calls that have begun, and futures of calls that are there.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static ALIVE: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WritesConfig {
    #[serde(rename = "input")]
    _input: String,
}

impl Configured for WritesConfig {}

impl OperatorConfig for WritesConfig {
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(Writes)))
    }
}

struct Alive;

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Writes;

impl Operator for Writes {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        let alive = Alive;
        async move {
            let _alive = alive;
            call.stream.send("half ");
            BEGUN.fetch_add(1, Ordering::SeqCst);
            let _open = GATE.acquire().await.unwrap();
            call.stream.send("rest");
            let said = call.turn.history.iter().map(|utterance| &*utterance.text).collect::<Vec<_>>().join(" ");
            Ok(Value::Answer(Arc::new(Answer {
                query: Query::new(&*call.turn.text),
                text: format!("{said} {}", call.turn.text).into(),
                status: Status::Answered,
                hits: Vec::new(),
                support: None,
                checks: Default::default(),
            })))
        }
        .boxed()
    }
}

/// Pieces of text, and the record's, until the end.
fn rest(mut events: AnswerStream) -> (String, String) {
    let mut text = String::new();
    while let Some(event) = events.blocking_next() {
        match event {
            Event::Delta { text: piece, node } => {
                assert_eq!(&*node, "answer");
                text.push_str(&piece);
            }
            Event::Answer { record } => {
                assert!(events.blocking_next().is_none(), "an answer is the last");
                return (text, record.answer.to_string());
            }
            Event::Failed { reason } => return (text, format!("failed: {reason}")),
            Event::Started { .. } | Event::Node { .. } | Event::Revised { .. } => {}
        }
    }
    panic!("no answer");
}

#[test]
fn of_a_thousand_callers_a_third_go_away_and_nothing_stays_behind() {
    let mut catalog = turnflow::catalog();
    catalog.operators.push(WRITES);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("turns.jsonl"), "").unwrap();
    let text = r#"Pipeline(
        conversations: (max_in_flight: 100, max_queued: 950),
        nodes: {
            "turns": JsonLines(path: "turns.jsonl"),
            "answer": Writes(input: "turns"),
            "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
        },
    )"#;
    let planned = plan(load_str("test.ron", dir.path(), text, &[]), &catalog);
    let options = Options { workers: 2, state: Some(dir.path().join("state")), ..Options::default() };
    let engine = Engine::start(planned.plan.unwrap(), options).unwrap();
    engine.wait_ready().unwrap();
    let ask = |at: usize| {
        let mut request = AskRequest::new(format!("question {at}"));
        request.history = vec![Utterance { speaker: Speaker::User, text: "before".into() }];
        engine.ask(request)
    };
    let mut callers: Vec<Option<AnswerStream>> = (0..1000).map(|at| Some(ask(at))).collect();
    until("all places to be taken", || BEGUN.load(Ordering::SeqCst) == 100);
    assert_eq!((engine.in_flight(), engine.waiting_callers(), engine.epochs().pinned()), (100, 900, 100));
    // A third goes away, of those who are worked on and of those who wait.
    callers.iter_mut().step_by(3).for_each(|caller| drop(caller.take()));
    // Their calls are dropped, and others take their places.
    until("others to begin", || BEGUN.load(Ordering::SeqCst) >= 134 && ALIVE.load(Ordering::SeqCst) <= 100);
    GATE.add_permits(1 << 20);
    for (at, caller) in callers.into_iter().enumerate() {
        let Some(caller) = caller else { continue };
        assert_eq!(rest(caller), ("half rest".to_owned(), format!("before question {at}")));
    }
    until("all to be over", || {
        engine.outstanding() == 0
            && engine.in_flight() == 0
            && engine.waiting_callers() == 0
            && engine.epochs().pinned() == 0
            && ALIVE.load(Ordering::SeqCst) == 0
    });
    // Some of those who went away had got the place of one who went before.
    let begun = BEGUN.load(Ordering::SeqCst);
    assert!((700..800).contains(&begun), "{begun}: who went away while waiting was not begun");
    assert_eq!(fs::read_to_string(dir.path().join("answers.jsonl")).unwrap_or_default(), "", "no sink gets them");

    // A source that is not there, and a run that has ended.
    let mut request = AskRequest::new("where?");
    request.source = Some("elsewhere".into());
    assert_eq!(rest(engine.ask(request)).1, "failed: the pipeline has no turn source `elsewhere`");
    engine.stop();
    assert_eq!(rest(ask(0)).1, "failed: the run has ended");
    engine.join().unwrap();
}

/// What a language model writes comes piece by piece, and is the answer in the end.
#[test]
fn a_language_models_text_is_streamed_and_remembered() {
    for name in ["smollm2", "minilm-int8"] {
        if model(name).is_none() {
            return;
        }
    }
    let planned = turnflow_engine::plan::plan_file(&root().join("pipelines/generate.ron"), &[], &turnflow::CATALOG);
    let options = Options { corpora: Mode::Once, sources: TurnSources::None, sinks: false, ..Options::default() };
    let engine = Engine::start(planned.plan.unwrap(), options).unwrap();
    engine.wait_ready().unwrap();
    let asked = || {
        let mut pieces = 0;
        let mut text = String::new();
        let mut nodes = Vec::new();
        // Later nodes may take it for no answer.
        let mut written: Option<String> = None;
        let mut request = AskRequest::new("What is the default of k1?");
        request.trace = true;
        let mut events = engine.ask(request);
        while let Some(event) = events.blocking_next() {
            match event {
                Event::Delta { text: piece, .. } => {
                    pieces += 1;
                    text.push_str(&piece);
                }
                Event::Node { node, value, .. } => {
                    if let Value::Answer(answer) = &value {
                        written.get_or_insert_with(|| answer.text.to_string());
                    }
                    nodes.push(node.to_string());
                }
                Event::Answer { record } => return (pieces, text, written.unwrap(), record, nodes),
                Event::Started { .. } | Event::Revised { .. } => {}
                Event::Failed { reason } => panic!("{reason}"),
            }
        }
        panic!("no answer");
    };
    let (pieces, text, written, record, nodes) = asked();
    assert!(pieces > 3, "{pieces} pieces of {text:?}");
    let words = |text: &str| text.split_whitespace().take(3).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&text), words(&written));
    assert!(nodes.len() > 3, "{nodes:?}");
    // The model is not asked again: the text comes in one piece.
    let (pieces, again, _, second, _) = asked();
    assert_eq!((pieces, again), (1, text));
    assert_eq!(second.answer, record.answer);
    engine.join().unwrap();
}
