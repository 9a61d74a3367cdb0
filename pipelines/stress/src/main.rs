//! `turnflow-stress`: runs its own pipeline in its own directory under kills, reloads and load, then
//! checks turnflow's guarantees: each turn is answered exactly once, the indexes are correct, and
//! nothing grows without bound.
//!
//! # The modules
//!
//! - `cluster.rs` kills processes of a cluster, stops them for a while, and changes their number.
//! - `kill.rs` kills the process. It can also remove data that was not synced (`power.rs`), fill the disk (`disk.rs`),
//!   and have an embedding server come and go (`embedder.rs`). `names.rs` rotates files in every style.
//! - `broker/` kills a broker or a database too, and makes its streams again.
//! - `logs/` kills the process while another program writes a log in a form of its own.
//! - `reload.rs` reloads random pipelines, `edits.rs` makes many small edits, `soak.rs` runs a steady load, and
//!   `recover.rs` measures a start. `size.rs` measures the memory and the starts of growing corpora, each in a process
//!   of its own.
//! - `gpu/` measures models on an NVIDIA GPU beside the CPU and PyTorch, fills the GPU's memory, and makes it fail;
//!   each part runs in a process of its own.
//! - `scale/` measures retrieval at growing numbers of passages, beside tantivy and NumPy in the same run: `growth.rs`
//!   makes passages from given ones, and `vectors.rs` their vectors.
//! - `world.rs` is the environment of the pipeline, and `checks.rs` checks the promises.

mod broker;
mod checks;
mod cluster;
mod disk;
mod edits;
mod embedder;
mod gpu;
mod kill;
mod logs;
mod names;
mod power;
mod processes;
mod random_model;
mod recover;
mod reload;
mod scale;
mod servers;
mod shapes;
mod size;
mod soak;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use turnflow::CATALOG;
use turnflow_engine::plan::plan_file;
use turnflow_engine::run::{Engine, Options};

use crate::world::World;

/// Stress-test turnflow with a generated pipeline, and check its guarantees.
#[derive(Parser)]
#[command(
    name = "turnflow-stress",
    version,
    after_help = "Exit codes: 0 every guarantee held, 2 wrong usage, 3 a guarantee was broken or the run failed."
)]
struct Cli {
    #[command(subcommand)]
    how: How,
}

#[derive(Subcommand)]
enum How {
    /// Kill the process (SIGKILL) at random times while turns are asked, documents edited, the pipeline
    /// reloaded, and the log and the answer files rotated. Then count the answers of each of three
    /// sinks, and compare the indexes with a rebuild.
    Kill(kill::KillArgs),
    /// Kill the process, and a broker or a database, at random times while turns are published there. Then count
    /// the answers in a file, and those that were sent back.
    Broker(broker::BrokerArgs),
    /// Kill the process at random times while another program writes a log in a form of its own: files that are rotated
    /// and packed, a database, or spans. Then count the answers.
    Logs(logs::LogsArgs),
    /// Kill processes of a cluster at random times: one, all, two within a second, and the supervisor; stop them for a
    /// while, and change their number. Then count the answers, and compare the indexes with a rebuild.
    Cluster(cluster::ClusterArgs),
    /// Reload the pipeline with random changes, sometimes with an invalid file, under load.
    Reload {
        #[command(flatten)]
        common: Common,
        /// Number of reloads.
        #[arg(long, default_value_t = 1000)]
        times: u32,
    },
    /// Make small edits, each in its own epoch, and measure the files and bytes that accumulate.
    Edits {
        #[command(flatten)]
        common: Common,
        /// Number of edits.
        #[arg(long, default_value_t = 10_000)]
        times: u32,
    },
    /// Index many chunks, and measure the time from the start of a new process to its first answer.
    Recover {
        #[command(flatten)]
        common: Common,
        /// Number of chunks, of a few words each.
        #[arg(long, default_value_t = 100_000)]
        chunks: u32,
    },
    /// Measure indexing and retrieval at growing numbers of passages, beside other libraries in the same process.
    Scale(scale::ScaleArgs),
    /// Measure starts and answers with several numbers of processes and workers, one after another on one state
    /// directory, and count what is embedded again.
    Shapes(shapes::ShapesArgs),
    /// Measure memory and starts at growing numbers of passages.
    Size(size::SizeArgs),
    /// Measure models on an NVIDIA GPU beside the CPU and PyTorch, fill the GPU's memory, and make it fail.
    Gpu(gpu::GpuArgs),
    /// Run turns, edits and deletes at a steady rate; plot memory, files and latency.
    Soak {
        #[command(flatten)]
        common: Common,
        /// Duration in seconds.
        #[arg(long, default_value_t = 3600)]
        seconds: u64,
        /// Turns per second.
        #[arg(long, default_value_t = 10.0)]
        rate: f64,
        /// Edits per second.
        #[arg(long, default_value_t = 2.0)]
        edits: f64,
    },
}

