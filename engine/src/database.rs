//! An embedded database file (redb) with atomic commits, for data that outlives the process.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use redb::Database;

use crate::append::sync_directory;
use crate::panics::{Panicked, caught};

/// The size of redb's pages, in bytes.
const PAGE: u64 = 4096;
/// The start of redb's files.
const MAGIC: &[u8; 4] = b"redb";
/// Page cache of a file, in bytes; redb's own default is 1 GiB.
const CACHE: usize = 16 << 20;

/// Why a database file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// It cannot be opened.
    #[error("cannot open `{path}`: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: redb::DatabaseError,
    },
    /// It cannot be read.
    #[error("cannot read `{path}`: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// A stored value cannot be decoded.
    #[error("cannot read {what} in `{path}`: {source}")]
    Value {
        /// The file.
        path: PathBuf,
        /// What was read.
        what: String,
        /// Why.
        source: serde_json::Error,
    },
    /// It cannot be written.
    #[error("cannot write `{path}`: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// Reading or writing it caused a panic.
    #[error("`{path}` is damaged: redb {source}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The panic.
        source: Panicked,
    },
    /// The file is damaged, and its contents exist nowhere else, so it is not replaced.
    #[error(
        "`{path}` is damaged: {source} (turnflow does not delete it: restore the file from a copy, or move it away \
         to start without its contents)"
    )]
    Kept {
        /// The file.
        path: PathBuf,
        /// The damage.
        source: redb::DatabaseError,
    },
}

impl DatabaseError {
    /// Whether the file itself is damaged, rather than its disk, permissions or the process failing.
    pub fn is_damage(&self) -> bool {
        use redb::Error as E;
        match self {
            Self::Damaged { .. } | Self::Kept { .. } => true,
            Self::Read { source, .. } | Self::Write { source, .. } => matches!(
                **source,
                E::Corrupted(_) | E::TableTypeMismatch { .. } | E::TableIsMultimap(_) | E::TypeDefinitionChanged { .. }
            ),
            Self::Open { .. } | Self::Value { .. } => false,
        }
    }
}

/// Why a call to redb failed.
enum Fault {
    Error(redb::Error),
    Panic(Panicked),
}

/// What happens to a damaged file.
#[derive(Clone, Copy)]
enum OnDamage {
    /// It is moved away and replaced by an empty one. The text names its contents in the warning.
    Replace(&'static str),
    /// It stays as it is, and opening it is an error.
    Keep,
    /// There is no file: the database is in memory.
    Memory,
}

/// An open database file.
pub struct Tables {
    path: PathBuf,
    on_damage: OnDamage,
    /// `None` after an error: redb refuses all calls after a failed write, so the file is opened again.
    database: Mutex<Option<Arc<Database>>>,
}

impl Tables {
    /// Opens a file; creates it if it does not exist. A damaged file is moved away and replaced by an
    /// empty one.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or created.
    pub fn open(path: &Path, what: &'static str) -> Result<Self, DatabaseError> {
        Self::open_as(path, OnDamage::Replace(what))
    }

    /// Like [`Tables::open`], for contents that exist nowhere else: a damaged file stays as it is and is
    /// an error, now and when the file is opened again later.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or created, or is damaged.
    pub fn open_kept(path: &Path) -> Result<Self, DatabaseError> {
        let failed = |source| DatabaseError::Open { path: path.to_owned(), source };
        if !path.try_exists().map_err(|error| failed(error.into()))? {
            begin(path).map_err(failed)?;
        }
        Self::open_as(path, OnDamage::Keep)
    }

    /// A database in memory. It is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// redb cannot create it.
    pub fn in_memory() -> Result<Self, DatabaseError> {
        let (path, on_damage) = (Path::new("a database in memory"), OnDamage::Memory);
        let database = Mutex::new(Some(Arc::new(create(path, on_damage)?)));
        Ok(Self { path: path.to_owned(), on_damage, database })
    }

