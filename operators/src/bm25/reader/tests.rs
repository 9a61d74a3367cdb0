//! Tests of searches at an epoch.

use turnflow_engine::component::{Delta, IndexDefinition as _};

use super::super::Tokenizer;
use super::super::open::Bm25Definition;
use super::*;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }

    /// A word; the first ones are the most frequent.
    fn word(&mut self) -> String {
        let most = 1 + self.below(400);
        format!("w{}", self.below(most).min(self.below(400)))
    }

    fn passage(&mut self, number: usize) -> Arc<Chunk> {
        let length = 1 + self.below(80);
        let text = (0..length).map(|_| self.word()).collect::<Vec<_>>().join(" ");
        let chunk = Chunk::new(format!("p{number:05}").into(), "d".into(), "".into(), text.into());
        chunk.place.assign(number as u32);
        Arc::new(chunk)
    }

    fn question(&mut self) -> BTreeMap<String, f32> {
        let words = 1 + self.below(12);
        (0..words).map(|_| (self.word(), [1.0, 1.0, 2.0, 0.3][self.below(4)])).collect()
    }

    fn permitted(&mut self, passages: usize) -> Permitted {
        let one_in = [1, 2, 8, 100][self.below(4)];
        match self.below(2) {
            0 => Permitted::All,
            _ => Permitted::Only(Arc::new((0..passages as u32).filter(|_| self.below(one_in) == 0).collect())),
        }
    }
}

/// A search that skips finds the same passages with the same scores, to the bit, as one that scores every passage:
/// while the corpus changes, in old epochs too, and whatever the parameters and the permitted passages are.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_skips_equals_one_that_scores_every_passage() {
    let mut random = Random(7);
    let mut index = Bm25Definition { tokenizer: Tokenizer::Whitespace }.open(None).await.unwrap();
    let mut live: Vec<Arc<Chunk>> = Vec::new();
    let mut made = 0;
    let mut epochs: Vec<Arc<Bm25Reader>> = Vec::new();
    let mut skipped = 0;
    for (added, removed) in [(4000, 0), (1, 1), (600, 300), (0, 40), (30, 700), (1, 1), (300, 2)] {
        let removed = (0..removed).map(|_| live.swap_remove(random.below(live.len()))).collect();
        let added: Vec<_> = (made..made + added).map(|number| random.passage(number)).collect();
        made += added.len();
        live.extend(added.iter().cloned());
        let reader = index.apply(&Delta { added, removed, whole: false }).await.unwrap();
        epochs.push(reader.downcast::<Bm25Reader>().unwrap());
        let stored: u32 = epochs[epochs.len() - 1].segments.iter().map(|segment| segment.reader.num_docs()).sum();
        assert_eq!(stored as usize, live.len(), "deleted passages are deleted in tantivy too");
        for _ in 0..60 {
            let reader = &epochs[epochs.len() - 1 - random.below(epochs.len()).min(random.below(3))];
            let (question, permitted) = (random.question(), random.permitted(made));
            let parameters = Parameters {
                idf: [Idf::Lucene, Idf::Okapi][random.below(2)],
                k1: [0.0, 0.9, 1.2, 20.0][random.below(4)],
                b: [0.0, 0.4, 0.75, 1.0][random.below(4)],
            };
            let top = 1 + random.below(30);
            let fast = reader.find(&question, parameters, top, &permitted, true).unwrap();
            let whole = reader.find(&question, parameters, top, &permitted, false).unwrap();
            let seen =
                |hits: &[Hit]| hits.iter().map(|hit| (hit.chunk.id.clone(), hit.score.to_bits())).collect::<Vec<_>>();
            assert_eq!(seen(&fast), seen(&whole), "{question:?}, {parameters:?}, top {top}, {permitted:?}");
            skipped += usize::from(!fast.is_empty());
        }
    }
    assert!(skipped > 300, "{skipped} questions found something");
}
