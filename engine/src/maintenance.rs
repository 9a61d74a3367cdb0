//! Maintenance of what is stored: what was done, and what went wrong with it.
//!
//! Indexes are kept in shape by their corpus's index writer, between two publications; what models
//! gave is expired by a thread that may block. Neither is ever the end of a run: what fails is
//! told once a cause, counted, and tried again the next time.

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

/// Why a store could not be kept in shape.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// An index failed.
    #[error("index `{index}` of corpus `{corpus}` could not be kept in shape: {source}")]
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
        "index `{index}` of corpus `{corpus}` was given up after {seconds} s of maintenance: raise \
         `maintenance.limit_s`, or run `turnflow maintain` while nothing else runs"
    )]
    TooLong {
        /// The corpus.
        corpus: Arc<str>,
        /// Its index.
        index: String,
        /// What it may take.
        seconds: u64,
    },
    /// The inference cache failed.
    #[error("what models gave could not be expired: {0}")]
    InferenceCache(#[from] DatabaseError),
    /// The inference cache panicked.
    #[error("what models gave could not be expired: the store {0}")]
    Panicked(Panicked),
    /// The store of conversations failed.
    #[error("conversations could not be expired: {0}")]
    Conversations(#[from] StoreError),
}

/// A store as it is told of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreName {
    /// An index of a corpus.
    Index(Arc<str>, String),
    /// What models gave.
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
    /// Stores looked after, each time counted.
    pub runs: u64,
    /// How often there was something to do.
    pub changed: u64,
    /// How often something failed.
    pub failures: u64,
    /// How often an index was left for later, because something else waited.
    pub put_off: u64,
    /// Files that went.
    pub freed_files: u64,
    /// Bytes that went.
    pub freed_bytes: u64,
    /// How long it took, all together.
    pub busy: Duration,
    /// The longest of them.
    pub longest: Duration,
}

/// The settings, and what was done.
#[derive(Default)]
pub(crate) struct Journal {
    pub settings: RwLock<Maintenance>,
    counts: Mutex<MaintenanceCounts>,
    /// Stores that failed the last time, with why.
    failing: Mutex<HashMap<StoreName, String>>,
}

impl Journal {
    pub fn counts(&self) -> MaintenanceCounts {
        self.counts.lock().clone()
    }

    pub fn put_off(&self) {
        self.counts.lock().put_off += 1;
    }

    /// Counts what came of a store, and tells of what is new.
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
                    tracing::warn!(%store, "maintenance works again");
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
                    tracing::warn!(%error, "maintenance failed; serving goes on, and it is tried again");
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
