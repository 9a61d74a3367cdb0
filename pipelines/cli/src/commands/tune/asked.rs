//! Writes the labelled questions of an `AskedBefore` node.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use turnflow_engine::spec::Override;
use turnflow_engine::wording::count;
use turnflow_eval::metrics::{self, Qrels};
use turnflow_eval::tasks::Task;
use turnflow_operators::asked_before::Labelled;

use super::super::answering::{Answered, answer_tasks};
use super::super::eval::scored_run;
use super::super::{Fault, Outcome};
use super::{TuneArgs, fold, warn_of_failures, with};

/// The name of the operator.
pub(super) const KIND: &str = "AskedBefore";

/// The labelled questions of a node, each with its fold.
pub(super) struct Questions(Vec<(usize, Labelled)>);

impl Questions {
    /// The judged questions, as the node searches for them.
    pub fn of(args: &TuneArgs, node: &str, tasks: &[Task], qrels: &Qrels) -> Result<Self, Fault> {
        let plan = with(args, &[field(node, "None".to_owned())])?;
        let answers = answer_tasks(plan.towards(&[node]), &args.engine, tasks, &[node.to_owned()], false)?.by_task;
        warn_of_failures(&answers);
        let question = |task: &Task| {
            let passages = qrels.get(&task.id).filter(|judged| judged.values().any(|grade| *grade > 0))?;
            let question = answers.get(&*task.id)?.query(node)?.to_owned();
            let fold = fold(args.seed, &task.conversation_id, u64::from(args.folds));
            let passages = passages.iter().map(|(id, grade)| (id.clone(), *grade)).collect();
            Some((fold, Labelled { question, passages }))
        };
        Ok(Self(tasks.iter().filter_map(question).collect()))
    }

    /// Writes the questions that are in none of these folds.
    pub fn write(&self, path: &Path, without: &[usize]) -> Result<(), Fault> {
        let written = || -> std::io::Result<()> {
            let mut file = BufWriter::new(File::create(path)?);
            for (_, labelled) in self.0.iter().filter(|(fold, _)| !without.contains(fold)) {
                serde_json::to_writer(&mut file, labelled)?;
                file.write_all(b"\n")?;
            }
            file.into_inner()?.sync_all()
        };
        written().map_err(|error| Fault::Told(anyhow!("cannot write `{}`: {error}", path.display())))
    }
}

/// Sets the node's questions; the value is RON.
pub(super) fn field(node: &str, value: String) -> Override {
    Override { path: format!("nodes.{node}.questions"), value }
}

/// Reports what the questions of the other folds find, and writes the questions of all folds.
pub(super) fn run(args: &TuneArgs, tasks: &[Task], qrels: &Qrels) -> Outcome {
    let node = args.node.as_str();
    let questions = Questions::of(args, node, tasks, qrels)?;
    if questions.0.is_empty() {
        return Err(Fault::Told(anyhow!("no task has a judged passage: questions are learned from judgements")));
    }
    let directory = tempfile::tempdir()?;
    let mut held_out: HashMap<Arc<str>, Answered> = HashMap::new();
    for number in 0..usize::from(args.folds) {
        let of_fold = |task: &&Task| fold(args.seed, &task.conversation_id, u64::from(args.folds)) == number;
        let held: Vec<Task> = tasks.iter().filter(of_fold).cloned().collect();
        if held.is_empty() {
            continue;
        }
        let file = directory.path().join(format!("{number}.jsonl"));
        questions.write(&file, &[number])?;
        let plan = with(args, &[field(node, format!("{:?}", file.display().to_string()))])?;
        held_out.extend(answer_tasks(plan.towards(&[node]), &args.engine, &held, &[node.to_owned()], false)?.by_task);
    }
    let (run, _) = scored_run(node, &held_out, qrels);
    let figures = metrics::score(qrels, &run).mean;
    println!("{}, held out in {} folds", count(questions.0.len(), "question"), args.folds);
    for metric in turnflow_eval::adapting::COMPARED {
        println!("  {metric:<12} {:>6.1}", 100.0 * figures.get(metric).unwrap_or_default());
    }
    if figures.get("recall@10").unwrap_or_default() <= 0.0 {
        println!("the questions of other folds find none of the judged passages: nothing is written");
        return Ok(());
    }
    if let Some(path) = &args.output {
        questions.write(path, &[])?;
        println!("written to {}; set it as `questions` of the node `{node}`", path.display());
    }
    Ok(())
}
