//! What OCR has read, kept in the state directory: a restart reads all files again, but no page of them.
//!
//! Each picture has a file here, named by a hash of the picture and of the model. Nothing is synced: a file whose hash does
//! not match its content counts as absent. A file that was not needed for some months is removed.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use turnflow_engine::component::ComponentContext;
use turnflow_engine::mapped::has_room;

use crate::readers::ocr::Memory;

/// The directory in that of the component.
const DIRECTORY: &str = "ocr";
/// A file begins with a hash of the rest.
const HASH: usize = 32;
/// A file is removed if it was not needed for so long.
const UNUSED: Duration = Duration::from_secs(90 * 24 * 3600);
/// When a file was needed is noted once in so long.
const NOTED: Duration = Duration::from_secs(24 * 3600);
/// Maximum size of what is kept of a picture, in bytes.
const MOST_BYTES: u64 = 64 << 20;
/// Nothing more is kept if the disk has less room than this and the reserve of indexes, in bytes.
const ROOM: u64 = if cfg!(test) { 0 } else { 1 << 30 };

/// The files of a source.
pub(super) struct Kept {
    path: PathBuf,
    has_failed: AtomicBool,
}

impl Kept {
    /// Those of a component; `None` without a state directory.
    pub fn open(context: &ComponentContext) -> Option<Arc<dyn Memory>> {
        let directory = context.state_directory().unwrap_or_else(|error| {
            tracing::warn!(corpus = context.id(), %error, "what OCR reads cannot be kept; a restart reads it again");
            None
        });
        let path = directory?.join(DIRECTORY);
        remove_unused(&path);
        Some(Arc::new(Self { path, has_failed: AtomicBool::new(false) }))
    }

    fn file(&self, key: &[u8; 32]) -> PathBuf {
        self.path.join(blake3::Hash::from(*key).to_hex().as_str())
    }
}

impl Memory for Kept {
    fn get(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
        let path = self.file(key);
        let value = read(&path)?;
        let now = SystemTime::now();
        if let Ok(file) = File::options().append(true).open(&path)
            && file.metadata().and_then(|data| data.modified()).is_ok_and(|at| is_older(at, NOTED))
        {
            let _ = file.set_modified(now);
        }
        Some(value)
    }

    fn put(&self, key: &[u8; 32], value: &[u8]) {
        if let Err(error) = write(&self.file(key), value)
            && !self.has_failed.swap(true, Ordering::AcqRel)
        {
            tracing::warn!(path = %self.path.display(), %error, "what OCR reads cannot be kept; a restart reads it again");
        }
    }
}

fn is_older(at: SystemTime, than: Duration) -> bool {
    at.elapsed().is_ok_and(|age| age > than)
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).ok()?;
    let (hash, rest) = bytes.split_first_chunk::<HASH>()?;
    if *blake3::hash(rest).as_bytes() != *hash {
        return None;
    }
    let mut value = Vec::new();
    DeflateDecoder::new(rest).take(MOST_BYTES).read_to_end(&mut value).ok()?;
    Some(value)
}

fn write(path: &Path, value: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(path);
    fs::create_dir_all(directory)?;
    if value.len() as u64 > MOST_BYTES || !has_room(directory, ROOM)? {
        return Ok(());
    }
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(value)?;
    let packed = packer.finish()?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(blake3::hash(&packed).as_bytes())?;
    file.write_all(&packed)?;
    file.persist(path)?;
    Ok(())
}

/// Removes files that were not needed for long.
fn remove_unused(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.metadata().and_then(|data| data.modified()).is_ok_and(|at| is_older(at, UNUSED)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_unless_it_is_damaged_or_old() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(DIRECTORY);
        let kept = Kept { path: path.clone(), has_failed: AtomicBool::new(false) };
        let (one, other) = ([1; 32], [2; 32]);
        kept.put(&one, b"lines");
        kept.put(&other, b"others");
        assert_eq!((kept.get(&one).as_deref(), kept.get(&[3; 32])), (Some(&b"lines"[..]), None));
        let file = kept.file(&other);
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
        assert_eq!(kept.get(&other), None);
        let age = |path: &Path, age: Duration| {
            File::options().append(true).open(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        };
        age(&file, UNUSED * 2);
        age(&kept.file(&one), UNUSED * 2);
        // It is needed again.
        kept.get(&one).unwrap();
        remove_unused(&path);
        assert!(kept.get(&one).is_some() && !file.exists());
    }
}
