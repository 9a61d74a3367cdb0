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
mod kept;
mod store;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::Map;
use turnflow_engine::component::{
    Building, ComponentContext, ComponentError, CorpusSourceConfig, CorpusSourceKind, built, config,
};
use turnflow_engine::connector::{
    ConnectorError, CorpusOutput, CorpusSource, Deleted, DocumentStore, Mode, Stopped, StoredDocument,
};
use turnflow_engine::database::DatabaseError;
use turnflow_engine::document::{Document, Markup};
use turnflow_engine::metadata::{FieldValue, Metadata};

use self::kept::Change;
use self::store::{Follower, SharedStore, Store};
use crate::open_once::Place;
use crate::readers::{self, Content, Format};

/// Name of the file.
const FILE: &str = "documents.redb";
/// Maximum number of documents in a page.
const PAGE: usize = 256;
/// Pause before the store is read again.
const PAUSE: Duration = Duration::from_secs(1);
/// Size of a list of documents, in bytes; it ends with the document that reaches it.
const LIST_BYTES: usize = 8 << 20;
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
}

fn max_bytes() -> usize {
    16 << 20
}

impl Default for DocumentsConfig {
    fn default() -> Self {
        Self { max_bytes: max_bytes() }
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
        self.open(Place::File(directory.canonicalize().map_err(io)?.join(FILE)))
    }

    fn open(&self, place: Place) -> Result<Documents, ConnectorError> {
        let store = Store::open(place).map_err(failed)?;
        Ok(Documents { store, max_bytes: self.max_bytes, commits: Arc::default() })
    }

    fn source_of(&self, context: &ComponentContext) -> Result<Documents, ConnectorError> {
        self.open(Place::of(context, FILE)?)
    }
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<DocumentsConfig>("Documents", "documents that a program adds");

impl CorpusSourceConfig for DocumentsConfig {
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
        Handle { store: self.store.clone(), max_bytes: self.max_bytes, commits: self.commits.clone() }
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

/// A program's handle to a store.
struct Handle {
    store: SharedStore,
    max_bytes: usize,
    commits: Commits,
}

impl Handle {
    fn encode(&self, document: &StoredDocument) -> Result<Vec<u8>, ConnectorError> {
        let StoredDocument { id, title, text, metadata, .. } = document;
        if id.is_empty() {
            return Err(ConnectorError::Refused { reason: "a document has an empty id".to_owned() });
        }
        let refused =
            |error: serde_json::Error| ConnectorError::Refused { reason: format!("document `{id}`: {error}") };
        let noted = if metadata.is_empty() { 0 } else { serde_json::to_vec(metadata).map_err(refused)?.len() };
        let bytes = id.len() + title.as_ref().map_or(0, String::len) + text.len() + noted;
        if bytes > self.max_bytes {
            let id: String = id.chars().take(100).collect();
            let reason = format!("document `{id}` has {bytes} bytes, more than `max_bytes` ({})", self.max_bytes);
            return Err(ConnectorError::Refused { reason });
        }
        format::encode(document).map_err(refused)
    }
}

fn decoded(id: &str, stored: &[u8]) -> Result<StoredDocument, ConnectorError> {
    format::decode(stored).map_err(|reason| {
        let reason = format!("cannot read document `{id}`: {reason}. Delete it, or put it again");
        ComponentError::new(reason).into()
    })
}

impl DocumentStore for Handle {
    fn put(&self, documents: Vec<StoredDocument>) -> Result<u64, ConnectorError> {
        let mut changes: Vec<Change> = Vec::with_capacity(documents.len());
        for document in documents {
            let encoded = self.encode(&document)?;
            changes.push((document.id.into(), Some(encoded)));
        }
        self.store.change(&changes).map(|done| done.change).map_err(failed)
    }

    fn formats(&self) -> Vec<&'static str> {
        Format::DOCUMENTS.map(Format::mime).to_vec()
    }

    fn read_file(
        &self,
        id: &str,
        mime: &str,
        charset: Option<&str>,
        bytes: &[u8],
    ) -> Result<StoredDocument, ConnectorError> {
        let refused = |reason: String| ConnectorError::Refused { reason };
        let unreadable = |reason: String| ConnectorError::Unreadable { reason };
        let format = match mime {
            "" | "application/octet-stream" => Format::of(Path::new(id)).filter(|format| !format.has_rows()),
            mime => Format::of_mime(mime),
        };
        let format = format.ok_or_else(|| match mime {
            "" | "application/octet-stream" => refused(format!("there is no reader for a file with the name `{id}`")),
            mime => refused(format!("there is no reader for `{mime}`")),
        })?;
        let (mut metadata, mime) = (Map::new(), format.mime());
        let bytes = &readers::charset::in_utf8(bytes.to_vec(), charset, format)[..];
        let (title, text, markup) = match format {
            // It is read again, with its front matter, when it is sent.
            Format::Markdown => {
                (None, readers::decode(bytes).map_err(|error| unreadable(error.to_string()))?, Markup::Plain)
            }
            format => {
                let document = format.read(id.into(), bytes).map_err(|error| unreadable(error.to_string()))?;
                metadata = document.metadata.to_json();
                let title = Some(document.title.to_string()).filter(|title| !title.is_empty());
                (title, document.text.to_string(), document.markup)
            }
        };
        metadata.entry("mime").or_insert_with(|| mime.into());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        Ok(StoredDocument { id: id.to_owned(), title, text, markup, metadata, modified_ms })
    }

    fn delete(&self, ids: &[String]) -> Result<Deleted, ConnectorError> {
        let changes: Vec<Change> = ids.iter().map(|id| (id.as_str().into(), None)).collect();
        self.store.change(&changes).map_err(failed)
    }

    fn last_change(&self) -> Option<u64> {
        Some(self.store.last_change())
    }

    fn commit_of(&self, change: u64) -> Option<u64> {
        let commits = self.commits.lock();
        let at = commits.partition_point(|(last, _)| *last < change);
        commits.get(at).map(|(_, commit)| *commit)
    }

    fn get(&self, id: &str) -> Result<Option<StoredDocument>, ConnectorError> {
        self.store.get(id).map_err(failed)?.map(|stored| decoded(id, &stored)).transpose()
    }

    fn list(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredDocument>, ConnectorError> {
        let page = self.store.page(after, limit, LIST_BYTES).map_err(failed)?;
        page.iter().map(|(id, stored)| decoded(id, stored)).collect()
    }

    fn list_for(
        &self,
        field: &str,
        groups: &[Arc<str>],
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredDocument>, ConnectorError> {
        let page = self.store.page_for((field, groups), after, limit, LIST_BYTES).map_err(failed)?;
        page.iter().map(|(id, stored)| decoded(id, stored)).collect()
    }

    fn count(&self) -> Result<u64, ConnectorError> {
        self.store.count().map_err(failed)
    }
}

#[cfg(test)]
pub(crate) mod tests;
