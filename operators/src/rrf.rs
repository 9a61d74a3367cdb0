//! Reciprocal rank fusion: Hits, Hits, … → Hits.
//!
//! ```ron
//! Rrf(inputs: ["lexical", "dense"], k: 60, weights: [1.0, 1.0], top: 100)
//! ```
//!
//! A passage's score is the sum, over the lists that contain it, of weight / (k + rank), with ranks from 1 (Cormack,
//! Clarke and Büttcher 2009). Only ranks matter, so lists with scores on different scales can be fused. Ties are
//! ordered by passage id.

use std::collections::HashMap;
use std::sync::Arc;

use turnflow_engine::component::{Call, Check, Function, InputPort, OperatorError, OperatorKind, ScoreUse, config};
use turnflow_engine::record::{Hit, Hits, PortType, Value, rank};

use crate::fusion::lists;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::function::<RrfConfig>(
    "Rrf",
    &[InputPort::many(PortType::Hits)],
    PortType::Hits,
    "lists fused by reciprocal rank (RRF)",
);

/// Fields of `Rrf`.
#[config]
pub struct RrfConfig {
    /// Input nodes that produce hits.
    pub inputs: Vec<String>,
    /// Rank constant, > 0. The larger it is, the less the first ranks stand out.
    #[field(default = 60.0, range = 0.001..=1_000_000.0)]
    pub k: f32,
    /// One weight for each input, ≥ 0. Default: 1 for each.
    #[field(unset = "1 for each")]
    pub weights: Option<Vec<f32>>,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
}

impl RrfConfig {
    fn effective_weights(&self) -> Vec<f32> {
        self.weights.clone().unwrap_or_else(|| vec![1.0; self.inputs.len()])
    }
}

impl Function for RrfConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::Left
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.inputs.is_empty() {
            check.error("wrong-value", "inputs", "at least one input is required");
        }
        if let Some(weights) = &self.weights {
            if weights.len() != self.inputs.len() {
                let message = format!(
                    "one weight is required for each input: {} weights, {} inputs",
                    weights.len(),
                    self.inputs.len()
                );
                check.error("wrong-value", "weights", message);
            }
            if weights.iter().any(|weight| !(*weight >= 0.0 && weight.is_finite())) {
                check.error("out-of-range", "weights", "weights must be finite and at least 0");
            }
        }
    }

    fn weights(&self) -> Option<Vec<f32>> {
        Some(self.effective_weights())
    }

    fn call(&self, call: &Call) -> Result<Value, OperatorError> {
        let hits = fuse(&lists(call)?, self.k, &call.weights_or(&self.effective_weights()), self.top);
        Ok(Value::Hits(Arc::new(Hits { query: call.hits(0)?.query.clone(), hits })))
    }
}

/// Sums weight / (k + rank) over the lists, with ranks from 1.
pub fn fuse(lists: &[&[Hit]], k: f32, weights: &[f32], top: usize) -> Vec<Hit> {
    let mut scores: HashMap<_, (f32, &Hit)> = HashMap::new();
    for (list, weight) in lists.iter().zip(weights) {
        for (at, hit) in list.iter().enumerate() {
            scores.entry(hit.chunk.identity()).or_insert((0.0, hit)).0 += weight / (k + (at + 1) as f32);
        }
    }
    let mut hits = scores.into_values().map(|(score, hit)| Hit { chunk: hit.chunk.clone(), score }).collect();
    rank(&mut hits, top);
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnflow_engine::document::Chunk;

    fn list(ids: &[&str]) -> Vec<Hit> {
        let chunk = |id: &&str| Arc::new(Chunk::new((*id).into(), (*id).into(), "".into(), (*id).into()));
        ids.iter().map(|id| Hit { chunk: chunk(id), score: 1.0 }).collect()
    }

    #[test]
    fn ranks_are_summed_and_ties_go_by_id() {
        let (a, b) = (list(&["x", "y", "z"]), list(&["y", "x"]));
        let got: Vec<(String, f32)> = fuse(&[&a, &b], 60.0, &[1.0, 1.0], 10)
            .into_iter()
            .map(|hit| (hit.chunk.id.to_string(), hit.score))
            .collect();
        let both = 1.0 / 61.0 + 1.0 / 62.0;
        assert_eq!(got, [("x".into(), both), ("y".into(), both), ("z".into(), 1.0 / 63.0)]);
    }

    #[test]
    fn weights_turn_the_order_and_top_cuts() {
        let (a, b) = (list(&["x", "y"]), list(&["y", "x"]));
        let got = fuse(&[&a, &b], 60.0, &[1.0, 2.0], 1);
        assert_eq!((got.len(), &*got[0].chunk.id), (1, "y"));
        assert_eq!(fuse(&[&[], &[]], 60.0, &[1.0, 1.0], 5), []);
    }
}
