//! The `turnflow` command.

use std::process::ExitCode;

turnflow::use_allocator!();

fn main() -> ExitCode {
    turnflow::allocator::bound_arenas();
    turnflow::main_with(turnflow::catalog())
}
