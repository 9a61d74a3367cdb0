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
mod places;
mod read;
mod tags;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::BoxStream;
pub use lance_core::{Error, Result};
use lance_table::format::Manifest;
use lance_table::io::commit::ManifestLocation;

use self::commit::Place;
pub use self::file::FileReader;
pub use self::places::{Page, Places, Values};
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

    /// Opens a version of the table at this path.
    ///
    /// # Errors
    ///
    /// There is no such version, or it cannot be read.
    pub fn open_version(path: &str, version: u64) -> BoxFuture<'_, Result<Self>> {
        async move { commit::open_version(Place::of(path)?, version).await }.boxed()
    }

    /// Writes a table: all rows of a new version.
    ///
    /// # Errors
    ///
    /// The table exists and the mode does not allow that, or it cannot be written.
    pub fn write(path: &str, batches: Batches, mode: Mode) -> BoxFuture<'_, Result<Self>> {
        Self::write_files(path, batches, mode, write::ROWS_A_FILE)
    }

    /// The same, with at most this many rows in a data file.
    ///
    /// # Errors
    ///
    /// As of [`Table::write`].
    pub fn write_files(path: &str, batches: Batches, mode: Mode, rows: usize) -> BoxFuture<'_, Result<Self>> {
        async move { write::whole(Place::of(path)?, batches, mode, rows).await }.boxed()
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

    /// Where the values of columns lie in the data files, in the order of the rows, if they are there as they are. `None` if
    /// any are compressed, deleted or null, or if there is no such column. The first `from` groups of data files are left
    /// out.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn places<'a>(&'a self, columns: &'a [&'a str], from: usize) -> BoxFuture<'a, Result<Option<Vec<Places>>>> {
        async move { places::columns(self, columns, from).await }.boxed()
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

    /// The data files from this group of them on: the first file of each.
    pub fn files(&self, from: usize) -> Vec<PathBuf> {
        let fragments = self.manifest.fragments.iter().skip(from);
        let paths = fragments.filter_map(|fragment| Some(self.place.file(write::DATA, &fragment.files.first()?.path)));
        paths.map(|path| PathBuf::from(lance_io::local::to_local_path(&path))).collect()
    }

    /// Number of rows of each group of data files, also of those that are deleted.
    pub fn rows_of_fragments(&self) -> Vec<usize> {
        self.manifest.fragments.iter().map(|fragment| fragment.physical_rows.unwrap_or(0)).collect()
    }

    /// Merges all data files from this group on into files of this many rows, in the same order.
    ///
    /// # Errors
    ///
    /// The table cannot be read or written, or there is a newer version.
    pub fn merge(&mut self, from: usize, rows: usize) -> BoxFuture<'_, Result<()>> {
        async move { compact::all_from(self, from, rows).await }.boxed()
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

    /// Removes all versions after this one, so that the next change is made to this one. No other process may read or write
    /// the table.
    ///
    /// # Errors
    ///
    /// The table cannot be read or written.
    pub fn remove_newer_versions(&self) -> BoxFuture<'_, Result<()>> {
        async move { clean::newer_versions(self).await }.boxed()
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
