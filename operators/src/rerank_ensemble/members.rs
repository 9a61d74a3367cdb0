//! How each kind of ensemble member scores the candidates.

use std::sync::Arc;

use futures::TryFutureExt;
use turnflow_engine::component::CorpusSnapshot;
use turnflow_engine::component::{BuildError, Capability, IndexDefinition, Models, OperatorError};
use turnflow_engine::inference::{Embedder, InferenceError, PairScorer, Priority, Role, SparseEmbedder, TokenEmbedder};
use turnflow_engine::language::Likelihood;
use turnflow_engine::record::{Hit, Query, Turn};

use super::{By, Member};
use crate::content::{dot, encodings};
use crate::dense::index::{DenseDefinition, DenseReader, passage_vectors};
use crate::models::{able, embedder};
use crate::multi_vector::{MultiVectorDefinition, MultiVectorReader, max_sim, passage_codes};
use crate::sparse::{SparseDefinition, SparseReader, product};

const BY: &str = "RerankEnsemble";

/// The prompt before the question whose likelihood is computed.
fn before_question(passage: &str) -> String {
    format!("Passage: {passage}\nA question that this passage answers:")
}

/// A built member. The strings are index keys.
pub(super) enum Scorer {
    CrossEncoder(Arc<dyn PairScorer>),
    BiEncoder(Arc<dyn Embedder>, String),
    LateInteraction(Arc<dyn TokenEmbedder>, String),
    Sparse(Arc<dyn SparseEmbedder>, String),
    Likelihood(Arc<dyn Likelihood>),
    Score,
}

impl Scorer {
    /// The index that holds the passage encodings that this member needs, if any.
    pub fn definition(member: &Member, models: &Models) -> Result<Option<Arc<dyn IndexDefinition>>, BuildError> {
        let model = member.model.as_deref().unwrap_or_default();
        Ok(match member.by {
            By::BiEncoder => Some(Arc::new(DenseDefinition::new(models, model, BY)?)),
            By::LateInteraction => Some(Arc::new(MultiVectorDefinition::new(models, model, BY)?)),
            By::Sparse => Some(Arc::new(SparseDefinition::new(models, model, BY)?)),
            By::CrossEncoder | By::Likelihood | By::Score => None,
        })
    }

    pub fn new(member: &Member, models: &Models) -> Result<Self, BuildError> {
        let model = member.model.as_deref().unwrap_or_default();
        let key = Self::definition(member, models)?.map(|definition| definition.key()).unwrap_or_default();
        Ok(match member.by {
            By::CrossEncoder => {
                Scorer::CrossEncoder(able(models, model, BY, Capability::ScorePairs, |model| model.pairs.clone())?)
            }
            By::BiEncoder => Scorer::BiEncoder(embedder(models, model, BY)?, key),
            By::LateInteraction => {
                let encoder = able(models, model, BY, Capability::EmbedTokens, |model| model.token_embedder.clone())?;
                Scorer::LateInteraction(encoder, key)
            }
            By::Sparse => {
                Scorer::Sparse(able(models, model, BY, Capability::EmbedSparse, |model| model.sparse.clone())?, key)
            }
            By::Likelihood => {
                Scorer::Likelihood(able(models, model, BY, Capability::Likelihood, |model| model.likelihood.clone())?)
            }
            By::Score => Scorer::Score,
        })
    }

    /// One score for each candidate; higher is better.
    pub async fn score(
        &self,
        query: &Query,
        hits: &[Hit],
        corpus: Option<&CorpusSnapshot>,
        turn: &Turn,
    ) -> Result<Vec<f32>, OperatorError> {
        let others = |key: &str| corpus.and_then(|corpus| corpus.other_parts(key, None, turn));
        let asked = query.text.to_string();
        let texts = || hits.iter().map(|hit| hit.chunk.indexed_text());
        Ok(match self {
            Scorer::Score => hits.iter().map(|hit| hit.score).collect(),
            Scorer::CrossEncoder(model) => {
                let logits = model.score(asked, texts().collect(), Priority::Turn).await?;
                logits.iter().map(|logits| relevance(logits)).collect::<Result<_, _>>()?
            }
            Scorer::Likelihood(model) => {
                let contexts = texts().map(|text| before_question(&text)).collect();
                model.log_likelihood(contexts, format!(" {asked}"), Priority::Turn).await?
            }
            Scorer::BiEncoder(model, key) => {
                let reader = corpus.map(|corpus| corpus.part::<DenseReader>(key)).transpose()?;
                let others = others(key);
                let asked = model.embed(vec![asked], Role::Query, Priority::Turn).map_err(OperatorError::from);
                let vectors = passage_vectors(reader.as_deref(), others.as_ref(), model, hits);
                let (asked, vectors) = futures::try_join!(asked, vectors)?;
                let asked = asked.into_iter().next().unwrap_or_default();
                vectors.iter().map(|vector| cosine(&asked, vector)).collect()
            }
            Scorer::LateInteraction(model, key) => {
                let reader = corpus.map(|corpus| corpus.part::<MultiVectorReader>(key)).transpose()?;
                let others = others(key);
                let asked = model.embed_tokens(vec![asked], Role::Query, Priority::Turn).map_err(OperatorError::from);
                let codes = passage_codes(reader.as_deref(), others.as_ref(), model, hits);
                let (asked, codes) = futures::try_join!(asked, codes)?;
                let asked = asked.into_iter().next().ok_or_else(nothing)?;
                codes.iter().map(|codes| max_sim(&asked, codes)).collect()
            }
            Scorer::Sparse(model, key) => {
                let reader = corpus.map(|corpus| corpus.part::<SparseReader>(key)).transpose()?;
                let mut vectors = encodings(reader.as_deref(), others(key).as_ref(), hits).await?;
                let missing: Vec<usize> = (0..hits.len()).filter(|&at| vectors[at].is_none()).collect();
                let texts = missing.iter().map(|&at| hits[at].chunk.indexed_text()).collect();
                let asked = model.embed_sparse(vec![asked], Role::Query, Priority::Turn);
                let made = model.embed_sparse(texts, Role::Passage, Priority::Turn);
                let (asked, made) = futures::try_join!(asked, made)?;
                missing.into_iter().zip(made).for_each(|(at, made)| vectors[at] = Some(made));
                let asked = asked.into_iter().next().ok_or_else(nothing)?;
                vectors.iter().flatten().map(|vector| product(&asked, vector)).collect()
            }
        })
    }
}

fn nothing() -> InferenceError {
    InferenceError::Failed("the model returned nothing for the query".to_owned())
}

/// A reranker's only logit, or, with two classes, the second logit minus the first.
fn relevance(logits: &[f32]) -> Result<f32, InferenceError> {
    match logits {
        [only] => Ok(*only),
        [no, yes] => Ok(yes - no),
        more => Err(InferenceError::Shape(format!("has {} classes; a reranker has 1 or 2", more.len()))),
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() {
        return f32::NAN;
    }
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { dot(a, b) / norms } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rerankers_of_one_and_of_two_classes_are_read() {
        assert_eq!(relevance(&[2.5]).unwrap(), 2.5);
        assert_eq!(relevance(&[-1.0, 2.0]).unwrap(), 3.0);
        assert!(relevance(&[1.0, 2.0, 3.0]).unwrap_err().to_string().contains("3 classes"));
    }
}
