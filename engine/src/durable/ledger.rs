//! Which records of a source are applied: a window over its batches.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Marks;
use crate::connector::Place;

/// Counts off the records of one source.
pub struct Ledger {
    source: Arc<str>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the first batch in `batches`.
    first: u64,
    batches: VecDeque<Batch>,
    /// Everything up to here is applied; with the sinks before anything behind it was written.
    low: Option<(Place, Marks)>,
}

struct Batch {
    /// Of its last record.
    place: Option<Place>,
    /// Of the sinks, before any of its records was seen.
    marks: Marks,
    open: usize,
}

impl Ledger {
    /// Of a source.
    pub fn new(source: Arc<str>) -> Self {
        Self { source, state: Mutex::default() }
    }

    /// The source's node.
    pub fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// Begins a batch, before its records are handed on; gives its number.
    pub fn begin(&self, marks: Marks) -> u64 {
        let mut state = self.state.lock();
        // One record for the batch itself, until it is closed.
        state.batches.push_back(Batch { place: None, marks, open: 1 });
        state.first + state.batches.len() as u64 - 1
    }

    /// A record is in the batch.
    pub fn read(&self, batch: u64, place: Option<&Place>) {
        let mut state = self.state.lock();
        if let Some(batch) = state.batch(batch) {
            batch.open += 1;
            if let Some(place) = place {
                batch.place = Some(place.clone());
            }
        }
    }

    /// The batch is whole.
    pub fn close(&self, batch: u64) {
        self.tick(batch);
    }

    /// A record of the batch is applied.
    pub fn tick(&self, batch: u64) {
        let mut state = self.state.lock();
        if let Some(batch) = state.batch(batch) {
            batch.open = batch.open.saturating_sub(1);
        }
        while state.batches.front().is_some_and(|batch| batch.open == 0) {
            let Some(done) = state.batches.pop_front() else { break };
            state.first += 1;
            if let Some(place) = done.place {
                let marks = state.batches.front().map_or(done.marks, |next| next.marks.clone());
                state.low = Some((place, marks));
            }
        }
    }

    /// Up to where everything is applied, and how long the sinks were before anything behind
    /// that was written.
    pub fn low(&self) -> Option<(Place, Marks)> {
        self.state.lock().low.clone()
    }
}

impl State {
    fn batch(&mut self, number: u64) -> Option<&mut Batch> {
        self.batches.get_mut(number.checked_sub(self.first)? as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::SinkMark;

    fn place(end: u64) -> Place {
        Place { log: "l".into(), generation: 0, end, line: end }
    }

    fn marks(length: u64) -> Marks {
        Marks::from([("out".into(), SinkMark { log: "s".into(), length })])
    }

    #[test]
    fn the_low_place_waits_for_the_slowest_and_its_marks_are_old_enough() {
        let ledger = Ledger::new("turns".into());
        let mut batches = Vec::new();
        for number in 0..3 {
            let batch = ledger.begin(marks(number * 100));
            ledger.read(batch, Some(&place(number * 10 + 5)));
            ledger.read(batch, Some(&place(number * 10 + 10)));
            ledger.close(batch);
            batches.push(batch);
        }
        assert_eq!(ledger.low(), None);
        for batch in [batches[1], batches[1], batches[0]] {
            ledger.tick(batch);
            assert_eq!(ledger.low(), None, "one of the first is open");
        }
        ledger.tick(batches[0]);
        assert_eq!(ledger.low(), Some((place(20), marks(200))));
        ledger.tick(batches[2]);
        ledger.tick(batches[2]);
        assert_eq!(ledger.low(), Some((place(30), marks(200))), "rather too old than too new");
        let next = ledger.begin(marks(300));
        ledger.close(next);
        assert_eq!(ledger.low(), Some((place(30), marks(200))));
    }
}
