//! What the index knows of each passage: a few dozen bytes.

use std::sync::Arc;

use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::keyed::TwoKeys;

/// A passage of the index.
pub(super) struct Entry {
    /// Row number, unique for ever.
    pub row: u64,
    /// Number of terms.
    pub length: u32,
    /// The beginning of the hash of what was indexed.
    hash: [u8; 16],
    pub passage: Passage,
}

/// What is known of a passage.
pub(super) enum Passage {
    /// Its id: it is stored, and the corpus has not confirmed it yet.
    Stored(Arc<str>),
    /// It is in the corpus.
    Confirmed(Arc<Chunk>),
}

impl Passage {
    pub fn chunk(&self) -> Option<&Arc<Chunk>> {
        match self {
            Self::Stored(_) => None,
            Self::Confirmed(chunk) => Some(chunk),
        }
    }
}

fn beginning(hash: ContentHash) -> [u8; 16] {
    let mut beginning = [0; 16];
    beginning.copy_from_slice(&hash.0[..16]);
    beginning
}

impl Entry {
    pub fn new(row: u64, length: u32, hash: ContentHash, passage: Passage) -> Self {
        Self { row, length, hash: beginning(hash), passage }
    }

    /// Whether this was indexed of it.
    pub fn has(&self, hash: ContentHash) -> bool {
        self.hash == beginning(hash)
    }
}

impl TwoKeys for Entry {
    type Other = u64;

    fn id(&self) -> &str {
        match &self.passage {
            Passage::Stored(id) => id,
            Passage::Confirmed(chunk) => &chunk.id,
        }
    }

    fn other(&self) -> u64 {
        self.row
    }
}
