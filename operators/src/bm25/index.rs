//! The inverted index: tantivy holds the postings on disk. Their passages, and the passages' exact lengths, are held in
//! memory beside its segments.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use roaring::RoaringBitmap;
use tantivy::error::DataCorruption;
use tantivy::index::SegmentId;
use tantivy::merge_policy::LogMergePolicy;
use tantivy::schema::{
    FAST, Field, INDEXED, IndexRecordOption, STORED, Schema, TextFieldIndexing, TextOptions, Value as _,
};
use tantivy::tokenizer::{PreTokenizedString, Token};
use tantivy::{
    DocSet, Index as TantivyIndex, IndexReader, IndexWriter, ReloadPolicy, SegmentReader, TERMINATED, TantivyDocument,
    Term,
};
use turnflow_engine::component::{Delta, IndexError, Permitted};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::record::{Hit, rank};

use super::analyzer::Tokenizer;
use super::directory::Unsynced;
use super::open::{OpenError, during};
use super::score::{Idf, Statistics, okapi, term_score};
use super::writer::Writer;

/// Size of tantivy's write buffer, in bytes. This is close to its minimum, because each commit builds new tables whose
/// size is proportional to it.
const BUFFER: usize = 16 << 20;
/// Minimum size of a segment file's footer, in bytes.
const FOOTER: u64 = 8;

pub(super) fn store(action: &'static str) -> impl Fn(tantivy::TantivyError) -> IndexError {
    move |error| IndexError::Store { store: "tantivy", action, reason: error.to_string() }
}

#[derive(Clone, Copy)]
struct Fields {
    id: Field,
    hash: Field,
    /// Row number, unique for ever. Deletes refer to it.
    row: Field,
    length: Field,
    terms: Field,
}

struct Entry {
    row: u64,
    length: u32,
    hash: ContentHash,
    /// `None` for a stored passage that the corpus has not confirmed yet.
    chunk: Option<Arc<Chunk>>,
}

pub(super) struct Bm25Index {
    tokenizer: Tokenizer,
    fields: Fields,
    pub(super) directory: Option<PathBuf>,
    pub(super) writer: Writer,
    pub(super) reader: IndexReader,
    entries: HashMap<Arc<str>, Entry>,
    /// The passage id of each live row.
    rows: HashMap<u64, Arc<str>>,
    next_row: u64,
    terms: u64,
    segments: HashMap<SegmentId, Arc<SegmentPassages>>,
    /// Opstamp of the last commit.
    opstamp: u64,
    /// Whether a known passage has become another copy of itself, with another metadata or number.
    is_stale: bool,
}

/// A segment's passages, by tantivy's document number, with their lengths; `None` for deleted passages.
pub(super) type Passage = Option<(Arc<Chunk>, u32)>;

/// The passages of a segment.
struct SegmentPassages {
    by_number: Vec<Passage>,
    /// The number in the corpus and tantivy's number of each passage, ordered by the former.
    places: Vec<(u32, u32)>,
}

impl SegmentPassages {
    fn new(by_number: Vec<Passage>) -> Self {
        let place = |(number, passage): (usize, &Passage)| Some((passage.as_ref()?.0.place.get()?, number as u32));
        let mut places: Vec<(u32, u32)> = by_number.iter().enumerate().filter_map(place).collect();
        places.sort_unstable();
        Self { by_number, places }
    }

    /// Tantivy's numbers of the permitted passages, ascending.
    fn selected(&self, permitted: &RoaringBitmap) -> Vec<u32> {
        let place = |number: u32| {
            let at = self.places.binary_search_by_key(&number, |(number, _)| *number).ok()?;
            Some(self.places[at].1)
        };
        let mut found: Vec<u32> = permitted.iter().filter_map(place).collect();
        found.sort_unstable();
        found
    }
}

/// If at most one passage in this many is permitted, the others' postings are skipped.
const FEW: u64 = 32;

