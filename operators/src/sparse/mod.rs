//! Learned sparse retrieval: Queries → Hits, by the inner product of weighted terms.
//!
//! ```ron
//! Sparse(input: "query", corpus: "docs", model: "splade", top: 100)
//! ```
//!
//! An encoder turns query and passage into weights of a vocabulary's terms (SPLADE: Formal et al. 2021; MTRAG, section
//! 4, uses ELSER in this role). The index is inverted: a list of passages and weights for each term, in blocks. A new
//! epoch rebuilds only the blocks that changed. Encodings are stored in Lance by content, so an edit encodes only the
//! changed passages and a restart encodes none. The search is exact; ties are ordered by passage id.
//!
//! Cost: one model input per turn, and one pass over the passages of the query's terms. Turns whose searches wait share a
//! pass; a long search alone is divided among the cores.

mod index;
mod standing;

use std::sync::Arc;

use turnflow_engine::component::{
    BuildError, Capability, ComponentContext, CorpusRef, InputPort, Models, OperatorError, OperatorKind, Permitted,
    StandingQueries, config,
};
use turnflow_engine::filter::Filter;
use turnflow_engine::inference::{Priority, Role, SparseEmbedder, SparseVector};
use turnflow_engine::record::{Hit, PortType};

use crate::content::{Scans, nearest};
use crate::models::able;
use crate::retrieve::{ByModel, Divided, ModelRetriever, Notes, Search, Settings};
use index::{Asked, scans, search_weight};
pub(crate) use index::{SparseDefinition, SparseReader, product};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<ByModel<SparseConfig>>(
    "Sparse",
    &[InputPort::one(PortType::Queries)],
    PortType::Hits,
    "passages ranked by learned term weights",
);

/// Fields of `Sparse`.
#[config]
pub struct SparseConfig {
    /// Input node that produces queries.
    _input: String,
    /// Corpus to search, or `FromTurn`.
    pub corpus: CorpusRef,
    /// The sparse encoder.
    pub model: String,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
    /// Condition that passages must meet, such as `Eq("lang", "en")` (see the handbook, "Metadata and filters").
    /// Default: none.
    pub filter: Option<Filter>,
}

impl ModelRetriever for SparseConfig {
    const CAPABILITY: Capability = Capability::EmbedSparse;
    type Definition = SparseDefinition;
    type Search = Sparse;
    const ASKS_OTHER_PARTS: bool = true;

    fn settings(&self) -> Settings<'_> {
        Settings { corpus: &self.corpus, model: &self.model, top: self.top, filter: self.filter.as_ref() }
    }

    fn definition(&self, models: &Models) -> Result<SparseDefinition, BuildError> {
        SparseDefinition::new(models, &self.model, "Sparse")
    }

    fn search(&self, _: &ComponentContext, models: &Models) -> Result<Sparse, BuildError> {
        let encoder = able(models, &self.model, "Sparse", Capability::EmbedSparse, |model| model.sparse.clone())?;
        Ok(Sparse { encoder, scans: scans(self.top) })
    }
}

pub(crate) struct Sparse {
    encoder: Arc<dyn SparseEmbedder>,
    scans: Scans<SparseReader, SparseVector>,
}

impl Search for Sparse {
    type Reader = SparseReader;

    /// A long search runs elsewhere, together with others.
    fn missing(&self, reader: &Self::Reader) -> Option<usize> {
        Some(reader.missing)
    }

    fn weight(&self, _: &SparseReader, _: &[Arc<str>]) -> usize {
        0
    }

    async fn search(
        &self,
        Divided { reader, others }: Divided<'_, SparseReader>,
        texts: Vec<String>,
        top: usize,
        permitted: &Permitted,
        notes: Notes<'_>,
    ) -> Result<Vec<Vec<Hit>>, OperatorError> {
        let vectors = self.encoder.embed_sparse(texts, Role::Query, Priority::Turn).await?;
        let asked: Asked = (vectors.clone(), top);
        let cost = search_weight(reader, vectors.len());
        let query = notes.watch.is_wanted().then(|| vectors.clone());
        let lists = nearest(others, asked, top, self.scans.run(reader, vectors, permitted, cost)).await?;
        if let (Some([query]), [hits]) = (query.as_deref(), &lists[..])
            && let Some(asked) = standing::Asked::new(query, hits, top)
        {
            notes.watch.put(asked);
        }
        Ok(lists)
    }

    fn standing(&self, index: &str, _: bool) -> Option<Box<dyn StandingQueries>> {
        Some(Box::new(standing::Standing::new(index.to_owned())))
    }
}
