//! Claims on contents. A claim marks a content that is prepared for a commit that is not applied yet, so that its
//! encoding is not removed although no passage uses it.
//!
//! A claim ends when a change that names its content has been applied, once for each commit that prepared it. Some
//! commits are never applied: the content is superseded before it is published; or it was served all along (a reload's
//! second feed claims all of its contents, and the switch names only those that differ); or the reload is cancelled. A
//! claim therefore also expires after a number of publications. This may be too early for a feed that is staged for
//! very long; contents that are missing then are encoded when they are applied.

use std::collections::HashMap;

use turnflow_engine::document::ContentHash;

/// Clock ticks of a publication while preparations are running: a staged feed may take hours.
const BUSY: u64 = 1;
/// Clock ticks of a publication while no preparation is running.
const QUIET: u64 = 1024;
/// A claim expires after this many clock ticks.
const LASTS: u64 = 64 * QUIET;

#[derive(Default)]
struct Claim {
    /// Number of preparations that are running.
    running: u32,
    /// Number of finished preparations that are not applied yet.
    done: u32,
    /// Clock when the last preparation ended.
    since: u64,
}

/// Claims on contents.
#[derive(Default)]
pub(super) struct Claims {
    of: HashMap<ContentHash, Claim>,
    /// Number of preparations that are running.
    running: usize,
    clock: u64,
}

impl Claims {
    /// Starts a preparation of these contents.
    pub fn begin(&mut self, hashes: &[ContentHash]) {
        self.running += 1;
        for hash in hashes {
            self.of.entry(*hash).or_default().running += 1;
        }
    }

    /// Ends a preparation. One that failed (`done` is false) leaves no claim.
    pub fn end(&mut self, hashes: &[ContentHash], done: bool) {
        self.running = self.running.saturating_sub(1);
        for hash in hashes {
            let Some(claim) = self.of.get_mut(hash) else { continue };
            claim.running = claim.running.saturating_sub(1);
            claim.done += u32::from(done);
            claim.since = self.clock;
            self.release(hash);
        }
    }

    /// Ends one claim on a content, after a change that names it has been applied. Other claims stay, because a later
    /// commit may have prepared the content too, and a change in between may remove it.
    pub fn applied(&mut self, hash: &ContentHash) {
        if let Some(claim) = self.of.get_mut(hash) {
            claim.done = claim.done.saturating_sub(1);
            self.release(hash);
        }
    }

    /// Advances the clock at the start of a publication.
    pub fn tick(&mut self) {
        self.clock += if self.running == 0 { QUIET } else { BUSY };
    }

    /// Ends expired claims.
    pub fn expire(&mut self) {
        let clock = self.clock;
        self.of.retain(|_, claim| claim.running > 0 || clock - claim.since <= LASTS);
    }

    /// Whether no content is claimed.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Whether a content is claimed.
    pub fn has(&self, hash: &ContentHash) -> bool {
        self.of.contains_key(hash)
    }

    fn release(&mut self, hash: &ContentHash) {
        if self.of.get(hash).is_some_and(|claim| claim.running == 0 && claim.done == 0) {
            self.of.remove(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ContentHash = ContentHash([1; 32]);

    #[test]
    fn a_claim_ends_when_all_that_asked_have_been_applied() {
        let mut claims = Claims::default();
        for _ in 0..2 {
            claims.begin(&[A]);
            claims.end(&[A], true);
        }
        claims.applied(&A);
        assert!(claims.has(&A), "another commit claims it");
        claims.applied(&A);
        assert!(!claims.has(&A));
        claims.begin(&[A]);
        claims.applied(&A);
        assert!(claims.has(&A), "a preparation is running");
        claims.end(&[A], false);
        assert!(!claims.has(&A), "a failed preparation leaves no claim");
    }

    #[test]
    fn a_claim_that_comes_to_nothing_ends_after_publications_without_preparations() {
        let mut claims = Claims::default();
        claims.begin(&[A]);
        claims.end(&[A], true);
        claims.begin(&[ContentHash([2; 32])]);
        for _ in 0..1000 {
            claims.tick();
        }
        claims.expire();
        assert!(claims.has(&A), "a feed is being read");
        claims.end(&[ContentHash([2; 32])], true);
        for _ in 0..=64 {
            claims.tick();
        }
        claims.expire();
        assert!(!claims.has(&A) && !claims.has(&ContentHash([2; 32])));
    }
}