impl Bm25Index {
    /// Opens the committed index in `directory`, or an index in memory.
    pub(super) fn open(tokenizer: &Tokenizer, directory: Option<&Path>) -> Result<Self, OpenError> {
        let mut schema = Schema::builder();
        let indexing = TextFieldIndexing::default()
            .set_tokenizer("raw")
            .set_fieldnorms(false)
            .set_index_option(IndexRecordOption::WithFreqs);
        let fields = Fields {
            id: schema.add_text_field("id", STORED),
            hash: schema.add_bytes_field("hash", STORED),
            row: schema.add_u64_field("row", INDEXED | FAST | STORED),
            length: schema.add_u64_field("length", STORED),
            terms: schema.add_text_field("terms", TextOptions::default().set_indexing_options(indexing)),
        };
        let schema = schema.build();
        let index = match directory {
            Some(path) => {
                let directory = Unsynced::open(path).map_err(|error| during("open its directory")(error.into()))?;
                let index = TantivyIndex::open_or_create(directory, schema).map_err(during("open the index"))?;
                // tantivy panics on files that are shorter than their footer.
                let committed = index.load_metas().map_err(during("read its commit"))?;
                for file in committed.list_segment_files() {
                    if fs::metadata(path.join(&file))
                        .is_ok_and(|metadata| metadata.is_file() && metadata.len() < FOOTER)
                    {
                        let damage = DataCorruption::new(file, "the file is too short".to_owned());
                        return Err(during("read the stored index")(damage.into()));
                    }
                }
                let damaged = index.validate_checksum().map_err(during("check its files"))?;
                if let Some(file) = damaged.iter().next() {
                    let damage = DataCorruption::new(file.clone(), "the checksum does not match".to_owned());
                    return Err(during("read the stored index")(damage.into()));
                }
                index
            }
            None => TantivyIndex::create_in_ram(schema),
        };
        let writer: IndexWriter = index.writer_with_num_threads(1, BUFFER).map_err(during("open a writer"))?;
        let mut merges = LogMergePolicy::default();
        // By default, tantivy does not merge segments because of deletes.
        merges.set_del_docs_ratio_before_merge(0.3);
        writer.set_merge_policy(Box::new(merges));
        // Removes files that a killed process has left uncommitted.
        if let Err(error) = writer.garbage_collect_files().wait() {
            tracing::warn!(%error, "files of an interrupted commit could not be removed");
        }
        let opstamp = index.load_metas().map_err(during("read its commit"))?.opstamp;
        let reader =
            index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into().map_err(during("open a reader"))?;
        let mut this = Self {
            tokenizer: tokenizer.clone(),
            fields,
            directory: directory.map(Path::to_owned),
            writer: Writer::new(writer),
            reader,
            entries: HashMap::new(),
            rows: HashMap::new(),
            next_row: 0,
            terms: 0,
            segments: HashMap::new(),
            opstamp,
            is_stale: false,
        };
        this.remember().map_err(during("read the stored index"))?;
        Ok(this)
    }

