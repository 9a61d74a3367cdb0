//! The store as a program sees it.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Map;
use turnflow_engine::component::ComponentError;
use turnflow_engine::connector::{ConnectorError, Deleted, DocumentStore, StoredDocument};
use turnflow_engine::document::Markup;

use super::kept::Change;
use super::store::SharedStore;
use super::{Commits, failed, format};
use crate::ocr;
use crate::readers::{self, Format, ReadOptions};

/// Size of a list of documents, in bytes; it ends with the document that reaches it.
const LIST_BYTES: usize = 8 << 20;

/// A program's handle to a store.
pub(super) struct Handle {
    pub store: SharedStore,
    pub max_bytes: usize,
    pub reading: ReadOptions,
    pub commits: Commits,
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
        if !ocr::reads(self.reading.when, format) {
            return Err(refused("pictures are not read: the corpus has `ocr: Never`".to_owned()));
        }
        let (mut metadata, mime) = (Map::new(), format.mime());
        let bytes = &readers::charset::in_utf8(bytes.to_vec(), charset, format)[..];
        let (title, text, markup) = match format {
            // It is read again, with its front matter, when it is sent.
            Format::Markdown => {
                (None, readers::decode(bytes).map_err(|error| unreadable(error.to_string()))?, Markup::Plain)
            }
            format => {
                let read = format.read_with(id.into(), bytes, &self.reading);
                let document = read.map_err(|error| unreadable(error.to_string()))?;
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
