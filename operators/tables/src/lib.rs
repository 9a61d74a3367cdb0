//! Versioned tables of Arrow record batches: datasets in Lance's format. No other crate calls Lance.
//!
//! Lance's query engine is not used. This crate stands on Lance's data files (`lance-file`), its manifests and
//! transactions (`lance-table`) and its storage (`lance-io`). Other programs that read Lance can open the tables.
//!
//! A table is a directory: `data` has files of rows, `_deletions` the rows of them that are deleted, `_versions` a
//! *manifest* for each version, and `_transactions` what each version has changed. A version is committed by creating its
//! manifest, which fails if another writer has created it.
//!
//! Lance's asynchronous functions are compiled in the crate that awaits them, which takes long. Every function here
//! returns a boxed future and takes no type parameters, so that they are compiled once, in this crate.

mod clean;
mod commit;
mod compact;
mod delete;
mod file;
mod flat;
mod read;
mod tags;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::BoxStream;
pub use lance_core::{Error, Result};
use lance_table::format::Manifest;
use lance_table::io::commit::ManifestLocation;

use self::commit::Place;
pub use self::file::FileReader;
pub use self::flat::Flat;
pub use self::tags::Tag;

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

/// A table at one of its versions. Cheap to clone.
#[derive(Clone)]
pub struct Table {
    place: Place,
    manifest: Arc<Manifest>,
    location: ManifestLocation,
}

impl Table {
    /// Opens the newest version of the table at this path.
    ///
    /// # Errors
    ///
    /// There is no table, or it cannot be read.
    pub fn open(path: &str) -> BoxFuture<'_, Result<Self>> {
        async move { commit::open(Place::of(path)?).await }.boxed()
    }

    /// Writes a table: all rows of a new version.
    ///
    /// # Errors
    ///
    /// The table exists and the mode does not allow that, or it cannot be written.
    pub fn write(path: &str, batches: Batches, mode: Mode) -> BoxFuture<'_, Result<Self>> {
        async move { write::whole(Place::of(path)?, batches, mode).await }.boxed()
    }

    /// Adds rows in a new version.
    ///
    /// # Errors
    ///
    /// The columns differ, there is a newer version of the table ([`Error::CommitConflict`]), or it cannot be written.
    pub fn append(&mut self, batches: Batches) -> BoxFuture<'_, Result<()>> {
        async move { write::append(self, batches).await }.boxed()
    }

    /// Removes the rows that have one of these texts in a column, in a new version.
    ///
    /// # Errors
    ///
    /// There is no such column of texts, there is a newer version, or the table cannot be read or written.
    pub fn delete<'a>(&'a mut self, column: &'a str, texts: &'a HashSet<&'a str>) -> BoxFuture<'a, Result<()>> {
        async move { delete::rows(self, column, texts).await }.boxed()
    }

    /// Reads all rows in their order: these columns, or all.
    ///
    /// # Errors
    ///
    /// There is no such column, or the table cannot be read.
    pub fn scan<'a>(&'a self, columns: Option<&'a [&'a str]>) -> BoxFuture<'a, Result<BatchStream>> {
        async move { read::rows(self, columns) }.boxed()
    }

    /// Where the values of a column lie in the data files, in the order of the rows, if each is `width` bytes at a place
    /// of its own. `None` if any are compressed or deleted. The first `from` groups of data files are left out.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn flat<'a>(&'a self, column: &'a str, width: usize, from: usize) -> BoxFuture<'a, Result<Option<Vec<Flat>>>> {
        async move { flat::column(self, column, width, from).await }.boxed()
    }

    /// The version that this is.
    pub fn version(&self) -> u64 {
        self.manifest.version
    }

    /// Moves to the newest version.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn catch_up(&mut self) -> BoxFuture<'_, Result<()>> {
        async move {
            *self = commit::open(self.place.clone()).await?;
            Ok(())
        }
        .boxed()
    }

    /// The table at another version.
    ///
    /// # Errors
    ///
    /// The version is gone, or the table cannot be read.
    pub fn at(&self, version: u64) -> BoxFuture<'_, Result<Self>> {
        async move { commit::open_version(self.place.clone(), version).await }.boxed()
    }

    /// Whether the table has this column.
    pub fn has_column(&self, name: &str) -> bool {
        self.manifest.schema.field(name).is_some()
    }

    /// Number of groups of data files; each append adds one.
    pub fn fragments(&self) -> usize {
        self.manifest.fragments.len()
    }

    /// Merges small files into files of this many rows. Files that have so many rows already are not rewritten, and come
    /// before the others then.
    ///
    /// # Errors
    ///
    /// The table cannot be read or written, or there is a newer version.
    pub fn compact(&mut self, rows: usize) -> BoxFuture<'_, Result<()>> {
        async move { compact::files(self, rows).await }.boxed()
    }

    /// Removes all versions but the newest and the tagged ones, and all files that these do not need. No other process
    /// may read or write the table.
    ///
    /// # Errors
    ///
    /// The table cannot be read or written. With `refuse_tagged`, also that an old version has a tag.
    pub fn remove_old_versions(&self, refuse_tagged: bool) -> BoxFuture<'_, Result<()>> {
        async move { clean::old_versions(self, refuse_tagged).await }.boxed()
    }

    /// All tags, in no particular order.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn tags(&self) -> BoxFuture<'_, Result<Vec<Tag>>> {
        async move { tags::all(&self.place).await }.boxed()
    }

    /// Tags this version.
    ///
    /// # Errors
    ///
    /// The tag exists already, its name is invalid, or the table cannot be written.
    pub fn tag<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        async move { tags::add(self, name).await }.boxed()
    }

    /// Removes a tag.
    ///
    /// # Errors
    ///
    /// There is no such tag, or the table cannot be written.
    pub fn untag<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        async move { tags::remove(&self.place, name).await }.boxed()
    }
}
