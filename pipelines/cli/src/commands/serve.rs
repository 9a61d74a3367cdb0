//! `turnflow serve`: answers questions over HTTP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use turnflow_engine::plan::Plan;
use turnflow_engine::run::{Engine, Options, ReloadError, TurnSources, default_state};
use turnflow_engine::spec::Override;
use turnflow_server::{
    Asker, Callers, FeedbackLog, LinkKey, Outline, ResponseStore, ServeConfig, ServeError, Served, Server, Telemetry,
};

use super::backup::BackupArgs;
use super::member::{self, MemberArgs};
use super::progress::Indexing;
use super::reload::Reloads;
use super::signals::Signals;
use super::watched_files::WatchedFiles;
use super::{Fault, Outcome, PipelineArgs, WorkerArgs};
use crate::open_files::raise_limit;
use crate::status_socket::StatusSocket;

/// The interval between checks for completion.
const TICK: Duration = Duration::from_millis(20);
/// Number of files that a server opens in addition to its connections.
const OTHER_FILES: u64 = 256;
/// After this time, a stop no longer waits for turns of the pipelines' own sources.
const PATIENCE: Duration = Duration::from_secs(10);
/// A first indexing that is done by then is not mentioned.
const SOON: Duration = Duration::from_secs(1);
/// When the cluster has ended, the last parts of answers are sent within this time.
const LAST: Duration = Duration::from_secs(2);

/// Serve pipelines over HTTP until interrupted.
///
/// Each pipeline is a model of that name; the first is the default. The first stop signal lets
/// running requests finish; the second ends the process immediately. In a cluster, every process with
/// `--listen` serves everything.
#[derive(Args)]
pub struct ServeArgs {
    /// The pipeline files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Set one value in the file, if there is only one. The value is RON; paths are relative to the
    /// working directory. May be repeated.
    #[arg(long = "set", value_name = "PATH=RON")]
    set: Vec<Override>,
    /// The address to listen on [default: 127.0.0.1:8100; none for a process of a cluster other than 0].
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The server's configuration: tokens, limits, TLS.
    #[arg(long, value_name = "SERVE.ron")]
    config: Option<PathBuf>,
    /// The state directory; with several pipelines, each has a subdirectory [default: .turnflow/NAME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    member: MemberArgs,
    #[command(flatten)]
    backup: BackupArgs,
    /// Reload a pipeline when its file, an included file or a prompt changes. The signal SIGHUP
    /// reloads all of them too, even without this option.
    #[arg(long)]
    watch: bool,
    /// Also answer turns from the pipelines' own sources, and write to their sinks, as `run` does. Without it, the
    /// only source that is read is `Turns`, and the sinks get only its answers.
    #[arg(long)]
    sources: bool,
}

impl ServeArgs {
    fn options(&self, plan: &Plan) -> Options {
        let name = &*plan.name;
        let state = match &self.state {
            Some(state) if self.files.len() > 1 => state.join(turnflow_engine::state::file_name(name)),
            Some(state) => state.clone(),
            None => default_state(name),
        };
        Options {
            workers: self.workers.count(),
            state: Some(state),
            sources: if self.sources { TurnSources::All } else { TurnSources::Queues },
            stays: true,
            ..Options::default()
        }
    }
}

