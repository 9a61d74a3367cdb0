//! Reranks candidates with an ensemble of models: Hits → Hits.
//!
//! ```ron
//! RerankEnsemble(
//!     input: "fused",
//!     members: [
//!         (by: CrossEncoder, model: "reranker", weight: 0.6),
//!         (by: BiEncoder, model: "e5", weight: 0.3),
//!         (by: Score, weight: 0.1),
//!     ],
//!     corpus: "docs",
//!     depth: 100,
//!     top: 10,
//! )
//! ```
//!
//! Each member scores every candidate. Its scores are scaled to \[0, 1\] by the least and greatest score among the
//! candidates, and the weighted mean over the members orders the candidates (TechSSN, section 3.7 and table 1: three
//! cross-encoders with the weights 0.40, 0.35 and 0.25). The kinds of members: a cross-encoder reads query and passage
//! together; a bi-encoder compares their vectors; late interaction compares the vectors of their tokens (MaxSim); a
//! sparse encoder compares weighted terms; `Likelihood` asks a language model how likely the question is after the
//! passage (Ponte and Croft 1998; Sachan et al. 2022); `Score` is the input's own score.
//!
//! A member that fails is left out for the turn, with a warning in the answer's provenance. The turn fails if all
//! members fail. Ties are ordered by passage id. With `corpus`, the passage encodings for bi-encoders, late interaction
//! and sparse encoders are kept in the corpus's indexes, by content; otherwise they are computed on first use.
//!
//! Cost: one model input for each candidate and member; members with an index need one per turn.

mod members;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, Check, ComponentContext, CorpusRef, IndexDefinition, InputPort,
    ModelUse, Models, OfDocuments, Operator, OperatorConfig, OperatorError, OperatorKind, ScoreUse, StandingDocuments,
    StandingQueries, built_at_once, config,
};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::record::{Hit, Hits, PortType, Value, rank};

use crate::fusion::min_max;
use members::Scorer;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<RerankEnsembleConfig>(
    "RerankEnsemble",
    &[InputPort::one(PortType::Hits)],
    PortType::Hits,
    "candidates reranked by weighted scores of several models",
);

/// How a member scores a candidate.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum By {
    /// A pair classifier with one logit, or with two classes (the second logit minus the first).
    #[default]
    CrossEncoder,
    /// The cosine of query and passage.
    BiEncoder,
    /// The mean over the query's tokens of the greatest cosine with a token of the passage.
    LateInteraction,
    /// The inner product of weighted terms.
    Sparse,
    /// The mean log probability of the question's tokens after the passage.
    Likelihood,
    /// The score of the input hit; needs no model.
    Score,
}

impl By {
    fn capability(self) -> Option<Capability> {
        match self {
            By::CrossEncoder => Some(Capability::ScorePairs),
            By::BiEncoder => Some(Capability::Embed),
            By::LateInteraction => Some(Capability::EmbedTokens),
            By::Sparse => Some(Capability::EmbedSparse),
            By::Likelihood => Some(Capability::Likelihood),
            By::Score => None,
        }
    }
}

/// A member of the ensemble.
#[config]
pub struct Member {
    /// How the member scores: `CrossEncoder` (default), `BiEncoder`, `LateInteraction`, `Sparse`, `Likelihood` or
    /// `Score`.
    #[field(default)]
    pub by: By,
    /// The member's model. Required, except for `Score`, which has none.
    pub model: Option<String>,
    /// Weight of the member's score, ≥ 0.
    #[field(default = 1.0)]
    pub weight: f32,
}

/// Fields of `RerankEnsemble`.
#[config]
pub struct RerankEnsembleConfig {
    /// Input node that produces the candidates (hits).
    _input: String,
    /// The members of the ensemble; at least one.
    pub members: Vec<Member>,
    /// One weight for each member, ≥ 0; overrides the members' own `weight`. `turnflow tune` writes weights in this
    /// form. Default: the members' own.
    pub weights: Option<Vec<f32>>,
    /// The candidates' corpus, or `FromTurn`. If set, passage encodings come from its indexes. Default: none.
    pub corpus: Option<CorpusRef>,
    /// Number of candidates to score, best first.
    #[field(default = 100, range = 1..=100_000)]
    pub depth: usize,
    /// Maximum number of passages to return.
    #[field(default = 10, range = 1..=100_000)]
    pub top: usize,
}

impl RerankEnsembleConfig {
    fn effective_weights(&self) -> Vec<f32> {
        self.weights.clone().unwrap_or_else(|| self.members.iter().map(|member| member.weight).collect())
    }

    fn label(member: &Member) -> String {
        match &member.model {
            Some(model) => format!("{:?} `{model}`", member.by),
            None => format!("{:?}", member.by),
        }
    }
}

impl OperatorConfig for RerankEnsembleConfig {
    fn score_use(&self) -> ScoreUse {
        match self.members.iter().any(|member| matches!(member.by, By::Score)) {
            true => ScoreUse::Read,
            false => ScoreUse::Left,
        }
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.members.is_empty() {
            check.error("wrong-value", "members", "at least one member is required");
            return;
        }
        for member in &self.members {
            match (member.by.capability(), &member.model) {
                (Some(_), None) => {
                    check.error("missing-field", "members", format!("a {:?} member needs a `model`", member.by));
                }
                (None, Some(model)) => {
                    let message = format!("`Score` is the input's own score and needs no model (`{model}`)");
                    check.error("wrong-value", "members", message);
                }
                _ => {}
            }
        }
        crate::fusion::validate_weights(
            check,
            if self.weights.is_some() { "weights" } else { "members" },
            &self.effective_weights(),
            self.members.len(),
        );
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let mut used = Vec::new();
        for member in &self.members {
            if let (Some(capability), Some(name)) = (member.by.capability(), member.model.as_deref()) {
                used.push(ModelUse { field: "members", name, capability });
            }
        }
        used
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        self.corpus.as_ref()
    }

