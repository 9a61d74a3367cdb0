//! Identifies a file after a restart, by device, inode, time of creation and its content.
//!
//! A mark describes a file up to some length, and [`find`] finds the file again. Everything is compared, because the
//! inode or the name may now belong to another file, and the mark may come from a state directory that was edited. A
//! renamed file is found under its new name; a copied one (a restored backup, or a rotation that copies and truncates)
//! by its content. A mark has a hash of what was read or written (`content`); those of earlier versions have one of the
//! first bytes only. That of a sink's file is beside the mark, which stays the same while the file grows.
//!
//! File systems use the inode of a deleted file again at once. A file without content is therefore found under another
//! name only if its time of creation is known and the same.
//!
//! If a log was rotated more than once in the meantime, other logs lie between the one that was found and the one at
//! the path; [`between`] finds these. If only a file's name is known, [`rotated()`] finds all files that carry it.

mod between;
mod content;
mod older;
mod rotated;
#[cfg(test)]
mod tests;

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use turnflow_engine::claims::real;
use turnflow_engine::connector::SinkPosition;

pub(crate) use self::between::{Between, Past, between};
pub(crate) use self::content::{Content, Digest};
pub(crate) use self::older::Older;
use self::rotated::{Rotation, rotation_of};
pub(crate) use self::rotated::{open_rotated, rotated};
use crate::jsonl_corpus::directory_of;
use crate::watch::identity_of;

/// Maximum number of times that a directory is listed again because files in it were renamed meanwhile.
pub(crate) const LISTINGS: u32 = 20;

/// Pause before the next attempt: renaming many files takes a few milliseconds.
pub(crate) fn pause(tries: u32) -> Duration {
    Duration::from_millis(u64::from(tries))
}

/// Number of bytes at the start of a file that are compared.
pub(crate) const HEAD_BYTES: usize = 4096;

/// What is stored about a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileMark {
    /// The path under which the file was used, for people.
    path: String,
    device: u64,
    inode: u64,
    /// Time of creation in nanoseconds since the Unix epoch, if the file system records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<u64>,
    /// BLAKE3 hash of the file's start, in hexadecimal digits.
    head: String,
    /// Number of bytes that were hashed.
    head_bytes: u64,
    /// BLAKE3 hash of what was read up to the mark, in hexadecimal digits; of a long file, of its first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// The same of the last bytes before the mark, if `body` does not cover them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tail: Option<String>,
    /// Time of the last modification in nanoseconds since the Unix epoch. Logs that came later were modified later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified: Option<u64>,
    /// Whether the mark lies within the last line, which was unfinished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unfinished: bool,
    /// The files rotated before it, which were complete when the mark was taken.
    #[serde(default, skip_serializing_if = "Older::is_empty")]
    pub(crate) older: Older,
}

impl FileMark {
    /// The path under which the file of a stored mark was used.
    pub(crate) fn path_of(log: &str) -> Option<PathBuf> {
        serde_json::from_str::<Self>(log).ok().map(|mark| mark.path.into())
    }

    /// A mark of the file with this metadata, up to `length`; `head` is the start of the file.
    pub(crate) fn new(path: &str, metadata: &Metadata, head: &[u8], length: u64) -> Self {
        let head = &head[..head_length(length).min(head.len())];
        let (device, inode) = identity_of(metadata);
        Self {
            path: path.to_owned(),
            device,
            inode,
            created: created(metadata),
            head: blake3::hash(head).to_hex().to_string(),
            head_bytes: head.len() as u64,
            body: None,
            tail: None,
            modified: None,
            unfinished: false,
            older: Older::default(),
        }
    }

    /// The same mark of a log that was read, with a digest of what was read up to the mark.
    #[must_use]
    pub(crate) fn read(self, digest: Option<&Digest>, metadata: &Metadata) -> Self {
        let (body, tail) = digest.map(|digest| (digest.body.clone(), digest.tail.clone())).unzip();
        Self { body, tail: tail.flatten(), modified: nanoseconds(metadata.modified().ok()), ..self }
    }

    /// The log of a stored mark, if it is known when it was modified; to recognise those that came after it.
    pub(crate) fn past_of(log: &str) -> Option<Past> {
        let mark: Self = serde_json::from_str(log).ok()?;
        let time = |nanoseconds: u64| UNIX_EPOCH.checked_add(Duration::from_nanos(nanoseconds));
        let times = (Some(time(mark.modified?)?), mark.created.and_then(time));
        Some(Past::lost(times))
    }

