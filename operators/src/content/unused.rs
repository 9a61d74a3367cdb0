//! Removes encodings that no passage uses.

use std::collections::HashSet;

use turnflow_engine::component::IndexError;
use turnflow_engine::document::ContentHash;

use super::blocks::Derived;
use super::index::BlockIndex;
use super::rows::Stored;

/// Encodings whose content is in no passage are kept for reuse. Maintenance keeps up to this many, or as many as are in
/// use.
const SPARE: usize = 4096;

/// Encodings that are being removed from the store.
pub(super) struct Leaving {
    /// The store's version before the removal.
    version: Option<u64>,
    hashes: Vec<ContentHash>,
}

impl<V: Stored, D: Derived<V>> BlockIndex<V, D> {
    /// Removes unused encodings if there are more than `times` the number of spare ones. Returns how many were removed.
    pub(super) async fn remove_unused(&mut self, times: usize) -> Result<usize, IndexError> {
        self.settle().await?;
        let spare = |used: usize| times * SPARE.max(used);
        // There are at least as many passages as contents, so this check does not visit each content.
        if self.contents.state.lock().by_content.len() <= self.places.table.len() + spare(self.places.table.len())
            && times > 0
        {
            return Ok(0);
        }
        let used: HashSet<ContentHash> =
            self.blocks.iter().flat_map(|block| block.rows.iter()).map(|(_, chunk)| chunk.hash).collect();
        let (kept, gone) = {
            let mut state = self.contents.state.lock();
            state.claims.expire();
            // Unsaved encodings belong to an upcoming epoch.
            let unsaved: HashSet<ContentHash> = state.unsaved.iter().copied().collect();
            let stored = state.by_content.iter().filter(|of| !unsaved.contains(&of.hash));
            let stays = |hash: &ContentHash| used.contains(hash) || state.claims.has(hash);
            let (kept, gone): (Vec<_>, Vec<_>) = stored.partition(|of| stays(&of.hash));
            // Claimed encodings do not count as spare. Otherwise each run would rewrite the whole store to remove a
            // few.
            if gone.len() <= spare(used.len()) {
                return Ok(0);
            }
            let kept: Vec<_> = kept.into_iter().map(|of| (of.hash, of.value.clone())).collect();
            (kept, gone.into_iter().map(|of| of.hash).collect::<Vec<_>>())
        };
        let count = gone.len();
        self.leaving = Some(Leaving { version: self.store.version(), hashes: gone });
        self.store.replace(kept).await?;
        self.part(true);
        Ok(count)
    }

    /// Completes a removal that was interrupted, depending on whether it reached the store.
    pub(super) async fn settle(&mut self) -> Result<(), IndexError> {
        let Some(before) = self.leaving.as_ref().map(|leaving| leaving.version) else { return Ok(()) };
        self.store.catch_up().await?;
        self.part(self.store.version() != before);
        Ok(())
    }

    /// Drops the removed encodings from memory if they have left the store.
    fn part(&mut self, has_left: bool) {
        let Some(Leaving { hashes, .. }) = self.leaving.take() else { return };
        let mut state = self.contents.state.lock();
        for hash in hashes {
            // An encoding that was claimed meanwhile must be stored again, even if nothing has left the store yet: a
            // cancelled commit may still reach the disk.
            if state.claims.has(&hash) {
                state.unsaved.push(hash);
            } else if has_left {
                state.by_content.remove(&hash);
            }
        }
    }
}
