//! Standing queries by their terms, joined with the terms of passages that change: differential-dataflow's join, in a
//! dataflow of one thread.
//!
//! The weight of a term in a query and its weight in a passage are the multiplicities of two collections. A join multiplies
//! multiplicities, and those of one pair of query and passage add up to its score.

use std::cell::RefCell;
use std::ops::Neg;
use std::rc::Rc;
use std::time::Instant;

use differential_dataflow::consolidation::consolidate;
use differential_dataflow::difference::{IsZero, Multiply, Semigroup};
use differential_dataflow::input::{Input, InputSession};
use serde::{Deserialize, Serialize};
use timely::WorkerConfig;
use timely::communication::allocator::{Allocator, thread::Thread};
use timely::dataflow::ProbeHandle;
use timely::worker::Worker;

/// The weights of a term in a query: two multiplicities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Weights {
    /// How much the term counts.
    pub count: i32,
    /// How far its parts of neighbouring scores are apart.
    pub spread: i32,
}

/// Sums of products of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sums {
    /// Of [`Weights::count`].
    pub count: i64,
    /// Of [`Weights::spread`].
    pub spread: i64,
}

impl IsZero for Weights {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl Semigroup for Weights {
    fn plus_equals(&mut self, other: &Self) {
        self.count += other.count;
        self.spread += other.spread;
    }
}

impl Multiply<i64> for Weights {
    type Output = Sums;

    fn multiply(self, by: &i64) -> Sums {
        Sums { count: i64::from(self.count) * by, spread: i64::from(self.spread) * by }
    }
}

impl Neg for Weights {
    type Output = Self;

    fn neg(self) -> Self {
        Self { count: -self.count, spread: -self.spread }
    }
}

impl IsZero for Sums {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl Semigroup for Sums {
    fn plus_equals(&mut self, other: &Self) {
        self.count += other.count;
        self.spread += other.spread;
    }
}

/// A term, and who has it.
type Row = (u64, u32);
/// A query and a passage, and the product of their weights.
type Pairs = Vec<((u32, u32), Sums)>;

/// Standing queries that wait for changes.
pub struct QueryJoin {
    worker: Worker,
    queries: InputSession<u64, Row, Weights>,
    changes: InputSession<u64, Row, i64>,
    probe: ProbeHandle<u64>,
    found: Rc<RefCell<Pairs>>,
    time: u64,
}

impl Default for QueryJoin {
    fn default() -> Self {
        let thread = Allocator::Thread(Thread::default());
        let mut worker = Worker::new(WorkerConfig::default(), thread, Some(Instant::now()));
        let (found, probe): (Rc<RefCell<Pairs>>, _) = (Rc::default(), ProbeHandle::new());
        let (queries, changes) = worker.dataflow::<u64, _, _>(|scope| {
            let (by_term, queries) = scope.new_collection::<Row, Weights>();
            let (changed, changes) = scope.new_collection::<Row, i64>();
            let found = found.clone();
            queries
                .join_map(changes, |_, query, passage| (*query, *passage))
                .inspect_batch(move |_, pairs| {
                    found.borrow_mut().extend(pairs.iter().map(|(pair, _, weight)| (*pair, *weight)));
                })
                .probe_with(&probe);
            (by_term, changed)
        });
        Self { worker, queries, changes, probe, found, time: 0 }
    }
}

impl QueryJoin {
    /// Adds the weights of a term to a query, or takes them away.
    pub fn update(&mut self, term: u64, query: u32, weights: Weights) {
        self.queries.update((term, query), weights);
    }

    /// For each query that shares terms with one of the passages: the sum of the products of their weights. `rows`: terms of
    /// passages, which have numbers, with their weights.
    pub fn joined(&mut self, rows: &[(u64, u32, i64)]) -> Vec<((u32, u32), Sums)> {
        self.pass();
        self.found.borrow_mut().clear();
        rows.iter().for_each(|(term, passage, weight)| self.changes.update((*term, *passage), *weight));
        self.pass();
        let mut pairs = std::mem::take(&mut *self.found.borrow_mut());
        // Later queries do not meet these passages.
        rows.iter().for_each(|(term, passage, weight)| self.changes.update((*term, *passage), -*weight));
        self.pass();
        self.found.borrow_mut().clear();
        consolidate(&mut pairs);
        pairs
    }

    /// Lets all updates so far pass through the dataflow.
    fn pass(&mut self) {
        self.time += 1;
        self.queries.advance_to(self.time);
        self.changes.advance_to(self.time);
        self.queries.flush();
        self.changes.flush();
        while self.probe.less_than(&self.time) {
            self.worker.step();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_shared_terms_add_up() {
        let mut join = QueryJoin::default();
        let weights = |count: i32| Weights { count, spread: 10 * count };
        for (term, query, count) in [(1, 10, 1), (2, 10, 2), (2, 20, 1), (3, 30, 1)] {
            join.update(term, query, weights(count));
        }
        let sums = |pairs: &[((u32, u32), i64)]| {
            let sums = |count: i64| Sums { count, spread: 10 * count };
            pairs.iter().map(|(pair, count)| (*pair, sums(*count))).collect::<Vec<_>>()
        };
        let rows = [(1, 0, 5), (2, 0, 7), (2, 1, 11), (4, 1, 13)];
        assert_eq!(join.joined(&rows), sums(&[((10, 0), 19), ((10, 1), 22), ((20, 0), 7), ((20, 1), 11)]));
        join.update(2, 10, -weights(2));
        join.update(3, 40, weights(1));
        assert_eq!(join.joined(&rows), sums(&[((10, 0), 5), ((20, 0), 7), ((20, 1), 11)]));
        assert_eq!(join.joined(&[(3, 0, 1)]), sums(&[((30, 0), 1), ((40, 0), 1)]));
        assert_eq!(join.joined(&[]), []);
    }
}
