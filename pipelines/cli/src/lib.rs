//! turnflow's command line: the catalog of all components that a pipeline file may name, the
//! commands, and the manifest of models.
//!
//! A program with its own operators or connectors has the same commands:
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
pub mod open_files;
pub mod status_socket;

use std::process::ExitCode;
use std::sync::LazyLock;

use turnflow_engine::component::Catalog;

/// Generated from the doc comments; a test checks that it is up to date.
const REFERENCE: &str = include_str!("../../reference.md");

/// All components of turnflow.
pub static CATALOG: LazyLock<Catalog> = LazyLock::new(catalog);

/// A catalog of all components of turnflow; a program can add its own.
pub fn catalog() -> Catalog {
    Catalog {
        operators: turnflow_operators::OPERATORS.to_vec(),
        models: turnflow_operators::MODELS.to_vec(),
        chunkers: turnflow_operators::CHUNKERS.to_vec(),
        corpus_sources: turnflow_connectors::CORPUS_SOURCES.to_vec(),
        turn_sources: turnflow_connectors::TURN_SOURCES.to_vec(),
        sinks: turnflow_connectors::SINKS.to_vec(),
        passages: Some(turnflow_operators::PASSAGES),
        reference: REFERENCE.to_owned(),
    }
}

/// Runs the command line with this catalog. Call it only once per process.
pub fn main_with(catalog: Catalog) -> ExitCode {
    commands::main(catalog)
}
