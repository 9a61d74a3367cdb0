//! `turnflow eval`: tasks through the pipeline, scored against judgements.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::{Map, Value as Json, json};
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::plan::Plan;
use turnflow_engine::record::{Hit, Item, PortType, Speaker, TurnRecord, Utterance, Value};
use turnflow_engine::run::Options;

use super::{EngineArgs, Fault, Outcome, PipelineArgs, progress, start, write};
use crate::eval::breakdown::by_kind;
use crate::eval::metrics::{self, Level, Qrels, Run, Scores};
use crate::eval::tasks::{self, Task, read_tasks};
use crate::eval::trec::{read_qrels, write_run};

/// Run every task and score what is retrieved.
#[derive(Args)]
pub struct EvalArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// MTRAG tasks or BEIR queries, JSON Lines.
    #[arg(long)]
    tasks: PathBuf,
    /// Judgements: tab-separated query, passage or document, grade.
    #[arg(long)]
    qrels: PathBuf,
    /// The node whose hits are scored [default: the last that gives Hits].
    #[arg(long, value_name = "NODE")]
    hits: Option<String>,
    /// Write the figures.
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Write the TREC run.
    #[arg(long, value_name = "OUT.trec")]
    run: Option<PathBuf>,
    /// Write MTRAG's predictions.
    #[arg(long, value_name = "OUT.jsonl")]
    predictions: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What a task came to.
#[derive(Default)]
struct Result {
    hits: Vec<Hit>,
    answer: Option<String>,
    failure: Option<String>,
}

type Results = Arc<Mutex<HashMap<Arc<str>, Result>>>;

