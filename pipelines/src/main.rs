//! The `turnflow` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    turnflow::commands::main()
}
