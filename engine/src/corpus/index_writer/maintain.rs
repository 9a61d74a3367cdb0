//! Maintenance of an index, between two publications.

use super::{IndexWriter, MaintenanceRequest, note};
use crate::component::IndexError;
use crate::maintenance::MaintenanceError;
use crate::panics::caught_async;

impl IndexWriter {
    /// Maintains an index. Nothing is published meanwhile; turns continue.
    pub(super) async fn maintain(&mut self, upkeep: MaintenanceRequest, others_wait: bool) {
        let MaintenanceRequest { key, limits, within, yields, reply } = upkeep;
        let slot = self.slots.iter_mut().find(|slot| slot.key == key);
        // An index that is not published yet does not know which of its data is in use.
        let Some(slot) = slot.filter(|_| !(self.whole || yields && others_wait)) else {
            let _ = reply.send(None);
            return;
        };
        let failed = |source| MaintenanceError::Index { corpus: self.corpus.clone(), index: key.clone(), source };
        let index = &mut slot.index;
        let work = async {
            let done = caught_async(|| index.maintain(limits)).await;
            done.map_err(IndexError::from).flatten()
        };
        let done = match within {
            None => work.await.map_err(failed),
            Some(within) => match tokio::time::timeout(within, work).await {
                Ok(done) => done.map_err(failed),
                Err(_) => {
                    let (corpus, index) = (self.corpus.clone(), key.clone());
                    Err(MaintenanceError::TooLong { corpus, index, seconds: within.as_secs() })
                }
            },
        };
        // After a panic the index may be in any state, so the next delta contains all chunks.
        self.whole |= matches!(&done, Err(MaintenanceError::Index { source: IndexError::Panicked(_), .. }));
        note(&self.epochs, &self.corpus, slot);
        let _ = reply.send(Some(done));
    }
}
