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
//!
//! # The modules
//!
//! - `src/lib.rs` defines the catalog of all shipped components, and `main_with`, which runs the command line with a
//!   catalog. A program with its own operators adds them to the catalog and calls `main_with`.
//! - `src/allocator.rs` chooses the allocator of the binaries.
//! - `src/commands/` contains one file or folder per command. `member.rs` has the options of a process of a cluster,
//!   and `cluster.rs` starts and supervises the processes on one machine. `run` and `serve` share `reload.rs` and
//!   `signals.rs`; `format.rs` is the option `--format`; `answering.rs` runs tasks through a pipeline for `eval`,
//!   `tune` and `calibrate`. `chat/` and `top/` draw in the terminal, and `bench/` contains one file per measurement.
//! - `eval/` evaluates in three steps that a single pipeline and each row of a matrix share: `inputs.rs` reads,
//!   `evaluation.rs` runs the tasks and scores the hits, and `generation.rs` scores the answers. `eval/matrix/`
//!   prepares, runs and stores the rows.
//! - `src/diagnostics.rs` renders errors, `src/graph.rs` draws a plan, `src/status_socket.rs` reports a running
//!   pipeline's status to `top`, and `src/models/` fetches models by checksum and converts those that need it.
//! - The test `tests/all/reference.rs` generates `pipelines/reference.md` from the catalog, which has the fields of the
//!   configurations, and fails if the file differs. With `TURNFLOW_GOLDEN=write` it writes the file.

pub mod allocator;
pub mod commands;
pub mod diagnostics;
pub mod graph;
pub mod models;
mod ocr;
pub mod open_files;
pub mod status_socket;

use std::process::ExitCode;
use std::sync::LazyLock;

use turnflow_engine::component::Catalog;

/// Generated from the catalog; a test checks that it is up to date.
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
        sinks: [turnflow_connectors::SINKS, turnflow_gaps::SINKS, turnflow_alerts::SINKS, turnflow_review::SINKS]
            .concat(),
        passages: Some(turnflow_operators::PASSAGES),
        reference: REFERENCE.to_owned(),
    }
}

/// Runs the command line with this catalog. Call it only once per process.
pub fn main_with(catalog: Catalog) -> ExitCode {
    commands::main(catalog)
}
