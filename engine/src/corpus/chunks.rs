//! The chunks of a feed, and the difference between two feeds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::component::Delta;
use crate::document::{Chunk, Content};
use crate::keyed::Keyed;

/// Net changes: chunks with their differences in count.
pub(super) type Changes = Vec<(Arc<Chunk>, isize)>;

/// All chunks of a feed.
#[derive(Default)]
pub(super) struct Chunks {
    by_id: Keyed<Arc<Chunk>>,
    /// Number of chunks of each document that has any, except for whole documents.
    documents: HashMap<Arc<str>, u32>,
    /// Number of chunks that are whole documents, and have their ids.
    whole: usize,
}

impl Chunks {
    /// Collects the given chunks.
    pub fn of(chunks: Vec<Arc<Chunk>>) -> Self {
        let mut all = Self { by_id: Keyed::with_capacity(chunks.len()), ..Self::default() };
        chunks.into_iter().for_each(|chunk| all.add(chunk));
        all
    }

    /// Collects these chunks.
    pub fn keyed(by_id: Keyed<Arc<Chunk>>) -> Self {
        let mut all = Self { by_id, ..Self::default() };
        for chunk in all.by_id.iter() {
            if chunk.id == chunk.document {
                all.whole += 1;
            } else {
                *all.documents.entry(chunk.document.clone()).or_default() += 1;
            }
        }
        all
    }

    /// Becomes the chunks that the changes add to nothing, with numbers. Returns the difference.
    pub fn become_those(&mut self, changes: Changes, numbers: &mut Numbers) -> Delta {
        let added = changes.into_iter().filter(|(_, diff)| *diff > 0);
        let mut new = Self::of(added.map(|(chunk, _)| chunk).collect());
        new.number_like(self, numbers);
        let delta = difference(self, &new);
        numbers.free.extend(delta.removed.iter().filter_map(|chunk| chunk.place.get()));
        *self = new;
        delta
    }

    fn add(&mut self, chunk: Arc<Chunk>) {
        if chunk.id == chunk.document {
            self.whole += 1;
        } else {
            *self.documents.entry(chunk.document.clone()).or_default() += 1;
        }
        self.by_id.insert(chunk);
    }

    fn remove(&mut self, id: &str) -> Option<Arc<Chunk>> {
        let chunk = self.by_id.remove(id)?;
        if chunk.id == chunk.document {
            self.whole -= 1;
        } else if let Some(count) = self.documents.get_mut(&chunk.document) {
            *count -= 1;
            if *count == 0 {
                self.documents.remove(&chunk.document);
            }
        }
        Some(chunk)
    }

    /// Applies net changes; returns the changes that had an effect, by id.
    pub fn absorb(&mut self, changes: Changes) -> Delta {
        let mut delta = Delta::default();
        let (removed, added): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, diff)| *diff < 0);
        for (chunk, _) in removed {
            if self.by_id.get(&chunk.id).is_some_and(|old| *old == chunk) {
                // The dataflow may give another copy of the chunk, without its number.
                delta.removed.push(self.remove(&chunk.id).unwrap_or(chunk));
            }
        }
        for (chunk, _) in added {
            // A copy that was in the corpus before has a number that may be another chunk's now.
            let chunk = if chunk.place.get().is_none() { chunk } else { Arc::new(chunk.without_place()) };
            self.add(chunk.clone());
            delta.added.push(chunk);
        }
        // Neighbours in a document get neighbouring numbers.
        for chunks in [&mut delta.added, &mut delta.removed] {
            chunks.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        }
        delta
    }

    pub fn whole(&self) -> Delta {
        Delta { added: self.by_id.sorted(), removed: Vec::new(), whole: true }
    }

    /// Every chunk, by id.
    pub fn all(&self) -> Vec<Arc<Chunk>> {
        self.by_id.sorted()
    }

    /// Each chunk, in no order.
    pub fn each(&self) -> impl Iterator<Item = &Arc<Chunk>> {
        self.by_id.iter()
    }

    /// Assigns numbers to all chunks: a chunk that equals one of `other` gets its number, and any other a free one.
    pub fn number_like(&mut self, other: &Self, numbers: &mut Numbers) {
        for chunk in self.by_id.sorted() {
            let known = other.by_id.get(&chunk.id).filter(|known| **known == chunk).and_then(|known| known.place.get());
            let number = known.unwrap_or_else(|| numbers.take());
            if chunk.place.assign(number) != number {
                let chunk = Arc::new(chunk.without_place());
                chunk.place.assign(number);
                self.by_id.insert(chunk);
            }
        }
    }

    /// Whether there is a chunk with this id and content.
    pub fn has(&self, chunk: &Chunk) -> bool {
        self.by_id.get(&chunk.id).is_some_and(|known| known.hash == chunk.hash)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.len() == 0
    }

    /// The number of documents that have chunks, and the number of chunks.
    pub fn counts(&self) -> (usize, usize) {
        (self.whole + self.documents.len(), self.by_id.len())
    }
}

