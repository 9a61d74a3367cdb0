//! What fails and may pass is tried again; what fails in the end is told, and kept if wished.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow::CATALOG;
use turnflow_engine::component::{
    BuildFuture, Call, Catalog, ComponentContext, Configured, InputPort, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, built_at_once,
};
use turnflow_engine::connector::Mode;
use turnflow_engine::dead_letter::DeadLetter;
use turnflow_engine::inference::InferenceError;
use turnflow_engine::plan::plan;
use turnflow_engine::record::{Answer, AnswerRecord, PortType, Query, Status, TurnRecord, Value};
use turnflow_engine::run::{Engine, Options};
use turnflow_engine::spec::load_str;

use crate::support::answers;

/// Fails the first calls of each turn.
const FLAKY: OperatorKind = OperatorKind::of::<FlakyConfig>(
    "Flaky",
    &[InputPort::one(PortType::Turns)],
    PortType::Answers,
    "an answer after some failures, for tests",
);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlakyConfig {
    #[serde(rename = "input")]
    _input: String,
    fails: usize,
    how: How,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum How {
    Passing,
    Lasting,
    Panic,
}

impl Configured for FlakyConfig {}

impl OperatorConfig for FlakyConfig {
    fn explain(&self) -> String {
        format!("fails: {}, how: {:?}", self.fails, self.how)
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(Flaky { config: self.clone(), calls: Mutex::default() })))
    }
}

struct Flaky {
    config: FlakyConfig,
    calls: Mutex<HashMap<Arc<str>, usize>>,
}

impl Operator for Flaky {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        let calls = {
            let mut calls = self.calls.lock().unwrap();
            let calls = calls.entry(call.turn.conversation_id.clone()).or_default();
            *calls += 1;
            *calls
        };
        call.warnings.add(format!("call {calls}"));
        async move {
            if calls <= self.config.fails {
                match self.config.how {
                    How::Passing => return Err(InferenceError::Failed("the device is busy".into()).into()),
                    How::Lasting => return Err(InferenceError::Shape("has another shape".into()).into()),
                    How::Panic => panic!("as the test wants it"),
                }
            }
            Ok(Value::Answer(Arc::new(Answer {
                query: Query::new(call.turn.text.clone()),
                text: "so".into(),
                status: Status::Answered,
                hits: Vec::new(),
                support: None,
                checks: Default::default(),
            })))
        }
        .boxed()
    }
}

fn catalog() -> Catalog {
    let mut catalog = turnflow::catalog();
    catalog.operators.push(FLAKY);
    catalog
}

const TURNS: &str = concat!(
    r#"{"conversation_id":"a","turn":1,"speaker":"user","text":"Why?","collection":"docs","timestamp":7.0,"mood":"good"}"#,
    "\n",
    r#"{"conversation_id":"b","turn":1,"speaker":"user","text":"How?"}"#,
    "\n"
);

/// The answers, by conversation, and the dead letters.
fn answered(flaky: &str, top: &str) -> (Vec<AnswerRecord>, Vec<DeadLetter>) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("turns.jsonl"), TURNS).unwrap();
    let text = format!(
        r#"Pipeline({top}
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "flaky": Flaky(input: "turns", {flaky}),
        "out": JsonLinesSink(input: "flaky", path: "out.jsonl"),
        "again": JsonLinesSink(input: "flaky", path: "again.jsonl"),
    }},
)"#
    );
    let planned = plan(load_str("test.ron", dir.path(), &text, &[]), &catalog());
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    let state = dir.path().join("state");
    let options = Options { turns: Mode::Once, state: Some(state.clone()), ..Options::default() };
    Engine::start(planned.plan.unwrap(), options).unwrap().join().unwrap();
    let mut given = answers(&dir.path().join("out.jsonl"));
    given.sort_by(|a, b| a.conversation_id.cmp(&b.conversation_id));
    assert_eq!(given.len(), 2);
    (given, letters(&state.join("dead-letters.jsonl")))
}

fn letters(path: &Path) -> Vec<DeadLetter> {
    let text = fs::read_to_string(path).unwrap();
    let mut letters: Vec<DeadLetter> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    letters.sort_by(|a, b| a.position.cmp(&b.position));
    letters
}

fn warnings(answer: &AnswerRecord) -> Vec<&str> {
    answer.stamp.warnings.iter().map(String::as_str).collect()
}

const QUICK: &str = "retries: (first_ms: 1, most_ms: 2),";

#[test]
fn what_passes_is_tried_again_and_the_stamp_tells() {
    let (given, letters) = answered("fails: 2, how: Passing", QUICK);
    for answer in &given {
        assert_eq!(answer.status, Status::Answered);
        assert_eq!(warnings(answer), ["flaky: call 3", "flaky: tried 3 times"]);
    }
    assert!(letters.is_empty());
    let (given, _) = answered("fails: 0, how: Passing", QUICK);
    assert_eq!(warnings(&given[0]), ["flaky: call 1"]);
}

#[test]
fn attempts_are_used_up_and_may_be_one() {
    let (given, letters) = answered("fails: 9, how: Passing", QUICK);
    assert_eq!((given[0].status, warnings(&given[0]).last().copied()), (Status::Failed, Some("flaky: tried 3 times")));
    assert_eq!(given[0].error.as_deref(), Some("node `flaky`: inference failed: the device is busy"));
    assert!(letters.is_empty(), "only if the pipeline says so");
    let (given, _) = answered("fails: 1, how: Passing", "retries: (attempts: 1),");
    assert_eq!((given[0].status, warnings(&given[0])), (Status::Failed, vec!["flaky: call 1"]));
}

#[test]
fn what_does_not_pass_is_not_tried_again() {
    for how in ["Lasting", "Panic"] {
        let (given, _) = answered(&format!("fails: 1, how: {how}"), QUICK);
        assert_eq!((given[0].status, warnings(&given[0])), (Status::Failed, vec!["flaky: call 1"]), "{how}");
    }
}

#[test]
fn failed_turns_become_dead_letters_if_wished_with_all_that_a_retry_needs() {
    let (given, letters) = answered("fails: 1, how: Lasting", "failed_turns: DeadLetter,");
    assert!(given.iter().all(|answer| answer.status == Status::Failed));
    assert_eq!(letters.len(), 2, "one a turn, however many sinks it reaches: {letters:?}");
    let letter = &letters[0];
    assert!(letter.source == "turns" && letter.position.ends_with("turns.jsonl:1"), "{letter:?}");
    assert_eq!(letter.reason, "node `flaky`: the model has another shape");
    let record = TurnRecord::parse(&letter.bytes()).unwrap();
    assert_eq!(record, TurnRecord::parse(TURNS.lines().next().unwrap().as_bytes()).unwrap());
}

#[test]
fn nonsense_is_found_before_it_runs() {
    let text = r#"Pipeline(retries: (attempts: 0), nodes: { "turns": Stdin() })"#;
    let planned = plan(load_str("test.ron", Path::new("."), text, &[]), &CATALOG);
    assert_eq!(planned.diagnostics.iter().map(|found| found.code).collect::<Vec<_>>(), ["out-of-range"]);
}
