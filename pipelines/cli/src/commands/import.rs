//! `turnflow import`: writes the files of a published benchmark, or feedback in turn logs, in turnflow's formats.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use turnflow_eval::import::{Benchmark, ImportError, Limits, Report, Settings, import};

use super::output::check_directory;
use super::{Fault, FormatArgs, Outcome};

/// Write the files of a published benchmark, or feedback in turn logs, as corpora, tasks, queries, qrels and turns.
///
/// The files are read as they are published, also in .zip and .gz; what a file contains is recognised by its
/// content. Passages without text and repeated ids are skipped, and listed with their places. If a record cannot be
/// read, nothing is written. Files of an earlier import are replaced.
#[derive(Args)]
pub struct ImportArgs {
    /// What the files are.
    #[arg(value_enum, value_name = "WHAT")]
    benchmark: Published,
    /// Files, or folders that contain them.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The folder for the new files.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Leave out records that cannot be read.
    #[arg(long)]
    skip_invalid: bool,
    /// Refuse files of more than this many megabytes after decompression.
    #[arg(long, value_name = "MB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    max_mb: u64,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Published {
    /// MTRAG and MTRAG-UN (IBM/mt-rag-benchmark): corpora of passages, generation tasks, queries, qrels and
    /// conversations.
    Mtrag,
    /// ObliQA (RegNLP/ObliQADataset): documents, questions, and answers as RePASs scores them.
    Obliqa,
    /// HotpotQA, or its subset HQ-small: collection, questions and predictions.
    Hotpotqa,
    /// Your own turn logs with the field `feedback`, and the answers file: tasks and qrels for `tune` and `eval`.
    Feedback,
}

pub(super) fn run(args: &ImportArgs) -> Outcome {
    let benchmark = match args.benchmark {
        Published::Mtrag => Benchmark::Mtrag,
        Published::Obliqa => Benchmark::Obliqa,
        Published::Hotpotqa => Benchmark::Hotpotqa,
        Published::Feedback => Benchmark::Feedback,
    };
    check_directory("--output", Some(&args.output), &[])?;
    let file = args.max_mb << 20;
    let record = Limits::default().record.min(usize::try_from(file).unwrap_or(usize::MAX));
    let settings = Settings { skip_invalid: args.skip_invalid, limits: Limits { file, record } };
    let report = match import(benchmark, &args.paths, &args.output, &settings) {
        Ok(report) => report,
        Err(error) => {
            if let (ImportError::Invalid { invalid }, true) = (&error, args.format.is_json()) {
                println!("{:#}", json!(Report { invalid: invalid.clone(), ..Report::default() }));
            }
            return Err(match error {
                ImportError::Write { .. } => Fault::Run(error.into()),
                // These have several lines.
                ImportError::Invalid { .. } | ImportError::Nothing { .. } => {
                    eprintln!("error: {error}");
                    Fault::Input
                }
                _ => Fault::Told(error.into()),
            });
        }
    };
    match args.format.is_json() {
        true => println!("{:#}", json!(report)),
        false => println!("{report}"),
    }
    Ok(())
}
