//! What a source has fetched, kept in the state directory. A restart reads it there, and fetches only what has changed.
//!
//! Each file has a file here, which also has what the source needs to know whether the original is still the same. Nothing
//! is synced: a file whose hash does not match its content counts as absent, and is fetched again.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;
use turnflow_engine::component::ComponentContext;
use turnflow_engine::mapped::has_room;

/// The directory in that of the component.
const DIRECTORY: &str = "fetched";
/// A file begins with a hash of the rest, and the length of what the source knows of it.
const HASH: usize = 32;
const LENGTH: usize = 4;
/// Nothing more is kept if the disk has less room than this and the reserve of indexes, in bytes. So indexes come first.
const ROOM: u64 = if cfg!(test) { 0 } else { 4 << 30 };

/// The files. Clones share them.
#[derive(Clone)]
pub(crate) struct KeptFiles(Option<Arc<Directory>>);

struct Directory {
    path: PathBuf,
    /// Two places may have files with the same path.
    scope: blake3::Hash,
    has_failed: AtomicBool,
}

impl KeptFiles {
    /// Those of a component, from this place (such as the URL of a bucket). Without a state directory, or if `keep` is
    /// false, nothing is kept, and what was kept is removed.
    pub(crate) fn open(context: &ComponentContext, scope: &str, keep: bool) -> Self {
        let directory = context.state_directory().unwrap_or_else(|error| {
            tracing::warn!(corpus = context.id(), %error, "what is fetched cannot be kept; a restart fetches it again");
            None
        });
        let kept = Self(directory.map(|directory| {
            let (path, scope) = (directory.join(DIRECTORY), blake3::hash(scope.as_bytes()));
            Arc::new(Directory { path, scope, has_failed: AtomicBool::new(false) })
        }));
        if keep {
            return kept;
        }
        if let Some(directory) = &kept.0 {
            let _ = std::fs::remove_dir_all(&directory.path);
        }
        Self(None)
    }

    /// What is kept of a file, and its content.
    pub(crate) fn read<K: DeserializeOwned>(&self, path: &str) -> Option<(K, Vec<u8>)> {
        let directory = self.0.as_ref()?;
        let mut bytes = std::fs::read(directory.file(path)).ok()?;
        let (hash, rest) = bytes.split_first_chunk::<HASH>()?;
        if *blake3::hash(rest).as_bytes() != *hash {
            return None;
        }
        let (length, rest) = rest.split_first_chunk::<LENGTH>()?;
        let (known, content) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (known, begins) = (serde_json::from_slice(known).ok()?, bytes.len() - content.len());
        bytes.drain(..begins);
        Some((known, bytes))
    }

    /// Keeps a file, and what is known of it. If that fails, a warning says so once.
    pub(crate) fn write<K: Serialize>(&self, path: &str, known: &K, content: &[u8]) {
        let Some(directory) = &self.0 else { return };
        let file = directory.file(path);
        if let Err(error) = write(&file, known, content) {
            // An older content would not harm: it has another version.
            let _ = std::fs::remove_file(file);
            if !directory.has_failed.swap(true, Ordering::AcqRel) {
                let path = directory.path.display();
                tracing::warn!(%path, %error, "what is fetched cannot be kept; a restart fetches it again");
            }
        }
    }

    /// Keeps a file no longer.
    pub(crate) fn remove(&self, path: &str) {
        if let Some(directory) = &self.0 {
            let _ = std::fs::remove_file(directory.file(path));
        }
    }

    /// Removes all files but these.
    pub(crate) fn keep_only<'a>(&self, paths: impl Iterator<Item = &'a str>) {
        let Some(directory) = &self.0 else { return };
        let there: HashSet<PathBuf> = paths.map(|path| directory.file(path)).collect();
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
        let files = entries(&directory.path).flat_map(|entry| entries(&entry.path())).map(|entry| entry.path());
        for file in files.filter(|file| !there.contains(file)) {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Directory {
    fn file(&self, path: &str) -> PathBuf {
        let name = blake3::Hasher::new().update(self.scope.as_bytes()).update(path.as_bytes()).finalize().to_hex();
        self.path.join(&name[..2]).join(&name[2..])
    }
}

fn write<K: Serialize>(file: &Path, known: &K, content: &[u8]) -> io::Result<()> {
    let known = serde_json::to_vec(known)?;
    let length = u32::try_from(known.len()).map_err(io::Error::other)?.to_le_bytes();
    let hash = blake3::Hasher::new().update(&length).update(&known).update(content).finalize();
    let directory = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    if !has_room(directory, ROOM)? {
        return Err(io::Error::other("the disk is nearly full"));
    }
    let new = file.with_extension("new");
    let written = std::fs::File::create(&new).and_then(|mut opened| {
        [&hash.as_bytes()[..], &length, &known, content].iter().try_for_each(|part| opened.write_all(part))
    });
    written.and_then(|()| std::fs::rename(&new, file)).inspect_err(|_| drop(std::fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context_in;

    #[test]
    fn a_file_is_read_as_it_was_kept_or_not_at_all() {
        let state = tempfile::tempdir().unwrap();
        let open = |scope| KeptFiles::open(&context_in(state.path(), "docs"), scope, true);
        let kept = open("s3://a");
        assert_eq!(kept.read::<String>("x"), None);
        kept.write("x", &"1", b"one");
        kept.write("x", &"2", b"two");
        kept.write("../../y", &"1", b"");
        assert_eq!(kept.read("x"), Some(("2".to_owned(), b"two".to_vec())));
        assert_eq!(kept.read("../../y"), Some(("1".to_owned(), Vec::new())));
        assert_eq!(open("s3://b").read::<String>("x"), None, "another bucket");
        assert_eq!(kept.read::<u64>("x"), None, "another kind of knowledge");
        let file = kept.0.as_ref().unwrap().file("x");
        let bytes = std::fs::read(&file).unwrap();
        for damaged in [&bytes[..bytes.len() - 1], &bytes[..10], b"", &[&bytes[..], b"x"].concat()] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(kept.read::<String>("x"), None, "{} bytes", damaged.len());
        }
        kept.write("x", &"3", b"three");
        open("s3://b").write("x", &"1", b"of another bucket");
        kept.keep_only(["x"].into_iter());
        assert_eq!((kept.read::<String>("x").is_some(), kept.read::<String>("../../y")), (true, None));
        assert_eq!(open("s3://b").read::<String>("x"), None);
        kept.remove("x");
        assert_eq!(kept.read::<String>("x"), None);
        kept.write("x", &"1", b"one");
        KeptFiles::open(&context_in(state.path(), "docs"), "s3://a", false).write("y", &"1", b"one");
        assert_eq!((kept.read::<String>("x"), kept.read::<String>("y")), (None, None), "keep: false");
    }

    #[test]
    fn without_a_state_directory_nothing_is_kept() {
        let kept = KeptFiles::open(&crate::testing::context("docs"), "", true);
        kept.write("x", &"1", b"one");
        assert_eq!(kept.read::<String>("x"), None);
        kept.keep_only(std::iter::empty());
    }
}
