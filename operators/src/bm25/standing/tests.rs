use std::any::Any;

use turnflow_engine::component::{Index, IndexDefinition, Permitted};

use super::*;
use crate::bm25::open::Bm25Definition;
use crate::bm25::score::Idf;

const PARAMETERS: Parameters = Parameters { idf: Idf::Lucene, k1: 1.2, b: 0.75 };
const TOP: usize = 2;

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % most
    }

    /// Words of which some are frequent.
    fn text(&mut self, most: usize) -> String {
        let words = self.below(most + 1);
        (0..words).map(|_| format!("w{}", self.below(12) * self.below(2) + self.below(3))).collect::<Vec<_>>().join(" ")
    }
}

fn chunk(id: usize, text: &str) -> Arc<Chunk> {
    Arc::new(Chunk::new(format!("p{id}").into(), "d".into(), "".into(), text.into()))
}

struct Place {
    index: Box<dyn Index>,
    standing: Standing,
    reader: Arc<Bm25Reader>,
}

impl Place {
    async fn apply(&mut self, delta: Delta) -> Arc<dyn Any + Send + Sync> {
        let reader = self.index.apply(&delta).await.unwrap();
        self.reader = reader.clone().downcast().unwrap();
        reader
    }

    fn terms(question: &str) -> BTreeMap<String, f32> {
        let mut terms = BTreeMap::new();
        Tokenizer::Whitespace.terms(question).into_iter().for_each(|term| *terms.entry(term).or_default() += 1.0);
        terms
    }

    fn list(&self, question: &str) -> Vec<String> {
        let hits = self.reader.search(&Self::terms(question), PARAMETERS, TOP, &Permitted::All).unwrap();
        hits.iter().map(|hit| hit.chunk.id.to_string()).collect()
    }

    fn put(&mut self, turn: u32, question: &str) {
        let terms = Self::terms(question);
        let hits = self.reader.search(&terms, PARAMETERS, TOP + BEHIND, &Permitted::All).unwrap();
        let asked = Asked::new(&self.reader, PARAMETERS, &terms, &hits, TOP).unwrap().unwrap();
        assert!(self.standing.put(turn, Box::new(asked)));
    }
}

/// Small corpora with ties, empty passages and questions with few hits: whatever list differs was reached.
#[tokio::test(flavor = "multi_thread")]
async fn every_list_that_changes_is_reached() {
    let (mut reached_in_all, mut changed_in_all) = (0, 0);
    for seed in 1..40 {
        let mut numbers = Numbers(seed * 7919);
        let mut index = Bm25Definition { tokenizer: Tokenizer::Whitespace }.open(None).await.unwrap();
        let count = numbers.below(60);
        let mut rows: Vec<Arc<Chunk>> = (0..count).map(|n| chunk(n, &numbers.text(6))).collect();
        let first = Delta { added: rows.clone(), removed: Vec::new(), whole: true };
        let reader = index.apply(&first).await.unwrap().downcast().unwrap();
        let standing = Standing::new("bm25".to_owned(), Tokenizer::Whitespace, PARAMETERS);
        let mut place = Place { index, standing, reader };
        let questions: Vec<String> = (0..30).map(|_| numbers.text(4)).collect();
        let mut lists: Vec<Vec<String>> = questions.iter().map(|question| place.list(question)).collect();
        for (turn, question) in (0..).zip(&questions) {
            place.put(turn, question);
        }
        let mut next = count;
        for _ in 0..20 {
            let mut delta = Delta::default();
            for _ in 0..=numbers.below(3) {
                if !rows.is_empty() && numbers.below(5) < 3 {
                    delta.removed.push(rows.swap_remove(numbers.below(rows.len())));
                }
                if numbers.below(5) < 3 {
                    delta.added.push(chunk(next, &numbers.text(6)));
                    next += 1;
                }
            }
            rows.extend(delta.added.iter().cloned());
            let reader = place.apply(delta.clone()).await;
            let mut corpus = CorpusSnapshot::default();
            corpus.indexes.insert("bm25".to_owned(), reader);
            let reached = place.standing.reached(&[Arc::new(delta)], &corpus, None).unwrap();
            for (turn, question) in (0..).zip(&questions) {
                let now = place.list(question);
                let is_reached = reached.contains(&turn);
                let before = std::mem::replace(&mut lists[turn as usize], now);
                let has_changed = before != lists[turn as usize];
                assert!(is_reached || !has_changed, "{seed}: {question:?}: {before:?} is {:?}", lists[turn as usize]);
                changed_in_all += u32::from(has_changed);
                reached_in_all += u32::from(is_reached);
                if is_reached {
                    place.put(turn, question);
                }
            }
        }
    }
    assert!(changed_in_all > 1000 && reached_in_all < 39 * 20 * 30, "{changed_in_all} of {reached_in_all}");
}
