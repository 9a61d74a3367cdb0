//! Maximal marginal relevance: Hits → Hits.
//!
//! ```ron
//! Diversify(input: "fused", model: "minilm", lambda: 0.7, depth: 50, top: 10)
//! ```
//!
//! Passages are chosen one after another: each time the one with the greatest
//! λ · relevance − (1 − λ) · likeness, where relevance is its score, brought to \[0, 1\] over the
//! candidates, and likeness its greatest cosine with a passage that is chosen already (Carbonell
//! and Goldstein 1998). Passages that say the same then do not fill the prompt. The score given
//! is the marginal one. Ties go by the order of the input.
//!
//! Cost: with `corpus`, whose `Dense` index has the vectors, depth · top products; else a
//! model input for each candidate that has not been seen before.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Call, Capability, Check, CorpusRef, IndexDefinition, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind,
};
use turnflow_engine::inference::{Embedder, Vector};
use turnflow_engine::record::{Hit, Hits, PortType, Value};
use turnflow_engine::spec::from_tree;

use crate::content::dot;
use crate::dense::index::{DenseDefinition, passage_vectors};
use crate::fusion::min_max;
use crate::models::embedder;

/// The table's entry.
pub const KIND: OperatorKind = OperatorKind {
    name: "Diversify",
    inputs: &[InputPort::one(PortType::Hits)],
    output: PortType::Hits,
    summary: "passages that are relevant and unlike those before them (MMR)",
    parse: |tree, sources| Ok(Box::new(from_tree::<DiversifyConfig>(tree, sources)?)),
};

/// Fields of `Diversify`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiversifyConfig {
    /// The node that gives candidates.
    #[serde(rename = "input")]
    _input: String,
    /// The bi-encoder that compares passages.
    pub model: String,
    /// The candidates' corpus, or `FromTurn`: vectors are then kept in its index. Default: none.
    #[serde(default)]
    pub corpus: Option<CorpusRef>,
    /// How much relevance counts against being different; 1 keeps the order. Default 0.7.
    #[serde(default = "default_lambda")]
    pub lambda: f32,
    /// Candidates to choose from, from the first. Default 50.
    #[serde(default = "default_depth")]
    pub depth: usize,
    /// Passages to choose. Default 10.
    #[serde(default = "default_top")]
    pub top: usize,
}

fn default_lambda() -> f32 {
    0.7
}
fn default_depth() -> usize {
    50
}
fn default_top() -> usize {
    10
}

impl OperatorConfig for DiversifyConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("lambda", self.lambda, 0.0, 1.0);
        check.range("depth", self.depth, 1, 10_000);
        check.range("top", self.top, 1, 10_000);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::Embed }]
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        self.corpus.as_ref()
    }

    fn indexes(&self, models: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(DenseDefinition::new(models, &self.model, "Diversify")?)])
    }

    fn explain(&self) -> String {
        let Self { model, lambda, depth, top, .. } = self;
        format!("model: {model:?}, lambda: {lambda}, depth: {depth}, top: {top}")
    }

    fn build(&self, models: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        let key = DenseDefinition::new(models, &self.model, "Diversify")?.key();
        let embedder = embedder(models, &self.model, "Diversify")?;
        Ok(Arc::new(Diversify { config: self.clone(), key, embedder }))
    }
}

struct Diversify {
    config: DiversifyConfig,
    key: String,
    embedder: Arc<dyn Embedder>,
}

impl Operator for Diversify {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let Hits { query, hits } = &**call.hits(0)?;
            let candidates = &hits[..hits.len().min(self.config.depth)];
            let reader = match &self.config.corpus {
                Some(corpus) => Some(corpus.resolve(&call.turn, &call.snapshot)?.index(&self.key)?),
                None => None,
            };
            let vectors = passage_vectors(reader.as_deref(), &self.embedder, candidates).await?;
            let hits = choose(candidates, &vectors, self.config.lambda, self.config.top);
            Ok(Value::Hits(Arc::new(Hits { query: query.clone(), hits })))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        let candidates = call.hits(0).map_or(0, |hits| hits.hits.len().min(self.config.depth));
        let products = candidates * candidates.min(self.config.top) * self.embedder.dimension() / 64;
        call.weight() + call.weight_of_passages(self.config.depth) + products
    }
}

/// The first `top` by marginal relevance.
fn choose(candidates: &[Hit], vectors: &[Vector], lambda: f32, top: usize) -> Vec<Hit> {
    let relevance = min_max(&candidates.iter().map(|hit| hit.score).collect::<Vec<_>>());
    let norms: Vec<f32> = vectors.iter().map(|vector| dot(vector, vector).sqrt().max(f32::MIN_POSITIVE)).collect();
    // The greatest cosine with a chosen passage, so far; nothing is like what is not there.
    let mut likeness = vec![f32::NEG_INFINITY; candidates.len()];
    let mut left: Vec<usize> = (0..candidates.len().min(vectors.len())).collect();
    let mut chosen = Vec::new();
    while chosen.len() < top && !left.is_empty() {
        let marginal = |at: usize| {
            let like = if likeness[at].is_finite() { likeness[at] } else { 0.0 };
            lambda * relevance[at] - (1.0 - lambda) * like
        };
        let (mut place, mut best) = (0, f32::NEG_INFINITY);
        for (at, candidate) in left.iter().enumerate() {
            if marginal(*candidate) > best {
                (place, best) = (at, marginal(*candidate));
            }
        }
        let next = left.remove(place);
        // A passage that is most unlike those chosen may gain on them; scores keep the order.
        let score = chosen.last().map_or(best, |before: &Hit| best.min(before.score));
        chosen.push(Hit { chunk: candidates[next].chunk.clone(), score });
        for &other in &left {
            let cosine = dot(&vectors[next], &vectors[other]) / (norms[next] * norms[other]);
            likeness[other] = likeness[other].max(cosine);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::{list, scored};

    #[test]
    fn a_repetition_goes_behind_something_new() {
        let candidates = list(&[("a", 1.0), ("a-again", 0.9), ("b", 0.5), ("c", 0.0)]);
        let vector = |values: [f32; 2]| Vector::from(values);
        let vectors = [vector([1.0, 0.0]), vector([2.0, 0.0]), vector([0.0, 1.0]), vector([0.0, -1.0])];
        let ids = |lambda, top| {
            let hits = choose(&candidates, &vectors, lambda, top);
            scored(&hits).into_iter().map(|(id, _)| id.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(ids(1.0, 4), ["a", "a-again", "b", "c"]);
        // a: .5; then b .25 − 0, a-again .45 − .5, c 0 − 0; then c −0 + .5 · 1 …
        assert_eq!(ids(0.5, 2), ["a", "b"]);
        assert_eq!(ids(0.5, 10).len(), 4);
        assert_eq!(choose(&[], &[], 0.5, 3), []);
    }
}
