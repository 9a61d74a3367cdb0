//! tantivy's directory without waits for the disk.
//!
//! A commit writes some ten small files and waits for the disk after each, which takes most of the time from a change
//! of the corpus to its epoch. Data that a killed process has written is in the operating system's cache and survives.
//! Only a machine failure can lose it; checksums detect the damage when the index is opened, and the index is rebuilt
//! from the corpus.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tantivy::directory::error::{DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, Lock, MmapDirectory, TerminatingWrite, WatchCallback,
    WatchHandle, WritePtr,
};

/// Reads like tantivy's own directory.
#[derive(Clone, Debug)]
pub(super) struct Unsynced {
    mapped: MmapDirectory,
    root: PathBuf,
}

impl Unsynced {
    pub fn open(root: &Path) -> Result<Self, OpenDirectoryError> {
        Ok(Self { mapped: MmapDirectory::open(root)?, root: root.to_owned() })
    }
}

/// A file that is complete once it is flushed.
struct Flushed(File);

impl Write for Flushed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl TerminatingWrite for Flushed {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        self.0.flush()
    }
}

impl Directory for Unsynced {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.mapped.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.mapped.delete(path)?;
        // tantivy remembers every file that it has mapped, and forgets deleted files only when its cache info is
        // requested.
        self.mapped.get_cache_info();
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.mapped.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        let full = self.root.join(path);
        let create = || OpenOptions::new().write(true).create_new(true).open(&full);
        let opened = match create() {
            // A process that was killed before it committed wrote this file. Names are derived from the last commit, so
            // they recur. Readers of the old file hold it open.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(&full).and_then(|()| create())
            }
            other => other,
        };
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => OpenWriteError::FileAlreadyExists(path.to_owned()),
            _ => OpenWriteError::wrap_io_error(error, path.to_owned()),
        })?;
        Ok(BufWriter::new(Box::new(Flushed(file))))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.mapped.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let path = self.root.join(path);
        let mut new = path.clone().into_os_string();
        new.push(".new");
        std::fs::write(&new, data)?;
        std::fs::rename(&new, path)
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.mapped.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.mapped.watch(callback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_once_and_read_back() {
        let root = tempfile::tempdir().unwrap();
        let directory = Unsynced::open(root.path()).unwrap();
        let mut file = directory.open_write(Path::new("a")).unwrap();
        file.write_all(b"one").unwrap();
        file.terminate().unwrap();
        assert_eq!(&*directory.open_read(Path::new("a")).unwrap().read_bytes().unwrap(), b"one");
        // The same name recurs, as after a kill.
        let mut file = directory.open_write(Path::new("a")).unwrap();
        file.write_all(b"two").unwrap();
        file.terminate().unwrap();
        assert_eq!(&*directory.open_read(Path::new("a")).unwrap().read_bytes().unwrap(), b"two");
        for data in [b"two", b"six"] {
            directory.atomic_write(Path::new("b"), data).unwrap();
            assert_eq!(directory.atomic_read(Path::new("b")).unwrap(), data);
        }
    }
}
