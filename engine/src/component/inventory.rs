//! The contents of an index in a comparable form: to compare an index with its rebuild, or the
//! stored contents with the served ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::document::{Chunk, ContentHash};

/// The contents of an index.
#[derive(Default)]
pub struct Inventory {
    /// Passages by id. Empty for data that is stored by content hash only.
    pub passages: BTreeMap<Arc<str>, Passage>,
    /// Digests of the model outputs, by content.
    pub encodings: BTreeMap<ContentHash, u64>,
    /// The model outputs themselves, for a comparison that tolerates rounding.
    pub values: Option<Arc<dyn Encodings>>,
    /// Counts over all passages, by name.
    pub statistics: BTreeMap<&'static str, f64>,
    /// Integrity errors of the index itself.
    pub flaws: Vec<IntegrityError>,
}

impl Inventory {
    /// Adds another part of the same index, which a process of a cluster has. The statistics of parts say nothing about
    /// the whole, so they are dropped.
    pub fn join(&mut self, other: Self) {
        self.passages.extend(other.passages);
        self.encodings.extend(other.encodings);
        self.flaws.extend(other.flaws);
        self.statistics.clear();
        let parts: Vec<_> = [self.values.take(), other.values].into_iter().flatten().collect();
        self.values = Some(Arc::new(Joined(parts)));
    }
}

/// The encodings of several parts.
struct Joined(Vec<Arc<dyn Encodings>>);

impl Encodings for Joined {
    fn get(&self, hash: &ContentHash) -> Option<Encoding> {
        self.0.iter().find_map(|part| part.get(hash))
    }
}

/// A passage in an index.
#[derive(Clone, Debug)]
pub struct Passage {
    /// The hash of its content.
    pub hash: ContentHash,
    /// Its terms, in an index of words.
    pub words: Option<Words>,
    /// The passage itself, if the index stores it.
    pub chunk: Option<Arc<Chunk>>,
}

/// The terms of a passage in an index of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// Number of terms, repetitions included.
    pub length: u64,
    /// A digest of the terms and their frequencies.
    pub digest: u64,
}

/// An error in stored data.
#[derive(Clone, Debug)]
pub struct IntegrityError {
    /// The file, the passage or the content.
    pub place: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Encodings that can be read one by one.
pub trait Encodings: Send + Sync {
    /// The encoding of a content.
    fn get(&self, hash: &ContentHash) -> Option<Encoding>;
}

/// An encoding as numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoding {
    /// Coordinate and value, in the order of the coordinates; omitted coordinates are 0.
    pub values: Vec<(u32, f32)>,
    /// The quantisation step of quantised values; 0 for values at full precision.
    pub step: f32,
}

/// The digest of some bytes, for an [`Inventory`].
pub fn digest(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    hash.as_bytes().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
