//! The files that are there now.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use super::Run;
use crate::files::entry::Entry;
use crate::files::listing::Found;
use crate::files::{Files, Identity};

impl Run<'_> {
    /// Lists the files. What cannot be read, or is no file, is told once.
    pub(super) fn list(&mut self) -> Vec<Found> {
        let mut faults: Vec<(PathBuf, bool, String)> = Vec::new();
        let mut list = |files: &Files| {
            files.glob.list(&mut |path, error| {
                let is_file = error.kind() != io::ErrorKind::Unsupported;
                faults.push((path.to_owned(), is_file, error.to_string()));
            })
        };
        let mut found = list(self.files);
        let here: HashSet<Identity> = found.iter().map(|file| file.identity).collect();
        // While files are renamed, a listing may lack one.
        let lacks = |entry: &Entry| !entry.is_lost && !here.contains(&entry.identity);
        if self.entries.values().any(lacks) {
            let again = list(self.files);
            let here: HashSet<Identity> = again.iter().map(|file| file.identity).collect();
            found.retain(|file| !here.contains(&file.identity) && file.path.exists());
            found.extend(again);
        }
        for (path, is_file, reason) in faults {
            if !self.told.insert(path.clone()) {
                continue;
            }
            if !is_file {
                tracing::warn!(path = %path.display(), "this is no file, such as a pipe or a device: it is not read");
            } else {
                tracing::warn!(folder = %path.display(), reason, "a folder of logs cannot be read; will retry");
            }
        }
        found
    }
}
