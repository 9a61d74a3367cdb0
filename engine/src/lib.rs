//! turnflow's engine: pipeline files, the two dataflows (of documents and of turns), epochs,
//! inference, and the traits of connectors and operators. It has no operator and no connector itself.
//!
//! [`corpus`] and [`publish`] process documents; [`turns`] processes turns. [`plan`] makes a plan
//! from a pipeline file ([`spec`]), and [`run`] runs it.
//!
//! # The folders
//!
//! - `src/spec/` reads pipeline files:
//!   - `parse.rs` parses RON to a tree with source positions (`tree.rs`);
//!   - `load.rs` applies includes, `--set` and `Remove`;
//!   - `de.rs` turns the tree into typed configurations;
//!   - `path.rs` resolves paths relative to their file;
//!   - `syntax.rs` explains syntax errors in plain words;
//!   - `diagnostic.rs` represents errors as values.
//! - `src/plan.rs` and `src/plan/resolve/` make a plan: they resolve names, type edges and check values, and report
//!   every error, not only the first. `src/plan/divided.rs` says which sources the processes of a cluster read
//!   together.
//! - `src/component/` defines the components of pipelines: the tables of the catalog, configurations, capabilities of
//!   models, warnings, snapshots, and the traits `Operator`, `Index`, `Prepare` and `Chunker`.
//!   - A component gets a `ComponentContext` when it is built: its id, the runtime, a shutdown signal, counters and
//!     gauges, and its own directory.
//!   - A configuration has the attribute `config` (crate `config/`), which says each thing about a field at the field:
//!     `fields.rs` has what it makes, and `reference.rs` writes the tables of the reference.
//!   - An operator that is a pure function of its call implements only `Function`.
//!   - The catalog also names what keeps the published passages of a corpus (`passage_store.rs`).
//!   - An input port accepts one type, or either of two.
//! - `src/connector/` defines the traits of sources and sinks. `src/sinks/` implements the queues and delivery threads
//!   of sinks.
//! - `odd_json/` is a crate that reads JSON with values that JSON cannot hold, and whole numbers of more than 64 bits
//!   as texts. `src/record/` and `src/document.rs` define the records: turns, queries (with parts, if a question was
//!   decomposed), hits, prompts and answers; documents, chunks, their readers and content hashes. `src/metadata.rs` has
//!   the fields of documents, `src/schema.rs` what a corpus declares about them, and `src/filter.rs` the conditions on
//!   them.
//! - `src/run/` runs a plan: `start.rs` starts it, `build.rs` builds its parts (`build/feeds.rs`: the sources and their
//!   threads), `reload/` reloads it, `resume.rs` decides where sources resume, `services.rs` is what the processes of a
//!   cluster do for each other, `divided.rs` begins and ends the sources that they read together, `worker_pool.rs`
//!   controls the workers, `status.rs` reports the current status, and `mod.rs` ends the run.
//! - `src/corpus/`, `src/publish.rs`, `src/turns.rs` and `src/turns/` are the dataflows described above.
//!   `src/corpus/index_writer/` has the writer's parts for publications, for switches, for stored passages and for
//!   maintenance.
//! - `src/cluster/` connects the processes of a cluster and divides corpora among them.
//! - `src/backup/` copies encodings to an object store and restores them; `src/run/backup.rs` is where a run uses it.
//! - `src/durable/` stores checkpoints (`checkpoint.rs` writes them, `expire.rs` removes unused conversations,
//!   `former.rs` remembers the files of sinks that no checkpoint names, `histories.rs` reads and changes conversations
//!   while no run uses them). A run that reads only queues (`TurnSources::Queues`, as a server does) opens it when the
//!   first queue arrives. `src/database.rs` is the database
//!   file (redb) under it, under the inference cache, and under the connectors `Documents`, `Turns` and `Answers`. A
//!   damaged file of these connectors is not replaced, because its contents exist nowhere else. `src/clock.rs` is the
//!   clock for stored times.
//! - `src/inference/` defines the interface to models (`mod.rs`) and the service that batches their calls (`service/`;
//!   `queue.rs` decides between turns and corpus, and `waiting.rs` which inputs share a batch).
//! - `src/language.rs` defines prompts and generation, shortens prompts that are too long, and recognises control
//!   tokens; `language/sampling.rs` defines sampling.
//! - `src/mapped.rs` maps files of tables, and keeps bytes in mapped temporary files, `src/keyed.rs` has tables for
//!   many small entries, and `src/memory.rs` returns freed memory.
//! - `src/compute.rs` runs long computations of turns off the workers, and `src/together.rs` runs those that wait for a
//!   core in one call.
//! - `src/cache/` is the inference cache (`mod.rs`), with its file (`store.rs`) and the wrappers of models
//!   (`models.rs`).
//! - `src/state.rs` opens the state directory, and keeps it for its owner (`state/private.rs`). `src/append.rs` appends
//!   whole lines to dead letters and file sinks. `src/claims.rs` locks files that only one run may append to.
//! - `src/dead_letter.rs` writes dead letters; letters that a full disk does not accept wait in
//!   `dead_letter/outbox.rs`.
//! - `src/activity.rs` counts and times the calls of each node, and `src/metrics.rs` collects the metrics of components
//!   and of the engine.
//! - `src/adjust.rs` applies a caller's changes to one turn: nodes to skip, and weights.
//! - `src/principal.rs` says what is known of the principals of queued and standing turns now.
//! - `src/panics.rs` turns panics of components into errors, and `src/wake.rs` wakes a worker from another thread.
//!   `src/wording.rs` has words of messages: numbers with their nouns, and errors of parsers without Rust's types.

pub mod activity;
pub mod adjust;
pub mod append;
pub mod ask;
pub mod backup;
pub mod cache;
pub mod claims;
pub mod clock;
pub mod cluster;
pub mod component;
pub mod compute;
pub mod connector;
pub mod corpus;
pub mod database;
pub mod dead_letter;
pub mod document;
pub mod durable;
pub mod filter;
pub mod inference;
pub mod keyed;
pub mod language;
pub mod maintenance;
pub mod mapped;
mod memory;
pub mod metadata;
pub mod metrics;
pub mod panics;
pub mod plan;
pub mod principal;
pub mod publish;
pub mod record;
pub mod run;
pub mod schema;
pub mod sinks;
pub mod spec;
pub mod state;
pub mod together;
pub mod turns;
pub mod wake;
pub mod wording;

// The code of the attribute `config` names the engine, also within it.
extern crate self as turnflow_engine;

pub use turnflow_odd_json as odd_json;