    fn open_as(path: &Path, on_damage: OnDamage) -> Result<Self, DatabaseError> {
        let database = create(path, on_damage)?;
        // The file name must survive a power loss too.
        let directory = path.parent().unwrap_or(Path::new("."));
        sync_directory(directory).map_err(|error| DatabaseError::Open {
            path: path.to_owned(),
            source: redb::StorageError::Io(error).into(),
        })?;
        Ok(Self { path: path.to_owned(), on_damage, database: Mutex::new(Some(Arc::new(database))) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open database; opens it again after an error.
    ///
    /// # Errors
    ///
    /// The file cannot be opened again.
    pub fn database(&self) -> Result<Arc<Database>, DatabaseError> {
        let mut database = self.database.lock();
        match &*database {
            Some(database) => Ok(database.clone()),
            None => Ok(database.insert(Arc::new(create(&self.path, self.on_damage)?)).clone()),
        }
    }

    /// The database, unless an error has closed it; for optional reads.
    pub fn current(&self) -> Option<Arc<Database>> {
        self.database.lock().clone()
    }

    /// Reads. After an error the file is opened again, since redb refuses further calls.
    ///
    /// # Errors
    ///
    /// The file cannot be opened again or read.
    pub fn read<T>(&self, read: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, DatabaseError> {
        let path = self.path.clone();
        self.call(read)?.map_err(|source| DatabaseError::Read { path, source })
    }

    /// Reads or writes.
    ///
    /// # Errors
    ///
    /// The file cannot be opened again, read or written.
    pub fn change<T>(&self, change: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, DatabaseError> {
        let path = self.path.clone();
        self.call(change)?.map_err(|source| DatabaseError::Write { path, source })
    }

    fn call<T>(
        &self,
        call: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<Result<T, Box<redb::Error>>, DatabaseError> {
        let database = self.database()?;
        // A damaged file may make redb panic, also when the last handle is dropped.
        let called = caught(move || call(&database));
        let fault = match called {
            Ok(Ok(done)) => return Ok(Ok(done)),
            Ok(Err(error)) => Fault::Error(error),
            Err(panic) => Fault::Panic(panic),
        };
        self.close();
        match fault {
            Fault::Error(error) => Ok(Err(Box::new(error))),
            Fault::Panic(source) => Err(DatabaseError::Damaged { path: self.path.clone(), source }),
        }
    }

    fn close(&self) {
        let database = self.database.lock().take();
        let _ = caught(move || drop(database));
    }

    /// Moves the damaged file away; the next call creates a new one.
    ///
    /// # Errors
    ///
    /// The file cannot be renamed.
    pub fn put_aside(&self) -> std::io::Result<()> {
        self.close();
        // The lock keeps others from opening the file meanwhile.
        let _database = self.database.lock();
        std::fs::rename(&self.path, aside(&self.path))
    }

    /// Compacts the file. Does nothing if another handle is open.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn compact(&mut self) -> Result<(), DatabaseError> {
        let Some(database) = self.database.get_mut().as_mut().and_then(Arc::get_mut) else { return Ok(()) };
        let path = self.path.clone();
        let failed = |source: redb::CompactionError| DatabaseError::Write { path, source: Box::new(source.into()) };
        let damaged = |source| DatabaseError::Damaged { path: self.path.clone(), source };
        caught(|| database.compact()).map_err(damaged)?.map(drop).map_err(failed)
    }
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("redb.damaged")
}

/// Atomically creates an empty database at a path. A process that is killed meanwhile leaves no
/// file that looks damaged.
fn begin(path: &Path) -> Result<(), redb::DatabaseError> {
    let beside = path.with_extension("redb.new");
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    drop(Database::builder().set_cache_size(CACHE).create(&beside)?);
    // It has questions, answers or documents.
    #[cfg(unix)]
    std::fs::set_permissions(&beside, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(std::fs::rename(&beside, path)?)
}

/// Pads the last page of a file with zeros. redb treats a file with a partial page as damaged; a power loss may
/// leave one while the file grows, and nothing refers to that page yet.
fn whole_pages(path: &Path) -> Result<(), redb::StorageError> {
    let length = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() && metadata.len() > PAGE => metadata.len(),
        _ => return Ok(()),
    };
    if length.is_multiple_of(PAGE) {
        return Ok(());
    }
    let fill = || {
        let mut file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let mut start = [0; MAGIC.len()];
        file.read_exact(&mut start)?;
        if start == *MAGIC { file.set_len(length.next_multiple_of(PAGE)) } else { Ok(()) }
    };
    fill().map_err(redb::StorageError::Io)
}

fn create(path: &Path, on_damage: OnDamage) -> Result<Database, DatabaseError> {
    if matches!(on_damage, OnDamage::Memory) {
        let backend = redb::backends::InMemoryBackend::new();
        let failed = |source| DatabaseError::Open { path: path.to_owned(), source };
        return Database::builder().set_cache_size(CACHE).create_with_backend(backend).map_err(failed);
    }
    let open = || {
        whole_pages(path)?;
        let opened = caught(|| {
            let mut builder = Database::builder();
            builder.set_cache_size(CACHE);
            let mut database = match on_damage {
                OnDamage::Replace(_) => builder.create(path)?,
                // An empty file or no file is damage too.
                OnDamage::Keep | OnDamage::Memory => builder.open(path)?,
            };
            // redb does not verify checksums on reads and may loop forever on a damaged file. So the
            // whole file is verified once, at the start.
            let is_sound = database.check_integrity()?;
            if !is_sound && matches!(on_damage, OnDamage::Keep) {
                tracing::warn!(path = %path.display(), "the damaged file was repaired; compare it with a copy");
            }
            Ok(database)
        });
        // A panic is reported as corruption.
        opened.unwrap_or_else(|panic| Err(redb::StorageError::Corrupted(format!("redb {panic}")).into()))
    };
    match open() {
        // Also the case after a process was killed while it created the file.
        Err(error @ (redb::DatabaseError::Storage(_) | redb::DatabaseError::UpgradeRequired(_)))
            if is_damage(&error) && path.exists() =>
        {
            let what = match on_damage {
                OnDamage::Replace(what) => what,
                OnDamage::Keep | OnDamage::Memory => {
                    return Err(DatabaseError::Kept { path: path.to_owned(), source: error });
                }
            };
            tracing::warn!(%error, path = %path.display(), "{what} is unreadable; it is moved away and recreated");
            let moved = std::fs::rename(path, aside(path));
            moved.map_err(redb::DatabaseError::from).and_then(|()| open())
        }
        other => other,
    }
    .map_err(|source| DatabaseError::Open { path: path.to_owned(), source })
}

/// Whether the file itself is damaged, rather than its disk or permissions failing.
fn is_damage(error: &redb::DatabaseError) -> bool {
    match error {
        redb::DatabaseError::Storage(redb::StorageError::Io(error)) => {
            matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_no_tables_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("turns.redb");
        std::fs::write(&path, "not a store").unwrap();
        Tables::open(&path, "a test").unwrap().change(|database| Ok(database.begin_write()?.commit()?)).unwrap();
        assert_eq!(std::fs::read(directory.path().join("turns.redb.damaged")).unwrap(), b"not a store");
        // A path that exists but cannot be used is not touched.
        let error = Tables::open(directory.path(), "a test").err().unwrap();
        assert!(matches!(error, DatabaseError::Open { .. }), "{error}");
    }

    /// A power loss while the file grows may leave a part of a page.
    #[test]
    fn a_part_of_a_page_at_the_end_is_no_damage() {
        const TABLE: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("numbers");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.redb");
        let put = |number: u64| {
            let tables = Tables::open_kept(&path).unwrap();
            let put = |database: &Database| {
                let transaction = database.begin_write()?;
                transaction.open_table(TABLE)?.insert(number, &[7; 100_000][..])?;
                Ok(transaction.commit()?)
            };
            tables.change(put).unwrap();
        };
        put(1);
        for more in [1, 1000, 4096, 5000] {
            let length = std::fs::metadata(&path).unwrap().len();
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length + more).unwrap();
            put(more);
        }
        let tables = Tables::open_kept(&path).unwrap();
        let count = |database: &Database| {
            use redb::{ReadableDatabase as _, ReadableTableMetadata as _};
            Ok(database.begin_read()?.open_table(TABLE)?.len()?)
        };
        assert_eq!(tables.read(count).unwrap(), 4);
    }

    #[test]
    fn a_file_that_is_kept_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.redb");
        // A process was killed while it created the file.
        std::fs::write(path.with_extension("redb.new"), "half").unwrap();
        drop(Tables::open_kept(&path).unwrap());
        drop(Tables::open_kept(&path).unwrap());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        for damaged in ["", "not a store"] {
            std::fs::write(&path, damaged).unwrap();
            let error = Tables::open_kept(&path).err().unwrap();
            assert!(matches!(error, DatabaseError::Kept { .. }) && error.is_damage(), "{error}");
            assert!(error.to_string().contains("kept.redb"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn after_a_change_that_fails_it_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let tables = Tables::open(&directory.path().join("turns.redb"), "a test").unwrap();
        let full =
            |_: &Database| -> Result<(), redb::Error> { Err(redb::Error::Io(std::io::ErrorKind::StorageFull.into())) };
        let error = tables.change(full).unwrap_err().to_string();
        assert!(error.starts_with("cannot write `"), "{error}");
        tables.change(|database| Ok(database.begin_write()?.commit()?)).unwrap();
    }
}
