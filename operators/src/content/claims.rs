//! Which contents are claimed: prepared for a commit that is not applied yet, so that their
//! encodings are not to be let go though no passage has them.
//!
//! A claim ends when a change that names its content has been applied, once for each commit that
//! asked. Some commits never come to that: a content is superseded before it is published, has
//! been served all along (a reload's second feed claims all of its contents, and the switch names
//! only those that differ), or the reload is given up. So a claim also ends after a time, counted
//! in publications. That may be too early for a feed that is staged for very long: what it then
//! lacks is encoded when it is applied.

use std::collections::HashMap;

use turnflow_engine::document::ContentHash;

/// What a publication counts while preparations are under way: a staged feed may take hours.
const BUSY: u64 = 1;
/// What it counts while there are none.
const QUIET: u64 = 1024;
/// A claim ends after this.
const LASTS: u64 = 64 * QUIET;

#[derive(Default)]
struct Claim {
    /// Preparations under way.
    running: u32,
    /// Those that are done and have not been seen applied.
    done: u32,
    /// When the last one ended.
    since: u64,
}

/// Claims on contents.
#[derive(Default)]
pub(super) struct Claims {
    of: HashMap<ContentHash, Claim>,
    /// Preparations under way.
    running: usize,
    clock: u64,
}

impl Claims {
    /// A preparation of these begins.
    pub fn begin(&mut self, hashes: &[ContentHash]) {
        self.running += 1;
        for hash in hashes {
            self.of.entry(*hash).or_default().running += 1;
        }
    }

    /// It has ended; without what it was for, there is nothing to claim.
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

    /// A change that names this content has been applied. A commit to come may have asked for it
    /// too, and a change between may take it away: of several claims only one ends.
    pub fn applied(&mut self, hash: &ContentHash) {
        if let Some(claim) = self.of.get_mut(hash) {
            claim.done = claim.done.saturating_sub(1);
            self.release(hash);
        }
    }

    /// A publication begins.
    pub fn tick(&mut self) {
        self.clock += if self.running == 0 { QUIET } else { BUSY };
    }

    /// Ends the claims that have been there too long.
    pub fn expire(&mut self) {
        let clock = self.clock;
        self.of.retain(|_, claim| claim.running > 0 || clock - claim.since <= LASTS);
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
        assert!(claims.has(&A), "another commit has asked for it");
        claims.applied(&A);
        assert!(!claims.has(&A));
        claims.begin(&[A]);
        claims.applied(&A);
        assert!(claims.has(&A), "it is being prepared");
        claims.end(&[A], false);
        assert!(!claims.has(&A), "there is nothing to claim");
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
