//! An index by content: the encoding of each content, and the blocks of passages that a search reads.

use std::any::Any;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Delta, Index, IndexError, Maintained, MaintenanceLimits, Paged, Permitted, Prepare};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::mapped::MappedFiles;
use turnflow_engine::wording::count;

use super::blocks::{BLOCK, Block, Derived, Places, at};
use super::contents::{Contents, Encode};
use super::read::read;
use super::rows::Stored;
use super::store::{Store, dataset_path};
use super::unused::Leaving;
use crate::cores::on_all_cores;

/// Without maintenance, up to this many times that number are kept.
const MOST_SPARE: usize = 4;

/// Passages whose encodings are looked up before they are added.
const PART: usize = 1 << 16;
/// Number of contents in one call of the encoder, for contents that were not prepared.
const CONTENTS_A_CALL: usize = 256;

/// Opens the index that is stored in `directory`, or one in memory.
pub(crate) async fn open<V: Stored, D: Derived<V>>(
    directory: Option<&Path>,
    encoder: Arc<dyn Encode<V>>,
) -> Result<Box<dyn Index>, IndexError> {
    Ok(Box::new(open_blocks::<V, D>(directory, encoder).await?))
}

/// As [`open`], for an index that is part of another one.
pub(crate) async fn open_blocks<V: Stored, D: Derived<V>>(
    directory: Option<&Path>,
    encoder: Arc<dyn Encode<V>>,
) -> Result<BlockIndex<V, D>, IndexError> {
    let files = directory.map(MappedFiles::new);
    let (store, stored) = Store::open(directory, encoder.dimension()).await?;
    let contents = Arc::new(Contents::new(encoder, stored));
    let (blocks, places, rows) = (Vec::new(), Places::default(), Paged::default());
    Ok(BlockIndex {
        contents,
        store,
        files,
        blocks,
        places,
        is_large: false,
        rows,
        leaving: None,
        lacks: false,
        waiting: HashSet::new(),
    })
}

/// An index by content.
pub(crate) struct BlockIndex<V, D> {
    pub(super) contents: Arc<Contents<V>>,
    pub(super) store: Store<V>,
    /// Where large derived data is kept; `None`: on the heap.
    files: Option<Arc<MappedFiles>>,
    pub(super) blocks: Vec<Arc<Block<V, D>>>,
    pub(super) places: Places,
    /// Whether the current change adds more passages than a block has.
    is_large: bool,
    /// Block and row of each passage, by its number in the corpus.
    rows: Paged<(u32, u32)>,
    /// Set if a removal was cancelled or failed.
    pub(super) leaving: Option<Leaving>,
    /// Whether restored passages lack their encodings.
    lacks: bool,
    /// The ids of passages that are left out because their model is away.
    waiting: HashSet<Arc<str>>,
}

impl<V: Stored, D: Derived<V>> BlockIndex<V, D> {
    /// Removes a passage. The last row of the last block takes its place, so that blocks stay full.
    fn remove(&mut self, id: &str) {
        self.waiting.remove(id);
        let Some((block, row)) = self.places.remove(id, &self.blocks) else { return };
        let (block, place) = (block as usize, row as usize);
        let number = self.blocks[block].rows[place].1.place.get();
        // The number may already be that of another passage.
        if let Some(number) = number.filter(|number| self.rows.get(*number) == Some(&at(block, place))) {
            self.rows.set(number, None);
        }
        let last = self.blocks.last().and_then(|block| block.rows.last());
        let moves = last.is_some_and(|(_, chunk)| *chunk.id != *id);
        if moves && let Some((_, chunk)) = last {
            self.places.remove(&chunk.id, &self.blocks);
        }
        let Some(last) = self.blocks.last_mut().and_then(|block| Arc::make_mut(block).rows_mut().pop()) else { return };
        if self.blocks.last().is_some_and(|block| block.rows.is_empty()) {
            self.blocks.pop();
        }
        if moves {
            self.number(&last.1, block, place);
            Arc::make_mut(&mut self.blocks[block]).rows_mut()[place] = last;
            self.places.insert(at(block, place), &self.blocks);
        }
    }

