//! One chunk for each document, with the document's own id; for corpora that are already cut.
//!
//! ```ron
//! Whole()
//! ```

use std::sync::Arc;

use turnflow_engine::component::{Chunker, ChunkerConfig, ChunkerKind, config};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;

/// Entry in the chunker table.
pub const KIND: ChunkerKind =
    ChunkerKind::of::<WholeConfig>("Whole", "one passage for each document, with the document's id");

/// `Whole` has no fields.
#[config]
pub struct WholeConfig {}

impl ChunkerConfig for WholeConfig {
    fn build(&self, _: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        Arc::new(Whole)
    }
}

struct Whole;

impl Chunker for Whole {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let Document { id, title, text, .. } = document;
        if text.trim().is_empty() && title.trim().is_empty() {
            return Vec::new();
        }
        vec![Chunk::new(id.clone(), id.clone(), title.clone(), text.clone().into())]
    }
}
