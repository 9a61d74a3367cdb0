//! Finds out which of the known files an unknown one is.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use turnflow_records::decode::{Packing, plain};

use super::entry::Entry;
use super::listing::Found;
use super::name_of;
use crate::known_file::{Content, Digest, is_rotation};

/// How many nanoseconds a program that copies a file may round its time.
const ROUNDED: u64 = 2_000_000_000;
/// Number of bytes that are read at once.
const STEP: usize = 64 << 10;

/// Whether a path has the name of another one, perhaps packed, or a name that rotation makes of it, in the same folder, or
/// one in it or around it. Other folders may have files of the same name.
pub(super) fn is_made_of(path: &Path, other: &Path) -> bool {
    let (folder, there) = (path.parent(), other.parent());
    let is_near = folder.zip(there).is_some_and(|(one, other)| one.starts_with(other) || other.starts_with(one));
    let (name, other) = (name_of(path), name_of(other));
    let is_of =
        || plain(&name) == plain(&other) || is_rotation(&name, &other) || is_rotation(&plain(&name), &plain(&other));
    is_near && is_of()
}

/// Maximum number of folders around a copy in which its log may be.
const AROUND: usize = 2;

/// The logs of which a file may be a copy, as rotation makes names, in the same folder or those around it.
pub(super) fn logs_of(path: &Path) -> Vec<PathBuf> {
    let name = name_of(path);
    let Some(written) = name.to_str() else { return Vec::new() };
    let unpacked = plain(&name).to_string_lossy().into_owned();
    let cuts = |text: &str| text.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<_>>();
    let mut names = vec![unpacked.clone()];
    names.extend(
        cuts(written)
            .into_iter()
            .flat_map(|at| [written[..at].to_owned(), unpacked.get(at..).unwrap_or("").to_owned()]),
    );
    if let Some((stem, ending)) = unpacked.rsplit_once('.') {
        names.extend(cuts(stem).into_iter().map(|at| format!("{}.{ending}", &stem[..at])));
    }
    names.retain(|log| !log.is_empty() && log != written && (*log == unpacked || is_rotation(&name, Path::new(log))));
    let folders = path.ancestors().skip(1).take(1 + AROUND);
    folders.flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()
}

/// Whether an unknown file may be a known one that is no more where it was.
pub(super) fn may_be(entry: &Entry, found: &Found) -> bool {
    let is_of_its_time = || entry.seen.is_some_and(|(_, modified)| modified.abs_diff(found.modified) < ROUNDED);
    entry.is_at(found) || entry.names(&found.path) || is_of_its_time()
}

/// What is in a file, unpacked.
pub(super) fn unpacked(file: impl Read + 'static) -> io::Result<(Box<dyn Read>, bool)> {
    use std::io::{BufRead as _, BufReader};
    let mut file = BufReader::with_capacity(STEP, file);
    match Packing::of(file.fill_buf()?) {
        Some(packing) => Ok((packing.reader(file)?, true)),
        None => Ok((Box::new(file), false)),
    }
}

/// Whether what is in a file begins as texts in UTF-16 do.
pub(super) fn is_utf_16(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    unpacked(File::open(path)?)?.0.take(2).read_to_end(&mut start)?;
    Ok(matches!(start[..], [0xff, 0xfe] | [0xfe, 0xff]))
}

/// The content of a file at growing lengths: for each of these, whether its digest is what the file has up to there, and
/// whether the file goes on behind it. Ends at the first length that the file does not have.
pub(super) fn compared(file: File, lengths: &[(u64, Digest)]) -> io::Result<Vec<bool>> {
    let (mut stream, _) = unpacked(file)?;
    let mut content = Content::new();
    let (mut at, mut equal) = (0, Vec::new());
    let mut bytes = vec![0; STEP];
    for (length, digest) in lengths {
        while at < *length {
            let most = STEP.min(usize::try_from(length - at).unwrap_or(STEP));
            let read = match stream.read(&mut bytes[..most]) {
                Ok(0) => return Ok(equal),
                // A packed file that is still written ends anywhere.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(equal),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
                Ok(read) => read,
            };
            content.read(&bytes[..read]);
            at += read as u64;
        }
        equal.push(content.digest(*length) == *digest);
    }
    Ok(equal)
}

/// Whether a file has no more than the beginning of another one: it is a copy that goes no further.
pub(super) fn is_beginning(copy: File, of: File) -> io::Result<bool> {
    let ((mut copy, _), (mut of, _)) = (unpacked(copy)?, unpacked(of)?);
    let (mut one, mut other) = (vec![0; STEP], vec![0; STEP]);
    loop {
        let read = match copy.read(&mut one) {
            Ok(0) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
            Ok(read) => read,
        };
        match of.read_exact(&mut other[..read]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            done => done?,
        }
        if one[..read] != other[..read] {
            return Ok(false);
        }
    }
}
