//! `turnflow gaps`: the questions without an answer, in groups.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use chrono::DateTime;
use clap::{Args, ValueEnum};
use serde_json::json;
use turnflow_engine::plan::{NodeKind, Plan};
use turnflow_engine::wording::count;
use turnflow_gaps::book::Book;
use turnflow_gaps::journal::{Journal, Line};
use turnflow_gaps::report::{Gap, Report, State};

use super::{Fault, Outcome, PipelineArgs, output, write};

/// Show the questions that lack an answer, in groups.
///
/// FILE has a node `Gaps`, whose journal is read; a run that writes it may go on. The gaps with the most open questions
/// come first.
///
///   turnflow gaps p.ron
///   turnflow gaps p.ron --gap g3
///   turnflow gaps p.ron --dismiss g3 --reason "not our subject"
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct GapsArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The node, if the file has several `Gaps`.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// The form of the report.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
    /// Show settled and dismissed gaps, too.
    #[arg(long)]
    all: bool,
    /// Maximum number of gaps [default: 20 as text, otherwise all].
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Show one gap with its questions, its passages and its history.
    #[arg(long, value_name = "ID")]
    gap: Option<String>,
    /// Write the report to this file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Put a gap aside: it does not count any more.
    #[arg(long, value_name = "ID", conflicts_with_all = ["gap", "reopen", "export"])]
    dismiss: Option<String>,
    /// Why it is put aside.
    #[arg(long, value_name = "TEXT", requires = "dismiss", default_value = "")]
    reason: String,
    /// Let a gap that was put aside count again.
    #[arg(long, value_name = "ID", conflicts_with_all = ["gap", "export"])]
    reopen: Option<String>,
    /// Write the questions as a test set: DIR/tasks.jsonl, and DIR/qrels.tsv with the passages that settled them.
    #[arg(long, value_name = "DIR", conflicts_with = "gap")]
    export: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For a terminal.
    Text,
    /// For a page or an issue: a list of tasks for writers.
    Markdown,
    /// One line for each gap.
    Csv,
    /// All data.
    Json,
}

pub(super) fn run(args: &GapsArgs) -> Outcome {
    let plan = args.pipeline.described()?;
    let path = journal(&plan, args.node.as_deref())?;
    output::check_apart("--output", args.output.as_deref(), &path)?;
    let mut book = Book::new(None);
    let fault = |error| Fault::Run(anyhow!("{error}"));
    if !Journal::read(&path, |line| book.take(line)).map_err(fault)? {
        let path = path.display();
        return Err(Fault::Told(anyhow!("there is no `{path}` yet: a run of this pipeline writes it")));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs_f64()).unwrap_or_default();
    for (gap, reason) in [(&args.dismiss, Some(args.reason.clone())), (&args.reopen, None)] {
        let Some(gap) = gap else { continue };
        let group = number(&book, gap)?;
        let is_dismissed = reason.is_some();
        Journal::note(&path, &Line::Dismissed { group, reason, at: now }).map_err(fault)?;
        output::tell(format_args!("{gap} {}", if is_dismissed { "is put aside" } else { "counts again" }));
        return Ok(());
    }
    let report = Report::of(&book, now);
    if let Some(directory) = &args.export {
        return export(&report, directory);
    }
    let text = match &args.gap {
        Some(gap) => {
            let written = turnflow_gaps::edits::written(number(&book, gap)?);
            let found = report.gaps.iter().find(|gap| gap.id == written);
            one(found.ok_or_else(|| Fault::Told(anyhow!("there is no gap `{gap}`")))?, args.format)?
        }
        None => whole(&report, args)?,
    };
    match &args.output {
        Some(file) => write(file, &text).map_err(Fault::Run),
        None => {
            output::write(format_args!("{text}"));
            Ok(())
        }
    }
}

/// The journal of the node.
fn journal(plan: &Plan, node: Option<&str>) -> Result<PathBuf, Fault> {
    let found = plan.nodes.iter().filter(|planned| planned.kind_name == turnflow_gaps::sink::KIND.name);
    let found: Vec<_> = found.filter(|planned| node.is_none_or(|node| *planned.id == *node)).collect();
    let told = |reason: String| Err(Fault::Told(anyhow!(reason)));
    match (&found[..], node) {
        ([one], _) => match &one.kind {
            NodeKind::Sink(config) => config.file().map(Path::to_owned).ok_or_else(|| Fault::Told(anyhow!("no journal"))),
            _ => told("no journal".to_owned()),
        },
        ([], Some(node)) => told(format!("the pipeline has no node `{node}` of the kind `Gaps`")),
        ([], None) => told(
            "the pipeline has no node `Gaps`: add, for example, \"gaps\": Gaps(input: \"final\", model: \"minilm\", path: \
             \"gaps.jsonl\")"
                .to_owned(),
        ),
        (several, _) => {
            let names: Vec<String> = several.iter().map(|node| format!("`{}`", node.id)).collect();
            told(format!("the pipeline has several nodes `Gaps`: choose one of {} with --node", names.join(", ")))
        }
    }
}

