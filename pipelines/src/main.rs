//! The `turnflow` command.

mod allocator;

use std::process::ExitCode;

fn main() -> ExitCode {
    allocator::bound_arenas();
    turnflow::commands::main()
}
