//! Late interaction: Queries → Hits or Hits → Hits, with one vector for each token.
//!
//! ```ron
//! MultiVector(input: "dense", corpus: "docs", model: "minilm", top: 100)
//! ```
//!
//! A passage's score is the mean, over the query's tokens, of the token's greatest cosine with a token of the passage
//! (MaxSim: Khattab and Zaharia 2020, section 3.3, whose sum is divided here by the number of tokens). Given Hits, this
//! operator rescores these candidates (PolyU, section 2.1.5); given Queries, it searches the whole corpus.
//!
//! Token vectors are computed once for each content and stored in Lance, in 8 bits with one scale for each token (the
//! largest error of a cosine is below 0.01). Any encoder that returns token states works; one that was trained for late
//! interaction works better. Unless `index` is `Centroids`, the search is exact on the stored values; ties are ordered by
//! passage id.
//!
//! Cost: query tokens × passage tokens × dimension multiplications for each passage. Memory: passage tokens × dimension
//! bytes. Above some ten thousand passages, feed it candidates, or use centroids.

mod centroids;
mod index;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Serialize;
use turnflow_engine::cluster::OtherParts;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, Check, ComponentContext, CorpusRef, IndexDefinition, InputPort,
    ModelUse, Models, Operator, OperatorConfig, OperatorError, OperatorKind, Permitted, built_at_once, config,
};
use turnflow_engine::filter::Filter;
use turnflow_engine::inference::{Priority, Role, TokenEmbedder, TokenVectors};
use turnflow_engine::record::{Hit, Hits, PortType, Value, rank};

use crate::content::{Scans, encodings, nearest};
use crate::gauges::Gauges;
use crate::models::able;
use crate::parts::merge;
use centroids::Approximate;
use index::{Asked, passage_cost, search};
pub(crate) use index::{Codes, MultiVectorDefinition, MultiVectorReader, max_sim};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<MultiVectorConfig>(
    "MultiVector",
    &[InputPort::one(PortType::Hits).or(PortType::Queries)],
    PortType::Hits,
    "passages or candidates ranked by late interaction",
);

/// Fields of `MultiVector`.
#[config]
pub struct MultiVectorConfig {
    /// Input node that produces candidates (Hits), or queries (Queries) to search the whole corpus for.
    _input: String,
    /// Corpus to search, or `FromTurn`. Candidates must be of this corpus.
    pub corpus: CorpusRef,
    /// The encoder that returns token states.
    pub model: String,
    /// Number of candidates to score, best first.
    #[field(default = 100, range = 1..=100_000)]
    pub depth: usize,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
    /// Condition that passages must meet, such as `Eq("lang", "en")` (see the handbook, "Metadata and filters").
    /// Default: none.
    pub filter: Option<Filter>,
    /// How passages of the whole corpus are found: `Exact` (default) or, for large corpora,
    /// `Centroids(from: 2000, recall: 0.98)`.
    #[field(default)]
    pub index: TokenSearch,
}

/// How passages of the whole corpus are found.
#[config]
#[derive(Copy, Default, Serialize)]
pub enum TokenSearch {
    /// The tokens of every permitted passage are compared.
    #[default]
    Exact,
    /// Centroids of tokens, which are learned in the background, choose the passages whose tokens are compared. They may
    /// miss some.
    Centroids(CentroidSettings),
}

/// The approximate index.
#[config]
#[derive(Copy, Serialize)]
pub struct CentroidSettings {
    /// Number of passages from which on it is used; with fewer, the search is exact.
    #[field(default = 2000)]
    pub from: usize,
    /// Share of the ten best passages that it is to find, above 0 and up to 1. It is measured with the corpus's own queries
    /// when the centroids are learned.
    #[field(default = 0.98)]
    pub recall: f32,
}

/// If at most one passage in this many is permitted, the search is exact.
const SEARCHED_EXACTLY: usize = 32;

impl TokenSearch {
    /// Scans for `top` passages.
    fn scans(self, top: usize, gauges: Option<Gauges>) -> Scans<MultiVectorReader, TokenVectors> {
        match self {
            Self::Exact => Scans::new(|reader, queries, top, permitted| search(reader, queries, top, permitted), top),
            Self::Centroids(settings) => Scans::new(
                move |reader: &Arc<MultiVectorReader>, queries: &[&TokenVectors], top, permitted: &Permitted| {
                    settings.search(reader, queries, top, permitted, gauges.as_ref())
                },
                top,
            ),
        }
    }
}

impl TokenSearch {}

impl CentroidSettings {
    fn search(
        self,
        reader: &Arc<MultiVectorReader>,
        queries: &[&TokenVectors],
        top: usize,
        permitted: &Permitted,
        gauges: Option<&Gauges>,
    ) -> Vec<Vec<Hit>> {
        let passages = reader.passages();
        if passages < self.from || reader.searched(permitted) < passages / SEARCHED_EXACTLY {
            return search(reader, queries, top, permitted);
        }
        let approximate = reader.attached(&format!("centroids {}", self.recall), || Approximate::new(self.recall));
        let found = approximate.search(reader, queries, top, permitted);
        if let (Some(measured), Some(gauges)) = (approximate.measured(), gauges) {
            gauges.show(measured);
        }
        found
    }
}

