//! turnflow's connectors: where documents and turns come from, and where answers go.
//!
//! A connector is a config struct, whose fields are the fields of its node in a pipeline
//! file, and what the config makes: a [`CorpusSource`], a [`TurnSource`] or an
//! [`AnswerSink`]. Relative paths are taken from the directory that the caller names
//! (the pipeline file's).
//!
//! | module | node | is |
//! |---|---|---|
//! | [`directory`] | `Directory` | corpus: the readable files of a directory |
//! | [`jsonl_corpus`] | `JsonLines` | corpus: a BEIR file, one row a document |
//! | [`jsonl_turns`] | `JsonLines` | turns: a conversation log, followed as it grows |
//! | [`stdin`] | `Stdin` | turns: lines typed or piped in |
//! | [`jsonl_sink`] | `JsonLinesSink` | answers: one line each in a file |
//! | [`stdout`] | `Stdout` | answers: printed for people, or as JSON |
//!
//! Below them: [`readers`] make documents of files' bytes, `lines` splits streams into
//! lines of bounded length, `known_file` finds files again after a restart, `watch` gathers
//! the operating system's file events into bursts.
//!
//! [`CorpusSource`]: turnflow_engine::connector::CorpusSource
//! [`TurnSource`]: turnflow_engine::connector::TurnSource
//! [`AnswerSink`]: turnflow_engine::connector::AnswerSink

pub mod directory;
pub mod jsonl_corpus;
pub mod jsonl_sink;
pub mod jsonl_turns;
mod known_file;
mod lines;
pub mod readers;
pub mod stdin;
pub mod stdout;
mod watch;

#[cfg(test)]
mod fuzzing;
#[cfg(test)]
mod testing;

// What the tests share with the fuzz targets names this crate as they do.
#[cfg(test)]
extern crate self as turnflow_connectors;

use turnflow_engine::component::{CorpusSourceKind, SinkKind, TurnSourceKind};

/// Every corpus source.
pub static CORPUS_SOURCES: &[CorpusSourceKind] = &[directory::KIND, jsonl_corpus::KIND];

/// Every turn source.
pub static TURN_SOURCES: &[TurnSourceKind] = &[jsonl_turns::KIND, stdin::KIND];

/// Every sink.
pub static SINKS: &[SinkKind] = &[jsonl_sink::KIND, stdout::KIND];
