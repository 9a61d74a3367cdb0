//! `turnflow impact`: which answers would another version of the documents change?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use futures::{FutureExt, StreamExt as _};
use turnflow_engine::ask::{AnswerStream, AskRequest, Event};
use turnflow_engine::connector::Mode;
use turnflow_engine::durable::standing_turns;
use turnflow_engine::record::{AnswerRecord, Speaker, Turn, TurnRecord, Utterance};
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::spec::Override;

use super::output::check_file;
use super::{Fault, Outcome, PipelineArgs, WorkerArgs, start, write};
use turnflow_eval::impact::{Asked, Changed, Fate, Impact};
use turnflow_eval::replay::read_log;

/// Questions that are asked at once.
const AT_ONCE: usize = 32;

/// Show which answers another version of the documents would change.
///
/// The questions are asked on the documents as FILE has them. Then the documents are those of --set:
/// only the difference is indexed, and only those questions are answered again that it can reach.
///
///   turnflow impact p.ron --questions turns.jsonl --set 'corpora.docs.source.path="docs-new"'
///
/// The questions are those of a log (one turn in a line; the agent's turns are the history), or the
/// standing turns of a state directory that no process uses.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct ImpactArgs {
    /// The pipeline file.
    file: PathBuf,
    /// A log of turns, or a state directory with standing turns.
    #[arg(long, value_name = "TURNS|STATE")]
    questions: PathBuf,
    /// Set one value in the file for the other version, as in
    /// --set 'corpora.docs.source.path="docs-new"'. The value is RON; paths are relative to the
    /// working directory. May be repeated.
    #[arg(long = "set", value_name = "PATH=RON", required = true)]
    set: Vec<Override>,
    /// Set one value in the file for both versions. May be repeated.
    #[arg(long = "set-both", value_name = "PATH=RON")]
    both: Vec<Override>,
    /// The form of the report.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
    /// Write the report to this file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Exit with 1 if an answer is lost, changed or gained, has other passages, or if a passage that an
    /// answer is based on vanishes. Several are separated by commas.
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    fail_on: Vec<FailOn>,
    /// A state directory for indexes and outputs of models, of its own: a later call computes less
    /// [default: in memory].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    workers: WorkerArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For a terminal.
    Text,
    /// For a pull request.
    Markdown,
    /// A page with the answers side by side.
    Html,
    /// All data.
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FailOn {
    Lost,
    Changed,
    Gained,
    Passages,
    Vanished,
}

impl FailOn {
    fn holds(self, impact: &Impact) -> bool {
        let fate = match self {
            Self::Lost => Fate::Lost,
            Self::Changed => Fate::Changed,
            Self::Gained => Fate::Gained,
            Self::Passages => Fate::Passages,
            Self::Vanished => return impact.has_vanished(),
        };
        impact.count(fate) > 0
    }
}

/// The field with the time of a file.
const MODIFIED: &str = "modified";

/// A turn of a conversation, or what its agent has said.
enum Said {
    Asked(Box<AskRequest>),
    Agent(Arc<str>),
}

/// A question that was asked, and its answer.
struct Standing {
    question: Arc<str>,
    events: AnswerStream,
    record: AnswerRecord,
}

pub(super) fn run(args: &ImpactArgs) -> Outcome {
    check_file("--output", args.output.as_deref())?;
    let plan_with = |set: Vec<Override>| PipelineArgs { file: args.file.clone(), set }.plan();
    let before = plan_with(args.both.clone())?.running();
    let after = plan_with([args.both.clone(), args.set.clone()].concat())?.running();
    let conversations = questions(&args.questions)?;
    // A copy or a checkout gives all files another time, which counts only if the pipeline reads it.
    let reads_time =
        [&before, &after].iter().any(|plan| plan.nodes.iter().any(|node| node.explain().contains(MODIFIED)));
    let options = Options {
        quiet_fields: (!reads_time).then(|| MODIFIED.to_owned()).into_iter().collect(),
        workers: args.workers.count(),
        state: args.state.clone(),
        corpora: Mode::Once,
        sources: TurnSources::None,
        sinks: false,
        ..Options::default()
    };
    let engine = start(before, options)?;
    let begun = Instant::now();
    let mut standing = ask_all(&engine, conversations)?;
    let took = begun.elapsed().as_secs_f64();

    let (epoch, answered) = (engine.epochs().current(), engine.answered_again());
    let begun = Instant::now();
    engine.reload(after, &|| false).map_err(|error| Fault::Run(anyhow!(error)))?;
    settled(&engine)?;
    let seconds = (took, begun.elapsed().as_secs_f64());
    let changed = engine.epochs().changes_since(epoch.epoch).map(|changes| Changed::of(&changes));
    let again = engine.answered_again() - answered;
    let asked: Vec<Asked> = standing
        .iter_mut()
        .map(|Standing { question, events, record }| Asked {
            question: question.clone(),
            before: record.clone(),
            after: last(events),
        })
        .collect();
    drop(standing);
    engine.stop();
    engine.join()?;

    let set: Vec<String> = args.set.iter().map(|set| format!("{}={}", set.path, set.value)).collect();
    let names = (args.file.display().to_string(), set.join(", "));
    let impact = Impact::of(names, asked, changed, again, seconds);
    let report = match args.format {
        Form::Text => impact.to_text(),
        Form::Markdown => impact.to_markdown(),
        Form::Html => impact.to_html(),
        Form::Json => format!("{:#}\n", serde_json::to_value(&impact)?),
    };
    match &args.output {
        Some(path) => write(path, &report)?,
        None => print!("{report}"),
    }
    if args.fail_on.iter().any(|what| what.holds(&impact)) { Err(Fault::Input) } else { Ok(()) }
}

