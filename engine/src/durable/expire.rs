//! Removes conversations that have long been unused.

use std::path::Path;
use std::time::Instant;

use super::store::Store;
use super::{Durable, StoreError, StoredConversation};
use crate::component::{DiskUsage, Maintained};
use crate::wording::count;

impl Durable {
    /// Removes conversations that have not been used for this many seconds, and logs their number.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn expire(&self, idle_s: u64) -> Result<(), StoreError> {
        let Some(store) = self.here() else { return Ok(()) };
        let mut gone = 0;
        loop {
            // The lock is released between steps, so checkpoints need not wait long.
            let _one = self.committing.lock();
            let expired = store.expire(StoredConversation::now(), idle_s)?;
            gone += expired.gone;
            if expired.changed == 0 || self.state.lock().ended {
                break;
            }
        }
        if gone > 0 {
            tracing::info!(gone, "conversations expired");
        }
        Ok(())
    }

    /// Removes conversations in a state directory that have not been used for this many seconds, and
    /// compacts the file, which must not be open elsewhere. `None` if there is no file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or written.
    pub fn maintain(directory: &Path, idle_s: u64) -> Result<Option<Maintained>, StoreError> {
        let path = directory.join("turns.redb");
        if !path.exists() {
            return Ok(None);
        }
        let (begun, before) = (Instant::now(), DiskUsage::of(&path));
        let store = Store::open(&path)?;
        let now = StoredConversation::now();
        let mut gone = 0;
        loop {
            let expired = store.expire(now, idle_s)?;
            gone += expired.gone;
            if expired.changed == 0 {
                break;
            }
        }
        store.compact()?;
        let after = DiskUsage::of(&path);
        let mut did = Vec::new();
        if gone > 0 {
            did.push(format!("{} expired", count(gone, "conversation")));
        }
        if after.bytes < before.bytes {
            did.push("compacted".to_owned());
        }
        Ok(Some(Maintained { before, after, took: begun.elapsed(), did }))
    }
}
