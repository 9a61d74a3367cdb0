//! What is made from an index and its newest queries on a thread of its own, while searches go on without it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use turnflow_engine::panics::caught;

/// Queries that are kept to measure with, and the fewest to measure with.
const KEPT: usize = 256;
const FEWEST: usize = 64;

/// What is made (`T`), and the newest queries (`Q`).
pub(crate) struct Background<T, Q> {
    made: RwLock<Option<Arc<T>>>,
    is_working: AtomicBool,
    queries: Mutex<VecDeque<Q>>,
}

impl<T, Q> Default for Background<T, Q> {
    fn default() -> Self {
        Self { made: RwLock::default(), is_working: AtomicBool::default(), queries: Mutex::default() }
    }
}

impl<T: Send + Sync + 'static, Q: Clone + Send + 'static> Background<T, Q> {
    /// What was made last.
    pub fn made(&self) -> Option<Arc<T>> {
        self.made.read().clone()
    }

    /// Keeps queries. Returns whether there are enough to measure with.
    pub fn keep(&self, queries: &[&Q]) -> bool {
        let mut kept = self.queries.lock();
        kept.extend(queries.iter().copied().cloned());
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
        kept.len() >= FEWEST
    }

    /// Does the work on a thread, unless some is being done: `work` gets the newest queries, and may return what replaces
    /// what was made.
    pub fn work(self: &Arc<Self>, name: &str, work: impl FnOnce(Vec<Q>) -> Option<T> + Send + 'static) {
        if self.is_working.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let queries = this.queries.lock().iter().cloned().collect();
            match caught(|| work(queries)) {
                Ok(made) => {
                    if let Some(made) = made {
                        *this.made.write() = Some(Arc::new(made));
                    }
                    this.is_working.store(false, Ordering::Release);
                }
                // What panics once would do so again: everything stays as it is.
                Err(panic) => tracing::error!(error = %panic, "an approximate index cannot be made"),
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "the thread `{name}` cannot be started: searches go on without its work");
            self.is_working.store(false, Ordering::Release);
        }
    }
}
