//! One run writes a file: what it appends to is claimed by a lock on a hidden file beside it
//! (`.answers.jsonl.lock`), which stays where it is when the file itself is rotated away.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A file that this run alone writes; let go when the last holder is.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// `None` where files cannot be locked.
    _lock: Option<File>,
    /// The file itself, if it was there: another name of it (a hard link) is claimed with it.
    _file: Option<File>,
}

impl Claim {
    /// The file that is claimed.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Why a file cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another run writes it.
    #[error("another run of turnflow writes it")]
    InUse,
    /// The lock's file cannot be used.
    #[error("cannot lock `{path}`: {source}")]
    Io {
        /// The lock's file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// The files that a run has claimed. A sink that takes the place of another of the same file, as a
/// reload brings it, shares its claim.
#[derive(Debug, Default)]
pub struct Claims(Mutex<HashMap<PathBuf, Weak<Claim>>>);

impl Claims {
    /// Claims the file at `path`, which may not be there yet. `None` for what is no file: a pipe or
    /// a device may have many writers.
    ///
    /// # Errors
    ///
    /// Another run has claimed it, or its directory cannot be written.
    pub fn claim(&self, path: &Path) -> Result<Option<Arc<Claim>>, ClaimError> {
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(None);
        }
        let path = real(path);
        let mut claims = self.0.lock();
        claims.retain(|_, claim| claim.strong_count() > 0);
        if let Some(claim) = claims.get(&path).and_then(Weak::upgrade) {
            return Ok(Some(claim));
        }
        let lock_path = lock_of(&path);
        let failed = |source| ClaimError::Io { path: lock_path.clone(), source };
        if let Some(directory) = lock_path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path).map_err(failed)?;
        let lock = locked(lock, &path)?;
        let file = match OpenOptions::new().append(true).create(true).open(&path) {
            Ok(file) => locked(file, &path)?,
            // Opening the sink tells why.
            Err(_) => None,
        };
        let claim = Arc::new(Claim { path: path.clone(), _lock: lock, _file: file });
        claims.insert(path, Arc::downgrade(&claim));
        Ok(Some(claim))
    }
}

fn locked(file: File, of: &Path) -> Result<Option<File>, ClaimError> {
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(ClaimError::InUse),
        Err(TryLockError::Error(error)) => {
            tracing::warn!(%error, file = %of.display(),
                "this file system has no locks: nothing keeps another run from writing the same file");
            Ok(None)
        }
    }
}

/// The same for all names of a file.
pub(crate) fn real(path: &Path) -> PathBuf {
    real_within(path, LINKS)
}

/// Symbolic links that are followed to a file that is not there yet.
const LINKS: u32 = 40;

fn real_within(path: &Path, links: u32) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    if let (Some(links), Ok(target)) = (links.checked_sub(1), fs::read_link(path)) {
        return real_within(&path.parent().unwrap_or(Path::new("")).join(target), links);
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (directory.canonicalize(), path.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        _ => path.to_owned(),
    }
}

fn lock_of(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".lock");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_claimed_by_one_run_under_all_of_its_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.jsonl");
        let (one, other) = (Claims::default(), Claims::default());
        let claim = one.claim(&path).unwrap().unwrap();
        assert!(matches!(other.claim(&path), Err(ClaimError::InUse)));
        // Rotated away, and known by a roundabout name.
        fs::write(&path, "x").unwrap();
        fs::rename(&path, directory.path().join("a.jsonl.1")).unwrap();
        assert!(matches!(other.claim(&path), Err(ClaimError::InUse)));
        fs::write(&path, "x").unwrap();
        let around = directory.path().join("../").join(directory.path().file_name().unwrap()).join("a.jsonl");
        assert!(matches!(other.claim(&around), Err(ClaimError::InUse)));
        // A reload has the old sink and the new one side by side.
        let again = one.claim(&around).unwrap().unwrap();
        assert!(Arc::ptr_eq(&claim, &again));
        // A link to a file that is not there yet.
        let later = directory.path().join("later.jsonl");
        std::os::unix::fs::symlink("later.jsonl", directory.path().join("link-to-later")).unwrap();
        let claim_of_later = one.claim(&directory.path().join("link-to-later")).unwrap().unwrap();
        assert!(matches!(other.claim(&later), Err(ClaimError::InUse)));
        drop(claim_of_later);
        // A hard link is another name of the same file, in this run too.
        fs::hard_link(&path, directory.path().join("link.jsonl")).unwrap();
        drop((claim, again));
        let claim = one.claim(&path).unwrap().unwrap();
        for run in [&one, &other] {
            assert!(matches!(run.claim(&directory.path().join("link.jsonl")), Err(ClaimError::InUse)));
        }
        drop(claim);
        assert!(other.claim(&path).unwrap().is_some());
        assert!(other.claim(Path::new("/dev/null")).unwrap().is_none());
    }
}
