//! Maximal marginal relevance: Hits → Hits.
//!
//! ```ron
//! Diversify(input: "fused", model: "minilm", lambda: 0.7, depth: 50, top: 10)
//! ```
//!
//! Passages are selected one after another. Each step takes the passage with the greatest λ · relevance − (1 − λ) ·
//! similarity. Relevance is the passage's score, scaled to \[0, 1\] over the candidates. Similarity is its greatest
//! cosine with an already selected passage (Carbonell and Goldstein 1998). This keeps passages with the same content
//! from filling the prompt. The score returned is the marginal one. Ties follow the input order.
//!
//! Cost: with `corpus`, whose `Dense` index holds the vectors, depth · top inner products; otherwise one model input
//! for each candidate that was not seen before.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, ComponentContext, CorpusRef, IndexDefinition, InputPort, ModelUse,
    Models, OfDocuments, Operator, OperatorConfig, OperatorError, OperatorKind, StandingDocuments, StandingQueries,
    built_at_once, config,
};
use turnflow_engine::inference::{Embedder, Vector};
use turnflow_engine::record::{Hit, Hits, PortType, Value};

use crate::content::dot;
use crate::dense::index::{DenseDefinition, passage_vectors};
use crate::fusion::min_max;
use crate::models::embedder;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<DiversifyConfig>(
    "Diversify",
    &[InputPort::one(PortType::Hits)],
    PortType::Hits,
    "relevant and diverse passages, by maximal marginal relevance",
);

/// Fields of `Diversify`.
#[config]
pub struct DiversifyConfig {
    /// Input node that produces the candidates (hits).
    _input: String,
    /// The bi-encoder that compares passages.
    pub model: String,
    /// The candidates' corpus, or `FromTurn`. If set, vectors come from the corpus's index. Default: none.
    pub corpus: Option<CorpusRef>,
    /// Weight of relevance against novelty, 0 to 1; 1 keeps the input order.
    #[field(default = 0.7, range = 0.0..=1.0)]
    pub lambda: f32,
    /// Number of candidates to select from, best first.
    #[field(default = 50, range = 1..=10_000)]
    pub depth: usize,
    /// Number of passages to select.
    #[field(default = 10, range = 1..=10_000)]
    pub top: usize,
}

impl OperatorConfig for DiversifyConfig {
    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::Embed }]
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        self.corpus.as_ref()
    }

    fn asks_other_parts(&self) -> bool {
        true
    }

    fn indexes(&self, models: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(DenseDefinition::new(models, &self.model, "Diversify")?)])
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let key = DenseDefinition::new(models, &self.model, "Diversify")?.key();
            let embedder = embedder(models, &self.model, "Diversify")?;
            Ok(Arc::new(Diversify { config: self.clone(), key, embedder }))
        })
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
            let corpus =
                self.config.corpus.as_ref().map(|corpus| corpus.resolve(&call.turn, &call.snapshot)).transpose()?;
            let reader = corpus.map(|corpus| corpus.part(&self.key)).transpose()?;
            let others = corpus.and_then(|corpus| corpus.other_parts(&self.key, None, &call.turn));
            let vectors = passage_vectors(reader.as_deref(), others.as_ref(), &self.embedder, candidates).await?;
            call.watch.put(OfDocuments::of(candidates));
            let hits = choose(candidates, &vectors, self.config.lambda, self.config.top);
            Ok(Value::Hits(Arc::new(Hits { query: query.clone(), hits })))
        }
        .boxed()
    }

    fn standing(&self, _: bool) -> Option<Box<dyn StandingQueries>> {
        Some(Box::new(StandingDocuments::default()))
    }

    fn weight(&self, call: &Call) -> usize {
        let candidates = call.hits(0).map_or(0, |hits| hits.hits.len().min(self.config.depth));
        let products = candidates * candidates.min(self.config.top) * self.embedder.dimension() / 64;
        call.weight() + call.weight_of_passages(self.config.depth) + products
    }
}

/// Selects the first `top` passages by marginal relevance.
fn choose(candidates: &[Hit], vectors: &[Vector], lambda: f32, top: usize) -> Vec<Hit> {
    let relevance = min_max(&candidates.iter().map(|hit| hit.score).collect::<Vec<_>>());
    let norms: Vec<f32> = vectors.iter().map(|vector| dot(vector, vector).sqrt().max(f32::MIN_POSITIVE)).collect();
    // The greatest cosine with a selected passage so far; −∞ while nothing is selected.
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
        // A passage with a negative cosine to the selected ones can score higher than the one before it. Scores are
        // capped so that they keep the order.
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
        // First a: 0.5. Then b: 0.25 − 0, a-again: 0.45 − 0.5, c: 0 − 0. Then c: −0 + 0.5 · 1 …
        assert_eq!(ids(0.5, 2), ["a", "b"]);
        assert_eq!(ids(0.5, 10).len(), 4);
        assert_eq!(choose(&[], &[], 0.5, 3), []);
    }
}
