//! The contents of the inverted index, for comparison: as stored, and as served.
//!
//! Reads every posting. A passage's digest is the sum of the digests of its terms, each with its frequency, whatever
//! segment they are in.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tantivy::directory::MmapDirectory;
use tantivy::postings::Postings;
use tantivy::schema::{Field, IndexRecordOption, Value as _};
use tantivy::{DocSet, Index as TantivyIndex, ReloadPolicy, SegmentReader, TERMINATED, TantivyDocument, TantivyError};
use turnflow_engine::component::{IntegrityError, Inventory, Passage, Words, digest};
use turnflow_engine::document::{Chunk, ContentHash};

use super::reader::Bm25Reader;

/// Statistics over all live passages.
#[derive(Default)]
struct Counts {
    /// Document frequency of each term, in passages.
    frequencies: BTreeMap<Vec<u8>, u64>,
    terms: u64,
}

impl Counts {
    /// Digest and length of each passage of a segment, by document number.
    fn segment(&mut self, segment: &SegmentReader, field: Field) -> Result<Vec<Words>, TantivyError> {
        let index = segment.inverted_index(field)?;
        let alive = segment.alive_bitset();
        let mut words = vec![Words { length: 0, digest: 0 }; segment.max_doc() as usize];
        let mut terms = index.terms().stream()?;
        while terms.advance() {
            let mut postings = index.read_postings_from_terminfo(terms.value(), IndexRecordOption::WithFreqs)?;
            let mut number = postings.doc();
            let mut live = 0;
            while number != TERMINATED {
                if let Some(words) =
                    words.get_mut(number as usize).filter(|_| alive.is_none_or(|alive| alive.is_alive(number)))
                {
                    let count = postings.term_freq();
                    let bytes = [terms.key(), &count.to_le_bytes()].concat();
                    words.digest = words.digest.wrapping_add(digest(&bytes));
                    words.length += u64::from(count);
                    self.terms += u64::from(count);
                    live += 1;
                }
                number = postings.advance();
            }
            if live > 0 {
                *self.frequencies.entry(terms.key().to_vec()).or_default() += live;
            }
        }
        Ok(words)
    }

    fn statistics(&self, passages: usize) -> BTreeMap<&'static str, f64> {
        let mut statistics = BTreeMap::new();
        statistics.insert("passages", passages as f64);
        statistics.insert("terms", self.terms as f64);
        statistics.insert("average length", self.terms as f64 / passages.max(1) as f64);
        statistics.insert("different terms", self.frequencies.len() as f64);
        let sum: u64 = self.frequencies.values().sum();
        statistics.insert("sum of document frequencies", sum as f64);
        statistics
    }
}

/// Inventory of what is stored in a directory, without repairing it.
pub(super) fn stored(directory: &Path) -> Inventory {
    let flaw = |place: &str, reason: String| IntegrityError { place: place.to_owned(), reason };
    let mut inventory = Inventory::default();
    if !directory.join("meta.json").exists() {
        let others = std::fs::read_dir(directory).map_or(0, Iterator::count);
        if others > 0 {
            let reason = format!("the file is missing, and there are {others} other files");
            inventory.flaws.push(flaw("meta.json", reason));
        }
        return inventory;
    }
    // Damaged data may make the reader panic.
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(directory, &mut inventory)));
    let reason = match read {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("tantivy panicked while it read the index".to_owned()),
    };
    inventory.flaws.extend(reason.map(|reason| flaw("the index", reason)));
    inventory
}

fn read(directory: &Path, inventory: &mut Inventory) -> Result<(), TantivyError> {
    // Opening without a writer takes no lock and creates or removes no file.
    let index = TantivyIndex::open(MmapDirectory::open(directory)?)?;
    let damaged = index.validate_checksum()?;
    for file in &damaged {
        let reason = "its checksum does not match its contents".to_owned();
        inventory.flaws.push(IntegrityError { place: file.display().to_string(), reason });
    }
    if !damaged.is_empty() {
        return Ok(());
    }
    let schema = index.schema();
    let [id, hash, length, terms] = ["id", "hash", "length", "terms"].map(|name| schema.get_field(name));
    let (id, hash, length, terms) = (id?, hash?, length?, terms?);
    let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
    let reader: tantivy::IndexReader = reader;
    let mut counts = Counts::default();
    for segment in reader.searcher().segment_readers() {
        let words = counts.segment(segment, terms)?;
        let documents = segment.get_store_reader(4)?;
        for number in segment.doc_ids_alive() {
            let document: TantivyDocument = documents.get(number)?;
            let id = document.get_first(id).and_then(|value| value.as_str());
            let length = document.get_first(length).and_then(|value| value.as_u64());
            let hash = document.get_first(hash).and_then(|value| value.as_bytes());
            let hash = hash.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            let words = words.get(number as usize).copied();
            let (Some(id), Some(length), Some(hash), Some(words)) = (id, length, hash, words) else {
                let place = format!("row {number} of segment {}", segment.segment_id().short_uuid_string());
                inventory.flaws.push(IntegrityError { place, reason: "the row lacks a field".into() });
                continue;
            };
            if length != words.length {
                let reason = format!("the index has {} of its terms, but its length is {length}", words.length);
                inventory.flaws.push(IntegrityError { place: id.to_owned(), reason });
            }
            let passage = Passage { hash: ContentHash(hash), words: Some(words), chunk: None };
            if inventory.passages.insert(id.into(), passage).is_some() {
                inventory
                    .flaws
                    .push(IntegrityError { place: id.to_owned(), reason: "the passage is indexed twice".into() });
            }
        }
    }
    inventory.statistics = counts.statistics(inventory.passages.len());
    Ok(())
}

/// Inventory of what a reader serves.
pub(super) fn served(reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, TantivyError> {
    let Ok(reader) = reader.clone().downcast::<Bm25Reader>() else { return Ok(None) };
    let mut inventory = Inventory::default();
    let mut counts = Counts::default();
    for segment in &reader.segments {
        let words = counts.segment(&segment.reader, reader.field)?;
        for (chunk, length, words) in
            segment.live().zip(words).filter_map(|((chunk, length), words)| Some((chunk?, length, words)))
        {
            let chunk: &Arc<Chunk> = chunk;
            if u64::from(length) != words.length {
                let reason = format!("the index has {} of its terms, but its length is {length}", words.length);
                inventory.flaws.push(IntegrityError { place: chunk.id.to_string(), reason });
            }
            let passage =
                Passage { hash: reader.tokenizer.identity(chunk), words: Some(words), chunk: Some(chunk.clone()) };
            inventory.passages.insert(chunk.id.clone(), passage);
        }
    }
    inventory.statistics = counts.statistics(inventory.passages.len());
    // The statistics that scores are computed with.
    let (passages, terms) = reader.counted();
    inventory.statistics.insert("passages that scores count", passages as f64);
    inventory.statistics.insert("terms that scores count", terms as f64);
    Ok(Some(inventory))
}
