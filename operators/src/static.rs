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
//! Cost: each publication reweighs every passage (words of all passages × dimension multiplications, some ten
//! milliseconds for ten thousand passages); each turn makes one pass over the passages' vectors. Nothing is stored,
//! because computing the vectors is faster than reading them.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Capability, ComponentContext, CorpusRef, Delta, Index, IndexDefinition, IndexError, InputPort,
    Inventory, Models, OperatorError, OperatorKind, Paged, Permitted, Warnings,
};
use turnflow_engine::document::Chunk;
use turnflow_engine::filter::Filter;
use turnflow_engine::inference::{Vector, WordVectors};
use turnflow_engine::record::{Hit, PortType};
use turnflow_engine::spec::from_tree;

use crate::content::{Best, dot, inventory};
use crate::models::{able, short_fingerprint};
use crate::retrieve::{self, ByModel, Divided, ModelRetriever, Search, Settings};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind {
    name: "Static",
    inputs: &[InputPort::one(PortType::Queries)],
    output: PortType::Hits,
    summary: "passages ranked by the cosine of averaged word vectors",
    parse: |tree, sources| Ok(Box::new(ByModel(from_tree::<StaticConfig>(tree, sources)?))),
};

/// Fields of `Static`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticConfig {
    /// Input node that produces queries.
    #[serde(rename = "input")]
    _input: String,
    /// Corpus to search, or `FromTurn`.
    pub corpus: CorpusRef,
    /// The word vectors.
    pub model: String,
    /// Maximum number of passages to return. Default 100.
    #[serde(default = "retrieve::default_top")]
    pub top: usize,
    /// Condition that passages must meet, such as `Eq("lang", "en")` (see the handbook, "Metadata and filters").
    /// Default: none.
    #[serde(default)]
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

impl Search for Static {
    type Reader = StaticReader;

    fn weight(&self, reader: &StaticReader, texts: &[Arc<str>]) -> usize {
        reader.rows.len() * reader.words.dimension() / 64 * texts.len()
    }

    async fn search(
        &self,
        Divided { reader, others }: Divided<'_, StaticReader>,
        texts: Vec<String>,
        top: usize,
        permitted: &Permitted,
        _: &Warnings,
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
        let index = StaticIndex { words: self.words.clone(), passages: BTreeMap::new(), frequencies: Arc::default() };
        async move { Ok(Box::new(index) as Box<dyn Index>) }.boxed()
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        let Ok(reader) = reader.clone().downcast::<StaticReader>() else { return Ok(None) };
        let rows = reader.rows.iter().map(|(vector, chunk)| (Vector::from(vector.as_slice()), chunk));
        Ok(Some(inventory(rows.collect())))
    }
}

/// A passage's words with their counts, without words that have no vector.
type Bag = BTreeMap<Arc<str>, u32>;

struct StaticIndex {
    words: Arc<dyn WordVectors>,
    passages: BTreeMap<Arc<str>, (Arc<Chunk>, Bag)>,
    /// Document frequency of each word, in passages.
    frequencies: Arc<HashMap<Arc<str>, u32>>,
}

impl StaticIndex {
    fn remove(&mut self, id: &str) {
        let Some((_, bag)) = self.passages.remove(id) else { return };
        let frequencies = Arc::make_mut(&mut self.frequencies);
        for word in bag.keys() {
            if let Some(count) = frequencies.get_mut(word) {
                *count -= 1;
                if *count == 0 {
                    frequencies.remove(word);
                }
            }
        }
    }

    fn change(&mut self, delta: &Delta) {
        if delta.whole {
            self.passages.clear();
            self.frequencies = Arc::default();
        }
        for chunk in &delta.removed {
            self.remove(&chunk.id);
        }
        for chunk in &delta.added {
            self.remove(&chunk.id);
            let bag = bag(&chunk.indexed_text(), &*self.words);
            let frequencies = Arc::make_mut(&mut self.frequencies);
            bag.keys().for_each(|word| *frequencies.entry(word.clone()).or_default() += 1);
            self.passages.insert(chunk.id.clone(), (chunk.clone(), bag));
        }
    }

    fn view(&self) -> StaticReader {
        let idf = Idf { passages: self.passages.len(), frequencies: self.frequencies.clone() };
        let row = |(chunk, bag): &(Arc<Chunk>, Bag)| Some((mean(bag, &idf, &*self.words)?, chunk.clone()));
        let rows: Vec<_> = self.passages.values().filter_map(row).collect();
        let mut places = Paged::default();
        for (at, (_, chunk)) in rows.iter().enumerate() {
            chunk.place.get().into_iter().for_each(|number| places.set(number, Some(at)));
        }
        StaticReader { rows, places, words: self.words.clone(), idf }
    }
}

impl Index for StaticIndex {
    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        async move {
            tokio::task::block_in_place(|| {
                self.change(delta);
                Ok(Arc::new(self.view()) as Arc<dyn Any + Send + Sync>)
            })
        }
        .boxed()
    }
}

