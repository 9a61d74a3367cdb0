//! The index at an epoch: which passages the best ones are for a question's terms.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use roaring::RoaringBitmap;
use tantivy::fastfield::AliveBitSet;
use tantivy::index::InvertedIndexReader;
use tantivy::postings::TermInfo;
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{SegmentReader, Term};
use turnflow_engine::component::{IndexError, Permitted};
use turnflow_engine::document::Chunk;
use turnflow_engine::record::Hit;

use super::analyzer::Tokenizer;
use super::index::store;
use super::parts::Elsewhere;
use super::score::{Formula, Idf, Statistics, okapi_mean};
use super::search::{Cursor, Searched, search};
use super::share::{Region, shares, threads};
use super::terms::{SegmentTerms, TermIn};
use crate::content::{Best, Floor};
use crate::cores::each;

/// A segment's passages, by tantivy's document number; `None` for deleted passages.
pub(super) type Passage = Option<Arc<Chunk>>;

/// The passages of a segment.
pub(super) struct SegmentPassages {
    by_number: Vec<Passage>,
    /// The number in the corpus and tantivy's number of each passage, ordered by the former. Made for the first filter.
    places: OnceLock<Vec<(u32, u32)>>,
}

impl SegmentPassages {
    pub fn new(by_number: Vec<Passage>) -> Self {
        Self { by_number, places: OnceLock::new() }
    }

    fn places(&self) -> &[(u32, u32)] {
        self.places.get_or_init(|| {
            let place = |(number, passage): (usize, &Passage)| Some((passage.as_ref()?.place.get()?, number as u32));
            let mut places: Vec<(u32, u32)> = self.by_number.iter().enumerate().filter_map(place).collect();
            places.sort_unstable();
            places
        })
    }

    /// Tantivy's numbers of the permitted passages, ascending.
    /// The number of a passage in the segment.
    fn number_of(&self, chunk: &Chunk) -> Option<u32> {
        let Some(place) = chunk.place.get() else {
            // It is in no corpus.
            let is_it = |other: &Passage| other.as_ref().is_some_and(|other| other.id == chunk.id);
            return Some(self.by_number.iter().position(is_it)? as u32);
        };
        let places = self.places();
        Some(places[places.binary_search_by_key(&place, |(place, _)| *place).ok()?].1)
    }

    fn selected(&self, permitted: &RoaringBitmap) -> Vec<u32> {
        let places = self.places();
        let place = |number: u32| {
            let at = places.binary_search_by_key(&number, |(number, _)| *number).ok()?;
            Some(places[at].1)
        };
        let mut found: Vec<u32> = permitted.iter().filter_map(place).collect();
        found.sort_unstable();
        found
    }
}

/// If at most one passage in this many is permitted, the others' postings are skipped.
const FEW: u64 = 32;

/// A segment at an epoch.
pub(super) struct Segment {
    pub reader: SegmentReader,
    passages: Arc<SegmentPassages>,
    terms: Arc<SegmentTerms>,
    /// Number of deleted passages.
    deleted: usize,
}

impl Segment {
    pub fn new(reader: SegmentReader, passages: Arc<SegmentPassages>, terms: Arc<SegmentTerms>) -> Self {
        let deleted = terms.note_deleted(reader.alive_bitset());
        Self { reader, passages, terms, deleted }
    }

    /// The passage with this number of tantivy's.
    fn passage(&self, number: u32) -> Option<&Arc<Chunk>> {
        self.passages.by_number[number as usize].as_ref()
    }

    /// Each live passage and its length, by tantivy's number; `None` for deleted passages.
    pub fn live(&self) -> impl Iterator<Item = (Option<&Arc<Chunk>>, u32)> {
        let alive = |number| self.alive().is_none_or(|alive| alive.is_alive(number));
        let passages = (0..).zip(&self.passages.by_number).zip(&self.terms.lengths);
        passages.map(move |((number, passage), length)| (passage.as_ref().filter(|_| alive(number)), *length))
    }

    fn alive(&self) -> Option<&AliveBitSet> {
        self.reader.alive_bitset()
    }
}

