//! `turnflow run`: the pipeline, until interrupted or, with `--once`, until its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use turnflow_engine::connector::Mode;
use turnflow_engine::run::{Engine, Options};

use super::{EngineArgs, Outcome, PipelineArgs, progress};

/// How often the end is looked for.
const TICK: Duration = Duration::from_millis(20);

/// Run a pipeline until interrupted.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Run until every source is drained and every answer delivered.
    #[arg(long)]
    once: bool,
}

pub(super) fn run(args: &RunArgs) -> Outcome {
    let plan = args.pipeline.plan()?.running();
    let mode = if args.once { Mode::Once } else { Mode::Follow };
    let options = Options { turns: mode, corpora: mode, ..args.engine.options(&plan) };
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    ctrlc::set_handler(move || {
        // The second time, at once.
        if flag.swap(true, Ordering::AcqRel) {
            std::process::exit(130);
        }
    })?;
    let begun = Instant::now();
    let mut engine = Engine::start(plan, options)?;
    progress::wait_ready(&engine)?;
    for (name, progress, state) in engine.corpora() {
        let view = engine.epochs().current();
        let (documents, chunks) = view.corpora.get(&name).map_or((0, 0), |view| (view.documents, view.chunks));
        tracing::info!(corpus = %name, documents, chunks, ?progress, state = ?*state.borrow(), "ready");
    }
    let mut stopping = false;
    while !engine.has_ended() {
        engine.check()?;
        if interrupted.load(Ordering::Acquire) && !stopping {
            stopping = true;
            eprintln!("stopping: {} turns in flight are answered first; again to stop at once", engine.outstanding());
            engine.stop();
        }
        std::thread::park_timeout(TICK);
    }
    let (delivered, dead) = (engine.delivered(), engine.dead_letters());
    engine.join()?;
    let count = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let letters = if dead == 0 { String::new() } else { format!(", {}", count(dead, "dead letter")) };
    eprintln!("{} answered{letters}, {:.1} s", count(delivered as u64, "turn"), begun.elapsed().as_secs_f64());
    Ok(())
}
