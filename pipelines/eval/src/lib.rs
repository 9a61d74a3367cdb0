//! Evaluation of pipelines: import of benchmarks, tasks and judgements, metrics and their significance, matrices of
//! rows to compare, tuning, calibration, replays and their differences, tests in pipeline files, and verification.
//!
//! # The modules
//!
//! - `import/` reads the published files of benchmarks, one file per benchmark, and writes them in turnflow's formats.
//! - `impact/` compares the answers before and after a change of the documents, for `turnflow impact`.
//! - `tasks.rs` and `trec.rs` read tasks and judgements, and read and write runs. `metrics.rs` computes metrics that
//!   equal trec_eval's, `significance.rs` computes p-values and confidence intervals, and `breakdown.rs` groups
//!   figures.
//! - `generation/` scores answers, with one file per metric (`rouge.rs`, `bert_score.rs`, `judge.rs`,
//!   `faithfulness.rs`, `repass.rs`). `conditioning.rs` conditions scores on answerability, `prompts.rs` has the
//!   judges' prompts, and `published.rs` is a test against the scores that MTRAG published. `config.rs` reads the
//!   metrics file (`metrics.ron`, `metrics-mtrag.ron`, `metrics-local.ron` in `pipelines/`) with the planner of
//!   pipelines. The judges' prompts are in `pipelines/prompts/`.
//! - `published.rs` compares our scores of published answers with the published ones and with the judgements of people
//!   (`correlation.rs`: ranks).
//! - `matrix/` is the table of pipelines and settings that `eval` runs in one command: `read.rs` reads the file with
//!   positions, `planned.rs` plans the pipeline of a row, `provenance.rs` hashes what a result depends on, `stored.rs`
//!   stores the result of a row, and `table.rs` compares the rows. `plain.rs`, `markdown.rs` and `page.rs` write the
//!   table.
//! - `tuning.rs` learns the weights of a fusion or an ensemble for `tune`: coordinate ascent on the metric,
//!   cross-validated by conversation. For each list, one run puts all weight on it. `adapting.rs` learns query
//!   adapters: a linear map on a bi-encoder's query vectors, with the passages' vectors from the index.
//! - `calibration.rs` learns for `calibrate` when not to answer: a logistic regression on the evidence, measured on
//!   held-out conversations.
//! - `report/` writes an evaluation as one self-contained HTML page (`plot.rs` draws the plots, `sections.rs` the
//!   rest), with its data beside it, so that two runs can be shown side by side.
//! - `verify/` compares indexes with a cold rebuild. The contents of an index are an `Inventory`
//!   (`engine/src/component/inventory.rs`), which the index definition reads from the index's directory, as stored, and
//!   from its reader, as served. A restart is tried on a second state directory of hard links (`shadow.rs`), so nothing
//!   is changed. Questions go to the retrievers directly, without the dataflow.
//! - `replay/` plays logs and records the output of every node; `diff.rs` finds the first node at which two replays
//!   differ.
//! - `tags/` keeps earlier documents, as tagged versions of one Lance dataset per corpus, and reads them as a source in
//!   place of the corpus's own.
//! - `testing/` runs the tests of pipelines. `adapt.rs` puts a test's documents, replies and settings into the
//!   pipeline's tree before it is planned, so errors are reported at their position in the test.
//! - `random.rs` is a random number generator that gives the same numbers everywhere, and `memory.rs` reads the
//!   resident memory of the process.

pub mod adapting;
pub mod breakdown;
pub mod calibration;
pub mod correlation;
pub mod generation;
pub mod impact;
pub mod import;
pub mod matrix;
pub mod memory;
pub mod metrics;
pub mod published;
pub mod random;
pub mod replay;
pub mod report;
mod setting;
pub mod significance;
pub mod tags;
pub mod tasks;
pub mod testing;
pub mod trec;
pub mod tuning;
pub mod verify;
