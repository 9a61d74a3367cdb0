//! Chunkers cut documents into chunks.

use std::fmt::Debug;
use std::sync::Arc;

use super::{Check, Configured};
use crate::document::{Chunk, Document};
use crate::inference::Tokenize;

/// Cuts documents into chunks; must be a pure function of the document.
pub trait Chunker: Send + Sync {
    /// The chunks in order.
    fn chunk(&self, document: &Document) -> Vec<Chunk>;
}

/// A chunker's configuration.
pub trait ChunkerConfig: Configured + Debug + Send + Sync {
    /// Reports invalid values, besides those outside of the ranges of their fields.
    fn validate(&self, _: &mut Check<'_>) {}
    /// The model whose tokenizer it needs, if any. `Some(None)` is the first model with a tokenizer.
    fn tokenizer(&self) -> Option<Option<&str>> {
        None
    }
    /// Its effective settings, in one line.
    fn explain(&self) -> String {
        self.effective()
    }
    /// Builds it with the requested tokenizer.
    fn build(&self, tokenizer: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker>;
}
