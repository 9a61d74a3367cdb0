//! Finds the files that a log was rotated to, by their names.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::{LISTINGS, beside, identities, pause, target};
use crate::jsonl_corpus::directory_of;
use crate::watch::identity_of;

/// The part of a file's name after the log's name, or after that of the file which a link at the log's path names.
pub(crate) fn suffix_of<'a>(sibling: &'a Path, path: &Path) -> Option<&'a [u8]> {
    let sibling = sibling.file_name()?.as_encoded_bytes();
    let after = |path: &Path| sibling.strip_prefix(path.file_name().unwrap_or_default().as_encoded_bytes());
    after(path).or_else(|| after(&target(path)?))
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

/// All regular files beside the log that carry its name, except those that match the name of one of the `others` (other
/// logs that are written) more closely.
///
/// # Errors
///
/// The directory cannot be listed.
pub(super) fn rotated(path: &Path, others: &[PathBuf]) -> io::Result<Vec<(PathBuf, Metadata)>> {
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