/// A term of a question, with its weight and its postings in each segment.
struct Weighted<'a> {
    term: &'a str,
    weight: f32,
    postings: Vec<Option<TermInfo>>,
}

/// The index at an epoch.
pub(super) struct Bm25Reader {
    /// The field that holds the terms.
    pub field: Field,
    pub tokenizer: Tokenizer,
    pub segments: Vec<Segment>,
    pub statistics: Statistics,
    /// The mean of [`okapi`] over all terms, computed when it is first needed.
    pub mean_okapi: OnceLock<f32>,
}

/// What a passage has of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Its number of terms.
    pub length: u32,
    /// How often it has each term of the question.
    pub of_terms: Vec<u32>,
}

/// What a question is scored with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub idf: Idf,
    pub k1: f32,
    pub b: f32,
}

impl Bm25Reader {
    /// Number of passages and of terms that scores are computed with.
    pub fn counted(&self) -> (u64, u64) {
        (self.statistics.passages, self.statistics.terms)
    }

    /// The best permitted passages for these terms, each with its weight: the number of times it occurs in a question.
    /// Scores do not depend on what is permitted.
    pub fn search(
        &self,
        terms: &BTreeMap<String, f32>,
        parameters: Parameters,
        top: usize,
        permitted: &Permitted,
    ) -> Result<Vec<Hit>, IndexError> {
        self.find(terms, parameters, top, permitted, true).map_err(store("read postings"))
    }

    /// Like [`Self::search`]. Without `skip`, every passage that has one of the terms is scored.
    fn find(
        &self,
        terms: &BTreeMap<String, f32>,
        Parameters { idf, k1, b }: Parameters,
        top: usize,
        permitted: &Permitted,
        skip: bool,
    ) -> Result<Vec<Hit>, tantivy::TantivyError> {
        let indexes = self.inverted()?;
        let mean = if idf == Idf::Okapi { self.mean_okapi()? } else { 0.0 };
        let weighted = self.weigh(terms, idf, &indexes, &Elsewhere { mean, ..Elsewhere::default() })?;
        let formula = Formula::new(self.statistics.average(), k1, b);
        self.score(&indexes, &weighted, &formula, top, permitted, skip)
    }

    /// The weights of a question's terms that occur in this part of an index or in the others, the greatest first; and
    /// the average length of all passages.
    pub fn weights(
        &self,
        terms: &BTreeMap<String, f32>,
        idf: Idf,
        elsewhere: &Elsewhere,
    ) -> Result<(Vec<(String, f32)>, f32), IndexError> {
        let indexes = self.inverted().map_err(store("read postings"))?;
        let weighted = self.weigh(terms, idf, &indexes, elsewhere).map_err(store("read postings"))?;
        let weights = weighted.into_iter().map(|one| (one.term.to_owned(), one.weight)).collect();
        Ok((weights, (self.statistics + elsewhere.statistics).average()))
    }

    /// The best permitted passages for terms whose weights are known, in the order in which their scores are summed.
    pub fn search_weighted(
        &self,
        weights: &[(String, f32)],
        average: f32,
        (k1, b): (f32, f32),
        top: usize,
        permitted: &Permitted,
    ) -> Result<Vec<Hit>, IndexError> {
        let search = || {
            let indexes = self.inverted()?;
            let weighted = weights
                .iter()
                .map(|(term, weight)| Ok(Weighted { term, weight: *weight, postings: self.look_up(term, &indexes)? }));
            let weighted = weighted.collect::<Result<Vec<_>, tantivy::TantivyError>>()?;
            self.score(&indexes, &weighted, &Formula::new(average, k1, b), top, permitted, true)
        };
        search().map_err(store("read postings"))
    }

    /// In how many live passages each of these terms occurs.
    pub fn counts(&self, terms: &[String]) -> Result<Vec<u64>, IndexError> {
        let count = || {
            let indexes = self.inverted()?;
            let live = |term: &String| {
                self.live(&Weighted { term, weight: 0.0, postings: self.look_up(term, &indexes)? }, &indexes)
            };
            terms.iter().map(live).collect::<Result<Vec<_>, tantivy::TantivyError>>()
        };
        count().map_err(store("read postings"))
    }