    /// Reads which passages are stored.
    fn remember(&mut self) -> Result<(), tantivy::TantivyError> {
        for segment in self.reader.searcher().segment_readers() {
            let documents = segment.get_store_reader(4)?;
            for number in segment.doc_ids_alive() {
                let document: TantivyDocument = documents.get(number)?;
                let id = document.get_first(self.fields.id).and_then(|value| value.as_str());
                let row = document.get_first(self.fields.row).and_then(|value| value.as_u64());
                let length = document.get_first(self.fields.length).and_then(|value| value.as_u64());
                let hash = document.get_first(self.fields.hash).and_then(|value| value.as_bytes());
                let hash = hash.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
                let (Some(id), Some(row), Some(length), Some(hash)) = (id, row, length, hash) else { continue };
                let id: Arc<str> = id.into();
                let entry = Entry { row, length: length as u32, hash: ContentHash(hash), chunk: None };
                self.next_row = self.next_row.max(row + 1);
                self.rows.insert(row, id.clone());
                self.entries.insert(id, entry);
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            self.writer.delete_term(Term::from_field_u64(self.fields.row, entry.row));
            self.rows.remove(&entry.row);
            if entry.chunk.is_some() {
                self.terms -= u64::from(entry.length);
            }
        }
    }

    fn add(&mut self, chunk: &Arc<Chunk>) -> Result<(), tantivy::TantivyError> {
        let hash = self.tokenizer.identity(chunk);
        if let Some(entry) = self.entries.get_mut(&chunk.id) {
            if entry.hash == hash {
                // An earlier process or attempt has already stored this passage.
                match entry.chunk.replace(chunk.clone()) {
                    None => self.terms += u64::from(entry.length),
                    Some(old) => self.is_stale |= !Arc::ptr_eq(&old, chunk),
                }
                return Ok(());
            }
            self.remove(&chunk.id);
        }
        let terms = self.tokenizer.passage_terms(chunk);
        let length = terms.len() as u32;
        let token = |(position, text): (usize, String)| Token { position, text, ..Token::default() };
        let tokens: Vec<Token> = terms.into_iter().enumerate().map(token).collect();
        let row = self.next_row;
        self.next_row += 1;
        let mut document = TantivyDocument::default();
        document.add_text(self.fields.id, &*chunk.id);
        document.add_bytes(self.fields.hash, &hash.0);
        document.add_u64(self.fields.row, row);
        document.add_u64(self.fields.length, u64::from(length));
        document.add_pre_tokenized_text(self.fields.terms, PreTokenizedString { text: String::new(), tokens });
        self.writer.add_document(document)?;
        self.terms += u64::from(length);
        self.rows.insert(row, chunk.id.clone());
        let entry = Entry { row, length, hash, chunk: Some(chunk.clone()) };
        self.entries.insert(chunk.id.clone(), entry);
        Ok(())
    }

    /// Applies a delta and returns the reader of the new epoch. After an error, drop this index and open it again:
    /// tantivy's writer has ended, and the state in memory is ahead of the committed state.
    pub(super) fn change(&mut self, delta: &Delta) -> Result<Bm25Reader, IndexError> {
        self.commit(delta).map_err(store("commit"))?;
        self.view().map_err(store("read its new epoch"))
    }

    /// Ends the threads that write segments. If a writer has failed, tantivy would otherwise not wait for its merges
    /// when the writer is dropped.
    pub(super) fn end_workers(&mut self) {
        if let Err(error) = self.writer.prepare_commit() {
            tracing::debug!(%error, "the writer has ended");
        }
    }

    /// Opstamp of the last commit; `None` if nothing is stored.
    pub(super) fn version(&self) -> Option<u64> {
        self.directory.as_ref().map(|_| self.opstamp)
    }

    fn commit(&mut self, delta: &Delta) -> Result<(), tantivy::TantivyError> {
        for chunk in &delta.removed {
            self.remove(&chunk.id);
        }
        if delta.whole {
            let named: HashMap<&str, ContentHash> =
                delta.added.iter().map(|chunk| (&*chunk.id, self.tokenizer.identity(chunk))).collect();
            let gone = self.entries.iter().filter(|(id, entry)| named.get(&***id) != Some(&entry.hash));
            let gone: Vec<Arc<str>> = gone.map(|(id, _)| id.clone()).collect();
            gone.iter().for_each(|id| self.remove(id));
        }
        delta.added.iter().try_for_each(|chunk| self.add(chunk))?;
        let begun = std::time::Instant::now();
        self.opstamp = self.writer.commit()?;
        let committed = begun.elapsed();
        self.reader.reload()?;
        tracing::debug!(?committed, reloaded = ?begun.elapsed(), "tantivy");
        Ok(())
    }

    /// The reader of the newest epoch.
    pub(super) fn view(&mut self) -> Result<Bm25Reader, tantivy::TantivyError> {
        let searcher = self.reader.searcher();
        let mut known = HashMap::new();
        let mut segments = Vec::new();
        if std::mem::take(&mut self.is_stale) {
            self.segments.clear();
        }
        for reader in searcher.segment_readers() {
            let passages = match self.segments.get(&reader.segment_id()) {
                Some(passages) => passages.clone(),
                None => Arc::new(SegmentPassages::new(self.passages(reader)?)),
            };
            known.insert(reader.segment_id(), passages.clone());
            segments.push(Segment { reader: reader.clone(), passages });
        }
        self.segments = known;
        let statistics = Statistics { passages: self.entries.len() as u64, terms: self.terms };
        let (field, tokenizer) = (self.fields.terms, self.tokenizer.clone());
        Ok(Bm25Reader { field, tokenizer, segments, statistics, mean_okapi: OnceLock::new() })
    }

    fn passages(&self, reader: &SegmentReader) -> Result<Vec<Passage>, tantivy::TantivyError> {
        let rows = reader.fast_fields().u64("row")?;
        let alive = reader.alive_bitset();
        let passage = |number| {
            // After a restart, the row number of a deleted passage may belong to another passage.
            if alive.is_some_and(|alive| !alive.is_alive(number)) {
                return None;
            }
            let id = self.rows.get(&rows.first(number)?)?;
            let entry = self.entries.get(id)?;
            Some((entry.chunk.clone()?, entry.length))
        };
        Ok((0..reader.max_doc()).map(passage).collect())
    }
}

struct Segment {
    reader: SegmentReader,
    passages: Arc<SegmentPassages>,
}

impl Segment {
    /// The passage with this number of tantivy's, and its length.
    fn passage(&self, number: u32) -> Option<&(Arc<Chunk>, u32)> {
        self.passages.by_number[number as usize].as_ref()
    }
}

/// The index at an epoch.
pub(super) struct Bm25Reader {
    field: Field,
    tokenizer: Tokenizer,
    segments: Vec<Segment>,
    statistics: Statistics,
    /// The mean of [`okapi`] over all terms, computed when it is first needed.
    mean_okapi: OnceLock<f32>,
}

impl Bm25Reader {
    /// Each segment with its passages.
    pub fn segments(&self) -> impl Iterator<Item = (&SegmentReader, &[Passage])> {
        self.segments.iter().map(|segment| (&segment.reader, segment.passages.by_number.as_slice()))
    }

