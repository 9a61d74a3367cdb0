//! Claims ensure that only one run writes a file. A claim is a lock on a hidden file next to it
//! (`.answers.jsonl.lock`), which stays in place when the file itself is rotated.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A file that only this run writes. The claim is released when its last holder drops it.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// `None` where files cannot be locked.
    _lock: Option<File>,
    /// A lock on the file itself, so that its other names (hard links) are claimed too.
    _file: Option<File>,
}

impl Claim {
    /// The claimed file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Why a file cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another run writes it.
    #[error("another run of turnflow is writing this file")]
    InUse,
    /// The lock file cannot be used.
    #[error("cannot lock `{path}`: {source}")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The files that a run has claimed. When a reload replaces a sink by another one of the same file,
/// both share one claim.
#[derive(Debug, Default)]
pub struct Claims(Mutex<HashMap<PathBuf, Weak<Claim>>>);

impl Claims {
    /// Claims the file at `path`, which need not exist yet. `None` if it is not a regular file: a pipe
    /// or a device may have many writers.
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
            // Opening the sink reports the error.
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
                "this file system does not support locks: another run may write the same file");
            Ok(None)
        }
    }
}

/// A canonical path: the same for all paths to a file.
pub fn real(path: &Path) -> PathBuf {
    real_within(path, LINKS)
}

/// Maximum number of symbolic links followed to a file that does not exist yet.
const LINKS: u32 = 40;

fn real_within(path: &Path, links: u32) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    if let (Some(links), Ok(target)) = (links.checked_sub(1), fs::read_link(path)) {
        return real_within(&path.parent().unwrap_or(Path::new("")).join(target), links);
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match path.file_name() {
        Some(name) => real_within(directory, links).join(name),
        None => path.to_owned(),
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
        // The file is rotated, then opened by an indirect path.
        fs::write(&path, "x").unwrap();
        fs::rename(&path, directory.path().join("a.jsonl.1")).unwrap();
        assert!(matches!(other.claim(&path), Err(ClaimError::InUse)));
        fs::write(&path, "x").unwrap();
        let around = directory.path().join("../").join(directory.path().file_name().unwrap()).join("a.jsonl");
        assert!(matches!(other.claim(&around), Err(ClaimError::InUse)));
        // During a reload, the old sink and the new one exist side by side.
        let again = one.claim(&around).unwrap().unwrap();
        assert!(Arc::ptr_eq(&claim, &again));
        // A link to a file that does not exist yet.
        let later = directory.path().join("later.jsonl");
        std::os::unix::fs::symlink("later.jsonl", directory.path().join("link-to-later")).unwrap();
        let claim_of_later = one.claim(&directory.path().join("link-to-later")).unwrap().unwrap();
        assert!(matches!(other.claim(&later), Err(ClaimError::InUse)));
        drop(claim_of_later);
        // Directories that do not exist yet.
        let deep = directory.path().join("../").join(directory.path().file_name().unwrap()).join("new/deep/a.jsonl");
        assert_eq!(real(&deep), directory.path().canonicalize().unwrap().join("new/deep/a.jsonl"));
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
