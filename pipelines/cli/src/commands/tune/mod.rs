//! `turnflow tune`: learns the weights of a fusion or an ensemble, the query adapter of a dense retriever, the questions
//! that were asked before, or the features of trees, from labelled tasks.

mod adapter;
mod asked;
mod features;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use turnflow_engine::plan::{NodeKind, Plan, plan_file};
use turnflow_engine::spec::Override;
use turnflow_engine::wording::count;

use super::answering::{Answered, answer_tasks};
use super::eval::{PartArg, judgements, part_of, scored_run};
use super::output::{check_directory, check_file};
use super::{EngineArgs, Fault, Outcome, PipelineArgs, catalog, write};
use turnflow_eval::metrics::{Level, Qrels, Run};
use turnflow_eval::tasks::Task;
use turnflow_eval::tuning::{Learned, Objective, Question, learn, mean};

/// A top-k that is large enough for all candidates.
const ALL: usize = 100_000;

/// Learn a node's weights, the query adapter of its model, or the features of its trees, from labelled tasks.
///
/// Weights are written to a pipeline file to include. An adapter is a linear map on the vectors of queries; it is
/// written to a file for the field `adapter` of the model. Passages are not embedded again. The labelled questions of
/// an AskedBefore node are written to a file for its field `questions`. Weights and adapters are not written if
/// held-out questions would get worse. For a TreeRerank node, the features of its candidates are written to a
/// directory, from which `pipelines/convert/trees.py` learns the trees.
#[derive(Args)]
pub struct TuneArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// MTRAG tasks or BEIR queries, as JSON Lines.
    #[arg(long)]
    tasks: PathBuf,
    /// Judgements (qrels), tab-separated: query, passage or document, grade.
    #[arg(long)]
    qrels: PathBuf,
    /// Learn only on the tasks of one half, by a hash of the first question of their conversation: `learn`. Then
    /// `turnflow eval --part held-out` measures on the other half.
    #[arg(long, value_enum, default_value = "all", hide_default_value = true)]
    part: PartArg,
    /// The node: a Hybrid, RankFusion, Rrf or RerankEnsemble, whose `weights` are learned; a Dense, for the query
    /// adapter of its model; an AskedBefore, for its questions; or a TreeRerank, for the features of its candidates.
    #[arg(long, value_name = "NODE")]
    node: String,
    /// The metric that weights maximise: ndcg@K, map@K or recall@K.
    #[arg(long, default_value = "map@10")]
    metric: Objective,
    /// Values of the node's `depth` to try, separated by commas. The value that is best on held-out
    /// questions is written too [default: the node's depth].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    depths: Vec<usize>,
    /// Number of folds of the cross-validation. All questions of a conversation are in the same fold.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..=100))]
    folds: u16,
    /// Seed for assigning conversations to folds.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write the weights to this pipeline file, which is to be included after the pipeline's own file; or the adapter
    /// or the questions to this file.
    #[arg(short, long, visible_alias = "out", value_name = "OUT")]
    output: Option<PathBuf>,
    /// Write the features of a TreeRerank's candidates to this directory.
    #[arg(long, value_name = "DIR")]
    features: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(args: &TuneArgs) -> Outcome {
    check_file("--output", args.output.as_deref())?;
    check_directory("--features", args.features.as_deref(), &["features.json"])?;
    let tasks = part_of(&args.tasks, args.part)?;
    let qrels = judgements(&args.qrels, &tasks)?;
    let plan = args.pipeline.plan()?;
    if args.features.is_some() && features::depth(&plan, &args.node).is_none() {
        let message = format!("`--features` needs a TreeRerank node, and `{}` is none", args.node);
        return Err(Fault::Told(anyhow!(message)));
    }
    if let Some(model) = plan.nodes.iter().find(|node| *node.id == *args.node).and_then(adapter::model_of) {
        return adapter::run(args, &model, &tasks, &qrels);
    }
    if plan.node(&args.node).is_some_and(|node| node.kind_name == asked::KIND) {
        return asked::run(args, &tasks, &qrels);
    }
    if let Some(depth) = features::depth(&plan, &args.node) {
        return features::run(args, plan, depth, &tasks, &qrels);
    }
    let weights = members(&plan, &args.node)?;
    let depths: Vec<Option<usize>> =
        if args.depths.is_empty() { vec![None] } else { args.depths.iter().copied().map(Some).collect() };

    let mut best: Option<(Option<usize>, Learned)> = None;
    let mut current = f64::INFINITY;
    for depth in depths {
        let questions = questions(args, &tasks, &qrels, weights.len(), depth)?;
        let learned = learn(&questions, weights.len(), usize::from(args.folds), &weights, args.metric);
        let equal = vec![1.0; weights.len()];
        if let Some(depth) = depth {
            println!("depth {depth}");
        }
        println!("{}, {} folds, {:?}", count(questions.len(), "question"), learned.folds.len(), args.metric);
        println!("  equal weights       {:.4}", mean(&questions, &equal, args.metric));
        let now = mean(&questions, &weights, args.metric);
        current = current.min(now);
        println!("  current weights     {now:.4}  {}", show(&weights));
        println!("  learned, held out   {:.4}", learned.held_out);
        println!("  learned on all      {:.4}  {}", learned.fitted, show(&learned.weights));
        for (fold, weights) in learned.folds.iter().enumerate() {
            println!("    without fold {:<4} {:>8} {}", fold + 1, "", show(weights));
        }
        if best.as_ref().is_none_or(|(_, best)| learned.held_out > best.held_out) {
            best = Some((depth, learned));
        }
    }
    let Some((depth, learned)) = best else { return Ok(()) };
    if learned.held_out < current {
        println!("held-out questions are worse than with the current weights: nothing is written");
        return Ok(());
    }
    if let Some(path) = &args.output {
        write(path, &overlay(args, depth, &learned))?;
        println!("written to {}; include it after {}", path.display(), args.pipeline.file.display());
    }
    Ok(())
}

