//! The commands, one file each, and their shared parts: reading a pipeline, reporting its errors,
//! starting it with progress bars, and exit codes.

/// Like the standard macros, but they handle a closed reader: see [`output`].
macro_rules! print {
    ($($text:tt)*) => { $crate::commands::output::write(format_args!($($text)*)) };
}
macro_rules! println {
    () => { print!("\n") };
    ($($text:tt)*) => { print!("{}\n", format_args!($($text)*)) };
}
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::commands::output::tell(format_args!($($text)*)) };
}

mod answering;
mod ask;
mod backup;
mod bench;
mod calibrate;
mod chat;
mod check;
mod cluster;
mod completions;
mod dead_letters;
mod docs;
mod eval;
mod explain;
mod format;
mod gaps;
mod graph;
mod impact;
mod import;
mod index;
mod init;
mod maintain;
mod map;
mod member;
mod models;
mod node_map;
mod output;
mod progress;
mod read;
mod reload;
mod replay;
mod review;
mod run;
mod serve;
mod signals;
mod stress;
mod tag;
mod test;
mod top;
mod trace;
mod tune;
mod verify;
mod watched_files;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::{Context, anyhow};
use clap::{Args, Parser, Subcommand};
use turnflow_engine::component::Catalog;
use turnflow_engine::plan::{Plan, Planned, plan_file};
use turnflow_engine::run::{Engine, Options, default_state};
use turnflow_engine::spec::{Diagnostic, Override, Sources};

use self::format::FormatArgs;
use crate::diagnostics;

/// Why a command failed.
enum Fault {
    /// The input is invalid, and the errors have been printed: exit code 1.
    Input,
    /// The input is invalid: exit code 1.
    Told(anyhow::Error),
    /// A failure at run time: exit code 3.
    Run(anyhow::Error),
    /// The cluster could not be formed, or another process of it was lost: exit code 4.
    Lost(anyhow::Error),
    /// Another process has told why, and ended with this exit code.
    Ended(u8),
}

/// The exit code of a process of a cluster that has lost another one.
const LOST: u8 = 4;

impl<E: Into<anyhow::Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        Fault::Run(error.into())
    }
}

type Outcome = Result<(), Fault>;

/// The outcome of a command that ends while passages are missing because a model's server is away.
fn incomplete(missing: u64) -> Outcome {
    match missing {
        0 => Ok(()),
        missing => Err(anyhow::anyhow!(
            "{} missing because a model's server is away; run it again when the server is back",
            if missing == 1 { "1 passage is".to_owned() } else { format!("{missing} passages are") }
        )
        .into()),
    }
}

/// A streaming dataflow engine for conversational retrieval-augmented generation.
#[derive(Parser)]
#[command(
    name = "turnflow",
    version,
    after_help = "Exit codes: 0 success, 1 invalid input, 2 wrong usage, 3 runtime failure, 4 another process of the cluster is missing."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Log more to standard error: once for information, twice for debugging.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The log format on standard error: text, or one JSON object per line.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    Check(check::CheckArgs),
    Explain(explain::ExplainArgs),
    Graph(graph::GraphArgs),
    Run(run::RunArgs),
    Serve(serve::ServeArgs),
    Cluster(cluster::ClusterArgs),
    Index(index::IndexArgs),
    Ask(ask::AskArgs),
    Chat(chat::ChatArgs),
    Top(top::TopArgs),
    Import(import::ImportArgs),
    Map(map::MapArgs),
    Init(init::InitArgs),
    Read(read::ReadArgs),
    Eval(Box<eval::EvalArgs>),
    Tune(tune::TuneArgs),
    Calibrate(calibrate::CalibrateArgs),
    Verify(verify::VerifyArgs),
    Maintain(maintain::MaintainArgs),
    Tag(tag::TagArgs),
    Replay(replay::ReplayArgs),
    Impact(impact::ImpactArgs),
    Gaps(gaps::GapsArgs),
    Review(review::ReviewArgs),
    Test(test::TestArgs),
    Docs(docs::DocsArgs),
    DeadLetters(dead_letters::DeadLettersArgs),
    Bench(bench::BenchArgs),
    Models(models::ModelsArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
    #[command(hide = true)]
    Torture(stress::StressArgs),
}

