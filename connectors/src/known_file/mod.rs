//! What tells a file from others after a restart: device and inode, and how it begins.
//!
//! A mark is taken of a file up to some length, and found again by [`find`], which trusts
//! nothing that it has not compared: the inode may belong to another file by now, the name
//! too, and the mark itself may come from a state directory that somebody has edited. A file
//! that was renamed is found under its new name; one that was copied (a backup that was
//! restored, or a rotation that copies and truncates), by how it begins.
//!
//! Where a log has been rotated more than once meanwhile, there are others between the one that
//! was found and the one that is at the path now: [`between`] finds these.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

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
    let mut copies = siblings(path);
    copies.retain(|(sibling, _)| suffix_of(sibling, path).is_some());
    copies.sort_by_key(|(_, metadata)| std::cmp::Reverse(metadata.modified().ok()));
    let copy = copies
        .into_iter()
        .find_map(|(sibling, _)| mark.open(&sibling, length, false).map(|file| Standing::Away(file, sibling)));
    copy.unwrap_or(Standing::Gone)
}

/// What a file's name has behind the log's.
fn suffix_of<'a>(sibling: &'a Path, path: &Path) -> Option<&'a [u8]> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    sibling.file_name()?.as_encoded_bytes().strip_prefix(name)
}

/// A log that has been read to its end, as those that came after it are told by.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    identity: (u64, u64),
    times: Times,
    head: Vec<u8>,
}

/// When a file was last written, and made.
type Times = (Option<SystemTime>, Option<SystemTime>);

fn times_of(metadata: &Metadata) -> Times {
    (metadata.modified().ok(), metadata.created().ok())
}

impl Past {
    /// Of an open log; what is read of it next is its beginning.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let head = head_of(file, u64::MAX)?;
        Ok(Self { identity: identity_of(&metadata), times: times_of(&metadata), head })
    }
}

/// Files that may be between a log that has been read and the one at its path now.
#[derive(Debug, Default)]
pub(crate) struct Between {
    /// Those that are, the oldest first.
    pub(crate) logs: Vec<PathBuf>,
    /// Those of which it cannot be told, with the reason.
    pub(crate) unclear: Vec<(PathBuf, &'static str)>,
}

/// The logs that were made and rotated away after `past` was: files named as rotations name them,
/// written later, which hold what no other file does.
pub(crate) fn between(path: &Path, past: &Past) -> Between {
    let present = fs::metadata(path).ok().map(|metadata| identity_of(&metadata));
    let mut named = siblings(path);
    named.retain(|(sibling, metadata)| {
        let identity = identity_of(metadata);
        let is_known = identity == past.identity || Some(identity) == present;
        suffix_of(sibling, path).is_some() && metadata.len() > 0 && !is_known
    });
    named.sort_by_cached_key(|(sibling, metadata)| (times_of(metadata), sibling.clone()));
    let since = named.partition_point(|(_, metadata)| metadata.modified().ok() < past.times.0);
    let mut between = Between::default();
    if since == named.len() {
        return between;
    }
    let head_at = |path: &Path| File::open(path).and_then(|file| head_of(&file, u64::MAX)).unwrap_or_default();
    // Of two that begin alike the later one may be a copy.
    let mut known: Vec<Vec<u8>> = named[..since].iter().map(|(sibling, _)| head_at(sibling)).collect();
    known.push(past.head.clone());
    if present.is_some() && path.is_file() {
        known.push(head_at(path));
    }
    for (sibling, metadata) in named.drain(since..) {
        let head = head_at(&sibling);
        if known.iter().any(|other| begin_alike(other, &head)) {
            between.unclear.push((sibling, "it begins as another does, of which it may be a copy"));
            continue;
        }
        match standing_of(&sibling, &metadata, &head, path, past) {
            Ok(true) => between.logs.push(sibling),
            Ok(false) => {}
            Err(why) => between.unclear.push((sibling, why)),
        }
        known.push(head);
    }
    between
}

/// Whether a file came after `past`, as far as that can be told.
fn standing_of(
    sibling: &Path,
    metadata: &Metadata,
    head: &[u8],
    path: &Path,
    past: &Past,
) -> Result<bool, &'static str> {
    let (modified, created) = times_of(metadata);
    if modified == past.times.0 {
        match (created, past.times.1) {
            (Some(created), Some(before)) if created < before => return Ok(false),
            (Some(created), Some(before)) if created > before => {}
            _ => return Err("it was written at the same time"),
        }
    }
    let text = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head);
    if text.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err("it does not begin as a log, or it is compressed");
    }
    // Others than rotations (editors, backups) do not count.
    if !suffix_of(sibling, path).is_some_and(|suffix| suffix.iter().any(u8::is_ascii_digit)) {
        return Err("its name has no number");
    }
    Ok(true)
}

fn begin_alike(one: &[u8], other: &[u8]) -> bool {
    let length = one.len().min(other.len());
    length > 0 && one[..length] == other[..length]
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

    #[test]
    fn what_came_between_is_told_by_name_time_and_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let write = |name: &str, seconds: u64, text: &str| {
            fs::write(at(name), text).unwrap();
            let file = File::options().write(true).open(at(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
        };
        write("t.jsonl", 60, "{6}");
        write("t.jsonl.1", 50, "{5}");
        write("t.jsonl-20260102", 40, "\u{feff}\n{4}");
        write("t.jsonl.3", 30, "{3}");
        write("t.jsonl.4", 20, "{2}");
        write("t.jsonl.5", 45, "");
        // Copies of one that is older, of one between, of the one that was read, and of the present one.
        write("t.jsonl.copy6", 47, "{2}");
        write("t.jsonl.copy7", 51, "{5} and {6}");
        write("t.jsonl.copy8", 52, "{3}");
        write("t.jsonl.copy9", 61, "{6}");
        write("t.jsonl.2.gz", 41, "\x1f packed");
        write("t.jsonl.bak", 42, "{8}");
        write("other.1", 43, "{9}");
        fs::create_dir(at("t.jsonl.7")).unwrap();
        let past = Past::of(&File::open(at("t.jsonl.3")).unwrap()).unwrap();
        let Between { logs, unclear } = between(&at("t.jsonl"), &past);
        assert_eq!(logs, [at("t.jsonl-20260102"), at("t.jsonl.1")]);
        let unclear: Vec<_> = unclear.into_iter().map(|(path, _)| path).collect();
        let names = ["2.gz", "bak", "copy6", "copy7", "copy8", "copy9"];
        assert_eq!(unclear, names.map(|name| at(&format!("t.jsonl.{name}"))));
        // Behind the newest there is nothing, whether there is one at the path or not.
        let past = Past::of(&File::open(at("t.jsonl.1")).unwrap()).unwrap();
        fs::remove_file(at("t.jsonl.copy9")).unwrap();
        for _ in 0..2 {
            let Between { logs, unclear } = between(&at("t.jsonl"), &past);
            assert_eq!((logs.len(), unclear.len()), (0, 2), "{unclear:?}");
            let _ = fs::remove_file(at("t.jsonl"));
        }
    }
}
