//! The sparse index: weighted terms for each content, and an inverted list for each block.

use std::any::Any;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::LargeBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;
use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildError, Capability, Encoding, Index, IndexDefinition, IndexError, Inventory, Models, Permitted,
};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::inference::{InferenceError, Priority, Role, SparseEmbedder, SparseVector};
use turnflow_engine::record::Hit;

use crate::content::{Best, BlockReader, Derived, Encode, Stored, open, served, stored};
use crate::models::{able, short_fingerprint};

/// Definition of the index.
pub(crate) struct SparseDefinition {
    fingerprint: String,
    encoder: Arc<dyn SparseEmbedder>,
}

impl SparseDefinition {
    pub fn new(models: &Models, model: &str, by: &str) -> Result<Self, BuildError> {
        let encoder = able(models, model, by, Capability::EmbedSparse, |model| model.sparse.clone())?;
        Ok(Self { fingerprint: short_fingerprint(models, model), encoder })
    }
}

impl IndexDefinition for SparseDefinition {
    fn key(&self) -> String {
        format!("sparse-{}", self.fingerprint)
    }

    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>> {
        open::<SparseVector, Inverted>(directory, Arc::new(Encoder(self.encoder.clone()))).boxed()
    }

    fn stored<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, Option<Inventory>> {
        stored::<SparseVector>(directory, 0).boxed()
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        Ok(served::<SparseVector, Inverted>(reader))
    }
}

struct Encoder(Arc<dyn SparseEmbedder>);

impl Encode<SparseVector> for Encoder {
    fn dimension(&self) -> usize {
        0
    }

    fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>> {
        self.0.embed_sparse(texts, Role::Passage, Priority::Corpus)
    }
}

impl Stored for SparseVector {
    fn data_type(_: usize) -> DataType {
        DataType::LargeBinary
    }

    fn column(values: &[(ContentHash, Self)], _: usize) -> ArrayRef {
        let mut column = LargeBinaryBuilder::new();
        for (_, vector) in values {
            column.append_value(vector.bytes());
        }
        Arc::new(column.finish())
    }

    fn row(column: &ArrayRef, row: usize, _: usize) -> Option<Self> {
        let bytes = column.as_binary_opt::<i64>()?.value(row);
        let (pairs, rest) = bytes.as_chunks::<8>();
        let pair = |[a, b, c, d, e, f, g, h]: &[u8; 8]| {
            (u32::from_le_bytes([*a, *b, *c, *d]), f32::from_le_bytes([*e, *f, *g, *h]))
        };
        rest.is_empty().then(|| pairs.iter().map(pair).collect())
    }

    fn bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|(term, weight)| [term.to_le_bytes(), weight.to_le_bytes()]).flatten().collect()
    }

    fn numbers(&self) -> Encoding {
        let mut values = self.to_vec();
        values.sort_by_key(|(term, _)| *term);
        Encoding { values, step: 0.0 }
    }
}

/// The passages of a block by term.
pub(crate) struct Inverted(HashMap<u32, List>);

/// The passages of a block that have a term.
#[derive(Debug, Default, PartialEq)]
struct List {
    /// Row in the block, and weight.
    passages: Vec<(u16, f32)>,
    /// The greatest of the weights.
    most: f32,
}

impl Derived<SparseVector> for Inverted {
    fn derive(rows: &[(SparseVector, Arc<Chunk>)]) -> Self {
        let mut terms: HashMap<u32, List> = HashMap::new();
        for (place, (vector, _)) in rows.iter().enumerate() {
            for (term, weight) in vector.iter() {
                let list = terms.entry(*term).or_default();
                list.passages.push((place as u16, *weight));
                list.most = list.most.max(*weight);
            }
        }
        Self(terms)
    }
}

/// The index at an epoch.
pub(crate) type SparseReader = BlockReader<SparseVector, Inverted>;

/// One part in this many of the passages is permitted: below, they are scored one by one.
const FEW: usize = 16;

