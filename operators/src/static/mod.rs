//! Static word vectors: Queries → Hits, by the IDF-weighted mean of word vectors.
//!
//! ```ron
//! Static(input: "query", corpus: "docs", model: "glove", top: 100)
//! ```
//!
//! Query and passage are the mean of their words' vectors, with each word weighted by its inverse document frequency,
//! ln((1 + N) / (1 + df)) + 1, and compared by cosine (PolyU, section 2.1.2). N and df are counted over the live
//! passages and updated with each change, so scores depend only on the current corpus and not on its history. Words are
//! separated by characters that are neither letters nor digits, and lower-cased; words without a vector are ignored.
//! Ties are ordered by passage id.
//!
//! Cost: a publication counts the words of the changed passages, and measures some blocks of passages again for them; a turn
//! multiplies the query with the vector of every word that the corpus has had since the start, and adds up these products
//! for each passage. Nothing is stored, because counting words is faster than reading them.

mod index;
mod measures;
#[cfg(test)]
mod tests;
mod words;

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildError, Capability, ComponentContext, CorpusRef, Index, IndexDefinition, IndexError, InputPort, Inventory,
    Models, OperatorError, OperatorKind, Permitted, config,
};
use turnflow_engine::filter::Filter;
use turnflow_engine::inference::WordVectors;
use turnflow_engine::record::{Hit, PortType};

use crate::models::{able, short_fingerprint};
use crate::retrieve::{ByModel, Divided, ModelRetriever, Notes, Search, Settings};
use index::{StaticIndex, StaticReader};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<ByModel<StaticConfig>>(
    "Static",
    &[InputPort::one(PortType::Queries)],
    PortType::Hits,
    "passages ranked by the cosine of averaged word vectors",
);

/// Fields of `Static`.
#[config]
pub struct StaticConfig {
    /// Input node that produces queries.
    _input: String,
    /// Corpus to search, or `FromTurn`.
    pub corpus: CorpusRef,
    /// The word vectors.
    pub model: String,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
    /// Condition that passages must meet, such as `Eq("lang", "en")` (see the handbook, "Metadata and filters").
    /// Default: none.
    pub filter: Option<Filter>,
}

impl ModelRetriever for StaticConfig {
    const CAPABILITY: Capability = Capability::Words;
    type Definition = StaticDefinition;
    type Search = Static;
    /// Word weights depend on all passages.
    const ASKS_OTHER_PARTS: bool = false;

    fn settings(&self) -> Settings<'_> {
        Settings { corpus: &self.corpus, model: &self.model, top: self.top, filter: self.filter.as_ref() }
    }

    fn definition(&self, models: &Models) -> Result<StaticDefinition, BuildError> {
        let words = able(models, &self.model, "Static", Capability::Words, |model| model.words.clone())?;
        Ok(StaticDefinition { fingerprint: short_fingerprint(models, &self.model), words })
    }

    fn search(&self, _: &ComponentContext, _: &Models) -> Result<Static, BuildError> {
        Ok(Static)
    }
}

/// The search does not need a separate model, because the index's reader holds the word vectors.
pub(crate) struct Static;

/// Cost of a passage in the units of `Operator::weight`, for each of which some 64 values are multiplied.
const PASSAGE: usize = 4;
const VALUES: usize = 64;

impl Search for Static {
    type Reader = StaticReader;

    fn weight(&self, reader: &StaticReader, texts: &[Arc<str>]) -> usize {
        (reader.passages() * PASSAGE + reader.values() / VALUES) * texts.len()
    }

    async fn search(
        &self,
        Divided { reader, others }: Divided<'_, StaticReader>,
        texts: Vec<String>,
        top: usize,
        permitted: &Permitted,
        _: Notes<'_>,
    ) -> Result<Vec<Vec<Hit>>, OperatorError> {
        if others.is_some() {
            return Err(OperatorError::Divided("static".to_owned()));
        }
        Ok(texts.iter().map(|text| reader.search(text, top, permitted)).collect())
    }
}

pub(crate) struct StaticDefinition {
    fingerprint: String,
    words: Arc<dyn WordVectors>,
}

impl IndexDefinition for StaticDefinition {
    fn key(&self) -> String {
        format!("static-{}", self.fingerprint)
    }

    fn open<'a>(&'a self, _: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>> {
        async { Ok(Box::new(StaticIndex::open(self.words.clone()).await?) as Box<dyn Index>) }.boxed()
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        Ok(reader.clone().downcast::<StaticReader>().ok().map(|reader| reader.inventory()))
    }
}
