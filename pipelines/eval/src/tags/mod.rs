//! Tags: named past versions of a corpus's documents. The state directory has one Lance dataset per
//! corpus, whose versions are tagged.
//!
//! Indexes keep only the current documents. A tag keeps documents, which can be indexed again at any
//! time; encodings that the state directory still has are not computed again. A new version stores
//! only the changes since the previous one.

mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, FixedSizeBinaryArray, LargeStringArray, RecordBatch, RecordBatchIterator, StringArray};
use arrow_schema::{DataType, Field, Schema};
use futures::TryStreamExt;
use turnflow_engine::component::CorpusSourceConfig;
use turnflow_engine::connector::ConnectorError;
use turnflow_engine::document::{Document, Markup};
use turnflow_engine::plan::Plan;
use turnflow_engine::state::file_name;
use turnflow_tables::{Mode, Table};

use self::source::Tagged;
pub use self::source::read;

/// Documents per write.
const AT_ONCE: usize = 4096;

/// Why a tag cannot be created or read.
#[derive(Debug, thiserror::Error)]
pub enum TagError {
    /// The corpus has no such tag.
    #[error("corpus `{corpus}` has no tag `{tag}`{}", known(tags))]
    Unknown {
        /// The corpus.
        corpus: String,
        /// The requested tag.
        tag: String,
        /// The existing tags.
        tags: Vec<String>,
    },
    /// The tag exists already.
    #[error("corpus `{corpus}` already has a tag `{tag}`: choose another name, or --remove it first")]
    Taken {
        /// The corpus.
        corpus: String,
        /// Its name.
        tag: String,
    },
    /// The name is invalid.
    #[error("`{0}` cannot be a tag: a tag consists of letters, digits, `-`, `_` and, between them, `.`")]
    Name(String),
    /// Another process changes tags.
    #[error("another `turnflow tag` is running on `{}`", .0.display())]
    Busy(PathBuf),
    /// The store failed.
    #[error("cannot {action} in `{path}`: {reason}")]
    Store {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The dataset.
        path: PathBuf,
        /// Lance's error.
        reason: String,
    },
    /// The corpus cannot be read.
    #[error("corpus `{corpus}`: {source}")]
    Read {
        /// The corpus.
        corpus: String,
        /// Why.
        source: ConnectorError,
    },
}

fn known(tags: &[String]) -> String {
    match tags {
        [] => ": it has none; `turnflow tag` creates one".to_owned(),
        tags => format!("; it has {}", tags.iter().map(|tag| format!("`{tag}`")).collect::<Vec<_>>().join(", ")),
    }
}

/// A tag of a corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Its name.
    pub name: String,
    /// The dataset's version.
    pub version: u64,
    /// Creation time, in RFC 3339 format.
    pub made: String,
}

/// The tagged documents of one corpus.
pub struct Tags {
    corpus: String,
    path: PathBuf,
}

/// The document counts of a new version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Documents in the version.
    pub documents: usize,
    /// Documents written: new or changed.
    pub written: usize,
    /// Documents removed since the previous version.
    pub gone: usize,
}

type Hash = [u8; 32];

fn hash(document: &Document) -> Hash {
    let mut hasher = blake3::Hasher::new();
    // Without metadata, the hash is that of earlier versions of turnflow.
    let fields = fields(document);
    let parts = [&*document.title, &*document.text, markup(document.markup)];
    for part in parts.into_iter().chain(fields.as_deref()) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// The metadata as JSON; `None` if there is none.
fn fields(document: &Document) -> Option<String> {
    (!document.metadata.is_empty()).then(|| serde_json::Value::Object(document.metadata.to_json()).to_string())
}

fn markup(markup: Markup) -> &'static str {
    match markup {
        Markup::Plain => "plain",
        Markup::Markdown => "markdown",
    }
}

impl Tags {
    /// The tags of a corpus in a state directory.
    pub fn of(state: &Path, corpus: &str) -> Self {
        let path = state.join("documents").join(format!("{}.lance", file_name(corpus)));
        Self { corpus: corpus.to_owned(), path }
    }

    fn failed(&self, action: &'static str) -> impl Fn(turnflow_tables::Error) -> TagError {
        let path = self.path.clone();
        move |error| TagError::Store { action, path: path.clone(), reason: error.to_string() }
    }

