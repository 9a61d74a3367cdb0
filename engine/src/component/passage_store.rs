//! Where the published passages of a corpus are kept. A start serves them before it has read the source.

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::Delta;
use crate::document::Chunk;
use crate::keyed::Keyed;

/// Opens the store of a corpus in its directory. Passages of another definition than this one are not read. Nothing is read
/// or written yet.
pub type OpenPassages = fn(directory: &Path, definition: &str) -> Box<dyn PassageStore>;

/// What a store needs between two publications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// All passages are to be written anew.
    WriteAll,
    /// Many small changes are to be merged.
    Merge,
}

/// The published passages of a corpus, in its directory. Each change makes a version; earlier ones stay until
/// [`PassageStore::forget_earlier`]. After an error of a change nothing is stored.
///
/// Nothing is synced: after a power loss, a version is read exactly, or not at all.
pub trait PassageStore: Send + Sync {
    /// The version that has the published passages; `None` if none has.
    fn version(&self) -> Option<u64>;
    /// Reads the passages at a version, and continues after it.
    fn read(&mut self, version: u64) -> BoxFuture<'_, io::Result<Keyed<Arc<Chunk>>>>;
    /// Appends a change, if the passages before it are stored.
    fn append(&mut self, delta: Delta) -> BoxFuture<'_, io::Result<()>>;
    /// What is to be done before the next change.
    fn upkeep(&self) -> Option<Upkeep>;
    /// Writes all passages anew; without them, merges many small changes.
    fn maintain(&mut self, all: Option<Vec<Arc<Chunk>>>) -> BoxFuture<'_, io::Result<()>>;
    /// Removes what only earlier versions need. The epoch on disk names this one.
    fn forget_earlier(&mut self) -> BoxFuture<'_, io::Result<()>>;
    /// Removes what is stored. Passages of this definition come next.
    fn define(&mut self, definition: &str);
    /// Removes what is stored.
    fn clear(&mut self);
}