    fn add(&mut self, value: V, chunk: Arc<Chunk>) {
        if self.blocks.last().is_none_or(|block| block.rows.len() >= BLOCK) {
            let files = self.files.clone().filter(|_| self.is_large);
            self.blocks.push(Arc::new(Block::new(files)));
        }
        let block = self.blocks.len() - 1;
        let place = self.blocks[block].rows.len();
        self.number(&chunk, block, place);
        Arc::make_mut(&mut self.blocks[block]).rows_mut().push((value, chunk));
        self.places.insert(at(block, place), &self.blocks);
    }

    /// Notes the row of a passage by its number.
    fn number(&mut self, chunk: &Chunk, block: usize, place: usize) {
        if let Some(number) = chunk.place.get() {
            self.rows.set(number, Some(at(block, place)));
        }
    }

    fn change(&mut self, delta: &Delta) {
        self.is_large = delta.added.len() > BLOCK;
        match self.is_large {
            // It computes for long; meanwhile, another thread takes over this one's tasks.
            true => tokio::task::block_in_place(|| self.apply(delta)),
            false => self.apply(delta),
        }
    }

    fn apply(&mut self, delta: &Delta) {
        if delta.whole {
            self.blocks.clear();
            self.places = Places::default();
            self.rows = Paged::default();
            self.waiting.clear();
        }
        for chunk in &delta.removed {
            self.remove(&chunk.id);
        }
        self.places.reserve(delta.added.len(), &self.blocks);
        for part in delta.added.chunks(PART) {
            for (chunk, value) in part.iter().zip(self.contents.of(part)) {
                self.remove(&chunk.id);
                // A content that could not be encoded has no vector. It is a dead letter already, or it waits.
                match value {
                    Some(value) => self.add(value, chunk.clone()),
                    None if self.contents.waits(chunk) => _ = self.waiting.insert(chunk.id.clone()),
                    None => {}
                }
            }
        }
        if self.is_large && D::AT_ONCE {
            on_all_cores(&self.blocks, 1, |block| {
                block.derived();
            });
        }
        let mut state = self.contents.state.lock();
        if !state.claims.is_empty() {
            let named: HashSet<ContentHash> = delta.added.iter().map(|chunk| chunk.hash).collect();
            named.iter().for_each(|hash| state.claims.applied(hash));
        }
    }

    /// Encodes contents of a change that have no encoding: their encodings were removed meanwhile, or they were never
    /// prepared. Only passages with a dead letter are left out. An error fails the change, which is retried.
    async fn complete(&self, delta: &Delta) -> Result<(), IndexError> {
        let missing = self.contents.missing(&delta.added);
        if !missing.is_empty() {
            tracing::debug!(contents = missing.len(), "contents are encoded while a change is applied");
        }
        for part in missing.chunks(CONTENTS_A_CALL) {
            self.contents.encode(part).await?;
        }
        Ok(())
    }

    /// Stores new encodings.
    async fn store_new(&mut self) -> Result<(), IndexError> {
        let (unsaved, count) = {
            let state = self.contents.state.lock();
            let vector = |hash: &ContentHash| Some((*hash, state.by_content.get(hash)?.value.clone()));
            (state.unsaved.iter().filter_map(vector).collect::<Vec<_>>(), state.unsaved.len())
        };
        let appended = self.store.append(unsaved).await;
        if self.mend(appended.as_ref().err()).await?.is_none() {
            self.contents.place(appended?);
        }
        // New entries may have been added meanwhile; they come after those that were saved.
        self.contents.state.lock().unsaved.drain(..count);
        Ok(())
    }

    /// Uses encodings where they are stored now, after their rows have moved to other files.
    async fn follow(&mut self) {
        let contents = &self.contents;
        if !self.store.moved(|placed| contents.place(placed)).await {
            return;
        }
        let by_content = &contents.state.lock().by_content;
        for block in &mut self.blocks {
            *block = Arc::new(block.with(|chunk| Some(by_content.get(&chunk.hash)?.value.clone())));
        }
    }

