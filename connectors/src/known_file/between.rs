//! Finds the logs that were created and rotated away between a log that was read and the present one.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::rotated::{Rotation, is_anothers, rotation_of};
use super::{LISTINGS, head_of, pause, siblings};
use crate::watch::identity_of;

/// A log that was read to its end: the data that later logs are recognised by.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// `None` if the log is lost: another file may have its inode now.
    identity: Option<(u64, u64)>,
    times: Times,
    head: Vec<u8>,
}

/// Time of the last modification, and of the creation.
pub(super) type Times = (Option<SystemTime>, Option<SystemTime>);

fn times_of(metadata: &Metadata) -> Times {
    (metadata.modified().ok(), metadata.created().ok())
}

impl Past {
    /// Describes an open log that starts with `head`.
    pub(crate) fn of(file: &File, head: Vec<u8>) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { identity: Some(identity_of(&metadata)), times: times_of(&metadata), head })
    }

    /// A log that is lost.
    pub(super) fn lost(times: Times) -> Self {
        Self { identity: None, times, head: Vec::new() }
    }
}

/// Files that may lie between a log that was read and the present one at its path.
#[derive(Debug, Default)]
pub(crate) struct Between {
    /// Logs that do, oldest first. Each has its identity, because the name may already belong to another file.
    pub(crate) logs: Vec<(PathBuf, (u64, u64))>,
    /// Files that cannot be classified, with the reason.
    pub(crate) unclear: Vec<(PathBuf, &'static str)>,
}

/// The logs that were created and rotated away after `past`: files with the name of a rotation that were modified later
/// and whose content is in no other file. Logs of `others`, which are read too, are none of them.
pub(crate) fn between(path: &Path, past: &Past, others: &[PathBuf]) -> Between {
    let mut between = None;
    // While files are renamed, a listed name may belong to another file when it is opened.
    for tries in 0..LISTINGS {
        between = listed(path, past, others);
        if between.is_some() {
            break;
        }
        std::thread::sleep(pause(tries));
    }
    between.unwrap_or_default()
}

/// One listing; `None` if a file was renamed in the meantime.
fn listed(path: &Path, past: &Past, others: &[PathBuf]) -> Option<Between> {
    let present = fs::metadata(path).ok().map(|metadata| identity_of(&metadata));
    let mut named = siblings(path).unwrap_or_default();
    named.retain(|(sibling, metadata)| {
        let identity = identity_of(metadata);
        let is_known = [past.identity, present].contains(&Some(identity));
        let is_rotated = rotation_of(sibling, path).is_some() && !is_anothers(sibling, path, others);
        is_rotated && metadata.len() > 0 && !is_known
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
        // A file that cannot be read has no head to compare.
        let Some(file) = file else { return Some(Vec::new()) };
        let same = file.metadata().is_ok_and(|opened| identity_of(&opened) == identity_of(metadata));
        same.then(|| head_of(&file, u64::MAX).unwrap_or_default())
    };
    // If two files start alike, the later one may be a copy.
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
            between.unclear.push((sibling, "it starts like another log and may be a copy of it"));
            continue;
        }
        match standing_of(&sibling, &metadata, &head, path, past) {
            Ok(true) => between.logs.push((sibling, identity_of(&metadata))),
            Ok(false) => {}
            Err(why) => between.unclear.push((sibling, why)),
        }
        known.push(head);
    }
    // The present file may also have been rotated in the meantime.
    (fs::metadata(path).ok().map(|metadata| identity_of(&metadata)) == present).then_some(between)
}

/// Whether a file is newer than `past`. The error says why this cannot be decided.
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
            _ => return Err("it was modified at the same time"),
        }
    }
    let text = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(head);
    if text.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err("it does not start like a log, or is compressed");
    }
    match rotation_of(sibling, path) {
        Some(Rotation::Numbered) => Ok(true),
        Some(Rotation::Unclear) => Err("its name may be that of another log"),
        // Files without a number are not rotations, but come from editors or backups.
        Some(Rotation::Unnumbered) | None => Err("its name has no number"),
    }
}

fn begin_alike(one: &[u8], other: &[u8]) -> bool {
    let length = one.len().min(other.len());
    length > 0 && one[..length] == other[..length]
}
