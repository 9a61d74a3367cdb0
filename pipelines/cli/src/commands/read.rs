//! `turnflow read`: the program as a reader of files, which it starts itself for each file that is not plain text.

use std::process::ExitCode;

use clap::Args;
use turnflow_connectors::readers::worker;

/// Reads files for another process of turnflow, over standard input and output.
#[derive(Args)]
pub(super) struct ReadArgs {
    /// Required: the command is for turnflow itself.
    #[arg(long, required = true)]
    worker: bool,
}

/// The arguments with which the program becomes a reader.
const ARGUMENTS: [&str; 2] = ["read", "--worker"];

/// Becomes a reader if the program was started as one, before anything else is prepared. Otherwise files are read by such
/// processes from now on.
pub(super) fn begin() -> Option<ExitCode> {
    let is_reader = std::env::args_os().skip(1).eq(ARGUMENTS);
    if is_reader {
        return Some(worker::serve());
    }
    worker::start_with(&ARGUMENTS);
    None
}

/// Runs as [`begin`] does; the arguments were written in another way.
pub(super) fn run(_: &ReadArgs) -> ExitCode {
    worker::serve()
}
