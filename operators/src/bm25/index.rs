//! The inverted index: tantivy holds the postings on disk. Their passages, and the passages' exact lengths, are held in
//! memory beside its segments.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tantivy::error::DataCorruption;
use tantivy::index::SegmentId;
use tantivy::merge_policy::LogMergePolicy;
use tantivy::schema::{
    FAST, Field, INDEXED, IndexRecordOption, STORED, Schema, TextFieldIndexing, TextOptions, Value as _,
};
use tantivy::{Index as TantivyIndex, IndexReader, IndexWriter, ReloadPolicy, SegmentReader, TantivyDocument, Term};
use turnflow_engine::component::{Delta, IndexError};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::keyed::{Table, TwoKeys as _};

use super::analyzer::Tokenizer;
use super::directory::Unsynced;
use super::entries::{Entry, Passage};
use super::open::{OpenError, during};
use super::reader::{Bm25Reader, Segment, SegmentPassages};
use super::score::Statistics;
use super::separated::{Separated, joined};
use super::terms::{SegmentTerms, UNKNOWN};
use super::writer::Writer;

/// Size of tantivy's write buffer, in bytes. This is close to its minimum, because each commit builds new tables whose
/// size is proportional to it.
const BUFFER: usize = 16 << 20;
/// Minimum size of a segment file's footer, in bytes.
const FOOTER: u64 = 8;

/// A change that adds this many passages is written by several threads.
const LARGE: usize = if cfg!(test) { 500 } else { 20_000 };
/// Size of the write buffer of each of them, in bytes.
const LARGE_BUFFER: usize = 64 << 20;
/// Passages whose terms are computed before they are added.
const PART: usize = 4096;
/// Fewer passages than this are not worth a thread.
const WORTH: usize = 64;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(8)
}

fn writer(index: &TantivyIndex, threads: usize, buffer: usize) -> Result<IndexWriter, tantivy::TantivyError> {
    let writer: IndexWriter = index.writer_with_num_threads(threads, buffer * threads)?;
    let mut merges = LogMergePolicy::default();
    // By default, tantivy does not merge segments because of deletes.
    merges.set_del_docs_ratio_before_merge(0.3);
    writer.set_merge_policy(Box::new(merges));
    Ok(writer)
}

