//! Dense retrieval: Queries → Hits, by the inner product of a bi-encoder's vectors.
//!
//! ```ron
//! Dense(input: "query", corpus: "docs", model: "minilm", top: 100)
//! ```
//!
//! Unless `index` is `Ivf`, the search is exact: it compares every live passage (Karpukhin et al. 2020 describe the
//! retriever; this implementation then does not approximate). Vectors are stored in Lance, by content hash, and served
//! from memory. With unit-length vectors (the model's `normalize`), scores are cosines. Ties are ordered by passage id.
//!
//! With `feedback`, a second search uses the query's vector mixed with the mean vector of the first passages.
//!
//! Cost: passages × dimension multiplications for each query, and one pass over the vectors. While all cores are busy,
//! turns whose scans wait share a pass.

pub(crate) mod codes;
mod encode;
pub(crate) mod index;
mod ivf;
mod standing;

use std::sync::Arc;

use serde::Serialize;
use turnflow_engine::component::{
    BuildError, Capability, Check, ComponentContext, Configured, CorpusRef, InputPort, Models, OperatorError,
    OperatorKind, Permitted, StandingQueries, config,
};
use turnflow_engine::filter::Filter;
use turnflow_engine::inference::{Embedder, Priority, Role, Vector};
use turnflow_engine::record::{Hit, PortType};

use crate::content::{Scans, dot, encodings, nearest};
use crate::gauges::Gauges;
use crate::models::embedder;
use crate::retrieve::{ByModel, Divided, ModelRetriever, Notes, Search, Settings};
use index::{Asked as Question, DenseDefinition, DenseReader, scan_cost, search};
use ivf::Approximate;
use standing::Asked;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<ByModel<DenseConfig>>(
    "Dense",
    &[InputPort::one(PortType::Queries)],
    PortType::Hits,
    "passages whose vectors are nearest to the query's",
);

/// Fields of `Dense`.
#[config]
pub struct DenseConfig {
    /// Input node that produces queries.
    _input: String,
    /// Corpus to search, or `FromTurn`.
    pub corpus: CorpusRef,
    /// The bi-encoder.
    pub model: String,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
    /// Condition that passages must meet, such as `Eq("lang", "en")` (see the handbook, "Metadata and filters").
    /// Default: none.
    pub filter: Option<Filter>,
    /// Pseudo-relevance feedback: a second search, with the vectors of the first passages added to the query's, such as
    /// `(passages: 3, weight: 0.3)`. Default: none.
    pub feedback: Option<VectorFeedback>,
    /// How the nearest vectors are found: `Exact` (default) or, for large corpora, `Ivf(from: 200000, recall: 0.98)`.
    #[field(default)]
    pub index: SearchIndex,
}

/// How the nearest vectors are found.
#[config]
#[derive(Copy, Default, Serialize)]
pub enum SearchIndex {
    /// Every permitted passage is considered.
    #[default]
    Exact,
    /// An inverted file, which is made in the background and reads only the passages near the query. It may miss some.
    Ivf(IvfSettings),
}

/// The approximate index.
#[config]
#[derive(Copy, Serialize)]
pub struct IvfSettings {
    /// Number of passages from which on it is used; with fewer, the search is exact.
    #[field(default = 200_000)]
    pub from: usize,
    /// Share of the ten nearest passages that it is to find, above 0 and up to 1. It is measured with the corpus's own
    /// queries when the index is made.
    #[field(default = 0.98)]
    pub recall: f32,
}

impl SearchIndex {
    /// Scans for `top` passages.
    fn scans(self, top: usize, gauges: Option<Gauges>) -> Scans<DenseReader, Vector> {
        match self {
            Self::Exact => Scans::new(|reader, queries, top, permitted| search(reader, queries, top, permitted), top),
            Self::Ivf(settings) => Scans::new(
                move |reader: &Arc<DenseReader>, queries: &[&Vector], top, permitted: &Permitted| {
                    settings.search(reader, queries, top, permitted, gauges.as_ref())
                },
                top,
            ),
        }
    }
}

/// If at most one passage in this many is permitted, the search is exact.
const SEARCHED_EXACTLY: usize = 32;

impl IvfSettings {
    fn search(
        self,
        reader: &Arc<DenseReader>,
        queries: &[&Vector],
        top: usize,
        permitted: &Permitted,
        gauges: Option<&Gauges>,
    ) -> Vec<Vec<Hit>> {
        let passages = reader.passages();
        if passages < self.from || reader.searched(permitted) < passages / SEARCHED_EXACTLY {
            return search(reader, queries, top, permitted);
        }
        let approximate = reader.attached(&format!("ivf {}", self.recall), || Approximate::new(self.recall));
        let found = approximate.search(reader, queries, top, permitted);
        if let (Some(lists), Some(gauges)) = (approximate.lists(), gauges) {
            gauges.show(lists.measured());
        }
        found
    }
}

/// How a query's vector moves towards the passages that it finds (Rocchio 1971; Li et al. 2023).
#[config]
#[derive(Copy)]
pub struct VectorFeedback {
    /// Number of passages whose mean vector is added, best first.
    #[field(default = 3)]
    pub passages: usize,
    /// Share of the mean vector, 0 to 1; the query's own has the rest.
    #[field(default = 0.3)]
    pub weight: f32,
}

