//! Computes the features of candidates for learning trees, without what was learned from the same questions.
//!
//! What is learned before the node (query adapters and questions asked before) is learned again without the questions
//! whose features are computed, because trees would otherwise trust it too much. For each fold, and for each pair of
//! folds, everything is learned on the other folds. Trees that are learned on the folds other than `f`, each from the
//! pair with `f`, have then seen nothing of `f`.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ndarray::Array2;
use serde_json::json;
use turnflow_engine::plan::{NodeKind, Plan};
use turnflow_engine::spec::Override;
use turnflow_engine::wording::count;
use turnflow_eval::adapting::{Settings, learn_without};
use turnflow_eval::metrics::{Level, Qrels};
use turnflow_eval::tasks::Task;
use turnflow_operators::models::adapter;
use turnflow_operators::tree_rerank::{List, candidates, columns, rows};

use super::super::answering::answer_tasks;
use super::super::eval::scored_run;
use super::super::{Fault, Outcome};
use super::adapter::{Found, model_of, vectors};
use super::asked::{self, Questions};
use super::{TuneArgs, fold, warn_of_failures, with};

/// The number of candidates of each list, if trees can be learned for this node.
pub(super) fn depth(plan: &Plan, node: &str) -> Option<usize> {
    let node = plan.nodes.iter().find(|each| *each.id == *node)?;
    let NodeKind::Operator(config) = &node.kind else { return None };
    config.candidates()
}

/// Writes the features to the directory.
pub(super) fn run(args: &TuneArgs, plan: Plan, depth: usize, tasks: &[Task], qrels: &Qrels) -> Outcome {
    let directory = args.features.as_deref().ok_or_else(|| {
        let message = "trees are learned by a script from features: name a directory for them with `--features DIR`, \
                       then run `python3 pipelines/convert/trees.py DIR --output TREES.onnx`";
        Fault::Told(anyhow!(message))
    })?;
    let lists = lists(&plan, &args.node);
    let folds = usize::from(args.folds);
    let judged: Vec<&Task> = tasks.iter().filter(|task| is_judged(task, qrels)).collect();
    if judged.is_empty() {
        return Err(Fault::Told(anyhow!("no task has a judged passage: trees are learned from judged passages")));
    }
    let of_fold =
        |number: usize| judged.iter().any(|task| fold(args.seed, &task.conversation_id, folds as u64) == number);
    if let Some(empty) = (0..folds).find(|number| !of_fold(*number)) {
        let message =
            format!("fold {} of {folds} has no judged question: use fewer `--folds`, or more questions", empty + 1);
        return Err(Fault::Told(anyhow!(message)));
    }
    let sets = without(folds);
    let learned = Learned::before(args, &plan, &lists, tasks, qrels, &sets)?;
    drop(plan);
    println!("{}, {folds} folds, lists {}", count(judged.len(), "question"), lists.join(", "));
    println!("learned again for each fold: {}", learned.told());

    let about = json!({
        "columns": columns(lists.iter().map(String::as_str)),
        "lists": lists,
        "depth": depth,
        "folds": folds,
        "seed": args.seed,
        "sets": sets,
    });
    std::fs::create_dir_all(directory)?;
    for (at, set) in sets.iter().enumerate() {
        let of_set = |task: &&&Task| set.contains(&fold(args.seed, &task.conversation_id, folds as u64));
        let asked: Vec<Task> = judged.iter().filter(of_set).map(|task| (**task).clone()).collect();
        let plan = with(args, &learned.overrides(at, set)?)?;
        let ends: Vec<&str> = lists.iter().map(String::as_str).collect();
        let answers = answer_tasks(plan.towards(&ends), &args.engine, &asked, &lists, false)?.by_task;
        warn_of_failures(&answers);
        let mut table = Table::default();
        for task in &asked {
            let Some(answered) = answers.get(&*task.id) else { continue };
            let found: Vec<List<'_>> = lists.iter().map(|list| (list.as_str(), answered.hits(list))).collect();
            let question = lists.iter().find_map(|list| answered.query(list)).unwrap_or_default();
            let pool = candidates(&found, depth);
            let fold = fold(args.seed, &task.conversation_id, folds as u64);
            let judgements = qrels.get(&task.id);
            let grade = |id: &str| judgements.and_then(|judged| judged.get(id)).map_or(0, |grade| *grade as i32).max(0);
            table.rows.extend(rows(question, &found, &pool, true));
            table.labels.extend(pool.iter().map(|(chunk, _)| grade(&chunk.id)));
            table.groups.push(pool.len() as i32);
            table.folds.push(fold as i32);
            table
                .relevant
                .push(judgements.map_or(0, |judged| judged.values().filter(|grade| **grade > 0).count()) as i32);
            table.questions.push(task.id.clone());
            table.passages.push(pool.iter().map(|(chunk, _)| chunk.id.to_string()).collect());
        }
        if lists.iter().any(|list| scored_run(list, &answers, qrels).1 == Some(Level::Document)) {
            let message = "trees are learned from judged passages, but these judgements name documents";
            return Err(Fault::Told(anyhow!(message)));
        }
        table.write(&directory.join(name(set)), columns(ends).len())?;
        println!(
            "without {}: {}, {}",
            told(set),
            count(asked.len(), "question"),
            count(table.labels.len(), "candidate")
        );
    }
    super::write(&directory.join("features.json"), &format!("{about:#}\n"))?;
    let directory = directory.display();
    println!("written to {directory}; learn with `python3 pipelines/convert/trees.py {directory} --output TREES.onnx`");
    Ok(())
}