#[derive(Args)]
struct Common {
    /// Working directory; its content is deleted.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Number of worker threads.
    #[arg(long, default_value_t = 1)]
    workers: u16,
    /// Initial number of documents.
    #[arg(long, default_value_t = 40)]
    documents: usize,
    /// Directory of an ONNX encoder (`model.onnx`, `tokenizer.json`) for a dense index.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Seed of the random documents, turns and edits.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Use live answers, which are revised when an edit changes their passages.
    #[arg(long)]
    live: bool,
    /// Add a dense index whose model is on a server, which comes and goes.
    #[arg(long)]
    embedder: bool,
}

impl Common {
    /// Creates the world. `hard` adds rotations, agent turns and further sinks. `small` is the directory
    /// of the state and the answers, by default the world's own.
    fn world(&self, hard: bool, small: Option<&Path>) -> anyhow::Result<World> {
        if self.dir.exists() {
            // Delete only a directory that this command has created.
            if self.dir.join("pipeline.ron").exists() {
                std::fs::remove_dir_all(&self.dir)?;
            } else if std::fs::read_dir(&self.dir)?.next().is_some() {
                anyhow::bail!("`{}` is not empty and was not created by this command", self.dir.display());
            }
        }
        std::fs::create_dir_all(&self.dir)?;
        let model = self.model.as_ref().map(|model| model.canonicalize()).transpose()?;
        if let Some(small) = small {
            for name in ["state", "out"] {
                let path = small.join(name);
                if path.exists() {
                    std::fs::remove_dir_all(path)?;
                }
            }
        }
        let dir = self.dir.canonicalize()?;
        let data = small.map_or(Ok(dir.clone()), Path::canonicalize)?;
        World::new(&dir, data, self, model, hard)
    }
}

/// Starts a world's pipeline in this process, and waits until it is ready.
fn start(world: &World, common: &Common) -> anyhow::Result<Engine> {
    let plan = plan_file(&world.pipeline(), &[], &CATALOG).plan;
    let plan = plan.ok_or_else(|| anyhow::anyhow!("the pipeline cannot be read"))?.running();
    let options = Options { workers: usize::from(common.workers), state: Some(world.state()), ..Options::default() };
    let engine = Engine::start(plan, options)?;
    engine.wait_ready()?;
    Ok(engine)
}

/// The program under test: `$TURNFLOW_BIN`, or else `turnflow` next to this program.
fn turnflow() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("TURNFLOW_BIN") {
        return Ok(path.into());
    }
    let path = std::env::current_exe()?.with_file_name("turnflow");
    anyhow::ensure!(path.is_file(), "`{}` does not exist; build it with `cargo build --workspace`", path.display());
    Ok(path)
}

turnflow::use_allocator!();

fn main() -> ExitCode {
    turnflow::allocator::bound_arenas();
    if std::env::var_os(shapes::AS_TURNFLOW).is_some() {
        return turnflow::main_with(random_model::catalog());
    }
    let done = match &Cli::parse().how {
        How::Kill(args) => kill::run(args),
        How::Cluster(args) => cluster::run(args),
        How::Broker(args) => broker::run(args),
        How::Logs(args) => logs::run(args),
        How::Reload { common, times } => reload::run(common, *times),
        How::Edits { common, times } => edits::run(common, *times),
        How::Scale(args) => scale::run(args),
        How::Shapes(args) => shapes::run(args),
        How::Size(args) => size::run(args),
        How::Gpu(args) => gpu::run(args),
        How::Recover { common, chunks } => recover::run(common, *chunks),
        How::Soak { common, seconds, rate, edits } => {
            soak::run(common, &soak::Load { seconds: *seconds, rate: *rate, edits: *edits })
        }
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("error: {error:#}");
    ExitCode::from(3)
}