    /// What hits have of the terms of a question. `None` if one of them is not in the index.
    pub fn counts_of(&self, terms: &BTreeMap<String, f32>, hits: &[Hit]) -> Result<Option<Vec<Counts>>, IndexError> {
        let count = || {
            let indexes = self.inverted()?;
            let mut found: Vec<Option<Counts>> = vec![None; hits.len()];
            for (at, segment) in self.segments.iter().enumerate() {
                let alive = |number: &u32| segment.alive().is_none_or(|alive| alive.is_alive(*number));
                let number = |hit: &Hit| segment.passages.number_of(&hit.chunk).filter(alive);
                let mut numbers: Vec<(u32, usize)> =
                    hits.iter().enumerate().filter_map(|(hit, of)| Some((number(of)?, hit))).collect();
                numbers.retain(|(number, hit)| {
                    segment.passage(*number).is_some_and(|chunk| chunk.id == hits[*hit].chunk.id)
                });
                numbers.sort_unstable();
                for (number, hit) in &numbers {
                    let length = segment.terms.lengths[*number as usize];
                    found[*hit] = Some(Counts { length, of_terms: vec![0; terms.len()] });
                }
                if numbers.is_empty() {
                    continue;
                }
                for (nth, term) in terms.keys().enumerate() {
                    let one = Weighted { term, weight: 0.0, postings: self.look_up(term, &indexes)? };
                    let Some(term) = segment.term(&indexes[at], &one, at) else { continue };
                    let mut postings = term.postings(IndexRecordOption::WithFreqs)?;
                    for (number, hit) in &numbers {
                        let place = match postings.docs().last() {
                            None => break,
                            Some(last) if last < number => postings.seek(*number),
                            Some(_) => postings.docs().partition_point(|other| other < number),
                        };
                        if postings.docs().get(place) == Some(number)
                            && let Some(counts) = &mut found[*hit]
                        {
                            counts.of_terms[nth] = postings.freq(place);
                        }
                    }
                }
            }
            Ok::<_, tantivy::TantivyError>(found.into_iter().collect())
        };
        count().map_err(store("read postings"))
    }

    fn inverted(&self) -> Result<Vec<Arc<InvertedIndexReader>>, tantivy::TantivyError> {
        self.segments.iter().map(|segment| segment.reader.inverted_index(self.field)).collect()
    }

    /// A term's postings in each segment.
    fn look_up(
        &self,
        term: &str,
        indexes: &[Arc<InvertedIndexReader>],
    ) -> Result<Vec<Option<TermInfo>>, tantivy::TantivyError> {
        let term = Term::from_field_text(self.field, term);
        Ok(indexes.iter().map(|index| index.get_term_info(&term)).collect::<Result<Vec<_>, _>>()?)
    }

    /// In how many live passages a term occurs.
    fn live(&self, one: &Weighted<'_>, indexes: &[Arc<InvertedIndexReader>]) -> Result<u64, tantivy::TantivyError> {
        let mut live = 0;
        for (at, (segment, index)) in self.segments.iter().zip(indexes).enumerate() {
            if let Some(term) = segment.term(index, one, at) {
                live += u64::from(segment.terms.live(&term)?);
            }
        }
        Ok(live)
    }

