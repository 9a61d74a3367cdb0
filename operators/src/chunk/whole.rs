//! One chunk for each document, with the document's own id; for corpora that are already cut.
//!
//! ```ron
//! Whole()
//! ```

use std::sync::Arc;

use serde::Deserialize;
use turnflow_engine::component::{Chunker, ChunkerConfig, ChunkerKind};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;
use turnflow_engine::spec::from_tree;

/// Entry in the chunker table.
pub const KIND: ChunkerKind = ChunkerKind {
    name: "Whole",
    summary: "one passage for each document, with the document's id",
    parse: |tree, sources| Ok(Box::new(from_tree::<WholeConfig>(tree, sources)?)),
};

/// `Whole` has no fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WholeConfig {}

impl ChunkerConfig for WholeConfig {
    fn explain(&self) -> String {
        String::new()
    }

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