pub(super) fn run(args: &ServeArgs) -> Outcome {
    let config = args.config.as_deref().map(ServeConfig::read).transpose();
    let config = config.map_err(|error| Fault::Told(error.into()))?.unwrap_or_default();
    if args.files.len() > 1 && !args.set.is_empty() {
        return Err(Fault::Told(anyhow!(
            "`--set` needs exactly one pipeline file, and {} are given",
            args.files.len()
        )));
    }
    let pipelines = args.files.iter().map(|file| PipelineArgs { file: file.clone(), set: args.set.clone() });
    let pipelines: Vec<PipelineArgs> = pipelines.collect();
    let mut planned = Vec::new();
    for pipeline in &pipelines {
        let (plan, files) = pipeline.planned();
        // Stamp the files before the slow start, to detect changes during it.
        planned.push((plan?.running(), WatchedFiles::new(files)));
    }
    for (at, (plan, _)) in planned.iter().enumerate() {
        if planned.iter().take(at).any(|(before, _)| before.name == plan.name) {
            return Err(Fault::Told(anyhow!("two pipelines have the name `{}`", plan.name)));
        }
    }
    let connections = config.limits.connections as u64;
    if let Some(files) = raise_limit().filter(|files| *files < connections + OTHER_FILES) {
        tracing::warn!(
            files,
            connections,
            "the system's open-file limit is too low for `limits.connections`: raise it (`ulimit -n`)"
        );
    }
    let signals = Signals::handle()?;
    let cluster = args.member.options(&pipelines[0])?;
    if cluster.is_some() && args.files.len() > 1 {
        return Err(Fault::Told(anyhow!("a cluster serves exactly one pipeline, and {} are given", args.files.len())));
    }
    let cluster_key = cluster.as_ref().and_then(|cluster| Some(cluster.secret.as_ref()?.link_key()));
    let backup = args.backup.store()?;
    let callers = Callers::new(&config);
    let telemetry = Telemetry::from_env().map_err(|error| Fault::Told(error.into()))?;
    let (mut served, mut watched, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    for ((plan, files), pipeline) in planned.into_iter().zip(&pipelines) {
        let (name, outline) = (plan.name.clone(), Outline::of(&plan));
        let watcher = telemetry.as_ref().map(|telemetry| telemetry.watcher());
        let watcher_of = watcher.clone().map(|watcher| watcher as _);
        let (cluster, backup) = (cluster.clone(), backup.clone());
        let is_cancelled = Some(signals.cancel());
        let principals = Some(callers.clone() as _);
        let file = Some(pipeline.file.clone());
        let options = args.options(&plan);
        let options = Options { file, watcher: watcher_of, principals, cluster, backup, is_cancelled, ..options };
        let state = options.state.clone();
        let engine = match Engine::start(plan, options) {
            Ok(engine) => engine,
            Err(error) if error.is_cancelled() => {
                drop(sockets);
                return end(served);
            }
            Err(error) => {
                return Err(match member::failed(error) {
                    Fault::Run(error) => Fault::Run(error.context(format!("pipeline `{name}`"))),
                    fault => fault,
                });
            }
        };
        let of = Served::new(name, Arc::new(engine), outline);
        if let Some(state) = state.as_deref().filter(|_| config.responses.keep > 0) {
            let store = ResponseStore::open(state, config.responses);
            of.keep_responses(store.with_context(|| format!("pipeline `{}`", of.name()))?);
        }
        if let Some(state) = state.as_deref().filter(|_| config.shares.keep > 0) {
            let store = ResponseStore::shares(state, config.shares);
            of.keep_shares(store.with_context(|| format!("pipeline `{}`", of.name()))?);
        }
        if let Some(key) = cluster_key.or_else(|| state.as_deref().and_then(link_key)) {
            of.sign_links(key);
        }
        if let Some(state) = state.as_deref() {
            of.keep_feedback(FeedbackLog::new(state));
        }
        watcher.iter().for_each(|watcher| watcher.watch(&of));
        sockets.extend(state.and_then(|state| StatusSocket::open(&state, of.clone())));
        served.push(of);
        watched.push(files);
    }
    let mut reloads: Vec<Reloads<'_>> = Vec::new();
    for ((pipeline, files), of) in pipelines.iter().zip(watched).zip(&served) {
        reloads.push(Reloads::new(pipeline, of.engine().clone(), files, args.watch).of(of));
    }
    let served_all = match args.member.is_follower() {
        true => follow(args, config, &served, &signals, &reloads),
        false => serve(args, config, callers, &served, &signals, &mut reloads),
    };
    reloads.iter_mut().for_each(Reloads::end);
    drop((reloads, sockets));
    let ended = end(served);
    served_all?;
    ended
}

/// The key that signs links to documents, from the state directory, so that they still work after a restart. `None` if it
/// cannot be kept there.
fn link_key(state: &Path) -> Option<LinkKey> {
    let path = state.join("links.key");
    let known = || std::fs::read(&path).ok()?.try_into().ok();
    known().or_else(|| {
        let key = turnflow_engine::keyed::secret_key();
        let kept = turnflow_engine::append::replace(&path, &key);
        kept.inspect_err(|error| tracing::warn!(%error, "links to documents will not work after a restart")).ok()?;
        Some(key)
    })
}

/// Serves until a signal arrives or a pipeline ends.
fn serve(
    args: &ServeArgs,
    config: ServeConfig,
    callers: Arc<Callers>,
    served: &[Arc<Served>],
    signals: &Signals,
    reloads: &mut [Reloads<'_>],
) -> Outcome {
    let runtime = runtime()?;
    let drain = Duration::from_secs_f64(config.drain_s);
    let server = runtime.block_on(Server::bind(config, args.listen, served.to_vec(), callers)).map_err(unbound)?;
    for engine in served.iter().map(|of| of.engine()).filter(|engine| engine.shape().processes > 1) {
        engine.answer_others(server.answerer(runtime.handle().clone()));
    }
    let names: Vec<&str> = served.iter().map(|of| &**of.name()).collect();
    eprintln!("serving {} on {}", names.join(", "), server.url());
    let stop = CancellationToken::new();
    let task = runtime.spawn(turnflow_server::serve(server, stop.clone()));
    let mut first = FirstEpochs::of(served);
    let (mut others, mut outcome) = (Vec::new(), Ok(()));
    while !task.is_finished() {
        let asked = served.iter().any(|of| of.engine().is_asked_to_stop());
        if (asked || signals.stop.load(Ordering::Acquire)) && !stop.is_cancelled() {
            eprintln!("finishing running requests; interrupt again to stop immediately");
            others.extend(served.iter().map(|of| runtime.spawn(of.engine().drain_others())));
            stop.cancel();
        }
        if !stop.is_cancelled() {
            let asked = signals.reload.swap(false, Ordering::AcqRel);
            reloads.iter_mut().for_each(|reload| reload.tick(asked));
            first.look();
            for of in served {
                let checked = of.engine().check().with_context(|| format!("pipeline `{}`", of.name()));
                if let Err(error) = checked {
                    outcome = Err(Fault::Run(error));
                    stop.cancel();
                } else if of.engine().has_ended() {
                    eprintln!("the sources of `{}` have ended; stopping the server", of.name());
                    stop.cancel();
                }
            }
        }
        std::thread::park_timeout(TICK);
    }
    let ended = runtime.block_on(task);
    // Each process drops the requests that did not finish in time.
    let others = futures::future::join_all(others);
    let _ = runtime.block_on(async { tokio::time::timeout(drain + LAST, others).await });
    served.iter().for_each(|of| of.engine().end_answers());
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome?;
    ended.map_err(|error| Fault::Run(anyhow!("the server failed: {error}")))
}

/// Says on standard error that the corpora are indexed for the first time, how far that is, and when it is done.
struct FirstEpochs<'a> {
    served: &'a [Arc<Served>],
    begun: Instant,
    indexing: Option<Indexing>,
    is_done: bool,
}

impl<'a> FirstEpochs<'a> {
    fn of(served: &'a [Arc<Served>]) -> Self {
        Self { served, begun: Instant::now(), indexing: None, is_done: false }
    }

    fn look(&mut self) {
        if self.is_done {
            return;
        }
        let waited = self.begun.elapsed();
        self.is_done = self.served.iter().all(|of| !of.engine().is_loading());
        match (self.is_done, &mut self.indexing) {
            (false, Some(indexing)) => indexing.draw(),
            (false, None) if waited >= SOON => {
                let loading = self.served.iter().filter(|of| of.engine().is_loading());
                let names: Vec<&str> = loading.clone().map(|of| &**of.name()).collect();
                eprintln!(
                    "indexing the corpora of {} for the first time; questions get the status 503 until that is done",
                    names.join(", ")
                );
                self.indexing = Some(Indexing::of(loading.map(|of| &**of.engine())));
            }
            (true, Some(_)) => {
                self.indexing.take().into_iter().for_each(Indexing::end);
                eprintln!("ready after {:.0} s", waited.as_secs_f64());
            }
            (_, None) => {}
        }
    }
}

/// The threads of a server.
fn runtime() -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.thread_name("turnflow-http").enable_all().build().context("cannot start the threads of the server")
}

