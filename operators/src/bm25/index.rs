//! The inverted index: tantivy holds the postings on disk. Their passages, and the passages' exact lengths, are held in
//! memory beside its segments.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tantivy::error::DataCorruption;
use tantivy::index::SegmentId;
use tantivy::merge_policy::LogMergePolicy;
use tantivy::schema::{FAST, Field, INDEXED, IndexRecordOption, STORED, Schema, TextFieldIndexing, TextOptions};
use tantivy::{Index as TantivyIndex, IndexReader, IndexWriter, ReloadPolicy};
use turnflow_engine::component::{Delta, IndexError};
use turnflow_engine::keyed::Table;

use super::analyzer::Tokenizer;
use super::directory::Unsynced;
use super::entries::Entry;
use super::open::{OpenError, during};
use super::reader::{Bm25Reader, SegmentPassages};
use super::remember;
use super::separated::Separated;
use super::terms::SegmentTerms;
use super::writer::Writer;

/// Size of tantivy's write buffer, in bytes. This is close to its minimum, because each commit builds new tables whose
/// size is proportional to it.
pub(super) const BUFFER: usize = 16 << 20;
/// Minimum size of a segment file's footer, in bytes.
const FOOTER: u64 = 8;

fn writer(index: &TantivyIndex, threads: usize, buffer: usize) -> Result<IndexWriter, tantivy::TantivyError> {
    let writer: IndexWriter = index.writer_with_num_threads(threads, buffer * threads)?;
    let mut merges = LogMergePolicy::default();
    // By default, tantivy does not merge segments because of deletes.
    merges.set_del_docs_ratio_before_merge(0.3);
    writer.set_merge_policy(Box::new(merges));
    Ok(writer)
}

pub(super) fn store(action: &'static str) -> impl Fn(tantivy::TantivyError) -> IndexError {
    move |error| IndexError::Store { store: "tantivy", action, reason: error.to_string() }
}

#[derive(Clone, Copy)]
pub(super) struct Fields {
    pub id: Field,
    pub hash: Field,
    /// Row number, unique for ever. Deletes refer to it.
    pub row: Field,
    pub length: Field,
    pub terms: Field,
}

impl Fields {
    /// Number of stored fields. They are the first ones.
    pub const STORED: usize = 4;
}

/// What the epochs that have a segment share. The passages change when a passage becomes another copy of itself.
#[derive(Clone)]
pub(super) struct KnownSegment {
    pub passages: Option<Arc<SegmentPassages>>,
    pub terms: Arc<SegmentTerms>,
}

pub(super) struct Bm25Index {
    pub(super) tokenizer: Tokenizer,
    pub(super) fields: Fields,
    pub(super) directory: Option<PathBuf>,
    pub(super) writer: Writer,
    pub(super) reader: IndexReader,
    pub(super) entries: Table<Entry>,
    pub(super) next_row: u64,
    pub(super) terms: u64,
    pub(super) segments: HashMap<SegmentId, KnownSegment>,
    /// Opstamp of the last commit.
    pub(super) opstamp: u64,
    /// Whether a known passage has become another copy of itself, with another metadata or number.
    pub(super) is_stale: bool,
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
        let stored =
            remember::stored(reader.searcher().segment_readers(), &fields).map_err(during("read the stored index"))?;
        let next_row = stored.iter().map(|entry| entry.row + 1).max().unwrap_or_default();
        Ok(Self {
            tokenizer: tokenizer.clone(),
            fields,
            directory: directory.map(Path::to_owned),
            writer: Writer::new(writer),
            reader,
            // Ids and rows are unique in a sound index.
            entries: Table::of(stored),
            next_row,
            terms: 0,
            segments: HashMap::new(),
            opstamp,
            is_stale: false,
        })
    }

    /// Opens another writer, with so many threads and so many bytes for each. Nothing may be uncommitted.
    pub(super) fn replace_writer(&mut self, threads: usize, buffer: usize) -> Result<(), tantivy::TantivyError> {
        let index = self.writer.index().clone();
        // The first one holds the lock.
        self.writer.end()?;
        self.writer = Writer::new(writer(&index, threads, buffer)?);
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
}
