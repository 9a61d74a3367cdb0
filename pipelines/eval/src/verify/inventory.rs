//! Collects the contents stored on disk and those served by an engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnflow_engine::component::Snapshot;
use turnflow_engine::component::{BuildError, IndexDefinition, IndexError, Inventory, Models};
use turnflow_engine::plan::Plan;
use turnflow_engine::state::StateDirectory;

use super::{Asked, IndexId};

/// The indexes of a plan's corpora, by corpus and key.
pub fn definitions(plan: &Plan, models: &Models) -> Result<BTreeMap<IndexId, Arc<dyn IndexDefinition>>, BuildError> {
    let by_corpus = plan.definitions(models)?.into_iter();
    let places = by_corpus.flat_map(|(corpus, indexes)| {
        indexes.into_iter().map(move |(key, definition)| ((corpus.clone(), key), definition))
    });
    Ok(places.collect())
}

/// The stored content of each index; `None` for an index that stores nothing.
pub async fn stored(
    state: &StateDirectory,
    definitions: &BTreeMap<IndexId, Arc<dyn IndexDefinition>>,
) -> BTreeMap<IndexId, Option<Inventory>> {
    let mut all = BTreeMap::new();
    for (place, definition) in definitions {
        let directory = state.index_path(&place.0, &place.1);
        all.insert(place.clone(), definition.stored(&directory).await);
    }
    all
}

/// The data that an engine serves.
#[derive(Default)]
pub struct IndexContents {
    /// Numbers of documents and chunks of each corpus.
    pub corpora: BTreeMap<Arc<str>, (usize, usize)>,
    /// The content of each index; `None` for an index whose content cannot be read back.
    pub indexes: BTreeMap<IndexId, Option<Inventory>>,
    /// The results of questions, by corpus and node.
    pub hits: BTreeMap<(Arc<str>, Arc<str>), Found>,
}

/// The results of questions for one retriever.
#[derive(Default)]
pub struct Found {
    /// The key of its index.
    pub index: String,
    /// The results, in the order of the questions.
    pub asked: Vec<Asked>,
}

/// Collects the published data, without the results of questions.
///
/// # Errors
///
/// The content of an index cannot be read.
pub fn index_contents(
    snapshot: &Snapshot,
    definitions: &BTreeMap<IndexId, Arc<dyn IndexDefinition>>,
) -> Result<IndexContents, IndexError> {
    let mut contents = IndexContents::default();
    for (name, view) in &snapshot.corpora {
        contents.corpora.insert(name.clone(), (view.documents, view.chunks));
    }
    for (place, definition) in definitions {
        let reader = snapshot.corpora.get(&place.0).and_then(|view| view.indexes.get(&place.1));
        let served = reader.map(|reader| definition.served(reader)).transpose()?.flatten();
        contents.indexes.insert(place.clone(), served);
    }
    Ok(contents)
}
