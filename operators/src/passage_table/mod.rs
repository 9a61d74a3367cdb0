//! The published passages of a corpus, in a Lance table beside its indexes.
//!
//! A row is a passage that a publication added, or the id of one that it removed; the last row of an id counts. Rows are
//! only appended, in a small data file for each publication. After some of these, the last files are merged, and after
//! much has changed, the table is written anew.
//!
//! The version has Lance's version, and the beginning of a hash of the corpus's definition and of all data files. Nothing is
//! synced: after a power loss, that hash does not match, or a file is gone, and the passages are not read.

mod read;
mod rows;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::spawn_blocking;
use turnflow_engine::component::{Delta, PassageStore, Upkeep};
use turnflow_engine::document::Chunk;
use turnflow_engine::keyed::Keyed;
use turnflow_engine::mapped::has_room;
use turnflow_engine::panics::caught_async;
use turnflow_engine::state::PASSAGES;
use turnflow_tables::{Mode, Table};

use self::read::{OfFile, Row, hash_of};
use self::rows::{COLUMNS, batches, bytes_of_all};
use crate::cores::on_all_cores;

/// Bits of a version that are Lance's.
const BITS: u32 = 24;
/// Bytes of a data file when the table is written anew, about: files are read by several cores.
const FILE_BYTES: u64 = 64 << 20;
/// Minimum and maximum number of rows in a data file.
const FILE_ROWS: std::ops::RangeInclusive<u64> = 1024..=1 << 17;
/// The last files are merged when there are so many.
const MERGED: usize = if cfg!(test) { 4 } else { 32 };
/// A file is merged with those after it unless it has so many times their rows.
const LARGER: usize = 4;
/// The table is written anew when rows that are not needed exceed those that are by this number.
const GARBAGE: usize = if cfg!(test) { 20 } else { 10_000 };

/// The name of the file that earlier versions had in the place of the table, and of a new one.
const FORMER: [&str; 2] = ["passages.log", "passages.log.new"];

/// Opens the table of a corpus. See [`turnflow_engine::component::OpenPassages`].
pub fn open(directory: &Path, definition: &str) -> Box<dyn PassageStore> {
    for former in FORMER {
        let _ = std::fs::remove_file(directory.join(former));
    }
    Box::new(PassageTable { path: directory.join(PASSAGES), definition: definition.to_owned(), stored: None })
}

/// The table of a corpus.
struct PassageTable {
    path: PathBuf,
    /// Passages of another definition of the corpus are not served.
    definition: String,
    stored: Option<Stored>,
}

/// A version of the table that has the published passages.
struct Stored {
    table: Table,
    /// A hash of each data file.
    files: Vec<blake3::Hash>,
    /// Number of passages.
    passages: usize,
    version: u64,
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn lance(error: turnflow_tables::Error) -> io::Error {
    io::Error::other(error)
}

/// The version of a table with these data files.
fn version_of(definition: &str, files: &[blake3::Hash], version: u64) -> io::Result<u64> {
    if version >= 1 << BITS {
        return Err(io::Error::other("the table has too many versions"));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(blake3::hash(definition.as_bytes()).as_bytes());
    for file in files {
        hasher.update(file.as_bytes());
    }
    let hash = hasher.finalize().as_bytes().first_chunk::<8>().map_or(0, |hash| u64::from_le_bytes(*hash));
    Ok(hash << BITS | version)
}

/// The first of the last files that are worth merging.
fn tail_of(rows: &[usize]) -> usize {
    let (mut from, mut sum) = (rows.len(), 0);
    while let Some(before) = from.checked_sub(1)
        && (sum == 0 || rows[before] <= LARGER * sum)
    {
        (from, sum) = (before, sum + rows[before].max(1));
    }
    from
}

/// Calls Lance, which may panic at what is damaged.
async fn caught<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    caught_async(|| work).await.unwrap_or_else(|panic| Err(io::Error::other(panic.to_string())))
}

impl PassageTable {
    fn uri(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// The table has these passages now. The first `known` of its data files are as before.
    async fn hold(&mut self, table: Table, mut files: Vec<blake3::Hash>, passages: usize) -> io::Result<()> {
        let new = table.files(files.len());
        let hashed = spawn_blocking(move || on_all_cores(&new, 1, |file| hash_of(file)));
        for hash in hashed.await.map_err(io::Error::other)? {
            files.push(hash?);
        }
        let version = version_of(&self.definition, &files, table.version())?;
        self.stored = Some(Stored { table, files, passages, version });
        Ok(())
    }

    async fn read_at(&mut self, version: u64) -> io::Result<Keyed<Arc<Chunk>>> {
        let uri = self.uri();
        let table = Table::open_version(&uri, version & ((1 << BITS) - 1)).await.map_err(lance)?;
        let places = table.places(&COLUMNS, 0).await.map_err(lance)?;
        let places = places.ok_or_else(|| invalid("the passages do not lie in the table as they should"))?;
        let read = spawn_blocking(move || on_all_cores(&places, 1, read::file));
        let read: io::Result<Vec<OfFile>> = read.await.map_err(io::Error::other)?.into_iter().collect();
        let (files, rows): (Vec<_>, Vec<_>) = read?.into_iter().map(|file| (file.hash, file.rows)).unzip();
        if version_of(&self.definition, &files, table.version())? != version {
            return Err(invalid("the table is another one, or damaged"));
        }
        // What was written after this epoch.
        table.remove_newer_versions().await.map_err(lance)?;
        let mut chunks = Keyed::with_capacity(rows.iter().map(Vec::len).sum());
        for row in rows.into_iter().flatten() {
            match row {
                Row::Added(chunk) => drop(chunks.insert(chunk)),
                Row::Removed(id) => drop(chunks.remove(&id)),
            }
        }
        self.stored = Some(Stored { table, files, passages: chunks.len(), version });
        Ok(chunks)
    }

    async fn write_all(&mut self, all: Vec<Arc<Chunk>>) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory)?;
        let (count, bytes) = (all.len() as u64, bytes_of_all(&all));
        if !has_room(directory, bytes)? {
            return Err(io::Error::other("the disk is nearly full"));
        }
        if self.stored.is_none() {
            self.clear();
        }
        let rows = (FILE_BYTES / (bytes / count.max(1)).max(1)).clamp(*FILE_ROWS.start(), *FILE_ROWS.end());
        let (uri, passages) = (self.uri(), all.len());
        let batches = batches(Vec::new(), all)?;
        let table = Table::write_files(&uri, batches, Mode::Overwrite, rows as usize).await.map_err(lance)?;
        self.hold(table, Vec::new(), passages).await
    }

