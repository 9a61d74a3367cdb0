//! Paths that a source looks at later, such as files that are being written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use super::tree::Tree;
use crate::watch::{Burst, Touch, WRITING};

/// Paths to check later, relative to the root.
#[derive(Default)]
pub(super) struct Waiting(BTreeMap<PathBuf, (Instant, bool)>);

impl Waiting {
    /// Schedules the checks that the tree asks for.
    pub fn again(&mut self, tree: &mut Tree<'_>) {
        for (path, pause, last) in tree.take_again() {
            self.0.insert(path, (Instant::now() + pause, last));
        }
    }

    pub fn next(&self, tick: Instant) -> Instant {
        self.0.values().map(|(due, _)| *due).min().map_or(tick, |due| due.min(tick))
    }

    /// The paths to check now, each with whether this is the last check.
    pub fn sort(&mut self, burst: Burst, tree: &Tree<'_>) -> BTreeSet<(PathBuf, bool)> {
        let now = Instant::now();
        let mut look = BTreeSet::new();
        if burst.rescan {
            look.insert((PathBuf::new(), false));
        }
        for (path, touch) in burst.touched {
            let Some(path) = tree.relative(&path) else { continue };
            let writing = match touch {
                Touch::Settled => false,
                // Nothing has been written to an empty file yet.
                Touch::Created => tree.is_empty(&path),
                Touch::Writing => true,
            };
            if !writing {
                self.0.remove(&path);
                look.insert((path, false));
            } else if self.0.get(&path).is_none_or(|(_, last)| *last) {
                self.0.insert(path, (now + WRITING, false));
            }
        }
        self.0.retain(|path, (due, last)| {
            let wait = *due > now;
            if !wait {
                look.insert((path.clone(), *last));
            }
            wait
        });
        look
    }
}
