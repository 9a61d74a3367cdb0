//! `turnflow calibrate`: learns from labelled tasks when an `IdkNormalize` answers IDK.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;
use turnflow_engine::plan::Plan;
use turnflow_engine::record::Status;
use turnflow_engine::spec::Override;
use turnflow_engine::wording::count;

use super::answering::{Answered, answer_tasks};
use super::eval::{PartArg, part_of};
use super::output::check_file;
use super::tune::fold;
use super::{EngineArgs, Fault, Outcome, PipelineArgs, read, told, write};
use turnflow_eval::calibration::{Aim, Calibrated, Decisions, Example, auc, calibrate};
use turnflow_eval::generation::conditioning::Answerability;
use turnflow_eval::tasks::Task;

/// The kind whose threshold is learned.
const KIND: &str = "IdkNormalize";

/// Learn from labelled tasks when to answer "I do not know", and write it to a file to include.
///
/// The node's answers must have evidence: put an `Evidence` before it. The label of a task is its
/// `answerability`: ANSWERABLE and PARTIAL tasks should be answered, UNANSWERABLE and UNDERSPECIFIED
/// tasks should not. Other tasks are skipped.
#[derive(Args)]
pub struct CalibrateArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// MTRAG tasks with `answerability`, as JSON Lines.
    #[arg(long)]
    tasks: PathBuf,
    /// Learn only on the tasks of one half, by a hash of the first question of their conversation: `learn`. Then
    /// `turnflow eval --part held-out` measures on the other half.
    #[arg(long, value_enum, default_value = "all", hide_default_value = true)]
    part: PartArg,
    /// The IdkNormalize node to calibrate [default: the only one].
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// The objective for the threshold: accuracy, balanced, or over=SHARE (decline at most this share of the
    /// answerable tasks).
    #[arg(long, default_value = "accuracy")]
    aim: Aim,
    /// The signals of the evidence to use, separated by commas [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    signals: Vec<String>,
    /// The L2 penalty on the weights, at least 0.
    #[arg(long, default_value_t = 10.0, value_parser = penalty)]
    penalty: f64,
    /// Number of folds of the cross-validation. All tasks of a conversation are in the same fold. With
    /// 2, each half is measured with the weights learned on the other half.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=100))]
    folds: u16,
    /// Seed for assigning conversations to folds.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of different assignments to folds to measure.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    splits: u16,
    /// Write the result to this pipeline file, which is to be included after the pipeline's own file.
    #[arg(short, long, visible_alias = "out", value_name = "OUT.ron")]
    output: Option<PathBuf>,
    /// Write the figures and the trade-off curve to this file as JSON.
    #[arg(long, visible_alias = "json", value_name = "OUT.json")]
    figures: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(args: &CalibrateArgs) -> Outcome {
    check_file("--output", args.output.as_deref())?;
    check_file("--figures", args.figures.as_deref())?;
    let tasks = part_of(&args.tasks, args.part)?;
    let labelled: Vec<(&Task, bool)> = tasks.iter().filter_map(|task| Some((task, answerable(task)?))).collect();
    if labelled.is_empty() {
        let message = "no task of `{}` is labelled: `answerability` is missing";
        return Err(Fault::Told(anyhow!(message.replace("{}", &args.tasks.display().to_string()))));
    }
    let plan = args.pipeline.plan()?;
    let node = node(&plan, args.node.as_deref())?;
    let only: Vec<Task> = labelled.iter().map(|(task, _)| (*task).clone()).collect();
    let answers =
        |plan: Plan| answer_tasks(plan.towards(&[&node]), &args.engine, &only, std::slice::from_ref(&node), false);

    let before = answers(plan)?.by_task;
    // Run without a threshold, so that every task has its evidence.
    let mut set = args.pipeline.set.clone();
    for field in ["confidence", "min_support"] {
        set.push(Override { path: format!("nodes.{node}.{field}"), value: "None".to_owned() });
    }
    let planned = read(&args.pipeline.file, &set);
    let open = planned.plan.ok_or_else(|| told(&planned.diagnostics, &planned.sources))?;
    let after = answers(open)?.by_task;
    warn_of_failures(&before);
    warn_of_failures(&after);
    // A failed task is neither answered nor declined.
    let said = |task: &Task| {
        [&before, &after].iter().all(|run| run.get(task.id.as_str()).is_some_and(|one| one.answer.is_some()))
    };
    let tasks = labelled.len();
    let labelled: Vec<(&Task, bool)> = labelled.into_iter().filter(|(task, _)| said(task)).collect();
    if labelled.is_empty() {
        return Err(Fault::Run(anyhow!("every task failed, so there is nothing to learn from")));
    }
    if labelled.len() < tasks {
        println!("excluded: {} that failed", count(tasks - labelled.len(), "task"));
    }

    let names = signals(args, &after)?;
    let folds = u64::from(args.folds);
    let examples = |seed: u64| -> Vec<Example> {
        (labelled.iter())
            .map(|(task, answerable)| {
                let found = after.get(task.id.as_str());
                let value = |name: &String| found.and_then(|found| evidence(found)?.get(name)?.as_f64()).unwrap_or(0.0);
                Example {
                    signals: names.iter().map(value).collect(),
                    answerable: *answerable,
                    gives_up: !found.is_some_and(answered),
                    fold: fold(seed, &task.conversation_id, folds),
                }
            })
            .collect()
    };
    let learn = |seed: u64| {
        let examples = examples(seed);
        let what = "each fold of the cross-validation needs answers to both kinds of tasks, answerable and \
                    unanswerable; there are too few";
        let learned = calibrate(&examples, args.aim, args.penalty).ok_or_else(|| Fault::Told(anyhow!(what)))?;
        Ok::<_, Fault>((examples, learned))
    };
    let (examples, learned) = learn(args.seed)?;
    let mut accuracies = vec![learned.decisions.accuracy()];
    for split in 1..u64::from(args.splits) {
        accuracies.push(learn(args.seed.wrapping_add(split))?.1.decisions.accuracy());
    }
    let mean = accuracies.iter().sum::<f64>() / accuracies.len() as f64;
    let (low, high) = accuracies.iter().fold((1.0_f64, 0.0_f64), |(low, high), one| (low.min(*one), high.max(*one)));
    let always = Decisions::count(labelled.iter().map(|(_, answerable)| (*answerable, true)));
    let as_it_is = Decisions::count(
        labelled.iter().map(|(task, answerable)| (*answerable, before.get(task.id.as_str()).is_some_and(answered))),
    );
    // In that case the comparison is not fair: the threshold may have been learned on these tasks.
    let learned_before = before
        .values()
        .any(|found| found.answer.as_ref().is_some_and(|answer| answer.checks.contains_key("confidence")));
    let curve = curve(&examples, &learned.held_out);
    let area = auc(&examples, &learned.held_out);

    println!(
        "{}, {} of them answerable; {} folds by conversation",
        count(examples.len(), "task"),
        always.answerable,
        args.folds
    );
    println!("{:28}{:>9}{:>22}{:>24}", "", "accuracy", "declined, answerable", "answered, unanswerable");
    for (what, decisions) in [
        ("always answer", &always),
        (if learned_before { "as is (already learned)" } else { "pipeline as is" }, &as_it_is),
        ("calibrated, held out", &learned.decisions),
    ] {
        println!("{what:28}{:>9.4}{:>22}{:>24}", decisions.accuracy(), over(decisions), under(decisions));
    }
    println!("held out, {} random splits: accuracy {mean:.4} on average, {low:.4} to {high:.4}", accuracies.len());
    println!("\nheld out, by threshold (area under the ROC curve {area:.3}):");
    println!("{:>10}{:>10}{:>22}{:>24}", "threshold", "accuracy", "declined, answerable", "answered, unanswerable");
    for (threshold, decisions) in &curve {
        println!("{threshold:>10.2}{:>10.4}{:>22}{:>24}", decisions.accuracy(), over(decisions), under(decisions));
    }
    if let Some(path) = &args.figures {
        let figures = |decisions: &Decisions| {
            json!({
                "accuracy": decisions.accuracy(),
                "over_abstention": decisions.over_rate(),
                "under_abstention": decisions.under_rate(),
                "counts": decisions,
            })
        };
        let curve: Vec<_> = curve
            .iter()
            .map(|(threshold, decisions)| json!({"threshold": threshold, "figures": figures(decisions)}))
            .collect();
        let all = json!({
            "tasks": examples.len(),
            "always": figures(&always),
            "as_it_is": figures(&as_it_is),
            "held_out": figures(&learned.decisions),
            "held_out_by_split": accuracies,
            "auc": area,
            "curve": curve,
        });
        write(path, &format!("{all:#}\n"))?;
    }
    if let Some(path) = &args.output {
        write(path, &overlay(args, &node, &names, &learned, mean))?;
        println!("\nwritten to {}; include it after {}", path.display(), args.pipeline.file.display());
    }
    Ok(())
}

