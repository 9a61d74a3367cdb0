//! `turnflow test`: runs the tests in a pipeline's file or in the file next to it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::{Value as Json, json};
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::record::{Speaker, TurnRecord, Value};
use turnflow_engine::run::{Options, TurnSources};
use turnflow_engine::spec::{Sources, Span, Tree};
use turnflow_engine::wording::count;
use turnflow_records::{Record, Source, assemble};

use super::answering::submit;
use super::trace::describe;
use super::{Fault, FormatArgs, Outcome, catalog, mistakes, say_what_fetches, start};
use crate::diagnostics;
use turnflow_eval::replay::{Log, Recorder, Trace};
use turnflow_eval::testing::{Missed, Said, Test, adapt, find, missed};

/// Run the tests of pipelines.
///
/// The tests of a pipeline NAME.ron are in its field `tests`, or in the file NAME.test.ron.
///
/// A test has turns and expectations, and can replace documents, models and settings of the
/// pipeline:
///
///   [
///       Test(
///           name: "a follow-up is understood",
///           corpora: {"docs": [Doc(id: "k1", title: "", text: "The default of k1 is 1.2.")]},
///           models: {"llm": Replies(["It is 1.2."])},
///           set: {"nodes.fused.top": 5},
///           turns: [User("What is k1?"), Agent("A parameter."), User("And its default?")],
///           expect: [Expect(turn: 2, status: Answered, answer: "1.2", hits: ["k1"])],
///       ),
///   ]
///
/// A test uses the pipeline's documents, models and settings unless it replaces them. No state
/// is stored, and no sink is written. `Expect` has `turn` (number of the user turn; default the
/// last), `status` (Answered, Idk, Failed), `answer` (a part of it), `answer_matches` (a regular
/// expression), `query` (a part of it), `hits` and `not_hits` (passages or documents), `hits_in:
/// (node: "fused", top: 5, contains: […], not: […])`, and `warnings`. `Replies` returns its replies
/// one after another; a reply `(when: "regular expression", reply: "…")` is only for prompts that
/// match.
///
/// Exits with 1 if a test fails or is invalid.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct TestArgs {
    /// Pipeline files or test files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Only tests whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

/// The result of a test.
struct Ran {
    file: PathBuf,
    name: String,
    missed: Vec<(Missed, String)>,
    seconds: f64,
}

pub(super) fn run(args: &TestArgs) -> Outcome {
    let (mut ran, mut wrong, mut others) = (Vec::new(), 0, 0);
    for file in &args.files {
        let mut found = find(file, catalog());
        if !found.diagnostics.is_empty() {
            wrong += found.diagnostics.len();
            tell(&mut found.diagnostics, &found.sources);
        }
        let Some(pipeline) = &found.pipeline else { continue };
        if found.tests.is_empty() && found.diagnostics.is_empty() {
            let beside = found.file.with_extension("test.ron");
            let (file, beside) = (found.file.display(), beside.display());
            let message = format!("`{file}` has no tests: they are in its field `tests`, or in `{beside}`");
            return Err(Fault::Told(anyhow!(message)));
        }
        for test in &found.tests {
            if args.filter.as_ref().is_some_and(|filter| !test.config.name.contains(filter.as_str())) {
                others += 1;
                continue;
            }
            let begun = Instant::now();
            let directory = Scratch::make()?;
            let mut adapted = adapt(pipeline, &found.sources, test, &directory.0, catalog())
                .with_context(|| format!("cannot write the documents of the test {:?}", test.config.name))?;
            let Some((plan, end)) = adapted.plan else {
                wrong += adapted.diagnostics.len();
                tell(&mut adapted.diagnostics, &found.sources);
                continue;
            };
            let turns = match test.config.records.is_empty() {
                true => said(test),
                false => recorded(test, pipeline, &found.sources).map_err(Fault::Told)?,
            };
            let traces = play(plan, turns)?;
            let missed = missed(test, &end, &traces);
            let missed: Vec<_> = missed
                .into_iter()
                .map(|missed| (place(missed.span, &found.sources), missed))
                .map(|(at, m)| (m, at))
                .collect();
            let one = Ran {
                file: found.file.clone(),
                name: test.config.name.clone(),
                missed,
                seconds: begun.elapsed().as_secs_f64(),
            };
            if !args.format.is_json() {
                show(&one, &traces);
            }
            ran.push(one);
        }
    }
    let failed = ran.iter().filter(|test| !test.missed.is_empty()).count();
    if args.format.is_json() {
        println!("{:#}", to_json(&ran, wrong));
    } else {
        let ok = ran.len() - failed;
        let others = if others > 0 { format!(", {others} skipped") } else { String::new() };
        let wrong = if wrong > 0 { format!(", {}", mistakes(wrong)) } else { String::new() };
        println!("{}: {ok} ok, {failed} failed{others}{wrong}", count(ran.len(), "test"));
    }
    if failed > 0 || wrong > 0 { Err(Fault::Input) } else { Ok(()) }
}