    /// All encodings.
    fn all(&self) -> Vec<(ContentHash, V)> {
        self.contents.state.lock().by_content.iter().map(|of| (of.hash, of.value.clone())).collect()
    }

    /// Rewrites the store from memory, which has all of its data, if the error was caused by damage. Returns the new
    /// path of the damaged store.
    async fn mend(&mut self, error: Option<&IndexError>) -> Result<Option<PathBuf>, IndexError> {
        if !self.store.is_damaged() {
            return Ok(None);
        }
        // Encodings that were being removed may stay.
        self.leaving = None;
        let aside = self.store.rebuild(self.all()).await?;
        let error = error.map(ToString::to_string);
        tracing::warn!(error, aside = %aside.display(), "stored vectors are damaged: moved aside and rewritten");
        Ok(Some(aside))
    }
}

impl<V: Stored, D: Derived<V>> BlockIndex<V, D> {
    /// Applies a change, and returns the reader of the next epoch.
    pub async fn next(&mut self, delta: &Delta) -> Result<Arc<BlockReader<V, D>>, IndexError> {
        let begun = std::time::Instant::now();
        self.contents.state.lock().claims.tick();
        self.settle().await?;
        self.complete(delta).await?;
        self.store_new().await?;
        tracing::debug!(took = ?begun.elapsed(), "encodings are stored");
        self.change(delta);
        // A change that names the whole corpus lists no removals. Its unused encodings stay, because the next change may
        // use them again: a directory was not mounted, or a change was split.
        if !delta.removed.is_empty() {
            self.remove_unused(MOST_SPARE).await?;
        }
        self.follow().await;
        Ok(self.reader())
    }

    fn reader(&self) -> Arc<BlockReader<V, D>> {
        let (blocks, rows) = (self.blocks.clone(), self.rows.clone());
        Arc::new(BlockReader { blocks, rows, contents: self.contents.clone(), missing: self.waiting.len() })
    }

    async fn run_maintenance(&mut self, limits: MaintenanceLimits) -> Result<Vec<String>, IndexError> {
        let gone = self.remove_unused(if limits.is_whole() { 0 } else { 1 }).await?;
        let mut did = Vec::new();
        if gone > 0 {
            did.push(format!("{} without a passage removed", count(gone, "encoding")));
        }
        if self.store.is_of_earlier_form() {
            self.settle().await?;
            self.store.replace(self.all()).await?;
            did.push("written in the form in which it is used".to_owned());
        }
        did.extend(self.store.maintain(limits).await?);
        self.follow().await;
        Ok(did)
    }
}

impl<V: Stored, D: Derived<V>> Index for BlockIndex<V, D> {
    fn preparation(&self) -> Option<Arc<dyn Prepare>> {
        Some(self.contents.clone())
    }

