//! What an index holds, in a form in which two of them can be compared: one with what a
//! rebuild gives, or what is stored with what is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::document::{Chunk, ContentHash};

/// What an index holds.
#[derive(Default)]
pub struct Inventory {
    /// Passages by id. Of what is stored by content alone, none.
    pub passages: BTreeMap<Arc<str>, Passage>,
    /// What a model made of contents: a digest of each.
    pub encodings: BTreeMap<ContentHash, u64>,
    /// What the digests are of, for a comparison that bears rounding.
    pub values: Option<Arc<dyn Encodings>>,
    /// Counts over all passages, by name.
    pub statistics: BTreeMap<&'static str, f64>,
    /// What is wrong with it by itself.
    pub flaws: Vec<IntegrityError>,
}

/// A passage that an index holds.
#[derive(Clone, Debug)]
pub struct Passage {
    /// Of its content.
    pub hash: ContentHash,
    /// Of an index of words: what it has of the passage.
    pub words: Option<Words>,
    /// The passage itself, where the index has it.
    pub chunk: Option<Arc<Chunk>>,
}

/// What an index of words has of a passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// Terms, each as often as it occurs.
    pub length: u64,
    /// A digest of its terms and how often each occurs.
    pub digest: u64,
}

/// Something that is wrong with what is stored.
#[derive(Clone, Debug)]
pub struct IntegrityError {
    /// The file, the passage or the content.
    pub place: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Encodings that can be looked at one by one.
pub trait Encodings: Send + Sync {
    /// That of a content.
    fn get(&self, hash: &ContentHash) -> Option<Encoding>;
}

/// An encoding as numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoding {
    /// Coordinate and value, in the order of the coordinates; those left out are 0.
    pub values: Vec<(u32, f32)>,
    /// How far values are apart that are kept in few bits; 0 where they are kept whole.
    pub step: f32,
}

/// The digest of some bytes, for an [`Inventory`].
pub fn digest(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    hash.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
