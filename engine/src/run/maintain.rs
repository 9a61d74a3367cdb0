//! Schedules maintenance: one index at a time, while nothing is published.
//!
//! A corpus is due after a number of publications, or when it has changed and a time has passed. If
//! other work waits for an index, its maintenance is postponed, but only a limited number of times.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Engine, Inner};
use crate::cache::CacheLimits;
use crate::component::{Maintained, MaintenanceLimits};
use crate::corpus::CorpusIndexes;
use crate::maintenance::{MaintenanceCounts, MaintenanceError, StoreName};
use crate::panics::caught;
use crate::plan::Maintenance;
use crate::publish::CorpusProgress;

/// The interval between checks for due maintenance.
const TICK: Duration = Duration::from_millis(500);
/// After this many attempts, maintenance of an index runs even if other work waits.
const PATIENCE: u32 = 20;
/// The interval for expiring the inference cache, and the delay after the start.
const MEMO: (Duration, Duration) = (Duration::from_secs(3600), Duration::from_secs(60));

/// The result for each store.
pub type MaintenanceReport = Vec<(StoreName, Result<Maintained, MaintenanceError>)>;

impl Engine {
    /// Counters of maintenance since the start.
    pub fn maintenance(&self) -> MaintenanceCounts {
        self.inner.context.maintenance.counts()
    }

    /// Maintains every index now, without limits; blocks until it is done.
    pub fn maintain(&self) -> MaintenanceReport {
        let mut report = MaintenanceReport::new();
        for (corpus, indexes, keys) in self.inner.indexes() {
            for key in keys {
                let work = indexes.maintain(&key, MaintenanceLimits::NONE, None, false);
                let Some(outcome) = self.inner.context.handle.block_on(work) else { continue };
                let store = StoreName::Index(corpus.clone(), key);
                self.inner.context.maintenance.done(&store, &outcome);
                report.push((store, outcome));
            }
        }
        report
    }
}

type Indexes = Vec<(Arc<str>, CorpusIndexes, Vec<String>)>;

impl Inner {
    fn indexes(&self) -> Indexes {
        let running = self.running.lock();
        Self::indexes_of(&running)
    }

    fn indexes_of(running: &super::Running) -> Indexes {
        let of = |(name, of): (&Arc<str>, &super::RunningCorpus)| {
            (name.clone(), of.indexes.clone(), of.keys.iter().cloned().collect())
        };
        running.corpora.iter().map(of).collect()
    }
}

/// The last maintenance of a corpus.
#[derive(Clone, Copy)]
struct Last {
    publications: u64,
    at: Instant,
}

/// Whether maintenance of a corpus is due.
fn is_due(settings: &Maintenance, last: Last, publications: u64, now: Instant) -> bool {
    let new = publications.saturating_sub(last.publications);
    let often = settings.publications > 0 && new >= settings.publications;
    let late = settings.every_s > 0 && now.duration_since(last.at) >= Duration::from_secs(settings.every_s);
    new > 0 && (often || late)
}

/// Maintains stores as long as the engine exists.
pub(super) async fn run_maintenance(inner: Weak<Inner>) {
    let mut last: HashMap<Arc<str>, Last> = HashMap::new();
    let begun = Instant::now();
    let mut cache: Option<Instant> = None;
    loop {
        tokio::time::sleep(TICK).await;
        // A stop may hold this lock for long, and then no maintenance is due.
        let (indexes, journal, remembered) = {
            let Some(inner) = inner.upgrade() else { return };
            let Some(running) = inner.running.try_lock() else { continue };
            (Inner::indexes_of(&running), inner.context.maintenance.clone(), inner.context.cache.clone())
        };
        let settings = journal.settings.read().clone();
        last.retain(|name, _| indexes.iter().any(|(corpus, ..)| corpus == name));
        for (corpus, indexes, keys) in indexes {
            let publications = CorpusProgress::get(&indexes.progress().publications);
            let now = Instant::now();
            let before = *last.entry(corpus.clone()).or_insert(Last { publications: 0, at: now });
            if !is_due(&settings, before, publications, now) {
                continue;
            }
            last.insert(corpus.clone(), Last { publications, at: now });
            let within = Duration::from_secs(settings.limit_s.max(1));
            for key in keys {
                for attempt in 1..=PATIENCE {
                    let yields = attempt < PATIENCE;
                    match indexes.maintain(&key, MaintenanceLimits::BETWEEN, Some(within), yields).await {
                        Some(outcome) => {
                            journal.done(&StoreName::Index(corpus.clone(), key.clone()), &outcome);
                            break;
                        }
                        None => journal.put_off(),
                    }
                    tokio::time::sleep(TICK).await;
                }
            }
        }
        let waited = cache.map_or(begun.elapsed() >= MEMO.1, |at| at.elapsed() >= MEMO.0);
        let limits = CacheLimits::of(&settings);
        // Under a load that fills the cache in less than an hour, expire entries more often.
        let grown = limits.bytes > 0 && remembered.grown() > limits.bytes / 4;
        if (waited || grown) && settings.every_s > 0 {
            cache = Some(Instant::now());
            let expired = tokio::task::spawn_blocking(move || caught(|| remembered.expire(&limits))).await;
            let expired = match expired {
                Ok(Ok(outcome)) => outcome.map_err(MaintenanceError::InferenceCache).transpose(),
                Ok(Err(panic)) => Some(Err(MaintenanceError::Panicked(panic))),
                // The run is ending.
                Err(_) => None,
            };
            if let Some(outcome) = expired {
                journal.done(&StoreName::InferenceCache, &outcome);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_is_due_by_publications_or_by_time_and_only_if_it_changed() {
        let settings = Maintenance { every_s: 10, publications: 5, ..Maintenance::default() };
        let now = Instant::now();
        let last = Last { publications: 7, at: now };
        let due = |settings: &Maintenance, publications, seconds| {
            is_due(settings, last, publications, now + Duration::from_secs(seconds))
        };
        assert!(!due(&settings, 7, 1000) && !due(&settings, 11, 9));
        assert!(due(&settings, 12, 0) && due(&settings, 8, 10));
        let never = Maintenance { every_s: 0, publications: 0, ..settings };
        assert!(!due(&never, 1000, 100_000));
    }
}