    async fn append_all(&mut self, delta: Delta) -> io::Result<()> {
        let Some(Stored { mut table, files, passages, .. }) = self.stored.take() else { return Ok(()) };
        let passages = (passages + delta.added.len()).saturating_sub(delta.removed.len());
        table.append(batches(delta.removed, delta.added)?).await.map_err(lance)?;
        self.hold(table, files, passages).await
    }

    async fn merge(&mut self) -> io::Result<()> {
        let Some(Stored { mut table, mut files, passages, .. }) = self.stored.take() else { return Ok(()) };
        let from = tail_of(&table.rows_of_fragments());
        table.merge(from, *FILE_ROWS.end() as usize).await.map_err(lance)?;
        files.truncate(from);
        self.hold(table, files, passages).await
    }
}

impl PassageStore for PassageTable {
    fn version(&self) -> Option<u64> {
        self.stored.as_ref().map(|stored| stored.version)
    }

    fn read(&mut self, version: u64) -> BoxFuture<'_, io::Result<Keyed<Arc<Chunk>>>> {
        caught(self.read_at(version)).boxed()
    }

    fn append(&mut self, delta: Delta) -> BoxFuture<'_, io::Result<()>> {
        async move {
            let appended = caught(self.append_all(delta)).await;
            appended.inspect_err(|_| self.clear())
        }
        .boxed()
    }

    fn upkeep(&self) -> Option<Upkeep> {
        let Some(Stored { table, passages, .. }) = &self.stored else { return Some(Upkeep::WriteAll) };
        let rows = table.rows_of_fragments();
        if rows.iter().sum::<usize>() > 2 * passages + GARBAGE {
            return Some(Upkeep::WriteAll);
        }
        (rows.len() - tail_of(&rows) >= MERGED).then_some(Upkeep::Merge)
    }

    fn maintain(&mut self, all: Option<Vec<Arc<Chunk>>>) -> BoxFuture<'_, io::Result<()>> {
        async move {
            let done = match all {
                Some(all) => caught(self.write_all(all)).await,
                None => caught(self.merge()).await,
            };
            done.inspect_err(|_| self.clear())
        }
        .boxed()
    }

    fn forget_earlier(&mut self) -> BoxFuture<'_, io::Result<()>> {
        async move {
            let Some(Stored { table, .. }) = &self.stored else { return Ok(()) };
            caught(async { table.remove_old_versions(false).await.map_err(lance) }).await
        }
        .boxed()
    }

    fn define(&mut self, definition: &str) {
        definition.clone_into(&mut self.definition);
        self.clear();
    }

    fn clear(&mut self) {
        self.stored = None;
        if let Err(error) = std::fs::remove_dir_all(&self.path)
            && error.kind() != io::ErrorKind::NotFound
            && error.kind() != io::ErrorKind::NotADirectory
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the table of passages");
        }
    }
}
