//! Finds the logs that were created and rotated away between a log that was read and the present one.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::content::before;
use super::rotated::{Rotation, is_anothers, rotation_of};
use super::{Content, LISTINGS, head_of, pause, siblings};
use crate::watch::identity_of;

/// A log that was read to its end: the data that later logs are recognised by.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// `None` if the log is lost: another file may have its inode now.
    identity: Option<(u64, u64)>,
    times: Times,
    head: Vec<u8>,
    /// The log itself, to compare others with.
    file: Option<Arc<File>>,
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
        let file = file.try_clone().ok().map(Arc::new);
        Ok(Self { identity: Some(identity_of(&metadata)), times: times_of(&metadata), head, file })
    }

    /// A log that is lost.
    pub(super) fn lost(times: Times) -> Self {
        Self { identity: None, times, head: Vec::new(), file: None }
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
    let head_of_listed = |(path, metadata): &(PathBuf, Metadata)| {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            opened => opened.ok(),
        };
        // A file that cannot be read has no head to compare.
        let Some(file) = file else { return Some(Start::default()) };
        let same = file.metadata().is_ok_and(|opened| identity_of(&opened) == identity_of(metadata));
        same.then(|| Start::of(file))
    };
    // A file that is all in another one may be a copy of it, made before the other one grew.
    let mut known: Vec<Start> = named[..since].iter().map(head_of_listed).collect::<Option<_>>()?;
    known.push(Start { head: past.head.clone(), file: past.file.clone() });
    if present.is_some() && path.is_file() {
        known.extend(File::open(path).ok().map(Start::of));
    }
    for (sibling, metadata) in named.drain(since..) {
        let entry = (sibling, metadata);
        let start = head_of_listed(&entry)?;
        let (sibling, metadata) = entry;
        if known.iter().any(|other| start.is_in(other)) {
            between.unclear.push((sibling, "another log begins with all of it, so it may be a copy"));
            continue;
        }
        match standing_of(&sibling, &metadata, &start.head, path, past) {
            Ok(true) => between.logs.push((sibling, identity_of(&metadata))),
            Ok(false) => {}
            Err(why) => between.unclear.push((sibling, why)),
        }
        known.push(start);
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

/// The first bytes of a file, and the file.
#[derive(Clone, Debug, Default)]
struct Start {
    head: Vec<u8>,
    file: Option<Arc<File>>,
}

impl Start {
    fn of(file: File) -> Self {
        let head = head_of(&file, u64::MAX).unwrap_or_default();
        Self { head, file: Some(Arc::new(file)) }
    }

    /// Whether another file begins with all of this one. Logs often begin alike, so the first bytes only rule it out; and one
    /// that is longer than the other has lines of its own.
    fn is_in(&self, other: &Self) -> bool {
        if self.head.is_empty() || !other.head.starts_with(&self.head) {
            return false;
        }
        let (Some(one), Some(other)) = (&self.file, &other.file) else { return true };
        let bytes = |file: &File| file.metadata().map(|metadata| metadata.len());
        let digests = || -> io::Result<bool> {
            let length = bytes(one)?;
            if bytes(other)? < length {
                return Ok(false);
            }
            let digest = |file| Content::of(file, length).map(|mut content| content.digest(length));
            // The last bytes tell most logs apart, without reading all of them.
            Ok(before(one, length)? == before(other, length)? && digest(one)? == digest(other)?)
        };
        digests().unwrap_or(true)
    }
}
