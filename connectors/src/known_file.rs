//! What tells a file from others after a restart: device and inode, and how it begins.
//!
//! A mark is taken of a file up to some length, and found again by [`find`], which trusts
//! nothing that it has not compared: the inode may belong to another file by now, the name
//! too, and the mark itself may come from a state directory that somebody has edited. A file
//! that was renamed is found under its new name; one that was copied (a backup that was
//! restored, or a rotation that copies and truncates), by how it begins.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::jsonl_corpus::directory_of;
use crate::watch::identity_of;

/// How many bytes of a file's beginning are compared.
pub(crate) const HEAD_BYTES: usize = 4096;

/// What is remembered of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileMark {
    /// Under which name it was used, for people.
    path: String,
    device: u64,
    inode: u64,
    /// BLAKE3, in hexadecimal digits.
    head: String,
    /// Of how many bytes.
    head_bytes: u64,
    /// The mark was taken within the last line, which had no end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unfinished: bool,
}

impl FileMark {
    /// Of a file with this identity, up to `length`; `head` is how it begins.
    pub(crate) fn new(path: &str, identity: (u64, u64), head: &[u8], length: u64) -> Self {
        let head = &head[..head_length(length).min(head.len())];
        Self {
            path: path.to_owned(),
            device: identity.0,
            inode: identity.1,
            head: blake3::hash(head).to_hex().to_string(),
            head_bytes: head.len() as u64,
            unfinished: false,
        }
    }

    /// Reads a mark that was taken up to `length`; `None` if it is none of ours.
    pub(crate) fn parse(log: &str, length: u64) -> Option<Self> {
        let mark: Self = serde_json::from_str(log).ok()?;
        (mark.head_bytes == head_length(length) as u64).then_some(mark)
    }

    /// As it is kept.
    pub(crate) fn to_log(&self) -> Arc<str> {
        // A struct of texts and numbers always has a JSON form.
        serde_json::to_string(self).unwrap_or_default().into()
    }

    /// The open file at `path`, if it is regular, long enough, and begins as the marked one.
    fn open(&self, path: &Path, length: u64, same_inode: bool) -> Option<File> {
        let fits = |metadata: &Metadata| {
            let same = identity_of(metadata) == (self.device, self.inode);
            metadata.is_file() && metadata.len() >= length && (same || (!same_inode && self.head_bytes > 0))
        };
        // Opening a pipe would wait for its writer, so the path is looked at first.
        fs::metadata(path).ok().filter(fits)?;
        let file = File::open(path).ok()?;
        file.metadata().ok().filter(fits)?;
        let head = head_of(&file, length).ok()?;
        (head.len() as u64 == self.head_bytes && blake3::hash(&head).to_hex().as_str() == self.head).then_some(file)
    }
}

/// The bytes at the beginning that count for a mark up to `length`.
fn head_length(length: u64) -> usize {
    length.min(HEAD_BYTES as u64) as usize
}

