//! Lists the files that match a pattern, and those beside them.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use globset::{GlobBuilder, GlobMatcher};

use super::Identity;
use crate::watch::identity_of;

/// Maximum depth of folders.
const DEEPEST: usize = 64;

/// A pattern of paths.
#[derive(Debug)]
pub(super) struct Glob {
    root: PathBuf,
    matcher: GlobMatcher,
    /// Number of folders below the root at most.
    depth: usize,
}

/// A file that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub path: PathBuf,
    pub identity: Identity,
    /// Time of creation in nanoseconds, if it is known.
    pub created: Option<u64>,
    pub size: u64,
    /// Time of the last change in nanoseconds.
    pub modified: u64,
    /// Whether it matches the pattern, and does not only lie beside such files.
    pub matches: bool,
}

impl Found {
    pub fn of(path: PathBuf, metadata: &Metadata, matches: bool) -> Self {
        let nanoseconds = |time: io::Result<SystemTime>| {
            let since = time.ok()?.duration_since(UNIX_EPOCH).ok()?;
            u64::try_from(since.as_nanos()).ok()
        };
        let (created, modified) = (nanoseconds(metadata.created()), nanoseconds(metadata.modified()));
        let identity = identity_of(metadata);
        Self { path, identity, created, size: metadata.len(), modified: modified.unwrap_or_default(), matches }
    }

    /// What changes when the file does.
    pub fn state(&self) -> (u64, u64) {
        (self.size, self.modified)
    }
}

/// A path as a pattern that matches nothing else.
#[must_use]
pub fn escaped(path: &str) -> String {
    let one = |letter: char| match letter {
        '*' | '?' | '[' | ']' | '{' | '}' => format!("[{letter}]"),
        '\\' if cfg!(unix) => "\\\\".to_owned(),
        letter => letter.to_string(),
    };
    path.chars().map(one).collect()
}

/// What a part of a pattern matches, if that is one name.
fn literal(part: &str) -> Option<String> {
    let (mut name, mut letters) = (String::new(), part.chars());
    while let Some(letter) = letters.next() {
        name.push(match letter {
            '\\' if cfg!(unix) => letters.next()?,
            '[' => {
                let of = letters.next().filter(|of| !matches!(of, '!' | '^'))?;
                letters.next().filter(|end| *end == ']')?;
                of
            }
            '*' | '?' | '{' => return None,
            letter => letter,
        });
    }
    Some(name)
}

impl Glob {
    /// A pattern for paths in a folder, whose name is no pattern.
    ///
    /// # Errors
    ///
    /// It is no pattern.
    pub fn new(folder: &Path, pattern: &str) -> Result<Self, String> {
        let parts: Vec<Component<'_>> = Path::new(pattern).components().collect();
        let names: Vec<Option<String>> =
            parts.iter().map(|part| literal(&part.as_os_str().to_string_lossy())).collect();
        let fixed = names.iter().position(Option::is_none).unwrap_or(parts.len().saturating_sub(1));
        let mut root = folder.to_owned();
        root.extend(names.into_iter().take(fixed).flatten());
        let rest: PathBuf = parts[fixed..].iter().collect();
        let text = rest.to_string_lossy();
        let glob = GlobBuilder::new(&text).literal_separator(true).build().map_err(|error| error.to_string())?;
        let depth = if text.contains("**") { DEEPEST } else { parts.len() - fixed };
        let root = if root.as_os_str().is_empty() { PathBuf::from(".") } else { root };
        Ok(Self { root, matcher: glob.compile_matcher(), depth })
    }

    /// The folder in which all files are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All files. Folders that cannot be read are given to `fault`, and what matches and is no file, such as a pipe, as not
    /// supported.
    pub fn list(&self, fault: &mut dyn FnMut(&Path, &io::Error)) -> Vec<Found> {
        let mut found: HashMap<Identity, Found> = HashMap::new();
        self.walk(&self.root, Path::new(""), 1, &mut found, fault);
        found.into_values().collect()
    }

    fn walk(
        &self,
        folder: &Path,
        below: &Path,
        depth: usize,
        found: &mut HashMap<Identity, Found>,
        fault: &mut dyn FnMut(&Path, &io::Error),
    ) {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return fault(folder, &error),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    fault(folder, &error);
                    continue;
                }
            };
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let (path, below) = (entry.path(), below.join(&name));
            // Links to files are followed, and those to folders, which may lead in circles, are not.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth < self.depth {
                    self.walk(&path, &below, depth + 1, found, fault);
                }
                continue;
            }
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if !metadata.is_file() {
                if self.matcher.is_match(&below) && !metadata.is_dir() {
                    fault(&path, &io::ErrorKind::Unsupported.into());
                }
                continue;
            }
            let file = Found::of(path, &metadata, self.matcher.is_match(&below));
            // A file with several names is one file.
            let known = found.entry(file.identity).or_insert_with(|| file.clone());
            if file.matches && (!known.matches || file.path < known.path) {
                *known = file;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_letters_of_patterns_are_found_if_these_are_escaped() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a[b]{c}");
        for name in ["x[1]*", "x1", "{y}?", "z]"] {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("t.jsonl"), "{}").unwrap();
        }
        let list = |pattern: &str| {
            let glob = Glob::new(&folder, pattern).unwrap();
            let mut found: Vec<String> = glob
                .list(&mut |path, error| panic!("{}: {error}", path.display()))
                .into_iter()
                .filter(|found| found.matches)
                .map(|found| found.path.strip_prefix(&folder).unwrap().display().to_string())
                .collect();
            found.sort_unstable();
            (found, glob.root().to_owned())
        };
        for name in ["x[1]*", "{y}?", "z]"] {
            let (found, root) = list(&format!("{}/**/*", escaped(name)));
            assert_eq!((found, root), (vec![format!("{name}/t.jsonl")], folder.join(name)), "{name}");
            let (found, root) = list(&format!("{}/t.jsonl", escaped(name)));
            assert_eq!((found, root), (vec![format!("{name}/t.jsonl")], folder.join(name)), "{name}");
        }
        assert_eq!(list("x[1]*/*").0, ["x1/t.jsonl"]);
        assert_eq!(list("*/t.jsonl").0.len(), 4);
        #[cfg(unix)]
        assert_eq!(list(r"x\[1\]\*/*").0, ["x[1]*/t.jsonl"]);
        assert!(Glob::new(&folder, "{y").unwrap_err().contains("[{]"));
    }
}