/// The permitted passages whose terms have the greatest inner product with those of `query`.
pub(super) fn search(reader: &SparseReader, query: &SparseVector, top: usize, permitted: &Permitted) -> Vec<Hit> {
    let mut best = Best::new(top);
    if reader.searched(permitted) < reader.passages() / FEW
        && let Some(rows) = reader.permitted(permitted)
    {
        // Sums in the same order as below.
        let scored = rows.map(|(vector, chunk)| (product(query, vector), chunk)).filter(|(score, _)| *score > 0.0);
        scored.for_each(|(score, chunk)| best.offer(score, chunk));
        return best.into_hits();
    }
    let mut sums = Vec::new();
    for block in &reader.blocks {
        let inverted = &block.derived().0;
        let lists: Vec<(f32, &List)> =
            query.iter().filter_map(|(term, weight)| Some((*weight, inverted.get(term)?))).collect();
        let threshold = best.threshold();
        let (read, rest) = needed(&lists, threshold);
        // Sums in the order of the terms, so that a score does not depend on the block.
        sums.clear();
        sums.resize(block.rows.len(), 0.0_f32);
        for (weight, list) in &read {
            for (place, other) in &list.passages {
                sums[usize::from(*place)] += weight * other;
            }
        }
        let is_whole = read.len() == lists.len();
        // Less than any sum with which a passage may be among the best.
        let cut = if is_whole { f32::from_bits(1) } else { (threshold - rest) * (1.0 - ROUNDING) };
        for (sum, (vector, chunk)) in sums.iter().zip(&block.rows).filter(|(sum, _)| **sum >= cut) {
            if permitted.has(chunk) {
                best.offer(if is_whole { *sum } else { product(query, vector) }, chunk);
            }
        }
    }
    best.into_sorted().map(|(score, chunk)| Hit { chunk: chunk.clone(), score }).collect()
}

/// More than the share by which rounding may change a sum of some hundred products.
const ROUNDING: f32 = 1e-4;
/// The share of the threshold that terms which are not read may add. More of it leaves more passages to be scored one by
/// one.
const LEFT_OUT: f32 = 0.5;

