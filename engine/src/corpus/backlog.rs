//! Back-pressure for sources: limits the documents that are read but not prepared.
//!
//! Documents are counted per commit, since a commit is the smallest unit of preparation. A commit
//! above the limit is read to its end, and the next one waits.

use std::collections::VecDeque;

/// Maximum number of unprepared documents; a single commit may exceed it.
pub(super) const DOCUMENTS: usize = 4096;
/// Maximum bytes of their texts.
pub(super) const BYTES: usize = 32 << 20;

/// A number of documents and the bytes of their texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub documents: usize,
    pub bytes: usize,
}

/// The documents that are read but not prepared.
#[derive(Default)]
pub(super) struct PreparationBacklog {
    /// The load of the commit that is being read.
    open: Load,
    /// The times and loads of complete commits that have documents.
    commits: VecDeque<(u64, Load)>,
    /// The total.
    all: Load,
}

impl PreparationBacklog {
    /// Adds a document of this many bytes to the open commit.
    pub fn add(&mut self, bytes: usize) {
        for load in [&mut self.open, &mut self.all] {
            load.documents += 1;
            load.bytes += bytes;
        }
    }

    /// Closes the open commit, at this time.
    pub fn commit(&mut self, at: u64) {
        let load = std::mem::take(&mut self.open);
        if load.documents > 0 {
            self.commits.push_back((at, load));
        }
    }

    /// Removes all commits before this time, which are prepared. Returns whether reading may resume.
    pub fn passed(&mut self, time: u64) -> bool {
        let was_full = self.is_full();
        while let Some((_, load)) = self.commits.front().copied().filter(|(at, _)| *at < time) {
            self.all.documents -= load.documents;
            self.all.bytes -= load.bytes;
            self.commits.pop_front();
        }
        was_full && !self.is_full()
    }

    /// Whether the next commit must wait. Never true within a commit, which would wait for itself.
    pub fn is_full(&self) -> bool {
        self.open.documents == 0 && (self.all.documents >= DOCUMENTS || self.all.bytes >= BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_between_commits_only_and_until_enough_is_prepared() {
        let mut backlog = PreparationBacklog::default();
        for _ in 0..DOCUMENTS {
            backlog.add(1);
        }
        assert!(!backlog.is_full(), "a commit above the limit is read to its end");
        backlog.commit(0);
        assert!(backlog.is_full());
        backlog.commit(1);
        assert!(!backlog.passed(0) && backlog.is_full());
        assert!(backlog.passed(1) && !backlog.is_full());
        assert!(!backlog.passed(2), "it was not full");
        backlog.add(BYTES);
        backlog.commit(2);
        assert!(backlog.is_full(), "one document can exceed the limit");
        assert!(backlog.passed(u64::MAX) && backlog.all == Load::default());
    }
}
