//! Tests of the retrieval by static word vectors.

use std::collections::BTreeMap;

use proptest::prelude::*;
use turnflow_engine::component::Delta;
use turnflow_engine::document::Chunk;

use super::*;

/// The vectors of `cat`, `dog` and `tax`, and of `w0` to `w199`.
struct Toy(Vec<[f32; 2]>);

impl Toy {
    fn new() -> Arc<Self> {
        let others = (0..200).map(|at| [(at as f32 * 0.7).sin() + 0.4, (at as f32 * 1.3).cos()]);
        Arc::new(Self([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]].into_iter().chain(others).collect()))
    }
}

impl WordVectors for Toy {
    fn dimension(&self) -> usize {
        2
    }

    fn place(&self, word: &str) -> Option<u32> {
        match word {
            "cat" => Some(0),
            "dog" => Some(1),
            "tax" => Some(2),
            _ => word.strip_prefix('w')?.parse().ok().filter(|at| *at < 200).map(|at: u32| at + 3),
        }
    }

    fn vector(&self, place: u32) -> &[f32] {
        &self.0[place as usize]
    }
}

fn chunk(id: &str, text: &str) -> Arc<Chunk> {
    Arc::new(Chunk::new(id.into(), id.into(), "".into(), text.into()))
}

async fn open() -> StaticIndex {
    StaticIndex::open(Toy::new()).await.unwrap()
}

async fn change(index: &mut StaticIndex, added: Vec<Arc<Chunk>>, removed: Vec<Arc<Chunk>>) -> Arc<StaticReader> {
    let delta = Delta { added, removed, whole: false };
    index.apply(&delta).await.unwrap().downcast().unwrap()
}

fn hits(reader: &StaticReader, query: &str, top: usize) -> Vec<(String, u32)> {
    let hits = reader.search(query, top, &Permitted::All);
    hits.into_iter().map(|hit| (hit.chunk.id.to_string(), hit.score.to_bits())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rare_words_weigh_more_and_unknown_words_nothing() {
    let mut index = open().await;
    let added = vec![chunk("a", "cat"), chunk("b", "Dog, cat!"), chunk("c", "tax"), chunk("d", "zzz")];
    let reader = change(&mut index, added, Vec::new()).await;
    // Computed by hand: there are 4 passages, and "cat" is in 2 of them.
    let weight = |word: &str| {
        let vector = reader.search(word, 1, &Permitted::All);
        vector[0].chunk.id.to_string()
    };
    assert_eq!([weight("tax"), weight("cat")], ["c", "a"]);
    let (of_cat, of_tax) = ((5.0_f32 / 3.0).ln() + 1.0, (5.0_f32 / 2.0).ln() + 1.0);
    let cosine = of_cat / (of_cat * of_cat + of_tax * of_tax).sqrt();
    let found = reader.search("cat tax", 4, &Permitted::All);
    let score = found.iter().find(|hit| &*hit.chunk.id == "a").unwrap().score;
    assert!((score - cosine).abs() < 1e-6, "{score} is not {cosine}");
    assert_eq!(found.len(), 3);
    assert_eq!(reader.search("zzz", 5, &Permitted::All), []);
}

/// The text of passage `number` after it was edited some times.
fn text(number: usize, edits: usize) -> String {
    let word = |at: usize| {
        let mixed = ((number * 31 + edits * 1009 + at) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        // Some words are in most passages, and some in few.
        format!("w{}", (mixed % 200) * (mixed % 7) / 7)
    };
    (0..1 + number % 40).map(word).collect::<Vec<_>>().join(" ")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// After any history, the hits are those of a fresh index and of comparing every passage, to the bit.
    #[test]
    fn any_history_equals_a_fresh_index(
        changes in proptest::collection::vec(
            proptest::collection::vec((0_usize..1400, 0_usize..3), 1..60), 1..25),
        first in 0_usize..1400,
        queries in proptest::collection::vec(0_usize..1000, 3),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.block_on(async {
            let mut index = open().await;
            let mut live: BTreeMap<usize, Arc<Chunk>> = BTreeMap::new();
            for number in 0..first {
                live.insert(number, chunk(&format!("p{number}"), &text(number, 0)));
            }
            let mut reader = change(&mut index, live.values().cloned().collect(), Vec::new()).await;
            for (time, of_change) in changes.iter().enumerate() {
                let (mut added, mut removed) = (BTreeMap::new(), Vec::new());
                for (number, kind) in of_change.iter().filter(|(number, _)| !added.contains_key(number)).collect::<Vec<_>>() {
                    if added.contains_key(number) {
                        continue;
                    }
                    let before = live.remove(number);
                    if *kind > 0 {
                        let chunk = chunk(&format!("p{number}"), &text(*number, time + 1));
                        added.insert(*number, chunk.clone());
                        live.insert(*number, chunk);
                    }
                    removed.extend(before);
                }
                reader = change(&mut index, added.into_values().collect(), removed).await;
                let bases = reader.bases();
                assert!(bases <= 2, "{bases} bases");
            }
            let mut fresh = open().await;
            let fresh = change(&mut fresh, live.values().rev().cloned().collect(), Vec::new()).await;
            for query in queries {
                let query = text(query, 77);
                for top in [1, 10, 2000] {
                    let found = hits(&reader, &query, top);
                    assert_eq!(&found, &hits(&fresh, &query, top));
                    assert_eq!(&found, &reader.compare_all(&query, top));
                }
            }
        });
    }
}
