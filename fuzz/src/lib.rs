//! What the fuzz targets do: each takes bytes as somebody hostile may write them, and panics
//! only where something is wrong.
//!
//! The bodies are files that the ordinary tests include too, and run on `seeds/` and on seeded
//! mutations of them: those of the connectors, `connectors/src/fuzzing.rs`; `spec`, with the
//! whole catalog, `pipelines/cli/tests/all/fuzzing.rs`; `chunkers`, `operators/src/chunk/tests.rs`.
//! Here the catalog is a small one, since the operators would take an hour to build with
//! instrumentation. The chunkers need nothing of the other operators, so their files are included.

mod catalog;
#[allow(dead_code)]
#[path = "../../operators/src/chunk/mod.rs"]
mod chunk;
#[allow(dead_code)]
mod chunkers;
mod readers;
mod records;
mod resume;
#[path = "../../operators/src/sentences.rs"]
mod sentences;
mod spec;

pub use chunkers::chunkers;
pub use readers::{html, jsonl_rows, markdown, pdf};
pub use records::{answer_record, turn_record};
pub use resume::resume;

/// A pipeline file, and overrides behind zero bytes.
pub fn spec(data: &[u8]) {
    drop(spec::spec(data, &catalog::CATALOG));
}
