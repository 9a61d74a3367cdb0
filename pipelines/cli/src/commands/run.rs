//! `turnflow run`: runs a pipeline until it is interrupted or, with `--once`, until its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use turnflow_engine::connector::Mode;
use turnflow_engine::run::{Engine, Options};

use super::reload::{self, Reloads};
use super::signals::Signals;
use super::{EngineArgs, Outcome, PipelineArgs, progress};

/// The interval between checks for the end.
const TICK: Duration = Duration::from_millis(20);
/// After this time, a stop no longer waits for sinks that fail.
const PATIENCE: Duration = Duration::from_secs(10);

/// Run a pipeline until interrupted.
///
/// A run resumes where the previous run with the same state directory ended, even after a crash:
/// turns that are answered are not answered again. A log is answered again if the files with its
/// answers no longer exist.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Do not follow sources: end when every source is drained and every answer is delivered.
    #[arg(long)]
    once: bool,
    /// Reload the pipeline when its file, an included file or a prompt changes. The signal SIGHUP
    /// reloads it too, also without this option.
    #[arg(long)]
    watch: bool,
}

/// The sinks that fail and have answers waiting, with their errors; `None` if there are none.
fn failing(engine: &Engine) -> Option<String> {
    let failing = engine.sinks().into_iter().filter(|sink| sink.pending > 0);
    let failing = failing.filter_map(|sink| Some(format!("sink `{}`: {}", sink.id, sink.fault?)));
    let failing: Vec<String> = failing.collect();
    (!failing.is_empty()).then(|| failing.join("; "))
}

pub(super) fn run(args: &RunArgs) -> Outcome {
    let (plan, files) = args.pipeline.planned();
    let plan = plan?.running();
    // Stamp the files before the slow start, to notice changes during it.
    let files = reload::stamped(files);
    let mode = if args.once { Mode::Once } else { Mode::Follow };
    let options = Options { turns: mode, corpora: mode, ..args.engine.options(&plan) };
    let has_state = options.state.is_some();
    let signals = Signals::handle()?;
    let begun = Instant::now();
    let engine = Arc::new(Engine::start(plan, options)?);
    progress::wait_ready(&engine)?;
    for (name, progress, state) in engine.corpora() {
        let view = engine.epochs().current();
        let (documents, chunks) = view.corpora.get(&name).map_or((0, 0), |view| (view.documents, view.chunks));
        tracing::info!(corpus = %name, documents, chunks, ?progress, state = ?*state.borrow(), "ready");
    }
    let mut reloads = Reloads::new(&args.pipeline, engine.clone(), files, args.watch);
    let mut stopped: Option<Instant> = None;
    let mut abandoned: Option<String> = None;
    while !engine.has_ended() {
        engine.check()?;
        if signals.stop.load(Ordering::Acquire) && stopped.is_none() {
            eprintln!("stopping after {} turns in flight; interrupt again to stop at once", engine.outstanding());
            stopped = Some(Instant::now());
            engine.stop();
            reloads.end();
        }
        if stopped.is_some_and(|at| at.elapsed() >= PATIENCE) && abandoned.is_none() {
            abandoned = failing(&engine);
            if abandoned.is_some() {
                engine.abort();
            }
        }
        if stopped.is_none() {
            reloads.tick(signals.reload.swap(false, Ordering::AcqRel));
        }
        std::thread::park_timeout(TICK);
    }
    reloads.end();
    drop(reloads);
    let maintenance = engine.maintenance();
    if maintenance.runs + maintenance.put_off > 0 {
        tracing::info!(?maintenance, "maintenance of the run");
    }
    let (delivered, recovered, dead) = (engine.delivered(), engine.recovered(), engine.dead_letters());
    let revised = engine.revised();
    match Arc::try_unwrap(engine) {
        Ok(engine) => engine.join()?,
        Err(engine) => engine.check()?,
    }
    if let Some(abandoned) = abandoned {
        let resumes = if has_state { "a restart with this state directory delivers them" } else { "they are lost" };
        return Err(anyhow::anyhow!("stopped with undelivered answers ({abandoned}): {resumes}").into());
    }
    let count = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let revised = if revised == 0 { String::new() } else { format!(", {} revised", count(revised, "answer")) };
    let before = if recovered == 0 { String::new() } else { format!(", {recovered} had been before") };
    let letters = if dead == 0 { String::new() } else { format!(", {}", count(dead, "dead letter")) };
    eprintln!(
        "{} answered{before}{revised}{letters}, {:.1} s",
        count(delivered as u64, "turn"),
        begun.elapsed().as_secs_f64()
    );
    if args.once && delivered == 0 && recovered == 0 {
        eprintln!("no new turns: an earlier run answered all of them, and its answers still exist");
    }
    Ok(())
}
