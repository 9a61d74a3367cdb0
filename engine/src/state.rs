//! The state directory: used by one process at a time, with a format version and one directory per index. It is for its
//! owner only, since it has all documents, questions and answers.

mod private;
mod torn;
mod written_by;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use self::written_by::Writer;
use crate::append::sync_directory;

/// The version of the directory's layout.
const FORMAT: &str = "turnflow state 1\n";

/// The table with the published passages of a corpus, beside the directories of its indexes; also its name among their
/// versions.
pub const PASSAGES: &str = "passages.lance";

/// The name in `epoch.json` of the passages of another process of a cluster.
pub fn passages_of(process: usize) -> String {
    format!("{PASSAGES}@{process}")
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Something in it cannot be used.
    #[error("the state directory cannot be used: cannot {action} `{path}`: {source}")]
    Io {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another process uses it.
    #[error("the state directory `{}` is in use by another turnflow process{}: stop it, or choose another directory with `--state`", path.display(), holder.map(|id| format!(" (id {id})")).unwrap_or_default())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The id of the process, if it is known.
        holder: Option<u32>,
    },
    /// A corpus reads the dead letters in it, and would index them for ever.
    #[error("the corpus `{corpus}` reads `{}`, where this run writes its dead letters: choose a state directory that no corpus reads (`--state`), or another file (`dead_letters`)", path.display())]
    Indexed {
        /// The file.
        path: PathBuf,
        /// The corpus.
        corpus: String,
    },
    /// Another pipeline has written it.
    #[error("the state directory `{}` was written by another pipeline, {before}; {now} has nothing in common with it: no corpus reads the same documents, and no source the same turns. Choose another directory with `--state`. If it is the same pipeline all the same, delete `{}` and start again", path.display(), remembered.display())]
    OfAnother {
        /// The directory.
        path: PathBuf,
        /// The file that says which pipeline has written it.
        remembered: PathBuf,
        /// The pipeline that has written it.
        before: String,
        /// The file of that pipeline.
        file: PathBuf,
        /// The pipeline that is to run.
        now: String,
    },
    /// It was written in a format that this version does not support.
    #[error("the state directory `{path}` has the format `{}`, and this version reads only `{}`; if its file `format` is damaged, delete that file", found.trim().escape_debug(), FORMAT.trim())]
    Format {
        /// The directory.
        path: PathBuf,
        /// The content of its `format` file.
        found: String,
    },
}

/// A state directory that this process holds.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    // The operating system releases the lock when the process ends, also after a crash.
    _lock: File,
}

impl StateDirectory {
    /// Opens and locks the directory; creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// The directory cannot be used, another process uses it, or its format is not supported.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| StateError::Io { action, path, source }
        };
        private::create(path).map_err(io("create", path))?;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_directory(above).map_err(io("write to the disk", above))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(io("write", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(StateError::InUse { path: path.to_owned(), holder: holder(&lock) });
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(io("lock", &lock_path)(error)),
        }
        // What an earlier version, or this run before it was killed, has left for all to read.
        private::tighten(path);
        let format_path = path.join("format");
        match std::fs::read_to_string(&format_path) {
            Ok(found) if found == FORMAT => {}
            // A power loss while the file was written. Only this format has these files.
            Ok(found) if torn::is_torn(&found, FORMAT) && torn::has_known_files(path) => {
                tracing::warn!(path = %format_path.display(), "the format file is incomplete; repairing it");
                crate::append::replace(&format_path, FORMAT.as_bytes()).map_err(io("write", &format_path))?;
            }
            Ok(found) => return Err(StateError::Format { path: path.to_owned(), found }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                crate::append::replace(&format_path, FORMAT.as_bytes()).map_err(io("write", &format_path))?;
            }
            Err(error) => return Err(io("read", &format_path)(error)),
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the directory of one index of a corpus, which need not exist.
    pub fn index_path(&self, corpus: &str, key: &str) -> PathBuf {
        self.path.join("corpora").join(file_name(corpus)).join(file_name(key))
    }

    /// The state directory of another process of a cluster on one machine, below that of process 0.
    pub fn of_process(path: &Path, process: usize) -> PathBuf {
        path.join("processes").join(process.to_string())
    }

    /// The state directories of the other processes of a cluster on this machine, by number, from this one on, as far as
    /// they exist and no process uses them.
    pub fn processes_from(&self, from: usize) -> Vec<(usize, Self)> {
        let entries = std::fs::read_dir(self.path.join("processes")).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<usize>().ok());
        let mut numbers: Vec<usize> = numbers.filter(|number| *number >= from).collect();
        numbers.sort_unstable();
        let open = |number| match Self::open(&Self::of_process(&self.path, number)) {
            Ok(directory) => Some((number, directory)),
            Err(error) => {
                tracing::warn!(%error, "what this process of a cluster has stored is left out");
                None
            }
        };
        numbers.into_iter().filter_map(open).collect()
    }

    /// The directory of one index of a corpus; creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// The directory cannot be created.
    pub fn index(&self, corpus: &str, key: &str) -> Result<PathBuf, StateError> {
        let path = self.index_path(corpus, key);
        std::fs::create_dir_all(&path).map_err(|source| StateError::Io {
            action: "create",
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }
}

impl Drop for StateDirectory {
    fn drop(&mut self) {
        private::tighten(&self.path);
    }
}

/// The id of the process that holds the lock. Only Linux lists it; nothing is written to the directory for it.
fn holder(lock: &File) -> Option<u32> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt as _;
        let found = lock.metadata().ok()?;
        let device = found.dev();
        let (major, minor) = ((device >> 8) & 0xfff | (device >> 32) & !0xfff, device & 0xff | (device >> 12) & !0xff);
        let file = format!("{major:02x}:{minor:02x}:{}", found.ino());
        // A line: number, kind, mode, access, process, file, range.
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let fields = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let held = fields.filter(|fields| fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&&*file));
        held.filter_map(|fields| fields.get(4)?.parse().ok()).find(|id| *id != 0)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = lock;
        None
    }
}

/// Turns any name into a valid file name.
pub fn file_name(name: &str) -> String {
    let safe: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    if safe == name && !name.is_empty() && !name.starts_with('.') && name.len() < 100 {
        return safe;
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    format!("{}-{}", safe.chars().take(40).collect::<String>().trim_start_matches('.'), &hash[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_and_known_formats_only() {
        let dir = tempfile::tempdir().unwrap();
        let held = StateDirectory::open(dir.path()).unwrap();
        let refused = StateDirectory::open(dir.path()).unwrap_err();
        let StateError::InUse { holder, .. } = refused else { panic!("{refused}") };
        // Not every file system and container lists it.
        assert!(holder.is_none_or(|id| id == std::process::id()), "{holder:?}");
        let refused = StateDirectory::open(dir.path()).unwrap_err();
        assert!(refused.to_string().contains("--state"), "{refused}");
        drop(held);
        std::fs::write(dir.path().join("format"), "turnflow state 99\n").unwrap();
        assert!(matches!(StateDirectory::open(dir.path()), Err(StateError::Format { .. })));
    }

    #[test]
    fn any_name_is_a_file_name() {
        assert_eq!(file_name("docs"), "docs");
        for name in ["", "../x", ".", "a/b", "é", &"x".repeat(300)] {
            let file = file_name(name);
            assert!(!file.is_empty() && !file.contains('/') && !file.starts_with('.') && file.len() < 100, "{file}");
        }
    }
}
