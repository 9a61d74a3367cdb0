//! `turnflow review`: the answers that people judge.

mod shown;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use serde_json::json;
use turnflow_engine::connector::{ReviewError, ReviewItem, ReviewList, ReviewPage, ReviewQueue};
use turnflow_engine::plan::{NodeKind, Plan};
use turnflow_engine::wording::count;
use turnflow_review::export::Export;
use turnflow_review::journal::Judged;
use turnflow_review::queue::Queue;
use turnflow_review::verdicts;

use super::output::{check_apart, check_directory, check_file};
use super::{Fault, Outcome, PipelineArgs, output, write};

/// The files of an export.
const FILES: [&str; 3] = ["tasks.jsonl", "qrels.tsv", "review.test.ron"];

/// Show the answers that wait for people to judge them, take verdicts, and write test sets of them.
///
/// FILE has a node `Review`, whose journal is read; a run or a server that writes it may go on. The
/// oldest answers come first.
///
///   turnflow review p.ron
///   turnflow review p.ron --format jsonl > open.jsonl
///   turnflow review p.ron --verdicts judged.jsonl
///   turnflow review p.ron --export set
///
/// A verdict is a line such as {"id": "…", "verdict": "good"}: `good`, `bad` or `unsure`, and, if they are
/// known, `correction` (the right answer), `answerable`, `relevant` and `irrelevant` (ids of passages), `comment`
/// and `by`. A line of `--format jsonl` with a verdict added to it is one, too. If a line is wrong, none is taken. A
/// file may be given again: what is known already is left out.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ReviewArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The node, if the file has several `Review`.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// The form of the list.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
    /// Show the answers that were judged, the newest verdict first.
    #[arg(long)]
    judged: bool,
    /// Only answers that this rule took.
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,
    /// Maximum number of answers [default: 20 as text, otherwise all].
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Write the list to this file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Take the verdicts of this file, as JSON Lines; - for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["judged", "rule", "limit", "output", "export"])]
    verdicts: Option<PathBuf>,
    /// Who has judged, for verdicts without `by`.
    #[arg(long, value_name = "NAME", requires = "verdicts")]
    by: Option<String>,
    /// Write what was judged as a test set: DIR/tasks.jsonl and DIR/qrels.tsv for `eval`, `tune` and `calibrate`, and
    /// DIR/review.test.ron for `test`.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["judged", "rule", "limit", "output"])]
    export: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For a terminal.
    Text,
    /// For a page or an issue.
    Markdown,
    /// One line for each answer, to which a verdict can be added.
    Jsonl,
    /// All data.
    Json,
}

pub(super) fn run(args: &ReviewArgs) -> Outcome {
    check_file("--output", args.output.as_deref())?;
    check_directory("--export", args.export.as_deref(), &FILES)?;
    let plan = args.pipeline.described()?;
    let (node, path) = journal(&plan, args.node.as_deref())?;
    check_apart("--output", args.output.as_deref(), &path)?;
    let missing = || {
        let path = path.display();
        Fault::Told(anyhow!("there is no `{path}` yet: a run of this pipeline writes it"))
    };
    if let Some(file) = &args.verdicts {
        if !path.exists() {
            return Err(missing());
        }
        return judge(&Queue::open(&node, &path)?, file, args.by.as_deref());
    }
    let queue = Queue::existing(&node, &path)?.ok_or_else(missing)?;
    if let Some(directory) = &args.export {
        return export(&Export::of(&queue.judged()?), directory);
    }
    let limit = args.limit.unwrap_or(if args.format == Form::Text { 20 } else { usize::MAX });
    let list = queue.list(&ReviewPage { judged: args.judged, limit, after: None, rule: args.rule.clone() })?;
    let text = match args.format {
        Form::Text => shown::text(&list, args.judged),
        Form::Markdown => shown::markdown(&list, args.judged),
        Form::Jsonl => lines(&list.items)?,
        Form::Json => format!("{:#}\n", json!(list)),
    };
    match &args.output {
        Some(file) => write(file, &text).map_err(Fault::Run),
        None => {
            output::write(format_args!("{text}"));
            Ok(())
        }
    }
}

fn lines(items: &[ReviewItem]) -> Result<String, Fault> {
    let line = |item| serde_json::to_string(item).map(|line| line + "\n");
    Ok(items.iter().map(line).collect::<Result<String, _>>()?)
}

