//! A second state directory with the same indexes, to test a restart without changing the original.
//! Its files are hard links, since neither tantivy nor Lance modifies a complete file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use turnflow_engine::state::{PASSAGES, StateDirectory};

/// Its name in the state directory.
const NAME: &str = "verify";
/// Maximum attempts to remove it.
const ATTEMPTS: usize = 10;

/// Why the shadow directory cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`: {source}", path.display())]
pub struct ShadowError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// A shadow directory; removed on drop.
pub struct Shadow {
    path: PathBuf,
}

impl Shadow {
    /// Creates it in the state directory, which this process has locked.
    ///
    /// # Errors
    ///
    /// A file or directory cannot be created, linked or copied.
    pub fn make(state: &StateDirectory) -> Result<Self, ShadowError> {
        let path = state.path().join(NAME);
        if path.exists() {
            // Left behind by a killed process.
            fs::remove_dir_all(&path).map_err(failed("clear", &path))?;
        }
        let shadow = Self { path };
        link_corpora(state.path(), &shadow.path)?;
        // The restart takes over what the other processes of a cluster have stored.
        for (number, process) in state.processes_from(0) {
            link_corpora(process.path(), &StateDirectory::of_process(&shadow.path, number))?;
        }
        Ok(shadow)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // Threads of the stores may still write for a moment. Remaining files are removed the next time.
        let removed = (0..ATTEMPTS).find_map(|_| match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => None,
            result => Some(result),
        });
        match removed {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %self.path.display(), "cannot remove the directory of the comparison");
            }
            _ => {}
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ShadowError {
    let path = path.to_owned();
    move |source| ShadowError { action, path, source }
}

fn link_corpora(from: &Path, to: &Path) -> Result<(), ShadowError> {
    let corpora = from.join("corpora");
    if corpora.is_dir() { link(&corpora, &to.join("corpora")) } else { Ok(()) }
}

fn link(from: &Path, to: &Path) -> Result<(), ShadowError> {
    fs::create_dir_all(to).map_err(failed("create", to))?;
    for entry in fs::read_dir(from).map_err(failed("read", from))? {
        let entry = entry.map_err(failed("read", from))?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        // Damaged data that was moved away is not part of an index, and stored passages would be continued.
        if entry.file_name().to_string_lossy().contains(".damaged") || entry.file_name() == PASSAGES {
            continue;
        }
        if entry.file_type().map_err(failed("read", &from))?.is_dir() {
            link(&from, &to)?;
            continue;
        }
        // Locks belong to this process, and incomplete files are written again.
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".lock") || name.ends_with(".new") {
            continue;
        }
        // Copy the file if the file system does not support hard links.
        if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to).map_err(failed("copy", &from))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_there_leaves_the_state_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(dir.path()).unwrap();
        let index = state.index("docs", "words").unwrap();
        fs::write(index.join("meta.json"), "old").unwrap();
        fs::write(index.join(".writer.lock"), "").unwrap();
        let shadow = Shadow::make(&state).unwrap();
        let there = shadow.path().join("corpora/docs/words");
        assert_eq!(fs::read_to_string(there.join("meta.json")).unwrap(), "old");
        assert!(!there.join(".writer.lock").exists());
        fs::write(there.join("meta.json.new"), "new").unwrap();
        fs::rename(there.join("meta.json.new"), there.join("meta.json")).unwrap();
        assert_eq!(fs::read_to_string(index.join("meta.json")).unwrap(), "old");
        let path = shadow.path().to_owned();
        drop(shadow);
        assert!(!path.exists() && index.join("meta.json").exists());
    }
}
