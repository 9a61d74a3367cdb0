//! Blocks of passages with their encodings, and where each passage is.

use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use turnflow_engine::document::Chunk;
use turnflow_engine::mapped::MappedFiles;

/// Passages in a block. An epoch copies only the blocks that it changes.
pub(super) const BLOCK: usize = 512;

/// Data derived from a block's rows; dropped when the block changes.
pub(crate) trait Derived<V>: Sized + Send + Sync + 'static {
    /// Whether it is derived, on all cores, when a large change is applied. Otherwise, the first search derives it.
    const AT_ONCE: bool = false;
    /// Derives the data, and keeps large parts of it in `files`.
    fn derive(rows: &[(V, Arc<Chunk>)], files: Option<&MappedFiles>) -> Self;
}

impl<V> Derived<V> for () {
    fn derive(_: &[(V, Arc<Chunk>)], _: Option<&MappedFiles>) -> Self {}
}

/// Passages with their encodings, and derived data.
pub(crate) struct Block<V, D> {
    /// Encoding and passage of each row.
    pub rows: Vec<(V, Arc<Chunk>)>,
    derived: Arc<OnceLock<D>>,
    /// Where the derived data is kept; `None`: on the heap, as in a block that has changed.
    files: Option<Arc<MappedFiles>>,
}

impl<V: Clone, D> Clone for Block<V, D> {
    fn clone(&self) -> Self {
        // Blocks are cloned only to be changed, so the derived data is not kept.
        Self { rows: self.rows.clone(), derived: Arc::default(), files: None }
    }
}

impl<V, D: Derived<V>> Block<V, D> {
    /// A block without passages, whose derived data will be kept in these files.
    pub(super) fn new(files: Option<Arc<MappedFiles>>) -> Self {
        Self { rows: Vec::with_capacity(BLOCK), derived: Arc::default(), files }
    }

    /// The same block, with equal encodings from elsewhere in memory.
    pub(super) fn with(&self, encoding: impl Fn(&Chunk) -> Option<V>) -> Self
    where
        V: Clone,
    {
        let row = |(value, chunk): &(V, Arc<Chunk>)| (encoding(chunk).unwrap_or_else(|| value.clone()), chunk.clone());
        let mut rows = Vec::with_capacity(BLOCK);
        rows.extend(self.rows.iter().map(row));
        Self { rows, derived: self.derived.clone(), files: self.files.clone() }
    }

    /// The data derived from the rows.
    pub fn derived(&self) -> &D {
        self.derived.get_or_init(|| D::derive(&self.rows, self.files.as_deref()))
    }

    pub(super) fn rows_mut(&mut self) -> &mut Vec<(V, Arc<Chunk>)> {
        self.derived = Arc::default();
        &mut self.rows
    }
}

/// A block and a row. There are fewer than 2³² passages.
pub(super) fn at(block: usize, row: usize) -> (u32, u32) {
    (block as u32, row as u32)
}

/// Block and row of each passage, by its id, which is in that row.
#[derive(Default)]
pub(super) struct Places {
    pub table: HashTable<(u32, u32)>,
    hasher: RandomState,
}

fn id_at<V, D>(blocks: &[Arc<Block<V, D>>], (block, row): (u32, u32)) -> &str {
    let row = blocks.get(block as usize).and_then(|block| block.rows.get(row as usize));
    row.map_or("", |(_, chunk)| &chunk.id)
}

impl Places {
    /// Removes the place of a passage, which is still in its row.
    pub fn remove<V, D>(&mut self, id: &str, blocks: &[Arc<Block<V, D>>]) -> Option<(u32, u32)> {
        let found = self.table.find_entry(self.hasher.hash_one(id), |at| id_at(blocks, *at) == id);
        found.ok().map(|entry| entry.remove().0)
    }

    /// Makes room for this many more places.
    pub fn reserve<V, D>(&mut self, more: usize, blocks: &[Arc<Block<V, D>>]) {
        self.table.reserve(more, |at| self.hasher.hash_one(id_at(blocks, *at)));
    }

    /// Enters the place of a passage, which is in its row.
    pub fn insert<V, D>(&mut self, at: (u32, u32), blocks: &[Arc<Block<V, D>>]) {
        let hash = |at: &(u32, u32)| self.hasher.hash_one(id_at(blocks, *at));
        self.table.insert_unique(hash(&at), at, hash);
    }
}
