//! Whether judgements fit what they judge: with the judgements of other tasks or of another corpus, every score would be 0,
//! and look like the fault of the pipeline.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use turnflow_engine::run::Engine;
use turnflow_engine::wording::count;
use turnflow_eval::metrics::Qrels;
use turnflow_eval::tasks::Task;

use crate::commands::Fault;
use crate::commands::answering::Answered;

/// Warns of tasks that are not judged. The judgements are those of the tasks.
pub(super) fn warn_of_tasks(path: &Path, qrels: &Qrels, tasks: &[Task]) {
    let mut unjudged = tasks.iter().filter(|task| !qrels.contains_key(&task.id));
    if let Some(first) = unjudged.next() {
        eprintln!(
            "warning: `{}` judges {} of {}; the hits of the others are not scored, such as those of `{}`",
            path.display(),
            tasks.len() - 1 - unjudged.count(),
            count(tasks.len(), "task"),
            first.id
        );
    }
}

/// The ids that are judged.
fn judged(qrels: &Qrels) -> BTreeSet<&str> {
    qrels.values().flat_map(BTreeMap::keys).map(String::as_str).collect()
}

/// Checks that judged ids are documents or passages of the corpora.
///
/// # Errors
///
/// None of them is.
pub(super) fn check_corpora(engine: &Engine, qrels: &Qrels) -> Result<(), Fault> {
    let snapshot = engine.epochs().current();
    let chunks = || snapshot.corpora.values().flat_map(|corpus| corpus.passages.each());
    // Recorded hits may be of no corpus.
    let Some(example) = chunks().next() else { return Ok(()) };
    let all = judged(qrels);
    let mut unknown = all.clone();
    for chunk in chunks() {
        unknown.remove(&*chunk.document);
        unknown.remove(&*chunk.id);
    }
    match unknown.first() {
        Some(first) if unknown.len() == all.len() => Err(foreign(first, &example.document, &example.id, "the corpora")),
        Some(first) => {
            let number = all.len();
            eprintln!("warning: {} of {number} judged ids are not in the corpora, such as `{first}`", unknown.len());
            Ok(())
        }
        None => Ok(()),
    }
}

/// Checks that judged ids are among the hits of given answers.
///
/// # Errors
///
/// There are hits, and none is judged.
pub(super) fn check_answers(
    path: &Path,
    results: &HashMap<Arc<str>, Answered>,
    nodes: &[String],
    qrels: &Qrels,
) -> Result<(), Fault> {
    let hits = || results.values().flat_map(|result| nodes.iter().flat_map(|node| result.hits(node)));
    let all = judged(qrels);
    let is_judged = |id: &str| all.contains(id);
    let (Some(first), Some(example)) = (all.first(), hits().map(|hit| &hit.chunk).min_by_key(|chunk| chunk.id.clone()))
    else {
        return Ok(());
    };
    match hits().any(|hit| is_judged(&hit.chunk.id) || is_judged(&hit.chunk.document)) {
        true => Ok(()),
        false => Err(foreign(first, &example.document, &example.id, &format!("`{}`", path.display()))),
    }
}

fn foreign(judged: &str, document: &str, passage: &str, place: &str) -> Fault {
    Fault::Told(anyhow!(
        "no judged id is in {place}: the judgements name `{judged}`, and {place} have documents such as `{document}` with \
         passages such as `{passage}`; are these the judgements of these documents?"
    ))
}
