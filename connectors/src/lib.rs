//! turnflow's connectors: sources of documents and turns, and sinks of answers.
//!
//! A connector has a config struct, whose fields are the fields of its node in a pipeline file. The config builds a
//! [`CorpusSource`], a [`TurnSource`] or an [`AnswerSink`]. Relative paths are resolved against a directory that the
//! caller passes (the pipeline file's).
//!
//! | module | node | is |
//! |---|---|---|
//! | [`directory`] | `Directory` | corpus: the readable files of a directory |
//! | [`documents`] | `Documents` | corpus: documents that a program adds |
//! | [`jsonl_corpus`] | `JsonLines` | corpus: a BEIR file, one document for each row |
//! | [`jsonl_turns`] | `JsonLines` | turns: a conversation log, followed as it grows |
//! | [`stdin`] | `Stdin` | turns: lines typed or piped in |
//! | [`turns`] | `Turns` | turns: a durable queue that a program fills |
//! | [`answers`] | `Answers` | answers: a durable log that a program reads |
//! | [`jsonl_sink`] | `JsonLinesSink` | answers: one JSON line each in a file |
//! | `webhook` | `Webhook` | answers: sent to a URL (cargo feature `webhook`) |
//! | [`stdout`] | `Stdout` | answers: printed for people, or as JSON |
//!
//! Support modules: [`readers`] convert the bytes of files to documents, `lines` splits streams into lines of bounded
//! length, `open_once` shares stores within the process, `known_file` finds files again after a restart, `watch` groups
//! the operating system's file events into bursts.
//!
//! [`CorpusSource`]: turnflow_engine::connector::CorpusSource
//! [`TurnSource`]: turnflow_engine::connector::TurnSource
//! [`AnswerSink`]: turnflow_engine::connector::AnswerSink

pub mod answers;
pub mod directory;
pub mod documents;
pub mod jsonl_corpus;
pub mod jsonl_sink;
pub mod jsonl_turns;
mod known_file;
mod lines;
mod open_once;
pub mod readers;
pub mod stdin;
pub mod stdout;
pub mod turns;
mod watch;
#[cfg(feature = "webhook")]
pub mod webhook;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod fuzzing;
#[cfg(test)]
mod testing;

// Code that the tests share with the fuzz targets refers to this crate by its external name.
#[cfg(test)]
extern crate self as turnflow_connectors;

use turnflow_engine::component::{CorpusSourceKind, SinkKind, TurnSourceKind};

/// Every corpus source.
pub static CORPUS_SOURCES: &[CorpusSourceKind] = &[directory::KIND, documents::KIND, jsonl_corpus::KIND];

/// Every turn source.
pub static TURN_SOURCES: &[TurnSourceKind] = &[jsonl_turns::KIND, stdin::KIND, turns::KIND];

/// Every sink.
pub static SINKS: &[SinkKind] = &[
    answers::KIND,
    jsonl_sink::KIND,
    stdout::KIND,
    #[cfg(feature = "webhook")]
    webhook::KIND,
];