impl OperatorConfig for MultiVectorConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let TokenSearch::Centroids(CentroidSettings { recall, .. }) = self.index
            && !(recall > 0.0 && recall <= 1.0)
        {
            check.error("out-of-range", "index", "`recall` must be above 0 and at most 1");
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::EmbedTokens }]
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    fn asks_other_parts(&self) -> bool {
        true
    }

    fn indexes(&self, models: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(MultiVectorDefinition::new(models, &self.model, "MultiVector")?)])
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let key = MultiVectorDefinition::new(models, &self.model, "MultiVector")?.key();
            let capability = Capability::EmbedTokens;
            let encoder = able(models, &self.model, "MultiVector", capability, |model| model.token_embedder.clone())?;
            let is_exact = matches!(self.index, TokenSearch::Exact);
            let scans = self.index.scans(self.top, (!is_exact).then(|| Gauges::of_passages(context, &self.explain())));
            Ok(Arc::new(MultiVector { config: self.clone(), key, encoder, scans }))
        })
    }
}

struct MultiVector {
    config: MultiVectorConfig,
    key: String,
    encoder: Arc<dyn TokenEmbedder>,
    scans: Scans<MultiVectorReader, TokenVectors>,
}

impl Operator for MultiVector {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let (query, candidates) = match call.inputs.first() {
                Some(Value::Hits(hits)) => (hits.query.clone(), Some(&hits.hits)),
                _ => (call.query(0)?.clone(), None),
            };
            let corpus = self.config.corpus.resolve(&call.turn, &call.snapshot)?;
            let reader = corpus.part::<MultiVectorReader>(&self.key)?;
            let others = corpus.other_parts(&self.key, self.config.filter.as_ref(), &call.turn);
            let others = others.as_ref();
            let permitted = corpus.permitted(self.config.filter.as_ref(), &call.turn);
            let texts = query.searches().iter().map(ToString::to_string).collect();
            let asked = self.encoder.embed_tokens(texts, Role::Query, Priority::Turn).await?;
            let (depth, top) = (self.config.depth, self.config.top);
            let lists = match candidates {
                None => {
                    let cost = passage_cost(reader.searched(&permitted), self.encoder.dimension());
                    let question: Asked = (asked.clone(), top, self.config.index);
                    nearest(others, question, top, self.scans.run(&reader, asked, &permitted, cost)).await?
                }
                Some(candidates) => {
                    let meets = |hit: &&Hit| {
                        self.config.filter.as_ref().is_none_or(|filter| filter.holds(&hit.chunk.metadata, &call.turn))
                    };
                    let candidates: Vec<Hit> = candidates.iter().filter(meets).take(depth).cloned().collect();
                    let codes = passage_codes(Some(&reader), others, &self.encoder, &candidates).await?;
                    let scored = |asked: &TokenVectors| {
                        let scored = candidates.iter().zip(&codes);
                        let hit = |(hit, codes): (&Hit, &Codes)| Hit {
                            chunk: hit.chunk.clone(),
                            score: max_sim(asked, codes),
                        };
                        let mut hits: Vec<Hit> = scored.map(hit).collect();
                        rank(&mut hits, top);
                        hits
                    };
                    asked.iter().map(scored).collect()
                }
            };
            Ok(Value::Hits(Arc::new(Hits { query, hits: merge(lists, top) })))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        let passages = match call.inputs.first() {
            Some(Value::Hits(hits)) => hits.hits.len().min(self.config.depth),
            // A long scan runs elsewhere, together with others.
            _ => 0,
        };
        let corpus = self.config.corpus.resolve(&call.turn, &call.snapshot).ok();
        let filter = corpus.map_or(0, |corpus| corpus.weight_of_filter(self.config.filter.as_ref(), &call.turn));
        call.weight().saturating_add(passage_cost(passages, self.encoder.dimension())).saturating_add(filter)
    }
}

/// The codes of passages: from the index if a part of it has them, else from the model.
pub(crate) async fn passage_codes(
    reader: Option<&MultiVectorReader>,
    others: Option<&OtherParts>,
    encoder: &Arc<dyn TokenEmbedder>,
    hits: &[Hit],
) -> Result<Vec<Codes>, OperatorError> {
    let mut codes = encodings(reader, others, hits).await?;
    // Passages of an epoch whose encodings were removed.
    let missing: Vec<usize> = (0..hits.len()).filter(|&at| codes[at].is_none()).collect();
    let texts = missing.iter().map(|&at| hits[at].chunk.indexed_text()).collect();
    let made = encoder.embed_tokens(texts, Role::Passage, Priority::Turn).await?;
    missing.into_iter().zip(made).for_each(|(at, made)| codes[at] = Some(Codes::of(&made)));
    Ok(codes.into_iter().flatten().collect())
}
