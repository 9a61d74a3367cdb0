//! Returns the passages that a turn's own record names: Queries → Hits.
//!
//! ```ron
//! References(input: "query", corpus: FromTurn, top: 5)
//! ```
//!
//! The turn's field `contexts` is a list of ids of passages or documents. Their passages are returned in that order
//! with the score 1 / rank. Ids that are not in the corpus add warnings to the answer's provenance. A turn without the
//! field gets no passages. This operator stands in for a perfect retriever: MTRAG's Reference setting (section 6.1),
//! whose tasks name the passages that their answers were written from; `turnflow eval` puts these into each task's
//! turn. In logs, the field can name passages that were selected elsewhere.
//!
//! An edited document is returned as it is in the epoch; a deleted one is not returned. Cost: one table lookup for each
//! id.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value as Json;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, ComponentContext, CorpusRef, Delta, Index, IndexDefinition, IndexError, InputPort,
    Inventory, Models, OfDocuments, Operator, OperatorConfig, OperatorError, OperatorKind, Passage, StandingDocuments,
    StandingQueries, built_at_once, config,
};
use turnflow_engine::document::Chunk;
use turnflow_engine::filter::Filter;
use turnflow_engine::record::{Hit, Hits, PortType, Turn, Value};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<ReferencesConfig>(
    "References",
    &[InputPort::one(PortType::Queries)],
    PortType::Hits,
    "the passages that the turn's record names",
);

/// Fields of `References`.
#[config]
pub struct ReferencesConfig {
    /// Input node that produces queries.
    _input: String,
    /// Corpus that holds the passages, or `FromTurn`.
    pub corpus: CorpusRef,
    /// Field of the turn's record that holds the ids.
    #[field(default = "contexts")]
    pub field: String,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
    /// Condition that passages must meet, such as `Eq("lang", "en")` (see the handbook, "Metadata and filters").
    /// Default: none.
    pub filter: Option<Filter>,
}

impl OperatorConfig for ReferencesConfig {
    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(Definition)])
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(References(self.clone()))))
    }
}

struct References(ReferencesConfig);

impl Operator for References {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let query = call.query(0)?.clone();
            let corpus = self.0.corpus.resolve(&call.turn, &call.snapshot)?;
            let reader = corpus.index::<Reader>(&Definition.key())?;
            let field = call.turn.extra.get(&self.0.field);
            call.watch.put(OfDocuments::named(ids(field)));
            let named = ids(field);
            let (chunks, missing): (Vec<_>, Vec<_>) =
                named.map(|id| (id, reader.find(id, &call.turn))).partition(|(_, found)| !found.is_empty());
            self.0.corpus.found(&call.turn, &call.snapshot, chunks.iter().flat_map(|(_, found)| found));
            for (id, _) in missing {
                call.warnings.add(format!("`{id}` is not in the corpus"));
            }
            let mut hits: Vec<Hit> = Vec::new();
            let mut there: HashSet<_> = HashSet::new();
            let meets = |chunk: &Arc<Chunk>| {
                self.0.filter.as_ref().is_none_or(|filter| filter.holds(&chunk.metadata, &call.turn))
            };
            for chunk in chunks.into_iter().flat_map(|(_, found)| found).filter(meets) {
                if hits.len() < self.0.top && there.insert(chunk.identity()) {
                    hits.push(Hit { chunk, score: 1.0 / (hits.len() + 1) as f32 });
                }
            }
            Ok(Value::Hits(Arc::new(Hits { query, hits })))
        }
        .boxed()
    }

    fn standing(&self, _: bool) -> Option<Box<dyn StandingQueries>> {
        Some(Box::new(StandingDocuments::default()))
    }

    fn weight(&self, call: &Call) -> usize {
        let named = call.turn.extra.get(&self.0.field).and_then(Json::as_array).map_or(0, Vec::len);
        call.weight() + 64 * named
    }
}

/// Ids are strings, or objects with a `document_id`, as in MTRAG's own files.
fn ids(field: Option<&Json>) -> impl Iterator<Item = &str> {
    let list = field.and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|one| one.get("document_id").unwrap_or(one).as_str())
}

/// Number of shards of the table. An epoch copies only the shards that it changes.
const SHARDS: usize = 256;

type Shard = HashMap<Arc<str>, Vec<Arc<Chunk>>>;

pub(crate) struct Definition;

impl IndexDefinition for Definition {
    fn key(&self) -> String {
        "passages".to_owned()
    }

    fn open<'a>(&'a self, _: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>> {
        let empty = Table { shards: vec![Arc::default(); SHARDS], hasher: RandomState::new() };
        async move { Ok(Box::new(Reader(Arc::new(empty))) as Box<dyn Index>) }.boxed()
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        let Ok(reader) = reader.clone().downcast::<Reader>() else { return Ok(None) };
        let chunks = reader.0.shards.iter().flat_map(|shard| shard.values().flatten());
        let passage = |chunk: &Arc<Chunk>| Passage { hash: chunk.hash, words: None, chunk: Some(chunk.clone()) };
        let passages = chunks.map(|chunk| (chunk.id.clone(), passage(chunk))).collect();
        Ok(Some(Inventory { passages, ..Inventory::default() }))
    }
}