pub(super) fn run(args: &EvalArgs) -> Outcome {
    let told = |error: anyhow::Error| Fault::Told(error);
    let plan = args.pipeline.plan()?;
    let node = hits_node(&plan, args.hits.as_deref())?;
    let tasks = read_tasks(&args.tasks).map_err(|error| told(error.into()))?;
    let mut qrels = read_qrels(&args.qrels).map_err(|error| told(error.into()))?;
    let ids: BTreeSet<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    qrels.retain(|query, _| ids.contains(query.as_str()));
    if qrels.is_empty() {
        let message = format!("no query of `{}` is among the tasks", args.qrels.display());
        return Err(told(anyhow!(message)));
    }

    let results: Results = Arc::default();
    let options = Options {
        corpora: Mode::Once,
        manual_turns: true,
        sinks: false,
        observer: Some(observer(results.clone(), node.clone())),
        ..args.engine.options(&plan)
    };
    let mut engine = start(plan, options)?;
    let begun = Instant::now();
    let bar = progress::bar(tasks.len() as u64, "answering");
    for task in &tasks {
        if !engine.submit(turn(task)) {
            engine.check()?;
            return Err(anyhow!("the pipeline ended before all tasks were answered").into());
        }
        bar.set_position(engine.delivered() as u64);
    }
    engine.end_turns();
    while !engine.has_ended() {
        engine.check()?;
        bar.set_position(engine.delivered() as u64);
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    engine.join()?;

    let results = results.lock().map_err(|_| anyhow!("a worker panicked"))?;
    let failures: Vec<&String> = results.values().filter_map(|result| result.failure.as_ref()).collect();
    if let Some(first) = failures.first() {
        eprintln!("warning: {} of {} tasks failed, the first with: {first}", failures.len(), tasks.len());
    }
    let (run, level) = scored_run(&results, &qrels);
    let scores = metrics::score(&qrels, &run);
    print(&node, &scores, tasks.len(), seconds, level);
    if let Some(path) = &args.json {
        let figures = json!({
            "queries": scores.per_query.len(),
            "metrics": scores.mean,
            "by": by_kind(&tasks, &scores),
            "hits": node,
            "level": level,
            "failed": failures.len(),
        });
        write(path, &format!("{figures:#}\n"))?;
    }
    if let Some(path) = &args.run {
        let mut file =
            BufWriter::new(File::create(path).with_context(|| format!("cannot write `{}`", path.display()))?);
        write_run(&mut file, &run, "turnflow")?;
        file.flush().with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    if let Some(path) = &args.predictions {
        write(path, &predictions(&tasks, &results))?;
    }
    Ok(())
}

fn hits_node(plan: &Plan, wanted: Option<&str>) -> std::result::Result<String, Fault> {
    let giving: Vec<&str> =
        plan.nodes.iter().filter(|node| node.output == Some(PortType::Hits)).map(|node| &*node.id).collect();
    match wanted {
        Some(name) if giving.contains(&name) => Ok(name.to_owned()),
        Some(name) => {
            let known = giving.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
            Err(Fault::Told(anyhow!("no node `{name}` gives Hits; these do: {known}")))
        }
        None => giving
            .last()
            .map(|id| (*id).to_owned())
            .ok_or_else(|| Fault::Told(anyhow!("no node of this pipeline gives Hits, so there is nothing to score"))),
    }
}

fn observer(results: Results, node: String) -> turnflow_engine::turns::Observer {
    Arc::new(move |id: &str, item: &Item| {
        let Ok(mut results) = results.lock() else { return };
        let result = results.entry(item.turn.conversation_id.clone()).or_default();
        match &item.value {
            Value::Hits(hits) if id == node => result.hits = hits.hits.clone(),
            Value::Answer(answer) => result.answer = Some(answer.text.to_string()),
            Value::Failed(failure) => {
                result.failure.get_or_insert(format!("node `{}`: {}", failure.node, failure.reason));
            }
            _ => {}
        }
    })
}

/// Several tasks may be of one conversation, each with its own history, so each is a
/// conversation of its own here, named by the task.
fn turn(task: &Task) -> SourcedTurn {
    let (question, before) = match task.input.split_last() {
        Some((last, before)) => (last.text.as_str(), before),
        None => ("", &[][..]),
    };
    let history = before.iter().map(|utterance| Utterance {
        speaker: match utterance.speaker {
            tasks::Speaker::User => Speaker::User,
            tasks::Speaker::Agent => Speaker::Agent,
        },
        text: utterance.text.as_str().into(),
    });
    SourcedTurn {
        record: TurnRecord {
            conversation_id: task.id.as_str().into(),
            turn: task.turn.max(1),
            speaker: Speaker::User,
            text: question.into(),
            collection: task.collection.as_deref().map(Into::into),
            timestamp: None,
            extra: Map::new(),
        },
        position: task.id.clone(),
        history: Some(history.collect()),
    }
}

/// The run over passages, or over documents if that is what the judgements name.
fn scored_run(results: &HashMap<Arc<str>, Result>, qrels: &Qrels) -> (Run, Option<Level>) {
    let mut run = Run::new();
    let mut documents: BTreeMap<String, String> = BTreeMap::new();
    for (id, result) in results {
        let hits = result.hits.iter().map(|hit| (hit.chunk.id.to_string(), f64::from(hit.score)));
        run.insert(id.to_string(), hits.collect());
        for hit in &result.hits {
            documents.insert(hit.chunk.id.to_string(), hit.chunk.document.to_string());
        }
    }
    let document_ids: BTreeSet<&str> = documents.values().map(String::as_str).collect();
    let level = metrics::level(qrels, |id| documents.contains_key(id), |id| document_ids.contains(id));
    if level == Some(Level::Document) {
        run = metrics::to_documents(&run, |passage| documents.get(passage).map(String::as_str));
    }
    (run, level)
}

fn print(node: &str, scores: &Scores, tasks: usize, seconds: f64, level: Option<Level>) {
    let what = match level {
        Some(Level::Document) => "documents",
        Some(Level::Passage) => "passages",
        None => "passages (none of them is judged)",
    };
    println!(
        "{} queries with judgements, {tasks} tasks, {seconds:.1} s; hits of `{node}`, as {what}",
        scores.per_query.len()
    );
    println!("{:10}{:>9}{:>9}{:>9}{:>9}", "", "@1", "@3", "@5", "@10");
    for metric in ["recall", "ndcg", "map", "precision", "hit"] {
        print!("{metric:10}");
        for cutoff in metrics::CUTOFFS {
            match scores.mean.get(&format!("{metric}@{cutoff}")) {
                Some(value) => print!("{value:9.4}"),
                None => print!("{:>9}", ""),
            }
        }
        println!();
    }
    if let Some(value) = scores.mean.get("mrr") {
        println!("{:10}{value:9.4}", "mrr");
    }
}

fn predictions(tasks: &[Task], results: &HashMap<Arc<str>, Result>) -> String {
    let empty = Result::default();
    let line = |task: &Task| {
        let result = results.get(task.id.as_str()).unwrap_or(&empty);
        let context = |hit: &Hit| json!({"document_id": hit.chunk.id, "text": hit.chunk.text, "score": hit.score});
        let contexts: Vec<Json> = result.hits.iter().take(10).map(context).collect();
        let said: Vec<Json> =
            task.input.iter().map(|utterance| json!({"speaker": utterance.speaker, "text": utterance.text})).collect();
        let prediction = json!({
            "task_id": task.id,
            "conversation_id": task.conversation_id,
            "turn": task.turn,
            "Collection": task.collection,
            "input": said,
            "contexts": contexts,
            "predictions": [{"text": result.answer.as_deref().unwrap_or_default()}],
        });
        format!("{prediction}\n")
    };
    tasks.iter().map(line).collect()
}