    fn score(
        &self,
        indexes: &[Arc<InvertedIndexReader>],
        weighted: &[Weighted<'_>],
        formula: &Formula,
        top: usize,
        permitted: &Permitted,
        skip: bool,
    ) -> Result<Vec<Hit>, tantivy::TantivyError> {
        let sizes: Vec<usize> = self.segments.iter().map(|segment| segment.terms.lengths.len()).collect();
        let few = permitted.numbers().is_some_and(|numbers| numbers.len() <= self.statistics.passages / FEW);
        // Other ways to search read a segment as a whole.
        let divides = skip && !few && weighted.iter().all(|one| one.weight > 0.0);
        let threads = if divides { threads(sizes.iter().sum()) } else { 1 };
        let divided = shares(&sizes, threads);
        let floor = Arc::new(Floor::default());
        let found = each(&divided, |share| {
            let mut best = Best::above(top, floor.clone());
            self.score_share(share, indexes, weighted, formula, permitted, skip, &mut best)?;
            Ok::<_, tantivy::TantivyError>(best)
        });
        let mut best = Best::new(top);
        for found in found {
            found?.into_sorted().for_each(|(score, chunk)| best.offer(score, chunk));
        }
        Ok(best.into_hits())
    }

    /// Offers the best passages of some regions.
    #[allow(clippy::too_many_arguments)]
    fn score_share<'a>(
        &'a self,
        share: &[Region],
        indexes: &[Arc<InvertedIndexReader>],
        weighted: &[Weighted<'_>],
        formula: &Formula,
        permitted: &Permitted,
        skip: bool,
        best: &mut Best<'a>,
    ) -> Result<(), tantivy::TantivyError> {
        for (at, numbers) in share {
            let (at, segment, index) = (*at, &self.segments[*at], &indexes[*at]);
            let of_segment = weighted.iter().filter_map(|one| Some((one.weight, segment.term(index, one, at)?)));
            if let Some(numbers) = permitted.numbers().filter(|_| skip)
                && numbers.len() <= self.statistics.passages / FEW
            {
                among(segment, of_segment, formula, &segment.passages.selected(numbers), best)?;
            } else if skip && weighted.iter().all(|one| one.weight > 0.0) {
                let cursor = |(weight, term): (f32, TermIn<'_>)| {
                    let bounds = segment.terms.bounds(&term)?;
                    Ok(Cursor::new(term.postings(IndexRecordOption::WithFreqs)?, bounds, weight))
                };
                let cursors: Vec<Cursor> = of_segment.map(cursor).collect::<std::io::Result<_>>()?;
                let searched = Searched { lengths: &segment.terms.lengths, alive: segment.alive(), permitted };
                let numbers = numbers.clone();
                search(&searched, numbers, formula, cursors, |number| segment.passage(number), best)?;
            } else {
                exhaustive(segment, of_segment, formula, permitted, best)?;
            }
        }
        Ok(())
    }

    /// The terms that occur, the greatest weight first: the order in which scores are summed. A score then depends
    /// neither on the question's word order nor on the segments.
    fn weigh<'a>(
        &self,
        terms: &'a BTreeMap<String, f32>,
        idf: Idf,
        indexes: &[Arc<InvertedIndexReader>],
        elsewhere: &Elsewhere,
    ) -> Result<Vec<Weighted<'a>>, tantivy::TantivyError> {
        let statistics = self.statistics + elsewhere.statistics;
        let mut weighted = Vec::with_capacity(terms.len());
        for (term, count) in terms {
            let mut one = Weighted { term, weight: 0.0, postings: self.look_up(term, indexes)? };
            let live = self.live(&one, indexes)? + elsewhere.counts.get(term).copied().unwrap_or_default();
            if live > 0 {
                one.weight = idf.of(statistics, live, elsewhere.mean) * count;
                weighted.push(one);
            }
        }
        weighted.sort_by(|a, b| match b.weight.total_cmp(&a.weight) {
            Ordering::Equal => a.term.cmp(b.term),
            order => order,
        });
        Ok(weighted)
    }

    /// Whether the mean weight of all terms is known.
    pub fn has_mean(&self) -> bool {
        self.mean_okapi.get().is_some()
    }

    /// The mean weight of all terms of the live passages. Cost: see [`Self::all_counts`].
    fn mean_okapi(&self) -> Result<f32, tantivy::TantivyError> {
        if let Some(mean) = self.mean_okapi.get() {
            return Ok(*mean);
        }
        let mean = okapi_mean(self.statistics, &self.count_all()?);
        Ok(*self.mean_okapi.get_or_init(|| mean))
    }

    /// In how many live passages each term occurs. Cost: all terms, and the postings of segments with deleted passages.
    pub fn all_counts(&self) -> Result<BTreeMap<Vec<u8>, u64>, IndexError> {
        self.count_all().map_err(store("read postings"))
    }

    fn count_all(&self) -> Result<BTreeMap<Vec<u8>, u64>, tantivy::TantivyError> {
        use tantivy::postings::Postings;
        use tantivy::{DocSet as _, TERMINATED};
        let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for segment in &self.segments {
            let index = segment.reader.inverted_index(self.field)?;
            let alive = segment.reader.alive_bitset();
            let mut terms = index.terms().stream()?;
            while terms.advance() {
                let count = match alive {
                    None => u64::from(terms.value().doc_freq),
                    Some(alive) => {
                        let postings = index.read_postings_from_terminfo(terms.value(), IndexRecordOption::Basic)?;
                        let mut postings: Box<dyn Postings> = Box::new(postings);
                        let mut count = 0;
                        while postings.doc() != TERMINATED {
                            count += u64::from(alive.is_alive(postings.doc()));
                            postings.advance();
                        }
                        count
                    }
                };
                if count > 0 {
                    *counts.entry(terms.key().to_vec()).or_default() += count;
                }
            }
        }
        Ok(counts)
    }
}

