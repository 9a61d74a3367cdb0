//! Versioned tables of Arrow record batches, stored in Lance. No other crate calls Lance.
//!
//! Lance's asynchronous functions are compiled in the crate that awaits them, which takes minutes. Every function here
//! returns a boxed future and takes no type parameters, so that they are compiled once, in this crate.

mod file;

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::dataset::optimize::{CompactionOptions, compact_files};
use lance::dataset::{WriteMode, WriteParams};
use lance::session::Session;
pub use lance::{Error, Result};

pub use self::file::FileReader;

/// Record batches to write.
pub type Batches = Box<dyn RecordBatchReader + Send>;
/// Record batches that are read.
pub type BatchStream = BoxStream<'static, Result<RecordBatch>>;

/// What writing does to a table that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is an error.
    Create,
    /// A new version has only the new rows.
    Overwrite,
}

/// Caches of the tables' files. Tables that share them read a file once.
#[derive(Clone)]
pub struct Caches(Arc<Session>);

impl Caches {
    /// Empty caches of at most this many bytes: once for indexes, once for metadata.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Session::new(bytes, bytes, Arc::default())))
    }
}

/// A tag: a name for a version, which is then kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Its name.
    pub name: String,
    /// The version.
    pub version: u64,
    /// Creation time.
    pub created: Option<chrono::DateTime<chrono::Utc>>,
}

/// A table at one of its versions.
#[derive(Clone)]
pub struct Table(Dataset);

impl Table {
    /// Opens the newest version of the table at this path.
    ///
    /// # Errors
    ///
    /// There is no table, or it cannot be read.
    pub fn open<'a>(path: &'a str, caches: Option<&Caches>) -> BoxFuture<'a, Result<Self>> {
        let session = caches.map(|caches| caches.0.clone());
        async move {
            let mut builder = DatasetBuilder::from_uri(path);
            if let Some(session) = session {
                builder = builder.with_session(session);
            }
            Ok(Self(builder.load().await?))
        }
        .boxed()
    }

    /// Writes a table: all rows of a new version.
    ///
    /// # Errors
    ///
    /// The table exists and the mode does not allow that, or it cannot be written.
    pub fn write<'a>(
        path: &'a str,
        batches: Batches,
        mode: Mode,
        caches: Option<&Caches>,
    ) -> BoxFuture<'a, Result<Self>> {
        let mode = match mode {
            Mode::Create => WriteMode::Create,
            Mode::Overwrite => WriteMode::Overwrite,
        };
        let session = caches.map(|caches| caches.0.clone());
        let parameters = WriteParams { mode, session, ..WriteParams::default() };
        async move { Ok(Self(Dataset::write(batches, path, Some(parameters)).await?)) }.boxed()
    }

    /// Adds rows in a new version.
    ///
    /// # Errors
    ///
    /// The columns differ, another process has replaced the rows, or the table cannot be written.
    pub fn append(&mut self, batches: Batches) -> BoxFuture<'_, Result<()>> {
        async move { self.0.append(batches, None).await }.boxed()
    }

    /// Removes the rows that an SQL predicate selects.
    ///
    /// # Errors
    ///
    /// The predicate is invalid, or the table cannot be written.
    pub fn delete<'a>(&'a mut self, predicate: &'a str) -> BoxFuture<'a, Result<()>> {
        async move { self.0.delete(predicate).await.map(drop) }.boxed()
    }

    /// Reads all rows: these columns, or all.
    ///
    /// # Errors
    ///
    /// There is no such column, or the table cannot be read.
    pub fn scan<'a>(&'a self, columns: Option<&'a [&'a str]>) -> BoxFuture<'a, Result<BatchStream>> {
        async move {
            let mut scan = self.0.scan();
            if let Some(columns) = columns {
                scan.project(columns)?;
            }
            Ok(scan.try_into_stream().await?.into_stream().boxed())
        }
        .boxed()
    }

    /// The version that this is.
    pub fn version(&self) -> u64 {
        self.0.version_id()
    }

    /// Moves to the newest version.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn catch_up(&mut self) -> BoxFuture<'_, Result<()>> {
        async move { self.0.checkout_latest().await }.boxed()
    }

    /// The table at another version.
    ///
    /// # Errors
    ///
    /// The version is gone, or the table cannot be read.
    pub fn at(&self, version: u64) -> BoxFuture<'_, Result<Self>> {
        async move { Ok(Self(self.0.checkout_version(version).await?)) }.boxed()
    }

    /// Whether the table has this column.
    pub fn has_column(&self, name: &str) -> bool {
        self.0.schema().field(name).is_some()
    }

    /// Number of groups of data files; each append adds one.
    pub fn fragments(&self) -> usize {
        self.0.fragments().len()
    }

    /// Merges small files into files of this many rows. Files that have so many rows already are not rewritten.
    ///
    /// # Errors
    ///
    /// The table cannot be read or written.
    pub fn compact(&mut self, rows: usize) -> BoxFuture<'_, Result<()>> {
        let options = CompactionOptions { target_rows_per_fragment: rows, ..CompactionOptions::default() };
        async move { compact_files(&mut self.0, options, None).await.map(drop) }.boxed()
    }

    /// Removes all versions but the newest and the tagged ones. No other process may read the table.
    ///
    /// # Errors
    ///
    /// The table cannot be read or written. With `refuse_tagged`, also that an old version has a tag.
    pub fn remove_old_versions(&self, refuse_tagged: bool) -> BoxFuture<'_, Result<()>> {
        let cleaned = self.0.cleanup_old_versions(chrono::TimeDelta::zero(), Some(true), Some(refuse_tagged));
        async move { cleaned.await.map(drop) }.boxed()
    }

    /// All tags, in no particular order.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn tags(&self) -> BoxFuture<'_, Result<Vec<Tag>>> {
        async move {
            let tags = self.0.tags().list().await?;
            Ok(tags.into_iter().map(|(name, of)| Tag { name, version: of.version, created: of.created_at }).collect())
        }
        .boxed()
    }

    /// Tags this version.
    ///
    /// # Errors
    ///
    /// The tag exists already, its name is invalid, or the table cannot be written.
    pub fn tag<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        async move { self.0.tags().create(name, self.version()).await }.boxed()
    }

    /// Removes a tag.
    ///
    /// # Errors
    ///
    /// There is no such tag, or the table cannot be written.
    pub fn untag<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        async move { self.0.tags().delete(name).await }.boxed()
    }
}
