//! Late interaction: Queries → Hits or Hits → Hits, by one vector a token.
//!
//! ```ron
//! MultiVector(input: "dense", corpus: "docs", model: "minilm", top: 100)
//! ```
//!
//! A passage's score is, for each token of the query, its greatest cosine with a token of the
//! passage, and the mean of these over the query's tokens (MaxSim: Khattab and Zaharia 2020,
//! section 3.3, whose sum this is, divided by the number of tokens). Fed by Hits, it scores these
//! candidates anew (PolyU, section 2.1.5); fed by Queries, it compares every passage.
//!
//! Token vectors are made once a content and stored in Lance, in 8 bits with a scale a token
//! (the worst error of a cosine is below 0.01). Any encoder that gives token states will do; one
//! that was trained for it does better. The comparison is exact on what is stored; ties are
//! ordered by passage id.
//!
//! Cost: query tokens × passage tokens × dimension multiplications a passage; bytes in memory:
//! passage tokens × dimension. Over more than some ten thousand passages, feed it candidates.

mod index;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Call, Capability, Check, CorpusRef, IndexDefinition, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind,
};
use turnflow_engine::inference::{Priority, Role, TokenEmbedder};
use turnflow_engine::record::{Hit, Hits, PortType, Value, rank};
use turnflow_engine::spec::from_tree;

use crate::models::able;
use crate::parts::merge;
use crate::retrieve;
use index::search;
pub(crate) use index::{Codes, MultiVectorDefinition, MultiVectorReader, max_sim};

/// The table's entry.
pub const KIND: OperatorKind = OperatorKind {
    name: "MultiVector",
    inputs: &[InputPort::one(PortType::Hits).or(PortType::Queries)],
    output: PortType::Hits,
    summary: "passages, or candidates, whose tokens are nearest to the query's tokens",
    parse: |tree, sources| Ok(Box::new(from_tree::<MultiVectorConfig>(tree, sources)?)),
};

/// Fields of `MultiVector`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiVectorConfig {
    /// The node that gives candidates (Hits), or queries to search the whole corpus for.
    #[serde(rename = "input")]
    _input: String,
    /// The corpus, or `FromTurn`; candidates are of this corpus too.
    pub corpus: CorpusRef,
    /// The encoder that gives token states.
    pub model: String,
    /// Candidates to score, from the first. Default 100.
    #[serde(default = "retrieve::default_top")]
    pub depth: usize,
    /// Passages to give, at most. Default 100.
    #[serde(default = "retrieve::default_top")]
    pub top: usize,
}

impl OperatorConfig for MultiVectorConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("depth", self.depth, 1, 100_000);
        check.range("top", self.top, 1, 100_000);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::EmbedTokens }]
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn indexes(&self, models: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(MultiVectorDefinition::new(models, &self.model, "MultiVector")?)])
    }

    fn explain(&self) -> String {
        let Self { corpus, model, depth, top, .. } = self;
        format!("corpus: {corpus}, model: {model:?}, depth: {depth}, top: {top}")
    }

    fn build(&self, models: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        let key = MultiVectorDefinition::new(models, &self.model, "MultiVector")?.key();
        let capability = Capability::EmbedTokens;
        let encoder = able(models, &self.model, "MultiVector", capability, |model| model.token_embedder.clone())?;
        Ok(Arc::new(MultiVector { config: self.clone(), key, encoder }))
    }
}

struct MultiVector {
    config: MultiVectorConfig,
    key: String,
    encoder: Arc<dyn TokenEmbedder>,
}

impl Operator for MultiVector {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let (query, candidates) = match call.inputs.first() {
                Some(Value::Hits(hits)) => (hits.query.clone(), Some(&hits.hits)),
                _ => (call.query(0)?.clone(), None),
            };
            let corpus = self.config.corpus.resolve(&call.turn, &call.snapshot)?;
            let reader = corpus.index::<MultiVectorReader>(&self.key)?;
            let texts = query.searches().iter().map(ToString::to_string).collect();
            let asked = self.encoder.embed_tokens(texts, Role::Query, Priority::Turn).await?;
            let (depth, top) = (self.config.depth, self.config.top);
            let lists = match candidates {
                None => asked.iter().map(|asked| search(&reader, asked, top)).collect(),
                Some(candidates) => {
                    let candidates = &candidates[..candidates.len().min(depth)];
                    let mut lists = Vec::new();
                    for asked in &asked {
                        let mut hits: Vec<Hit> = Vec::new();
                        for hit in candidates {
                            let codes = match reader.encoding(&hit.chunk) {
                                Some(codes) => codes,
                                // Of an epoch whose encodings have been let go.
                                None => {
                                    let texts = vec![hit.chunk.indexed_text()];
                                    let made = self.encoder.embed_tokens(texts, Role::Passage, Priority::Turn).await?;
                                    made.first().map(Codes::of).unwrap_or_default()
                                }
                            };
                            hits.push(Hit { chunk: hit.chunk.clone(), score: max_sim(asked, &codes) });
                        }
                        rank(&mut hits, top);
                        lists.push(hits);
                    }
                    lists
                }
            };
            Ok(Value::Hits(Arc::new(Hits { query, hits: merge(lists, top) })))
        }
        .boxed()
    }

    /// A passage has some hundred tokens, and a query some ten.
    fn weight(&self, call: &Call) -> usize {
        let passages = match call.inputs.first() {
            Some(Value::Hits(hits)) => hits.hits.len().min(self.config.depth),
            _ => {
                let corpus = self.config.corpus.resolve(&call.turn, &call.snapshot);
                let reader = corpus.and_then(|corpus| corpus.index::<MultiVectorReader>(&self.key));
                reader.map_or(0, |reader| reader.passages())
            }
        };
        call.weight() + passages * 10 * self.encoder.dimension()
    }
}
