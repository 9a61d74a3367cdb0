//! An approximate index: passages in lists by the nearest of some centroids; a search reads the lists whose centroids are
//! nearest to the query (Sivic and Zisserman 2003; Jégou et al. 2011, section 4). Most vectors of a list are passed over by 1-bit codes, most
//! others by 8-bit codes, and the rest have exact scores.
//!
//! It is made in the background from the passages of one epoch, and serves all epochs. A passage that is new or edited
//! since then is compared exactly, beside the lists; one that is deleted is skipped. If more than a tenth is new, it is
//! made again.
//!
//! A search reads the lists in the order of their centroids, and ends at one whose centroid is worse than what it has found
//! by more than a gap. The gap is measured when the index is made: the least that finds the wanted share of the best ten
//! passages, for the newest queries of the corpus. While there have been few queries, the search is exact.

mod bits;
mod learn;
mod lists;
mod rotation;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use turnflow_engine::component::Permitted;
use turnflow_engine::inference::Vector;
use turnflow_engine::record::Hit;

use super::index::{DenseReader, search};
use lists::Lists;

/// Queries that are kept to measure the recall with, and the fewest to measure it with.
const KEPT: usize = 256;
const FEWEST: usize = 64;

/// The approximate index of one dense index: its lists, when they are made, and the newest queries.
pub(super) struct Approximate {
    /// Wanted share of the best passages.
    recall: f32,
    lists: RwLock<Option<Arc<Lists>>>,
    is_making: AtomicBool,
    queries: Mutex<VecDeque<Vector>>,
}

impl Approximate {
    pub fn new(recall: f32) -> Self {
        let (lists, is_making, queries) = (RwLock::default(), AtomicBool::default(), Mutex::default());
        Self { recall, lists, is_making, queries }
    }

    /// The lists, if they are made.
    pub fn lists(&self) -> Option<Arc<Lists>> {
        self.lists.read().clone()
    }

    /// The best permitted passages for each query. Exact until the lists are made.
    pub fn search(
        self: &Arc<Self>,
        reader: &Arc<DenseReader>,
        queries: &[&Vector],
        top: usize,
        permitted: &Permitted,
    ) -> Vec<Vec<Hit>> {
        let known = {
            let mut kept = self.queries.lock();
            kept.extend(queries.iter().copied().cloned());
            let surplus = kept.len().saturating_sub(KEPT);
            kept.drain(..surplus);
            kept.len()
        };
        let lists = self.lists();
        if known >= FEWEST && lists.as_ref().is_none_or(|lists| lists.is_old(reader)) {
            self.make(reader);
        }
        // Where much is in no list, an exact search by codes is faster.
        let Some(lists) = lists.filter(|lists| !lists.is_old(reader)) else {
            return search(reader, queries, top, permitted);
        };
        // The fewer passages are permitted, the more lists it takes to find as many of them.
        let (passages, permitted_ones) = (reader.passages(), reader.searched(permitted));
        let reads = lists.read.saturating_mul(passages).div_ceil(permitted_ones.max(1));
        if reads >= lists.count() {
            return search(reader, queries, top, permitted);
        }
        let outside = lists.outside(reader);
        let one = |query: &&Vector| lists.search(reader, query, top, permitted, lists.gap, &outside).0;
        queries.iter().map(one).collect()
    }

    /// Makes the lists on a thread of its own, unless they are being made.
    fn make(self: &Arc<Self>, reader: &Arc<DenseReader>) {
        if self.is_making.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, reader) = (self.clone(), reader.clone());
        let made = std::thread::Builder::new().name("ivf".to_owned()).spawn(move || {
            // Also after a panic, which leaves the search exact.
            let _end = End(&this.is_making);
            let begun = Instant::now();
            let queries: Vec<Vector> = this.queries.lock().iter().cloned().collect();
            let Some(lists) = Lists::of(&reader, &queries, this.recall) else { return };
            tracing::info!(
                passages = lists.passages,
                lists = lists.count(),
                read = lists.read,
                recall = lists.recall,
                queries = queries.len(),
                seconds = begun.elapsed().as_secs_f64(),
                "the approximate index is made"
            );
            *this.lists.write() = Some(Arc::new(lists));
        });
        if let Err(error) = made {
            tracing::warn!(%error, "the approximate index cannot be made: the search is exact");
            self.is_making.store(false, Ordering::Release);
        }
    }
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