/// A pipeline file with the values that the command line sets.
#[derive(Args, Clone)]
struct PipelineArgs {
    /// The pipeline file.
    file: PathBuf,
    /// Set one value in the file, as in --set 'corpora.docs.source.path="docs.jsonl"'. The value is
    /// RON; paths are relative to the working directory. May be repeated.
    #[arg(long = "set", value_name = "PATH=RON")]
    set: Vec<Override>,
}

/// The number of worker threads.
#[derive(Args, Clone, Copy)]
struct WorkerArgs {
    /// Number of worker threads of a pipeline [default: the number of cores, at most 8].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
}

impl WorkerArgs {
    fn count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
        self.workers.map_or_else(cores, usize::from)
    }
}

/// Options of the engine.
#[derive(Args)]
struct EngineArgs {
    /// The state directory: indexes, checkpoints, caches and dead letters [default: .turnflow/NAME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    workers: WorkerArgs,
}

impl PipelineArgs {
    /// The complete plan; errors in the file are printed to standard error.
    fn plan(&self) -> Result<Plan, Fault> {
        self.planned().0
    }

    /// The same as [`PipelineArgs::plan`], with all files that the plan depends on.
    fn planned(&self) -> (Result<Plan, Fault>, Vec<PathBuf>) {
        let (plan, files) = self.checked();
        let told = |problems: Problems| {
            eprintln!("{}", problems.render(std::io::stderr().is_terminal()));
            Fault::Input
        };
        (plan.map_err(told), files)
    }

    /// The same, with the errors of a file that cannot run.
    fn checked(&self) -> (Result<Plan, Problems>, Vec<PathBuf>) {
        let planned = read(&self.file, &self.set);
        let mut files: Vec<PathBuf> = planned.sources.files().map(PathBuf::from).collect();
        files.extend(planned.plan.iter().flat_map(|plan| plan.texts.iter().cloned()));
        // The files that an optional model lacks: a run tries to load it when they come.
        let models = planned.plan.iter().flat_map(|plan| plan.models.values());
        files.extend(models.flat_map(|model| model.missing.iter().cloned()));
        // If the file does not exist yet, watch for it.
        if files.is_empty() {
            files.push(self.file.clone());
        }
        let plan = match planned.plan {
            Some(plan) if planned.diagnostics.is_empty() => Ok(plan),
            _ => Err(Problems { diagnostics: planned.diagnostics, sources: planned.sources }),
        };
        (plan, files)
    }

    /// The plan for display: models that are not fetched yet may be missing.
    fn described(&self) -> Result<Plan, Fault> {
        let planned = read(&self.file, &self.set);
        let (_, mistakes) = models::not_fetched(planned.diagnostics);
        match planned.plan {
            Some(plan) if mistakes.is_empty() => Ok(plan),
            _ => Err(told(&mistakes, &planned.sources)),
        }
    }
}

/// Reads a pipeline file; errors about missing models name the command that fetches them.
fn read(file: &Path, set: &[Override]) -> Planned {
    let mut planned = plan_file(file, set, catalog());
    say_what_fetches(&mut planned.diagnostics);
    planned
}

/// Adds the command that fetches a missing model to its diagnostic.
fn say_what_fetches(diagnostics: &mut [Diagnostic]) {
    for diagnostic in diagnostics {
        if let Some(model) = diagnostic.missing.as_deref().and_then(crate::models::fetches) {
            diagnostic.help.push(format!("`turnflow models fetch {model}` downloads it"));
        }
    }
}

/// The errors in a pipeline file.
struct Problems {
    diagnostics: Vec<Diagnostic>,
    sources: Sources,
}

impl Problems {
    /// The errors with their source lines, and their number.
    fn render(&self, color: bool) -> String {
        let Self { diagnostics, sources } = self;
        format!("{}\n\n{}", diagnostics::render(diagnostics, sources, color), mistakes(diagnostics.len()))
    }
}

/// Prints diagnostics.
fn told(diagnostics: &[Diagnostic], sources: &Sources) -> Fault {
    let color = std::io::stderr().is_terminal();
    eprintln!("{}\n", diagnostics::render(diagnostics, sources, color));
    eprintln!("{}", mistakes(diagnostics.len()));
    Fault::Input
}

