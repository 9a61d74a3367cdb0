//! An approximate index: passages in lists by the nearest of some centroids; a search reads the lists whose centroids are
//! nearest to the query (Sivic and Zisserman 2003; Jégou et al. 2011, section 4). Most vectors of a list are passed over by
//! 1-bit codes, most others by 8-bit codes, and the rest have exact scores.
//!
//! It is made in the background from the passages of one epoch, and serves all epochs. A passage that is new or edited
//! since then is compared exactly, beside the lists; one that is deleted is skipped. If more than a tenth is new, it is
//! made again.
//!
//! A search reads the lists in the order of their centroids, and ends at one whose centroid is worse than what it has found
//! by more than a gap. The gap is measured when the index is made: the least that finds the wanted share of the best ten
//! passages, for the newest queries of the corpus. While there have been few queries, the search is exact.

mod bits;
mod lists;
mod rotation;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use turnflow_engine::component::Permitted;
use turnflow_engine::inference::Vector;
use turnflow_engine::record::Hit;

use super::index::{DenseReader, search};
use crate::background::Background;
use lists::Lists;

/// The approximate index of one dense index: its lists, when they are made, and the newest queries.
pub(super) struct Approximate {
    /// Wanted share of the best passages.
    recall: f32,
    background: Arc<Background<Lists, Vector>>,
}

impl Approximate {
    pub fn new(recall: f32) -> Self {
        Self { recall, background: Arc::default() }
    }

    /// The lists, if they are made.
    pub fn lists(&self) -> Option<Arc<Lists>> {
        self.background.made()
    }

    /// The best permitted passages for each query. Exact until the lists are made.
    pub fn search(
        &self,
        reader: &Arc<DenseReader>,
        queries: &[&Vector],
        top: usize,
        permitted: &Permitted,
    ) -> Vec<Vec<Hit>> {
        let are_enough = self.background.keep(queries);
        let lists = self.lists();
        if are_enough && lists.as_ref().is_none_or(|lists| lists.is_old(reader)) {
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
    fn make(&self, reader: &Arc<DenseReader>) {
        let (reader, recall) = (reader.clone(), self.recall);
        self.background.work("ivf", move |queries| {
            let begun = Instant::now();
            let lists = Lists::of(&reader, &queries, recall)?;
            tracing::info!(
                passages = lists.passages,
                lists = lists.count(),
                read = lists.read,
                recall = lists.recall,
                queries = queries.len(),
                seconds = begun.elapsed().as_secs_f64(),
                "the approximate index is made"
            );
            Some(lists)
        });
    }
}
