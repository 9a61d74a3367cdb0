//! `turnflow ask`: answers one question.

use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use serde_json::Value as Json;
use turnflow_connectors::stdout::plain;
use turnflow_engine::ask::{AskRequest, Event};
use turnflow_engine::connector::Mode;
use turnflow_engine::odd_json;
use turnflow_engine::plan::NodeKind;
use turnflow_engine::record::{AnswerRecord, PortType, Status, Value};
use turnflow_engine::run::{Options, TurnSources};

use super::{EngineArgs, Fault, FormatArgs, Outcome, PipelineArgs, start};

/// Ask one question; prints the answer and its passages. No sink is written.
#[derive(Args)]
pub struct AskArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The question.
    question: String,
    #[command(flatten)]
    engine: EngineArgs,
    /// The collection to search, for retrievers with `corpus: FromTurn`.
    #[arg(long)]
    collection: Option<String>,
    /// A field of the turn's record, as NAME=JSON or NAME=TEXT, such as `lang=en` or `principal={"groups": ["staff"]}`;
    /// several times for several fields.
    #[arg(long, value_name = "NAME=VALUE", value_parser = field)]
    field: Vec<(String, Json)>,
    /// Print the text while the model generates it, before the answer. Not with JSON.
    #[arg(long, conflicts_with = "json")]
    stream: bool,
    /// Print the value of every node.
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &AskArgs) -> Outcome {
    let plan = args.pipeline.plan()?;
    let answering = plan
        .nodes
        .iter()
        .rev()
        .find(|node| node.output == Some(PortType::Answers) && matches!(node.kind, NodeKind::Operator(_)));
    let Some(answering) = answering.map(|node| node.id.clone()) else {
        return Err(Fault::Told(anyhow!("no node of this pipeline outputs Answers, so it cannot answer questions")));
    };
    let plan = plan.towards(&[&*answering]);
    let options =
        Options { corpora: Mode::Once, sources: TurnSources::None, sinks: false, ..args.engine.options(&plan) };
    let engine = start(plan, options)?;
    let mut request = AskRequest::new(args.question.as_str());
    request.collection = args.collection.as_deref().map(Into::into);
    request.extra.extend(args.field.iter().cloned());
    request.trace = args.trace;
    request.stream = args.stream && !args.format.is_json();
    let mut events = engine.ask(request);
    let mut trace: Vec<(Arc<str>, Value)> = Vec::new();
    let mut streamed = false;
    let answer = loop {
        match events.blocking_next() {
            Some(Event::Node { node, value, .. }) => trace.push((node, value)),
            Some(Event::Delta { text, .. }) if args.stream && !args.format.is_json() => {
                streamed = true;
                print!("{}", plain(&text));
            }
            Some(Event::Started { .. } | Event::Delta { .. } | Event::Revised { .. }) => {}
            Some(Event::Answer { record }) => break *record,
            Some(Event::Failed { reason }) => return Err(Fault::Run(anyhow!(reason))),
            None => {
                engine.check()?;
                return Err(Fault::Run(anyhow!("the pipeline stopped without an answer")));
            }
        }
    };
    engine.join()?;
    if streamed {
        println!("\n");
    }
    if args.trace {
        let lines: String =
            trace.iter().map(|(node, value)| format!("{node}: {}\n", super::trace::describe(value))).collect();
        // Standard output is one JSON object.
        match args.format.is_json() {
            true => eprintln!("{lines}"),
            false => println!("{lines}"),
        }
    }
    if args.format.is_json() {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        print(&answer);
    }
    match answer.status {
        Status::Failed => Err(Fault::Run(anyhow!("the turn failed"))),
        Status::Answered | Status::Idk => Ok(()),
    }
}

/// A field of the record. A value that is not JSON is a text.
fn field(written: &str) -> Result<(String, Json), String> {
    let (name, value) = written.split_once('=').ok_or("it must have the form NAME=VALUE")?;
    match name {
        "" => Err("the name is empty".to_owned()),
        name if AnswerRecord::has(name) || ["speaker", "text", "collection", "timestamp"].contains(&name) => {
            Err(format!("`{name}` is a field of its own"))
        }
        name => Ok((name.to_owned(), odd_json::exact(value).unwrap_or_else(|_| value.into()))),
    }
}

fn print(answer: &AnswerRecord) {
    if let Some(error) = &answer.error {
        println!("failed: {}", plain(error));
        return;
    }
    println!("{}", plain(&answer.answer));
    for (at, hit) in answer.hits.iter().enumerate() {
        let text: String = plain(&hit.text).split_whitespace().collect::<Vec<_>>().join(" ");
        let text: String =
            if text.chars().count() > 100 { text.chars().take(99).chain(['…']).collect() } else { text };
        println!("  [{}] {} ({:.4})  {text}", at + 1, plain(&hit.passage), hit.score);
    }
    for warning in answer.stamp.warnings.iter() {
        eprintln!("warning: {}", plain(warning));
    }
}
