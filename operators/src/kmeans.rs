//! Learns centroids of vectors (k-means, Lloyd 1982).

use crate::content::dot;
use crate::dense::codes::{self, Codes, Queries};
use crate::dense::index::ROWS;

/// Vectors that a centroid is learned from, and rounds of learning.
const LEARNED_FROM: usize = 32;
const ROUNDS: usize = 6;

/// Centroids that are learned.
pub(crate) struct Centroids {
    pub codes: Codes,
    /// Half of the square of each centroid's length.
    halves: Vec<f32>,
}

impl Centroids {
    fn of(centroids: &[Vec<f32>]) -> Self {
        let codes = Codes::of(centroids.iter().map(|centroid| &**centroid));
        Self { codes, halves: centroids.iter().map(|centroid| dot(centroid, centroid) / 2.0).collect() }
    }

    /// Number of centroids.
    pub fn count(&self) -> usize {
        self.halves.len()
    }

    /// The nearest centroid of each vector, by codes.
    pub fn nearest(&self, vectors: &[&[f32]]) -> Vec<u32> {
        let mut found = Vec::with_capacity(vectors.len());
        let mut products = Vec::new();
        for part in vectors.chunks(ROWS) {
            let coded = Queries::of(part);
            let mut best = vec![(f32::NEG_INFINITY, 0_u32); part.len()];
            for from in (0..self.count()).step_by(ROWS) {
                let count = (self.count() - from).min(ROWS).next_multiple_of(codes::ROWS);
                coded.products(&self.codes, from, count, &mut products);
                let of_parts = products.chunks_exact(count).zip(&coded.bounds).zip(&mut best);
                for ((products, bound), best) in of_parts {
                    let centroids = (from..).zip(products).zip(&self.codes.scales[from..]).zip(&self.halves[from..]);
                    for (((at, product), scale), half) in centroids {
                        let near = bound.of(*product, *scale, 0.0, 0.0).0 - half;
                        if near > best.0 {
                            *best = (near, at as u32);
                        }
                    }
                }
            }
            found.extend(best.into_iter().map(|(_, at)| at));
        }
        found
    }

    /// The score of each centroid for each query, by codes: by query, then by centroid.
    pub fn scores(&self, queries: &Queries) -> Vec<f32> {
        let mut products = Vec::new();
        let count = self.count().next_multiple_of(codes::ROWS);
        queries.products(&self.codes, 0, count, &mut products);
        let of_queries = products.chunks_exact(count.max(1)).zip(&queries.bounds);
        let scores = of_queries.flat_map(|(products, bound)| {
            let scales = products.iter().zip(&self.codes.scales);
            scales.map(|(product, scale)| bound.of(*product, *scale, 0.0, 0.0).0)
        });
        scores.collect()
    }
}

/// Learns centroids from some of the vectors, spread over all. There are at least as many vectors as centroids.
pub(crate) fn learn(vectors: &[&[f32]], count: usize) -> Centroids {
    let step = (vectors.len() / (count * LEARNED_FROM).max(1)).max(1);
    let sample: Vec<&[f32]> = vectors.iter().step_by(step).copied().collect();
    let spread = |at: usize| sample[at * sample.len() / count].to_vec();
    let mut centroids: Vec<Vec<f32>> = (0..count).map(spread).collect();
    for _ in 0..ROUNDS {
        let nearest = Centroids::of(&centroids).nearest(&sample);
        let mut sums = vec![(vec![0.0_f32; sample[0].len()], 0_usize); count];
        for (vector, at) in sample.iter().zip(nearest) {
            let (sum, members) = &mut sums[at as usize];
            sum.iter_mut().zip(*vector).for_each(|(sum, value)| *sum += value);
            *members += 1;
        }
        for ((at, centroid), (sum, members)) in centroids.iter_mut().enumerate().zip(sums) {
            // A centroid without members becomes one of the vectors.
            *centroid = match members {
                0 => sample[(at * 7919 + members) % sample.len()].to_vec(),
                _ => sum.into_iter().map(|value| value / members as f32).collect(),
            };
        }
    }
    Centroids::of(&centroids)
}