    fn take_over<'a>(&'a mut self, from: &'a Path) -> BoxFuture<'a, Result<usize, IndexError>> {
        async move {
            let path = dataset_path(from);
            if !path.exists() {
                return Ok(0);
            }
            let mut rows: Vec<(ContentHash, V)> = Vec::new();
            let dimension = self.contents.dimension();
            read(&path.to_string_lossy(), dimension, None, |some| rows.extend(some)).await?;
            Ok(self.contents.add(rows))
        }
        .boxed()
    }

    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        async move {
            let next = self.next(delta).await?;
            Ok(next as Arc<dyn Any + Send + Sync>)
        }
        .boxed()
    }

    fn restore<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        self.change(delta);
        self.lacks = !self.contents.missing(&delta.added).is_empty();
        let reader: Arc<dyn Any + Send + Sync> = self.reader();
        async move { Ok(reader) }.boxed()
    }

    fn confirm(&mut self, difference: &Delta) -> bool {
        // The contents of the source are prepared, and only those of the difference will be applied.
        let next: HashSet<ContentHash> = difference.added.iter().map(|chunk| chunk.hash).collect();
        let rows = self.blocks.iter().flat_map(|block| block.rows.iter());
        let served: HashSet<ContentHash> = rows.map(|(_, chunk)| chunk.hash).collect();
        let mut state = self.contents.state.lock();
        served.difference(&next).for_each(|hash| state.claims.applied(hash));
        !std::mem::take(&mut self.lacks)
    }

    fn save(&mut self) -> BoxFuture<'_, Result<(), IndexError>> {
        async {
            self.settle().await?;
            self.store_new().await
        }
        .boxed()
    }

    fn version(&self) -> Option<u64> {
        self.store.version()
    }

    fn maintain(&mut self, limits: MaintenanceLimits) -> BoxFuture<'_, Result<Maintained, IndexError>> {
        async move {
            let begun = std::time::Instant::now();
            let before = self.store.disk_usage();
            let did = match self.run_maintenance(limits).await {
                Ok(did) => did,
                Err(error) => {
                    let aside = self.mend(Some(&error)).await?.ok_or(error)?;
                    vec![format!("damaged: rewritten from memory, and moved aside as {}", aside.display())]
                }
            };
            Ok(Maintained { before, after: self.store.disk_usage(), took: begun.elapsed(), did })
        }
        .boxed()
    }
}

/// The index at an epoch.
pub(crate) struct BlockReader<V, D> {
    /// All passages, in no particular order.
    pub blocks: Vec<Arc<Block<V, D>>>,
    rows: Paged<(u32, u32)>,
    pub(super) contents: Arc<Contents<V>>,
    /// Number of passages that are left out because their model is away.
    pub missing: usize,
}

impl<V, D> BlockReader<V, D> {
    /// What an operator keeps with the index, for all epochs, under a key. `make` makes it the first time.
    pub fn attached<T: Send + Sync + 'static>(&self, key: &str, make: impl FnOnce() -> T) -> Arc<T> {
        let mut attached = self.contents.attached.lock();
        if let Some(found) = attached.get(key).and_then(|found| found.clone().downcast::<T>().ok()) {
            return found;
        }
        let made = Arc::new(make());
        attached.insert(key.to_owned(), made.clone());
        made
    }

    /// The encodings of passages, also of those that were removed not long ago.
    pub fn encodings_of(&self, chunks: &[Arc<Chunk>]) -> Vec<Option<V>>
    where
        V: Stored,
    {
        self.contents.of(chunks)
    }

    /// The row of the passage with this number in the corpus.
    pub fn numbered(&self, number: u32) -> Option<&(V, Arc<Chunk>)> {
        let (block, place) = self.rows.get(number)?;
        self.blocks.get(*block as usize)?.rows.get(*place as usize)
    }

    /// Number of passages.
    pub fn passages(&self) -> usize {
        self.blocks.iter().map(|block| block.rows.len()).sum()
    }

    /// Number of passages among the permitted ones, at most.
    pub fn searched(&self, permitted: &Permitted) -> usize {
        permitted.numbers().map_or_else(|| self.passages(), |numbers| numbers.len() as usize)
    }

    /// The rows of the permitted passages, if there is a restriction. Cost: proportional to them.
    pub fn permitted<'a>(&'a self, permitted: &'a Permitted) -> Option<impl Iterator<Item = &'a (V, Arc<Chunk>)>> {
        Some(permitted.numbers()?.iter().filter_map(|number| self.numbered(number)))
    }
}

impl<V: Stored, D> BlockReader<V, D> {
    /// The dimension of the encodings.
    pub fn dimension(&self) -> usize {
        self.contents.dimension()
    }
}

impl<V: Clone, D> BlockReader<V, D> {
    /// The encoding of a passage, looked up by its content, so it is valid for every epoch.
    pub fn encoding(&self, chunk: &Chunk) -> Option<V> {
        self.contents.state.lock().by_content.get(&chunk.hash).map(|of| of.value.clone())
    }
}
