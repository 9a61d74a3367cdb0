//! `turnflow eval`: runs tasks through a pipeline, and scores hits against judgements and answers
//! against references. `matrix/` does so for each row of a matrix.

mod args;
mod evaluation;
mod generation;
mod inputs;
mod judged;
pub(super) mod matrix;
mod predictions;
mod published;
mod report;
mod subtasks;
mod table;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value as Json;
use turnflow_engine::spec::load;
use turnflow_engine::wording::count;

pub use self::args::EvalArgs;
pub(super) use self::evaluation::scored_run;
use self::evaluation::{Evaluation, Ready, Scored, Subject};
pub(super) use self::inputs::{PartArg, judgements, part_of};
use self::inputs::{hits_nodes, wanted};
use super::output::{check_directory, check_file};
use super::{Fault, Outcome, PipelineArgs, told, write};
use turnflow_eval::metrics::{self, Level, Qrels, Run};
use turnflow_eval::trec::{read_run, write_run};

pub(super) fn run(args: &EvalArgs) -> Outcome {
    if let Some(folder) = &args.published {
        return published::run(args, folder);
    }
    if let Some(file) = args.file.as_deref() {
        if turnflow_eval::matrix::is_matrix(file) {
            return matrix::run(args, file, args.check_for_matrix());
        }
        // A matrix whose syntax is wrong may not be recognised as one, and has no `--tasks`.
        if args.tasks.is_none() {
            let loaded = load(file, &args.set);
            if !loaded.diagnostics.is_empty() {
                return Err(told(&loaded.diagnostics, &loaded.sources));
            }
        }
    }
    run_pipeline(args, args.check_for_pipeline())
}

/// Evaluates one pipeline, or given answers.
fn run_pipeline(args: &EvalArgs, tasks_file: &Path) -> Outcome {
    let told = |error: anyhow::Error| Fault::Told(error);
    for (option, path) in [("--output", &args.output), ("--run", &args.run), ("--predictions", &args.predictions)] {
        check_file(option, path.as_deref())?;
    }
    check_directory("--report", args.report.as_deref(), &["report.json", "index.html"])?;
    check_directory("--subtasks", args.subtasks.as_deref(), &subtasks::files())?;
    let metrics = args.metrics.as_deref().map(generation::Metrics::read).transpose()?;
    let tasks = inputs::tasks(tasks_file, args.max_references, args)?;
    let against = args.against.as_deref().map(read_run).transpose().map_err(|error| told(error.into()))?;
    let beside =
        args.beside.as_deref().map(turnflow_eval::report::read).transpose().map_err(|error| told(error.into()))?;
    let qrels = args.qrels.as_deref().map(|qrels| judgements(qrels, &tasks)).transpose()?;
    if let (Some(path), Some(qrels)) = (&args.qrels, &qrels) {
        judged::warn_of_tasks(path, qrels, &tasks);
    }
    let (plan, nodes) = match &args.file {
        Some(file) => {
            let plan = PipelineArgs { file: file.clone(), set: args.set.clone() }.plan()?;
            let nodes = hits_nodes(&plan, &args.hits, qrels.is_some())?;
            (Some(wanted(plan, &nodes, args.only_hits)), nodes)
        }
        None => (None, vec![predictions::NODE.to_owned()]),
    };
    let origins = plan.as_ref().filter(|_| args.subtasks.is_some()).map(subtasks::Origins::of);
    if origins.is_some() {
        subtasks::check(&tasks)?;
    }
    let (title, hash) = plan.as_ref().map_or_else(Default::default, |plan| (plan.name.clone(), plan.hash.to_string()));
    let subject = Subject { tasks: &tasks, qrels: qrels.as_ref(), nodes };
    let ready = Ready::new(subject, plan, metrics, &args.engine)?;

    let mut evaluation = ready.run(&args.engine, args.answers.as_deref(), args.report.is_some())?;
    if let (failed, Some(first)) = &evaluation.failed {
        eprintln!("warning: {failed} of {} failed, the first with: {first}", count(tasks.len(), "task"));
    }
    if let Some(qrels) = &qrels {
        tell_hits(args, &mut evaluation, against.as_ref(), qrels)?;
    }
    if let Some(report) = evaluation.score_answers(&tasks)? {
        if qrels.is_some() {
            println!();
        }
        generation::print(&report);
    }
    let Evaluation { named, found, figures, .. } = &evaluation;
    if let Some(path) = &args.output {
        write(path, &format!("{:#}\n", Json::Object(figures.clone())))?;
    }
    if let Some(path) = &args.predictions {
        write(path, &predictions::text(found.node(), &tasks, &found.results))?;
    }
    if let (Some(directory), Some(origins)) = (&args.subtasks, &origins) {
        subtasks::write_files(directory, &tasks, found, origins)?;
    }
    if let Some(directory) = &args.report {
        let tasks_file = tasks_file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let head = turnflow_eval::report::Report { title, pipeline: hash, tasks_file, ..Default::default() };
        let report = report::make(head, named, found, qrels.as_ref(), evaluation.scores(), figures);
        let page = turnflow_eval::report::write(directory, &report, beside.as_ref())?;
        println!("report: {}", page.display());
    }
    Ok(())
}

/// Prints the scores of the hits, compares them with those of another run, and writes the run.
fn tell_hits(args: &EvalArgs, evaluation: &mut Evaluation, against: Option<&Run>, qrels: &Qrels) -> Result<(), Fault> {
    let Evaluation { named, found, scored, figures, .. } = evaluation;
    let Some((node, Scored { run, level, scores })) = scored.last() else { return Ok(()) };
    match scored.as_slice() {
        [_] => table::print(node, scores, named.len(), found.seconds, *level),
        several => table::print_side_by_side(several, named.len(), found.seconds),
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
    Ok(())
}
