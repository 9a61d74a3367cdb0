//! Remembers which rotated files were complete before a log's current file was marked.
//!
//! A record in a new log may have the same conversation, turn, text and position as one in an old log, and then has the
//! same key. Its answer must not be searched for in files that were complete before.

use std::cmp::Reverse;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::content::before;
use super::rotated::rotated;
use super::{HEAD_BYTES, head_of};
use crate::watch::identity_of;

/// Maximum number of files that are remembered, newest first. Older ones are read again when an answer is searched for.
const MOST: usize = 1024;

/// The rotated files beside a log: of each, a hash of its length, its first and its last bytes.
///
/// A file that has grown is not one of them, whatever its name and inode are. A file that was copied, renamed or
/// compressed since is still one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Older(Vec<String>);

impl Older {
    /// The files that were rotated from `path` until now, without the current one, which has this identity. A file that
    /// cannot be read is left out.
    pub(crate) fn of(path: &Path, current: (u64, u64)) -> Self {
        let mut files = rotated(path, &[]).unwrap_or_default();
        files.retain(|(_, metadata)| identity_of(metadata) != current && metadata.len() > 0);
        files.sort_by_key(|(_, metadata)| Reverse(metadata.modified().ok()));
        let hash = |path: &Path| File::open(path).and_then(|file| hash_of(&file)).ok();
        Self(files.iter().take(MOST).filter_map(|(path, _)| hash(path)).collect())
    }

    /// Whether the file was one of them, and is unchanged.
    pub(crate) fn has(&self, file: &File) -> bool {
        !self.0.is_empty() && hash_of(file).is_ok_and(|hash| self.0.contains(&hash))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A hash of a file's length, first and last bytes, in 32 hexadecimal digits.
fn hash_of(file: &File) -> io::Result<String> {
    let length = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(&head_of(file, HEAD_BYTES as u64)?);
    hasher.update(&before(file, length)?);
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}
