//! A call that has much to look at is off the worker, and holds back no other conversation.

use std::fs;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildFuture, Call, ComponentContext, Configured, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind, built_at_once,
};
use turnflow_engine::connector::Mode;
use turnflow_engine::plan::plan;
use turnflow_engine::record::{Answer, PortType, Query, Status, Value};
use turnflow_engine::run::{Engine, Options};
use turnflow_engine::spec::load_str;

use crate::support::answers;

/// Of the conversation `a`, waits until another has been answered; of `p`, panics.
const WAITS: OperatorKind = OperatorKind::of::<WaitsConfig>(
    "Waits",
    &[InputPort::one(PortType::Turns)],
    PortType::Answers,
    "an answer that names its thread, for tests",
);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitsConfig {
    #[serde(rename = "input")]
    _input: String,
}

impl Configured for WaitsConfig {}

impl OperatorConfig for WaitsConfig {
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let (sender, receiver) = mpsc::channel();
            Ok(Arc::new(Waits { sender: Mutex::new(sender), receiver: Mutex::new(receiver) }))
        })
    }
}

struct Waits {
    sender: Mutex<mpsc::Sender<()>>,
    receiver: Mutex<mpsc::Receiver<()>>,
}

impl Operator for Waits {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let mut text = std::thread::current().name().unwrap_or_default().to_owned();
            match &*call.turn.conversation_id {
                // On the worker nobody else would ever be answered.
                "a" => {
                    let waited = self.receiver.lock().unwrap().recv_timeout(Duration::from_secs(120));
                    text = waited.map_or_else(|error| error.to_string(), |()| text);
                }
                "p" => panic!("as the test wants it"),
                _ => self.sender.lock().unwrap().send(()).unwrap(),
            }
            Ok(Value::Answer(Arc::new(Answer {
                query: Query::new(""),
                text: text.into(),
                status: Status::Answered,
                hits: Vec::new(),
                support: None,
                checks: Default::default(),
            })))
        }
        .boxed()
    }
}

#[test]
fn a_long_call_holds_back_no_other_conversation() {
    let mut catalog = turnflow::catalog();
    catalog.operators.push(WAITS);
    let dir = tempfile::tempdir().unwrap();
    let long = "word ".repeat(20_000);
    let turn = |id: &str, text: &str| {
        format!("{{\"conversation_id\":\"{id}\",\"turn\":1,\"speaker\":\"user\",\"text\":\"{text}\"}}\n")
    };
    let turns = [turn("a", &long), turn("p", &long), turn("b", "short")].concat();
    fs::write(dir.path().join("turns.jsonl"), turns).unwrap();
    let text = r#"Pipeline(nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "waits": Waits(input: "turns"),
        "out": JsonLinesSink(input: "waits", path: "out.jsonl"),
    })"#;
    let planned = plan(load_str("test.ron", dir.path(), text, &[]), &catalog);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    Engine::start(planned.plan.unwrap(), Options { turns: Mode::Once, ..Options::default() }).unwrap().join().unwrap();
    let mut given = answers(&dir.path().join("out.jsonl"));
    given.sort_by(|a, b| a.conversation_id.cmp(&b.conversation_id));
    let texts: Vec<&str> = given.iter().map(|record| &*record.answer).collect();
    assert_eq!(texts[0], "turnflow-io", "{texts:?}");
    assert_ne!(texts[1], "turnflow-io", "what is quick is done at once");
    assert_eq!((given[2].status, texts[2]), (Status::Failed, ""));
}