    /// What the stored terms of a passage depend on.
    pub fn identity(&self, chunk: &Chunk) -> ContentHash {
        self.tokenizer.identity(chunk)
    }

    /// The field that holds the terms.
    pub fn field(&self) -> Field {
        self.field
    }

    /// Number of passages and of terms that scores are computed with.
    pub fn counted(&self) -> (u64, u64) {
        (self.statistics.passages, self.statistics.terms)
    }

    /// The best permitted passages for these terms, each with its weight: the number of times it occurs in a question.
    /// Scores do not depend on what is permitted.
    pub fn search(
        &self,
        terms: &BTreeMap<String, f32>,
        idf: Idf,
        k1: f32,
        b: f32,
        top: usize,
        permitted: &Permitted,
    ) -> Result<Vec<Hit>, IndexError> {
        let mean = match idf {
            Idf::Okapi => self.mean_okapi().map_err(store("read terms"))?,
            Idf::Lucene => 0.0,
        };
        let average = self.statistics.terms as f32 / (self.statistics.passages.max(1)) as f32;
        if let Some(numbers) = permitted.numbers()
            && numbers.len() <= self.statistics.passages / FEW
        {
            let selected: Vec<_> = self.segments.iter().map(|one| one.passages.selected(numbers)).collect();
            let score = |idf, tf, length| term_score(idf, tf, length, average, k1, b);
            let weigh = |df, count| idf.of(self.statistics, df, mean) * count;
            return self.among(&selected, terms, weigh, score, top).map_err(store("read postings"));
        }
        let size = |segment: &Segment| segment.passages.by_number.len();
        let mut scores: Vec<Vec<f32>> = self.segments.iter().map(|segment| vec![0.0; size(segment)]).collect();
        // Sums in the order of the terms, so that a score depends neither on the question's word order nor on the
        // segments.
        for (term, count) in terms {
            let postings = self.postings(term).map_err(store("read postings"))?;
            let idf = idf.of(self.statistics, postings.len() as u64, mean) * count;
            for (segment, number, tf) in postings {
                if let Some((_, length)) = self.segments[segment].passage(number) {
                    scores[segment][number as usize] += term_score(idf, tf, *length, average, k1, b);
                }
            }
        }
        Ok(self.best(&scores, top, permitted))
    }

    /// The best of a few passages, given for each segment in ascending order. Their scores are summed in the same order
    /// as those of a whole search.
    fn among(
        &self,
        selected: &[Vec<u32>],
        terms: &BTreeMap<String, f32>,
        weigh: impl Fn(u64, f32) -> f32,
        score: impl Fn(f32, u32, u32) -> f32,
        top: usize,
    ) -> Result<Vec<Hit>, tantivy::TantivyError> {
        use tantivy::postings::Postings;
        let mut scores: Vec<Vec<f32>> = selected.iter().map(|numbers| vec![0.0; numbers.len()]).collect();
        for (term, count) in terms {
            let term = Term::from_field_text(self.field, term);
            let weight = weigh(self.live_frequency(&term)?, *count);
            for ((segment, numbers), scores) in self.segments.iter().zip(selected).zip(&mut scores) {
                let index = segment.reader.inverted_index(self.field)?;
                let Some(mut postings) = index.read_postings(&term, IndexRecordOption::WithFreqs)? else { continue };
                // The number of a deleted passage may be that of another one by now.
                let alive = segment.reader.alive_bitset();
                for (number, sum) in numbers.iter().zip(scores) {
                    if postings.doc() < *number {
                        postings.seek(*number);
                    }
                    if postings.doc() == *number
                        && alive.is_none_or(|alive| alive.is_alive(*number))
                        && let Some((_, length)) = segment.passage(*number)
                    {
                        *sum += score(weight, postings.term_freq(), *length);
                    }
                }
            }
        }
        let found = self.segments.iter().zip(selected).zip(&scores).flat_map(|((segment, numbers), scores)| {
            let found = numbers.iter().zip(scores).filter(|(_, score)| **score > 0.0);
            found.filter_map(|(number, score)| Some((*score, &segment.passage(*number)?.0)))
        });
        Ok(best_of(found.collect(), top))
    }