    /// Parses a mark up to `length`; `None` if it is not valid.
    pub(crate) fn parse(log: &str, length: u64) -> Option<Self> {
        let mark: Self = serde_json::from_str(log).ok()?;
        (mark.head_bytes == head_length(length) as u64).then_some(mark)
    }

    /// Parses the mark of a file that a sink writes; `None` if it is not valid.
    pub(crate) fn of(position: &SinkPosition) -> Option<Self> {
        let mark = Self::parse(&position.log, position.length)?;
        let Digest { body, tail } = Digest::parse(position.content.as_deref().unwrap_or_default());
        Some(Self { body: (!body.is_empty()).then_some(body), tail, ..mark })
    }

    /// Parses a mark of a file's beginning, which covers what was there when it was taken; `None` if it is not valid.
    pub(crate) fn parse_beginning(log: &str) -> Option<Self> {
        let mark: Self = serde_json::from_str(log).ok()?;
        (mark.head_bytes <= HEAD_BYTES as u64).then_some(mark)
    }

    /// The mark in its stored form.
    pub(crate) fn to_log(&self) -> Arc<str> {
        // A struct of strings and numbers always serialises to JSON.
        serde_json::to_string(self).unwrap_or_default().into()
    }

    /// Whether a file with this metadata has the marked one's inode and, as far as known, its time of creation.
    fn is_same(&self, metadata: &Metadata) -> bool {
        let differs = self.created.zip(created(metadata)).is_some_and(|(marked, now)| marked != now);
        identity_of(metadata) == (self.device, self.inode) && !differs
    }

    /// Opens the file at `path`, if it is a regular file, long enough, and starts like the marked one.
    fn open(&self, path: &Path, length: u64, same_inode: bool) -> Option<File> {
        let fits = |metadata: &Metadata| {
            let same = self.is_same(metadata);
            metadata.is_file() && metadata.len() >= length && (same || (!same_inode && self.head_bytes > 0))
        };
        // Opening a pipe would wait for its writer, so the metadata is checked first.
        fs::metadata(path).ok().filter(fits)?;
        let file = File::open(path).ok()?;
        file.metadata().ok().filter(fits)?;
        let head = head_of(&file, self.head_bytes).ok()?;
        let begins_so = head.len() as u64 == self.head_bytes && blake3::hash(&head).to_hex().as_str() == self.head;
        (begins_so && self.is_read(&file, length)).then_some(file)
    }

    /// Whether a file has what was read up to the mark, as far as the mark tells.
    fn is_read(&self, file: &File, length: u64) -> bool {
        let Some(body) = &self.body else { return true };
        let digest = Content::of(file, length).map(|mut content| content.digest(length));
        digest.is_ok_and(|digest| digest.body == *body && digest.tail == self.tail)
    }
}

impl FileMark {
    /// Whether a file has the marked one's content.
    pub(crate) fn is_of(&self, content: &File, length: u64) -> bool {
        let is_long_enough = content.metadata().is_ok_and(|metadata| metadata.len() >= length);
        let begins_so = |head: Vec<u8>| blake3::hash(&head).to_hex().as_str() == self.head;
        let begins_so = self.head_bytes > 0 && is_long_enough && head_of(content, length).is_ok_and(begins_so);
        begins_so && self.is_read(content, length)
    }

    /// The same mark with the first bytes only: a file that begins so may have been changed behind them.
    #[must_use]
    pub(crate) fn beginning(&self) -> Self {
        Self { body: None, tail: None, ..self.clone() }
    }
}

/// Time of a file's creation, in nanoseconds since the Unix epoch; `None` if the file system does not record it.
fn created(metadata: &Metadata) -> Option<u64> {
    nanoseconds(metadata.created().ok())
}

/// Nanoseconds since the Unix epoch.
fn nanoseconds(time: Option<SystemTime>) -> Option<u64> {
    time?.duration_since(UNIX_EPOCH).ok()?.as_nanos().try_into().ok()
}

/// Number of bytes at the start that a mark up to `length` covers.
fn head_length(length: u64) -> usize {
    length.min(HEAD_BYTES as u64) as usize
}

/// The start of a file, up to `length` and [`HEAD_BYTES`]. The file's own position does not change.
pub(crate) fn head_of(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let there = file.metadata()?.len().min(length);
    let mut head = vec![0; head_length(there)];
    content::read_exact_at(file, &mut head, head_length(there) as u64)?;
    Ok(head)
}

