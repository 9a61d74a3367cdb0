//! Files that no reader knows: they are left out, and each kind is named once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of kinds that are named.
const MOST_KINDS: usize = 32;
/// The longest ending of a name that is one of a kind of files.
const LONGEST: usize = 12;

/// Files of a kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Their number.
    pub count: usize,
    /// The first of them.
    pub example: PathBuf,
}

/// The kinds of files that no reader knows, by the endings of their names.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    files: BTreeMap<String, Found>,
    told: BTreeSet<String>,
}

impl Foreign {
    /// Counts a file. Copies that editors keep are not counted.
    pub fn count(&mut self, path: &Path) {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        if name.ends_with('~') || name.starts_with("~$") || name.starts_with('#') {
            return;
        }
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        let kind = match ending.filter(|ending| ending.len() <= LONGEST) {
            Some(ending) => format!(".{ending}"),
            None => "without an ending".to_owned(),
        };
        if !self.told.contains(&kind) {
            let first = || Found { count: 0, example: path.to_owned() };
            self.files.entry(kind).or_insert_with(first).count += 1;
        }
    }

    /// The kinds that were not named yet, with their files.
    pub fn take(&mut self) -> Vec<(String, Found)> {
        let room = MOST_KINDS.saturating_sub(self.told.len());
        let new: Vec<(String, Found)> = std::mem::take(&mut self.files).into_iter().take(room).collect();
        self.told.extend(new.iter().map(|(kind, _)| kind.clone()));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_named_once() {
        let mut foreign = Foreign::default();
        for path in ["a.rtf", "b/c.RTF", "LICENSE", "a.md~", "~$x.docx", "x.tar.gz"] {
            foreign.count(Path::new(path));
        }
        let named = |kinds: Vec<(String, Found)>| {
            let named =
                kinds.into_iter().map(|(kind, found)| format!("{kind} {} {}", found.count, found.example.display()));
            named.collect::<Vec<_>>()
        };
        assert_eq!(named(foreign.take()), [".gz 1 x.tar.gz", ".rtf 2 a.rtf", "without an ending 1 LICENSE"]);
        foreign.count(Path::new("d.rtf"));
        foreign.count(Path::new("d.pages"));
        assert_eq!(named(foreign.take()), [".pages 1 d.pages"]);
        (0..100).for_each(|number| foreign.count(Path::new(&format!("a.x{number}"))));
        assert_eq!((foreign.take().len(), foreign.take().len()), (MOST_KINDS - 4, 0));
    }
}
