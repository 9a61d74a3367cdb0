//! `turnflow check`: every mistake in pipeline files, before anything runs.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use turnflow_engine::spec::Override;

use super::models::not_fetched;
use super::{Fault, Outcome, mistakes, read};
use crate::diagnostics;

/// Check pipeline files: syntax, names, types, values and paths. Models that `turnflow models`
/// can fetch need not be there.
#[derive(Args)]
pub struct CheckArgs {
    /// Pipeline files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Set one value in each file.
    #[arg(long = "set", value_name = "PATH=RON")]
    set: Vec<Override>,
    /// How to tell.
    #[arg(long, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Text,
    Json,
}

pub(super) fn run(args: &CheckArgs) -> Outcome {
    let mut all = Vec::new();
    let mut count = 0;
    for file in &args.files {
        let planned = read(file, &args.set);
        let (missing, mistakes) = not_fetched(planned.diagnostics);
        count += mistakes.len();
        match args.format {
            Format::Json => {
                let told = diagnostics::to_json(&mistakes, &planned.sources);
                all.extend(told.as_array().cloned().unwrap_or_default());
            }
            Format::Text => {
                if mistakes.is_empty() {
                    println!("{}: no mistakes", file.display());
                } else {
                    let color = std::io::stdout().is_terminal();
                    println!("{}\n", diagnostics::render(&mistakes, &planned.sources, color));
                }
                if !missing.is_empty() {
                    let names = missing.into_iter().collect::<Vec<_>>().join(" ");
                    println!("  not fetched yet; before a run: turnflow models fetch {names}");
                }
            }
        }
    }
    if args.format == Format::Json {
        println!("{:#}", serde_json::Value::Array(all));
    } else if count > 0 {
        println!("{}", mistakes(count));
    }
    if count == 0 { Ok(()) } else { Err(Fault::Input) }
}
