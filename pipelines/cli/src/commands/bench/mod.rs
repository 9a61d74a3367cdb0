//! `turnflow bench`: measures the cost of a pipeline. Machines differ and are shared, so the compared
//! things are measured in one run, in alternation.

mod embedding;
mod freshness;
mod live;
pub(super) mod memory;
mod turns;

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use turnflow_engine::inference::Usage;
use turnflow_engine::run::Engine;

use super::format::FormatArgs;
use super::{EngineArgs, Fault, Outcome, PipelineArgs};

/// Measure a pipeline: throughput and latency of turns (--turns), or --embedding, --questions,
/// --freshness or --memory.
#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// The log whose user turns are asked, as JSON Lines of turns or of BEIR queries [default: the log
    /// that the pipeline's first `JsonLines` reads]. With --freshness, these are the other turns.
    #[arg(long)]
    turns: Option<PathBuf>,
    /// Maximum number of turns to ask or texts to read [default: 1000 turns, 800 texts, 500 questions].
    #[arg(long)]
    limit: Option<usize>,
    /// Compare the embedding of passages with direct calls of ONNX Runtime.
    #[arg(long, group = "of_models", requires = "texts", conflicts_with_all = ["turns", "freshness"])]
    embedding: bool,
    /// Compare the embedding of a burst of questions, each in a call of its own, with direct calls of
    /// ONNX Runtime.
    #[arg(long, group = "of_models", requires = "texts", conflicts_with_all = ["turns", "freshness", "embedding"])]
    questions: bool,
    /// Run this many rounds of calls to all models that take texts, with batches of random sizes and
    /// lengths, and report whether resident memory grows.
    #[arg(long, value_name = "ROUNDS", group = "of_models", requires = "texts", conflicts_with_all = ["turns", "freshness", "embedding", "questions"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    memory: Option<u32>,
    /// The passages or questions to embed, as JSON Lines in BEIR's format. With --memory, the source of its words.
    #[arg(long, value_name = "CORPUS.jsonl", requires = "of_models", conflicts_with_all = ["turns", "freshness"])]
    texts: Option<PathBuf>,
    /// Number of rounds of --embedding or --questions.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Measure the time from a change of the corpus to the first answer that reflects it, this many
    /// times each for an added, an edited and a deleted passage. Works on copies of the corpus and of
    /// the state directory.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    freshness: Option<u16>,
    /// The corpus that --freshness changes [default: the first].
    #[arg(long, value_name = "NAME", requires = "freshness")]
    corpus: Option<String>,
    /// The rate of the other turns during --freshness, in turns per second.
    #[arg(long, default_value_t = 4.0, value_name = "N", requires = "freshness", value_parser = rate)]
    rate: f64,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.01..=10_000.0).contains(&rate) { Ok(rate) } else { Err("must be 0.01 to 10000".to_owned()) }
}

pub(super) fn run(args: &BenchArgs) -> Outcome {
    if args.format.is_json() && args.texts.is_some() {
        return Err(told("--format json is for turns and for --freshness"));
    }
    match (&args.texts, args.freshness) {
        (Some(texts), None) => match args.memory {
            Some(rounds) => memory::run(args, rounds as usize, texts),
            None if args.questions => embedding::run(args, texts, &embedding::QUESTIONS),
            None => embedding::run(args, texts, &embedding::PASSAGES),
        },
        (_, Some(trials)) => freshness::run(args, usize::from(trials)),
        (None, None) => turns::run(args),
    }
}

fn told(error: impl std::fmt::Display) -> Fault {
    Fault::Told(anyhow!("{error}"))
}

/// The usage of all models so far.
fn usage(engine: &Engine) -> Usage {
    let mut total = Usage::default();
    for model in engine.models().values() {
        let usage = model.usage();
        total.inputs += usage.inputs;
        total.batches += usage.batches;
        total.tokens += usage.tokens;
        total.padded += usage.padded;
        total.busy_us += usage.busy_us;
    }
    total
}

/// The value below which this share of the values lies; sorts the values.
fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = ((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(0.0)
}
