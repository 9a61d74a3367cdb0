//! Results and errors of store maintenance.
//!
//! The index writer of a corpus maintains its indexes between two publications. A thread that may
//! block expires entries of the inference cache. A failure never ends the run: it is counted, logged
//! once per cause, and retried the next time.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::component::{IndexError, Maintained};
use crate::database::DatabaseError;
use crate::durable::StoreError;
use crate::panics::Panicked;
use crate::plan::Maintenance;

/// Why the maintenance of a store failed.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// An index failed.
    #[error("maintenance of index `{index}` of corpus `{corpus}` failed: {source}")]
    Index {
        /// The corpus.
        corpus: Arc<str>,
        /// Its index.
        index: String,
        /// Why.
        source: IndexError,
    },
    /// An index took too long.
    #[error(
        "maintenance of index `{index}` of corpus `{corpus}` was cancelled after {seconds} s: raise \
         `maintenance.limit_s`, or run `turnflow maintain` while nothing else runs"
    )]
    TooLong {
        /// The corpus.
        corpus: Arc<str>,
        /// Its index.
        index: String,
        /// The time limit.
        seconds: u64,
    },
    /// The inference cache failed.
    #[error("cannot expire entries of the inference cache: {0}")]
    InferenceCache(#[from] DatabaseError),
    /// The inference cache panicked.
    #[error("cannot expire entries of the inference cache: the store {0}")]
    Panicked(Panicked),
    /// The store of conversations failed.
    #[error("cannot expire conversations: {0}")]
    Conversations(#[from] StoreError),
}

/// The name of a store in messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreName {
    /// An index of a corpus.
    Index(Arc<str>, String),
    /// The inference cache.
    InferenceCache,
    /// Conversations and checkpoints.
    Conversations,
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(corpus, index) => write!(f, "{corpus}, {index}"),
            Self::InferenceCache => write!(f, "memo.redb"),
            Self::Conversations => write!(f, "turns.redb"),
        }
    }
}

/// Counters of maintenance since the start.
#[derive(Clone, Debug, Default)]
pub struct MaintenanceCounts {
    /// Maintenance runs; each store counts separately.
    pub runs: u64,
    /// Runs that changed something.
    pub changed: u64,
    /// Runs that failed.
    pub failures: u64,
    /// How often the maintenance of an index was postponed because other work waited.
    pub put_off: u64,
    /// Files freed.
    pub freed_files: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Total duration.
    pub busy: Duration,
    /// Duration of the longest run.
    pub longest: Duration,
}

/// The maintenance settings, counters and current failures.
#[derive(Default)]
pub(crate) struct Journal {
    pub settings: RwLock<Maintenance>,
    counts: Mutex<MaintenanceCounts>,
    /// Stores whose last maintenance failed, with the error.
    failing: Mutex<HashMap<StoreName, String>>,
}

impl Journal {
    pub fn counts(&self) -> MaintenanceCounts {
        self.counts.lock().clone()
    }

    pub fn put_off(&self) {
        self.counts.lock().put_off += 1;
    }

    /// Counts the outcome for a store, and logs it if it is new.
    pub fn done(&self, store: &StoreName, outcome: &Result<Maintained, MaintenanceError>) {
        let mut counts = self.counts.lock();
        counts.runs += 1;
        match outcome {
            Ok(maintained) => {
                counts.changed += u64::from(!maintained.did.is_empty());
                counts.freed_files += maintained.freed_files();
                counts.freed_bytes += maintained.freed_bytes();
                counts.busy += maintained.took;
                counts.longest = counts.longest.max(maintained.took);
                drop(counts);
                if self.failing.lock().remove(store).is_some() {
                    tracing::warn!(%store, "maintenance succeeds again");
                }
                if !maintained.did.is_empty() {
                    let Maintained { before, after, took, did } = maintained;
                    tracing::info!(%store, did = did.join(", "), ?before, ?after, ?took, "maintained");
                }
            }
            Err(error) => {
                counts.failures += 1;
                drop(counts);
                let cause = error.to_string();
                if self.failing.lock().insert(store.clone(), cause.clone()).is_none_or(|before| before != cause) {
                    tracing::warn!(%error, "maintenance failed and will be retried; queries are still served");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::component::DiskUsage;

    #[test]
    fn what_is_done_and_what_fails_is_counted() {
        let journal = Journal::default();
        let store = StoreName::Index("docs".into(), "bm25".into());
        let failed = || MaintenanceError::TooLong { corpus: "docs".into(), index: "bm25".into(), seconds: 1 };
        journal.done(&store, &Err(failed()));
        journal.done(&store, &Err(failed()));
        let before = DiskUsage { files: 10, bytes: 100 };
        let after = DiskUsage { files: 4, bytes: 130 };
        let took = Duration::from_secs(2);
        journal.done(&store, &Ok(Maintained { before, after, took, did: vec!["merged".into()] }));
        journal.done(&store, &Ok(Maintained::default()));
        let counts = journal.counts();
        assert_eq!((counts.runs, counts.failures, counts.changed), (4, 2, 1));
        assert_eq!((counts.freed_files, counts.freed_bytes, counts.longest), (6, 0, took));
        assert!(journal.failing.lock().is_empty());
    }
}
