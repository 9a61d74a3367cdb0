//! `turnflow-stress gpu`: everything there is to measure and to break on a machine with an NVIDIA GPU, in one report.
//!
//! Each part runs in a process of its own, so that a part that fails, or that breaks the device on purpose, does not end
//! the others.

mod agreement;
mod device;
mod faults;
mod memory;
mod setting;
mod speed;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use setting::Setting;

/// A part of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Loads the models on the device, and compares vectors and scores with the CPU's.
    Agreement,
    /// Passages per second by batch and length, called directly.
    Shapes,
    /// Passages, questions and pairs per second through the inference service.
    Service,
    /// The same model in PyTorch.
    Torch,
    /// Whether memory stays the same while models alternate, and two models at the same time.
    Memory,
    /// Batches that are larger than the free memory of the GPU.
    Full,
    /// A GPU that fails while the models are in use.
    Lost,
}

impl Part {
    const ALL: [Self; 7] =
        [Self::Agreement, Self::Shapes, Self::Service, Self::Torch, Self::Memory, Self::Full, Self::Lost];

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

#[derive(Args)]
pub(crate) struct GpuArgs {
    /// Directory of an ONNX encoder (`model.onnx`, `tokenizer.json`).
    #[arg(long, value_name = "DIR")]
    encoder: PathBuf,
    /// Directory of the same encoder as `pipelines/convert/half.py` makes it.
    #[arg(long, value_name = "DIR")]
    half: Option<PathBuf>,
    /// Directory of a cross-encoder in ONNX (`model.onnx`, `tokenizer.json`).
    #[arg(long, value_name = "DIR")]
    reranker: Option<PathBuf>,
    /// Passages: JSON Lines with `text`.
    #[arg(long, value_name = "FILE")]
    texts: PathBuf,
    /// Number of passages, from the first on.
    #[arg(long, default_value_t = 4096)]
    limit: usize,
    /// Index of the GPU.
    #[arg(long, default_value_t = 0)]
    gpu: i32,
    /// Run on the CPU what can run there, to try this command on a machine without a GPU.
    #[arg(long)]
    cpu: bool,
    /// Shortest time of one measurement in seconds.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Rounds of alternating models.
    #[arg(long, default_value_t = 400)]
    rounds: usize,
    /// A Python with PyTorch, transformers and onnx, to compare with.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// File of the report, in Markdown.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Parts to run.
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Longest time of one part in seconds; it is ended after that.
    #[arg(long, default_value_t = 120)]
    part_seconds: u64,
    /// Run one part in this process.
    #[arg(long, value_enum, hide = true)]
    only: Option<Part>,
}

pub(crate) fn run(args: &GpuArgs) -> anyhow::Result<()> {
    if let Some(part) = args.only {
        let setting = Setting::new(args)?;
        return match part {
            Part::Agreement => agreement::run(&setting),
            Part::Shapes => speed::shapes(&setting),
            Part::Service => speed::service(&setting),
            Part::Torch => speed::torch(&setting, args.python.as_deref()),
            Part::Memory => memory::run(&setting, args.rounds),
            Part::Full => faults::full(&setting),
            Part::Lost => faults::lost(&setting),
        };
    }
    let parts = if args.parts.is_empty() { Part::ALL.to_vec() } else { args.parts.clone() };
    let mut report = String::new();
    let mut say = |text: &str| {
        print!("{text}");
        let _ = std::io::stdout().flush();
        report.push_str(text);
        match &args.report {
            Some(file) => std::fs::write(file, &report).with_context(|| format!("cannot write `{}`", file.display())),
            None => Ok(()),
        }
    };
    say(&format!("# turnflow on a GPU\n\n{}\n", device::about(args.gpu)))?;
    let mut failed = Vec::new();
    for part in parts {
        say(&format!("\n## {}\n\n", part.name()))?;
        let begun = Instant::now();
        let (output, outcome) = in_a_process(part, Duration::from_secs(args.part_seconds))?;
        say(&output)?;
        if let Err(reason) = outcome {
            say(&format!("\nFAILED: {reason}\n"))?;
            failed.push(part.name());
        }
        say(&format!("\n({:.1} s)\n", begun.elapsed().as_secs_f64()))?;
    }
    anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Runs a part in a process of its own; returns its output, and why it failed.
fn in_a_process(part: Part, most: Duration) -> anyhow::Result<(String, Result<(), String>)> {
    let (output, errors) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .args(["--only", &part.name()])
        .stdout(Stdio::from(output.reopen()?))
        .stderr(Stdio::from(errors.reopen()?))
        .spawn()?;
    let begun = Instant::now();
    let outcome = loop {
        match child.try_wait()? {
            Some(status) if status.success() => break Ok(()),
            Some(status) => break Err(status.to_string()),
            None if begun.elapsed() > most => {
                child.kill()?;
                child.wait()?;
                break Err(format!("it took more than {} s", most.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let said = std::fs::read_to_string(errors.path())?;
    eprint!("{said}");
    // Its own error is the last line.
    let outcome =
        outcome.map_err(|status| format!("{status}; {}", said.lines().next_back().unwrap_or("it said nothing")));
    Ok((std::fs::read_to_string(output.path())?, outcome))
}

/// Prints a claim and whether it holds; returns an error if it does not.
fn claim(text: &str, holds: bool) -> anyhow::Result<()> {
    println!("- {}: {text}", if holds { "holds" } else { "BROKEN" });
    anyhow::ensure!(holds, "{text}");
    Ok(())
}

/// The directory's model and tokenizer.
fn files(directory: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let file = |name: &str| {
        let path = directory.join(name);
        path.canonicalize().with_context(|| format!("cannot read `{}`", path.display()))
    };
    Ok([file("model.onnx")?, file("tokenizer.json")?])
}
