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
//!
//! # The folders
//!
//! Each connector is one file or folder in `src/`. The tables in `src/lib.rs` list them.
//!
//! - Corpus sources: `directory/` (`tree.rs` synchronises the known files with the disk, `tree/read.rs` reads one,
//!   `tree/open.rs` opens only regular files inside, `tree/poll.rs` finds changes that no event reports),
//!   `jsonl_corpus.rs`, and `documents/`, which a program fills through `Engine::documents`. `documents/kept.rs` is the
//!   redb file, which all sources with the same path share, and `documents/store.rs` keeps the queues of the running
//!   sources, and `documents/by_reader.rs` finds the documents that a group may read.
//! - Turn sources: `jsonl_turns/` (`place.rs` tracks the offsets of lines and finds an offset again), `stdin.rs`, and
//!   `turns/`, a queue in redb that a program fills through `Engine::turn_queue`. A checkpoint removes a turn from that
//!   queue when it covers its answer.
//! - Brokers and databases: `nats/`, `kafka/`, `postgres/` and `redis/`, each with a file for its turns, its documents
//!   and its sink, as far as it has them. A turn source keeps its position in the checkpoint, by partition, and not in
//!   the broker. A document that changes is named by its key (a NATS bucket, a compacted topic, a row), and only that
//!   document is read again.
//! - Files that are elsewhere: `git/` (through the program `git`), `bucket/` (object stores), `web/` (pages of a site).
//!   They share `fetched.rs`, which remembers the version of each file that was sent. `kept_files.rs` keeps what
//!   `bucket/` and `web/` have fetched in the state directory, so that a restart fetches only what has changed.
//! - `backup.rs`: the object stores, or directories, that the engine's backups are in.
//! - `parquet/`: a table as a corpus of rows, tables of recorded turns (`source/`), and answers as tables (`sink/`:
//!   `store.rs` is the directory, `rows.rs` the columns, `found.rs` finds the answers again); `readers/columnar/`
//!   converts Parquet and Arrow files to JSON Lines.
//! - `otlp/`: turns in spans and log records that programs send. `listen.rs` is its address (HTTP/1.1, and HTTP/2 for
//!   `grpc.rs`), `wire.rs` has the messages of OTLP, `records.rs` makes records of requests, and `door.rs` brings them
//!   to the source and the replies back. The source gives records to `mapped/`, and a request is answered when the
//!   transaction with them is on disk. `turnflow serve` reaches the same door through the engine (`TakesRequests`).
//! - `sqlite/`: turns, and documents (`corpus.rs`), in the rows of a database; `rows.rs` reads a page and lets the
//!   database go.
//! - Sinks: `webhook/` (requests to a URL), `http_sink/` (the same in any form: `target.rs` is the URL, `reply.rs` what
//!   a reply means), `jsonl_sink/` (`output.rs` is the file, `recover.rs` and `rotated.rs` find the answers that it has
//!   written), `stdout.rs`, and `answers/`, a log in redb that a program reads through `Engine::answer_log`, bounded in
//!   number and bytes.
//!
//! They share:
//!
//! - `shape.rs`: which answers a sink gets, and in which form.
//! - `remote.rs`: a source that waits for a server, retries while it is away, and says so
//!   (`ComponentContext::set_away`). `secret.rs`: where passwords and tokens are. `keyed.rs`: documents under keys.
//! - `open_once.rs` shares a store that a process can open only once, because a reload builds the second connector of a
//!   store while the first one runs.
//! - `readers/` reads files of rows as JSON Lines (`jsonl.rs`, `columnar/`); all other files are read by the crate
//!   below.
//! - `files/` reads turns in many files: `listing.rs` finds them, `order.rs` puts the oldest first, `entry.rs` is what
//!   is known of a file, `identify.rs` tells which known file an unknown one is, `reader.rs` reads lines, also of
//!   packed files, and `run.rs` does all this again and again. It always runs within `mapped/`, which stores what was
//!   read of each file with the turns, even if records need no mapping.
//! - `mapped/` wraps a source whose records have another form: `intake.rs` maps records (`connectors/records`) and
//!   holds their messages, `store.rs` keeps turns, messages that wait, what is known and the place in the source in one
//!   database, and `reader.rs` sends the turns to the engine. The source sends its records to the intake in place of
//!   the engine (`TurnOutput::through`). `fitting.rs` names the preset for a record that is no turn. `rows.rs` makes
//!   documents of the rows of a corpus, and `keys.rs` those of values under keys.
//! - `lines.rs` splits streams into lines of bounded length.
//! - `known_file/` finds a file again after a restart, by device, inode and content (`content.rs` hashes what is read),
//!   and finds the files that it was rotated to.
//! - `watch.rs` groups file events of the operating system into bursts. An event only says where to look.
//!   `file_system.rs` knows which file systems report no events, and which files are the kernel's.
//!
//! Each client library is behind a cargo feature of its own, and the binary has them all. Tests start the real servers
//! (`pipelines/stress/src/servers.rs`); Kafka's is the mock cluster of librdkafka, which speaks the protocol.

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
mod ocr;
mod open_once;
#[cfg(feature = "otlp")]
pub mod otlp;
mod page_views;
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