/// The node, and its journal.
fn journal(plan: &Plan, node: Option<&str>) -> Result<(String, PathBuf), Fault> {
    let found = plan.nodes.iter().filter(|planned| planned.kind_name == turnflow_review::sink::KIND.name);
    let found: Vec<_> = found.filter(|planned| node.is_none_or(|node| *planned.id == *node)).collect();
    let told = |reason: String| Err(Fault::Told(anyhow!(reason)));
    match (&found[..], node) {
        ([one], _) => {
            let file = match &one.kind {
                NodeKind::Sink(config) => config.another_file(),
                _ => None,
            };
            file.map(|file| (one.id.to_string(), file)).ok_or_else(|| Fault::Told(anyhow!("no journal")))
        }
        ([], Some(node)) => told(format!("the pipeline has no node `{node}` of the kind `Review`")),
        ([], None) => told(
            "the pipeline has no node `Review`: add, for example, \"review\": Review(input: \"final\", path: \
             \"review.jsonl\", rules: {\"declined\": (of: Declined)})"
                .to_owned(),
        ),
        (several, _) => {
            let names: Vec<String> = several.iter().map(|node| format!("`{}`", node.id)).collect();
            told(format!("the pipeline has several nodes `Review`: choose one of {} with --node", names.join(", ")))
        }
    }
}

/// Takes the verdicts of a file: all of them, or none.
fn judge(queue: &Queue, file: &Path, by: Option<&str>) -> Outcome {
    let name = if file == Path::new("-") { "standard input".to_owned() } else { format!("`{}`", file.display()) };
    let read = match file == Path::new("-") {
        true => {
            let mut text = String::new();
            std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(file),
    };
    let text = read.map_err(|error| Fault::Told(anyhow!("cannot read {name}: {error}")))?;
    let (verdicts, mut wrong) = verdicts::read(text.trim_start_matches('\u{feff}'), by);
    let (numbers, verdicts): (Vec<usize>, Vec<Judged>) = verdicts.into_iter().unzip();
    let mut new = 0;
    if wrong.is_empty() {
        match queue.judge_all(&verdicts) {
            Ok(taken) => new = taken,
            Err(errors) => {
                for (at, error) in errors {
                    match error {
                        ReviewError::Failed(error) => return Err(error.into()),
                        error => wrong.push((numbers.get(at).copied().unwrap_or_default(), error.to_string())),
                    }
                }
            }
        }
    }
    if let Some((number, reason)) = wrong.first() {
        let more = match wrong.len() - 1 {
            0 => String::new(),
            1 => "; 1 line is wrong as well".to_owned(),
            more => format!("; {more} lines are wrong as well"),
        };
        return Err(Fault::Told(anyhow!("{name}, line {number}: {reason}{more}. No verdict was taken")));
    }
    let known = match verdicts.len() - new {
        0 => String::new(),
        known => format!("; {known} known already"),
    };
    let open = queue.counts()?.open as u64;
    output::tell(format_args!("{} taken{known}; {} open", count(new as u64, "verdict"), count(open, "answer")));
    Ok(())
}

/// Writes what was judged.
fn export(export: &Export, directory: &Path) -> Outcome {
    let Export { tasks, qrels, tests, counts: [tasked, judged, tested], unsure, .. } = export;
    std::fs::create_dir_all(directory).map_err(|error| Fault::Run(anyhow!("cannot create the directory: {error}")))?;
    for (name, text) in FILES.into_iter().zip([tasks, qrels, tests]) {
        write(&directory.join(name), text).map_err(Fault::Run)?;
    }
    let left = match unsure {
        0 => String::new(),
        unsure => format!("; {unsure} left out, because nobody is sure"),
    };
    let (tasks, judgements, tests) = (count(*tasked, "task"), count(*judged, "judgement"), count(*tested, "test"));
    output::tell(format_args!("{tasks}, {judgements} and {tests} in {}{left}", directory.display()));
    Ok(())
}

/// `2 open, 1 judged; 3 were left out because the queue was full.`
fn summary(list: &ReviewList) -> String {
    let ReviewList { open, judged, left_out, .. } = list;
    let left = match left_out {
        0 => String::new(),
        1 => "; 1 was left out because the queue was full".to_owned(),
        left => format!("; {left} were left out because the queue was full"),
    };
    format!("{} open, {judged} judged{left}.\n", count(*open as u64, "answer"))
}