impl VectorFeedback {
    /// The mixed vector, as long as the query's.
    fn moved(&self, query: &Vector, passages: &[Vector]) -> Vector {
        let mut sum: Vec<f32> = query.iter().map(|value| (1.0 - self.weight) * value).collect();
        let part = self.weight / passages.len().max(1) as f32;
        for passage in passages {
            sum.iter_mut().zip(&**passage).for_each(|(sum, value)| *sum += part * value);
        }
        let (before, after) = (dot(query, query).sqrt(), dot(&sum, &sum).sqrt());
        if after > 0.0 { sum.iter().map(|value| value * before / after).collect() } else { query.clone() }
    }
}

impl ModelRetriever for DenseConfig {
    const CAPABILITY: Capability = Capability::Embed;
    type Definition = DenseDefinition;
    type Search = Dense;
    const ASKS_OTHER_PARTS: bool = true;

    fn settings(&self) -> Settings<'_> {
        Settings { corpus: &self.corpus, model: &self.model, top: self.top, filter: self.filter.as_ref() }
    }

    fn validate(&self, check: &mut Check<'_>) {
        if let SearchIndex::Ivf(IvfSettings { recall, .. }) = self.index
            && !(recall > 0.0 && recall <= 1.0)
        {
            check.error("out-of-range", "index", "`recall` must be above 0 and at most 1");
        }
        let Some(feedback) = &self.feedback else { return };
        if feedback.passages == 0 || feedback.passages > self.top {
            check.error("out-of-range", "feedback", "`passages` must be between 1 and the node's `top`");
        }
        if !(0.0..=1.0).contains(&feedback.weight) {
            check.error("out-of-range", "feedback", "`weight` must be between 0 and 1");
        }
    }

    fn definition(&self, models: &Models) -> Result<DenseDefinition, BuildError> {
        DenseDefinition::new(models, &self.model, "Dense")
    }

    fn search(&self, context: &ComponentContext, models: &Models) -> Result<Dense, BuildError> {
        Ok(Dense {
            embedder: embedder(models, &self.model, "Dense")?,
            scans: {
                let is_exact = matches!(self.index, SearchIndex::Exact);
                self.index.scans(self.top, (!is_exact).then(|| Gauges::of_lists(context, &self.effective())))
            },
            index: self.index,
            top: self.top,
            feedback: self.feedback,
        })
    }
}

pub(crate) struct Dense {
    embedder: Arc<dyn Embedder>,
    scans: Scans<DenseReader, Vector>,
    index: SearchIndex,
    top: usize,
    feedback: Option<VectorFeedback>,
}

impl Search for Dense {
    type Reader = DenseReader;

    /// A long scan runs elsewhere, together with others.
    fn missing(&self, reader: &Self::Reader) -> Option<usize> {
        Some(reader.missing)
    }

    fn weight(&self, _: &DenseReader, _: &[Arc<str>]) -> usize {
        0
    }

    async fn search(
        &self,
        index: Divided<'_, DenseReader>,
        texts: Vec<String>,
        _: usize,
        permitted: &Permitted,
        notes: Notes<'_>,
    ) -> Result<Vec<Vec<Hit>>, OperatorError> {
        let vectors = self.embedder.embed(texts, Role::Query, Priority::Turn).await?;
        let Some(feedback) = self.feedback else {
            let asked = if notes.watch.is_wanted() { vectors.clone() } else { Vec::new() };
            let lists = self.nearest(index, vectors, permitted).await?;
            if notes.watch.is_wanted() {
                notes.watch.put(Asked::new(&asked, &lists, self.top));
            }
            return Ok(lists);
        };
        let first = self.nearest(index, vectors.clone(), permitted).await?;
        let mut moved = Vec::with_capacity(vectors.len());
        for (vector, hits) in vectors.into_iter().zip(first) {
            let read = &hits[..hits.len().min(feedback.passages)];
            let read = encodings(Some(&**index.reader), index.others, read).await?;
            let read: Vec<Vector> = read.into_iter().flatten().collect();
            moved.push(if read.is_empty() { vector } else { feedback.moved(&vector, &read) });
        }
        self.nearest(index, moved, permitted).await
    }

    fn standing(&self, index: &str, _: bool) -> Option<Box<dyn StandingQueries>> {
        // With feedback, the passages move the query.
        self.feedback.is_none().then(|| Box::new(standing::Standing::new(index.to_owned())) as Box<dyn StandingQueries>)
    }
}

impl Dense {
    async fn nearest(
        &self,
        Divided { reader, others }: Divided<'_, DenseReader>,
        vectors: Vec<Vector>,
        permitted: &Permitted,
    ) -> Result<Vec<Vec<Hit>>, OperatorError> {
        let (top, index) = (self.top, self.index);
        let queries =
            if others.is_some() { vectors.iter().map(|vector| vector.to_vec()).collect() } else { Vec::new() };
        let cost = scan_cost(reader, &vectors, permitted);
        nearest(others, Question { queries, top, index }, top, self.scans.run(reader, vectors, permitted, cost)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_moves_towards_its_passages_and_keeps_its_length() {
        let feedback = VectorFeedback { passages: 2, weight: 0.5 };
        let (query, passages) = (Vector::from([2.0, 0.0]), [Vector::from([0.0, 1.0]), Vector::from([0.0, 3.0])]);
        // Half of (2, 0) and half of the mean (0, 2), scaled from √2 to 2.
        let moved = feedback.moved(&query, &passages);
        assert!(moved.iter().all(|value| (value - 2.0_f32.sqrt()).abs() < 1e-6), "{moved:?}");
        let none = VectorFeedback { weight: 0.0, ..feedback };
        assert_eq!(*none.moved(&query, &passages), *query);
    }
}
