//! turnflow's command line, and what it is made of: the catalog of everything that a
//! pipeline file may name, the commands, evaluation, and the models' manifest.

pub mod commands;
pub mod diagnostics;
pub mod eval;
pub mod graph;
pub mod models;
pub mod random;
pub mod replay;
pub mod report;
pub mod tags;
pub mod testing;
pub mod verify;

use turnflow_engine::component::Catalog;

/// Everything that a pipeline file may name.
pub static CATALOG: Catalog = Catalog {
    operators: turnflow_operators::OPERATORS,
    models: turnflow_operators::MODELS,
    chunkers: turnflow_operators::CHUNKERS,
    corpus_sources: turnflow_connectors::CORPUS_SOURCES,
    turn_sources: turnflow_connectors::TURN_SOURCES,
    sinks: turnflow_connectors::SINKS,
};
