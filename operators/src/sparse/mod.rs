//! Learned sparse retrieval: Queries → Hits, by the inner product of weighted terms.
//!
//! ```ron
//! Sparse(input: "query", corpus: "docs", model: "splade", top: 100)
//! ```
//!
//! An encoder turns query and passage into weights of a vocabulary's terms (SPLADE: Formal et
//! al. 2021; MTRAG, section 4, uses ELSER in this place). The index is inverted: a list of
//! passages and weights for each term, in blocks, of which a new epoch makes again only those
//! that changed. Encodings are stored in Lance by content, so that an edit costs the changed
//! passages' and a restart none. The search is exact; ties are ordered by passage id.
//!
//! Cost: one model input a turn and the postings of the query's terms.

mod index;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    Ability, BuildError, Call, Check, CorpusRef, IndexDefinition, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind,
};
use turnflow_engine::inference::{Role, SparseEmbedder, Urgency};
use turnflow_engine::record::{Hits, PortType, Value};
use turnflow_engine::spec::from_tree;

use crate::models::able;
use crate::parts::merge;
use index::search;
pub(crate) use index::{SparseDefinition, SparseReader, product};

/// The table's entry.
pub const KIND: OperatorKind = OperatorKind {
    name: "Sparse",
    inputs: &[InputPort::one(PortType::Queries)],
    output: PortType::Hits,
    summary: "passages whose learned term weights agree with the query's",
    parse: |tree, sources| Ok(Box::new(from_tree::<SparseConfig>(tree, sources)?)),
};

/// Fields of `Sparse`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseConfig {
    /// The node that gives queries.
    #[serde(rename = "input")]
    _input: String,
    /// The corpus, or `FromTurn`.
    pub corpus: CorpusRef,
    /// The sparse encoder.
    pub model: String,
    /// Passages to give, at most. Default 100.
    #[serde(default = "default_top")]
    pub top: usize,
}

fn default_top() -> usize {
    100
}

impl OperatorConfig for SparseConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("top", self.top, 1, 100_000);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, ability: Ability::EmbedSparse }]
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn indexes(&self, models: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(SparseDefinition::new(models, &self.model, "Sparse")?)])
    }

    fn explain(&self) -> String {
        format!("corpus: {}, model: {:?}, top: {}", self.corpus, self.model, self.top)
    }

    fn build(&self, models: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        let key = SparseDefinition::new(models, &self.model, "Sparse")?.key();
        let encoder = able(models, &self.model, "Sparse", Ability::EmbedSparse, |model| model.sparse.clone())?;
        Ok(Arc::new(Sparse { config: self.clone(), key, encoder }))
    }
}

struct Sparse {
    config: SparseConfig,
    key: String,
    encoder: Arc<dyn SparseEmbedder>,
}

impl Operator for Sparse {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let query = call.query(0)?.clone();
            let corpus = self.config.corpus.resolve(&call.turn, &call.published)?;
            let reader = corpus.index::<SparseReader>(&self.key)?;
            let texts = query.searches().iter().map(ToString::to_string).collect();
            let vectors = self.encoder.embed_sparse(texts, Role::Query, Urgency::Turn).await?;
            let lists = vectors.iter().map(|vector| search(&reader, vector, self.config.top)).collect();
            Ok(Value::Hits(Arc::new(Hits { query, hits: merge(lists, self.config.top) })))
        }
        .boxed()
    }
}