fn over(decisions: &Decisions) -> String {
    format!("{:.1} % ({}/{})", 100.0 * decisions.over_rate(), decisions.over, decisions.answerable)
}

fn under(decisions: &Decisions) -> String {
    format!("{:.1} % ({}/{})", 100.0 * decisions.under_rate(), decisions.under, decisions.unanswerable)
}

/// Whether a task should be answered; `None` if it has no label or is conversational.
fn answerable(task: &Task) -> Option<bool> {
    match Answerability::of(task)? {
        Answerability::Answerable | Answerability::Partial => Some(true),
        Answerability::Unanswerable | Answerability::Underspecified => Some(false),
        Answerability::Conversational => None,
    }
}

fn penalty(text: &str) -> Result<f64, String> {
    let penalty: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if penalty.is_finite() && penalty >= 0.0 { Ok(penalty) } else { Err("a penalty must be at least 0".to_owned()) }
}

fn answered(found: &Answered) -> bool {
    found.answer.as_ref().is_some_and(|answer| answer.status == Status::Answered)
}

fn evidence(found: &Answered) -> Option<&serde_json::Map<String, serde_json::Value>> {
    found.answer.as_ref()?.checks.get("evidence")?.as_object()
}

fn node(plan: &Plan, wanted: Option<&str>) -> Result<String, Fault> {
    let able: Vec<&Arc<str>> = plan.nodes.iter().filter(|node| node.kind_name == KIND).map(|node| &node.id).collect();
    let these = able.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
    match (wanted, &able[..]) {
        (Some(wanted), able) if able.iter().any(|id| ***id == *wanted) => Ok(wanted.to_owned()),
        (Some(wanted), []) => Err(Fault::Told(anyhow!("`{wanted}` is not an {KIND}, and the pipeline has none"))),
        (Some(wanted), _) => Err(Fault::Told(anyhow!("`{wanted}` is not an {KIND}; candidates: {these}"))),
        (None, [one]) => Ok(one.to_string()),
        (None, []) => Err(Fault::Told(anyhow!("the pipeline has no {KIND} to calibrate"))),
        (None, _) => Err(Fault::Told(anyhow!("the pipeline has several {KIND}; choose one with --node: {these}"))),
    }
}

