//! Files of an index on this machine: a consistent list of them, their hashes, and their bytes as streams.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use futures::stream::{self, StreamExt as _};

use super::store::{Body, StoreError};
use crate::component::BackedUp;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// How often two lists of the same files are compared, and the pause between.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A file of an index. If any of these values differs, it is another file or has another content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its path below the index's directory, with `/` between the parts.
    pub path: String,
    pub bytes: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_ns: u64,
    pub inode: u64,
}

impl Found {
    fn of(path: String, metadata: &std::fs::Metadata) -> Self {
        let since = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Self { path, bytes: metadata.len(), modified_ns: since.as_nanos() as u64, inode }
    }

    /// Opens the file, if it is still this one.
    fn open(&self, directory: &Path) -> Result<File, StoreError> {
        let file = File::open(directory.join(&self.path)).map_err(vanished)?;
        if Self::of(self.path.clone(), &file.metadata()?) != *self {
            return Err(StoreError::Moved);
        }
        Ok(file)
    }

    /// The hash of its content, in hexadecimal digits. Blocks.
    pub fn hash(&self, directory: &Path) -> Result<String, StoreError> {
        let (mut file, mut hasher, mut piece) = (self.open(directory)?, blake3::Hasher::new(), vec![0; PIECE]);
        let mut left = self.bytes;
        while left > 0 {
            let read = file.read(&mut piece)?;
            if read == 0 || read as u64 > left {
                return Err(StoreError::Moved);
            }
            hasher.update(&piece[..read]);
            left -= read as u64;
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Its bytes. They end with an error if they do not have this hash.
    pub fn body(self, directory: PathBuf, hash: String) -> Body {
        struct Reading {
            file: File,
            hasher: Box<blake3::Hasher>,
            left: u64,
        }
        let pieces = stream::try_unfold(None, move |reading: Option<Reading>| {
            let (found, directory, hash) = (self.clone(), directory.clone(), hash.clone());
            blocking(move || {
                let mut reading = match reading {
                    Some(reading) => reading,
                    None => Reading { file: found.open(&directory)?, hasher: Box::default(), left: found.bytes },
                };
                if reading.left == 0 {
                    let is_same = reading.hasher.finalize().to_hex().as_str() == hash;
                    return if is_same { Ok(None) } else { Err(StoreError::Moved) };
                }
                let mut piece = vec![0; PIECE.min(usize::try_from(reading.left).unwrap_or(PIECE))];
                reading.file.read_exact(&mut piece).map_err(|error| match error.kind() {
                    ErrorKind::UnexpectedEof => StoreError::Moved,
                    _ => error.into(),
                })?;
                reading.hasher.update(&piece);
                reading.left -= piece.len() as u64;
                Ok(Some((piece, Some(reading))))
            })
        });
        pieces.boxed()
    }
}

fn vanished(error: io::Error) -> StoreError {
    if error.kind() == ErrorKind::NotFound { StoreError::Moved } else { error.into() }
}

/// Runs what blocks on a thread for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(io::Error::other(error).into()),
    }
}

/// The files of an index as they were at one moment, sorted by path. Empty if there is no version of it. Blocks.
///
/// The list is consistent. Each file is listed twice. A file never comes back under the same name and with the same values,
/// so if both lists are equal, each file of them was there during the time between. Of that moment, the list may lack only
/// files that came after the first list and went before the second. The newest version's files are not among these: a
/// version and its files go only after a newer version has come, which would be in the second list and not in the first.
pub(super) fn snapshot(directory: &Path, part: BackedUp) -> Result<Vec<Found>, StoreError> {
    let mut before = list(directory, part);
    for _ in 0..ATTEMPTS {
        let now = list(directory, part);
        match (before, now) {
            (Ok(before), Ok(now)) if before == now => {
                let is_version =
                    |found: &Found| found.path.strip_prefix(part.versions).is_some_and(|name| name.starts_with('/'));
                return Ok(if now.iter().any(is_version) { now } else { Vec::new() });
            }
            (_, Err(error)) if !matches!(error, StoreError::Moved) => return Err(error),
            (_, now) => before = now,
        }
        std::thread::sleep(PAUSE);
    }
    Err(StoreError::Moved)
}

fn list(directory: &Path, part: BackedUp) -> Result<Vec<Found>, StoreError> {
    let mut found = Vec::new();
    let mut open = vec![part.directory.to_owned()];
    while let Some(below) = open.pop() {
        let entries = match std::fs::read_dir(directory.join(&below)) {
            Ok(entries) => entries,
            // Nothing is stored yet.
            Err(error) if error.kind() == ErrorKind::NotFound && below == part.directory => break,
            Err(error) => return Err(vanished(error)),
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !(part.is_temporary)(name)) else { continue };
            let (path, metadata) = (format!("{below}/{name}"), entry.metadata().map_err(vanished)?);
            if metadata.is_dir() {
                open.push(path);
            } else if metadata.is_file() {
                found.push(Found::of(path, &metadata));
            }
        }
    }
    found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Whether the file at this path has this size and hash. Blocks.
pub(super) fn is_complete(path: &Path, bytes: u64, hash: &str) -> bool {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return false;
    };
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let found = Found::of(name.to_owned(), &metadata);
    found.bytes == bytes && found.hash(directory).is_ok_and(|found| found == hash)
}

/// Writes a body to a file and waits for the disk. Fails if it has another size or hash.
pub(super) async fn receive(path: PathBuf, mut body: Body, bytes: u64, hash: &str) -> Result<(), StoreError> {
    let shown = path.display().to_string();
    let mut file = blocking(move || {
        if let Some(above) = path.parent() {
            std::fs::create_dir_all(above)?;
        }
        Ok(File::create(&path)?)
    })
    .await?;
    let (mut hasher, mut length) = (blake3::Hasher::new(), 0);
    while let Some(piece) = body.next().await {
        let piece = piece?;
        hasher.update(&piece);
        length += piece.len() as u64;
        if length > bytes {
            break;
        }
        file = blocking(move || {
            file.write_all(&piece)?;
            Ok(file)
        })
        .await?;
    }
    if length != bytes || hasher.finalize().to_hex().as_str() != hash {
        return Err(StoreError::Damaged(format!("the copy of `{shown}` is not what was written")));
    }
    blocking(move || Ok(file.sync_all()?)).await
}
