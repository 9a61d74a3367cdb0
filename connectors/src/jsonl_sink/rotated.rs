//! Collects the answers in the files that a sink wrote before: rotated ones, and those of a former path.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use turnflow_engine::connector::{ConnectorError, Search, SinkPosition};

use super::recover::{Found, Torn, unpacked};
use super::{JsonLinesSink, fault};
use crate::known_file::{FileMark, MarkedFile, find, is_same, open_rotated};
use crate::watch::{identity, identity_of};

impl JsonLinesSink {
    /// Collects the answers after a position in a former file of this sink, from before a reload or an edit of its
    /// path. Returns whether the file still has its contents.
    pub(super) fn scan_former(
        &self,
        found: &mut Found,
        at: &SinkPosition,
        search: Search<'_>,
        others: &[PathBuf],
    ) -> Result<bool, ConnectorError> {
        let Some(path) = FileMark::path_of(&at.log) else { return Ok(false) };
        // A position without a mark is the beginning.
        let mark = FileMark::of(at);
        let standing = mark.as_ref().map(|mark| find(&path, mark, at.length));
        let is_found = !matches!(standing, None | Some(MarkedFile::Gone));
        let is_own = is_same(&path, &self.path);
        if !is_own && search.others.iter().any(|other| is_same(other, &path)) {
            let others_had = |at: &SinkPosition| FileMark::path_of(&at.log).is_some_and(|had| is_same(&had, &path));
            let is_longer = |file: &File| file.metadata().is_ok_and(|now| now.len() > at.length);
            let has_more = match &standing {
                Some(MarkedFile::Here(file)) => is_longer(file),
                Some(MarkedFile::Away(file, _)) => {
                    is_longer(file) || fs::metadata(&path).is_ok_and(|now| now.len() > 0)
                }
                Some(MarkedFile::Gone) | None => false,
            };
            // If the other sink has had it before, what is there is the other's.
            return match has_more && !search.others_had.iter().any(others_had) {
                true => Err(ConnectorError::OfAnother { path: path.display().to_string() }),
                false => Ok(is_found),
            };
        }
        // A file that begins so was changed, or is another one: all of it is searched.
        let begins_so = |mark: &FileMark| !matches!(find(&path, &mark.beginning(), at.length), MarkedFile::Gone);
        let mut is_there = is_found || mark.as_ref().is_some_and(begins_so);
        let (file, from, but) = match standing {
            Some(MarkedFile::Here(_)) if at.length > 0 => (former_file(&path)?, at.length, None),
            Some(MarkedFile::Away(file, away)) => {
                let identity = identity_of(&file.metadata().map_err(fault("read", &away))?);
                sync(&file, &away)?;
                scan_one(&away, file, at.length, found)?;
                (former_file(&path)?, 0, Some(identity))
            }
            Some(MarkedFile::Here(_) | MarkedFile::Gone) | None => (former_file(&path)?, 0, None),
        };
        if from == 0 {
            // A position at the beginning stands for the whole file and those before it.
            let marked = mark.as_ref().filter(|_| at.length > 0);
            let marked = marked.map(|mark| Marked { mark, length: at.length, is_found });
            match scan_rotated(&path, found, but, others, marked) {
                Err(ConnectorError::Io { source, .. }) if is_gone(&source) => {
                    tracing::warn!(file = %path.display(), "the directory of this sink's former file no longer exists");
                    return Ok(is_there);
                }
                scanned => is_there |= scanned?,
            }
        }
        let Some(file) = file else { return Ok(is_there) };
        sync(&file, &path)?;
        let scanned = identity_of(&file.metadata().map_err(fault("read", &path))?);
        let torn = found.scan(file, from).map_err(fault("read", &path))?;
        if let Some(torn) = torn.filter(|torn| !is_own && torn.is_ours && !torn.is_whole) {
            cut(&path, scanned, &torn);
        }
        Ok(is_there)
    }
}

