//! Documents that a program puts into a corpus itself.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ConnectorError;
use crate::document::{Markup, Readers};
use crate::metadata::Metadata;

/// A document in a [`DocumentStore`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredDocument {
    /// Unique in its corpus, and not empty.
    pub id: String,
    /// The title, if it has one.
    #[serde(default)]
    pub title: Option<String>,
    /// The readable text.
    pub text: String,
    /// How `text` is marked up. The text of a document whose metadata has the `mime` `text/markdown` is always Markdown.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub markup: Markup,
    /// The document's metadata, which filters and hits read.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// When the document was last changed, in milliseconds since the Unix epoch, as set by the program.
    pub modified_ms: u64,
}

fn is_plain(markup: &Markup) -> bool {
    *markup == Markup::Plain
}

/// The result of [`DocumentStore::delete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Number of documents that existed and are deleted.
    pub documents: usize,
    /// The number of the change.
    pub change: u64,
}

/// The documents of a corpus that a program changes itself. All calls block, and any number of threads may
/// call at the same time. The corpus follows the changes in the order of their commits: each change is
/// published soon after its call returns.
pub trait DocumentStore: Send + Sync {
    /// Adds documents, or replaces those with the same ids: all of them, or none. They are on disk when it
    /// returns. If an id occurs twice, the last document counts. Returns the number of the change, which
    /// [`Engine::has_published`](crate::run::Engine::has_published) takes.
    ///
    /// # Errors
    ///
    /// [`ConnectorError::Refused`] if a document is invalid, for example too large; nothing has changed.
    /// Any other error means that the store cannot be written. The documents may have been stored
    /// nevertheless, and the call may be repeated.
    fn put(&self, documents: Vec<StoredDocument>) -> Result<u64, ConnectorError>;

    /// The media types of the files that [`DocumentStore::read_file`] reads.
    fn formats(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Makes a document of a file, such as a PDF. It is not stored. A file whose media type is empty or
    /// `application/octet-stream` is read by the extension of its id. `charset`: the character set of a text, if the
    /// sender names one. May take seconds, and some memory: at most a few calls should run at once.
    ///
    /// # Errors
    ///
    /// [`ConnectorError::Refused`] if there is no reader for the file; [`ConnectorError::Unreadable`] if the reader cannot
    /// read it.
    fn read_file(
        &self,
        id: &str,
        mime: &str,
        charset: Option<&str>,
        bytes: &[u8],
    ) -> Result<StoredDocument, ConnectorError> {
        let _ = (id, charset, bytes);
        Err(ConnectorError::Refused { reason: format!("there is no reader for `{mime}`") })
    }

    /// Deletes documents. The deletion is on disk when it returns.
    ///
    /// # Errors
    ///
    /// The store cannot be written. The call may be repeated.
    fn delete(&self, ids: &[String]) -> Result<Deleted, ConnectorError>;

    /// The number of the first commit of the corpus's source that has this change and all before it. `None` if
    /// the source has not read the change yet.
    fn commit_of(&self, change: u64) -> Option<u64>;

    /// The number of the last change since the process has opened the store. `None` if the store does not count them, or
    /// keeps its documents elsewhere as well: then they are not in the backup of a run.
    fn last_change(&self) -> Option<u64> {
        None
    }

    /// The document with this id.
    ///
    /// # Errors
    ///
    /// The store or the document cannot be read.
    fn get(&self, id: &str) -> Result<Option<StoredDocument>, ConnectorError>;

    /// At most `limit` documents in the order of the bytes of their ids, from the first id after `after`,
    /// or from the first id of all. May return fewer, to stay within a few megabytes, but returns none
    /// only if no more exist.
    ///
    /// # Errors
    ///
    /// The store or one of the documents cannot be read.
    fn list(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredDocument>, ConnectorError>;

    /// The same, of the documents whose field `field` names one of these groups, or everybody
    /// ([`Readers::named`]). A store that knows which documents these are does not read the others.
    ///
    /// # Errors
    ///
    /// As of [`DocumentStore::list`].
    fn list_for(
        &self,
        field: &str,
        groups: &[Arc<str>],
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StoredDocument>, ConnectorError> {
        let mut after = after.map(str::to_owned);
        loop {
            let mut page = self.list(after.as_deref(), limit)?;
            let Some(last) = page.last() else { return Ok(page) };
            after = Some(last.id.clone());
            page.retain(|document| Readers::named(&Metadata::of(&document.metadata).0, field).include(groups));
            if !page.is_empty() {
                return Ok(page);
            }
        }
    }

    /// Number of documents.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    fn count(&self) -> Result<u64, ConnectorError>;
}