    /// Number of live passages that contain a term. Cost: its postings in segments with deleted passages.
    fn live_frequency(&self, term: &Term) -> Result<u64, tantivy::TantivyError> {
        let mut count = 0;
        for segment in &self.segments {
            let index = segment.reader.inverted_index(self.field)?;
            let Some(alive) = segment.reader.alive_bitset() else {
                count += u64::from(index.doc_freq(term)?);
                continue;
            };
            let Some(mut postings) = index.read_postings(term, IndexRecordOption::Basic)? else { continue };
            while postings.doc() != TERMINATED {
                count += u64::from(alive.is_alive(postings.doc()));
                postings.advance();
            }
        }
        Ok(count)
    }

    /// Whether the mean weight of all terms is known.
    pub fn has_mean(&self) -> bool {
        self.mean_okapi.get().is_some()
    }

    /// The mean weight of all terms of the live passages. Cost: all terms, and the postings of segments with deleted
    /// passages.
    fn mean_okapi(&self) -> Result<f32, tantivy::TantivyError> {
        use tantivy::postings::Postings;
        if let Some(mean) = self.mean_okapi.get() {
            return Ok(*mean);
        }
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
        // Summed in the order of the terms, so that it does not depend on the segments.
        let sum: f64 = counts.values().map(|df| okapi(self.statistics, *df)).sum();
        Ok(*self.mean_okapi.get_or_init(|| (sum / counts.len().max(1) as f64) as f32))
    }

    /// Live passages that contain a term: segment, document number, term frequency.
    fn postings(&self, term: &str) -> Result<Vec<(usize, u32, u32)>, tantivy::TantivyError> {
        use tantivy::postings::Postings;
        let term = Term::from_field_text(self.field, term);
        let mut found = Vec::new();
        for (at, segment) in self.segments.iter().enumerate() {
            let index = segment.reader.inverted_index(self.field)?;
            let Some(mut postings) = index.read_postings(&term, IndexRecordOption::WithFreqs)? else { continue };
            let alive = segment.reader.alive_bitset();
            let mut number = postings.doc();
            while number != TERMINATED {
                if alive.is_none_or(|alive| alive.is_alive(number)) {
                    found.push((at, number, postings.term_freq()));
                }
                number = postings.advance();
            }
        }
        Ok(found)
    }

    fn best(&self, scores: &[Vec<f32>], top: usize, permitted: &Permitted) -> Vec<Hit> {
        let mut found: Vec<(f32, &Arc<Chunk>)> = Vec::new();
        for (segment, scores) in self.segments.iter().zip(scores) {
            let passages = segment.passages.by_number.iter().zip(scores).filter(|(_, score)| **score > 0.0);
            let passages = passages.filter_map(|(passage, score)| Some((*score, &passage.as_ref()?.0)));
            found.extend(passages.filter(|(_, chunk)| permitted.has(chunk)));
        }
        best_of(found, top)
    }
}

/// The best passages, best first.
fn best_of(mut found: Vec<(f32, &Arc<Chunk>)>, top: usize) -> Vec<Hit> {
    let order = |a: &(f32, &Arc<Chunk>), b: &(f32, &Arc<Chunk>)| b.0.total_cmp(&a.0).then_with(|| a.1.id.cmp(&b.1.id));
    if found.len() > top {
        found.select_nth_unstable_by(top, order);
        found.truncate(top);
    }
    let mut hits = found.into_iter().map(|(score, chunk)| Hit { chunk: chunk.clone(), score }).collect();
    rank(&mut hits, top);
    hits
}
