//! `turnflow run`: runs a pipeline until it is interrupted or, with `--once`, until its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use turnflow_engine::connector::Mode;
use turnflow_engine::dead_letter::Refused;
use turnflow_engine::run::{Engine, Options, ReloadError};
use turnflow_engine::sinks::SinkStatus;
use turnflow_engine::wording::count;
use turnflow_server::{Observed, Outline, Served, Telemetry};

use super::backup::BackupArgs;
use super::member::{self, MemberArgs};
use super::reload::Reloads;
use super::signals::Signals;
use super::watched_files::WatchedFiles;
use super::{EngineArgs, Fault, Outcome, PipelineArgs, incomplete, progress};
use crate::status_socket::StatusSocket;

/// The interval between checks for completion.
const TICK: Duration = Duration::from_millis(20);
/// After this time, a stop no longer waits for failing sinks.
const PATIENCE: Duration = Duration::from_secs(10);

/// Run a pipeline until interrupted.
///
/// A run resumes where the previous run with the same state directory stopped, even after a crash:
/// answered turns are not answered again. A log is answered again if the files with its
/// answers no longer exist.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    member: MemberArgs,
    #[command(flatten)]
    backup: BackupArgs,
    /// Do not follow sources: exit when every source is drained and every answer is delivered.
    #[arg(long)]
    once: bool,
    /// Reload the pipeline when its file, an included file or a prompt changes. The signal SIGHUP
    /// reloads it too, even without this option.
    #[arg(long)]
    watch: bool,
    /// Serve metrics, health and status over HTTP at this address, such as 127.0.0.1:9100.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
}

/// The sinks that fail and have answers waiting, or that have accepted none of them since `before`, with
/// their errors; `None` if there are none.
fn failing(engine: &Engine, before: &[SinkStatus]) -> Option<String> {
    let now = engine.undelivered();
    let failing = now.into_iter().filter_map(|sink| {
        let hangs = before.iter().any(|old| old.id == sink.id && old.delivered == sink.delivered);
        let hangs = hangs.then(|| "it accepts no answers".to_owned());
        Some(format!("sink `{}`: {}", sink.id, sink.fault.or(hangs)?))
    });
    let failing: Vec<String> = failing.collect();
    (!failing.is_empty()).then(|| failing.join("; "))
}