fn mistakes(count: usize) -> String {
    turnflow_engine::wording::count(count, "error")
}

impl EngineArgs {
    fn options(&self, plan: &Plan) -> Options {
        let state = self.state.clone().unwrap_or_else(|| default_state(&plan.name));
        Options { workers: self.workers.count(), state: Some(state), ..Options::default() }
    }
}

/// Starts a plan and waits for its corpora, with progress bars on a terminal.
fn start(plan: Plan, options: Options) -> Result<Engine, Fault> {
    let engine = Engine::start(plan, options).map_err(member::failed)?;
    progress::wait_ready(&engine, || false)?;
    Ok(engine)
}

/// Checks that a directory is a state directory.
fn check_state(directory: &Path) -> Result<(), Fault> {
    if directory.join("format").is_file() {
        return Ok(());
    }
    let path = directory.display();
    Err(Fault::Told(anyhow!("`{path}` is not a state directory: `turnflow index` or `turnflow run` creates one")))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

/// The catalog of this process.
static IN_USE: OnceLock<Catalog> = OnceLock::new();

fn catalog() -> &'static Catalog {
    IN_USE.get_or_init(crate::catalog)
}

/// Runs the command line.
pub(crate) fn main(catalog: Catalog) -> ExitCode {
    if let Some(code) = read::begin() {
        return code;
    }
    if let Err(error) = catalog.check_names() {
        eprintln!("error: {error}");
        return ExitCode::from(3);
    }
    IN_USE.get_or_init(|| catalog);
    let cli = Cli::parse();
    let level = match cli.verbose {
        // rmcp logs callers' texts with each refused request.
        0 => "warn,lance=error,tantivy=error,rmcp=off",
        1 => "info,lance=warn,tantivy=warn,rmcp=off",
        _ => "debug,rmcp=off",
    };
    let named = std::env::var("TURNFLOW_LOG").ok().map(|named| match named.contains("rmcp") {
        true => named,
        // It logs the arguments and the results of calls. Who wants these texts names it.
        false => format!("{named},rmcp=off"),
    });
    let filter = named.and_then(|named| tracing_subscriber::EnvFilter::try_new(named).ok());
    let filter = filter.unwrap_or_else(|| tracing_subscriber::EnvFilter::new(level));
    let color = std::io::stderr().is_terminal();
    // Log lines would overwrite the screen.
    let filter = match &cli.command {
        Command::Chat(_) | Command::Top(_) if color => tracing_subscriber::EnvFilter::new("off"),
        _ => filter,
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match cli.log_format {
        LogFormat::Text => log.with_ansi(color).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    let outcome = match cli.command {
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Graph(args) => graph::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Cluster(args) => {
            let is_json = matches!(cli.log_format, LogFormat::Json);
            cluster::run(&args, &cluster::Logs { verbose: cli.verbose, is_json })
        }
        Command::Chat(args) => chat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
        Command::Index(args) => index::run(&args),
        Command::Ask(args) => ask::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Maintain(args) => maintain::run(&args),
        Command::Tag(args) => tag::run(&args),
        Command::Map(args) => map::run(&args),
        Command::Init(args) => init::run(args),
        Command::Read(args) => read::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Impact(args) => impact::run(&args),
        Command::Gaps(args) => gaps::run(&args),
        Command::Review(args) => review::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Docs(args) => docs::run(&args),
        Command::DeadLetters(args) => dead_letters::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Torture(args) => stress::run(&args),
    };
    let (code, error) = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Fault::Input) => return ExitCode::from(1),
        Err(Fault::Told(error)) => (1, error),
        Err(Fault::Run(error)) => (3, error),
        Err(Fault::Lost(error)) => (LOST, error),
        Err(Fault::Ended(code)) => return ExitCode::from(code),
    };
    eprintln!("error: {}", one_line(&error));
    ExitCode::from(code)
}

/// The error and its causes in one line, without causes that the message already contains.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{}: {cause}", line.trim_end_matches(['.', ':', ' ', '\n']));
        }
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
