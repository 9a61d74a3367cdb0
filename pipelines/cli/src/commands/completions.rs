//! `turnflow completions` and `turnflow man`: shell completions and manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Outcome};

/// Print a completion script for a shell.
///
/// For bash: `turnflow completions bash > ~/.local/share/bash-completion/completions/turnflow`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Write manual pages, one per command.
#[derive(Args)]
pub struct ManArgs {
    /// The directory, such as ~/.local/share/man/man1.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "turnflow", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(())
}

pub(super) fn man(args: &ManArgs) -> Outcome {
    let directory = &args.directory;
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create `{}`", directory.display()))?;
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("cannot write to `{}`", directory.display()))?;
    Ok(())
}
