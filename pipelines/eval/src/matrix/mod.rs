//! Matrices: tables of pipelines and settings that are evaluated on the same tasks, and compared.
//!
//! A matrix file has rows and columns:
//!
//! ```ron
//! Matrix(
//!     title: "Fusion",
//!     tasks: "tasks.jsonl",
//!     qrels: "qrels.tsv",
//!     baseline: "BM25",
//!     columns: [Column(metric: "recall@5", title: "R@5"), Column(metric: "ndcg@5")],
//!     rows: [
//!         Row(name: "BM25", file: "hybrid.ron", hits: "lexical"),
//!         Row(name: "fused", file: "hybrid.ron", hits: "fused", set: {"nodes.fused.k": 10}),
//!     ],
//! )
//! ```
//!
//! It is read like a pipeline file, with `include` and the same diagnostics. [`config`] defines the
//! fields, [`plan_row`] plans the pipeline of a row, [`Provenance`] tells whether a stored result
//! ([`RowResult`]) is still that of the row, and [`Table`] compares the results.

mod column;
pub mod config;
mod markdown;
mod page;
mod plain;
mod planned;
mod provenance;
mod read;
mod stored;
mod table;

pub use column::{Column, Unit};
pub use config::Conditioning;
pub use planned::{PlannedRow, plan_row};
pub use provenance::{Hashes, Provenance};
pub use read::{Matrix, ReadMatrix, Row, is_matrix, read};
pub use stored::{RowResult, StoredError, TaskFigures, answer_figures};
pub use table::{Cell, Compared, Finished, Outcome, Table, TableRow};
