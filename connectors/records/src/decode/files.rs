//! The files at paths, and those in folders and archives.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use super::packed;
use crate::MapError;

/// The files at these paths; those of folders in the order of their names.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, MapError> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        walk(path, &mut found).map_err(|source| MapError::Io { path: path.clone(), source })?;
        if found.len() == before {
            return Err(MapError::Nothing(path.clone()));
        }
    }
    Ok(found)
}

fn walk(path: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    if !path.metadata()?.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    let mut entries: Vec<_> = std::fs::read_dir(path)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries.into_iter().filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')) {
        // Links may lead anywhere.
        if !entry.file_type()?.is_symlink() {
            walk(&entry.path(), found)?;
        }
    }
    Ok(())
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
