//! Score interpolation: Hits, Hits, … → Hits.
//!
//! ```ron
//! Hybrid(inputs: ["lexical", "dense"], alpha: 0.65, top: 100)
//! ```
//!
//! Scales each list's scores to \[0, 1\] by the list's own least and greatest score. A passage's score is the weighted
//! sum over the lists; a list that does not contain the passage adds nothing. With two lists this is α · norm(first) +
//! (1 − α) · norm(second) (PolyU, section 2.1.6); for more lists, set `weights`. Scores carry more information than
//! ranks if the first passages of a list score far above the rest. Ties are ordered by passage id. The same lists give
//! the same result.

use std::sync::Arc;

use turnflow_engine::component::{Call, Check, Function, InputPort, OperatorError, OperatorKind, config};
use turnflow_engine::record::{Hit, Hits, PortType, Value};

use crate::fusion::{self, lists, min_max, validate_weights};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::function::<HybridConfig>(
    "Hybrid",
    &[InputPort::many(PortType::Hits)],
    PortType::Hits,
    "lists fused by a weighted sum of scaled scores",
);

/// Fields of `Hybrid`.
#[config]
pub struct HybridConfig {
    /// Input nodes that produce hits.
    pub inputs: Vec<String>,
    /// Weight of the first of two inputs, 0 to 1; the second gets 1 − `alpha`. Default 0.5.
    #[field(range = 0.0..=1.0)]
    pub alpha: Option<f32>,
    /// One weight for each input, ≥ 0; overrides `alpha`. Default: equal weights.
    pub weights: Option<Vec<f32>>,
    /// Number of passages to use from each list, best first. Scores are scaled over these.
    #[field(default = 100, range = 1..=100_000)]
    pub depth: usize,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
}

impl HybridConfig {
    fn effective_weights(&self) -> Vec<f32> {
        match (&self.weights, self.alpha) {
            (Some(weights), _) => weights.clone(),
            (None, Some(alpha)) => vec![alpha, 1.0 - alpha],
            (None, None) => vec![1.0 / self.inputs.len().max(1) as f32; self.inputs.len()],
        }
    }
}

impl Function for HybridConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.inputs.is_empty() {
            check.error("wrong-value", "inputs", "at least one input is required");
        }
        if self.alpha.is_some() && self.inputs.len() != 2 && self.weights.is_none() {
            let message = format!("`alpha` requires two inputs, not {}; use `weights`", self.inputs.len());
            check.error("wrong-value", "alpha", message);
        }
        if let Some(weights) = &self.weights {
            validate_weights(check, "weights", weights, self.inputs.len());
        }
    }

    fn weights(&self) -> Option<Vec<f32>> {
        Some(self.effective_weights())
    }

    fn explain(&self) -> String {
        format!("weights: {:?}, depth: {}, top: {}", self.effective_weights(), self.depth, self.top)
    }

    fn call(&self, call: &Call) -> Result<Value, OperatorError> {
        let hits = interpolate(&lists(call)?, &call.weights_or(&self.effective_weights()), self.depth, self.top);
        Ok(Value::Hits(Arc::new(Hits { query: call.hits(0)?.query.clone(), hits })))
    }
}

/// Weighted sum of the lists' scores, with each list scaled to \[0, 1\] over its first `depth` passages.
pub fn interpolate(lists: &[&[Hit]], weights: &[f32], depth: usize, top: usize) -> Vec<Hit> {
    let lists: Vec<&[Hit]> = lists.iter().map(|hits| &hits[..hits.len().min(depth)]).collect();
    let scaled = |hits: &&[Hit]| min_max(&hits.iter().map(|hit| hit.score).collect::<Vec<_>>());
    let scores: Vec<Vec<f32>> = lists.iter().map(scaled).collect();
    fusion::fuse(&lists, top, |list, place| weights[list] * scores[list][place])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::{list, scored};

    #[test]
    fn agrees_with_the_sum_worked_by_hand() {
        let lexical = list(&[("x", 10.0), ("y", 6.0), ("z", 2.0)]);
        let dense = list(&[("y", 0.9), ("w", 0.8), ("x", 0.4)]);
        // x: 0.65·1 + 0.35·0; y: 0.65·0.5 + 0.35·1; w: 0.35·0.8; z: 0.
        let got = interpolate(&[&lexical, &dense], &[0.65, 0.35], 100, 10);
        let expected = [("y", 0.675), ("x", 0.65), ("w", 0.28), ("z", 0.0)];
        for ((id, score), (expected_id, expected)) in scored(&got).into_iter().zip(expected) {
            assert_eq!(id, expected_id);
            assert!((score - expected).abs() < 1e-6, "{id}: {score}");
        }
        assert_eq!(scored(&interpolate(&[&lexical, &[]], &[0.5, 0.5], 1, 10)), [("x", 0.5)]);
    }
}
