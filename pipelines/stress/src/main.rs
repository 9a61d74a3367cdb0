//! `turnflow-stress`: runs a pipeline of its own in a directory of its own, kills, reloads and
//! loads it for as long as one likes, and then counts what was promised: is every turn answered,
//! and once; are the indexes right; does anything grow.

mod checks;
mod edits;
mod kill;
mod power;
mod recover;
mod reload;
mod soak;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use turnflow::CATALOG;
use turnflow_engine::plan::plan_file;
use turnflow_engine::run::{Engine, Options};

use crate::world::World;

/// Put a pipeline of turnflow's own under stress, and tell whether it kept its promises.
#[derive(Parser)]
#[command(
    name = "turnflow-stress",
    version,
    after_help = "Exit codes: 0 every promise was kept, 2 wrong usage, 3 a promise was broken or the run failed."
)]
struct Cli {
    #[command(subcommand)]
    how: How,
}

#[derive(Subcommand)]
enum How {
    /// Kill the process (SIGKILL) at random moments while turns are asked, documents edited, the
    /// pipeline reloaded, and the log and the files of answers rotated; then count the answers in
    /// each of three sinks, and compare the indexes with a rebuild.
    Kill(kill::KillArgs),
    /// Reload the pipeline with random differences, at times an invalid file, under load.
    Reload {
        #[command(flatten)]
        common: Common,
        /// How often.
        #[arg(long, default_value_t = 1000)]
        times: u32,
    },
    /// Small edits one after another, each in an epoch of its own, and what they leave behind.
    Edits {
        #[command(flatten)]
        common: Common,
        /// How many.
        #[arg(long, default_value_t = 10_000)]
        times: u32,
    },
    /// Index many chunks, and measure how long another process takes to its first answer.
    Recover {
        #[command(flatten)]
        common: Common,
        /// Chunks, of a few words each.
        #[arg(long, default_value_t = 100_000)]
        chunks: u32,
    },
    /// Turns, edits and deletes at a steady rate, with memory, files and latency plotted.
    Soak {
        #[command(flatten)]
        common: Common,
        /// For how many seconds.
        #[arg(long, default_value_t = 3600)]
        seconds: u64,
        /// Turns a second.
        #[arg(long, default_value_t = 10.0)]
        rate: f64,
        /// Edits a second.
        #[arg(long, default_value_t = 2.0)]
        edits: f64,
    },
}

#[derive(Args)]
struct Common {
    /// The directory to work in, which is emptied.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Worker threads.
    #[arg(long, default_value_t = 1)]
    workers: u16,
    /// Documents to begin with.
    #[arg(long, default_value_t = 40)]
    documents: usize,
    /// The directory of an ONNX encoder (`model.onnx`, `tokenizer.json`), for a dense index.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The same numbers make the same world.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Answers are live: revised when an edit changes their passages.
    #[arg(long)]
    live: bool,
}

impl Common {
    /// `hard`: with rotations, the agent's turns and further sinks.
    fn world(&self, hard: bool) -> anyhow::Result<World> {
        if self.dir.exists() {
            // Only a directory of this command's making is emptied.
            if self.dir.join("pipeline.ron").exists() {
                std::fs::remove_dir_all(&self.dir)?;
            } else if std::fs::read_dir(&self.dir)?.next().is_some() {
                anyhow::bail!("`{}` is not empty, and was not made by this command", self.dir.display());
            }
        }
        std::fs::create_dir_all(&self.dir)?;
        let model = self.model.as_ref().map(|model| model.canonicalize()).transpose()?;
        World::new(&self.dir.canonicalize()?, self, model, hard)
    }
}

/// Runs a world's pipeline in this process, until it is ready.
fn start(world: &World, common: &Common) -> anyhow::Result<Engine> {
    let plan = plan_file(&world.pipeline(), &[], &CATALOG).plan;
    let plan = plan.ok_or_else(|| anyhow::anyhow!("the pipeline cannot be read"))?.running();
    let options = Options { workers: usize::from(common.workers), state: Some(world.state()), ..Options::default() };
    let engine = Engine::start(plan, options)?;
    engine.wait_ready()?;
    Ok(engine)
}

/// The program that is put under stress: `turnflow` beside this one, or what `$TURNFLOW_BIN` names.
fn turnflow() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("TURNFLOW_BIN") {
        return Ok(path.into());
    }
    let path = std::env::current_exe()?.with_file_name("turnflow");
    anyhow::ensure!(path.is_file(), "there is no `{}`; `cargo build --workspace` makes it", path.display());
    Ok(path)
}

fn main() -> ExitCode {
    turnflow::allocator::bound_arenas();
    let done = match &Cli::parse().how {
        How::Kill(args) => kill::run(args),
        How::Reload { common, times } => reload::run(common, *times),
        How::Edits { common, times } => edits::run(common, *times),
        How::Recover { common, chunks } => recover::run(common, *chunks),
        How::Soak { common, seconds, rate, edits } => {
            soak::run(common, &soak::Load { seconds: *seconds, rate: *rate, edits: *edits })
        }
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    ExitCode::from(3)
}
