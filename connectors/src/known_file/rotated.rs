//! Finds the files that a log was rotated to, by their names.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use super::siblings;
use crate::jsonl_corpus::directory_of;

/// The part of a file's name after the log's name.
pub(crate) fn suffix_of<'a>(sibling: &'a Path, path: &Path) -> Option<&'a [u8]> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    sibling.file_name()?.as_encoded_bytes().strip_prefix(name)
}

/// Number of bytes of the log's name that `sibling` carries, if it has the name of a rotation: `answers.jsonl.1`,
/// `answers.jsonl-20260102.gz`, or, with the number before the extension, `answers.1.jsonl` and
/// `answers-20260102.jsonl`.
fn carries(sibling: &OsStr, log: &OsStr) -> Option<usize> {
    let (sibling, log) = (sibling.as_encoded_bytes(), log.as_encoded_bytes());
    if sibling == log {
        return Some(usize::MAX);
    }
    if sibling.starts_with(log) {
        return Some(log.len());
    }
    let dot = log.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    let (stem, extension) = log.split_at(dot);
    let middle = sibling.strip_prefix(stem)?.strip_suffix(extension)?;
    let is_number = |byte: &u8| byte.is_ascii_digit() || b".-_:TZ".contains(byte);
    let is_rotation = middle.iter().all(is_number) && middle.iter().any(u8::is_ascii_digit);
    (is_rotation && b".-_".contains(middle.first()?)).then_some(log.len())
}

/// All regular files beside the log that carry its name, except those that rather carry the name of one of the `others`
/// (other logs that are written).
///
/// # Errors
///
/// The directory cannot be listed.
pub(crate) fn rotated(path: &Path, others: &[PathBuf]) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let log = path.file_name().unwrap_or_default();
    let real = |path: &Path| directory_of(path).canonicalize();
    let here = real(path)?;
    let beside = |other: &&PathBuf| real(other).is_ok_and(|there| there == here);
    let others: Vec<&OsStr> =
        others.iter().filter(beside).filter_map(|other| other.file_name()).filter(|other| *other != log).collect();
    let mut named = siblings(path)?;
    named.retain(|(sibling, _)| {
        let Some(name) = sibling.file_name() else { return false };
        let Some(ours) = carries(name, log) else { return false };
        !others.iter().any(|other| carries(name, other).is_some_and(|theirs| theirs > ours))
    });
    named.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(named)
}
