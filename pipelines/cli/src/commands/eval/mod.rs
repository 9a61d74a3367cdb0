//! `turnflow eval`: runs tasks through the pipeline, and scores hits against judgements and answers
//! against references.

mod generation;
mod predictions;
mod report;
mod subtasks;
mod table;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use clap::Args;
use serde_json::{Map, Value as Json, json};
use turnflow_engine::plan::{Plan, PlannedNode};
use turnflow_engine::record::PortType;
use turnflow_engine::spec::Override;
use turnflow_engine::wording::count;

use super::answering::{Answered, Answers, answer_tasks};
use super::output::{check_directory, check_file};
use super::{EngineArgs, Fault, Outcome, PipelineArgs, write};
use turnflow_eval::breakdown::by_kind;
use turnflow_eval::generation::can_be_scored;
use turnflow_eval::metrics::{self, Level, Qrels, Run, Scores};
use turnflow_eval::tasks::{Task, read_tasks};
use turnflow_eval::trec::{read_qrels, read_run, write_run};

/// The name for all nodes that output Hits.
const ALL: &str = "all";

/// Run tasks and score the hits and the answers.
#[derive(Args)]
pub struct EvalArgs {
    /// The pipeline file; not with --answers.
    #[arg(required_unless_present = "answers", conflicts_with = "answers")]
    file: Option<PathBuf>,
    /// Set one value in the file, as in --set 'corpora.docs.source.path="docs.jsonl"'. The value is
    /// RON; paths are relative to the working directory. May be repeated.
    #[arg(long = "set", value_name = "PATH=RON", conflicts_with = "answers")]
    set: Vec<Override>,
    /// Score these answers and contexts instead of running a pipeline. The format is that of
    /// --predictions.
    #[arg(long, value_name = "ANSWERS.jsonl")]
    answers: Option<PathBuf>,
    /// MTRAG tasks or BEIR queries, as JSON Lines.
    #[arg(long)]
    tasks: PathBuf,
    /// Judgements (qrels), tab-separated: query, passage or document, grade. Without them, only answers
    /// are scored.
    #[arg(long)]
    qrels: Option<PathBuf>,
    /// The file of metrics for answers, with their models [default: ROUGE-L, exact match,
    /// token F1 and abstentions, which need no model].
    #[arg(long, value_name = "METRICS.ron")]
    metrics: Option<PathBuf>,
    /// The nodes whose hits are scored side by side, separated by commas, or `all` for all nodes that
    /// output Hits. Files contain the hits of the last one [default: the last node that outputs Hits].
    #[arg(long, value_name = "NODE", value_delimiter = ',', conflicts_with = "answers")]
    hits: Vec<String>,
    /// Run only the nodes needed for these hits, and compute no answers.
    #[arg(long, conflicts_with = "answers")]
    only_hits: bool,
    /// Run a random sample of this many tasks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// Seed of --sample.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Run only tasks with at most this many reference passages.
    #[arg(long, value_name = "N")]
    max_references: Option<usize>,
    /// A TREC run to compare with, query by query.
    #[arg(long, value_name = "RUN.trec", requires = "qrels")]
    against: Option<PathBuf>,
    /// Write an HTML report and its data to this directory.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// The report of another run to show side by side with this one.
    #[arg(long, value_name = "DIR", requires = "report")]
    beside: Option<PathBuf>,
    /// Write the figures to this file as JSON.
    #[arg(short, long, visible_alias = "json", value_name = "OUT.json")]
    output: Option<PathBuf>,
    /// Write the hits to this file as a TREC run. White space in ids is percent-encoded, such as
    /// `9-Part%201` for `9-Part 1`, because trec_eval splits lines at white space.
    #[arg(long, value_name = "OUT.trec")]
    run: Option<PathBuf>,
    /// Write contexts and answers to this file in MTRAG's format of predictions.
    #[arg(long, value_name = "OUT.jsonl", conflicts_with = "answers")]
    predictions: Option<PathBuf>,
    /// Write the prediction files of MTRAG's subtasks to this directory, as far as the pipeline has
    /// them: `taska.jsonl` (retrieved passages), `taskb.jsonl` (answers from the reference passages
    /// alone) and `taskc.jsonl` (answers from retrieved passages alone).
    #[arg(long, value_name = "DIR", conflicts_with = "answers")]
    subtasks: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// A node's hits and their scores.
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

/// The results to score.
struct Found {
    results: HashMap<Arc<str>, Answered>,
    /// The nodes with hits.
    nodes: Vec<String>,
    seconds: Option<f64>,
}

pub(super) fn run(args: &EvalArgs) -> Outcome {
    let told = |error: anyhow::Error| Fault::Told(error);
    for (option, path) in [("--output", &args.output), ("--run", &args.run), ("--predictions", &args.predictions)] {
        check_file(option, path.as_deref())?;
    }
    check_directory("--report", args.report.as_deref(), &["report.json", "index.html"])?;
    check_directory("--subtasks", args.subtasks.as_deref(), &subtasks::files())?;
    let metrics = generation::Metrics::read(args.metrics.as_deref())?;
    let tasks = read_tasks(&args.tasks).map_err(|error| told(error.into()))?;
    if tasks.is_empty() {
        return Err(told(anyhow!("`{}` has no tasks", args.tasks.display())));
    }
    let tasks = referring(tasks, args.max_references)?;
    let tasks = sample(tasks, args.sample.map(|size| size as usize), args.seed);
    let against = args.against.as_deref().map(read_run).transpose().map_err(|error| told(error.into()))?;
    let beside =
        args.beside.as_deref().map(turnflow_eval::report::read).transpose().map_err(|error| told(error.into()))?;
    let qrels = args.qrels.as_deref().map(|qrels| judgements(qrels, &tasks)).transpose()?;
    let (plan, nodes) = match &args.file {
        Some(file) => {
            let plan = PipelineArgs { file: file.clone(), set: args.set.clone() }.plan()?;
            let nodes = hits_nodes(&plan, &args.hits, qrels.is_some())?;
            (Some(wanted(plan, &nodes, args.only_hits)), nodes)
        }
        None => (None, vec![predictions::NODE.to_owned()]),
    };
    // Figures are grouped by the corpora's names; predictions keep the names of the tasks.
    let mut named = plan.as_ref().map_or_else(|| tasks.clone(), |plan| by_corpus(&tasks, plan));
    let origins = plan.as_ref().filter(|_| args.subtasks.is_some()).map(subtasks::Origins::of);
    if origins.is_some() {
        subtasks::check(&tasks)?;
    }
    let is_answer = |node: &PlannedNode| node.output == Some(PortType::Answers);
    let gives_answers = plan.as_ref().is_none_or(|plan| plan.nodes.iter().any(is_answer));
    if args.metrics.is_some() && !gives_answers {
        let what = "no node of this pipeline outputs Answers to a sink, so `--metrics` has nothing to score";
        return Err(told(anyhow!(what)));
    }
    let scores_answers = gives_answers && (args.metrics.is_some() || can_be_scored(&tasks));
    if qrels.is_none() && !scores_answers {
        let what = "answers need a pipeline that outputs them and tasks with a `target` or an `answerability`";
        return Err(told(anyhow!("there is nothing to score: hits need `--qrels`, and {what}")));
    }
    // Report errors of models before the pipeline runs, which may take an hour.
    let scorer = if scores_answers { Some(metrics.load()?) } else { None };
    let (title, hash) = plan.as_ref().map_or_else(Default::default, |plan| (plan.name.clone(), plan.hash.to_string()));
    let state = match &plan {
        Some(plan) => args.engine.options(plan).state,
        None => args.engine.state.clone(),
    };

    let found = match (plan, args.answers.as_deref()) {
        (Some(plan), _) => {
            let Answers { by_task, seconds } = answer_tasks(plan, &args.engine, &tasks, &nodes, args.report.is_some())?;
            Found { results: by_task, nodes, seconds: Some(seconds) }
        }
        (None, path) => {
            let path = path.ok_or_else(|| anyhow!("neither a pipeline nor answers"))?;
            let results = predictions::read(path, &tasks).map_err(|error| told(error.into()))?;
            Found { results, nodes, seconds: None }
        }
    };
    let failures: Vec<&String> = found.results.values().filter_map(|result| result.failure.as_ref()).collect();
    if let Some(first) = failures.first() {
        eprintln!("warning: {} of {} failed, the first with: {first}", failures.len(), count(tasks.len(), "task"));
    }
    let mut figures = Map::from_iter([("failed".to_owned(), json!(failures.len()))]);
    figures.extend(found.seconds.map(|seconds| ("seconds".to_owned(), json!(seconds))));
    if let Some(standalone) = classify(&mut named, &found) {
        figures.insert("standalone".to_owned(), standalone);
    }
    let scores = match &qrels {
        Some(qrels) => retrieval(&found, &named, qrels, against.as_ref(), args, &mut figures)?,
        None => None,
    };
    if let Some(scorer) = scorer {
        if qrels.is_some() {
            println!();
        }
        let node = found.nodes.last().map_or("", String::as_str);
        let responses = generation::responses(&tasks, &found.results, node);
        scorer.score(&named, &responses, state.as_deref(), &mut figures)?;
    }
    if let Some(path) = &args.output {
        write(path, &format!("{:#}\n", Json::Object(figures.clone())))?;
    }
    if let Some(path) = &args.predictions {
        let node = found.nodes.last().map_or("", String::as_str);
        write(path, &predictions::text(node, &tasks, &found.results))?;
    }
    if let (Some(directory), Some(origins)) = (&args.subtasks, &origins) {
        subtasks::write_files(directory, &tasks, &found, origins)?;
    }
    if let Some(directory) = &args.report {
        let tasks_file = args.tasks.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let head = turnflow_eval::report::Report { title, pipeline: hash, tasks_file, ..Default::default() };
        let report = report::make(head, &named, &found, qrels.as_ref(), scores.as_ref(), &figures);
        let page = turnflow_eval::report::write(directory, &report, beside.as_ref())?;
        println!("report: {}", page.display());
    }
    Ok(())
}

/// The tasks with the names of the corpora in place of their aliases.
fn by_corpus(tasks: &[Task], plan: &Plan) -> Vec<Task> {
    let mut tasks = tasks.to_vec();
    for collection in tasks.iter_mut().filter_map(|task| task.collection.as_mut()) {
        if let Some(corpus) = plan.corpus_of(collection) {
            *collection = corpus.to_string();
        }
    }
    tasks
}

/// Completes which questions are standalone: the class that the rewriter of the query gave counts
/// before that of the task. Returns how many later turns have each, and how many have none; `None` if
/// none has one.
fn classify(tasks: &mut [Task], found: &Found) -> Option<Json> {
    let node = found.nodes.last().map_or("", String::as_str);
    let (mut rewriter, mut own, mut unknown) = (0, 0, 0);
    for task in tasks.iter_mut().filter(|task| task.turn > 1) {
        let said = found.results.get(task.id.as_str()).and_then(|result| result.standalone(node));
        match (said, task.standalone) {
            (Some(_), _) => rewriter += 1,
            (None, Some(_)) => own += 1,
            (None, None) => unknown += 1,
        }
        task.standalone = said.or(task.standalone);
    }
    (rewriter + own > 0).then(|| json!({"rewriter": rewriter, "task": own, "unknown": unknown}))
}

/// The part of the plan that leads to sinks and to the scored nodes, or only to the scored nodes.
fn wanted(plan: Plan, nodes: &[String], only_hits: bool) -> Plan {
    let ends = plan.nodes.iter().filter(|node| node.output.is_none() && !only_hits).map(|node| node.id.clone());
    let ends: Vec<Arc<str>> = ends.chain(nodes.iter().map(|node| node.as_str().into())).collect();
    plan.towards(&ends.iter().map(|id| &**id).collect::<Vec<_>>())
}

/// Scores hits, prints the results, and adds them to the figures.
fn retrieval(
    found: &Found,
    tasks: &[Task],
    qrels: &Qrels,
    against: Option<&Run>,
    args: &EvalArgs,
    figures: &mut Map<String, Json>,
) -> Result<Option<Scores>, Fault> {
    let scored: Vec<(&String, Scored)> =
        found.nodes.iter().map(|node| (node, Scored::of(node, &found.results, qrels))).collect();
    let Some((node, Scored { run, level, scores })) = scored.last() else { return Ok(None) };
    match scored.as_slice() {
        [_] => table::print(node, scores, tasks.len(), found.seconds, *level),
        several => table::print_side_by_side(several, tasks.len(), found.seconds),
    }
    let nodes = scored.iter().map(|(node, scored)| ((*node).clone(), json!(scored.scores.mean)));
    for (name, value) in [
        ("queries", json!(scores.per_query.len())),
        ("metrics", json!(scores.mean)),
        ("by", json!(by_kind(tasks, scores))),
        ("hits", json!(node)),
        ("level", json!(level)),
        ("nodes", Json::Object(nodes.collect())),
        ("intervals", table::intervals(scores)),
    ] {
        figures.insert(name.to_owned(), value);
    }
    if let (Some(path), Some(other)) = (&args.against, against) {
        let name = path.display().to_string();
        // A passage's id is the document's id, `#` and a number.
        let ids = other.values().flatten().map(|(id, _)| id.as_str());
        let documents: HashMap<&str, &str> = ids.map(|id| (id, id.rsplit_once('#').map_or(id, |(id, _)| id))).collect();
        let of_documents = metrics::to_documents(other, |passage| documents.get(passage).copied());
        let other = if *level == Some(Level::Document) { &of_documents } else { other };
        let missing = scores.per_query.keys().filter(|query| !other.contains_key(*query)).count();
        if missing > 0 {
            eprintln!(
                "warning: `{name}` has no hits for {missing} of {} queries, which count as 0",
                scores.per_query.len()
            );
        }
        figures.insert("against".to_owned(), table::print_against(&name, scores, &metrics::score(qrels, other)));
    }
    if let Some(path) = &args.run {
        let mut file =
            BufWriter::new(File::create(path).with_context(|| format!("cannot write `{}`", path.display()))?);
        write_run(&mut file, run, "turnflow")?;
        file.flush().with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(scored.into_iter().next_back().map(|(_, scored)| scored.scores))
}

/// The tasks with at most this many reference passages.
fn referring(mut tasks: Vec<Task>, most: Option<usize>) -> Result<Vec<Task>, Fault> {
    let Some(most) = most else { return Ok(tasks) };
    tasks.retain(|task| task.contexts.len() <= most);
    if tasks.is_empty() {
        return Err(Fault::Told(anyhow!("every task has more than {most} reference passages")));
    }
    Ok(tasks)
}

/// A sample of the tasks, in their order. The choice depends on each task's id and the seed, so that
/// adding a task to the file changes little.
fn sample(mut tasks: Vec<Task>, size: Option<usize>, seed: u64) -> Vec<Task> {
    use sha2::{Digest, Sha256};
    let Some(size) = size.filter(|size| *size < tasks.len()) else { return tasks };
    let draw = |task: &Task| Sha256::new().chain_update(seed.to_le_bytes()).chain_update(&task.id).finalize();
    let mut drawn: Vec<_> = tasks.iter().map(draw).collect();
    drawn.sort_unstable();
    drawn.truncate(size);
    tasks.retain(|task| drawn.binary_search(&draw(task)).is_ok());
    tasks
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

/// The nodes whose hits are scored, in the requested order.
fn hits_nodes(plan: &Plan, wanted: &[String], needed: bool) -> Result<Vec<String>, Fault> {
    let gives = plan.nodes.iter().filter(|node| node.output == Some(PortType::Hits));
    let giving: Vec<String> = gives.map(|node| node.id.to_string()).collect();
    let Some(last) = giving.last() else {
        if !needed && wanted.is_empty() {
            return Ok(Vec::new());
        }
        return Err(Fault::Told(anyhow!("no node of this pipeline outputs Hits, so there is nothing to score")));
    };
    if let Some(unknown) = wanted.iter().find(|name| *name != ALL && !giving.contains(name)) {
        let known = giving.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
        return Err(Fault::Told(anyhow!("no node `{unknown}` outputs Hits; candidates: {known}")));
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
