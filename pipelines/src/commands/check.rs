//! `turnflow check`: every mistake in pipeline files, before anything runs.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use turnflow_engine::plan::plan_file;
use turnflow_engine::spec::Override;

use super::{Fault, Outcome, mistakes};
use crate::{CATALOG, diagnostics};

/// Check pipeline files: syntax, names, types, values and paths.
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
        let planned = plan_file(file, &args.set, &CATALOG);
        count += planned.diagnostics.len();
        match args.format {
            Format::Json => {
                let told = diagnostics::to_json(&planned.diagnostics, &planned.sources);
                all.extend(told.as_array().cloned().unwrap_or_default());
            }
            Format::Text if planned.diagnostics.is_empty() => println!("{}: no mistakes", file.display()),
            Format::Text => {
                println!(
                    "{}\n",
                    diagnostics::render(&planned.diagnostics, &planned.sources, std::io::stdout().is_terminal())
                );
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