/// Opens a former file. `None` if it no longer exists, or if something else is now at its path.
pub(super) fn former_file(path: &Path) -> Result<Option<File>, ConnectorError> {
    // Opening a pipe would wait for its writer, so the metadata is checked first.
    let file = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => File::open(path),
        Ok(_) => {
            tracing::warn!(file = %path.display(), "this sink's former file is no longer a file");
            return Ok(None);
        }
        Err(error) => Err(error),
    };
    match file {
        Err(error) if is_gone(&error) => Ok(None),
        file => file.map(Some).map_err(fault("read", path)),
    }
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The file that was written last, as a checkpoint names it.
#[derive(Clone, Copy)]
pub(super) struct Marked<'a> {
    pub mark: &'a FileMark,
    /// Bytes up to which all its answers are known.
    pub length: u64,
    /// Whether it was found.
    pub is_found: bool,
}

/// Collects the answers in the files rotated from `path`, except in the file `but`, which was already read. It does not
/// matter which of them are newer than the mark, because an answer that is found twice is the same answer. Files that
/// were complete before the marked one are left out if that exists: a later record may have the key of an answer in
/// them. Returns whether the marked file exists: it may be one of these, compressed.
pub(super) fn scan_rotated(
    path: &Path,
    found: &mut Found,
    but: Option<(u64, u64)>,
    others: &[PathBuf],
    marked: Option<Marked<'_>>,
) -> Result<bool, ConnectorError> {
    let mut is_found = marked.is_some_and(|marked| marked.is_found);
    let is_older = |file: &File| marked.is_some_and(|marked| marked.mark.older.has(file));
    let (mut older, mut copies) = (Vec::new(), Vec::new());
    let files = open_rotated(path, others, but).map_err(fault("read the files rotated from", path))?;
    for (sibling, file) in files {
        if is_older(&file) {
            older.push((sibling, file));
            continue;
        }
        sync(&file, &sibling)?;
        let Some(file) = unpacked(file).map_err(fault("read", &sibling))? else {
            tracing::warn!(file = %sibling.display(),
                    "this file has an unsupported compression format: if it contains answers, these may be \
                     written a second time");
            continue;
        };
        if is_older(&file) {
            older.push((sibling, file));
        } else if marked.is_some_and(|marked| !is_found && marked.mark.is_of(&file, marked.length)) {
            copies.push((sibling, file));
        } else {
            scan_one(&sibling, file, 0, found)?;
        }
    }
    // Of several copies, it is unknown which one the mark is of.
    let from = marked.filter(|_| copies.len() == 1).map_or(0, |marked| marked.length);
    is_found |= !copies.is_empty();
    for (sibling, file) in copies {
        scan_one(&sibling, file, from, found)?;
    }
    for (sibling, file) in if is_found { Vec::new() } else { older } {
        if let Some(file) = unpacked(file).map_err(fault("read", &sibling))? {
            scan_one(&sibling, file, 0, found)?;
        }
    }
    Ok(is_found)
}

/// Collects the answers in a rotated file after byte `from`.
pub(super) fn scan_one(path: &Path, file: File, from: u64, found: &mut Found) -> Result<(), ConnectorError> {
    // An unpacked copy is another file than the one at the path.
    let scanned = identity_of(&file.metadata().map_err(fault("read", path))?);
    let torn = found.scan(file, from).map_err(fault("read", path))?;
    if let Some(torn) = torn.filter(|torn| identity(path) == Some(scanned) && torn.is_ours && !torn.is_whole) {
        cut(path, scanned, &torn);
    }
    Ok(())
}

/// Returns when the file's content is on disk. From then on, the answers found in it count as written.
pub(super) fn sync(file: &File, path: &Path) -> Result<(), ConnectorError> {
    file.sync_data().map_err(fault("write to the disk", path))
}

/// Removes the start of an answer that a power loss has left at the end of a rotated file. Does nothing if the file no
/// longer has this identity and length: it may have been rotated again.
pub(super) fn cut(path: &Path, identity: (u64, u64), torn: &Torn) {
    let shorten = |file: File| {
        let metadata = file.metadata()?;
        if identity_of(&metadata) != identity || metadata.len() != torn.start + torn.length {
            return Err(io::Error::other("the file has been renamed or changed"));
        }
        file.set_len(torn.start).and_then(|()| file.sync_data())
    };
    match OpenOptions::new().write(true).open(path).and_then(shorten) {
        Ok(()) => tracing::warn!(file = %path.display(), "removed an incomplete answer"),
        Err(error) => tracing::warn!(%error, file = %path.display(), "cannot remove an incomplete answer"),
    }
}