impl Segment {
    /// A question's term in this segment, which is number `at` of the epoch.
    fn term<'a>(&'a self, index: &'a InvertedIndexReader, of: &'a Weighted<'_>, at: usize) -> Option<TermIn<'a>> {
        let info = of.postings[at].as_ref()?;
        Some(TermIn { term: of.term.as_bytes(), info, index, alive: self.alive(), deleted: self.deleted })
    }
}

/// Offers the best of a few passages, given in ascending order, without reading the postings of others.
fn among<'a, 'b>(
    segment: &'a Segment,
    terms: impl Iterator<Item = (f32, TermIn<'b>)>,
    formula: &Formula,
    selected: &[u32],
    best: &mut Best<'a>,
) -> std::io::Result<()> {
    let mut sums = vec![0.0_f32; selected.len()];
    for (weight, term) in terms {
        let mut postings = term.postings(IndexRecordOption::WithFreqs)?;
        for (number, sum) in selected.iter().zip(&mut sums) {
            let at = match postings.docs().last() {
                None => break,
                Some(last) if last < number => postings.seek(*number),
                Some(_) => postings.docs().partition_point(|other| other < number),
            };
            if postings.docs().get(at) == Some(number) {
                *sum += formula.score(weight, postings.freq(at), segment.terms.lengths[*number as usize]);
            }
        }
    }
    offer(segment, selected.iter().copied().zip(sums), &Permitted::All, best);
    Ok(())
}

/// Offers the best passages of a segment after scoring each of them.
fn exhaustive<'a, 'b>(
    segment: &'a Segment,
    terms: impl Iterator<Item = (f32, TermIn<'b>)>,
    formula: &Formula,
    permitted: &Permitted,
    best: &mut Best<'a>,
) -> std::io::Result<()> {
    let mut sums = vec![0.0_f32; segment.terms.lengths.len()];
    for (weight, term) in terms {
        let mut postings = term.postings(IndexRecordOption::WithFreqs)?;
        while !postings.docs().is_empty() {
            for (number, tf) in postings.docs().iter().zip(postings.freqs()) {
                sums[*number as usize] += formula.score(weight, *tf, segment.terms.lengths[*number as usize]);
            }
            postings.advance();
        }
    }
    offer(segment, (0..).zip(sums), permitted, best);
    Ok(())
}

/// Offers the passages that are alive and permitted and have a positive score.
fn offer<'a>(
    segment: &'a Segment,
    scored: impl Iterator<Item = (u32, f32)>,
    permitted: &Permitted,
    best: &mut Best<'a>,
) {
    let alive = segment.alive();
    for (number, score) in scored {
        if score > 0.0
            && score >= best.threshold()
            // The number of a deleted passage may be that of another one by now.
            && alive.is_none_or(|alive| alive.is_alive(number))
            && let Some(chunk) = segment.passage(number).filter(|chunk| permitted.has(chunk))
        {
            best.offer(score, chunk);
        }
    }
}

#[cfg(test)]
mod tests;
