//! Which records of a source are applied: a window over its batches.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::SinkPositions;
use crate::connector::{Acknowledgements, Offsets, SourceOffset};

/// Counts off the records of one source.
pub struct OffsetTracker {
    source: Arc<str>,
    state: Mutex<State>,
    acknowledgements: Acknowledgements,
}

#[derive(Default)]
struct State {
    /// The number of the first batch in `batches`.
    first: u64,
    batches: VecDeque<Batch>,
    /// Everything up to here is applied; with the sinks before anything behind it was written.
    low: Option<(Offsets, SinkPositions)>,
    /// The batches before this one have all that was there at the start.
    replay_ends: Option<u64>,
}

struct Batch {
    /// Of its last record in each partition.
    offsets: Offsets,
    /// Of the sinks, before any of its records was seen.
    marks: SinkPositions,
    open: usize,
}

impl OffsetTracker {
    /// Of a source.
    pub fn new(source: Arc<str>) -> Self {
        Self { source, state: Mutex::default(), acknowledgements: Acknowledgements::default() }
    }

    /// The source's node.
    pub fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// Tells the source which of its records are safe.
    pub fn acknowledgements(&self) -> &Acknowledgements {
        &self.acknowledgements
    }

    /// Resumes after the offsets that an earlier process, or another plan, has reached.
    pub fn resume(&self, offsets: Offsets, marks: SinkPositions) {
        match &mut self.state.lock().low {
            // Older marks are safe: they name more answers to look for.
            Some((low, _)) => low.extend(offsets),
            low => *low = Some((offsets, marks)),
        }
    }

    /// Begins a batch, before its records are handed on; gives its number.
    pub fn begin(&self, marks: SinkPositions) -> u64 {
        let mut state = self.state.lock();
        // One record for the batch itself, until it is closed.
        state.batches.push_back(Batch { offsets: Offsets::default(), marks, open: 1 });
        state.first + state.batches.len() as u64 - 1
    }

    /// All that was there at the start is in batches.
    pub fn caught_up(&self) {
        let mut state = self.state.lock();
        let next = state.first + state.batches.len() as u64;
        state.replay_ends.get_or_insert(next);
    }

    /// Whether all that was there at the start is applied.
    pub fn is_replayed(&self) -> bool {
        let state = self.state.lock();
        state.replay_ends.is_some_and(|end| state.first >= end)
    }

    /// A record is in the batch.
    pub fn read(&self, batch: u64, offset: Option<&SourceOffset>) {
        let mut state = self.state.lock();
        if let Some(batch) = state.batch(batch) {
            batch.open += 1;
            if let Some(offset) = offset {
                batch.offsets.set(offset.clone());
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
            if !done.offsets.is_empty() {
                let marks = state.batches.front().map_or(done.marks, |next| next.marks.clone());
                let (low, of_low) = state.low.get_or_insert_default();
                low.extend(done.offsets);
                *of_low = marks;
            }
        }
    }

    /// Up to where everything is applied, and how long the sinks were before anything behind
    /// that was written.
    pub fn low(&self) -> Option<(Offsets, SinkPositions)> {
        self.state.lock().low.clone()
    }

    /// The same, of sinks that were so long `now`, a moment ago: where nothing is on its way,
    /// what comes will be behind that.
    pub fn low_since(&self, now: &SinkPositions) -> Option<(Offsets, SinkPositions)> {
        let mut state = self.state.lock();
        let idle = state.batches.is_empty();
        let (_, marks) = state.low.as_mut()?;
        if idle {
            marks.clone_from(now);
        }
        state.low.clone()
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
    use crate::connector::SinkPosition;

    fn place(end: u64) -> SourceOffset {
        SourceOffset { log: "l".into(), end, line: end, ..SourceOffset::default() }
    }

    fn marks(length: u64) -> SinkPositions {
        SinkPositions::from([("out".into(), SinkPosition { log: "s".into(), length })])
    }

    /// A source that is silent knows the file that a sink has gone over to meanwhile.
    #[test]
    fn marks_are_those_of_now_where_nothing_is_on_its_way() {
        let tracker = OffsetTracker::new("turns".into());
        assert_eq!(tracker.low_since(&marks(1)), None);
        tracker.resume(place(7).into(), marks(10));
        assert_eq!(tracker.low(), Some((place(7).into(), marks(10))));
        assert_eq!(tracker.low_since(&marks(20)), Some((place(7).into(), marks(20))));
        let batch = tracker.begin(marks(30));
        tracker.read(batch, Some(&place(9)));
        tracker.close(batch);
        assert_eq!(tracker.low_since(&marks(40)), Some((place(7).into(), marks(20))));
        tracker.tick(batch);
        assert_eq!(tracker.low(), Some((place(9).into(), marks(30))));
        assert_eq!(tracker.low_since(&marks(50)), Some((place(9).into(), marks(50))));
    }

    #[test]
    fn it_is_replayed_when_what_was_there_is_applied() {
        let tracker = OffsetTracker::new("turns".into());
        let batch = tracker.begin(marks(0));
        tracker.read(batch, Some(&place(9)));
        tracker.close(batch);
        assert!(!tracker.is_replayed());
        tracker.caught_up();
        let later = tracker.begin(marks(0));
        tracker.read(later, Some(&place(12)));
        tracker.close(later);
        tracker.caught_up();
        assert!(!tracker.is_replayed());
        tracker.tick(batch);
        assert!(tracker.is_replayed(), "what came later does not count");
    }

    #[test]
    fn partitions_are_checkpointed_together_and_each_keeps_its_offset() {
        let tracker = OffsetTracker::new("turns".into());
        let of = |partition: &str, end| SourceOffset { partition: partition.into(), ..place(end) };
        tracker.resume(of("a", 3).into(), marks(0));
        let both = tracker.begin(marks(1));
        for offset in [of("a", 4), of("b", 1), of("a", 5)] {
            tracker.read(both, Some(&offset));
        }
        tracker.close(both);
        let later = tracker.begin(marks(2));
        tracker.read(later, Some(&of("b", 2)));
        tracker.close(later);
        tracker.tick(later);
        assert_eq!(tracker.low().unwrap().0, of("a", 3).into(), "the first batch is open");
        (0..3).for_each(|_| tracker.tick(both));
        assert_eq!(tracker.low().unwrap().0, [of("a", 5), of("b", 2)].into_iter().collect());
    }

    #[test]
    fn the_low_place_waits_for_the_slowest_and_its_marks_are_old_enough() {
        let tracker = OffsetTracker::new("turns".into());
        let mut batches = Vec::new();
        for number in 0..3 {
            let batch = tracker.begin(marks(number * 100));
            tracker.read(batch, Some(&place(number * 10 + 5)));
            tracker.read(batch, Some(&place(number * 10 + 10)));
            tracker.close(batch);
            batches.push(batch);
        }
        assert_eq!(tracker.low(), None);
        for batch in [batches[1], batches[1], batches[0]] {
            tracker.tick(batch);
            assert_eq!(tracker.low(), None, "one of the first is open");
        }
        tracker.tick(batches[0]);
        assert_eq!(tracker.low(), Some((place(20).into(), marks(200))));
        tracker.tick(batches[2]);
        tracker.tick(batches[2]);
        assert_eq!(tracker.low(), Some((place(30).into(), marks(200))), "rather too old than too new");
        let next = tracker.begin(marks(300));
        tracker.close(next);
        assert_eq!(tracker.low(), Some((place(30).into(), marks(200))));
    }
}
