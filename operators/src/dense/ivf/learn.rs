//! Learns the centroids of lists (k-means, Lloyd 1982).

use super::super::codes::{self, Codes, Queries};
use super::super::index::ROWS;
use crate::content::dot;

/// Vectors that a centroid is learned from, and rounds of learning.
const LEARNED_FROM: usize = 32;
const ROUNDS: usize = 6;

fn halves(centroids: &[Vec<f32>]) -> Vec<f32> {
    centroids.iter().map(|centroid| dot(centroid, centroid) / 2.0).collect()
}

/// The nearest centroid of each vector, by codes.
fn nearest(vectors: &[&[f32]], centroids: &Codes, halves: &[f32]) -> Vec<u32> {
    let mut found = Vec::with_capacity(vectors.len());
    let mut products = Vec::new();
    for part in vectors.chunks(ROWS) {
        let coded = Queries::of(part);
        let mut best = vec![(f32::NEG_INFINITY, 0_u32); part.len()];
        for from in (0..halves.len()).step_by(ROWS) {
            let count = (halves.len() - from).min(ROWS).next_multiple_of(codes::ROWS);
            coded.products(centroids, from, count, &mut products);
            let of_parts = products.chunks_exact(count).zip(&coded.bounds).zip(&mut best);
            for ((products, bound), best) in of_parts {
                let centroids = (from..).zip(products).zip(&centroids.scales[from..]).zip(&halves[from..]);
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

/// The codes of centroids, and the nearest one of each vector. They are learned from some of the vectors, spread over all.
pub(super) fn learn(vectors: &[&[f32]], count: usize) -> (Codes, Vec<u32>) {
    let step = (vectors.len() / (count * LEARNED_FROM).max(1)).max(1);
    let sample: Vec<&[f32]> = vectors.iter().step_by(step).copied().collect();
    let spread = |at: usize| sample[at * sample.len() / count].to_vec();
    let mut centroids: Vec<Vec<f32>> = (0..count).map(spread).collect();
    for _ in 0..ROUNDS {
        let coded = Codes::of(centroids.iter().map(|centroid| &**centroid));
        let nearest = nearest(&sample, &coded, &halves(&centroids));
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
    let coded = Codes::of(centroids.iter().map(|centroid| &**centroid));
    let nearest = nearest(vectors, &coded, &halves(&centroids));
    (coded, nearest)
}
