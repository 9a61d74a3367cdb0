//! `Documents`: a corpus of documents that a program adds to the engine.
//!
//! ```ron
//! Documents()
//! ```
//!
//! The corpus has no files. A program changes it through [`DocumentStore`], which `Engine::documents` returns. A change
//! is on disk when its call returns, and it is published soon after. Several waiting changes are published in one
//! epoch. A program may also put files, such as PDF, which the readers turn into documents. A document whose metadata has the `mime` `text/markdown` is read as a Markdown file is: its front matter is
//! metadata, unless the same fields are given.
//!
//! The documents are in the file `documents.redb` in the corpus's directory in the state directory. They exist nowhere
//! else, so a damaged file is not modified, and the start fails. A document that cannot be decoded becomes a dead
//! letter, and the others are read. Without a state directory, the documents are kept in memory and lost when the
//! engine ends, with a warning.
//!
//! The store is redb rather than Lance, because each request is acknowledged when it is on disk. In redb, a request is
//! one small transaction. In Lance, each request would create a new version and new files of the whole dataset.
//!
//! ```
//! # use turnflow_connectors::documents::DocumentsConfig;
//! # let ron = r#"
//! (max_bytes: 1000000)
//! # "#;
//! # let config: DocumentsConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_bytes, 1000000);
//! ```

mod by_reader;
mod format;
mod handle;
mod kept;
mod store;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use turnflow_engine::component::{
    Building, ComponentContext, ComponentError, CorpusSourceConfig, CorpusSourceKind, ModelUse, built, config,
};
use turnflow_engine::connector::{
    ConnectorError, CorpusOutput, CorpusSource, DocumentStore, Mode, Stopped, StoredDocument,
};
use turnflow_engine::database::DatabaseError;
use turnflow_engine::document::Document;
use turnflow_engine::metadata::{FieldValue, Metadata};

use self::handle::Handle;
use self::store::{Follower, SharedStore, Store};
use crate::ocr;
use crate::open_once::Place;
use crate::readers::ocr::OcrMode;
use crate::readers::{self, Content, ReadOptions};
use crate::secret::Secret;

/// Name of the file.
const FILE: &str = "documents.redb";
/// Maximum number of documents in a page.
const PAGE: usize = 256;
/// Pause before the store is read again.
const PAUSE: Duration = Duration::from_secs(1);
/// Number of recent commits whose changes are known. An older change is reported as part of the oldest of them.
const COMMITS: usize = 1024;
/// Upper limit of `max_bytes`.
const MAX_BYTES: usize = 256 << 20;

/// Fields of `Documents`.
#[config]
pub struct DocumentsConfig {
    /// Maximum size of a document, in bytes: of its id, title, text and metadata together. A larger document is rejected. At
    /// most 256 MiB.
    #[field(default = 16 << 20, range = 1..=MAX_BYTES)]
    pub max_bytes: usize,
    /// When the text in pictures of files is read, by OCR: `Auto` (pictures, and pages of a PDF without text or with letters
    /// that are not known), `Never`, or `Always` (every page of a PDF, too). Default: `Auto`.
    #[field(default)]
    pub ocr: OcrMode,
    /// A page of a file of which OCR is less sure, from 0 to 1, is left out, and a file with no other page is refused.
    /// Default: 0.5.
    #[field(default = ocr::least(), range = 0.0..=1.0)]
    pub ocr_min_confidence: f64,
    /// The model of the kind `Ocr` that reads pictures. Default: the one that `turnflow models fetch ocr` brings, on the CPU.
    pub ocr_model: Option<String>,
    /// Passwords of encrypted PDF files, each tried in turn: `[Env("NAME")]` or `[File("PATH")]`.
    #[field(default)]
    pub passwords: Vec<Secret>,
}

fn max_bytes() -> usize {
    16 << 20
}

impl Default for DocumentsConfig {
    fn default() -> Self {
        let (ocr, ocr_min_confidence) = (OcrMode::default(), ocr::least());
        Self { max_bytes: max_bytes(), ocr, ocr_min_confidence, ocr_model: None, passwords: Vec::new() }
    }
}

impl DocumentsConfig {
    /// Opens the source of the documents in this directory.
    ///
    /// # Errors
    ///
    /// The file of the documents cannot be opened, or is damaged.
    pub fn source(&self, directory: &Path) -> Result<Documents, ConnectorError> {
        let io = |source| ConnectorError::Io { action: "read", path: directory.display().to_string(), source };
        // One file has one name, so that it is not opened twice.
        let place = Place::File(directory.canonicalize().map_err(io)?.join(FILE));
        self.open(place, ReadOptions::new(self.ocr, self.ocr_min_confidence))
    }

    fn open(&self, place: Place, reading: ReadOptions) -> Result<Documents, ConnectorError> {
        let store = Store::open(place).map_err(failed)?;
        Ok(Documents { store, max_bytes: self.max_bytes, reading, commits: Arc::default() })
    }

    fn source_of(&self, context: &ComponentContext) -> Result<Documents, ConnectorError> {
        let how = (self.ocr, self.ocr_min_confidence);
        let reading = ocr::of(context, self.ocr_model.as_deref(), how, &self.passwords)?;
        self.open(Place::of(context, FILE)?, reading)
    }
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<DocumentsConfig>("Documents", "documents that a program adds");

impl CorpusSourceConfig for DocumentsConfig {
    fn explain(&self) -> String {
        let ocr = ocr::explain(self.ocr, self.ocr_min_confidence, &self.passwords);
        format!("max_bytes: {}{ocr}", self.max_bytes)
    }

