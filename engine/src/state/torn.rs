//! Detects a format file that a power loss left empty, incomplete or filled with zeros.

use std::path::Path;

/// The files and directories of the current format: names, or names before the first dot.
const KNOWN: &[&str] = &[
    "lock",
    "format",
    "epoch.json",
    "turns.redb",
    "memo.redb",
    "dead-letters.jsonl",
    "corpora",
    "components",
    "status.sock",
    "documents",
    "verify",
    "backup-id",
    "cluster",
    "processes",
    "hosts",
    "secret",
    "pipeline.json",
    "standing.bin",
];

/// Whether the text found may be an incompletely written `format`.
pub(super) fn is_torn(found: &str, format: &str) -> bool {
    let found = found.trim_end_matches('\0');
    found.len() < format.len() && format.starts_with(found)
}

/// Whether the directory has only files of the current format; another format would have others.
/// Read errors are ignored here: they are reported when the files are used.
pub(super) fn has_known_files(directory: &Path) -> bool {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().all(|name| {
        let name = name.to_string_lossy();
        // With an extension: temporary files and backups.
        KNOWN.iter().any(|known| name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{FORMAT, StateDirectory, StateError};

    #[test]
    fn a_format_file_that_was_not_written_to_its_end_is_mended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("format");
        for known in ["components", "cluster", "processes"] {
            std::fs::create_dir(dir.path().join(known)).unwrap();
        }
        std::fs::write(dir.path().join("status.sock"), "").unwrap();
        for found in ["", "turnf", "turnflow state 1", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
            std::fs::write(dir.path().join("epoch.json.new"), "").unwrap();
            std::fs::write(&path, found).unwrap();
            drop(StateDirectory::open(dir.path()).unwrap());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), FORMAT, "{found:?}");
        }
        for (found, other) in [("turnflow state 2\n", None), ("", Some("shards"))] {
            std::fs::write(&path, found).unwrap();
            other.iter().for_each(|other| std::fs::write(dir.path().join(other), "").unwrap());
            assert!(matches!(StateDirectory::open(dir.path()), Err(StateError::Format { .. })), "{found:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), found);
        }
    }
}
