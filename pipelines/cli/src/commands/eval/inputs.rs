//! What an evaluation is given: tasks, judgements, and the nodes to score.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use clap::ValueEnum;
use turnflow_engine::plan::Plan;
use turnflow_engine::record::PortType;

use super::EvalArgs;
use crate::commands::Fault;
use turnflow_eval::metrics::Qrels;
use turnflow_eval::tasks::{Part, Task, read_tasks};
use turnflow_eval::trec::read_qrels;

/// The name for all nodes that output Hits.
const ALL: &str = "all";

/// Reads the tasks of a part with at most `most` reference passages, or a sample of them.
pub(super) fn tasks(path: &Path, most: Option<usize>, args: &EvalArgs) -> Result<Vec<Task>, Fault> {
    let tasks = part_of(path, args.part)?;
    Ok(sample(referring(tasks, most)?, args.sample.map(|size| size as usize), args.seed))
}

/// Which tasks of a file run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::commands) enum PartArg {
    /// All tasks.
    All,
    /// The half to learn on.
    Learn,
    /// The half that is held out.
    HeldOut,
}

/// Reads the tasks of a part.
pub(in crate::commands) fn part_of(path: &Path, part: PartArg) -> Result<Vec<Task>, Fault> {
    let tasks = read_tasks(path).map_err(|error| Fault::Told(error.into()))?;
    if tasks.is_empty() {
        return Err(Fault::Told(anyhow!("`{}` has no tasks", path.display())));
    }
    let (tasks, name) = match part {
        PartArg::All => return Ok(tasks),
        PartArg::Learn => (Part::Learn.choose(tasks), "learn"),
        PartArg::HeldOut => (Part::HeldOut.choose(tasks), "held-out"),
    };
    if tasks.is_empty() {
        return Err(Fault::Told(anyhow!("`{}` has no tasks in the part `{name}`", path.display())));
    }
    Ok(tasks)
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
pub(in crate::commands) fn judgements(path: &Path, tasks: &[Task]) -> Result<Qrels, Fault> {
    let mut qrels = read_qrels(path).map_err(|error| Fault::Told(error.into()))?;
    let ids: BTreeSet<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    let judged = qrels.keys().next().cloned();
    qrels.retain(|query, _| ids.contains(query.as_str()));
    if qrels.is_empty() {
        let example = |id: Option<&str>| id.map(|id| format!(" (such as `{id}`)")).unwrap_or_default();
        return Err(Fault::Told(anyhow!(
            "no query of `{}`{} is the id of a task{}: are these the judgements of these tasks?",
            path.display(),
            example(judged.as_deref()),
            example(tasks.first().map(|task| task.id.as_str())),
        )));
    }
    Ok(qrels)
}

/// The nodes whose hits are scored, in the requested order.
pub(super) fn hits_nodes(plan: &Plan, wanted: &[String], needed: bool) -> Result<Vec<String>, Fault> {
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

/// The tasks with the names of the corpora in place of their aliases.
pub(super) fn by_corpus(tasks: &[Task], plan: &Plan) -> Vec<Task> {
    let mut tasks = tasks.to_vec();
    for collection in tasks.iter_mut().filter_map(|task| task.collection.as_mut()) {
        if let Some(corpus) = plan.corpus_of(collection) {
            *collection = corpus.to_string();
        }
    }
    tasks
}

/// The part of the plan that leads to sinks and to the scored nodes, or only to the scored nodes.
pub(super) fn wanted(plan: Plan, nodes: &[String], only_hits: bool) -> Plan {
    let ends = plan.nodes.iter().filter(|node| node.output.is_none() && !only_hits).map(|node| node.id.clone());
    let ends: Vec<Arc<str>> = ends.chain(nodes.iter().map(|node| node.as_str().into())).collect();
    plan.towards(&ends.iter().map(|id| &**id).collect::<Vec<_>>())
}
