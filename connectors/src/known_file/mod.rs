//! What tells a file from others after a restart: device and inode, and how it begins.
//!
//! A mark is taken of a file up to some length, and found again by [`find`], which trusts
//! nothing that it has not compared: the inode may belong to another file by now, the name
//! too, and the mark itself may come from a state directory that somebody has edited. A file
//! that was renamed is found under its new name; one that was copied (a backup that was
//! restored, or a rotation that copies and truncates), by how it begins.
//!
//! Where a log has been rotated more than once meanwhile, there are others between the one that
//! was found and the one that is at the path now: [`between`] finds these. Where nothing is known
//! of a file but its name, [`rotated`] finds all that carry it.

mod between;
mod rotated;
#[cfg(test)]
mod tests;

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use self::between::{Between, Past, between};
pub(crate) use self::rotated::{rotated, suffix_of};
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

impl FileMark {
    /// Whether a file's content is that of the marked one: it is long enough, and begins as that did.
    pub(crate) fn is_of(&self, content: &File, length: u64) -> bool {
        let is_long_enough = content.metadata().is_ok_and(|metadata| metadata.len() >= length);
        let begins_so = |head: Vec<u8>| blake3::hash(&head).to_hex().as_str() == self.head;
        self.head_bytes > 0 && is_long_enough && head_of(content, length).is_ok_and(begins_so)
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
pub(crate) enum MarkedFile {
    /// Under its name.
    Here(File),
    /// Under another name in the same directory.
    Away(File, PathBuf),
    /// Not to be found.
    Gone,
}

/// Looks for the file that a mark was taken of, up to `length`, when it was at `path`.
pub(crate) fn find(path: &Path, mark: &FileMark, length: u64) -> MarkedFile {
    if let Some(file) = mark.open(path, length, true) {
        return MarkedFile::Here(file);
    }
    let beside = siblings(path).unwrap_or_default();
    let renamed = beside.iter().find_map(|(sibling, metadata)| {
        let same = identity_of(metadata) == (mark.device, mark.inode);
        let file = if same { mark.open(sibling, length, true) } else { None };
        file.map(|file| MarkedFile::Away(file, sibling.clone()))
    });
    if let Some(renamed) = renamed {
        return renamed;
    }
    if let Some(file) = mark.open(path, length, false) {
        return MarkedFile::Here(file);
    }
    // Of copies only those that are named after the log, as rotations name them.
    let mut copies = beside;
    copies.retain(|(sibling, _)| suffix_of(sibling, path).is_some());
    copies.sort_by_key(|(_, metadata)| std::cmp::Reverse(metadata.modified().ok()));
    let copy = copies
        .into_iter()
        .find_map(|(sibling, _)| mark.open(&sibling, length, false).map(|file| MarkedFile::Away(file, sibling)));
    copy.unwrap_or(MarkedFile::Gone)
}

/// The other regular files of the directory.
fn siblings(path: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory_of(path))? {
        let entry = entry?;
        if Some(entry.file_name().as_os_str()) == path.file_name() {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) if metadata.is_file() => files.push((entry.path(), metadata)),
            // It has been renamed or deleted since it was listed.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(files)
}
