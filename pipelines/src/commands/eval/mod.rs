//! `turnflow eval`: tasks through the pipeline, scored against judgements.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::{Map, Value as Json, json};
use turnflow_engine::plan::Plan;
use turnflow_engine::record::{Hit, PortType};

use super::answering::{Answered, Answers, answer_tasks};
use super::{EngineArgs, Fault, Outcome, PipelineArgs, write};
use crate::eval::breakdown::by_kind;
use crate::eval::metrics::{self, Level, Qrels, Run, Scores};
use crate::eval::tasks::{Task, read_tasks};
use crate::eval::trec::{read_qrels, write_run};

/// Stands for every node that gives Hits.
const ALL: &str = "all";

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
    /// The nodes whose hits are scored, side by side, or `all` that give Hits; what is written
    /// to files besides is the last one's [default: the last that gives Hits].
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    hits: Vec<String>,
    /// Run only what gives these hits, and no answers.
    #[arg(long)]
    only_hits: bool,
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

/// A node's hits with what they came to.
struct Scored {
    run: Run,
    level: Option<Level>,
    scores: Scores,
}

impl Scored {
    fn of(node: &str, results: &HashMap<Arc<str>, Answered>, qrels: &Qrels) -> Self {
        let (run, level) = scored_run(node, results, qrels);
        let scores = metrics::score(qrels, &run);
        Self { run, level, scores }
    }
}

pub(super) fn run(args: &EvalArgs) -> Outcome {
    let told = |error: anyhow::Error| Fault::Told(error);
    let plan = args.pipeline.plan()?;
    let nodes = hits_nodes(&plan, &args.hits)?;
    let tasks = read_tasks(&args.tasks).map_err(|error| told(error.into()))?;
    let qrels = judgements(&args.qrels, &tasks)?;

    let ends: Vec<Arc<str>> =
        plan.nodes.iter().filter(|node| node.output.is_none()).map(|node| node.id.clone()).collect();
    let sinks = ends.iter().filter(|_| !args.only_hits).map(|id| &**id);
    let ends: Vec<&str> = sinks.chain(nodes.iter().map(String::as_str)).collect();
    let plan = plan.towards(&ends);
    let Answers { by_task: results, seconds } = answer_tasks(plan, &args.engine, &tasks, &nodes)?;
    let failures: Vec<&String> = results.values().filter_map(|result| result.failure.as_ref()).collect();
    if let Some(first) = failures.first() {
        eprintln!("warning: {} of {} tasks failed, the first with: {first}", failures.len(), tasks.len());
    }
    let scored: Vec<(&String, Scored)> = nodes.iter().map(|node| (node, Scored::of(node, &results, &qrels))).collect();
    let Some((node, Scored { run, level, scores })) = scored.last() else { return Ok(()) };
    match scored.as_slice() {
        [_] => print(node, scores, tasks.len(), seconds, *level),
        several => print_side_by_side(several, tasks.len(), seconds),
    }
    if let Some(path) = &args.json {
        let figures = json!({
            "queries": scores.per_query.len(),
            "metrics": scores.mean,
            "by": by_kind(&tasks, scores),
            "hits": node,
            "level": level,
            "failed": failures.len(),
            "nodes": scored.iter().map(|(node, scored)| ((*node).clone(), json!(scored.scores.mean))).collect::<Map<_, _>>(),
        });
        write(path, &format!("{figures:#}\n"))?;
    }
    if let Some(path) = &args.run {
        let mut file =
            BufWriter::new(File::create(path).with_context(|| format!("cannot write `{}`", path.display()))?);
        write_run(&mut file, run, "turnflow")?;
        file.flush().with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    if let Some(path) = &args.predictions {
        write(path, &predictions(node, &tasks, &results))?;
    }
    Ok(())
}

/// The judgements of these tasks.
pub(super) fn judgements(path: &Path, tasks: &[Task]) -> Result<Qrels, Fault> {
    let mut qrels = read_qrels(path).map_err(|error| Fault::Told(error.into()))?;
    let ids: BTreeSet<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    qrels.retain(|query, _| ids.contains(query.as_str()));
    if qrels.is_empty() {
        return Err(Fault::Told(anyhow!("no query of `{}` is among the tasks", path.display())));
    }
    Ok(qrels)
}

/// The nodes whose hits are scored, in the order asked for.
fn hits_nodes(plan: &Plan, wanted: &[String]) -> Result<Vec<String>, Fault> {
    let gives = plan.nodes.iter().filter(|node| node.output == Some(PortType::Hits));
    let giving: Vec<String> = gives.map(|node| node.id.to_string()).collect();
    let Some(last) = giving.last() else {
        return Err(Fault::Told(anyhow!("no node of this pipeline gives Hits, so there is nothing to score")));
    };
    if let Some(unknown) = wanted.iter().find(|name| *name != ALL && !giving.contains(name)) {
        let known = giving.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
        return Err(Fault::Told(anyhow!("no node `{unknown}` gives Hits; these do: {known}")));
    }
    Ok(match wanted {
        [] => vec![last.clone()],
        some if some.iter().any(|name| name == ALL) => giving,
        some => some.to_vec(),
    })
}

/// The run over passages, or over documents if that is what the judgements name.
pub(super) fn scored_run(node: &str, results: &HashMap<Arc<str>, Answered>, qrels: &Qrels) -> (Run, Option<Level>) {
    let mut run = Run::new();
    let mut documents: BTreeMap<String, String> = BTreeMap::new();
    for (id, result) in results {
        let given = result.hits(node);
        let hits = given.iter().map(|hit| (hit.chunk.id.to_string(), f64::from(hit.score)));
        run.insert(id.to_string(), hits.collect());
        for hit in given {
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

/// The figures that retrieval papers give, a line a node.
fn print_side_by_side(scored: &[(&String, Scored)], tasks: usize, seconds: f64) {
    const SHOWN: [&str; 5] = ["recall@5", "recall@10", "ndcg@5", "ndcg@10", "map@10"];
    let queries = scored.first().map_or(0, |(_, scored)| scored.scores.per_query.len());
    println!("{queries} queries with judgements, {tasks} tasks, {seconds:.1} s");
    let width = scored.iter().map(|(node, _)| node.chars().count()).max().unwrap_or(0);
    println!("{:width$}{}", "", SHOWN.map(|metric| format!("{metric:>11}")).concat());
    for (node, Scored { scores, .. }) in scored {
        let value = |metric: &str| scores.mean.get(metric).map_or(String::new(), |value| format!("{value:.4}"));
        println!("{node:width$}{}", SHOWN.map(|metric| format!("{:>11}", value(metric))).concat());
    }
}

fn predictions(node: &str, tasks: &[Task], results: &HashMap<Arc<str>, Answered>) -> String {
    let empty = Answered::default();
    let line = |task: &Task| {
        let result = results.get(task.id.as_str()).unwrap_or(&empty);
        let context = |hit: &Hit| json!({"document_id": hit.chunk.id, "text": hit.chunk.text, "score": hit.score});
        let contexts: Vec<Json> = result.hits(node).iter().take(10).map(context).collect();
        let said: Vec<Json> =
            task.input.iter().map(|utterance| json!({"speaker": utterance.speaker, "text": utterance.text})).collect();
        let prediction = json!({
            "task_id": task.id,
            "conversation_id": task.conversation_id,
            "turn": task.turn,
            "Collection": task.collection,
            "input": said,
            "contexts": contexts,
            "predictions": [{"text": result.text()}],
        });
        format!("{prediction}\n")
    };
    tasks.iter().map(line).collect()
}