/// The beginning of a file, up to `length` and [`HEAD_BYTES`].
pub(crate) fn head_of(mut file: &File, length: u64) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(head_length(length) as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Where a marked file is now.
#[derive(Debug)]
pub(crate) enum Standing {
    /// Under its name.
    Here(File),
    /// Under another name in the same directory.
    Away(File, PathBuf),
    /// Not to be found.
    Gone,
}

/// Looks for the file that a mark was taken of, up to `length`, when it was at `path`.
pub(crate) fn find(path: &Path, mark: &FileMark, length: u64) -> Standing {
    if let Some(file) = mark.open(path, length, true) {
        return Standing::Here(file);
    }
    let renamed = siblings(path).into_iter().find_map(|(sibling, metadata)| {
        let same = identity_of(&metadata) == (mark.device, mark.inode);
        let file = if same { mark.open(&sibling, length, true) } else { None };
        file.map(|file| Standing::Away(file, sibling))
    });
    if let Some(renamed) = renamed {
        return renamed;
    }
    if let Some(file) = mark.open(path, length, false) {
        return Standing::Here(file);
    }
    // Of copies only those that are named after the log, as rotations name them.
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let mut copies = siblings(path);
    copies
        .retain(|(sibling, _)| sibling.file_name().is_some_and(|sibling| sibling.as_encoded_bytes().starts_with(name)));
    copies.sort_by_key(|(_, metadata)| std::cmp::Reverse(metadata.modified().ok()));
    let copy = copies
        .into_iter()
        .find_map(|(sibling, _)| mark.open(&sibling, length, false).map(|file| Standing::Away(file, sibling)));
    copy.unwrap_or(Standing::Gone)
}

/// The other regular files of the directory.
fn siblings(path: &Path) -> Vec<(PathBuf, Metadata)> {
    let Ok(entries) = fs::read_dir(directory_of(path)) else { return Vec::new() };
    let others = entries.flatten().filter(|entry| Some(entry.file_name().as_os_str()) != path.file_name());
    let files = others.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)));
    files.filter(|(_, metadata)| metadata.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark_of(path: &Path) -> (FileMark, u64) {
        let file = File::open(path).unwrap();
        let metadata = file.metadata().unwrap();
        let head = head_of(&file, metadata.len()).unwrap();
        (FileMark::new("x", identity_of(&metadata), &head, metadata.len()), metadata.len())
    }

    fn stands(path: &Path, (mark, length): &(FileMark, u64)) -> String {
        match find(path, mark, *length) {
            Standing::Here(_) => "here".to_owned(),
            Standing::Away(_, path) => path.file_name().unwrap().to_str().unwrap().to_owned(),
            Standing::Gone => "gone".to_owned(),
        }
    }

    #[test]
    fn files_are_found_by_what_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (log, old) = (at("t.jsonl"), at("t.jsonl.1"));
        fs::write(&log, "one\ntwo\n").unwrap();
        fs::write(at("other"), "one\ntwo\nthree\n").unwrap();
        let mark = mark_of(&log);
        assert_eq!(stands(&log, &mark), "here");
        fs::OpenOptions::new().append(true).open(&log).unwrap().set_len(100).unwrap();
        assert_eq!(stands(&log, &mark), "here");
        // A name that is not the log's does for the same file, and not for one that begins the same.
        fs::rename(&log, at("elsewhere")).unwrap();
        assert_eq!(stands(&log, &mark), "elsewhere");
        fs::rename(at("elsewhere"), &log).unwrap();
        // Copied and truncated.
        fs::copy(&log, &old).unwrap();
        fs::write(&log, "new\n").unwrap();
        assert_eq!(stands(&log, &mark), "t.jsonl.1");
        fs::write(&old, "one").unwrap();
        assert_eq!(stands(&log, &mark), "gone");
        // A backup that was restored has another inode.
        fs::write(at("backup"), "one\ntwo\nthree\n").unwrap();
        fs::rename(at("backup"), &log).unwrap();
        assert_eq!(stands(&log, &mark), "here");
        // The same inode with another beginning.
        let mark = mark_of(&log);
        fs::write(&log, "One\ntwo\nthree\n").unwrap();
        assert_eq!(stands(&log, &mark), "gone");
        fs::remove_file(&log).unwrap();
        assert_eq!(stands(&log, &mark), "gone");
    }

    #[test]
    fn marks_that_are_none_are_refused() {
        let mark = FileMark::new("a", (1, 2), b"0123456789", 4);
        assert_eq!(FileMark::parse(&mark.to_log(), 4), Some(mark.clone()));
        // The head goes with the length.
        assert_eq!(FileMark::parse(&mark.to_log(), 5), None);
        assert_eq!(FileMark::parse(&mark.to_log(), u64::MAX), None);
        for log in ["", "null", "{}", "[1]", "\0", &"[".repeat(100_000), &mark.to_log().replace('1', "-1")] {
            assert_eq!(FileMark::parse(log, 4), None, "{log:.40}");
        }
    }
}