    async fn open(&self) -> Result<Option<Table>, TagError> {
        if !self.path.exists() {
            return Ok(None);
        }
        match Table::open(&self.path.to_string_lossy()).await {
            Ok(dataset) => Ok(Some(dataset)),
            // A process was killed while it wrote the first version.
            Err(turnflow_tables::Error::DatasetNotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("open the documents")(error)),
        }
    }

    /// All tags, oldest first.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn list(&self) -> Result<Vec<Tag>, TagError> {
        let Some(dataset) = self.open().await? else { return Ok(Vec::new()) };
        let tags = dataset.tags().await.map_err(self.failed("read the tags"))?;
        let mut tags: Vec<Tag> = tags
            .into_iter()
            .map(|turnflow_tables::Tag { name, version, created }| {
                let made = created.map_or_else(String::new, |at| at.format("%Y-%m-%dT%H:%M:%SZ").to_string());
                Tag { name, version, made }
            })
            .collect();
        tags.sort_by(|a, b| (&a.made, a.version, &a.name).cmp(&(&b.made, b.version, &b.name)));
        Ok(tags)
    }

    /// Checks that a tag with this name can be created.
    ///
    /// # Errors
    ///
    /// The name is invalid, or the tag exists already.
    pub async fn is_free(&self, name: &str) -> Result<(), TagError> {
        let allowed = name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
        let dots = name.starts_with('.') || name.ends_with('.') || name.contains("..");
        if name.is_empty() || !allowed || dots || name.ends_with(".lock") {
            return Err(TagError::Name(name.to_owned()));
        }
        if self.list().await?.iter().any(|tag| tag.name == name) {
            return Err(TagError::Taken { corpus: self.corpus.clone(), tag: name.to_owned() });
        }
        Ok(())
    }

    /// Stores documents as a new version with this tag.
    ///
    /// # Errors
    ///
    /// The name is invalid, the tag exists already, or the store cannot be written.
    pub async fn keep(&self, name: &str, documents: &BTreeMap<Arc<str>, Document>) -> Result<Kept, TagError> {
        self.is_free(name).await?;
        let mut dataset = self.open().await?;
        // An earlier version of turnflow wrote no metadata: the documents are written again. Its tags stay.
        let is_old = dataset.as_ref().is_some_and(|dataset| !dataset.has_column("metadata"));
        let before = match &dataset {
            Some(dataset) if !is_old => self.hashes(dataset).await?,
            _ => BTreeMap::new(),
        };
        let new: Vec<(&Arc<str>, &Document, Hash)> = documents
            .iter()
            .map(|(id, document)| (id, document, hash(document)))
            .filter(|(id, _, hash)| before.get(&***id) != Some(hash))
            .collect();
        let gone = before.keys().filter(|id| !documents.contains_key(id.as_str())).count();
        let changed: BTreeSet<&str> = new.iter().map(|(id, ..)| &***id).collect();
        let is_stale = |id: &&String| !documents.contains_key(id.as_str()) || changed.contains(id.as_str());
        let stale: HashSet<&str> = before.keys().filter(is_stale).map(String::as_str).collect();
        if let Some(dataset) = &mut dataset {
            dataset.delete("id", &stale).await.map_err(self.failed("remove documents"))?;
        }
        if !new.is_empty() || dataset.is_none() || is_old {
            let schema = schema();
            let mut batches: Vec<_> = new.chunks(AT_ONCE).map(|part| batch(&schema, part)).collect();
            if batches.is_empty() {
                batches.push(Ok(RecordBatch::new_empty(schema.clone())));
            }
            let batches = Box::new(RecordBatchIterator::new(batches, schema));
            match &mut dataset {
                Some(dataset) if !is_old => {
                    dataset.append(batches).await.map_err(self.failed("add documents"))?;
                }
                known => {
                    let uri = self.path.to_string_lossy();
                    let mode = if known.is_some() { Mode::Overwrite } else { Mode::Create };
                    let written = Table::write(&uri, batches, mode).await;
                    dataset = Some(written.map_err(self.failed("write documents"))?);
                }
            }
        }
        if let Some(dataset) = &dataset {
            dataset.tag(name).await.map_err(self.failed("name a version"))?;
        }
        Ok(Kept { documents: documents.len(), written: new.len(), gone })
    }

    /// Removes a tag and the documents that only it contains. The newest version is kept, since the next
    /// one is based on it. Removing the last tag deletes all documents.
    ///
    /// # Errors
    ///
    /// The tag does not exist, or the store cannot be written.
    pub async fn remove(&self, name: &str) -> Result<(), TagError> {
        self.known(name).await?;
        let Some(dataset) = self.open().await? else { return Ok(()) };
        dataset.untag(name).await.map_err(self.failed("remove a tag"))?;
        if self.list().await?.is_empty() {
            let removed = std::fs::remove_dir_all(&self.path).map_err(|error| error.to_string());
            let action = "remove the documents";
            return removed.map_err(|reason| TagError::Store { action, path: self.path.clone(), reason });
        }
        dataset.remove_old_versions(false).await.map_err(self.failed("remove old versions"))
    }

    async fn known(&self, name: &str) -> Result<Tag, TagError> {
        let tags = self.list().await?;
        let names = tags.iter().map(|tag| tag.name.clone()).collect();
        let tag = tags.into_iter().find(|tag| tag.name == name);
        tag.ok_or_else(|| TagError::Unknown { corpus: self.corpus.clone(), tag: name.to_owned(), tags: names })
    }

    async fn hashes(&self, dataset: &Table) -> Result<BTreeMap<String, Hash>, TagError> {
        let mut batches = dataset.scan(Some(&["id", "hash"])).await.map_err(self.failed("read the documents"))?;
        let mut all = BTreeMap::new();
        while let Some(batch) = batches.try_next().await.map_err(self.failed("read the documents"))? {
            let (ids, hashes) = (batch.column(0).as_string::<i32>(), batch.column(1).as_fixed_size_binary());
            for at in 0..batch.num_rows() {
                if let Ok(hash) = hashes.value(at).try_into() {
                    all.insert(ids.value(at).to_owned(), hash);
                }
            }
        }
        Ok(all)
    }

    /// A source that reads the documents of a tag.
    async fn source(&self, name: &str) -> Result<Box<dyn CorpusSourceConfig>, TagError> {
        let Tag { name, version, .. } = self.known(name).await?;
        Ok(Box::new(Tagged { path: self.path.clone(), tag: name, version }))
    }
}

fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Utf8, false),
        Field::new("hash", DataType::FixedSizeBinary(32), false),
        Field::new("title", DataType::Utf8, false),
        Field::new("text", DataType::LargeUtf8, false),
        Field::new("markup", DataType::Utf8, false),
        Field::new("metadata", DataType::Utf8, true),
    ]))
}

fn batch(
    schema: &Arc<Schema>,
    documents: &[(&Arc<str>, &Document, Hash)],
) -> Result<RecordBatch, arrow_schema::ArrowError> {
    let column = |of: fn(&Document) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(documents.iter().map(|(_, document, _)| of(document))))
    };
    let ids = StringArray::from_iter_values(documents.iter().map(|(id, ..)| id));
    let hashes = FixedSizeBinaryArray::try_from_iter(documents.iter().map(|(.., hash)| hash))?;
    let texts = LargeStringArray::from_iter_values(documents.iter().map(|(_, document, _)| &*document.text));
    let (titles, markups) = (column(|document| &document.title), column(|document| markup(document.markup)));
    let metadata = StringArray::from_iter(documents.iter().map(|(_, document, _)| fields(document)));
    let metadata: ArrayRef = Arc::new(metadata);
    let (ids, hashes, texts): (ArrayRef, ArrayRef, ArrayRef) = (Arc::new(ids), Arc::new(hashes), Arc::new(texts));
    let columns = vec![ids, hashes, titles, texts, markups, metadata];
    RecordBatch::try_new(schema.clone(), columns)
}

/// Takes the lock that keeps other processes from changing tags.
///
/// # Errors
///
/// Another process holds the lock, or the file cannot be created.
pub fn hold(state: &Path) -> Result<std::fs::File, TagError> {
    let directory = state.join("documents");
    let path = directory.join("lock");
    let failed = |error: std::io::Error| {
        let (path, reason) = (path.clone(), error.to_string());
        TagError::Store { action: "take the lock", path, reason }
    };
    std::fs::create_dir_all(&directory).map_err(failed)?;
    let lock = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(TagError::Busy(directory)),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Replaces the source of every corpus with its documents under a tag.
///
/// # Errors
///
/// A corpus does not have the tag.
pub async fn as_tagged(plan: &mut Plan, state: &Path, tag: &str) -> Result<(), TagError> {
    for corpus in &mut plan.corpora {
        corpus.source = Tags::of(state, &corpus.name).source(tag).await?;
    }
    Ok(())
}