/// The signals that all answers have.
fn signals(args: &CalibrateArgs, answers: &HashMap<Arc<str>, Answered>) -> Result<Vec<String>, Fault> {
    let mut common: Option<BTreeSet<String>> = None;
    for found in answers.values().filter(|found| answered(found)) {
        let names: BTreeSet<String> = evidence(found).into_iter().flat_map(|signals| signals.keys().cloned()).collect();
        common = Some(match common {
            Some(before) => before.intersection(&names).cloned().collect(),
            None => names,
        });
    }
    let common = common.unwrap_or_default();
    if common.is_empty() {
        return Err(Fault::Told(anyhow!("the answers have no evidence; put an `Evidence` before the {KIND}")));
    }
    if let Some(unknown) = args.signals.iter().find(|name| !common.contains(*name)) {
        let known = common.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        return Err(Fault::Told(anyhow!("unknown signal `{unknown}`; available: {known}")));
    }
    let wanted: BTreeSet<String> = args.signals.iter().cloned().collect();
    Ok(if wanted.is_empty() { common } else { wanted }.into_iter().collect())
}

fn warn_of_failures(answers: &HashMap<Arc<str>, Answered>) {
    let failures: Vec<&String> = answers.values().filter_map(|found| found.failure.as_ref()).collect();
    if let Some(first) = failures.first() {
        eprintln!("warning: {} of {} failed, the first with: {first}", failures.len(), count(answers.len(), "task"));
    }
}

/// The decisions at thresholds from 0 to 1.
fn curve(examples: &[Example], held_out: &[f64]) -> Vec<(f64, Decisions)> {
    let at = |threshold: f64| {
        let decide = |(example, probability): (&Example, &f64)| {
            (example.answerable, !example.gives_up && *probability >= threshold)
        };
        (threshold, Decisions::count(examples.iter().zip(held_out).map(decide)))
    };
    (0..=20).map(|step| at(f64::from(step) / 20.0)).collect()
}

fn overlay(args: &CalibrateArgs, node: &str, names: &[String], learned: &Calibrated, mean: f64) -> String {
    let weights: Vec<String> = names
        .iter()
        .zip(&learned.calibration.weights)
        .map(|(name, weight)| format!("                    {name:?}: {weight:.6},\n"))
        .collect();
    format!(
        "// Learned by `turnflow calibrate` on {tasks}. On held-out tasks ({folds} folds): accuracy {mean:.4}, the\n\
         // mean of {splits} random splits; {accuracy:.4} with seed {seed}, {over:.1} % of the answerable\n\
         // declined, {under:.1} % of the unanswerable answered.\n\
         Pipeline(\n    nodes: {{\n        \"{node}\": (\n            min_support: None,\n            \
         confidence: Some((\n                weights: {{\n{weights}                }},\n                \
         bias: {bias:.6},\n                threshold: {threshold:.4},\n            )),\n        ),\n    }},\n)\n",
        tasks = args.tasks.file_name().map(|name| name.to_string_lossy()).unwrap_or_default(),
        accuracy = learned.decisions.accuracy(),
        folds = args.folds,
        splits = args.splits,
        seed = args.seed,
        over = 100.0 * learned.decisions.over_rate(),
        under = 100.0 * learned.decisions.under_rate(),
        weights = weights.concat(),
        bias = learned.calibration.bias,
        threshold = learned.calibration.threshold,
    )
}
