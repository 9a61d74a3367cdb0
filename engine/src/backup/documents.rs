//! The copy of the documents that a program puts into a corpus ([`DocumentStore`]), which exist nowhere else.
//!
//! The database of a store is one file that changes while it is read. Therefore the documents are written beside it, into
//! files of some hundred kilobytes whose names are the hashes of their contents, and a list names the files that count.
//! These files are copied to the store like those of an index. Where a file ends depends on the documents in it, so a change
//! of one document changes one file. The list is written when all files that it names are there, and before those that it no
//! longer names are removed: whichever moment is copied is whole.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::store::StoreError;
use crate::append::{replace, sync_directory};
use crate::component::BackedUp;
use crate::connector::{ConnectorError, DocumentStore, StoredDocument};

/// The name of the directory, and that of the copy, where an index has its key.
pub(crate) const DOCUMENTS: &str = "documents-copy";
/// What of the directory is copied.
pub(crate) const PART: BackedUp =
    BackedUp { directory: "parts", versions: "parts/current", is_temporary: |name| name.ends_with(".new") };
/// The list of the files that count, below the directory.
const LIST: &str = "parts/current/list.json";
/// A file ends at this size, or, from the first on, at a document whose hash is one of [`ENDS`].
const SIZES: (usize, usize) = (128 << 10, 8 << 20);
/// One of so many documents may end a file.
const ENDS: u8 = 32;
/// Number of documents that are read at once.
const PAGE: usize = 256;
/// Documents are restored in changes of this many bytes of text.
const RESTORED: usize = 8 << 20;
/// The share of the time that may be spent on reading all documents: one of so many parts.
const SHARE: u32 = 20;

/// The documents of a corpus, as they are copied.
pub(crate) struct DocumentsCopy {
    corpus: Arc<str>,
    documents: Arc<dyn DocumentStore>,
    directory: PathBuf,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    /// The last change that is written.
    change: Option<u64>,
    /// When the next one may be.
    not_before: Option<Instant>,
}

impl DocumentsCopy {
    pub fn new(corpus: &Arc<str>, documents: &Arc<dyn DocumentStore>, directory: PathBuf) -> Self {
        Self { corpus: corpus.clone(), documents: documents.clone(), directory, written: Mutex::default() }
    }

    pub fn corpus(&self) -> &str {
        &self.corpus
    }

    /// Writes the documents into the directory, if they have changed. At the end of a run `is_last`, and does not wait for its
    /// turn. Blocks. Returns whether the newest change is written.
    ///
    /// # Errors
    ///
    /// A document cannot be read, or a file cannot be written. What was written before is still whole.
    pub fn write(&self, is_last: bool) -> Result<bool, StoreError> {
        let mut written = self.written.lock();
        let (begun, change) = (Instant::now(), self.documents.last_change());
        if written.change.is_some() && written.change == change {
            return Ok(true);
        }
        if !is_last && written.not_before.is_some_and(|at| begun < at) {
            return Ok(false);
        }
        let parts = self.parts()?;
        let list = serde_json::to_vec(&parts).map_err(|error| StoreError::Failed(error.to_string()))?;
        let path = self.directory.join(LIST);
        if std::fs::read(&path).ok().as_ref() != Some(&list) {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            replace(&path, &list)?;
        }
        self.remove_others(&parts)?;
        // A change that came meanwhile may be written in part, and is written whole in the next round.
        *written = Written { change, not_before: Some(Instant::now() + begun.elapsed() * SHARE) };
        Ok(true)
    }

    /// Writes the files that are not there yet. Returns the names of all.
    fn parts(&self) -> Result<Vec<String>, StoreError> {
        let directory = self.directory.join(PART.directory);
        std::fs::create_dir_all(&directory)?;
        let (mut names, mut part, mut after, mut is_new) = (Vec::new(), Vec::new(), None::<String>, false);
        let mut end = |part: &mut Vec<u8>| -> Result<(), StoreError> {
            let name = format!("{}.jsonl", blake3::hash(part).to_hex());
            let path = directory.join(&name);
            if !path.is_file() {
                replace(&path, part)?;
                is_new = true;
            }
            names.push(name);
            part.clear();
            Ok(())
        };
        loop {
            let page = self.documents.list(after.as_deref(), PAGE).map_err(unreadable)?;
            let Some(last) = page.last() else { break };
            after = Some(last.id.clone());
            for document in page {
                let hash = blake3::hash(document.id.as_bytes()).as_bytes()[0];
                serde_json::to_writer(&mut part, &document).map_err(std::io::Error::from)?;
                part.push(b'\n');
                if part.len() >= SIZES.1 || part.len() >= SIZES.0 && hash.is_multiple_of(ENDS) {
                    end(&mut part)?;
                }
            }
        }
        if !part.is_empty() {
            end(&mut part)?;
        }
        if is_new {
            sync_directory(&directory)?;
        }
        Ok(names)
    }

    fn remove_others(&self, parts: &[String]) -> Result<(), StoreError> {
        let named: BTreeSet<&str> = parts.iter().map(String::as_str).collect();
        for entry in std::fs::read_dir(self.directory.join(PART.directory))? {
            let entry = entry?;
            let is_named = entry.file_name().to_str().is_some_and(|name| named.contains(name));
            if !is_named && entry.file_type()?.is_file() {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Puts the documents that were restored into the directory into the store. Blocks. Returns their number.
    ///
    /// # Errors
    ///
    /// A file is damaged, or the store cannot be written.
    pub fn restore(&self) -> Result<usize, StoreError> {
        let damaged = |what: &Path, error: serde_json::Error| {
            StoreError::Damaged(format!("`{}` cannot be read: {error}", what.display()))
        };
        let list = self.directory.join(LIST);
        let parts: Vec<String> =
            serde_json::from_slice(&std::fs::read(&list)?).map_err(|error| damaged(&list, error))?;
        let (mut restored, mut waiting, mut bytes) = (0, Vec::new(), 0);
        let put = |documents: &mut Vec<StoredDocument>| {
            self.documents.put(std::mem::take(documents)).map(drop).map_err(unreadable)
        };
        for part in parts {
            let path = self.directory.join(PART.directory).join(part);
            for line in std::fs::read(&path)?.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let document: StoredDocument = serde_json::from_slice(line).map_err(|error| damaged(&path, error))?;
                bytes += document.text.len();
                waiting.push(document);
                restored += 1;
                if bytes >= RESTORED {
                    put(&mut waiting)?;
                    bytes = 0;
                }
            }
        }
        put(&mut waiting)?;
        Ok(restored)
    }
}

fn unreadable(error: ConnectorError) -> StoreError {
    StoreError::Local(std::io::Error::other(error.to_string()))
}