struct Idf {
    passages: usize,
    frequencies: Arc<HashMap<Arc<str>, u32>>,
}

impl Idf {
    fn of(&self, word: &str) -> f32 {
        let df = self.frequencies.get(word).copied().unwrap_or(0);
        (((1 + self.passages) as f64 / f64::from(1 + df)).ln() + 1.0) as f32
    }
}

/// The index at an epoch.
pub(crate) struct StaticReader {
    rows: Vec<(Vec<f32>, Arc<Chunk>)>,
    /// The row of each passage, by its number in the corpus.
    places: Paged<usize>,
    words: Arc<dyn WordVectors>,
    idf: Idf,
}

impl StaticReader {
    fn search(&self, query: &str, top: usize, permitted: &Permitted) -> Vec<Hit> {
        let Some(query) = mean(&bag(query, &*self.words), &self.idf, &*self.words) else { return Vec::new() };
        let mut best = Best::new(top);
        match permitted.numbers() {
            None => self.rows.iter().for_each(|(vector, chunk)| best.offer(dot(&query, vector), chunk)),
            Some(numbers) => {
                let rows = numbers.iter().filter_map(|number| self.rows.get(*self.places.get(number)?));
                rows.for_each(|(vector, chunk)| best.offer(dot(&query, vector), chunk));
            }
        }
        best.into_sorted().map(|(score, chunk)| Hit { chunk: chunk.clone(), score }).collect()
    }
}

fn bag(text: &str, words: &dyn WordVectors) -> Bag {
    let mut bag = Bag::new();
    let lower = text.to_lowercase();
    for word in lower.split(|c: char| !c.is_alphanumeric()).filter(|word| words.word(word).is_some()) {
        *bag.entry(word.into()).or_default() += 1;
    }
    bag
}

/// The weighted mean, scaled to unit length; `None` if no word has a vector.
fn mean(bag: &Bag, idf: &Idf, words: &dyn WordVectors) -> Option<Vec<f32>> {
    let mut sum = vec![0.0_f32; words.dimension()];
    for (word, count) in bag {
        let weight = idf.of(word) * *count as f32;
        let vector = words.word(word)?;
        sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * value);
    }
    let norm = dot(&sum, &sum).sqrt();
    (norm > 0.0).then(|| sum.into_iter().map(|value| value / norm).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Toy;

    impl WordVectors for Toy {
        fn dimension(&self) -> usize {
            2
        }

        fn word(&self, word: &str) -> Option<&[f32]> {
            match word {
                "cat" => Some(&[1.0, 0.0]),
                "dog" => Some(&[0.9, 0.1]),
                "tax" => Some(&[0.0, 1.0]),
                _ => None,
            }
        }
    }

    fn chunk(id: &str, text: &str) -> Arc<Chunk> {
        Arc::new(Chunk::new(id.into(), id.into(), "".into(), text.into()))
    }

    fn index() -> StaticIndex {
        StaticIndex { words: Arc::new(Toy), passages: BTreeMap::new(), frequencies: Arc::default() }
    }

    fn hits(index: &StaticIndex, query: &str) -> Vec<(String, u32)> {
        let hits = index.view().search(query, 10, &Permitted::All);
        hits.into_iter().map(|hit| (hit.chunk.id.to_string(), hit.score.to_bits())).collect()
    }

    #[test]
    fn any_history_equals_a_fresh_index_to_the_bit() {
        let mut lived = index();
        let add = |added: Vec<Arc<Chunk>>| Delta { added, ..Delta::default() };
        lived.change(&add(vec![chunk("a", "cat tax tax"), chunk("b", "Dog, dog!"), chunk("c", "tax")]));
        lived.change(&Delta { added: vec![chunk("a", "cat")], removed: vec![chunk("a", "cat tax tax")], whole: false });
        lived.change(&Delta { removed: vec![chunk("c", "tax")], ..Delta::default() });
        let mut fresh = index();
        fresh.change(&add(vec![chunk("b", "Dog, dog!"), chunk("a", "cat")]));
        assert_eq!(hits(&lived, "a cat and its tax"), hits(&fresh, "a cat and its tax"));
        assert_eq!(*lived.frequencies, *fresh.frequencies);
    }

    #[test]
    fn rare_words_weigh_more_and_unknown_words_nothing() {
        let mut index = index();
        let added = vec![chunk("a", "cat"), chunk("b", "dog cat"), chunk("c", "tax"), chunk("d", "zzz")];
        index.change(&Delta { added, ..Delta::default() });
        let view = index.view();
        assert!(view.idf.of("tax") > view.idf.of("cat"));
        // Computed by hand: N = 4; "cat" is in 2 passages: ln(5/3) + 1.
        assert!((view.idf.of("cat") - ((5.0_f32 / 3.0).ln() + 1.0)).abs() < 1e-6);
        assert_eq!(view.rows.len(), 3);
        assert_eq!(view.search("tax", 1, &Permitted::All)[0].chunk.id.as_ref(), "c");
        assert_eq!(view.search("zzz", 5, &Permitted::All), []);
    }
}
