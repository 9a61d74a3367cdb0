//! The bodies of the fuzz targets: each gets arbitrary, possibly hostile bytes, and panics only if it
//! finds a bug.
//!
//! The ordinary tests include these files too, and run them on `seeds/` and on seeded mutations of
//! these: the connectors in `connectors/src/fuzzing.rs`; `spec`, with the whole catalog, in
//! `pipelines/cli/tests/all/fuzzing.rs`; `chunkers` in `operators/src/chunk/tests.rs`; `replies` in
//! `operators/src/models/open_ai/tests.rs`. Here the catalog is small, since building the operators with
//! instrumentation would take an hour. The chunkers and the parser of replies do not depend on the other
//! operators, so their files are included.

mod archives;
mod catalog;
#[allow(dead_code)]
#[path = "../../operators/src/chunk/mod.rs"]
mod chunk;
#[allow(dead_code)]
mod chunkers;
mod readers;
mod records;
#[allow(dead_code)]
mod replies;
mod resume;
#[path = "../../operators/src/sentences.rs"]
mod sentences;
mod spec;
#[path = "../../operators/src/models/open_ai/finish.rs"]
mod finish;
#[allow(dead_code)]
#[path = "../../operators/src/models/open_ai/stream.rs"]
mod stream;
#[path = "../../operators/src/models/open_ai/surrogates.rs"]
mod surrogates;

pub use archives::{docx, epub, pptx, xlsx};
pub use chunkers::chunkers;
pub use readers::{csv, eml, html, jsonl_rows, markdown, pdf, picture};
pub use records::{answer_record, turn_record};
pub use replies::replies;
pub use resume::resume;

/// A pipeline file, and overrides after zero bytes.
pub fn spec(data: &[u8]) {
    drop(spec::spec(data, &catalog::CATALOG));
}