/// The present number of a gap, as it is written: `g3`.
fn number(book: &Book, gap: &str) -> Result<u64, Fault> {
    let group = gap.strip_prefix('g').unwrap_or(gap).parse().ok().map(|group| book.present(group));
    let group = group.filter(|&group| book.groups.has(group));
    group.ok_or_else(|| Fault::Told(anyhow!("there is no gap `{gap}`; `turnflow gaps FILE --all` shows all")))
}

fn whole(report: &Report, args: &GapsArgs) -> Result<String, Fault> {
    let is_shown = |gap: &&Gap| args.all || matches!(gap.state, State::Open | State::Reopened);
    let limit = args.limit.unwrap_or(if args.format == Form::Text { 20 } else { usize::MAX });
    let gaps: Vec<&Gap> = report.gaps.iter().filter(is_shown).collect();
    let more = gaps.len().saturating_sub(limit);
    let gaps = &gaps[..gaps.len() - more];
    Ok(match args.format {
        Form::Text => text(report, gaps, more),
        Form::Markdown => markdown(report, gaps),
        Form::Csv => csv(gaps)?,
        Form::Json => {
            let mut all = serde_json::to_value(report).map_err(|error| Fault::Run(error.into()))?;
            all["gaps"] = json!(gaps);
            format!("{all:#}\n")
        }
    })
}

/// `2026-11-29`.
pub(super) fn date(at: f64) -> String {
    DateTime::from_timestamp(at as i64, 0).map(|time| time.format("%Y-%m-%d").to_string()).unwrap_or_default()
}

fn state(gap: &Gap) -> String {
    let by = match (&gap.by[..], gap.epoch) {
        ([], _) => String::new(),
        ([one], _) => format!(" by {one}"),
        ([one, rest @ ..], _) => format!(" by {one} and {} more", rest.len()),
    };
    match gap.state {
        State::Open => "open".to_owned(),
        State::Reopened => format!("open again{by}"),
        State::Settled => format!("settled{by}"),
        State::Dismissed => match gap.reason.as_deref().unwrap_or_default() {
            "" => "put aside".to_owned(),
            reason => format!("put aside: {reason}"),
        },
    }
}

fn summary(report: &Report) -> String {
    let Report { open_questions, open_gaps, first_ten, this_week, last_week, turns, .. } = report;
    let share = if *open_questions > 0 { first_ten * 100 / open_questions } else { 0 };
    let mut text = format!(
        "{} without an answer, in {}; {} were seen.\n",
        count(*open_questions as u64, "question"),
        count(*open_gaps as u64, "gap"),
        count(*turns, "turn"),
    );
    if *open_gaps > 10 {
        let _ = writeln!(text, "The first ten have {first_ten} of them ({share} %).");
    }
    let _ = writeln!(text, "New in the last seven days: {this_week}; in the seven days before: {last_week}.");
    text
}

fn text(report: &Report, gaps: &[&Gap], more: usize) -> String {
    let mut text = summary(report);
    for gap in gaps {
        let people = if gap.people > 0 { format!(", {}", people(gap.people)) } else { String::new() };
        let _ = write!(
            text,
            "\n{:<5} {}\n      {} of {} open, {}{people}, last on {}; {}\n      {}\n",
            gap.id,
            clean(&gap.name, 90),
            gap.open,
            count(gap.questions as u64, "question"),
            count(gap.conversations as u64, "conversation"),
            date(gap.last),
            state(gap),
            gap.kind.text(),
        );
    }
    if more > 0 {
        let _ = writeln!(text, "\n{} more; --limit N shows them.", count(more as u64, "gap"));
    }
    text
}

fn people(number: usize) -> String {
    if number == 1 { "1 person".to_owned() } else { format!("{number} people") }
}