/// The lists to read so that no passage is missed whose score reaches the threshold, in the order of the terms, and the
/// most that the others can add (MaxScore: Turtle and Flood 1995). The longest lists are left out first, for what they
/// add at most.
fn needed<'a>(lists: &[(f32, &'a List)], threshold: f32) -> (Vec<(f32, &'a List)>, f32) {
    let bound = |at: usize| lists[at].0 * lists[at].1.most;
    let saved = |at: usize| lists[at].1.passages.len() as f32 / bound(at).max(f32::MIN_POSITIVE);
    let mut order: Vec<usize> = (0..lists.len()).collect();
    order.sort_by(|a, b| saved(*b).total_cmp(&saved(*a)));
    let (mut is_read, mut rest) = (vec![true; lists.len()], 0.0);
    for at in order {
        if rest + bound(at) < threshold * LEFT_OUT {
            rest += bound(at);
            is_read[at] = false;
        }
    }
    (lists.iter().zip(is_read).filter(|(_, is_read)| *is_read).map(|(list, _)| *list).collect(), rest)
}

/// The inner product of two sparse vectors.
pub(crate) fn product(a: &SparseVector, b: &SparseVector) -> f32 {
    let (mut at, mut sum) = (0, 0.0);
    for (term, weight) in a.iter() {
        while b.get(at).is_some_and(|(other, _)| other < term) {
            at += 1;
        }
        if let Some((other, other_weight)) = b.get(at)
            && other == term
        {
            sum += weight * other_weight;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use turnflow_engine::component::Delta;

    use super::*;

    fn vector(terms: &[(u32, f32)]) -> SparseVector {
        terms.into()
    }

    #[test]
    fn products_are_over_the_terms_in_common() {
        let (a, b) = (vector(&[(1, 2.0), (5, 3.0), (9, 1.0)]), vector(&[(0, 7.0), (5, 0.5), (9, 4.0)]));
        assert_eq!(product(&a, &b), 5.5);
        assert_eq!(product(&a, &vector(&[])), 0.0);
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let values = [(ContentHash([0; 32]), vector(&[(3, 0.25), (30_521, 2.5)])), (ContentHash([1; 32]), vector(&[]))];
        let column = SparseVector::column(&values, 0);
        assert_eq!(SparseVector::row(&column, 0, 0), Some(values[0].1.clone()));
        assert_eq!(SparseVector::row(&column, 1, 0), Some(values[1].1.clone()));
    }

    #[test]
    fn inverted_lists_hold_each_passages_weights() {
        let chunk = || Arc::new(Chunk::new("a".into(), "a".into(), "".into(), "".into()));
        let rows = [(vector(&[(1, 0.5), (2, 1.0)]), chunk()), (vector(&[(2, 2.0)]), chunk())];
        let Inverted(terms) = Inverted::derive(&rows);
        assert_eq!(terms[&2], List { passages: vec![(0, 1.0), (1, 2.0)], most: 2.0 });
        assert_eq!(terms[&1], List { passages: vec![(0, 0.5)], most: 0.5 });
    }

    #[test]
    fn long_lists_that_cannot_matter_are_left_out() {
        let list = |passages: u16, most| List { passages: (0..passages).map(|row| (row, most)).collect(), most };
        let (rare, common, strong) = (list(2, 1.0), list(400, 0.5), list(300, 3.0));
        let lists = [(1.0, &rare), (1.0, &common), (1.0, &strong)];
        let (read, rest) = needed(&lists, 2.0);
        assert_eq!((read.len(), rest), (2, 0.5));
        assert_eq!(needed(&lists, f32::NEG_INFINITY).0.len(), 3);
        assert_eq!(needed(&lists, 0.0).0.len(), 3);
    }

    /// Weighted terms of a text's number: some terms are in most passages, with small weights.
    struct Numbered;

    impl Numbered {
        fn vector(number: usize) -> SparseVector {
            let mut state = number as u64 + 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1_u64 << 24) as f32
            };
            let mut terms = Vec::new();
            for term in 0..120_u32 {
                let common = 1.0 / (1.0 + term as f32 / 8.0);
                if next() < common {
                    terms.push((term, 0.05 + next() * (2.0 - 1.8 * common)));
                }
            }
            terms.into()
        }
    }

    impl Encode<SparseVector> for Numbered {
        fn dimension(&self) -> usize {
            0
        }

        fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>> {
            // Every tenth passage has the same terms.
            let of =
                |text: &String| text.parse().map(|number: usize| if number.is_multiple_of(10) { 0 } else { number });
            let vectors = texts.iter().map(|text| Self::vector(of(text).unwrap())).collect();
            async move { Ok(vectors) }.boxed()
        }
    }

    /// The search leaves lists out, and finds the passages with the greatest scores, to the bit, while the corpus changes.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_search_that_leaves_lists_out_is_exact() {
        let mut index = open::<SparseVector, Inverted>(None, Arc::new(Numbered)).await.unwrap();
        let chunk = |number: usize| {
            let text = number.to_string();
            let chunk = Chunk::new(format!("p{number:05}").into(), "d".into(), "".into(), text.as_str().into());
            chunk.place.assign(number as u32);
            Arc::new(chunk)
        };
        let all: Vec<_> = (0..3000).map(chunk).collect();
        let mut left_out = 0;
        for (added, removed) in [(0..2500, 0..0), (2500..2501, 3..4), (2501..3000, 100..700)] {
            let delta = Delta { added: all[added].to_vec(), removed: all[removed].to_vec(), whole: false };
            let reader = index.apply(&delta).await.unwrap().downcast::<SparseReader>().unwrap();
            for (number, every, top) in [(1, 1, 1), (2, 1, 10), (10, 1, 100), (3, 3, 10), (4, 40, 10), (5, 1, 5000)] {
                let query = Numbered::vector(number * 7 + 5000);
                let permitted = match every {
                    1 => Permitted::All,
                    _ => Permitted::Only(Arc::new((0..3000).filter(|number| number % every == 0).collect())),
                };
                let found = search(&reader, &query, top, &permitted);
                let mut best = Best::new(top);
                let rows = reader.blocks.iter().flat_map(|block| &block.rows);
                rows.filter(|(_, chunk)| permitted.has(chunk)).for_each(|(vector, chunk)| {
                    let score = product(&query, vector);
                    if score > 0.0 {
                        best.offer(score, chunk);
                    }
                });
                let seen = |hits: &[Hit]| -> Vec<_> {
                    hits.iter().map(|hit| (hit.chunk.id.clone(), hit.score.to_bits())).collect()
                };
                let exact = best.into_hits();
                assert_eq!(seen(&found), seen(&exact), "{number} {every} {top}");
                let lists = &reader.blocks[0].derived().0;
                let lists: Vec<_> =
                    query.iter().filter_map(|(term, weight)| Some((*weight, lists.get(term)?))).collect();
                let last = exact.get(top - 1).map_or(0.0, |hit| hit.score);
                left_out += lists.len() - needed(&lists, last).0.len();
            }
        }
        assert!(left_out > 20, "{left_out}");
    }
}