pub(super) fn run(args: &RunArgs) -> Outcome {
    let (plan, files) = args.pipeline.planned();
    let plan = plan?.running();
    // Stamp the files before the slow start, to detect changes during it.
    let files = WatchedFiles::new(files);
    let mode = if args.once { Mode::Once } else { Mode::Follow };
    let file = Some(args.pipeline.file.clone());
    let options = Options { turns: mode, corpora: mode, file, ..args.engine.options(&plan) };
    let telemetry = Telemetry::from_env().map_err(|error| Fault::Told(error.into()))?;
    let watcher = telemetry.as_ref().map(|telemetry| telemetry.watcher());
    let options = Options { watcher: watcher.clone().map(|watcher| watcher as _), ..options };
    let state = options.state.clone();
    let (name, outline): (Arc<str>, _) = (plan.name.as_str().into(), Outline::of(&plan));
    let signals = Signals::handle()?;
    let cluster = args.member.options(&args.pipeline)?;
    let options = Options { cluster, backup: args.backup.store()?, is_cancelled: Some(signals.cancel()), ..options };
    let begun = Instant::now();
    let engine = match Engine::start(plan, options) {
        Ok(engine) => Arc::new(engine),
        Err(error) if error.is_cancelled() => return Ok(()),
        Err(error) => return Err(member::failed(error)),
    };
    let served = Served::new(name, engine.clone(), outline);
    watcher.iter().for_each(|watcher| watcher.watch(&served));
    let observed = args.metrics.map(|address| Observed::start(address, served.clone())).transpose();
    let observed = observed.map_err(|error| Fault::Run(error.into()))?;
    let status = state.as_deref().and_then(|state| StatusSocket::open(state, served.clone()));
    let is_ready = progress::wait_ready(&engine, || {
        signals.stop.load(Ordering::Acquire) || engine.is_asked_to_stop() || engine.has_ended()
    })?;
    for (name, progress, state) in engine.corpora().into_iter().filter(|_| is_ready) {
        let view = engine.epochs().current();
        let (documents, chunks) = view.corpora.get(&name).map_or((0, 0), |view| (view.documents, view.chunks));
        tracing::info!(corpus = %name, documents, chunks, ?progress, state = ?*state.borrow(), "ready");
    }
    // The first process of a cluster leads its reloads.
    let leads = !args.member.is_follower();
    let mut reloads = Reloads::new(&args.pipeline, engine.clone(), files, args.watch).of(&served);
    let mut stopped: Option<(Instant, Vec<SinkStatus>)> = None;
    let mut abandoned: Option<String> = None;
    let mut unread = false;
    let mut minutes = progress::Minutes::new();
    while !engine.has_ended() {
        engine.check()?;
        if (signals.stop.load(Ordering::Acquire) || engine.is_asked_to_stop()) && stopped.is_none() {
            let what = match engine.finishing() {
                0 => "stopping".to_owned(),
                turns => format!("finishing {} in flight", count(turns, "turn")),
            };
            if !args.member.is_follower() {
                eprintln!("{what}; interrupt again to stop immediately");
            }
            stopped = Some((Instant::now(), engine.undelivered()));
            engine.stop();
            reloads.end();
        }
        if let Some((at, before)) = &mut stopped
            && at.elapsed() >= PATIENCE
            && abandoned.is_none()
        {
            abandoned = failing(&engine, before);
            if abandoned.is_some() {
                engine.abort();
            }
            (*at, *before) = (Instant::now(), engine.undelivered());
        }
        // Nothing that is printed from now on arrives. The answers are not lost: a restart prints them.
        if abandoned.is_none()
            && let Some(sink) = engine.sinks().into_iter().find(|sink| sink.is_unread)
        {
            unread = true;
            abandoned = Some(format!("sink `{}`: {}", sink.id, sink.fault.unwrap_or_default()));
            engine.abort();
        }
        if stopped.is_none() {
            let asked = signals.reload.swap(false, Ordering::AcqRel);
            if asked && !leads {
                eprintln!("{}", ReloadError::Follower);
            }
            match leads {
                true => reloads.tick(asked),
                false => reloads.follow(),
            }
        }
        if args.once {
            let delivered = engine.delivered() as u64;
            minutes.tell(|| format!("{} answered, {} waiting", count(delivered, "turn"), engine.queued()));
        }
        std::thread::park_timeout(TICK);
    }
    reloads.end();
    drop((reloads, observed, status, served));
    let maintenance = engine.maintenance();
    if maintenance.runs + maintenance.put_off > 0 {
        tracing::info!(?maintenance, "maintenance done during the run");
    }
    let (delivered, recovered, dead) = (engine.delivered(), engine.recovered(), engine.dead_letters());
    let (revised, repeated, refused) = (engine.revised(), engine.repeated(), engine.refused());
    let corpora = engine.corpora();
    let missing = corpora.iter().map(|(_, progress, _)| progress.lacking().missing).sum();
    match Arc::try_unwrap(engine) {
        Ok(engine) => engine.join()?,
        Err(engine) => engine.check()?,
    }
    if let Some(abandoned) = abandoned {
        let resumes =
            if state.is_some() { "a restart with this state directory delivers them" } else { "they are lost" };
        if unread {
            eprintln!("stopped: {abandoned}");
            return Ok(());
        }
        return Err(anyhow::anyhow!("stopped with undelivered answers ({abandoned}): {resumes}").into());
    }
    if args.member.is_follower() {
        return Ok(());
    }
    let revised = if revised == 0 { String::new() } else { format!(", {} revised", count(revised, "answer")) };
    let before = if recovered == 0 { String::new() } else { format!(", {recovered} answered by an earlier run") };
    let twice = if repeated == 0 { String::new() } else { format!(", {repeated} sent twice") };
    let letters = if dead == 0 { String::new() } else { format!(", {}", count(dead, "dead letter")) };
    eprintln!(
        "{} answered{before}{twice}{revised}{letters}, {:.1} s",
        count(delivered as u64, "turn"),
        begun.elapsed().as_secs_f64()
    );
    if args.once && delivered == 0 && recovered == 0 {
        none_answered(&refused)?;
    } else if args.once
        && let Some(told) = &refused.without_turns
    {
        return Err(Fault::Told(anyhow::anyhow!("{told}{}", hint(&refused, told))));
    }
    if args.once { incomplete(missing) } else { Ok(()) }
}

/// What a run with `--once` says that has answered nothing.
fn none_answered(refused: &Refused) -> Outcome {
    if refused.goes_on && refused.without_turns.is_none() {
        eprintln!("no new turns: earlier runs answered all of them");
        return Ok(());
    }
    let why = match (refused.number, &refused.without_turns) {
        (0, None) => {
            eprintln!("no turns: the sources gave none");
            return Ok(());
        }
        (0, Some(told)) => told.clone(),
        (number, _) => format!("{} could not be read; {}", count(number, "record"), refused.first),
    };
    Err(Fault::Told(anyhow::anyhow!("no turn was answered: {why}{}", hint(refused, &why))))
}

/// What would read the records, if it is not said yet.
fn hint(refused: &Refused, said: &str) -> String {
    let hint = refused.hint.as_ref().filter(|hint| !said.contains(*hint));
    hint.map_or_else(String::new, |hint| format!("; {hint}"))
}
