//! Finds the files that a log was rotated to, by their names.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::{LISTINGS, beside, identities, pause, target};
use crate::jsonl_corpus::directory_of;
use crate::watch::identity_of;

/// Endings of packed files, which come after all else.
const PACKED: [&[u8]; 8] = [b".gz", b".zst", b".xz", b".bz2", b".lz4", b".zip", b".Z", b".7z"];
/// Number of digits of a date, which needs no separator: `turns20260102.jsonl`.
const DATE: usize = 6;

/// What the name of a file that was rotated from a log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    /// It has a number or a date.
    Numbered,
    /// It has none.
    Unnumbered,
    /// Another log may be named so: `turns1.jsonl`, `turns-eu.jsonl`.
    Unclear,
}

/// How a file's name was made from a log's name; `None` if it was not.
///
/// The number or date is behind the name (`turns.jsonl.1`, `turns.jsonl-20260102.gz`), before the extension
/// (`turns.1.jsonl`, `turns-2026-01-02T03-04-05.000.jsonl`) or before the name (`20260102-turns.jsonl`).
pub(super) fn made_from(sibling: &[u8], log: &[u8]) -> Option<Rotation> {
    if let Some(behind) = sibling.strip_prefix(log) {
        let has_number = unpacked(behind).iter().any(u8::is_ascii_digit);
        return Some(if has_number { Rotation::Numbered } else { Rotation::Unnumbered });
    }
    let name = unpacked(sibling);
    let is_separator = |byte: &u8| b".-_@".contains(byte);
    if let Some(before) = name.strip_suffix(log) {
        let is_rotation = is_number(before) && before.last().is_some_and(is_separator);
        return is_rotation.then_some(Rotation::Numbered);
    }
    let dot = log.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    let (stem, extension) = log.split_at(dot);
    let middle = name.strip_prefix(stem)?.strip_suffix(extension)?;
    if !is_number(middle) {
        // `turns.old.jsonl` or `turns-Jan-01.jsonl`, but also `turns-eu.jsonl`.
        return (middle.len() > 1 && middle.first().is_some_and(is_separator)).then_some(Rotation::Unclear);
    }
    let digits = middle.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_clear = digits >= DATE || middle.first().is_some_and(|first| is_separator(first) || b" (".contains(first));
    Some(if is_clear { Rotation::Numbered } else { Rotation::Unclear })
}

/// A name without the ending of a packed file.
fn unpacked(name: &[u8]) -> &[u8] {
    PACKED.iter().find_map(|ending| name.strip_suffix(*ending)).unwrap_or(name)
}

/// Whether this is a number, a date or a time.
fn is_number(part: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_digit() || b".-_:TZ@+ ()".contains(byte);
    part.iter().all(fits) && part.iter().any(u8::is_ascii_digit)
}

/// How a file's name was made from the log's name, or from that of the file which a link at the log's path names.
pub(super) fn rotation_of(sibling: &Path, path: &Path) -> Option<Rotation> {
    let name = sibling.file_name()?.as_encoded_bytes();
    let of = |path: &Path| made_from(name, path.file_name().unwrap_or_default().as_encoded_bytes());
    of(path).or_else(|| of(&target(path)?))
}

/// Number of bytes of the log's name that `sibling` carries, if it has the name of a rotation.
fn carries(sibling: &OsStr, log: &OsStr) -> Option<usize> {
    let (sibling, log) = (sibling.as_encoded_bytes(), log.as_encoded_bytes());
    if sibling == log {
        return Some(usize::MAX);
    }
    made_from(sibling, log).filter(|made| *made != Rotation::Unclear).map(|_| log.len())
}

/// Whether a file is one of the `others`, or is more likely rotated from one of them than from `path`.
pub(super) fn is_anothers(sibling: &Path, path: &Path, others: &[PathBuf]) -> bool {
    let Some(name) = sibling.file_name() else { return false };
    let real = |path: &Path| directory_of(path).canonicalize().ok();
    let here = real(sibling);
    let ours = carries(name, path.file_name().unwrap_or_default());
    others.iter().filter(|other| real(other) == here && other.file_name() != path.file_name()).any(|other| {
        let theirs = other.file_name().and_then(|other| carries(name, other));
        theirs.is_some_and(|theirs| ours.is_none_or(|ours| theirs > ours))
    })
}

/// All regular files beside the log that carry its name, except those that match the name of one of the `others` (other
/// logs that are written) more closely.
///
/// # Errors
///
/// The directory cannot be listed.
pub(crate) fn rotated(path: &Path, others: &[PathBuf]) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut others: Vec<PathBuf> = others.to_vec();
    others.extend(others.iter().filter_map(|other| target(other)).collect::<Vec<_>>());
    let mut named = rotated_beside(path, &others)?;
    if let Some(target) = target(path) {
        named.extend(rotated_beside(&target, &others)?);
        // Excludes the link's own file, and duplicates.
        let mut known: HashSet<_> =
            fs::metadata(path).ok().map(|metadata| identity_of(&metadata)).into_iter().collect();
        named.retain(|(_, metadata)| known.insert(identity_of(metadata)));
    }
    named.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(named)
}

/// Opens the files that [`rotated`] finds, except the one with the identity `but`. If files are renamed meanwhile, the
/// search is repeated, so that no file is missed or taken for another.
///
/// # Errors
///
/// The directory cannot be listed, or a file cannot be opened.
pub(crate) fn open_rotated(
    path: &Path,
    others: &[PathBuf],
    but: Option<(u64, u64)>,
) -> io::Result<Vec<(PathBuf, File)>> {
    let mut tries = 0;
    loop {
        let named = rotated(path, others)?;
        let mut files = Vec::new();
        let mut is_renamed = false;
        for (sibling, metadata) in named.iter().filter(|(_, metadata)| Some(identity_of(metadata)) != but) {
            match File::open(sibling) {
                Ok(file) => {
                    is_renamed |= identity_of(&file.metadata()?) != identity_of(metadata);
                    files.push((sibling.clone(), file));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => is_renamed = true,
                Err(error) => return Err(error),
            }
        }
        is_renamed |= identities(&rotated(path, others)?) != identities(&named);
        if !is_renamed || tries == LISTINGS {
            return Ok(files);
        }
        std::thread::sleep(pause(tries));
        tries += 1;
    }
}

/// The same in the path's own directory.
fn rotated_beside(path: &Path, others: &[PathBuf]) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let log = path.file_name().unwrap_or_default();
    let real = |path: &Path| directory_of(path).canonicalize();
    let here = real(path)?;
    let is_beside = |other: &&PathBuf| real(other).is_ok_and(|there| there == here);
    let others: Vec<&OsStr> =
        others.iter().filter(is_beside).filter_map(|other| other.file_name()).filter(|other| *other != log).collect();
    let mut named = beside(path)?;
    named.retain(|(sibling, _)| {
        let Some(name) = sibling.file_name() else { return false };
        let Some(ours) = carries(name, log) else { return false };
        !others.iter().any(|other| carries(name, other).is_some_and(|theirs| theirs > ours))
    });
    Ok(named)
}
