//! The logs that the sources of this process read. The log of one source may be named like a rotated log of another:
//! `turns.2.jsonl` beside `turns.jsonl`.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// The paths of all sources that exist, also twice while a reload replaces one.
static LOGS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A source's entry in the list.
#[derive(Debug)]
pub(super) struct Listed(PathBuf);

impl Listed {
    pub(super) fn new(path: &Path) -> Self {
        LOGS.lock().push(path.to_owned());
        Self(path.to_owned())
    }

    /// The logs of other paths.
    pub(super) fn others(&self) -> Vec<PathBuf> {
        LOGS.lock().iter().filter(|path| **path != self.0).cloned().collect()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut logs = LOGS.lock();
        let found = logs.iter().position(|path| *path == self.0);
        found.map(|at| logs.swap_remove(at));
    }
}
