//! An index in the index writer, and the passages on which it panics.
//!
//! A panic is caused either by the index itself (then the change is an error and is retried) or by a
//! passage. Such a passage must neither block the other passages nor fail every start. It is found by
//! bisection, written as a dead letter, and excluded from this index until it changes.

use std::any::Any;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::chunks::{Chunks, contents_of};
use super::prepare::Preparing;
use crate::component::{Delta, Index, IndexError, Prepare};
use crate::document::Chunk;
use crate::panics::{Panicked, caught_async};

/// Maximum number of passages excluded from one index. If there are more, the index itself is faulty.
const MOST_REFUSED: usize = 32;

pub(super) struct Slot {
    pub key: String,
    pub index: Box<dyn Index>,
    /// The preparation of an index that was added while the corpus was being read: changes in flight
    /// at that time may not be prepared for it.
    pub joined: Option<Arc<dyn Prepare>>,
    pub reader: Option<Arc<dyn Any + Send + Sync>>,
    /// Passages on which it panics.
    refused: HashMap<Arc<str>, Arc<Chunk>>,
}

impl Slot {
    pub fn new(key: String, index: Box<dyn Index>, joined: Option<Arc<dyn Prepare>>) -> Self {
        Self { key, index, joined, reader: None, refused: HashMap::new() }
    }

    /// Applies the delta that turns the content of the index into `all`.
    pub async fn apply(&mut self, delta: &Delta, all: &Chunks, preparing: &Preparing) -> Result<(), IndexError> {
        if let Some(preparation) = &self.joined {
            // Costs only one look-up per chunk that is already prepared.
            // What waits for a server is tried elsewhere.
            let contents = preparing.not_waiting(preparation, contents_of(&delta.added));
            preparing.contents(preparation, contents).await;
        }
        let bearable = self.without_refused(delta);
        let Err(error) = self.attempt(&bearable).await else { return Ok(()) };
        let IndexError::Panicked(panic) = error else { return Err(error) };
        preparing.progress.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(corpus = %preparing.corpus, index = %self.key, "the index {panic}; will retry");
        // If the second attempt succeeds, no passage caused it.
        let whole = all.whole();
        let whole = self.without_refused(&whole);
        match self.attempt(&whole).await {
            Err(IndexError::Panicked(_)) => self.search(&bearable.added, all, preparing).await,
            tried => tried,
        }
    }

    /// Applies the passages that an earlier run has published.
    pub async fn restore(&mut self, delta: &Delta) -> Result<(), IndexError> {
        let index = &mut self.index;
        self.reader = Some(caught_async(|| index.restore(delta)).await??);
        Ok(())
    }

    /// The delta without the refused passages. Forgets refused passages that are removed or changed.
    fn without_refused<'d>(&mut self, delta: &'d Delta) -> Cow<'d, Delta> {
        if self.refused.is_empty() {
            return Cow::Borrowed(delta);
        }
        let is_refused = |chunk: &&Arc<Chunk>| self.refused.get(&chunk.id) == Some(*chunk);
        // The index does not contain them, so their removals are dropped too.
        let kept = |chunks: &[Arc<Chunk>]| chunks.iter().filter(|chunk| !is_refused(chunk)).cloned().collect();
        let bearable = Delta { added: kept(&delta.added), removed: kept(&delta.removed), whole: delta.whole };
        let named: HashSet<&Arc<Chunk>> = delta.added.iter().filter(is_refused).collect();
        let gone: HashSet<&Arc<str>> = delta.removed.iter().chain(&delta.added).map(|chunk| &chunk.id).collect();
        self.refused.retain(|id, chunk| named.contains(chunk) || !(delta.whole || gone.contains(id)));
        Cow::Owned(bearable)
    }

    async fn attempt(&mut self, delta: &Delta) -> Result<(), IndexError> {
        let index = &mut self.index;
        self.reader = Some(caught_async(|| index.apply(delta)).await??);
        Ok(())
    }

    /// Finds the passages on which the index panics, starting with the `suspects`, and applies all
    /// others.
    async fn search(&mut self, suspects: &[Arc<Chunk>], all: &Chunks, preparing: &Preparing) -> Result<(), IndexError> {
        let everything = self.without_refused(&all.whole()).into_owned().added;
        let ids = |chunks: &[Arc<Chunk>]| chunks.iter().map(|chunk| chunk.id.clone()).collect::<Vec<_>>();
        let mut parts = vec![suspects.to_vec()];
        let mut out: HashSet<Arc<str>> = ids(suspects).into_iter().collect();
        match self.attempt(&without(&everything, &out)).await {
            Err(IndexError::Panicked(_)) if suspects.len() < everything.len() => {
                parts = vec![everything.clone()];
                out.extend(ids(&everything));
                self.attempt(&without(&everything, &out)).await?;
            }
            tried => tried?,
        }
        let mut complete = false;
        while let Some(part) = parts.pop() {
            for chunk in &part {
                out.remove(&chunk.id);
            }
            match self.attempt(&without(&everything, &out)).await {
                Err(IndexError::Panicked(panic)) => {
                    complete = false;
                    out.extend(ids(&part));
                    match &part[..] {
                        [chunk] => self.refuse(chunk, panic, preparing)?,
                        many => {
                            let (one, other) = many.split_at(many.len() / 2);
                            parts.extend([other.to_vec(), one.to_vec()]);
                        }
                    }
                }
                tried => {
                    tried?;
                    complete = parts.is_empty();
                }
            }
        }
        if complete { Ok(()) } else { self.attempt(&without(&everything, &out)).await }
    }

    /// Excludes a passage from now on and writes a dead letter.
    ///
    /// # Errors
    ///
    /// Too many passages are already excluded.
    fn refuse(&mut self, chunk: &Arc<Chunk>, panic: Panicked, preparing: &Preparing) -> Result<(), Panicked> {
        if self.refused.len() >= MOST_REFUSED {
            return Err(panic);
        }
        let reason = format!("index `{}` {panic}; it skips the passage", self.key);
        preparing.dead.write(&preparing.corpus, &chunk.id, &reason, chunk.text.as_bytes());
        self.refused.insert(chunk.id.clone(), chunk.clone());
        Ok(())
    }
}

/// All chunks except those in `out`, as a whole delta.
fn without(everything: &[Arc<Chunk>], out: &HashSet<Arc<str>>) -> Delta {
    let added = everything.iter().filter(|chunk| !out.contains(&chunk.id)).cloned().collect();
    Delta { added, removed: Vec::new(), whole: true }
}
