//! Tells when a pipeline's files have changed and are written to the end.
//!
//! An editor may empty a file before it writes it, and a large file is written in parts. A change counts
//! when two checks in a row see the same lengths and times.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// How long a changed file that is missing or empty may still be in the middle of being written.
const UNFINISHED: Duration = Duration::from_secs(2);

/// Modification time and length: a cheap sign that a file may have changed. `None`: there is no such file.
pub(super) type FileStamp = Option<(SystemTime, u64)>;

/// Files, each with its stamp when it was last read.
pub(super) struct WatchedFiles {
    files: Vec<(PathBuf, FileStamp)>,
    /// The stamps of a change that may go on, and since when they are the same.
    changing: Option<(Vec<FileStamp>, Instant)>,
}

impl WatchedFiles {
    /// The files as they are now.
    pub fn new(files: Vec<PathBuf>) -> Self {
        Self::since(stamped(files))
    }

    /// The files as they were when these stamps were taken.
    pub fn since(files: Vec<(PathBuf, FileStamp)>) -> Self {
        Self { files, changing: None }
    }

    pub fn files(&self) -> &[(PathBuf, FileStamp)] {
        &self.files
    }

    /// Whether a file has changed and is written to the end. A change is told once.
    pub fn have_changed(&mut self, now: Instant) -> bool {
        let stamps: Vec<FileStamp> = self.files.iter().map(|(path, _)| stamp_of(path)).collect();
        if self.files.iter().map(|(_, stamp)| stamp).eq(&stamps) {
            self.changing = None;
            return false;
        }
        let since = match &self.changing {
            Some((before, since)) if *before == stamps => *since,
            _ => {
                self.changing = Some((stamps, now));
                return false;
            }
        };
        let mut changed = self.files.iter().zip(&stamps).filter(|((_, before), stamp)| before != *stamp);
        let empty = changed.any(|(_, stamp)| stamp.is_none_or(|(_, length)| length == 0));
        if empty && now.duration_since(since) < UNFINISHED {
            return false;
        }
        self.changing = None;
        self.files.iter_mut().zip(stamps).for_each(|((_, stamp), new)| *stamp = new);
        true
    }
}

pub(super) fn stamped(files: Vec<PathBuf>) -> Vec<(PathBuf, FileStamp)> {
    files.into_iter().map(|path| (path.clone(), stamp_of(&path))).collect()
}

fn stamp_of(path: &Path) -> FileStamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks once, this many milliseconds after the beginning.
    fn check(watched: &mut WatchedFiles, begun: Instant, millis: u64) -> bool {
        watched.have_changed(begun + Duration::from_millis(millis))
    }

    #[test]
    fn a_change_counts_once_when_it_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.ron");
        std::fs::write(&path, "one").unwrap();
        let (mut watched, begun) = (WatchedFiles::new(vec![path.clone()]), Instant::now());
        assert!(!check(&mut watched, begun, 0));
        // Emptied and written in two parts.
        for (millis, text) in [(100, ""), (200, "se"), (300, "second")] {
            std::fs::write(&path, text).unwrap();
            assert!(!check(&mut watched, begun, millis));
        }
        assert!(check(&mut watched, begun, 400));
        assert!(!check(&mut watched, begun, 500));
    }

    #[test]
    fn a_file_that_stays_empty_or_missing_has_changed_after_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.ron");
        std::fs::write(&path, "one").unwrap();
        let (mut watched, begun) = (WatchedFiles::new(vec![path.clone()]), Instant::now());
        std::fs::write(&path, "").unwrap();
        assert!(!check(&mut watched, begun, 0) && !check(&mut watched, begun, 1900));
        assert!(check(&mut watched, begun, 2000));
        std::fs::remove_file(&path).unwrap();
        assert!(!check(&mut watched, begun, 3000) && !check(&mut watched, begun, 3100));
        assert!(check(&mut watched, begun, 5000));
        // A file that was missing before is not waited for.
        let other = directory.path().join("q.ron");
        std::fs::write(&other, "two").unwrap();
        let mut watched = WatchedFiles::new(vec![path, other.clone()]);
        std::fs::write(&other, "three").unwrap();
        assert!(!check(&mut watched, begun, 0) && check(&mut watched, begun, 100));
    }

    #[test]
    fn what_is_as_it_was_has_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.ron");
        let (mut watched, begun) = (WatchedFiles::new(vec![path.clone()]), Instant::now());
        std::fs::write(&path, "one").unwrap();
        assert!(!check(&mut watched, begun, 0));
        std::fs::remove_file(&path).unwrap();
        assert!(!check(&mut watched, begun, 100) && !check(&mut watched, begun, 200));
    }
}
