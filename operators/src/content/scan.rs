//! The inner product, and the top-k selection.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Arc, atomic};

use turnflow_engine::document::Chunk;
use turnflow_engine::record::Hit;

/// Number of parallel partial sums: four registers of eight floats.
const LANES: usize = 32;

/// Inner product of two vectors of equal length. Products are summed in [`LANES`] lanes in a fixed order and without
/// fused operations, so the result is identical to the bit on every processor, and does not depend on other searches.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports AVX2.
            return unsafe { dot_avx2(a, b) };
        }
    }
    dot_lanes(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dot_avx2(a: &[f32], b: &[f32]) -> f32 {
    // The same code, which the compiler vectorises with wider instructions.
    dot_lanes(a, b)
}

#[inline(always)]
fn dot_lanes(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (a_whole, a_rest) = a.as_chunks::<LANES>();
    let (b_whole, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_whole.iter().zip(b_whole) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[lane] += a * b;
    }
    sums.iter().sum()
}

struct Candidate<'a> {
    score: f32,
    chunk: &'a Arc<Chunk>,
}

// The greatest candidate is the worst one, because the heap evicts its greatest element.
impl Ord for Candidate<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then_with(|| self.chunk.id.cmp(&other.chunk.id))
    }
}
impl PartialOrd for Candidate<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Candidate<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Candidate<'_> {}

/// Keeps the best `top` candidates.
pub(crate) struct Best<'a> {
    top: usize,
    heap: BinaryHeap<Candidate<'a>>,
    /// Shared by several searches for the same candidates.
    floor: Option<Arc<Floor>>,
}

/// A score that several searches for the same candidates have found to be low: each has as many candidates as are
/// kept whose scores are not lower.
#[derive(Default)]
pub(crate) struct Floor(atomic::AtomicU32);

impl Floor {
    fn get(&self) -> f32 {
        f32::from_bits(self.0.load(atomic::Ordering::Relaxed))
    }

    fn raise(&self, score: f32) {
        // The bits of scores that are not negative are ordered as the scores are.
        if score > 0.0 {
            self.0.fetch_max(score.to_bits(), atomic::Ordering::Relaxed);
        }
    }
}

impl<'a> Best<'a> {
    pub fn new(top: usize) -> Self {
        Self { top, heap: BinaryHeap::with_capacity(top.min(1024) + 1), floor: None }
    }

    /// The same for one of several searches, which need no candidate below the floor of any of them.
    pub fn above(top: usize, floor: Arc<Floor>) -> Self {
        Self { floor: Some(floor), ..Self::new(top) }
    }

    pub fn offer(&mut self, score: f32, chunk: &'a Arc<Chunk>) {
        let candidate = Candidate { score, chunk };
        if self.heap.len() < self.top {
            self.heap.push(candidate);
        } else if self.heap.peek().is_some_and(|worst| candidate < *worst) {
            self.heap.pop();
            self.heap.push(candidate);
        }
        if let Some(floor) = self.floor.as_ref().filter(|_| self.heap.len() >= self.top) {
            self.heap.peek().into_iter().for_each(|worst| floor.raise(worst.score));
        }
    }

    /// The score that a candidate needs at least: that of the worst of them, or 0 if there is still room.
    pub fn threshold(&self) -> f32 {
        let own = if self.heap.len() < self.top { 0.0 } else { self.heap.peek().map_or(0.0, |worst| worst.score) };
        self.floor.as_ref().map_or(own, |floor| own.max(floor.get()))
    }

    /// The kept candidates as hits, best first.
    pub fn into_hits(self) -> Vec<Hit> {
        self.into_sorted().map(|(score, chunk)| Hit { chunk: chunk.clone(), score }).collect()
    }

    /// The kept candidates, best first.
    pub fn into_sorted(self) -> impl Iterator<Item = (f32, &'a Arc<Chunk>)> {
        self.heap.into_sorted_vec().into_iter().map(|candidate| (candidate.score, candidate.chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wide_and_the_plain_product_agree_to_the_bit() {
        for length in [0, 1, 7, 31, 32, 33, 384, 385, 1000] {
            let a: Vec<f32> = (0..length).map(|i| ((i * 37 % 101) as f32).sin()).collect();
            let b: Vec<f32> = (0..length).map(|i| ((i * 53 % 97) as f32).cos()).collect();
            assert_eq!(dot(&a, &b).to_bits(), dot_lanes(&a, &b).to_bits(), "{length}");
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-3);
        }
    }

    #[test]
    fn the_best_are_kept_and_ties_go_by_id() {
        let chunk = |id: &str| Arc::new(Chunk::new(id.into(), id.into(), "".into(), "".into()));
        let chunks: Vec<_> = ["d", "b", "c", "a", "e"].map(chunk).into();
        let mut best = Best::new(3);
        for (score, chunk) in [0.5, 0.9, 0.5, 0.5, 0.1].into_iter().zip(&chunks) {
            best.offer(score, chunk);
        }
        let ids: Vec<&str> = best.into_sorted().map(|(_, chunk)| &*chunk.id).collect();
        assert_eq!(ids, ["b", "a", "c"]);
    }
}
