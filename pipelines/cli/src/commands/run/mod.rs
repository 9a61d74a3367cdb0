//! `turnflow run`: the pipeline, until interrupted or, with `--once`, until its end.

mod reload;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use turnflow_engine::connector::Mode;
use turnflow_engine::run::{Engine, Options};

use self::reload::Reloads;
use super::{EngineArgs, Outcome, PipelineArgs, progress};

/// How often the end is looked for.
const TICK: Duration = Duration::from_millis(20);

/// Run a pipeline until interrupted.
///
/// What was answered before is not answered again: a run goes on where the one before it in
/// the same state directory has ended, however that ended. A log is answered again when the
/// files that its answers were written to are gone.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Run until every source is drained and every answer delivered.
    #[arg(long)]
    once: bool,
    /// Reload the pipeline when its file changes, or one that it includes, or a prompt. The
    /// signal SIGHUP reloads it too.
    #[arg(long)]
    watch: bool,
}

/// What signals ask for.
struct Signals {
    /// To end: SIGINT, SIGTERM; the second time at once.
    stop: Arc<AtomicBool>,
    /// To reload: SIGHUP.
    reload: Arc<AtomicBool>,
}

impl Signals {
    fn handle() -> anyhow::Result<Self> {
        let signals = Self { stop: Arc::default(), reload: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first time the flag is not set yet.
            signal_hook::flag::register_conditional_shutdown(signal, 130, signals.stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, signals.stop.clone()))
                .context("signals cannot be handled")?;
        }
        signal_hook::flag::register(SIGHUP, signals.reload.clone()).context("signals cannot be handled")?;
        Ok(signals)
    }
}

pub(super) fn run(args: &RunArgs) -> Outcome {
    let (plan, files) = args.pipeline.planned();
    let plan = plan?.running();
    // Before all that takes long: what changes meanwhile is seen.
    let files = reload::stamped(files);
    let mode = if args.once { Mode::Once } else { Mode::Follow };
    let options = Options { turns: mode, corpora: mode, ..args.engine.options(&plan) };
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
    let mut stopping = false;
    while !engine.has_ended() {
        engine.check()?;
        if signals.stop.load(Ordering::Acquire) && !stopping {
            stopping = true;
            eprintln!("stopping: {} turns in flight are answered first; again to stop at once", engine.outstanding());
            reloads.end();
            engine.stop();
        }
        if !stopping {
            reloads.tick(signals.reload.swap(false, Ordering::AcqRel));
        }
        std::thread::park_timeout(TICK);
    }
    reloads.end();
    drop(reloads);
    let maintenance = engine.maintenance();
    if maintenance.runs + maintenance.put_off > 0 {
        tracing::info!(?maintenance, "what was stored was kept in shape");
    }
    let (delivered, recovered, dead) = (engine.delivered(), engine.recovered(), engine.dead_letters());
    let revised = engine.revised();
    match Arc::try_unwrap(engine) {
        Ok(engine) => engine.join()?,
        Err(engine) => engine.check()?,
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
        eprintln!("nothing was new: what an earlier run answered stays answered while its answers are there");
    }
    Ok(())
}
