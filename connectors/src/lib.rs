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
//! | `bucket` | `Bucket` | corpus: the objects in an object store (feature `bucket`) |
//! | `git` | `Git` | corpus: the files of a branch of a Git repository (feature `git`) |
//! | [`jsonl_corpus`] | `JsonLines` | corpus: a BEIR file, one document for each row |
//! | [`jsonl_turns`] | `JsonLines` | turns: a conversation log, followed as it grows |
//! | [`files`] | `Files` | turns: logs in many files of any form, followed as they grow |
//! | `parquet` | `Parquet`, `ParquetSink` | a Parquet or Arrow file as a corpus of rows, turns of such files, answers into Parquet files (feature `parquet`) |
//! | `otlp` | `Otlp` | turns: spans and log records of OpenTelemetry that programs send (feature `otlp`) |
//! | `web` | `Web` | corpus: the pages of a web site (feature `web`) |
//! | `sqlite` | `Sqlite` | turns, and documents, in the rows of an SQLite database (feature `sqlite`) |
//! | [`stdin`] | `Stdin` | turns: lines typed or piped in |
//! | [`turns`] | `Turns` | turns: a durable queue that a program fills |
//! | [`answers`] | `Answers` | answers: a durable log that a program reads |
//! | [`jsonl_sink`] | `JsonLinesSink` | answers: one JSON line each in a file |
//! | `postgres` | `Postgres`, `PostgresSink` | turns of a table, a corpus of a query, answers into a table (feature `postgres`) |
//! | `http_sink` | `HttpSink` | answers: sent to a URL in any form (feature `webhook`) |
//! | `webhook` | `Webhook` | answers: sent to a URL (cargo feature `webhook`) |
//! | `nats` | `Nats`, `NatsSink` | turns of a stream, a corpus of a bucket, answers to a subject (feature `nats`) |
//! | `redis` | `Redis`, `RedisSink` | turns of a Redis stream, answers into one (feature `redis`) |
//! | `kafka` | `Kafka`, `KafkaSink` | turns of a topic, a corpus of a compacted topic, answers to a topic (feature `kafka`) |
//! | [`stdout`] | `Stdout` | answers: printed for people, or as JSON |
//!
//! Support modules: [`readers`] convert the bytes of files to documents, `lines` splits streams into lines of bounded
//! length, `open_once` shares stores within the process, `known_file` finds files again after a restart, `watch` groups
//! the operating system's file events into bursts. `remote` waits for servers, `secret` says where passwords are, `keyed`
//! reads documents under keys, and `fetched` remembers the versions of files that are elsewhere. `backup` keeps the engine's
//! backups in object stores, and [`shape`] gives sinks conditions and other forms of what they send.
//!
//! [`CorpusSource`]: turnflow_engine::connector::CorpusSource
//! [`TurnSource`]: turnflow_engine::connector::TurnSource
//! [`AnswerSink`]: turnflow_engine::connector::AnswerSink

pub mod answers;
#[cfg(feature = "bucket")]
pub mod backup;
#[cfg(feature = "bucket")]
pub mod bucket;
pub mod directory;
pub mod documents;
#[cfg(feature = "fetched")]
mod fetched;
mod file_system;
pub mod files;
#[cfg(feature = "git")]
pub mod git;
#[cfg(feature = "webhook")]
pub mod http_sink;
pub mod jsonl_corpus;
pub mod jsonl_sink;
pub mod jsonl_turns;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(any(feature = "bucket", feature = "web"))]
mod kept_files;
#[cfg(feature = "remote")]
pub mod keyed;
mod known_file;
mod lines;
pub mod mapped;
#[cfg(feature = "nats")]
pub mod nats;
mod open_once;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod readers;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "remote")]
mod remote;
pub mod secret;
pub mod shape;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod stdin;
pub mod stdout;
pub mod turns;
mod watch;
#[cfg(feature = "web")]
pub mod web;
#[cfg(feature = "webhook")]
pub mod webhook;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod fuzzing;
#[cfg(all(test, feature = "remote"))]
#[path = "../../pipelines/stress/src/servers.rs"]
mod servers;
#[cfg(test)]
mod testing;

// Code that the tests share with the fuzz targets refers to this crate by its external name.
#[cfg(test)]
extern crate self as turnflow_connectors;

use turnflow_engine::component::{CorpusSourceKind, SinkKind, TurnSourceKind};

/// Every corpus source.
pub static CORPUS_SOURCES: &[CorpusSourceKind] = &[
    #[cfg(feature = "bucket")]
    bucket::KIND,
    directory::KIND,
    documents::KIND,
    #[cfg(feature = "git")]
    git::KIND,
    jsonl_corpus::KIND,
    #[cfg(feature = "kafka")]
    kafka::corpus::KIND,
    #[cfg(feature = "nats")]
    nats::bucket::KIND,
    #[cfg(feature = "parquet")]
    parquet::corpus::KIND,
    #[cfg(feature = "postgres")]
    postgres::corpus::KIND,
    #[cfg(feature = "sqlite")]
    sqlite::corpus::KIND,
    #[cfg(feature = "web")]
    web::KIND,
];

/// Every turn source.
pub static TURN_SOURCES: &[TurnSourceKind] = &[
    files::KIND,
    jsonl_turns::KIND,
    #[cfg(feature = "kafka")]
    kafka::source::KIND,
    #[cfg(feature = "nats")]
    nats::turns::KIND,
    #[cfg(feature = "otlp")]
    otlp::KIND,
    #[cfg(feature = "parquet")]
    parquet::source::KIND,
    #[cfg(feature = "postgres")]
    postgres::turns::KIND,
    #[cfg(feature = "redis")]
    redis::turns::KIND,
    #[cfg(feature = "sqlite")]
    sqlite::KIND,
    stdin::KIND,
    turns::KIND,
];

/// Every sink.
pub static SINKS: &[SinkKind] = &[
    answers::KIND,
    #[cfg(feature = "webhook")]
    http_sink::KIND,
    jsonl_sink::KIND,
    #[cfg(feature = "kafka")]
    kafka::sink::KIND,
    #[cfg(feature = "nats")]
    nats::sink::KIND,
    #[cfg(feature = "parquet")]
    parquet::sink::KIND,
    #[cfg(feature = "postgres")]
    postgres::sink::KIND,
    #[cfg(feature = "redis")]
    redis::sink::KIND,
    stdout::KIND,
    #[cfg(feature = "webhook")]
    webhook::KIND,
];