fn is_judged(task: &Task, qrels: &Qrels) -> bool {
    qrels.get(&task.id).is_some_and(|judged| judged.values().any(|grade| *grade > 0))
}

/// The nodes that produce the lists of a node.
fn lists(plan: &Plan, node: &str) -> Vec<String> {
    let inputs = plan.nodes.iter().find(|each| *each.id == *node).map(|node| node.inputs.as_slice());
    inputs.unwrap_or_default().iter().map(|input| plan.nodes[*input].id.to_string()).collect()
}

/// Each fold alone, and each pair of folds.
fn without(folds: usize) -> Vec<Vec<usize>> {
    let pairs = (0..folds).flat_map(|one| (one + 1..folds).map(move |other| vec![one, other]));
    (0..folds).map(|fold| vec![fold]).chain(pairs).collect()
}

/// The name of a set's directory.
fn name(set: &[usize]) -> String {
    format!("without-{}", set.iter().map(usize::to_string).collect::<Vec<_>>().join("-"))
}

fn told(set: &[usize]) -> String {
    let folds: Vec<String> = set.iter().map(|fold| (fold + 1).to_string()).collect();
    format!("fold{} {}", if set.len() == 1 { "" } else { "s" }, folds.join(" and "))
}

/// What was learned before the node, for each set of folds without it.
struct Learned {
    adapters: Vec<(String, Found, Vec<Array2<f32>>)>,
    asked: Vec<(String, Questions)>,
    files: tempfile::TempDir,
}

impl Learned {
    fn before(
        args: &TuneArgs,
        plan: &Plan,
        lists: &[String],
        tasks: &[Task],
        qrels: &Qrels,
        sets: &[Vec<usize>],
    ) -> Result<Self, Fault> {
        let upstream = plan.upstream(lists);
        let adapted = plan.models.iter().filter(|(_, model)| model.config.adapter().is_some()).map(|(name, _)| name);
        let mut adapters = Vec::new();
        for model in adapted {
            let uses = |at: &usize| match &plan.nodes[*at].kind {
                NodeKind::Operator(config) => config.models().iter().any(|used| used.name == model),
                NodeKind::Source(_) | NodeKind::Sink(_) => false,
            };
            if !upstream.iter().any(uses) {
                continue;
            }
            let dense = plan.nodes.iter().find(|node| model_of(node).as_ref() == Some(model)).ok_or_else(|| {
                Fault::Told(anyhow!(
                    "the adapter of `{model}` is learned from a node of the kind Dense, but none uses it"
                ))
            })?;
            let found = vectors(args, &dense.id, model, tasks, qrels)?;
            let settings = Settings { seed: args.seed, ..Settings::default() };
            let weights = learn_without(&found.vectors, &found.questions, &found.passages, sets, &settings);
            if weights.len() != sets.len() {
                return Err(Fault::Told(anyhow!("the adapter of `{model}` could not be learned")));
            }
            adapters.push((model.clone(), found, weights));
        }
        let mut asked = Vec::new();
        for at in upstream.iter().filter(|at| plan.nodes[**at].kind_name == asked::KIND) {
            let node = plan.nodes[*at].id.to_string();
            let questions = Questions::of(args, &node, tasks, qrels)?;
            asked.push((node, questions));
        }
        Ok(Self { adapters, asked, files: tempfile::tempdir()? })
    }