/// One result for each item, in their order. A panic is passed on.
fn on_all_cores<T: Sync, R: Send>(items: &[T], compute: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads().min(items.len() / WORTH);
    if threads <= 1 {
        return items.iter().map(compute).collect();
    }
    std::thread::scope(|scope| {
        let compute = &compute;
        let parts = items.chunks(items.len().div_ceil(threads));
        let parts: Vec<_> =
            parts.map(|part| scope.spawn(move || part.iter().map(compute).collect::<Vec<R>>())).collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

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

/// What the epochs that have a segment share. The passages change when a passage becomes another copy of itself.
#[derive(Clone)]
struct KnownSegment {
    passages: Option<Arc<SegmentPassages>>,
    terms: Arc<SegmentTerms>,
}

pub(super) struct Bm25Index {
    tokenizer: Tokenizer,
    fields: Fields,
    pub(super) directory: Option<PathBuf>,
    pub(super) writer: Writer,
    pub(super) reader: IndexReader,
    entries: Table<Entry>,
    next_row: u64,
    terms: u64,
    segments: HashMap<SegmentId, KnownSegment>,
    /// Opstamp of the last commit.
    opstamp: u64,
    /// Whether a known passage has become another copy of itself, with another metadata or number.
    is_stale: bool,
}

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
        index.tokenizers().register("raw", Separated::default());
        let writer = writer(&index, 1, BUFFER).map_err(during("open a writer"))?;
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
            entries: Table::default(),
            next_row: 0,
            terms: 0,
            segments: HashMap::new(),
            opstamp,
            is_stale: false,
        };
        this.remember().map_err(during("read the stored index"))?;
        Ok(this)
    }

    /// Opens another writer, with so many threads and so many bytes for each. Nothing may be uncommitted.
    fn replace_writer(&mut self, threads: usize, buffer: usize) -> Result<(), tantivy::TantivyError> {
        let index = self.writer.index().clone();
        // The first one holds the lock.
        self.writer.end()?;
        self.writer = Writer::new(writer(&index, threads, buffer)?);
        Ok(())
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
                self.next_row = self.next_row.max(row + 1);
                // Ids and rows are unique in a sound index.
                self.entries.of_id(id).map(|slot| self.entries.remove(slot));
                self.entries.of_other(&row).map(|slot| self.entries.remove(slot));
                self.entries.insert(Entry::new(row, length as u32, ContentHash(hash), Passage::Stored(id.into())));
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: &str) {
        if let Some(entry) = self.entries.of_id(id).and_then(|slot| self.entries.remove(slot)) {
            self.writer.delete_term(Term::from_field_u64(self.fields.row, entry.row));
            if entry.passage.chunk().is_some() {
                self.terms -= u64::from(entry.length);
            }
        }
    }

    /// Whether a passage is stored already, by an earlier process or attempt. Removes another passage with its id.
    fn is_stored(&mut self, chunk: &Arc<Chunk>, hash: ContentHash) -> bool {
        let Some(slot) = self.entries.of_id(&chunk.id) else { return false };
        if !self.entries.get(slot).is_some_and(|entry| entry.has(hash)) {
            self.remove(&chunk.id);
            return false;
        }
        self.entries.update(slot, |entry| {
            match std::mem::replace(&mut entry.passage, Passage::Confirmed(chunk.clone())) {
                Passage::Stored(_) => self.terms += u64::from(entry.length),
                Passage::Confirmed(old) => self.is_stale |= !Arc::ptr_eq(&old, chunk),
            }
        });
        true
    }

    fn add(&mut self, chunk: &Arc<Chunk>, hash: ContentHash, terms: &Terms) -> Result<(), tantivy::TantivyError> {
        // A change may name an id twice: the last one counts.
        self.remove(&chunk.id);
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

    /// Adds the passages that are not stored yet. Their terms are computed on all cores if they are many.
    fn add_all(&mut self, chunks: &[Arc<Chunk>]) -> Result<(), tantivy::TantivyError> {
        for part in chunks.chunks(PART) {
            let mut new: Vec<(&Arc<Chunk>, ContentHash)> = Vec::with_capacity(part.len());
            for chunk in part {
                let hash = self.tokenizer.identity(chunk);
                if !self.is_stored(chunk, hash) {
                    new.push((chunk, hash));
                }
            }
            let terms = on_all_cores(&new, |(chunk, _)| Terms::of(&self.tokenizer, chunk));
            for ((chunk, hash), terms) in new.iter().zip(&terms) {
                self.add(chunk, *hash, terms)?;
            }
        }
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
        let is_large = delta.added.len() >= LARGE;
        if is_large {
            // Before the first deletion, which would be lost with the other writer.
            self.replace_writer(threads(), LARGE_BUFFER)?;
        }
        for chunk in &delta.removed {
            self.remove(&chunk.id);
        }
        if delta.whole {
            let named: HashMap<&str, ContentHash> =
                delta.added.iter().map(|chunk| (&*chunk.id, self.tokenizer.identity(chunk))).collect();
            let stays = |entry: &Entry| named.get(entry.id()).is_some_and(|hash| entry.has(*hash));
            let gone: Vec<Arc<str>> =
                self.entries.iter().filter(|entry| !stays(entry)).map(|entry| entry.id().into()).collect();
            gone.iter().for_each(|id| self.remove(id));
        }
        self.add_all(&delta.added)?;
        let begun = std::time::Instant::now();
        self.opstamp = self.writer.commit()?;
        if is_large {
            self.replace_writer(1, BUFFER)?;
        }
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

    /// The passages of a segment, and the number of terms of each.
    fn passages(&self, reader: &SegmentReader) -> Result<(SegmentPassages, Vec<u32>), tantivy::TantivyError> {
        let rows = reader.fast_fields().u64("row")?;
        let alive = reader.alive_bitset();
        let passage = |number| {
            // After a restart, the row number of a deleted passage may belong to another passage.
            if alive.is_some_and(|alive| !alive.is_alive(number)) {
                return (None, UNKNOWN);
            }
            let entry = rows.first(number).and_then(|row| self.entries.get(self.entries.of_other(&row)?));
            entry.map_or((None, UNKNOWN), |entry| (entry.passage.chunk().cloned(), entry.length))
        };
        let (passages, lengths) = (0..reader.max_doc()).map(passage).unzip();
        Ok((SegmentPassages::new(passages), lengths))
    }
}
