//! The logs that came and went between one that has been read and the one at the path now.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::rotated::suffix_of;
use super::{head_of, siblings};
use crate::watch::identity_of;

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
    /// Of an open log that begins so; it can be read on.
    pub(crate) fn of(file: &File, head: Vec<u8>) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { identity: identity_of(&metadata), times: times_of(&metadata), head })
    }
}

/// So often the directory is listed anew.
const LISTINGS: u32 = 20;

/// Files that may be between a log that has been read and the one at its path now.
#[derive(Debug, Default)]
pub(crate) struct Between {
    /// Those that are, the oldest first, each with its identity: the name may be another's by now.
    pub(crate) logs: Vec<(PathBuf, (u64, u64))>,
    /// Those of which it cannot be told, with the reason.
    pub(crate) unclear: Vec<(PathBuf, &'static str)>,
}

/// The logs that were made and rotated away after `past` was: files named as rotations name them,
/// written later, which hold what no other file does.
pub(crate) fn between(path: &Path, past: &Past) -> Between {
    let mut between = None;
    // While files are renamed, a name that was listed may be another file's when it is opened.
    for _ in 0..LISTINGS {
        between = listed(path, past);
        if between.is_some() {
            break;
        }
    }
    between.unwrap_or_default()
}

/// `None` if a file was renamed since it was listed.
fn listed(path: &Path, past: &Past) -> Option<Between> {
    let present = fs::metadata(path).ok().map(|metadata| identity_of(&metadata));
    let mut named = siblings(path).unwrap_or_default();
    named.retain(|(sibling, metadata)| {
        let identity = identity_of(metadata);
        let is_known = identity == past.identity || Some(identity) == present;
        suffix_of(sibling, path).is_some() && metadata.len() > 0 && !is_known
    });
    named.sort_by_cached_key(|(sibling, metadata)| (times_of(metadata), sibling.clone()));
    let since = named.partition_point(|(_, metadata)| metadata.modified().ok() < past.times.0);
    let mut between = Between::default();
    if since == named.len() {
        return Some(between);
    }
    let head_at = |path: &Path| File::open(path).and_then(|file| head_of(&file, u64::MAX)).unwrap_or_default();
    let head_of_listed = |(path, metadata): &(PathBuf, Metadata)| {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            opened => opened.ok(),
        };
        // What cannot be read has no beginning that could be told from others'.
        let Some(file) = file else { return Some(Vec::new()) };
        let same = file.metadata().is_ok_and(|opened| identity_of(&opened) == identity_of(metadata));
        same.then(|| head_of(&file, u64::MAX).unwrap_or_default())
    };
    // Of two that begin alike the later one may be a copy.
    let mut known: Vec<Vec<u8>> = named[..since].iter().map(head_of_listed).collect::<Option<_>>()?;
    known.push(past.head.clone());
    if present.is_some() && path.is_file() {
        known.push(head_at(path));
    }
    for (sibling, metadata) in named.drain(since..) {
        let entry = (sibling, metadata);
        let head = head_of_listed(&entry)?;
        let (sibling, metadata) = entry;
        if known.iter().any(|other| begin_alike(other, &head)) {
            between.unclear.push((sibling, "it begins as another does, of which it may be a copy"));
            continue;
        }
        match standing_of(&sibling, &metadata, &head, path, past) {
            Ok(true) => between.logs.push((sibling, identity_of(&metadata))),
            Ok(false) => {}
            Err(why) => between.unclear.push((sibling, why)),
        }
        known.push(head);
    }
    // The present one, too, may have become one of these.
    (fs::metadata(path).ok().map(|metadata| identity_of(&metadata)) == present).then_some(between)
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
