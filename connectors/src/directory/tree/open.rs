//! Opens a file of the directory: only a regular file, and only one that is inside, unless the source follows links
//! anywhere.
//!
//! The check is made on the open file, not on its path: a link may be switched between a check and the opening.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::Tree;
use crate::directory::Links;
use crate::file_system::is_of_the_system;
use crate::readers::ReadError;
use crate::watch::identity_of;

impl Tree<'_> {
    /// Opens a file for reading.
    pub(super) fn open(&self, place: &Path) -> Result<File, ReadError> {
        match open_inside(place, self.source.links, &self.real)? {
            Some(file) => Ok(file),
            // The directory itself was moved away with all that is in it.
            None if self.watched.is_some() && !self.root_stands() => Err(io::Error::from(ErrorKind::NotFound).into()),
            None => Err(ReadError::Outside),
        }
    }
}

/// Opens a file of the directory with this real path; `None` if it leads out of it.
pub(in crate::directory) fn open_inside(place: &Path, links: Links, real: &Path) -> Result<Option<File>, ReadError> {
    let file = open_now(place)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::from(ErrorKind::NotFound).into());
    }
    if is_of_the_system(&file) {
        return Err(ReadError::OfTheSystem);
    }
    if links == Links::Anywhere {
        return Ok(Some(file));
    }
    match real_path(&file, &metadata, place)?.strip_prefix(real) {
        Ok(inside) if inside.components().any(|part| is_private(part.as_os_str())) => Err(ReadError::Hidden),
        Ok(_) => Ok(Some(file)),
        Err(_) => Ok(None),
    }
}

/// Whether a name begins with a dot, as `.env` and `.git` do. The directories of a ConfigMap begin with two.
fn is_private(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && !name.starts_with(b"..")
}

/// Opens a path without waiting for the other end of a pipe.
fn open_now(place: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(place)
}

/// Where an open file is.
fn real_path(file: &File, metadata: &Metadata, place: &Path) -> io::Result<PathBuf> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd as _;
        if let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) {
            return Ok(path);
        }
    }
    let _ = file;
    // The path may lead elsewhere by now; the open file counts.
    let path = place.canonicalize()?;
    match fs::metadata(&path) {
        Ok(now) if identity_of(&now) == identity_of(metadata) => Ok(path),
        _ => Err(ErrorKind::NotFound.into()),
    }
}
