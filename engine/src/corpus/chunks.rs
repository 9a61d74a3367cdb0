//! The chunks of a feed, and the difference between two feeds.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::component::Delta;
use crate::document::{Chunk, Content};

/// Net changes: chunks with their differences in count.
pub(super) type Changes = Vec<(Arc<Chunk>, isize)>;

/// All chunks of a feed.
#[derive(Default)]
pub(super) struct Chunks {
    by_id: BTreeMap<Arc<str>, Arc<Chunk>>,
    /// Number of chunks of each document that has any.
    documents: BTreeMap<Arc<str>, usize>,
}

impl Chunks {
    /// Collects the given chunks.
    pub fn of(chunks: Vec<Arc<Chunk>>) -> Self {
        let mut all = Self::default();
        all.absorb(chunks.into_iter().map(|chunk| (chunk, 1)).collect());
        all
    }

    /// Applies net changes; returns the changes that had an effect.
    pub fn absorb(&mut self, changes: Changes) -> Delta {
        let mut delta = Delta::default();
        let (removed, added): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, diff)| *diff < 0);
        for (chunk, _) in removed {
            if self.by_id.get(&chunk.id).is_some_and(|old| *old == chunk) {
                self.by_id.remove(&chunk.id);
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
            self.by_id.insert(chunk.id.clone(), chunk.clone());
            delta.added.push(chunk);
        }
        delta
    }

    pub fn whole(&self) -> Delta {
        Delta { added: self.by_id.values().cloned().collect(), removed: Vec::new(), whole: true }
    }

    /// Every chunk, by id.
    pub fn all(&self) -> Vec<Arc<Chunk>> {
        self.by_id.values().cloned().collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The number of documents that have chunks, and the number of chunks.
    pub fn counts(&self) -> (usize, usize) {
        (self.documents.len(), self.by_id.len())
    }
}

/// The delta from `old` to `new`.
pub(super) fn difference(old: &Chunks, new: &Chunks) -> Delta {
    let lacks = |one: &Chunks, chunk: &&Arc<Chunk>| {
        one.by_id.get(&chunk.id).is_none_or(|other| !Arc::ptr_eq(other, chunk) && other != *chunk)
    };
    Delta {
        added: new.by_id.values().filter(|chunk| lacks(old, chunk)).cloned().collect(),
        removed: old.by_id.values().filter(|chunk| lacks(new, chunk)).cloned().collect(),
        whole: false,
    }
}

/// The distinct contents of chunks.
pub(super) fn contents_of(chunks: &[Arc<Chunk>]) -> Vec<Content> {
    let by_hash: BTreeMap<_, _> = chunks.iter().map(|chunk| (chunk.hash, chunk)).collect();
    by_hash.into_iter().map(|(hash, chunk)| Content { hash, chunk: chunk.clone() }).collect()
}

#[cfg(test)]
pub(super) fn chunk(id: &str, text: &str) -> Arc<Chunk> {
    Arc::new(Chunk {
        id: id.into(),
        document: id.into(),
        title: "".into(),
        text: text.into(),
        hash: crate::document::ContentHash(*blake3::hash(text.as_bytes()).as_bytes()),
    })
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
