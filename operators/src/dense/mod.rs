//! Dense retrieval: Queries → Hits, by the inner product of a bi-encoder's vectors.
//!
//! ```ron
//! Dense(input: "query", corpus: "docs", model: "minilm", top: 100)
//! ```
//!
//! The search is exact: every live passage is compared (Karpukhin et al. 2020 describe the
//! retriever; there is no approximation here). Vectors are stored in Lance, by the hash of
//! what they stand for, and served from memory. With vectors of length 1 (the model's
//! `normalize`) scores are cosines. Ties are ordered by passage id.
//!
//! Cost: one pass over the vectors, passages × dimension multiplications, a turn.

pub(crate) mod index;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    Ability, BuildError, Call, Check, CorpusRef, IndexDefinition, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind,
};
use turnflow_engine::inference::{Embedder, Role, Urgency};
use turnflow_engine::record::{Hits, PortType, Value};
use turnflow_engine::spec::from_tree;

use crate::models::embedder;
use crate::parts::merge;
use index::{DenseDefinition, DenseReader, search};

/// The table's entry.
pub const KIND: OperatorKind = OperatorKind {
    name: "Dense",
    inputs: &[InputPort::one(PortType::Queries)],
    output: PortType::Hits,
    summary: "passages whose vectors are nearest to the query's, exactly",
    parse: |tree, sources| Ok(Box::new(from_tree::<DenseConfig>(tree, sources)?)),
};

/// Fields of `Dense`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseConfig {
    /// The node that gives queries.
    #[serde(rename = "input")]
    _input: String,
    /// The corpus, or `FromTurn`.
    pub corpus: CorpusRef,
    /// The bi-encoder.
    pub model: String,
    /// Passages to give, at most. Default 100.
    #[serde(default = "default_top")]
    pub top: usize,
}

fn default_top() -> usize {
    100
}

impl OperatorConfig for DenseConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("top", self.top, 1, 100_000);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, ability: Ability::Embed }]
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn indexes(&self, models: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(DenseDefinition::new(models, &self.model, "Dense")?)])
    }

    fn explain(&self) -> String {
        format!("corpus: {}, model: {:?}, top: {}", self.corpus, self.model, self.top)
    }

    fn build(&self, models: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        let key = DenseDefinition::new(models, &self.model, "Dense")?.key();
        Ok(Arc::new(Dense { config: self.clone(), key, embedder: embedder(models, &self.model, "Dense")? }))
    }
}

struct Dense {
    config: DenseConfig,
    key: String,
    embedder: Arc<dyn Embedder>,
}

impl Operator for Dense {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let query = call.query(0)?.clone();
            let corpus = self.config.corpus.resolve(&call.turn, &call.published)?;
            let reader = corpus.index::<DenseReader>(&self.key)?;
            let texts = query.searches().iter().map(ToString::to_string).collect();
            let vectors = self.embedder.embed(texts, Role::Query, Urgency::Turn).await?;
            let lists = vectors.iter().map(|vector| search(&reader, vector, self.config.top)).collect();
            Ok(Value::Hits(Arc::new(Hits { query, hits: merge(lists, self.config.top) })))
        }
        .boxed()
    }
}
