//! An embedded file of tables (redb), whose commits are whole or not there: for what outlives
//! the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use redb::Database;

use crate::append::sync_directory;
use crate::panics::{Panicked, caught};

/// Bytes of a file that are held in memory; redb's own default is 1 GiB.
const CACHE: usize = 16 << 20;

/// Why a file of tables cannot be used.
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
    /// What it says is none of what is put there.
    #[error("cannot read {what} in `{path}`: {source}")]
    Value {
        /// The file.
        path: PathBuf,
        /// What was looked for.
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
    /// What it says led its reader astray.
    #[error("`{path}` is damaged: reading it {source}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// With what.
        source: Panicked,
    },
}

impl DatabaseError {
    /// Whether the file is at fault, and not its disk, its permissions or the process.
    pub fn is_damage(&self) -> bool {
        use redb::Error as E;
        match self {
            Self::Damaged { .. } => true,
            Self::Read { source, .. } | Self::Write { source, .. } => matches!(
                **source,
                E::Corrupted(_) | E::TableTypeMismatch { .. } | E::TableIsMultimap(_) | E::TypeDefinitionChanged { .. }
            ),
            Self::Open { .. } | Self::Value { .. } => false,
        }
    }
}

/// Why a call of the store gave nothing.
enum Fault {
    Error(redb::Error),
    Panic(Panicked),
}

/// A file that is open.
pub(crate) struct Tables {
    path: PathBuf,
    /// What it holds, for messages.
    what: &'static str,
    /// Absent after a failed write, which makes redb refuse all that follows: opened again then.
    database: Mutex<Option<Arc<Database>>>,
}

impl Tables {
    /// Opens a file, which is made if it is not there. One that is damaged is put aside and
    /// begun anew.
    pub fn open(path: &Path, what: &'static str) -> Result<Self, DatabaseError> {
        let database = create(path, what)?;
        // Its name, too, is to outlive a loss of power.
        let directory = path.parent().unwrap_or(Path::new("."));
        sync_directory(directory).map_err(|error| DatabaseError::Open {
            path: path.to_owned(),
            source: redb::StorageError::Io(error).into(),
        })?;
        Ok(Self { path: path.to_owned(), what, database: Mutex::new(Some(Arc::new(database))) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn database(&self) -> Result<Arc<Database>, DatabaseError> {
        let mut database = self.database.lock();
        match &*database {
            Some(database) => Ok(database.clone()),
            None => Ok(database.insert(Arc::new(create(&self.path, self.what)?)).clone()),
        }
    }

    /// The open file, if a failed write has not closed it; for reads that can do without.
    pub fn current(&self) -> Option<Arc<Database>> {
        self.database.lock().clone()
    }

    /// Reads. After an error it is opened again, as redb refuses all that follows one.
    pub fn read<T>(&self, read: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, DatabaseError> {
        let path = self.path.clone();
        self.call(read)?.map_err(|source| DatabaseError::Read { path, source })
    }

    /// Reads or writes.
    pub fn change<T>(&self, change: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, DatabaseError> {
        let path = self.path.clone();
        self.call(change)?.map_err(|source| DatabaseError::Write { path, source })
    }

    fn call<T>(
        &self,
        call: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<Result<T, Box<redb::Error>>, DatabaseError> {
        let database = self.database()?;
        // What is damaged may lead redb anywhere, also when the last handle is let go of.
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

    /// Puts the file aside, as it is damaged; the next call begins a new one.
    pub fn put_aside(&self) -> std::io::Result<()> {
        self.close();
        // Held, so that nobody opens it meanwhile.
        let _database = self.database.lock();
        std::fs::rename(&self.path, aside(&self.path))
    }

    /// Gives what is free back to the disk; nobody else may have the file.
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

fn create(path: &Path, what: &str) -> Result<Database, DatabaseError> {
    let open = || {
        let opened = caught(|| {
            let mut database = Database::builder().set_cache_size(CACHE).create(path)?;
            // redb does not look at its checksums when it reads, and follows what is damaged without
            // end. All of the file is read for it, once a start.
            database.check_integrity()?;
            Ok(database)
        });
        // A panic is told as what redb says of what it finds to be wrong.
        opened.unwrap_or_else(|panic| Err(redb::StorageError::Corrupted(format!("redb {panic}")).into()))
    };
    match open() {
        // Also what a process that was killed while it made the file leaves.
        Err(error @ (redb::DatabaseError::Storage(_) | redb::DatabaseError::UpgradeRequired(_)))
            if is_damage(&error) && path.exists() =>
        {
            tracing::warn!(%error, path = %path.display(), "{what} cannot be read and is begun anew");
            let moved = std::fs::rename(path, aside(path));
            moved.map_err(redb::DatabaseError::from).and_then(|()| open())
        }
        other => other,
    }
    .map_err(|source| DatabaseError::Open { path: path.to_owned(), source })
}

/// Whether the file is at fault, and not its disk or its permissions.
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
        // One that is there and may not be used is left alone.
        let error = Tables::open(directory.path(), "a test").err().unwrap();
        assert!(matches!(error, DatabaseError::Open { .. }), "{error}");
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