    fn is_of_one_corpus(&self) -> bool {
        true
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        ocr::models(self.ocr_model.as_deref())
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(self.source_of(context).map(|source| Box::new(source) as Box<dyn CorpusSource>))
    }
}

/// The recent commits of a source, in order: the number of the last change in each, and the number of the commit.
type Commits = Arc<Mutex<VecDeque<(u64, u64)>>>;

/// Reads the documents of a store and follows their changes.
pub struct Documents {
    store: SharedStore,
    max_bytes: usize,
    reading: ReadOptions,
    commits: Commits,
}

impl CorpusSource for Documents {
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        // Follows before it reads, so that no change is missed in between.
        let follower = Store::follow(&self.store);
        self.send_all(&output)?;
        // Documents that changed meanwhile are sent again, so the pages now agree with one moment.
        let (_, last) = send_changes(&follower, &output)?;
        self.commit(last, &output)?;
        output.ready()?;
        if mode == Mode::Once {
            return Ok(());
        }
        let mut is_failing = false;
        loop {
            if !is_failing {
                crossbeam_channel::select! {
                    recv(follower.changed()) -> _ => {}
                    recv(output.stop().receiver()) -> _ => return Err(Stopped.into()),
                }
            }
            match send_changes(&follower, &output) {
                Ok((sent, last)) => {
                    is_failing = false;
                    if sent > 0 {
                        self.commit(last, &output)?;
                    } else {
                        self.covers(last);
                    }
                }
                // The changes are still in the queue.
                Err(ConnectorError::Component(error)) if error.is_transient() => {
                    if !is_failing {
                        tracing::warn!(%error, "cannot read changed documents; will retry");
                    }
                    is_failing = true;
                    if output.stop().wait(PAUSE) {
                        return Err(Stopped.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn documents(&self) -> Option<Arc<dyn DocumentStore>> {
        Some(Arc::new(self.handle()))
    }
}

impl Documents {
    fn handle(&self) -> Handle {
        let (store, commits, reading) = (self.store.clone(), self.commits.clone(), self.reading.clone());
        Handle { store, max_bytes: self.max_bytes, reading, commits }
    }

    /// Commits a group that contains all changes up to `last`.
    fn commit(&self, last: u64, output: &CorpusOutput) -> Result<(), Stopped> {
        let commit = output.commit()?;
        let mut commits = self.commits.lock();
        if commits.len() == COMMITS {
            commits.pop_front();
        }
        commits.push_back((last, commit));
        Ok(())
    }

    /// Records that the last group already contained all changes up to `last`.
    fn covers(&self, last: u64) {
        if let Some((of, _)) = self.commits.lock().back_mut() {
            *of = last.max(*of);
        }
    }

    /// Sends every document. Holds no lock while back-pressure pauses it.
    fn send_all(&self, output: &CorpusOutput) -> Result<(), ConnectorError> {
        let mut after: Option<String> = None;
        loop {
            let page = self.store.page(after.as_deref(), PAGE, store::PAGE_BYTES).map_err(failed)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            for (id, stored) in page {
                if let Some(document) = read(&id, &stored, output) {
                    output.change(id, Some(document))?;
                }
            }
        }
    }
}

/// Sends the documents that have changed until now, in their current state and in the order of the changes. Returns the
/// number of documents and the number of the last change.
///
/// Up to a page of changes is read at one moment. Otherwise, a later change of a waiting document is already sent in
/// this group, and the rest of that later change in the next.
fn send_changes(follower: &Follower, output: &CorpusOutput) -> Result<(usize, u64), ConnectorError> {
    let mut page = follower.next(PAGE).map_err(failed)?;
    let (mut left, last) = (page.left, page.last);
    let mut sent = 0;
    loop {
        sent += page.changes.len();
        for (id, stored) in page.changes {
            let document = stored.and_then(|stored| read(&id, &stored, output));
            output.change(id, document)?;
        }
        if left == 0 {
            return Ok((sent, last));
        }
        // Excludes later changes, which may never end.
        page = follower.next(left.min(PAGE)).map_err(failed)?;
        left = left.saturating_sub(page.changes.len());
    }
}

/// Decodes a stored document. One that cannot be decoded becomes a dead letter.
fn read(id: &str, stored: &[u8], output: &CorpusOutput) -> Option<Document> {
    match format::decode(stored) {
        Ok(StoredDocument { title, text, markup, metadata, .. }) => {
            let (metadata, large) = Metadata::of(&metadata);
            if !large.is_empty() {
                tracing::warn!(id, fields = large.join(", "), "fields of the metadata are too large and left out");
            }
            let title = title.unwrap_or_default();
            if metadata.get("mime") == Some(&FieldValue::from(readers::Format::Markdown.mime())) {
                return Some(markdown(id, title, &text, metadata));
            }
            let (title, text) = (title.into(), text.into());
            Some(Document { id: id.into(), title, text, markup, metadata })
        }
        Err(reason) => {
            output.dead_letter(&format!("{FILE}: {id}"), &reason, stored);
            None
        }
    }
}

/// A document in Markdown: its front matter is metadata, and not text. A title and fields that were given beside it count
/// more.
fn markdown(id: &str, title: String, text: &str, given: Metadata) -> Document {
    let Content { title: own, text, markup, metadata } = readers::markdown::read(text);
    let title = if title.is_empty() { own } else { title };
    let metadata = metadata.fields().fold(given, |all, (name, value)| all.with_default(name, value.clone()));
    Document { id: id.into(), title: title.into(), text: text.into(), markup, metadata }
}

/// A damaged file stays damaged; any other error may be temporary.
fn failed(error: DatabaseError) -> ConnectorError {
    match error.is_damage() {
        true => ComponentError::new(error).into(),
        false => ComponentError::transient(error).into(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