/// The passages of each document, by document id.
#[derive(Clone)]
struct Table {
    shards: Vec<Arc<Shard>>,
    hasher: RandomState,
}

impl Table {
    fn shard(&self, document: &str) -> usize {
        self.hasher.hash_one(document) as usize % SHARDS
    }
}

/// The table at an epoch.
pub(crate) struct Reader(Arc<Table>);

impl Reader {
    /// The passage with this id, or all passages of the document with this id, as far as the turn may find them.
    pub(crate) fn find(&self, id: &str, turn: &Turn) -> Vec<Arc<Chunk>> {
        let found = self.all(id);
        let may_find = turn.may_find(found.iter().map(|chunk| &**chunk));
        found.into_iter().zip(may_find).filter(|(_, may_find)| *may_find).map(|(chunk, _)| chunk).collect()
    }

    fn all(&self, id: &str) -> Vec<Arc<Chunk>> {
        let of = |document: &str| self.0.shards[self.0.shard(document)].get(document);
        if let Some(chunks) = of(id) {
            return chunks.clone();
        }
        let document = id.rsplit_once('#').and_then(|(document, _)| of(document));
        document.into_iter().flatten().filter(|chunk| *chunk.id == *id).cloned().collect()
    }
}

impl Index for Reader {
    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        let table = Arc::make_mut(&mut self.0);
        if delta.whole {
            table.shards = vec![Arc::default(); SHARDS];
        }
        // One pass over a document, however many of its passages are removed.
        let mut removed: HashMap<&Arc<str>, HashSet<&Arc<str>>> = HashMap::new();
        for chunk in &delta.removed {
            removed.entry(&chunk.document).or_default().insert(&chunk.id);
        }
        for (document, ids) in removed {
            let at = table.shard(document);
            let shard = Arc::make_mut(&mut table.shards[at]);
            if let Some(chunks) = shard.get_mut(document) {
                chunks.retain(|chunk| !ids.contains(&chunk.id));
                if chunks.is_empty() {
                    shard.remove(document);
                }
            }
        }
        for chunk in &delta.added {
            let at = table.shard(&chunk.document);
            let chunks = Arc::make_mut(&mut table.shards[at]).entry(chunk.document.clone()).or_default();
            let number = |chunk: &Chunk| chunk.id.rsplit_once('#').and_then(|(_, n)| n.parse::<usize>().ok());
            let place = chunks.partition_point(|other| (number(other), &other.id) < (number(chunk), &chunk.id));
            chunks.insert(place, chunk.clone());
        }
        let reader: Arc<dyn Any + Send + Sync> = Arc::new(Self(self.0.clone()));
        async move { Ok(reader) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chunk(document: &str, n: usize, text: &str) -> Arc<Chunk> {
        Arc::new(Chunk::new(format!("{document}#{n}").into(), document.into(), "".into(), text.into()))
    }

    fn found(reader: &Arc<dyn Any + Send + Sync>, id: &str) -> Vec<String> {
        let reader = reader.downcast_ref::<Reader>().unwrap();
        reader.all(id).iter().map(|chunk| chunk.text.to_string()).collect()
    }

    #[test]
    fn an_epoch_keeps_its_passages_while_the_next_changes_them() {
        futures::executor::block_on(async {
            let mut index = Definition.open(None).await.unwrap();
            let whole: Vec<_> = (0..12).map(|n| chunk("a#1", n, &n.to_string())).chain([chunk("b", 0, "b")]).collect();
            let first = index.apply(&Delta { added: whole.clone(), removed: vec![], whole: true }).await.unwrap();
            assert_eq!(found(&first, "a#1").len(), 12);
            assert_eq!(found(&first, "a#1").last().unwrap(), "11");
            assert_eq!(found(&first, "a#1#3"), ["3"]);
            let change = Delta { added: vec![chunk("a#1", 3, "new")], removed: whole[3..].to_vec(), whole: false };
            let second = index.apply(&change).await.unwrap();
            assert_eq!(found(&second, "a#1"), ["0", "1", "2", "new"]);
            assert!(found(&second, "b").is_empty());
            assert_eq!((found(&first, "a#1#3"), found(&first, "b")), (vec!["3".into()], vec!["b".into()]));
        });
    }

    #[test]
    fn ids_are_texts_or_objects() {
        let field = json!(["a", {"document_id": "b", "text": "…"}, 7]);
        assert_eq!(ids(Some(&field)).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(ids(None).count(), 0);
    }
}
