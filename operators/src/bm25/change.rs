//! Applies changes of the corpus to the inverted index.

use std::sync::Arc;
use std::time::Instant;

use tantivy::{TantivyDocument, TantivyError, Term};
use turnflow_engine::component::Delta;
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::keyed::Slot;

use super::analyzer::Tokenizer;
use super::entries::{Entry, Passage};
use super::index::{BUFFER, Bm25Index};
use super::separated::joined;
use crate::cores::{cores, on_all_cores};

/// A change that adds this many passages is written by several threads.
const LARGE: usize = if cfg!(test) { 500 } else { 20_000 };
/// Size of the write buffer of each of them, in bytes.
const LARGE_BUFFER: usize = 64 << 20;
/// Passages whose terms are computed before they are added.
const PART: usize = 4096;
/// Fewer passages than this are not worth a thread.
const WORTH: usize = 64;

/// The terms of a passage.
struct Terms {
    length: u32,
    joined: String,
}

impl Terms {
    fn of(tokenizer: &Tokenizer, chunk: &Chunk) -> Self {
        let terms = tokenizer.passage_terms(chunk);
        Self { length: terms.len() as u32, joined: joined(&terms) }
    }
}

/// What a change leaves to do in tantivy.
#[derive(Default)]
struct Work<'a> {
    /// Rows of passages that are no longer there.
    gone: Vec<u64>,
    /// Passages that are not stored yet.
    new: Vec<&'a Arc<Chunk>>,
}

impl Bm25Index {
    pub(super) fn commit(&mut self, delta: &Delta) -> Result<(), TantivyError> {
        let Work { gone, new } = self.compare(delta);
        if gone.is_empty() && new.is_empty() {
            return Ok(());
        }
        let is_large = new.len() >= LARGE;
        if is_large {
            // Before the first deletion, which would be lost with the other writer.
            self.replace_writer(cores(), LARGE_BUFFER)?;
        }
        gone.into_iter().for_each(|row| self.delete(row));
        self.add_all(&new)?;
        let begun = Instant::now();
        self.opstamp = self.writer.commit()?;
        if is_large {
            self.replace_writer(1, BUFFER)?;
        }
        let committed = begun.elapsed();
        self.reader.reload()?;
        tracing::debug!(?committed, reloaded = ?begun.elapsed(), "tantivy");
        Ok(())
    }

    /// Compares a change with what is stored. Forgets what is stored and is no longer there, or is something else.
    fn compare<'a>(&mut self, delta: &'a Delta) -> Work<'a> {
        let mut work = Work::default();
        work.gone.extend(delta.removed.iter().filter_map(|chunk| self.forget(self.entries.of_id(&chunk.id)?)));
        let places = on_all_cores(&delta.added, WORTH, |chunk| self.entries.of_id(&chunk.id));
        if delta.whole {
            let mut is_named = vec![false; self.entries.places()];
            places.iter().flatten().for_each(|place| is_named[place.number()] = true);
            let unnamed: Vec<Slot> = self.entries.slots().filter(|slot| !is_named[slot.number()]).collect();
            work.gone.extend(unnamed.into_iter().filter_map(|slot| self.forget(slot)));
        }
        for (chunk, place) in delta.added.iter().zip(places) {
            match place.filter(|place| self.is_stored(*place, chunk)) {
                Some(place) => self.confirm(place, chunk),
                None => {
                    // A change may name an id twice. If this is the second time, it is no longer there.
                    work.gone.extend(place.and_then(|place| self.forget(place)));
                    work.new.push(chunk);
                }
            }
        }
        work
    }

    /// Whether the passage of an entry is stored already as it is, by an earlier process or attempt.
    fn is_stored(&self, place: Slot, chunk: &Chunk) -> bool {
        self.entries.get(place).is_some_and(|entry| entry.has(self.tokenizer.identity(chunk)))
    }

    fn confirm(&mut self, place: Slot, chunk: &Arc<Chunk>) {
        self.entries.update(place, |entry| {
            match std::mem::replace(&mut entry.passage, Passage::Confirmed(chunk.clone())) {
                Passage::Stored(_) => self.terms += u64::from(entry.length),
                Passage::Confirmed(old) => self.is_stale |= !Arc::ptr_eq(&old, chunk),
            }
        });
    }

    /// Removes a passage here, and returns its row.
    fn forget(&mut self, place: Slot) -> Option<u64> {
        let entry = self.entries.remove(place)?;
        if entry.passage.chunk().is_some() {
            self.terms -= u64::from(entry.length);
        }
        Some(entry.row)
    }

    fn delete(&self, row: u64) {
        self.writer.delete_term(Term::from_field_u64(self.fields.row, row));
    }

    /// Adds passages. Their terms are computed on all cores if they are many.
    fn add_all(&mut self, chunks: &[&Arc<Chunk>]) -> Result<(), TantivyError> {
        for part in chunks.chunks(PART) {
            let terms = on_all_cores(part, WORTH, |chunk| Terms::of(&self.tokenizer, chunk));
            for (chunk, terms) in part.iter().zip(&terms) {
                self.add(chunk, self.tokenizer.identity(chunk), terms)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, chunk: &Arc<Chunk>, hash: ContentHash, terms: &Terms) -> Result<(), TantivyError> {
        // A change may name an id twice: the last one counts.
        if let Some(row) = self.entries.of_id(&chunk.id).and_then(|place| self.forget(place)) {
            self.delete(row);
        }
        let row = self.next_row;
        self.next_row += 1;
        let mut document = TantivyDocument::default();
        document.add_text(self.fields.id, &*chunk.id);
        document.add_bytes(self.fields.hash, &hash.0);
        document.add_u64(self.fields.row, row);
        document.add_u64(self.fields.length, u64::from(terms.length));
        document.add_text(self.fields.terms, &terms.joined);
        self.writer.add_document(document)?;
        self.terms += u64::from(terms.length);
        self.entries.insert(Entry::new(row, terms.length, hash, Passage::Confirmed(chunk.clone())));
        Ok(())
    }
}
