//! What a search needs to know of a segment's terms: the lengths of its passages, upper bounds of the scores in each
//! block of postings, and in how many live passages a term occurs.
//!
//! A segment never changes, except that passages are deleted from it. Bounds therefore hold for every epoch: they depend
//! neither on k1 and b nor on the corpus's average length, and a passage that is deleted only makes them less tight.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use tantivy::fastfield::AliveBitSet;
use tantivy::index::InvertedIndexReader;
use tantivy::postings::{BlockSegmentPostings, TermInfo};
use tantivy::schema::IndexRecordOption;

/// Postings in a block of tantivy's. A term with fewer postings has no bounds that are kept.
const BLOCK: u32 = 128;
/// Length of a passage that was deleted before the segment was opened. No epoch finds it.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// Upper bounds of a term's scores in a segment, by block of postings.
///
/// A block has pairs of a frequency and a length: for each of its passages, there is a pair of at least that frequency
/// and at most that length. The score grows with the frequency and falls with the length, so the best pair bounds it
/// whatever the other parameters are (as the impacts in Lucene 8 do).
#[derive(Debug, Default)]
pub(super) struct Bounds {
    /// The last passage of each block, by tantivy's number.
    pub last: Vec<u32>,
    /// Where the pairs of each block end.
    ends: Vec<u32>,
    pairs: Vec<(u32, u32)>,
}

impl Bounds {
    fn read(mut postings: BlockSegmentPostings, lengths: &[u32]) -> Self {
        let mut bounds = Self::default();
        let mut seen: Vec<(u32, u32)> = Vec::new();
        loop {
            let docs = postings.docs();
            let Some(last) = docs.last() else { break };
            seen.clear();
            seen.extend(postings.freqs().iter().zip(docs).map(|(tf, doc)| (*tf, length(lengths, *doc))));
            best_pairs(&mut seen, &mut bounds.pairs);
            bounds.last.push(*last);
            bounds.ends.push(bounds.pairs.len() as u32);
            postings.advance();
        }
        bounds
    }

    /// The pairs of a block.
    pub fn of_block(&self, block: usize) -> &[(u32, u32)] {
        let from = block.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pairs[from as usize..self.ends[block] as usize]
    }
}

/// Appends the pairs that no other pair exceeds: a greater frequency only with a greater length.
fn best_pairs(pairs: &mut [(u32, u32)], best: &mut Vec<(u32, u32)>) {
    pairs.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut shortest = None;
    for pair in pairs {
        if shortest.is_none_or(|shortest| pair.1 < shortest) {
            shortest = Some(pair.1);
            best.push(*pair);
        }
    }
}

fn length(lengths: &[u32], number: u32) -> u32 {
    lengths.get(number as usize).copied().unwrap_or(UNKNOWN)
}

/// What is known of a term that has at least a block of postings.
struct Known {
    bounds: Arc<Bounds>,
    /// Number of its passages that were alive after this many deletions.
    live: u32,
    after: usize,
}

/// The terms of a segment. Shared by all epochs that have it.
pub(super) struct SegmentTerms {
    /// Number of terms of each passage, by tantivy's number.
    pub lengths: Vec<u32>,
    /// The deleted passages, in the order in which they were deleted. An epoch knows how many of them are deleted in it.
    deleted: RwLock<Vec<u32>>,
    known: RwLock<HashMap<Box<[u8]>, Known>>,
}

/// A term's postings in a segment of an epoch.
pub(super) struct TermIn<'a> {
    pub term: &'a [u8],
    pub info: &'a TermInfo,
    pub index: &'a InvertedIndexReader,
    /// The live passages of the epoch; `None` if none is deleted.
    pub alive: Option<&'a AliveBitSet>,
    /// Number of deleted passages in the epoch.
    pub deleted: usize,
}

