//! Tracks which records of a source are applied, with a window over its batches.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::SinkPositions;
use crate::connector::{Acknowledgements, Offsets, SourceOffset};

/// Tracks the applied records of one source.
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
    /// The offsets up to which everything is applied, and the sink positions before anything after them
    /// was written.
    low: Option<(Offsets, SinkPositions)>,
    /// The batches before this number contain all records that existed at the start.
    replay_ends: Option<u64>,
}

struct Batch {
    /// The offset of its last record in each partition.
    offsets: Offsets,
    /// The sink positions before any of its records was read.
    marks: SinkPositions,
    open: usize,
}

impl OffsetTracker {
    /// Creates a tracker for a source.
    pub fn new(source: Arc<str>) -> Self {
        Self { source, state: Mutex::default(), acknowledgements: Acknowledgements::default() }
    }

    /// The source's node.
    pub fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// Reports to the source which of its records are safe.
    pub fn acknowledgements(&self) -> &Acknowledgements {
        &self.acknowledgements
    }

    /// Resumes after the offsets that an earlier process, or another plan, has reached.
    pub fn resume(&self, offsets: Offsets, marks: SinkPositions) {
        match &mut self.state.lock().low {
            // Keeping the older marks is safe: then more answers are searched.
            Some((low, _)) => low.extend(offsets),
            low => *low = Some((offsets, marks)),
        }
    }

    /// Begins a batch, before its records are passed on; returns its number.
    pub fn begin(&self, marks: SinkPositions) -> u64 {
        let mut state = self.state.lock();
        // Counts one for the batch itself until it is closed.
        state.batches.push_back(Batch { offsets: Offsets::default(), marks, open: 1 });
        state.first + state.batches.len() as u64 - 1
    }

    /// Reports that all records that existed at the start are in batches.
    pub fn caught_up(&self) {
        let mut state = self.state.lock();
        let next = state.first + state.batches.len() as u64;
        state.replay_ends.get_or_insert(next);
    }

    /// Whether all records that existed at the start are applied.
    pub fn is_replayed(&self) -> bool {
        let state = self.state.lock();
        state.replay_ends.is_some_and(|end| state.first >= end)
    }

    /// Adds a record to the batch.
    pub fn read(&self, batch: u64, offset: Option<&SourceOffset>) {
        let mut state = self.state.lock();
        if let Some(batch) = state.batch(batch) {
            batch.open += 1;
            if let Some(offset) = offset {
                batch.offsets.set(offset.clone());
            }
        }
    }

    /// Closes the batch: it gets no more records.
    pub fn close(&self, batch: u64) {
        self.tick(batch);
    }

    /// Marks a record of the batch as applied.
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

    /// The offsets up to which everything is applied, and the sink positions before anything after
    /// them was written.
    pub fn low(&self) -> Option<(Offsets, SinkPositions)> {
        self.state.lock().low.clone()
    }

    /// Whether a position of this sink in another file than `log` is still needed.
    pub fn names_other(&self, sink: &str, log: &str) -> bool {
        let state = self.state.lock();
        let low = state.low.iter().map(|(_, marks)| marks);
        let all = low.chain(state.batches.iter().map(|batch| &batch.marks));
        all.filter_map(|marks| marks.get(sink)).any(|mark| *mark.log != *log)
    }

    /// Like [`OffsetTracker::low`], given recent sink positions. If no batch is open, later answers are
    /// written after `now`, which then replaces the older positions.
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
        SinkPositions::from([("out".into(), SinkPosition { log: "s".into(), length, content: None })])
    }

    /// The checkpoint of a source without new records names the current file of a sink.
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
        assert!(tracker.is_replayed(), "later records do not count");
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
        assert_eq!(tracker.low(), Some((place(30).into(), marks(200))), "marks may be too old, but never too new");
        let next = tracker.begin(marks(300));
        tracker.close(next);
        assert_eq!(tracker.low(), Some((place(30).into(), marks(200))));
    }
}
