//! The files at paths, and those in folders and archives.

use std::collections::HashSet;
use std::fs::{File, FileType};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use super::packed;
use crate::MapError;

/// What is at some paths.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    /// The files; those of folders in the order of their names.
    pub files: Vec<PathBuf>,
    /// What is in folders and is no file, such as a pipe, and what it is.
    pub others: Vec<(PathBuf, &'static str)>,
}

/// The files at these paths, and those in folders, with links to files. A pipe has no end that is known, and is not read.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Inputs, MapError> {
    let (mut inputs, mut links) = (Inputs::default(), Vec::new());
    for path in paths {
        let before = (inputs.files.len(), links.len());
        let fails = |source| MapError::Io { path: path.clone(), source };
        let kind = path.metadata().map_err(fails)?.file_type();
        match kind.is_dir() {
            true => walk(path, &mut inputs, &mut links).map_err(fails)?,
            false if kind.is_file() => inputs.files.push(path.clone()),
            false => return Err(MapError::NoFile { path: path.clone(), what: what(kind) }),
        }
        if (inputs.files.len(), links.len()) == before {
            return Err(MapError::Nothing { path: path.clone(), others: inputs.others });
        }
    }
    // A link to a file that is read anyway is not read twice.
    if !links.is_empty() {
        let mut known: HashSet<PathBuf> = inputs.files.iter().filter_map(|path| path.canonicalize().ok()).collect();
        for (at, link) in links.into_iter().rev() {
            if link.canonicalize().is_ok_and(|target| known.insert(target)) {
                inputs.files.insert(at, link);
            }
        }
    }
    Ok(inputs)
}

/// Takes the files of a folder, and its links to files with the places that they have among these.
fn walk(folder: &Path, inputs: &mut Inputs, links: &mut Vec<(usize, PathBuf)>) -> io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(folder)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries.into_iter().filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')) {
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            walk(&path, inputs, links)?;
        } else if kind.is_file() {
            inputs.files.push(path);
        } else if !kind.is_symlink() {
            inputs.others.push((path, what(kind)));
        } else {
            match path.metadata().map(|metadata| metadata.file_type()) {
                Ok(kind) if kind.is_file() => links.push((inputs.files.len(), path)),
                // It may lead anywhere, also to a folder around it.
                Ok(kind) if kind.is_dir() => inputs.others.push((path, "a link to a folder")),
                Ok(kind) => inputs.others.push((path, what(kind))),
                Err(_) => inputs.others.push((path, "a link to nothing")),
            }
        }
    }
    Ok(())
}

/// What is no file.
fn what(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    let _ = kind;
    "a device"
}

/// The pattern for the names of files, if a mapping has one.
pub(crate) fn pattern(pattern: &str) -> Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| format!("`files` is no pattern: {error}"))
}

/// Whether a pattern allows a file: by its name, or by the end of its path.
pub(crate) fn allows(pattern: Option<&GlobMatcher>, path: &Path) -> bool {
    let Some(pattern) = pattern else { return true };
    path.file_name().is_some_and(|name| pattern.is_match(name) || pattern.is_match(packed::plain(Path::new(name))))
}

/// Maximum number of files in an archive.
const ENTRIES: usize = 1_000_000;

/// Gives each file of a ZIP archive, in the order of their names, as a path within the archive and a reader.
pub(super) fn entries(
    archive: impl Read + Seek,
    path: &Path,
    each: &mut dyn FnMut(&Path, &mut dyn Read) -> io::Result<()>,
) -> io::Result<()> {
    let mut archive = zip::ZipArchive::new(archive).map_err(io::Error::other)?;
    if archive.len() > ENTRIES {
        return Err(io::Error::other(format!("the archive has more than {ENTRIES} files")));
    }
    let mut names: Vec<String> = archive.file_names().map(str::to_owned).collect();
    names.retain(|name| {
        let is_hidden = |part: &str| part.starts_with('.') || part == "__MACOSX";
        !name.ends_with('/') && !name.split('/').any(is_hidden)
    });
    names.sort_unstable();
    for name in names {
        let mut entry = archive.by_name(&name).map_err(io::Error::other)?;
        each(&path.join(name), &mut entry)?;
    }
    Ok(())
}

/// Opens a file, unpacked.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    packed::unpacked(Box::new(File::open(path)?))
}
