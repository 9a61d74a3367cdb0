//! Epochs: what turns read, and how a new one comes to be.
//!
//! A corpus's indexes are changed by one task, off the workers. When all of them have
//! applied a delta, the next epoch appears in one step; turns that have begun keep the
//! epoch they began with, and the indexes' old readers go when the last of them is done.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::component::{Delta, Index, IndexError, OperatorError};
use crate::document::Chunk;

/// A corpus as of an epoch.
#[derive(Clone, Default)]
pub struct CorpusView {
    /// Documents that have chunks.
    pub documents: usize,
    /// Chunks.
    pub chunks: usize,
    /// By the index's key; of the type that its operators expect.
    pub indexes: BTreeMap<String, Arc<dyn Any + Send + Sync>>,
}

impl CorpusView {
    /// The reader of an index.
    pub fn index<T: Send + Sync + 'static>(&self, key: &str) -> Result<Arc<T>, OperatorError> {
        self.indexes
            .get(key)
            .and_then(|index| index.clone().downcast::<T>().ok())
            .ok_or_else(|| OperatorError::NoIndex(key.to_owned()))
    }
}

/// Every corpus as of an epoch.
#[derive(Clone, Default)]
pub struct Published {
    /// Counts publications, over restarts as well.
    pub epoch: u64,
    /// By name.
    pub corpora: BTreeMap<Arc<str>, Arc<CorpusView>>,
}

/// The epochs that are published and still read.
pub struct Epochs {
    state: Mutex<State>,
    current: watch::Sender<u64>,
    directory: Option<PathBuf>,
}

struct State {
    current: Arc<Published>,
    /// Epochs that turns read, with how many do.
    pinned: BTreeMap<u64, (Arc<Published>, usize)>,
}

/// What the state directory remembers of epochs.
#[derive(Serialize, Deserialize)]
struct EpochFile {
    epoch: u64,
}

impl Epochs {
    /// Goes on counting where the state directory left off.
    pub fn open(directory: Option<&Path>) -> Result<Self, IndexError> {
        let mut epoch = 0;
        if let Some(directory) = directory {
            let path = directory.join("epoch.json");
            match std::fs::read(&path) {
                // A torn file costs only the count's continuity; the indexes do not depend on it.
                Ok(bytes) => epoch = serde_json::from_slice::<EpochFile>(&bytes).map_or(0, |file| file.epoch),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(IndexError::Io { action: "read", path, source }),
            }
        }
        let current = Arc::new(Published { epoch, corpora: BTreeMap::new() });
        Ok(Self {
            state: Mutex::new(State { current, pinned: BTreeMap::new() }),
            current: watch::channel(epoch).0,
            directory: directory.map(Path::to_owned),
        })
    }

    /// The newest epoch.
    pub fn current(&self) -> Arc<Published> {
        self.state.lock().current.clone()
    }

    /// Tells of each new epoch.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.current.subscribe()
    }

    /// Makes a corpus's new view part of the next epoch, and gives its number.
    pub fn publish(&self, corpus: &Arc<str>, view: CorpusView) -> Result<u64, IndexError> {
        let mut state = self.state.lock();
        let mut next = Published::clone(&state.current);
        next.epoch += 1;
        next.corpora.insert(corpus.clone(), Arc::new(view));
        let epoch = next.epoch;
        if let Some(directory) = &self.directory {
            write_epoch(directory, epoch)?;
        }
        state.current = Arc::new(next);
        drop(state);
        self.current.send_replace(epoch);
        Ok(epoch)
    }

    /// Fixes the newest epoch for a turn that begins; to be followed by one [`Epochs::unpin`].
    pub fn pin(&self) -> u64 {
        let mut state = self.state.lock();
        let current = state.current.clone();
        let epoch = current.epoch;
        state.pinned.entry(epoch).or_insert((current, 0)).1 += 1;
        epoch
    }

    /// An epoch that is pinned, or else the newest.
    pub fn get(&self, epoch: u64) -> Arc<Published> {
        let state = self.state.lock();
        state.pinned.get(&epoch).map_or_else(|| state.current.clone(), |(published, _)| published.clone())
    }

    /// A turn is done with its epoch.
    pub fn unpin(&self, epoch: u64) {
        let mut state = self.state.lock();
        if let Some((_, readers)) = state.pinned.get_mut(&epoch) {
            *readers -= 1;
            if *readers == 0 {
                state.pinned.remove(&epoch);
            }
        }
    }
}

