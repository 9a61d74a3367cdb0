//! `turnflow torture`: the old name of the program `turnflow-stress`, which it runs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::anyhow;
use clap::Args;

use super::{Fault, Outcome};

/// Run the program `turnflow-stress`, which replaces this command.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct StressArgs {
    /// The arguments of `turnflow-stress`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(super) fn run(args: &StressArgs) -> Outcome {
    let program = std::env::current_exe()?.with_file_name("turnflow-stress");
    let error = Command::new(&program).args(&args.arguments).exec();
    let path = program.display();
    Err(Fault::Run(anyhow!("cannot run `{path}`, its replacement ({error}); `cargo build --workspace` builds it")))
}
