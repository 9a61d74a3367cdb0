//! The reader of a new epoch.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use tantivy::columnar::Column;
use tantivy::{SegmentReader, TantivyError};
use turnflow_engine::keyed::{Slot, Table};

use super::entries::Entry;
use super::index::{Bm25Index, KnownSegment};
use super::reader::{Bm25Reader, Passage, Segment, SegmentPassages};
use super::score::Statistics;
use super::share::{shares, threads};
use super::terms::{SegmentTerms, UNKNOWN};
use crate::cores::each;

impl Bm25Index {
    /// The reader of the newest epoch.
    pub(super) fn view(&mut self) -> Result<Bm25Reader, TantivyError> {
        let searcher = self.reader.searcher();
        let mut known = HashMap::new();
        let mut segments = Vec::new();
        if std::mem::take(&mut self.is_stale) {
            self.segments.values_mut().for_each(|segment| segment.passages = None);
        }
        for reader in searcher.segment_readers() {
            let id = reader.segment_id();
            let (passages, terms) = match self.segments.remove(&id) {
                Some(KnownSegment { passages: Some(passages), terms }) => (passages, terms),
                Some(KnownSegment { passages: None, terms }) => (Arc::new(self.passages(reader)?.0), terms),
                None => {
                    let (passages, lengths) = self.passages(reader)?;
                    (Arc::new(passages), Arc::new(SegmentTerms::new(lengths)))
                }
            };
            known.insert(id, KnownSegment { passages: Some(passages.clone()), terms: terms.clone() });
            segments.push(Segment::new(reader.clone(), passages, terms));
        }
        self.segments = known;
        let statistics = Statistics { passages: self.entries.len() as u64, terms: self.terms };
        let (field, tokenizer) = (self.fields.terms, self.tokenizer.clone());
        Ok(Bm25Reader { field, tokenizer, segments, statistics, mean_okapi: OnceLock::new() })
    }

    /// The passages of a segment, and the number of terms of each. Many are looked up on all cores.
    fn passages(&self, reader: &SegmentReader) -> Result<(SegmentPassages, Vec<u32>), TantivyError> {
        let rows = reader.fast_fields().u64("row")?;
        let alive = reader.alive_bitset();
        let size = reader.max_doc() as usize;
        let found = each(&shares(&[size], threads(size)), |share| {
            let mut look = LookUp { entries: &self.entries, rows: &rows, last: None };
            let size = share.iter().map(|(_, numbers)| numbers.len()).sum();
            let (mut passages, mut lengths): (Vec<Passage>, _) = (Vec::with_capacity(size), Vec::with_capacity(size));
            for number in share.iter().flat_map(|(_, numbers)| numbers.clone()) {
                // After a restart, the row number of a deleted passage may belong to another passage.
                let is_alive = alive.is_none_or(|alive| alive.is_alive(number));
                let entry = if is_alive { look.entry(number) } else { None };
                passages.push(entry.and_then(|entry| entry.passage.chunk().cloned()));
                lengths.push(entry.map_or(UNKNOWN, |entry| entry.length));
            }
            (passages, lengths)
        });
        let (mut passages, mut lengths) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for (some_passages, some_lengths) in found {
            passages.extend(some_passages);
            lengths.extend(some_lengths);
        }
        Ok((SegmentPassages::new(passages), lengths))
    }
}

/// Looks up the entries of a segment in its order.
struct LookUp<'a> {
    entries: &'a Table<Entry>,
    rows: &'a Column<u64>,
    last: Option<Slot>,
}

impl<'a> LookUp<'a> {
    /// The entry with a number of tantivy's. Entries that were read from an index are in its order, so it is probably
    /// behind the last one.
    fn entry(&mut self, number: u32) -> Option<&'a Entry> {
        let row = self.rows.first(number)?;
        let has_row = |slot: &Slot| self.entries.get(*slot).is_some_and(|entry| entry.row == row);
        let next = self.last.map(Slot::next).filter(has_row);
        self.last = next.or_else(|| self.entries.of_other(&row));
        self.entries.get(self.last?)
    }
}