fn write_epoch(directory: &Path, epoch: u64) -> Result<(), IndexError> {
    let path = directory.join("epoch.json");
    let temporary = directory.join("epoch.json.new");
    let text = format!("{{\"epoch\":{epoch}}}\n");
    std::fs::write(&temporary, text)
        .and_then(|()| std::fs::rename(&temporary, &path))
        .map_err(|source| IndexError::Io { action: "write", path, source })
}

/// Counters of a corpus, for progress bars and summaries.
#[derive(Debug, Default)]
pub struct CorpusProgress {
    /// Documents read so far.
    pub documents: AtomicU64,
    /// Contents handed over to be prepared (embedded, if new).
    pub prepare: AtomicU64,
    /// Contents that are prepared.
    pub prepared: AtomicU64,
    /// Contents that a model was asked for, once for each index that asks one.
    pub embedded: AtomicU64,
}

impl CorpusProgress {
    /// One counter's value.
    pub fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// Applies deltas to the indexes of one corpus, one after another.
pub struct Publisher {
    corpus: Arc<str>,
    indexes: Vec<(String, Box<dyn Index>)>,
    chunks: BTreeMap<Arc<str>, Arc<Chunk>>,
    /// Chunks of each document that has any.
    documents: BTreeMap<Arc<str>, usize>,
    /// Nothing has been applied yet, or something failed: indexes are to compare all.
    whole: bool,
    epochs: Arc<Epochs>,
}

impl Publisher {
    /// For indexes that have just been opened.
    pub fn new(corpus: Arc<str>, indexes: Vec<(String, Box<dyn Index>)>, epochs: Arc<Epochs>) -> Self {
        Self { corpus, indexes, chunks: BTreeMap::new(), documents: BTreeMap::new(), whole: true, epochs }
    }

    /// Applies net changes and publishes the epoch that has them. After an error nothing
    /// is published; the changes are kept and tried again, with those of the next call.
    pub async fn publish(&mut self, changes: Vec<(Arc<Chunk>, isize)>) -> Result<u64, IndexError> {
        let mut delta = self.absorb(changes);
        if self.whole {
            delta = Delta { added: self.chunks.values().cloned().collect(), removed: Vec::new(), whole: true };
        }
        self.whole = true;
        let mut indexes = BTreeMap::new();
        for (key, index) in &mut self.indexes {
            let begun = Instant::now();
            indexes.insert(key.clone(), index.apply(&delta).await?);
            tracing::debug!(corpus = %self.corpus, index = %key, took = ?begun.elapsed(), "applied");
        }
        let view = CorpusView { documents: self.documents.len(), chunks: self.chunks.len(), indexes };
        let epoch = self.epochs.publish(&self.corpus, view)?;
        self.whole = false;
        Ok(epoch)
    }

    fn absorb(&mut self, changes: Vec<(Arc<Chunk>, isize)>) -> Delta {
        let mut delta = Delta::default();
        let (removed, added): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, diff)| *diff < 0);
        for (chunk, _) in removed {
            if self.chunks.get(&chunk.id).is_some_and(|old| *old == chunk) {
                self.chunks.remove(&chunk.id);
                if let Some(count) = self.documents.get_mut(&chunk.document) {
                    *count -= 1;
                    if *count == 0 {
                        self.documents.remove(&chunk.document);
                    }
                }
                delta.removed.push(chunk);
            }
        }
        for (chunk, _) in added {
            *self.documents.entry(chunk.document.clone()).or_default() += 1;
            self.chunks.insert(chunk.id.clone(), chunk.clone());
            delta.added.push(chunk);
        }
        delta
    }
}