/// Why a server could not start.
fn unbound(error: ServeError) -> Fault {
    match error {
        ServeError::Listen { .. } => Fault::Run(error.into()),
        _ => Fault::Told(error.into()),
    }
}

/// Runs a process of a cluster that is not the first, until all end. With `--listen`, it has a server too.
fn follow(
    args: &ServeArgs,
    config: ServeConfig,
    served: &[Arc<Served>],
    signals: &Signals,
    reloads: &[Reloads<'_>],
) -> Outcome {
    let Some(of) = served.first() else { return Ok(()) };
    let Some(address) = args.listen else { return wait(of.engine(), signals, reloads, &|| {}) };
    let runtime = runtime()?;
    let engine = of.engine().clone();
    let ask: Asker = Arc::new(move |question| engine.ask_first(question));
    let server = runtime.block_on(Server::bind_forwarding(config, address, of.clone(), ask)).map_err(unbound)?;
    eprintln!("serving {} on {}", of.name(), server.url());
    let stop = CancellationToken::new();
    let engine = of.engine().clone();
    engine.set_serves(true);
    let served = turnflow_server::serve(server, stop.clone());
    let task = runtime.spawn(async move {
        served.await;
        engine.set_serves(false);
    });
    // Process 0 waits until the running requests are answered.
    let outcome = wait(of.engine(), signals, reloads, &|| stop.cancel());
    stop.cancel();
    let ended = runtime.block_on(async { tokio::time::timeout(LAST, task).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome?;
    ended.unwrap_or(Ok(())).map_err(|error| Fault::Run(anyhow!("the server failed: {error}")))
}

/// Waits for the end of the cluster, which a signal to any process asks for. Calls `drain` when it begins.
fn wait(engine: &Engine, signals: &Signals, reloads: &[Reloads<'_>], drain: &dyn Fn()) -> Outcome {
    let mut stopped = false;
    while !engine.has_ended() {
        engine.check()?;
        if signals.stop.load(Ordering::Acquire) && !stopped {
            stopped = true;
            engine.stop();
        }
        if signals.reload.swap(false, Ordering::AcqRel) {
            eprintln!("{}", ReloadError::Follower);
        }
        if engine.is_draining() {
            drain();
        }
        reloads.iter().for_each(Reloads::follow);
        std::thread::park_timeout(TICK);
    }
    Ok(())
}

/// Ends the pipelines, after the turns of their own sources.
fn end(served: Vec<Arc<Served>>) -> Outcome {
    let stopped = Instant::now();
    served.iter().for_each(|of| of.engine().stop());
    while served.iter().any(|of| !of.engine().has_ended()) && stopped.elapsed() < PATIENCE {
        std::thread::park_timeout(TICK);
    }
    let mut outcome = Ok(());
    for of in served {
        let engine = of.engine().clone();
        drop(of);
        if !engine.has_ended() {
            engine.abort();
        }
        let joined = match Arc::try_unwrap(engine) {
            Ok(engine) => engine.join(),
            Err(engine) => engine.check(),
        };
        if let Err(error) = joined {
            outcome = Err(error.into());
        }
    }
    outcome
}
