//! Dense retrieval: Queries → Hits, by the inner product of a bi-encoder's vectors.
//!
//! ```ron
//! Dense(input: "query", corpus: "docs", model: "minilm", top: 100)
//! ```
//!
//! The search is exact: it compares every live passage (Karpukhin et al. 2020 describe the retriever; this
//! implementation does not approximate). Vectors are stored in Lance, by content hash, and served from memory. With
//! unit-length vectors (the model's `normalize`), scores are cosines. Ties are ordered by passage id.
//!
//! Cost: passages × dimension multiplications for each query, and one pass over the vectors. While all cores are busy,
//! turns whose scans wait share a pass.

pub(crate) mod index;

use std::sync::Arc;

use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Capability, CorpusRef, InputPort, Models, OperatorError, OperatorKind, Warnings,
};
use turnflow_engine::inference::{Embedder, Priority, Role, Vector};
use turnflow_engine::record::{Hit, PortType};
use turnflow_engine::spec::from_tree;

use crate::content::Scans;
use crate::models::embedder;
use crate::retrieve::{self, ByModel, ModelRetriever, Search, Settings};
use index::{DenseDefinition, DenseReader, search};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind {
    name: "Dense",
    inputs: &[InputPort::one(PortType::Queries)],
    output: PortType::Hits,
    summary: "passages whose vectors are nearest to the query's, by exact search",
    parse: |tree, sources| Ok(Box::new(ByModel(from_tree::<DenseConfig>(tree, sources)?))),
};

/// Fields of `Dense`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseConfig {
    /// Input node that produces queries.
    #[serde(rename = "input")]
    _input: String,
    /// Corpus to search, or `FromTurn`.
    pub corpus: CorpusRef,
    /// The bi-encoder.
    pub model: String,
    /// Maximum number of passages to return. Default 100.
    #[serde(default = "retrieve::default_top")]
    pub top: usize,
}

impl ModelRetriever for DenseConfig {
    const CAPABILITY: Capability = Capability::Embed;
    type Definition = DenseDefinition;
    type Search = Dense;

    fn settings(&self) -> Settings<'_> {
        Settings { corpus: &self.corpus, model: &self.model, top: self.top }
    }

    fn definition(&self, models: &Models) -> Result<DenseDefinition, BuildError> {
        DenseDefinition::new(models, &self.model, "Dense")
    }

    fn search(&self, models: &Models) -> Result<Dense, BuildError> {
        Ok(Dense { embedder: embedder(models, &self.model, "Dense")?, scans: Scans::new(search, self.top) })
    }
}

pub(crate) struct Dense {
    embedder: Arc<dyn Embedder>,
    scans: Scans<DenseReader, Vector>,
}

impl Search for Dense {
    type Reader = DenseReader;

    /// A long scan runs elsewhere, together with others.
    fn weight(&self, _: &DenseReader, _: &[Arc<str>]) -> usize {
        0
    }

    async fn search(
        &self,
        reader: &Arc<DenseReader>,
        texts: Vec<String>,
        _: usize,
        _: &Warnings,
    ) -> Result<Vec<Vec<Hit>>, OperatorError> {
        let cost = reader.passages() * self.embedder.dimension() / 64 * texts.len();
        let vectors = self.embedder.embed(texts, Role::Query, Priority::Turn).await?;
        Ok(self.scans.run(reader, vectors, cost).await)
    }
}
