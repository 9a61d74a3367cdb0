//! The inputs that wait, ordered by length, and the choice of those that share a batch.
//!
//! All inputs of a batch are padded to the longest one. A batch takes neighbours in length among all that
//! wait, and is divided where a batch more costs less than the padding.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, Range};

use super::Backend;
use super::queue::Job;

/// The length of an input in tokens, and its number in the order of arrival.
type Key = (usize, u64);

/// The start of a sweep: above the key of every input.
const SWEEP_START: Key = (usize::MAX, u64::MAX);

/// The limits of one batch.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Maximum inputs.
    pub inputs: usize,
    /// Maximum tokens, with padding. A longer input is alone.
    pub tokens: usize,
    /// The cost of a batch besides its inputs, in tokens.
    pub overhead: usize,
}

/// Inputs of one priority.
pub(super) struct Waiting<B: Backend> {
    by_length: BTreeMap<Key, Job<B>>,
    /// The length of each input, by arrival.
    by_arrival: BTreeMap<u64, usize>,
    arrivals: u64,
    /// The current key of the sweep from long to short.
    sweep: Key,
}

impl<B: Backend> Waiting<B> {
    pub fn new() -> Self {
        Self { by_length: BTreeMap::new(), by_arrival: BTreeMap::new(), arrivals: 0, sweep: SWEEP_START }
    }

    pub fn is_empty(&self) -> bool {
        self.by_length.is_empty()
    }

    /// The number of inputs.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_length.len()
    }

    pub fn clear(&mut self) {
        self.by_length.clear();
        self.by_arrival.clear();
    }

    pub fn push(&mut self, job: Job<B>) {
        self.arrivals += 1;
        let length = B::cost(&job.input);
        self.by_arrival.insert(self.arrivals, length);
        self.by_length.insert((length, self.arrivals), job);
    }

    /// Drops the inputs that nobody waits for.
    fn drop_abandoned(&mut self) {
        let by_arrival = &mut self.by_arrival;
        self.by_length.retain(|(_, arrival), job| {
            let wanted = !job.request.abandoned();
            if !wanted {
                by_arrival.remove(arrival);
            }
            wanted
        });
    }

    fn remove(&mut self, key: Key) -> Option<Job<B>> {
        self.by_arrival.remove(&key.1);
        self.by_length.remove(&key)
    }

    /// Takes the input that has waited longest, and inputs close to it in length. Every batch contains the oldest
    /// input, so an input is passed over at most once for each older input.
    pub fn take_oldest(&mut self, bounds: Bounds) -> Vec<Job<B>> {
        self.drop_abandoned();
        let Some((&arrival, &length)) = self.by_arrival.first_key_value() else { return Vec::new() };
        let oldest = (length, arrival);
        let chosen = self.nearest(oldest, bounds);
        let at = chosen.iter().position(|key| *key == oldest).unwrap_or(0);
        let part = divided(&chosen, at, bounds.overhead);
        chosen[part].iter().filter_map(|key| self.remove(*key)).collect()
    }

    /// The inputs closest in length to `around`, with it; the longest is first.
    fn nearest(&self, around: Key, bounds: Bounds) -> Vec<Key> {
        let mut shorter = self.by_length.range(..around).rev().map(|(key, _)| *key).peekable();
        let above = (Bound::Excluded(around), Bound::Unbounded);
        let mut longer = self.by_length.range(above).map(|(key, _)| *key).peekable();
        let mut chosen = VecDeque::from([around]);
        while chosen.len() < bounds.inputs {
            let fits = |longest: usize| longest * (chosen.len() + 1) <= bounds.tokens;
            let down = shorter.peek().filter(|_| fits(chosen[0].0)).map(|key| around.0 - key.0);
            let up = longer.peek().filter(|key| fits(key.0)).map(|key| key.0 - around.0);
            match (down, up) {
                (Some(down), up) if up.is_none_or(|up| down <= up) => chosen.extend(shorter.next()),
                (_, Some(_)) => longer.next().into_iter().for_each(|key| chosen.push_front(key)),
                (_, None) => break,
            }
        }
        chosen.into()
    }

    /// Takes the next inputs of a sweep over all lengths, from long to short. An input that the sweep has passed
    /// waits for the next sweep. Always taking the longest inputs would batch new arrivals of any length together.
    pub fn take_swept(&mut self, bounds: Bounds) -> Vec<Job<B>> {
        loop {
            let mut chosen: Vec<Key> = Vec::new();
            let mut abandoned = Vec::new();
            for (&key, job) in self.by_length.range(..self.sweep).rev() {
                let longest = chosen.first().map_or(key.0, |first| first.0);
                let is_full = chosen.len() >= bounds.inputs || longest * (chosen.len() + 1) > bounds.tokens;
                if !chosen.is_empty() && is_full {
                    break;
                }
                if job.request.abandoned() { abandoned.push(key) } else { chosen.push(key) }
            }
            for key in abandoned {
                self.remove(key);
            }
            let chosen = &chosen[divided(&chosen, 0, bounds.overhead)];
            // The rest of the divided batch is next in the sweep.
            if let Some(last) = chosen.last() {
                self.sweep = *last;
                return chosen.iter().filter_map(|key| self.remove(*key)).collect();
            }
            if self.sweep == SWEEP_START {
                return Vec::new();
            }
            self.sweep = SWEEP_START;
        }
    }
}

/// The part of a batch that runs now, as positions; it contains the position `at`. The longest input is first.
///
/// A division after the n-th input saves the padding of all later inputs to a greater length, and costs a batch. The
/// batch is divided where that saves most, and the part with `at` again, until nothing is saved.
fn divided(batch: &[Key], at: usize, overhead: usize) -> Range<usize> {
    let (mut start, mut end) = (0, batch.len());
    loop {
        let saved = |cut: usize| (batch[start].0 - batch[cut].0).saturating_mul(end - cut);
        match (start + 1..end).max_by_key(|cut| saved(*cut)).filter(|cut| saved(*cut) > overhead) {
            Some(cut) if at < cut => end = cut,
            Some(cut) => start = cut,
            None => return start..end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_divided_where_that_saves_more_than_a_batch_costs() {
        let batch: Vec<Key> = [200, 30, 29, 28, 20].into_iter().zip(0..).collect();
        assert_eq!(divided(&batch, 0, 32), 0..1);
        assert_eq!(divided(&batch, 2, 32), 1..5);
        assert_eq!(divided(&batch, 4, 8), 4..5);
        assert_eq!(divided(&batch, 4, 679), 1..5);
        assert_eq!(divided(&batch, 4, 680), 0..5);
        assert_eq!(divided(&batch, 4, usize::MAX), 0..5);
        assert_eq!(divided(&batch[..1], 0, 0), 0..1);
        assert_eq!(divided(&[], 0, 0), 0..0);
    }
}
