//! Shared by the fusion operators: score normalisation, and merging the passages of several lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnflow_engine::component::{Call, Check, OperatorError};
use turnflow_engine::document::Chunk;
use turnflow_engine::record::{Hit, rank};

/// Scales scores to \[0, 1\]: the least becomes 0, the greatest 1. If all scores are equal, each becomes 1.
pub(crate) fn min_max(scores: &[f32]) -> Vec<f32> {
    let low = scores.iter().copied().fold(f32::INFINITY, f32::min);
    let high = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = |score: &f32| if high > low { (score - low) / (high - low) } else { 1.0 };
    scores.iter().map(scale).collect()
}

/// Sums `score(list, rank)` over the lists that contain a passage; best first. Ranks count from 0.
pub(crate) fn fuse(lists: &[&[Hit]], top: usize, score: impl Fn(usize, usize) -> f32) -> Vec<Hit> {
    let mut sums: BTreeMap<_, (f32, &Arc<Chunk>)> = BTreeMap::new();
    for (list, hits) in lists.iter().enumerate() {
        for (place, hit) in hits.iter().enumerate() {
            sums.entry(hit.chunk.identity()).or_insert((0.0, &hit.chunk)).0 += score(list, place);
        }
    }
    let mut hits = sums.into_values().map(|(score, chunk)| Hit { chunk: chunk.clone(), score }).collect();
    rank(&mut hits, top);
    hits
}

/// The hits of each input.
pub(crate) fn lists(call: &Call) -> Result<Vec<&[Hit]>, OperatorError> {
    (0..call.inputs.len()).map(|at| Ok(&call.hits(at)?.hits[..])).collect()
}

/// Reports a wrong number of weights (one for each list), weights that are negative or not finite, and weights that are
/// all 0.
pub(crate) fn validate_weights(check: &mut Check<'_>, field: &str, weights: &[f32], lists: usize) {
    if weights.len() != lists {
        let message = format!("one weight is required for each input: {} weights, {lists} inputs", weights.len());
        check.error("wrong-value", field, message);
    }
    if weights.iter().any(|weight| !(*weight >= 0.0 && weight.is_finite())) {
        check.error("out-of-range", field, "weights must be finite and at least 0");
    } else if !weights.is_empty() && weights.iter().all(|weight| *weight == 0.0) {
        check.error("out-of-range", field, "at least one weight must be above 0");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A list of hits with the given ids and scores.
    pub(crate) fn list(hits: &[(&str, f32)]) -> Vec<Hit> {
        let chunk = |id: &str| Arc::new(Chunk::new(id.into(), id.into(), "".into(), id.into()));
        hits.iter().map(|(id, score)| Hit { chunk: chunk(id), score: *score }).collect()
    }

    /// The ids and scores of a list.
    pub(crate) fn scored(hits: &[Hit]) -> Vec<(&str, f32)> {
        hits.iter().map(|hit| (&*hit.chunk.id, hit.score)).collect()
    }

    #[test]
    fn scores_are_brought_to_one_scale() {
        assert_eq!(min_max(&[3.0, 1.0, 2.0]), [1.0, 0.0, 0.5]);
        assert_eq!(min_max(&[-2.0, -2.0]), [1.0, 1.0]);
        assert_eq!(min_max(&[7.0]), [1.0]);
        assert_eq!(min_max(&[]), [0.0; 0]);
    }

    #[test]
    fn a_passage_in_several_lists_has_the_sum() {
        let (a, b) = (list(&[("x", 9.0), ("y", 8.0)]), list(&[("y", 1.0)]));
        let hits = fuse(&[&a, &b], 10, |list, place| if list == 0 { 1.0 / (place + 1) as f32 } else { 0.5 });
        assert_eq!(scored(&hits), [("x", 1.0), ("y", 1.0)]);
        assert_eq!(fuse(&[], 10, |_, _| 1.0), []);
    }
}