/// The numbers of the chunks of a corpus.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    next: u32,
    free: Vec<u32>,
}

impl Numbers {
    /// The numbers that these chunks leave free.
    pub fn besides(chunks: &Chunks) -> Self {
        let taken: BTreeSet<u32> = chunks.each().filter_map(|chunk| chunk.place.get()).collect();
        let next = taken.last().map_or(0, |last| last + 1);
        Self { next, free: (0..next).filter(|number| !taken.contains(number)).collect() }
    }

    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let number = self.next;
            self.next += 1;
            number
        })
    }

    /// Assigns numbers to the chunks that a change adds. Those of removed chunks are free from now on: earlier epochs
    /// have their own tables.
    pub fn assign(&mut self, delta: &Delta) {
        self.free.extend(delta.removed.iter().filter_map(|chunk| chunk.place.get()));
        for chunk in &delta.added {
            let number = self.take();
            chunk.place.assign(number);
        }
    }
}

/// The delta from `old` to `new`. Equal chunks with different numbers are different, unless one has none.
pub(super) fn difference(old: &Chunks, new: &Chunks) -> Delta {
    let differ = |a: &Arc<Chunk>, b: &Arc<Chunk>| match (a.place.get(), b.place.get()) {
        (Some(a), Some(b)) if a != b => true,
        _ => a != b,
    };
    let lacks = |one: &Chunks, chunk: &&Arc<Chunk>| {
        one.by_id.get(&chunk.id).is_none_or(|other| !Arc::ptr_eq(other, chunk) && differ(other, chunk))
    };
    let those = |of: &Chunks, other: &Chunks| {
        let mut those: Vec<_> = of.each().filter(|chunk| lacks(other, chunk)).cloned().collect();
        those.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        those
    };
    Delta { added: those(new, old), removed: those(old, new), whole: false }
}

/// The distinct contents of chunks.
pub(super) fn contents_of(chunks: &[Arc<Chunk>]) -> Vec<Content> {
    let by_hash: BTreeMap<_, _> = chunks.iter().map(|chunk| (chunk.hash, chunk)).collect();
    by_hash.into_values().map(|chunk| Content { chunk: chunk.clone() }).collect()
}

#[cfg(test)]
pub(super) fn chunk(id: &str, text: &str) -> Arc<Chunk> {
    Arc::new(Chunk::new(id.into(), id.into(), "".into(), text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_what_came_what_went_and_both_sides_of_what_changed() {
        let of = |chunks: &[(&str, &str)]| Chunks::of(chunks.iter().map(|(id, text)| chunk(id, text)).collect());
        let (old, new) = (of(&[("a", "1"), ("b", "1"), ("c", "1")]), of(&[("b", "2"), ("c", "1"), ("d", "1")]));
        let delta = difference(&old, &new);
        let ids = |chunks: &[Arc<Chunk>]| chunks.iter().map(|chunk| chunk.id.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (ids(&delta.added), ids(&delta.removed)),
            (vec!["b".into(), "d".into()], vec!["a".into(), "b".into()])
        );
    }
}