/// The turns that the mapping of the pipeline makes of the records of a test.
fn recorded(test: &Test, pipeline: &Tree, sources: &Sources) -> anyhow::Result<Vec<SourcedTurn>> {
    let name = &test.config.name;
    let mapping = super::node_map::of_pipeline(pipeline, sources)?;
    let mapping =
        mapping.ok_or_else(|| anyhow!("the test {name:?} has `records`, and no source of the pipeline has `map`"))?;
    let mut items = Vec::new();
    for (number, record) in (1..).zip(&test.config.records) {
        let value = mapping.value(record.as_bytes(), &mut Default::default());
        let source = Source { path: "test".into(), number };
        let made = value.and_then(|value| mapping.run(&Record { value, source }));
        items.extend(made.map_err(|reason| anyhow!("the test {name:?}, record {number}: {reason}"))?);
    }
    let (turns, left_out) = assemble(items, mapping.options());
    anyhow::ensure!(
        turns.iter().any(|turn| turn.speaker == "user"),
        "the test {name:?}: its records give no question; left out: {left_out:?}"
    );
    let sourced = |turn: &turnflow_records::Turn| {
        let record = TurnRecord::read(&serde_json::to_vec(turn)?)?.0;
        let collection = test.config.collection.as_deref().map(Into::into).or(record.collection);
        let extra = test.config.fields.clone().into_iter().chain(record.extra).collect();
        let record = TurnRecord { collection, extra, ..record };
        Ok(SourcedTurn { record, position: "test".into(), history: None, place: None })
    };
    turns.iter().map(sourced).collect()
}

/// The turns of a test.
fn said(test: &Test) -> Vec<SourcedTurn> {
    let (mut turns, mut number) = (Vec::new(), 0);
    for said in &test.config.turns {
        let (speaker, text) = match said {
            Said::User(text) => {
                number += 1;
                (Speaker::User, text)
            }
            Said::Agent(text) => (Speaker::Agent, text),
        };
        let record = TurnRecord {
            conversation_id: "test".into(),
            turn: number.max(1),
            speaker,
            text: text.as_str().into(),
            collection: test.config.collection.as_deref().map(Into::into),
            timestamp: None,
            extra: test.config.fields.clone(),
        };
        turns.push(SourcedTurn { record, position: "test".into(), history: None, place: None });
    }
    turns
}

/// Runs the turns of a test; returns a trace for each user turn.
fn play(plan: turnflow_engine::plan::Plan, turns: Vec<SourcedTurn>) -> Result<Vec<Trace>, Fault> {
    let log = Log { turns, skipped: Vec::new() };
    let recorder = Recorder::default();
    let options = Options {
        corpora: Mode::Once,
        sources: TurnSources::None,
        sinks: false,
        observer: Some(recorder.observer()),
        ..Options::default()
    };
    submit(start(plan, options)?, &log.turns)?;
    Ok(recorder.take(log.asked()))
}

fn tell(diagnostics: &mut [turnflow_engine::spec::Diagnostic], sources: &Sources) {
    say_what_fetches(diagnostics);
    let color = std::io::stderr().is_terminal();
    eprintln!("{}\n", diagnostics::render(diagnostics, sources, color));
}

fn place(span: Span, sources: &Sources) -> String {
    let (line, column) = sources.line_column(span);
    format!("{}:{line}:{column}", sources.get(span.source).name)
}

fn show(test: &Ran, traces: &[Trace]) {
    let (file, name, seconds) = (test.file.display(), &test.name, test.seconds);
    if test.missed.is_empty() {
        println!("ok      {file}: {name} ({seconds:.1} s)");
        return;
    }
    println!("FAILED  {file}: {name} ({seconds:.1} s)");
    for (missed, place) in &test.missed {
        let Missed { turn, what, expected, found, .. } = missed;
        println!("  {place}: turn {turn}, {what}\n    expected: {expected}\n    found:    {found}");
    }
    let mut turns: Vec<usize> = test.missed.iter().map(|(missed, _)| missed.turn).collect();
    turns.dedup();
    for turn in turns {
        let Some(trace) = traces.get(turn.saturating_sub(1)) else { continue };
        println!("  node outputs for turn {turn}:");
        let items = trace.order.iter().filter_map(|node| Some((node, trace.item(node)?)));
        for (node, item) in items.filter(|(_, item)| item.value != Value::Turn) {
            println!("    {node}: {}", describe(&item.value).replace('\n', "\n    "));
        }
    }
}

fn to_json(ran: &[Ran], mistakes: usize) -> Json {
    let failure = |(missed, place): &(Missed, String)| {
        let Missed { turn, what, expected, found, .. } = missed;
        json!({"place": place, "turn": turn, "what": what, "expected": expected, "found": found})
    };
    let test = |test: &Ran| {
        let failures: Vec<Json> = test.missed.iter().map(failure).collect();
        json!({
            "file": test.file, "name": test.name, "ok": failures.is_empty(), "seconds": test.seconds,
            "failures": failures,
        })
    };
    let failed = ran.iter().filter(|test| !test.missed.is_empty()).count();
    let tests: Vec<Json> = ran.iter().map(test).collect();
    json!({"tests": tests, "ok": ran.len() - failed, "failed": failed, "mistakes": mistakes})
}

/// A temporary directory for a test's documents; deleted when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Self, Fault> {
        let base = std::env::temp_dir();
        for number in 0.. {
            let path = base.join(format!("turnflow-test-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(cannot_make(&path, error)),
            }
        }
        Err(anyhow!("cannot create a directory in `{}`", base.display()).into())
    }
}

fn cannot_make(path: &Path, error: std::io::Error) -> Fault {
    Fault::Run(anyhow::Error::new(error).context(format!("cannot create `{}`", path.display())))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "cannot delete a test's documents");
        }
    }
}
