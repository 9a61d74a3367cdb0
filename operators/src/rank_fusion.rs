//! Fusion by weighted ranks: Hits, Hits, … → Hits.
//!
//! ```ron
//! RankFusion(inputs: ["lexical", "dense"], depth: 10, weights: [1.0, 0.8], top: 10)
//! ```
//!
//! FusionRAG (section 2.2) scores a passage with (10 − rank in BM25) + 0.8 · (10 − rank in the dense list), with ranks
//! from 0, so that first in both is 18 and last in both is 1.8. Here the lists, their weights and the depth (10 in the
//! paper) are configurable. A list that does not contain the passage adds nothing. Ties are ordered by passage id. The
//! same lists give the same result.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Call, Check, ComponentContext, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind, ScoreUse, built_at_once, config,
};
use turnflow_engine::record::{Hit, Hits, PortType, Value};

use crate::fusion::{self, lists, validate_weights};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<RankFusionConfig>(
    "RankFusion",
    &[InputPort::many(PortType::Hits)],
    PortType::Hits,
    "lists fused by weighted rank",
);

/// Fields of `RankFusion`.
#[config]
pub struct RankFusionConfig {
    /// Input nodes that produce hits.
    pub inputs: Vec<String>,
    /// Number of passages of each list that score, best first.
    #[field(default = 10, range = 1..=100_000)]
    pub depth: usize,
    /// One weight for each input, ≥ 0. Default: 1 for the first, 0.8 for the others.
    #[field(unset = "1 for the first, 0.8 for the others")]
    pub weights: Option<Vec<f32>>,
    /// Maximum number of passages to return.
    #[field(default = 10, range = 1..=100_000)]
    pub top: usize,
}

impl RankFusionConfig {
    fn effective_weights(&self) -> Vec<f32> {
        let default = || (0..self.inputs.len()).map(|at| if at == 0 { 1.0 } else { 0.8 }).collect();
        self.weights.clone().unwrap_or_else(default)
    }
}

impl OperatorConfig for RankFusionConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::Left
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.inputs.is_empty() {
            check.error("wrong-value", "inputs", "at least one input is required");
        }
        if let Some(weights) = &self.weights {
            validate_weights(check, "weights", weights, self.inputs.len());
        }
    }

    fn weights(&self) -> Option<Vec<f32>> {
        Some(self.effective_weights())
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            Ok(Arc::new(RankFusion { depth: self.depth, weights: self.effective_weights(), top: self.top }))
        })
    }
}

struct RankFusion {
    depth: usize,
    weights: Vec<f32>,
    top: usize,
}

impl Operator for RankFusion {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let hits = fuse(&lists(&call)?, self.depth, &call.weights_or(&self.weights), self.top);
            Ok(Value::Hits(Arc::new(Hits { query: call.hits(0)?.query.clone(), hits })))
        }
        .boxed()
    }
}

/// Sums weight · (depth − rank) over the lists, with ranks from 0.
pub fn fuse(lists: &[&[Hit]], depth: usize, weights: &[f32], top: usize) -> Vec<Hit> {
    let lists: Vec<&[Hit]> = lists.iter().map(|hits| &hits[..hits.len().min(depth)]).collect();
    fusion::fuse(&lists, top, |list, place| weights[list] * (depth - place) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::{list, scored};

    #[test]
    fn the_papers_extremes_are_met() {
        let ids: Vec<String> = (0..12).map(|n| format!("p{n:02}")).collect();
        let both = list(&ids.iter().map(|id| (id.as_str(), 1.0)).collect::<Vec<_>>());
        let got = fuse(&[&both, &both], 10, &[1.0, 0.8], 100);
        assert_eq!(got.len(), 10);
        assert_eq!(scored(&got)[0], ("p00", 18.0));
        assert!((got[9].score - 1.8).abs() < 1e-6);
    }

    #[test]
    fn a_list_without_the_passage_adds_nothing() {
        let (a, b) = (list(&[("x", 1.0), ("y", 0.5)]), list(&[("z", 1.0)]));
        assert_eq!(scored(&fuse(&[&a, &b], 10, &[1.0, 0.8], 2)), [("x", 10.0), ("y", 9.0)]);
    }
}