/// A text in one line without control characters, and without those that turn its surroundings around.
pub(super) fn clean(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control() && !turns_around(*c)).collect();
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn turns_around(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The same, with the marks of Markdown escaped.
pub(super) fn escaped(text: &str, most: usize) -> String {
    let mut escaped = String::new();
    for c in clean(text, most).chars() {
        if "\\`*_[]<>#|!&~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn markdown(report: &Report, gaps: &[&Gap]) -> String {
    let mut text = format!("# Questions without an answer\n\n{}", summary(report));
    for gap in gaps {
        let done = if matches!(gap.state, State::Settled | State::Dismissed) { 'x' } else { ' ' };
        let _ = write!(
            text,
            "\n- [{done}] **{}** ({}): {} of {} open, {}; {}. {}.\n",
            escaped(&gap.name, 200),
            gap.id,
            gap.open,
            gap.questions,
            count(gap.conversations as u64, "conversation"),
            escaped(&state(gap), 200),
            capital(gap.kind.text()),
        );
        for entry in gap.entries.iter().filter(|entry| entry.outcome.is_gap() && *entry.question != *gap.name).take(5) {
            let _ = writeln!(text, "  - {}", escaped(&entry.question, 200));
        }
        if let Some(near) = gap.passages.first() {
            let _ = writeln!(text, "  - Nearest document: {}", escaped(&near.document, 200));
        }
    }
    text
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn csv(gaps: &[&Gap]) -> Result<String, Fault> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = [
        "gap",
        "name",
        "terms",
        "kind",
        "state",
        "by",
        "open",
        "questions",
        "conversations",
        "people",
        "first",
        "last",
        "this_week",
        "last_week",
        "document",
    ];
    let fault = |error: csv::Error| Fault::Run(error.into());
    writer.write_record(header).map_err(fault)?;
    for gap in gaps {
        let named = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let document = gap.passages.first().map(|near| near.document.to_string()).unwrap_or_default();
        let row = [
            gap.id.clone(),
            clean(&gap.name, usize::MAX),
            gap.terms.join(" "),
            named(json!(gap.kind)),
            named(json!(gap.state)),
            gap.by.join(" "),
            gap.open.to_string(),
            gap.questions.to_string(),
            gap.conversations.to_string(),
            gap.people.to_string(),
            date(gap.first),
            date(gap.last),
            gap.this_week.to_string(),
            gap.last_week.to_string(),
            document,
        ];
        // A cell that a spreadsheet would take for a formula begins with an apostrophe.
        let safe = row.map(|cell| if cell.starts_with(['=', '+', '-', '@']) { format!("'{cell}") } else { cell });
        writer.write_record(safe).map_err(fault)?;
    }
    let bytes = writer.into_inner().map_err(|error| Fault::Run(anyhow!(error.to_string())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A gap with its questions, its passages and its history.
fn one(gap: &Gap, form: Form) -> Result<String, Fault> {
    match form {
        Form::Json => return Ok(format!("{:#}\n", json!(gap))),
        Form::Csv => return csv(&[gap]),
        Form::Text | Form::Markdown => {}
    }
    let mut text = format!("{} {}\n{}; {}\n", gap.id, clean(&gap.name, 200), state(gap), gap.kind.text());
    let _ = writeln!(text, "terms: {}", gap.terms.join(", "));
    let _ = writeln!(text, "\n{}:", count(gap.questions as u64, "question"));
    for entry in &gap.entries {
        let outcome = json!(entry.outcome).as_str().unwrap_or_default().to_owned();
        let (conversation, turn) = (clean(&entry.conversation_id, 60), entry.turn);
        let _ = writeln!(text, "  {} {outcome:<11} {}", date(entry.at), clean(&entry.question, 120));
        let _ = writeln!(text, "             {conversation}, turn {turn}");
        for pair in entry.history.windows(2).filter(|pair| pair[0].1 != pair[1].1) {
            let (epoch, outcome, documents) = &pair[1];
            let outcome = json!(outcome).as_str().unwrap_or_default().to_owned();
            let by = if documents.is_empty() { String::new() } else { format!(", by {}", documents.join(", ")) };
            let _ = writeln!(text, "             epoch {epoch}: {}", clean(&format!("{outcome}{by}"), 120));
        }
    }
    if !gap.passages.is_empty() {
        text.push_str("\nnearest passages:\n");
        for near in &gap.passages {
            let likeness = near.likeness.map(|likeness| format!("{likeness:.2}")).unwrap_or_default();
            let _ = writeln!(text, "  {likeness:<5} {}", clean(&near.passage, 120));
        }
    }
    Ok(text)
}

/// Writes the questions as tasks, and the passages that settled them as judgements.
fn export(report: &Report, directory: &Path) -> Outcome {
    std::fs::create_dir_all(directory).map_err(|error| Fault::Run(anyhow!("cannot create the directory: {error}")))?;
    let (mut tasks, mut qrels, mut judged) = (String::new(), "query-id\tcorpus-id\tscore\n".to_owned(), 0);
    let gaps = report.gaps.iter().filter(|gap| gap.state != State::Dismissed);
    for (gap, entry) in gaps.flat_map(|gap| gap.entries.iter().map(move |entry| (gap, entry))) {
        let task_id = format!("{}<::>{}", entry.conversation_id, entry.turn);
        let answerability = if entry.outcome.is_gap() { "UNANSWERABLE" } else { "ANSWERABLE" };
        let task = json!({
            "task_id": task_id,
            "conversation_id": entry.conversation_id,
            "turn": entry.turn,
            "input": [{ "speaker": "user", "text": entry.question }],
            "answerability": [answerability],
            "gap": gap.id,
        });
        let _ = writeln!(tasks, "{task}");
        for passage in &entry.settled_by {
            judged += 1;
            let _ = writeln!(qrels, "{task_id}\t{passage}\t1");
        }
    }
    let (first, second) = (directory.join("tasks.jsonl"), directory.join("qrels.tsv"));
    write(&first, &tasks).map_err(Fault::Run)?;
    write(&second, &qrels).map_err(Fault::Run)?;
    let tasks = count(tasks.lines().count() as u64, "task");
    output::tell(format_args!("{tasks} and {} in {}", count(judged, "judgement"), directory.display()));
    Ok(())
}
