//! The prediction files of MTRAG's three subtasks (SemEval-2026 task 8): A is retrieval, B is generation
//! from the reference passages, C is retrieval and generation.
//!
//! A file has one line per task, with the fields that the benchmark's format checker and its scripts
//! read: `conversation_id`, `task_id`, `Collection`, `input` and `contexts`, in B and C also
//! `predictions`. The contexts of A are the first hits of a node; those of B and C are the passages of
//! the answer itself. Citations are removed from predictions, as `eval` removes them before it scores
//! answers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use serde_json::{Value as Json, json};
use turnflow_engine::plan::{NodeKind, Plan};
use turnflow_engine::record::{Hit, PortType};
use turnflow_engine::wording::count;
use turnflow_operators::citations::without;

use super::evaluation::Found;
use crate::commands::{Fault, write};
use turnflow_eval::metrics::ranked;
use turnflow_eval::tasks::Task;

/// The files: subtask and name.
const FILES: [(Subtask, &str); 3] =
    [(Subtask::A, "taska.jsonl"), (Subtask::B, "taskb.jsonl"), (Subtask::C, "taskc.jsonl")];

/// The maximum number of contexts per task that the format checker accepts.
const CONTEXTS: usize = 10;

/// Short names of collections, and the published names by which the benchmark's retrieval script finds
/// the qrels.
const COLLECTIONS: [(&str, &str); 5] = [
    ("clapnq", "mt-rag-clapnq-elser-512-100-20240503"),
    ("cloud", "mt-rag-ibmcloud-elser-512-100-20240502"),
    ("fiqa", "mt-rag-fiqa-beir-elser-512-100-20240501"),
    ("govt", "mt-rag-govt-elser-512-100-20240611"),
    ("ibmcloud", "mt-rag-ibmcloud-elser-512-100-20240502"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subtask {
    A,
    B,
    C,
}

/// The origin of a node's passages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Origin {
    /// `References` before the node: the passages that the task names.
    references: bool,
    /// A retriever before the node.
    retrieved: bool,
}

/// The origin of the passages of all nodes, in the order of the plan.
pub(super) struct Origins(Vec<(Arc<str>, Origin)>);

impl Origins {
    pub fn of(plan: &Plan) -> Self {
        let mut origins: Vec<(Arc<str>, Origin)> = Vec::new();
        // Every node comes after its inputs.
        for node in &plan.nodes {
            let mut origin = Origin::default();
            for input in &node.inputs {
                let Origin { references, retrieved } = origins[*input].1;
                origin.references |= references;
                origin.retrieved |= retrieved;
            }
            // A node that rescores hits has a corpus too, but retrieves nothing.
            let searches = node.inputs.iter().any(|input| plan.nodes[*input].output == Some(PortType::Queries));
            match &node.kind {
                NodeKind::Operator(config) if config.corpus().is_some() && searches => {
                    match node.kind_name == turnflow_operators::references::KIND.name {
                        true => origin.references = true,
                        false => origin.retrieved = true,
                    }
                }
                _ => {}
            }
            origins.push((node.id.clone(), origin));
        }
        Self(origins)
    }

    /// The last node whose passages are those of the subtask, among these nodes.
    fn last(&self, subtask: Subtask, among: impl Fn(&str) -> bool) -> Option<&str> {
        let wanted = Origin { references: subtask == Subtask::B, retrieved: subtask != Subtask::B };
        let found = self.0.iter().rev().find(|(id, origin)| *origin == wanted && among(id));
        found.map(|(id, _)| &**id)
    }
}

/// The names of the files.
pub(super) fn files() -> [&'static str; 3] {
    FILES.map(|(_, file)| file)
}

/// Checks that all tasks name a collection, which the format requires.
pub(super) fn check(tasks: &[Task]) -> Result<(), Fault> {
    match tasks.iter().find(|task| task.collection.is_none()) {
        Some(task) => {
            Err(Fault::Told(anyhow!("`--subtasks` needs a `collection` for each task: `{}` has none", task.id)))
        }
        None => Ok(()),
    }
}

/// Writes the files of the subtasks that the pipeline solves, and says which they are. Files of other
/// subtasks stay as they are, so that several pipelines can fill one directory.
pub(super) fn write_files(directory: &Path, tasks: &[Task], found: &Found, origins: &Origins) -> Result<(), Fault> {
    std::fs::create_dir_all(directory)?;
    for (subtask, file) in FILES {
        let path = directory.join(file);
        match text(subtask, tasks, found, origins) {
            Ok(text) => {
                write(&path, &text)?;
                println!("subtask {subtask:?}: {}", path.display());
            }
            Err(reason) => eprintln!("warning: subtask {subtask:?} is not written: {reason}"),
        }
    }
    Ok(())
}

/// The lines of a subtask's file, or why there are none.
fn text(subtask: Subtask, tasks: &[Task], found: &Found, origins: &Origins) -> Result<String, String> {
    let results = &found.results;
    if subtask == Subtask::A {
        let node = found.nodes.last().and_then(|node| origins.last(subtask, |id| id == node));
        let node = node.ok_or("the scored hits are not those of retrievers alone")?;
        let line = |task: &Task| {
            let hits = results.get(task.id.as_str()).map_or(&[][..], |result| result.hits(node));
            let contexts = first(hits).into_iter().map(context).collect();
            line(task, contexts, None)
        };
        return Ok(tasks.iter().map(line).collect());
    }
    let answers = |id: &str| results.values().any(|result| result.answers.contains_key(id));
    let end = origins.last(subtask, answers).ok_or(match subtask {
        Subtask::B => "no answer is generated from the tasks' reference passages alone",
        _ => "no answer is generated from retrieved passages alone",
    })?;
    let answered = |task: &Task| results.get(task.id.as_str()).and_then(|result| result.answers.get(end));
    let failed = tasks.iter().filter(|task| answered(task).is_none()).count();
    if failed > 0 {
        eprintln!("warning: subtask {subtask:?} has an empty prediction for {}, which failed", count(failed, "task"));
    }
    let line = |task: &Task| {
        let Some(answer) = answered(task) else { return Ok(line(task, Vec::new(), Some(""))) };
        if answer.hits.len() > CONTEXTS {
            let passages = count(answer.hits.len(), "passage");
            return Err(format!("the answer to `{}` has {passages}, and the format permits {CONTEXTS}", task.id));
        }
        Ok(line(task, answer.hits.iter().map(context).collect(), Some(&without(&answer.text))))
    };
    tasks.iter().map(line).collect()
}

/// The first hits in trec_eval's order, in which the benchmark's script ranks them: it differs among
/// hits of the same score.
fn first(hits: &[Hit]) -> Vec<&Hit> {
    let by_id: HashMap<&str, &Hit> = hits.iter().rev().map(|hit| (&*hit.chunk.id, hit)).collect();
    let scores: Vec<(String, f64)> = hits.iter().map(|hit| (hit.chunk.id.to_string(), f64::from(hit.score))).collect();
    ranked(&scores).into_iter().take(CONTEXTS).filter_map(|(id, _)| by_id.get(id).copied()).collect()
}

fn context(hit: &Hit) -> Json {
    // JSON has no infinities; the order stays the same.
    let score = if hit.score.is_nan() { f32::MIN } else { hit.score.clamp(f32::MIN, f32::MAX) };
    let mut context = json!({"document_id": hit.chunk.id, "text": hit.chunk.text, "score": score});
    if !hit.chunk.title.is_empty() {
        context["title"] = json!(hit.chunk.title);
    }
    context
}

fn line(task: &Task, contexts: Vec<Json>, prediction: Option<&str>) -> String {
    let said = task.input.iter().map(|utterance| json!({"speaker": utterance.speaker, "text": utterance.text}));
    let collection = task.collection.as_deref().unwrap_or_default();
    let published = COLLECTIONS.iter().find(|(short, _)| *short == collection).map_or(collection, |(_, name)| name);
    let mut line = json!({
        "conversation_id": task.conversation_id,
        "task_id": task.id,
        "Collection": published,
        "input": said.collect::<Vec<_>>(),
        "contexts": contexts,
    });
    if let Some(text) = prediction {
        line["predictions"] = json!([{ "text": text }]);
    }
    format!("{line}\n")
}