fn show(weights: &[f32]) -> String {
    let weights: Vec<String> = weights.iter().map(|weight| format!("{weight:.3}")).collect();
    format!("[{}]", weights.join(", "))
}

/// The node's current weights; their number is the number of lists.
fn members(plan: &Plan, node: &str) -> Result<Vec<f32>, Fault> {
    let tunable = |config: &NodeKind| match config {
        NodeKind::Operator(config) => config.weights(),
        NodeKind::Source(_) | NodeKind::Sink(_) => None,
    };
    if let Some(weights) = plan.nodes.iter().find(|each| *each.id == *node).and_then(|node| tunable(&node.kind)) {
        return Ok(weights);
    }
    let able: Vec<String> =
        plan.nodes.iter().filter(|node| tunable(&node.kind).is_some()).map(|node| format!("`{}`", node.id)).collect();
    let these = if able.is_empty() { "none has".to_owned() } else { format!("candidates: {}", able.join(", ")) };
    Err(Fault::Told(anyhow!("no node `{node}` has weights to learn; {these}")))
}

/// Runs the pipeline once per list, with all the weight on that list: the node then returns the list
/// on its own scale, and its scores are weighted sums of these lists.
fn questions(
    args: &TuneArgs,
    tasks: &[Task],
    qrels: &Qrels,
    lists: usize,
    depth: Option<usize>,
) -> Result<Vec<Question>, Fault> {
    let mut runs: Vec<Run> = Vec::new();
    for list in 0..lists {
        let alone: Vec<String> = (0..lists).map(|at| if at == list { "1.0" } else { "0.0" }.to_owned()).collect();
        let mut set = Vec::new();
        let mut field = |name: &str, value: String| {
            set.push(Override { path: format!("nodes.{}.{name}", args.node), value });
        };
        field("weights", format!("[{}]", alone.join(", ")));
        field("top", ALL.to_string());
        depth.into_iter().for_each(|depth| field("depth", depth.to_string()));
        let wrong = |first| Fault::Told(anyhow!("with all weight on list {} of `{}`: {first}", list + 1, args.node));
        let plan = planned(args, &set).map_err(wrong)?;
        let answers =
            answer_tasks(plan.towards(&[&args.node]), &args.engine, tasks, std::slice::from_ref(&args.node), false)?;
        warn_of_failures(&answers.by_task);
        let (run, level) = scored_run(&args.node, &answers.by_task, qrels);
        if level == Some(Level::Document) {
            // A document is scored by its best passage, which depends on the weights.
            let message = "weights are learned from judged passages, but these judgements name documents";
            return Err(Fault::Told(anyhow!(message)));
        }
        runs.push(run);
    }
    let folds = u64::from(args.folds);
    let question = |task: &Task| {
        let lists: Vec<Vec<(&str, f32)>> = runs
            .iter()
            .map(|run| run.get(&task.id).map(Vec::as_slice).unwrap_or_default())
            .map(|list| list.iter().map(|(id, score)| (id.as_str(), *score as f32)).collect())
            .collect();
        Question::new(qrels, &task.id, &lists, fold(args.seed, &task.conversation_id, folds))
    };
    Ok(tasks.iter().filter_map(question).collect())
}

/// The plan with these settings; otherwise its first error.
fn planned(args: &TuneArgs, set: &[Override]) -> Result<Plan, String> {
    let set: Vec<Override> = args.pipeline.set.iter().chain(set).cloned().collect();
    let planned = plan_file(&args.pipeline.file, &set, catalog());
    let first = planned.diagnostics.first().map(|found| found.message.clone());
    planned.plan.filter(|_| first.is_none()).ok_or_else(|| first.unwrap_or_default())
}

/// The plan with these settings.
fn with(args: &TuneArgs, set: &[Override]) -> Result<Plan, Fault> {
    planned(args, set).map_err(|first| Fault::Told(anyhow!(first)))
}

fn warn_of_failures(results: &HashMap<Arc<str>, Answered>) {
    let failures: Vec<&String> = results.values().filter_map(|result| result.failure.as_ref()).collect();
    if let Some(first) = failures.first() {
        eprintln!("warning: {} of {} failed, the first with: {first}", failures.len(), count(results.len(), "task"));
    }
}

pub(super) fn fold(seed: u64, conversation: &str, folds: u64) -> usize {
    use sha2::{Digest, Sha256};
    let hash = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(conversation).finalize();
    let first = hash.iter().take(8).fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    (first % folds) as usize
}

fn overlay(args: &TuneArgs, depth: Option<usize>, learned: &Learned) -> String {
    let depth = depth.map_or(String::new(), |depth| format!(", depth: {depth}"));
    format!(
        "// Learned by `turnflow tune` on {tasks}, {metric:?}:\n\
         // {fitted:.4} on all questions, {held:.4} on held-out ones ({folds} folds, seed {seed}).\n\
         Pipeline(\n    nodes: {{\n        \"{node}\": (weights: {weights}{depth}),\n    }},\n)\n",
        tasks = args.tasks.file_name().map(|name| name.to_string_lossy()).unwrap_or_default(),
        metric = args.metric,
        fitted = learned.fitted,
        held = learned.held_out,
        folds = learned.folds.len(),
        seed = args.seed,
        node = args.node,
        weights = show(&learned.weights),
    )
}