/// The questions, by conversation.
fn questions(path: &Path) -> Result<Vec<Vec<Said>>, Fault> {
    if path.is_dir() {
        let turns = standing_turns(path).map_err(|error| Fault::Told(error.into()))?;
        if turns.is_empty() {
            let path = path.display();
            return Err(Fault::Told(anyhow!(
                "`{path}` has no standing turns: a pipeline with `mode: Live()` keeps them"
            )));
        }
        return Ok(turns.into_iter().map(|stored| vec![Said::Asked(Box::new(stood(&stored.turn)))]).collect());
    }
    let log = read_log(path).map_err(|error| Fault::Told(error.into()))?;
    for (position, reason) in &log.skipped {
        eprintln!("{position}: {reason}: skipped");
    }
    let mut order: Vec<Arc<str>> = Vec::new();
    let mut all: BTreeMap<Arc<str>, Vec<Said>> = BTreeMap::new();
    for turn in log.turns {
        let record = turn.record;
        let conversation = all.entry(record.conversation_id.clone()).or_insert_with(|| {
            order.push(record.conversation_id.clone());
            Vec::new()
        });
        conversation.push(match record.speaker {
            Speaker::Agent => Said::Agent(record.text),
            Speaker::User => Said::Asked(Box::new(asked(record))),
        });
    }
    Ok(order.iter().filter_map(|id| all.remove(id)).collect())
}

fn asked(record: TurnRecord) -> AskRequest {
    let mut request = AskRequest::new(record.text);
    request.conversation_id = record.conversation_id;
    request.turn = record.turn;
    request.collection = record.collection;
    request.timestamp = record.timestamp;
    request.extra = record.extra;
    request
}

fn stood(turn: &Turn) -> AskRequest {
    AskRequest { history: turn.history.clone(), ..asked(turn.record()) }
}

/// Asks all questions, those of a conversation one after the other.
fn ask_all(engine: &Engine, conversations: Vec<Vec<Said>>) -> Result<Vec<Standing>, Fault> {
    let all = futures::stream::iter(conversations).map(|conversation| ask_in_order(engine, conversation));
    let all = all.buffered(AT_ONCE).collect::<Vec<Result<Vec<Standing>, String>>>();
    let mut standing = Vec::new();
    for asked in futures::executor::block_on(all) {
        standing.extend(asked.map_err(|reason| Fault::Run(anyhow!(reason)))?);
    }
    Ok(standing)
}

async fn ask_in_order(engine: &Engine, conversation: Vec<Said>) -> Result<Vec<Standing>, String> {
    let (mut standing, mut history): (Vec<Standing>, Vec<Utterance>) = (Vec::new(), Vec::new());
    let mut turns = conversation.into_iter().peekable();
    while let Some(said) = turns.next() {
        let mut request = match said {
            Said::Agent(text) => {
                history.push(Utterance { speaker: Speaker::Agent, text });
                continue;
            }
            Said::Asked(request) => *request,
        };
        let question = request.text.clone();
        if request.history.is_empty() {
            request.history.clone_from(&history);
        }
        (request.follow, request.stream) = (true, false);
        let mut events = engine.ask(request);
        let record = loop {
            match events.next().await {
                Some(Event::Answer { record }) => break *record,
                Some(Event::Failed { reason }) => return Err(reason.to_string()),
                Some(_) => {}
                None => return Err("the pipeline stopped before all questions were answered".to_owned()),
            }
        };
        history.push(Utterance { speaker: Speaker::User, text: question.clone() });
        // What the log's agent said counts, if it is there.
        if !matches!(turns.peek(), Some(Said::Agent(_))) {
            history.push(Utterance { speaker: Speaker::Agent, text: record.answer.clone() });
        }
        standing.push(Standing { question, events, record });
    }
    Ok(standing)
}

/// Waits until all questions that the newest epoch reaches are answered again. A question that fails is not waited for.
fn settled(engine: &Engine) -> Result<(), Fault> {
    loop {
        engine.check()?;
        let standing = engine.standing();
        if standing.epoch >= engine.epochs().current().epoch && standing.behind == standing.failed {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The last revision that has come.
fn last(events: &mut AnswerStream) -> Option<AnswerRecord> {
    let mut last = None;
    while let Some(Some(event)) = events.next().now_or_never() {
        if let Event::Revised { record } = event {
            last = Some(*record);
        }
    }
    last
}
