//! Chunkers: how documents are cut.

use std::fmt::Debug;
use std::sync::Arc;

use super::Check;
use crate::document::{Chunk, Document};
use crate::inference::Tokenize;

/// Cuts documents into chunks; must be a pure function of the document.
pub trait Chunker: Send + Sync {
    /// The chunks in order.
    fn chunk(&self, document: &Document) -> Vec<Chunk>;
}

/// A chunker's configuration.
pub trait ChunkerConfig: Debug + Send + Sync {
    /// Reports values that cannot be.
    fn validate(&self, _: &mut Check<'_>) {}
    /// Whether it needs a tokenizer, and whose: `Some(None)` means the first model's that has one.
    fn tokenizer(&self) -> Option<Option<&str>> {
        None
    }
    /// Its effective settings, in a line.
    fn explain(&self) -> String;
    /// Builds it; the tokenizer is the one asked for.
    fn build(&self, tokenizer: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker>;
}