    fn asks_other_parts(&self) -> bool {
        true
    }

    fn indexes(&self, models: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        let mut definitions = Vec::new();
        for member in &self.members {
            definitions.extend(Scorer::definition(member, models)?);
        }
        Ok(definitions)
    }

    fn weights(&self) -> Option<Vec<f32>> {
        Some(self.effective_weights())
    }

    fn explain(&self) -> String {
        let weights = self.effective_weights();
        let members =
            self.members.iter().zip(weights).map(|(member, weight)| format!("{} {weight}", Self::label(member)));
        let members = members.collect::<Vec<_>>().join(", ");
        format!("members: [{members}], depth: {}, top: {}", self.depth, self.top)
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let members = self.members.iter().map(|member| Ok((Self::label(member), Scorer::new(member, models)?)));
            let members = members.collect::<Result<_, BuildError>>()?;
            Ok(Arc::new(RerankEnsemble { config: self.clone(), weights: self.effective_weights(), members }))
        })
    }
}

struct RerankEnsemble {
    config: RerankEnsembleConfig,
    weights: Vec<f32>,
    members: Vec<(String, Scorer)>,
}

impl Operator for RerankEnsemble {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let Hits { query, hits } = &**call.hits(0)?;
            let candidates = &hits[..hits.len().min(self.config.depth)];
            if candidates.is_empty() {
                call.watch.put(OfDocuments::of(candidates));
                return Ok(Value::Hits(Arc::new(Hits { query: query.clone(), hits: Vec::new() })));
            }
            let corpus = match &self.config.corpus {
                Some(corpus) => Some(&**corpus.resolve(&call.turn, &call.snapshot)?),
                None => None,
            };
            call.watch.put(OfDocuments::of(candidates));
            let weights = call.weights_or(&self.weights);
            let scored = self.members.iter().map(|(_, member)| member.score(query, candidates, corpus, &call.turn));
            let mut failure = None;
            let mut scores: Vec<(f32, Vec<f32>)> = Vec::new();
            for ((label, _), (weight, scored)) in self.members.iter().zip(weights.iter().zip(join_all(scored).await)) {
                match scored.and_then(whole) {
                    Ok(member) => scores.push((*weight, member)),
                    Err(error) => {
                        call.warnings.add(format!("left out {label}: {error}"));
                        failure = Some(error);
                    }
                }
            }
            // If all remaining weights are 0, the members that succeeded cannot order the candidates.
            let counts = scores.iter().any(|(weight, _)| *weight > 0.0);
            match failure {
                Some(error) if !counts => Err(error),
                _ => {
                    let hits = ensemble(candidates, &scores, self.config.top);
                    Ok(Value::Hits(Arc::new(Hits { query: query.clone(), hits })))
                }
            }
        }
        .boxed()
    }

    fn standing(&self, _: bool) -> Option<Box<dyn StandingQueries>> {
        Some(Box::new(StandingDocuments::default()))
    }

    fn weight(&self, call: &Call) -> usize {
        // The query is paired with each candidate, which is cheap, and tokenized only once.
        let query = call.hits(0).map_or(0, |hits| hits.query.text.len() * hits.hits.len().min(self.config.depth));
        call.weight() + call.weight_of_passages(self.config.depth) + query / 64
    }
}

/// Fails if any score is not finite, because the member's other scores are then not reliable either.
fn whole(scores: Vec<f32>) -> Result<Vec<f32>, OperatorError> {
    if scores.iter().all(|score| score.is_finite()) {
        Ok(scores)
    } else {
        Err(InferenceError::Failed("a score is not a number".to_owned()).into())
    }
}

/// The weighted mean of the members' scores, with each member's scores scaled to \[0, 1\] over the candidates.
pub fn ensemble(candidates: &[Hit], members: &[(f32, Vec<f32>)], top: usize) -> Vec<Hit> {
    let total: f32 = members.iter().map(|(weight, _)| weight).sum();
    let mut sums = vec![0.0_f32; candidates.len()];
    for (weight, scores) in members {
        for (sum, score) in sums.iter_mut().zip(min_max(scores)) {
            *sum += weight * score;
        }
    }
    let scale = if total > 0.0 { total.recip() } else { 0.0 };
    let hit = |(hit, sum): (&Hit, f32)| Hit { chunk: hit.chunk.clone(), score: sum * scale };
    let mut hits = candidates.iter().zip(sums).map(hit).collect();
    rank(&mut hits, top);
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::{list, scored};

    #[test]
    fn members_of_any_scale_count_by_their_weights() {
        let candidates = list(&[("a", 3.0), ("b", 2.0), ("c", 1.0)]);
        // First member: a 0, b 1, c 0.5; second: a 1, b 0, c 0.5.
        let members = [(0.6, vec![-10.0, 10.0, 0.0]), (0.2, vec![0.9, 0.1, 0.5])];
        let got = ensemble(&candidates, &members, 10);
        let expected = [("b", 0.75), ("c", 0.5), ("a", 0.25)];
        for ((id, score), (expected_id, expected)) in scored(&got).into_iter().zip(expected) {
            assert_eq!(id, expected_id);
            assert!((score - expected).abs() < 1e-6, "{id}: {score}");
        }
        assert_eq!(ensemble(&candidates, &members, 1).len(), 1);
    }

    #[test]
    fn scores_that_are_no_numbers_fail_their_member() {
        assert!(whole(vec![1.0, f32::NAN]).is_err());
        assert!(whole(vec![1.0, f32::INFINITY]).is_err());
        assert_eq!(whole(vec![]).unwrap(), [0.0; 0]);
    }
}
