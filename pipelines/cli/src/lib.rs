//! turnflow's command line, and what it is made of: the catalog of everything that a
//! pipeline file may name, the commands, and the models' manifest.
//!
//! A program with operators or connectors of its own has the same commands:
//!
//! ```no_run
//! # fn example(my_operator: turnflow_engine::component::OperatorKind) -> std::process::ExitCode {
//! let mut catalog = turnflow::catalog();
//! catalog.operators.push(my_operator);
//! turnflow::main_with(catalog)
//! # }
//! ```

pub mod allocator;
pub mod commands;
pub mod diagnostics;
pub mod graph;
pub mod models;

use std::process::ExitCode;
use std::sync::LazyLock;

use turnflow_engine::component::Catalog;

/// Made of the code's own documentation; a test keeps it so.
const REFERENCE: &str = include_str!("../../reference.md");

/// Everything that turnflow brings for a pipeline file to name.
pub static CATALOG: LazyLock<Catalog> = LazyLock::new(catalog);

/// A catalog of everything that turnflow brings, to add to.
pub fn catalog() -> Catalog {
    Catalog {
        operators: turnflow_operators::OPERATORS.to_vec(),
        models: turnflow_operators::MODELS.to_vec(),
        chunkers: turnflow_operators::CHUNKERS.to_vec(),
        corpus_sources: turnflow_connectors::CORPUS_SOURCES.to_vec(),
        turn_sources: turnflow_connectors::TURN_SOURCES.to_vec(),
        sinks: turnflow_connectors::SINKS.to_vec(),
        reference: REFERENCE.to_owned(),
    }
}

/// Runs the command line; pipeline files may name what the catalog has. Called once in a process.
pub fn main_with(catalog: Catalog) -> ExitCode {
    commands::main(catalog)
}
