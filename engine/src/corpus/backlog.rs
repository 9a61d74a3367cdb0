//! What is read of a source and not prepared yet: the source is held back where it is too much.
//!
//! Documents are counted by commit, since a commit is the least that can be prepared: one that is
//! larger than the bound is read to its end all the same, and the next one waits.

use std::collections::VecDeque;

/// Documents that are read ahead of their preparation, at most, but for those of one commit.
pub(super) const DOCUMENTS: usize = 4096;
/// Bytes of their text.
pub(super) const BYTES: usize = 32 << 20;

/// Documents and the bytes of their texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub documents: usize,
    pub bytes: usize,
}

/// What is read and not prepared.
#[derive(Default)]
pub(super) struct PreparationBacklog {
    /// Of the commit that is being read.
    open: Load,
    /// Of those that are read, with their times; without those that have no documents.
    commits: VecDeque<(u64, Load)>,
    /// All of it.
    all: Load,
}

impl PreparationBacklog {
    /// Another document is read, of so many bytes.
    pub fn add(&mut self, bytes: usize) {
        for load in [&mut self.open, &mut self.all] {
            load.documents += 1;
            load.bytes += bytes;
        }
    }

    /// The commit at this time is read to its end.
    pub fn commit(&mut self, at: u64) {
        let load = std::mem::take(&mut self.open);
        if load.documents > 0 {
            self.commits.push_back((at, load));
        }
    }

    /// All commits before this time are prepared. Gives whether more may be read than before.
    pub fn passed(&mut self, time: u64) -> bool {
        let was_full = self.is_full();
        while let Some((_, load)) = self.commits.front().copied().filter(|(at, _)| *at < time) {
            self.all.documents -= load.documents;
            self.all.bytes -= load.bytes;
            self.commits.pop_front();
        }
        was_full && !self.is_full()
    }

    /// Whether the next commit is to wait. Never within a commit: it would wait for itself.
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
        assert!(!backlog.is_full(), "a commit that is larger than the bound is read to its end");
        backlog.commit(0);
        assert!(backlog.is_full());
        backlog.commit(1);
        assert!(!backlog.passed(0) && backlog.is_full());
        assert!(backlog.passed(1) && !backlog.is_full());
        assert!(!backlog.passed(2), "it was not full");
        backlog.add(BYTES);
        backlog.commit(2);
        assert!(backlog.is_full(), "one document may be too much");
        assert!(backlog.passed(u64::MAX) && backlog.all == Load::default());
    }
}