/// Where a marked file is now.
#[derive(Debug)]
pub(crate) enum MarkedFile {
    /// At its own path.
    Here(File),
    /// Under another name in the same directory.
    Away(File, PathBuf),
    /// Not found.
    Gone,
}

/// Finds the file that a mark describes up to `length`, when it was at `path`.
pub(crate) fn find(path: &Path, mark: &FileMark, length: u64) -> MarkedFile {
    let mut before = names(path);
    for again in 0..LISTINGS {
        let found = find_once(path, mark, length);
        let after = names(path);
        // It may have been renamed during the search.
        if !matches!(found, MarkedFile::Gone) || before == after {
            return found;
        }
        before = after;
        std::thread::sleep(pause(again));
    }
    MarkedFile::Gone
}

/// The names and identities of the path and the files beside it.
fn names(path: &Path) -> Option<Vec<(PathBuf, (u64, u64))>> {
    let mut names = identities(&siblings(path).ok()?);
    names.extend(fs::metadata(path).ok().map(|metadata| (path.to_owned(), identity_of(&metadata))));
    Some(names)
}

fn identities(files: &[(PathBuf, Metadata)]) -> Vec<(PathBuf, (u64, u64))> {
    let mut names: Vec<_> = files.iter().map(|(path, metadata)| (path.clone(), identity_of(metadata))).collect();
    names.sort_unstable();
    names
}

fn find_once(path: &Path, mark: &FileMark, length: u64) -> MarkedFile {
    if let Some(file) = mark.open(path, length, true) {
        return MarkedFile::Here(file);
    }
    let beside = siblings(path).unwrap_or_default();
    let renamed = beside.iter().find_map(|(sibling, metadata)| {
        let is_certain = mark.head_bytes > 0 || (mark.created.is_some() && mark.created == created(metadata));
        let file = if is_certain && mark.is_same(metadata) { mark.open(sibling, length, true) } else { None };
        file.map(|file| MarkedFile::Away(file, sibling.clone()))
    });
    if let Some(renamed) = renamed {
        return renamed;
    }
    if let Some(file) = mark.open(path, length, false) {
        return MarkedFile::Here(file);
    }
    // Accepts only copies that are named like a rotation of the log.
    let mut copies = beside;
    copies.retain(|(sibling, _)| rotation_of(sibling, path).is_some_and(|rotation| rotation != Rotation::Unclear));
    copies.sort_by_key(|(_, metadata)| std::cmp::Reverse(metadata.modified().ok()));
    let copy = copies
        .into_iter()
        .find_map(|(sibling, _)| mark.open(&sibling, length, false).map(|file| MarkedFile::Away(file, sibling)));
    copy.unwrap_or(MarkedFile::Gone)
}

/// Whether two paths name the same file, however they are written, and also if it does not exist.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    one == other || real(one) == real(other)
}

/// Whether a file's name is clearly made of that of a log, as rotation makes names.
pub(crate) fn is_rotation(name: &Path, log: &Path) -> bool {
    let made = rotated::made_from(name.as_os_str().as_encoded_bytes(), log.as_os_str().as_encoded_bytes());
    made.is_some_and(|made| made != Rotation::Unclear)
}

/// The file that a symbolic link at this path names.
fn target(path: &Path) -> Option<PathBuf> {
    fs::symlink_metadata(path).ok().filter(Metadata::is_symlink).map(|_| real(path))
}

/// The other regular files in the directory; of a link also those in the directory of its file, which may be rotated
/// there.
fn siblings(path: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut files = beside(path)?;
    if let Some(target) = target(path) {
        match is_same(directory_of(path), directory_of(&target)) {
            true => files.retain(|(sibling, _)| sibling.file_name() != target.file_name()),
            false => files.extend(beside(&target)?),
        }
    }
    Ok(files)
}

/// The other regular files in the path's own directory. While files are renamed there, as in a rotation, a listing may
/// lack a file, so it is repeated until two are equal.
fn beside(path: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut files = listing(path)?;
    for tries in 0..LISTINGS {
        let again = listing(path)?;
        let is_same = identities(&again) == identities(&files);
        files = again;
        if is_same {
            break;
        }
        std::thread::sleep(pause(tries));
    }
    Ok(files)
}

/// One listing.
fn listing(path: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory_of(path))? {
        let entry = entry?;
        if Some(entry.file_name().as_os_str()) == path.file_name() {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) if metadata.is_file() => files.push((entry.path(), metadata)),
            // The file was renamed or deleted after it was listed.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(files)
}
