//! What turns read: every corpus as of an epoch.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::OperatorError;

/// A corpus as of an epoch.
#[derive(Clone, Default)]
pub struct CorpusSnapshot {
    /// Documents that have chunks.
    pub documents: usize,
    /// Chunks.
    pub chunks: usize,
    /// By the index's key; of the type that its operators expect.
    pub indexes: BTreeMap<String, Arc<dyn Any + Send + Sync>>,
    /// What each index then has on the disk, by its key.
    pub versions: BTreeMap<String, u64>,
}

impl CorpusSnapshot {
    /// The reader of an index.
    pub fn index<T: Send + Sync + 'static>(&self, key: &str) -> Result<Arc<T>, OperatorError> {
        self.indexes
            .get(key)
            .and_then(|index| index.clone().downcast::<T>().ok())
            .ok_or_else(|| OperatorError::NoIndex(key.to_owned()))
    }
}

/// Every corpus as of an epoch.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Counts publications, over restarts as well.
    pub epoch: u64,
    /// The plan by which turns of this epoch are answered; counts from 1 in a process.
    pub plan: u64,
    /// By name.
    pub corpora: BTreeMap<Arc<str>, Arc<CorpusSnapshot>>,
}