impl TermIn<'_> {
    pub fn postings(&self, option: IndexRecordOption) -> io::Result<BlockSegmentPostings> {
        self.index.read_block_postings_from_terminfo(self.info, option)
    }

    fn count_live(&self) -> io::Result<u32> {
        let Some(alive) = self.alive else { return Ok(self.info.doc_freq) };
        let mut postings = self.postings(IndexRecordOption::Basic)?;
        let mut live = 0;
        while !postings.docs().is_empty() {
            live += postings.docs().iter().filter(|number| alive.is_alive(**number)).count() as u32;
            postings.advance();
        }
        Ok(live)
    }

    /// How many of these passages have the term.
    fn count_among(&self, numbers: &[u32]) -> io::Result<u32> {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        let mut postings = self.postings(IndexRecordOption::Basic)?;
        let mut found = 0;
        for number in sorted {
            let at = postings.seek(number);
            found += u32::from(postings.docs().get(at) == Some(&number));
        }
        Ok(found)
    }
}

impl SegmentTerms {
    /// `lengths` has the number of terms of each passage, by tantivy's number.
    pub fn new(lengths: Vec<u32>) -> Self {
        Self { lengths, deleted: RwLock::default(), known: RwLock::default() }
    }

    /// Notes which passages are deleted in a new epoch. Returns their number.
    pub fn note_deleted(&self, alive: Option<&AliveBitSet>) -> usize {
        let Some(alive) = alive else { return 0 };
        let mut deleted = self.deleted.write();
        let count = self.lengths.len().saturating_sub(alive.num_alive_docs());
        if count > deleted.len() {
            let known: roaring::RoaringBitmap = deleted.iter().copied().collect();
            let new = (0..self.lengths.len() as u32).filter(|number| !alive.is_alive(*number));
            deleted.extend(new.filter(|number| !known.contains(*number)).collect::<Vec<_>>());
        }
        count
    }

    /// Number of live passages that have the term. Cost: the first time, the term's postings, if the segment has deleted
    /// passages; afterwards, a look at the postings for each passage that was deleted meanwhile.
    pub fn live(&self, of: &TermIn<'_>) -> io::Result<u32> {
        if of.deleted == 0 {
            return Ok(of.info.doc_freq);
        }
        if of.info.doc_freq < BLOCK {
            return of.count_live();
        }
        let known = self.known.read().get(of.term).map(|known| (known.live, known.after));
        let Some((live, after)) = known else { return of.count_live() };
        let (from, to) = (after.min(of.deleted), after.max(of.deleted));
        let changed = self.deleted.read().get(from..to).map(<[u32]>::to_vec).unwrap_or_default();
        // A look at the postings passes over whole blocks, so it is cheaper than reading them all.
        if changed.len() as u32 > of.info.doc_freq / 8 {
            return self.keep(of, of.count_live()?);
        }
        let found = of.count_among(&changed)?;
        if of.deleted < after { Ok(live + found) } else { self.keep(of, live - found) }
    }

    /// Notes a count of live passages, unless a later one is known.
    fn keep(&self, of: &TermIn<'_>, live: u32) -> io::Result<u32> {
        if let Some(known) = self.known.write().get_mut(of.term)
            && known.after < of.deleted
        {
            (known.live, known.after) = (live, of.deleted);
        }
        Ok(live)
    }

    /// The bounds of a term. Cost: the first time, the term's postings.
    pub fn bounds(&self, of: &TermIn<'_>) -> io::Result<Arc<Bounds>> {
        if let Some(known) = self.known.read().get(of.term) {
            return Ok(known.bounds.clone());
        }
        let bounds = Arc::new(Bounds::read(of.postings(IndexRecordOption::WithFreqs)?, &self.lengths));
        if of.info.doc_freq >= BLOCK {
            let live = of.count_live()?;
            let known = Known { bounds: bounds.clone(), live, after: of.deleted };
            self.known.write().entry(of.term.into()).or_insert(known);
        }
        Ok(bounds)
    }
}
