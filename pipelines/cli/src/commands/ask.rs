//! `turnflow ask`: one turn through the pipeline.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use anyhow::anyhow;
use clap::Args;
use serde_json::Map;
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::plan::NodeKind;
use turnflow_engine::record::{AnswerRecord, Item, PortType, Speaker, Status, TurnRecord, Value};
use turnflow_engine::run::Options;

use super::{EngineArgs, Fault, Outcome, PipelineArgs, start};

/// Ask one question; prints the answer and its passages.
#[derive(Args)]
pub struct AskArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The question.
    question: String,
    #[command(flatten)]
    engine: EngineArgs,
    /// The collection that the question is put to, for retrievers routed `FromTurn`.
    #[arg(long)]
    collection: Option<String>,
    /// Print the answer's record.
    #[arg(long)]
    json: bool,
    /// Print what every node gave.
    #[arg(long)]
    trace: bool,
}

pub(super) fn run(args: &AskArgs) -> Outcome {
    let plan = args.pipeline.plan()?;
    let answering = plan
        .nodes
        .iter()
        .rev()
        .find(|node| node.output == Some(PortType::Answers) && matches!(node.kind, NodeKind::Operator(_)));
    let Some(answering) = answering.map(|node| node.id.clone()) else {
        return Err(Fault::Told(anyhow!("no node of this pipeline gives Answers, so there is nothing to ask")));
    };
    let (sender, answers) = mpsc::channel();
    let trace: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let traced = trace.clone();
    let wanted = answering.clone();
    let sender = Mutex::new(sender);
    let observer = move |node: &str, item: &Item| {
        if let Ok(mut trace) = traced.lock() {
            trace.push((node.to_owned(), item.value.clone()));
        }
        if *node == *wanted
            && let Ok(sender) = sender.lock()
        {
            let _ = sender.send(item.clone());
        }
    };
    let plan = plan.towards(&[&*answering]);
    let options = Options {
        corpora: Mode::Once,
        manual_turns: true,
        sinks: false,
        observer: Some(Arc::new(observer)),
        ..args.engine.options(&plan)
    };
    let engine = start(plan, options)?;
    let record = TurnRecord {
        conversation_id: "ask".into(),
        turn: 1,
        speaker: Speaker::User,
        text: args.question.as_str().into(),
        collection: args.collection.as_deref().map(Into::into),
        timestamp: None,
        extra: Map::new(),
    };
    engine.submit(SourcedTurn { record, position: "ask".into(), history: None, place: None });
    engine.end_turns();
    let item = answers.recv().map_err(|_| anyhow!("the pipeline ended without an answer"))?;
    let answer = engine.record(&item);
    engine.join()?;
    if args.trace {
        for (node, value) in trace.lock().map(|trace| trace.clone()).unwrap_or_default() {
            println!("{node}: {}", super::trace::describe(&value));
        }
        println!();
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        print(&answer);
    }
    match answer.status {
        Status::Failed => Err(Fault::Run(anyhow!("the turn failed"))),
        Status::Answered | Status::Idk => Ok(()),
    }
}

fn print(answer: &AnswerRecord) {
    if let Some(error) = &answer.error {
        println!("failed: {error}");
        return;
    }
    println!("{}", answer.answer);
    for (at, hit) in answer.hits.iter().enumerate() {
        let text: String = hit.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text: String =
            if text.chars().count() > 100 { text.chars().take(99).chain(['…']).collect() } else { text };
        println!("  [{}] {} ({:.4})  {text}", at + 1, hit.passage, hit.score);
    }
}