    fn told(&self) -> String {
        let adapters = self.adapters.iter().map(|(model, ..)| format!("the adapter of `{model}`"));
        let asked = self.asked.iter().map(|(node, _)| format!("the questions of `{node}`"));
        let all: Vec<String> = adapters.chain(asked).collect();
        if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
    }

    /// The settings that use what was learned without this set, the one with this number.
    fn overrides(&self, at: usize, set: &[usize]) -> Result<Vec<Override>, Fault> {
        let mut overrides = Vec::new();
        let quoted = |path: &Path| format!("{:?}", path.display().to_string());
        for (number, (model, found, weights)) in self.adapters.iter().enumerate() {
            let path = self.file(&format!("adapter-{number}-{at}"));
            let bytes = adapter::adapter(weights[at].clone(), &found.model, []).to_bytes();
            let bytes = bytes.map_err(|reason| anyhow!("the adapter cannot be written: {reason}"))?;
            std::fs::write(&path, bytes)?;
            overrides.push(Override { path: format!("models.{model}.adapter"), value: quoted(&path) });
        }
        for (number, (node, questions)) in self.asked.iter().enumerate() {
            let path = self.file(&format!("asked-{number}-{at}"));
            questions.write(&path, set)?;
            overrides.push(asked::field(node, quoted(&path)));
        }
        Ok(overrides)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }
}

/// The features and labels of some questions.
#[derive(Default)]
struct Table {
    /// Of shape `[candidates, columns]`.
    rows: Vec<f32>,
    /// The grade of each candidate.
    labels: Vec<i32>,
    /// The number of candidates of each question.
    groups: Vec<i32>,
    /// The fold of each question.
    folds: Vec<i32>,
    /// The number of relevant passages of each question, candidates or not.
    relevant: Vec<i32>,
    questions: Vec<String>,
    /// The ids of each question's candidates.
    passages: Vec<Vec<String>>,
}

impl Table {
    fn write(&self, directory: &Path, width: usize) -> Result<(), Fault> {
        std::fs::create_dir_all(directory)?;
        let floats = self.rows.iter().map(|value| value.to_le_bytes());
        npy(&directory.join("rows.npy"), "<f4", &[self.labels.len(), width], floats)?;
        let columns =
            [("labels", &self.labels), ("groups", &self.groups), ("folds", &self.folds), ("relevant", &self.relevant)];
        for (name, values) in columns {
            let values_bytes = values.iter().map(|value| value.to_le_bytes());
            npy(&directory.join(format!("{name}.npy")), "<i4", &[values.len()], values_bytes)?;
        }
        super::write(&directory.join("questions.json"), &format!("{}\n", json!(self.questions)))?;
        super::write(&directory.join("passages.json"), &format!("{}\n", json!(self.passages)))?;
        Ok(())
    }
}

/// Writes a NumPy file, format 1.0.
fn npy(path: &Path, kind: &str, shape: &[usize], values: impl Iterator<Item = [u8; 4]>) -> std::io::Result<()> {
    let shape: String = shape.iter().map(|size| format!("{size},")).collect();
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The header ends with a line end, and the values begin at a multiple of 64 bytes.
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(b"\x93NUMPY\x01\x00")?;
    file.write_all(&(header.len() as u16).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for value in values {
        file.write_all(&value)?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_folds_is_left_out_once() {
        let sets = without(5);
        assert_eq!(sets.len(), 15);
        assert!(sets.iter().all(|set| set.iter().all(|fold| *fold < 5)));
        assert_eq!((name(&sets[0]), name(&sets[14])), ("without-0".to_owned(), "without-3-4".to_owned()));
        assert_eq!(told(&sets[14]), "folds 4 and 5");
    }

    #[test]
    fn arrays_have_the_header_of_numpy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        npy(&path, "<f4", &[2, 1], [1.0_f32, 2.0].iter().map(|value| value.to_le_bytes())).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 64 + 64 + 8);
        assert!(
            bytes.starts_with(b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,1,), }")
        );
    }
}
