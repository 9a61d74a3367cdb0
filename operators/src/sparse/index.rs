//! The sparse index: weighted terms for each content, and an inverted list for each block.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::LargeBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;
use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BackedUp, BuildError, Capability, Encoding, Index, IndexDefinition, IndexError, Inventory, Models, OperatorError,
    Permitted,
};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::inference::{InferenceError, Priority, Role, SparseEmbedder, SparseVector};
use turnflow_engine::mapped::MappedFiles;
use turnflow_engine::record::Hit;

use crate::content::{
    BACKED_UP, Best, Block, BlockReader, Derived, Encode, Scans, Stored, answer, open, served, stored,
};
use crate::cores::{cores, each};
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

    fn backed_up(&self) -> Option<BackedUp> {
        Some(BACKED_UP)
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        Ok(served::<SparseVector, Inverted>(reader))
    }

    fn answer(
        &self,
        reader: Arc<dyn Any + Send + Sync>,
        permitted: Permitted,
        question: Vec<u8>,
    ) -> BoxFuture<'static, Result<Vec<u8>, OperatorError>> {
        answer(reader, question, async move |reader: Arc<SparseReader>, (queries, top): Asked| {
            let scans = reader.attached(&format!("scans for {top}"), || scans(top));
            let cost = search_weight(&reader, queries.len());
            scans.run(&reader, queries, &permitted, cost).await
        })
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
        Self::of_bytes(column.as_binary_opt::<i64>()?.value(row), 0)
    }

    fn of_bytes(bytes: &[u8], _: usize) -> Option<Self> {
        let (pairs, rest) = bytes.as_chunks::<8>();
        let pair = |[a, b, c, d, e, f, g, h]: &[u8; 8]| {
            (u32::from_le_bytes([*a, *b, *c, *d]), f32::from_le_bytes([*e, *f, *g, *h]))
        };
        rest.is_empty().then(|| pairs.iter().map(pair).collect())
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend(self.iter().flat_map(|(term, weight)| [term.to_le_bytes(), weight.to_le_bytes()]).flatten());
    }

    fn numbers(&self) -> Encoding {
        let mut values = self.to_vec();
        values.sort_by_key(|(term, _)| *term);
        Encoding { values, step: 0.0 }
    }
}

/// The passages of a block by term.
pub(crate) struct Inverted {
    /// The terms, and where the passages of each end.
    terms: Vec<(u32, u32)>,
    /// Places among the terms, by hash. There are twice as many slots as terms, or more.
    slots: Vec<u32>,
    /// Row in the block, and weight, of the passages of each term.
    rows: Vec<u16>,
    weights: Vec<f32>,
}

/// A slot without a term.
const EMPTY: u32 = u32::MAX;

impl Derived<SparseVector> for Inverted {
    const AT_ONCE: bool = true;

    fn derive(rows: &[(SparseVector, Arc<Chunk>)], _: Option<&MappedFiles>) -> Self {
        let mut all: Vec<(u32, u16, f32)> = Vec::with_capacity(rows.iter().map(|(vector, _)| vector.len()).sum());
        for (row, (vector, _)) in (0..).zip(rows) {
            all.extend(vector.iter().map(|(term, weight)| (*term, row, *weight)));
        }
        // The rows of a term stay in their order.
        all.sort_by_key(|(term, ..)| *term);
        let (mut terms, mut end) = (Vec::new(), 0);
        for of_term in all.chunk_by(|a, b| a.0 == b.0) {
            end += of_term.len() as u32;
            terms.push((of_term[0].0, end));
        }
        let mut slots = vec![EMPTY; (2 * terms.len()).next_power_of_two()];
        for (at, (term, _)) in (0_u32..).zip(&terms) {
            let mut slot = first_slot(*term, slots.len());
            while slots[slot] != EMPTY {
                slot = (slot + 1) % slots.len();
            }
            slots[slot] = at;
        }
        let (rows, weights) = all.into_iter().map(|(_, row, weight)| (row, weight)).unzip();
        Self { terms, slots, rows, weights }
    }
}

/// Where the search for a term begins. The number of slots is a power of two.
fn first_slot(term: u32, slots: usize) -> usize {
    (term.wrapping_mul(0x9e37_79b1) >> 8) as usize & (slots - 1)
}

impl Inverted {
    /// The passages that have a term, with their weights.
    fn of(&self, term: u32) -> (&[u16], &[f32]) {
        let mut slot = first_slot(term, self.slots.len());
        while let Some((found, end)) = self.terms.get(self.slots[slot] as usize) {
            if *found == term {
                let start = (self.slots[slot] as usize).checked_sub(1).map_or(0, |before| self.terms[before].1);
                let range = start as usize..*end as usize;
                return (&self.rows[range.clone()], &self.weights[range]);
            }
            slot = (slot + 1) % self.slots.len();
        }
        (&[], &[])
    }
}

/// A search as another process asks for it: the queries, and the number of passages for each.
pub(super) type Asked = (Vec<SparseVector>, usize);

/// The cost of searching for a number of queries, in the units of `Operator::weight`: a query term occurs in few
/// passages, but every passage has a score to check.
pub(super) fn search_weight(reader: &SparseReader, queries: usize) -> usize {
    reader.passages() / 2 * queries
}

/// The index at an epoch.
pub(crate) type SparseReader = BlockReader<SparseVector, Inverted>;
type SparseBlock = Block<SparseVector, Inverted>;

/// One part in this many of the passages is permitted: below, they are scored one by one.
const FEW: usize = 16;

/// Blocks from which on a query alone is divided among the cores.
const LARGE: usize = 129;

/// Scans for `top` passages.
pub(super) fn scans(top: usize) -> Scans<SparseReader, SparseVector> {
    Scans::new(|reader, queries, top, permitted| search(reader, queries, top, permitted), top)
}

/// For each query, the permitted passages whose terms have the greatest inner product with its own.
fn search(reader: &SparseReader, queries: &[&SparseVector], top: usize, permitted: &Permitted) -> Vec<Vec<Hit>> {
    if reader.searched(permitted) < reader.passages() / FEW && permitted.numbers().is_some() {
        let one = |query: &&SparseVector| {
            let mut best = Best::new(top);
            // Sums in the same order as below.
            for (vector, chunk) in reader.permitted(permitted).into_iter().flatten() {
                let score = product(query, vector);
                if score > 0.0 {
                    best.offer(score, chunk);
                }
            }
            best.into_hits()
        };
        return queries.iter().map(one).collect();
    }
    // Several queries share one pass, undivided, so that a block is read once for all; other passes use other cores.
    let cores = if queries.len() == 1 && reader.blocks.len() >= LARGE { cores() } else { 1 };
    let shares: Vec<&[Arc<SparseBlock>]> = reader.blocks.chunks(reader.blocks.len().div_ceil(cores).max(1)).collect();
    let found = each(&shares, |blocks| of_blocks(blocks, queries, top, permitted));
    let one = |at: usize| {
        let mut best = Best::new(top);
        let of_query = found.iter().flat_map(|of_share| &of_share[at]);
        of_query.for_each(|(score, chunk)| best.offer(*score, chunk));
        best.into_hits()
    };
    (0..queries.len()).map(one).collect()
}

/// For each query, the best permitted passages of some blocks. A block stays in the processor's cache for all queries.
fn of_blocks<'a>(
    blocks: &'a [Arc<SparseBlock>],
    queries: &[&SparseVector],
    top: usize,
    permitted: &Permitted,
) -> Vec<Vec<(f32, &'a Arc<Chunk>)>> {
    let mut all: Vec<Best<'_>> = queries.iter().map(|_| Best::new(top)).collect();
    let (mut scores, mut of_terms) = (Vec::new(), Vec::new());
    for block in blocks {
        let inverted = block.derived();
        for (query, best) in queries.iter().zip(&mut all) {
            // All terms are looked up first: the processor waits for many at the same time.
            of_terms.clear();
            of_terms.extend(query.iter().map(|(term, weight)| (*weight, inverted.of(*term))));
            scores.clear();
            scores.resize(block.rows.len(), 0.0_f32);
            // Sums in the order of the terms, so that a score does not depend on the block.
            for (weight, (rows, weights)) in &of_terms {
                for (row, other) in rows.iter().zip(*weights) {
                    scores[usize::from(*row)] += weight * other;
                }
            }
            let least = best.threshold();
            for (score, (_, chunk)) in scores.iter().zip(&block.rows) {
                if *score > 0.0 && *score >= least && permitted.has(chunk) {
                    best.offer(*score, chunk);
                }
            }
        }
    }
    all.into_iter().map(|best| best.into_sorted().collect()).collect()
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
        let inverted = Inverted::derive(&rows, None);
        assert_eq!(inverted.of(1), (&[0][..], &[0.5][..]));
        assert_eq!(inverted.of(2), (&[0, 1][..], &[1.0, 2.0][..]));
        assert_eq!(inverted.of(3), (&[][..], &[][..]));
        assert_eq!(Inverted::derive(&[], None).of(3), (&[][..], &[][..]));
    }

    struct Hashed;

    impl Hashed {
        /// A few terms, of which small ones are frequent.
        fn of(number: u64) -> SparseVector {
            let mixed = |at: u64| (number * 8 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            let mut terms: Vec<(u32, f32)> = (0..number % 8)
                .map(|at| ((mixed(at) % 64 * (mixed(at) % 5)) as u32, (mixed(at) % 90) as f32 / 7.0))
                .collect();
            terms.sort_by_key(|(term, _)| *term);
            terms.dedup_by_key(|(term, _)| *term);
            terms.into()
        }
    }

    impl Encode<SparseVector> for Hashed {
        fn dimension(&self) -> usize {
            0
        }
        fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>> {
            let vectors = texts.iter().map(|text| Self::of(text.parse().unwrap())).collect();
            async move { Ok(vectors) }.boxed()
        }
    }

    /// A query alone, which is divided among the cores, and several together find what comparing every passage finds.
    #[tokio::test(flavor = "multi_thread")]
    async fn shared_and_divided_searches_are_exact() {
        let mut index = open::<SparseVector, Inverted>(None, Arc::new(Hashed)).await.unwrap();
        let passage = |number: u32| {
            let id = format!("p{number}");
            let chunk = Chunk::new(id.as_str().into(), "d".into(), "".into(), number.to_string().into());
            chunk.place.assign(number);
            Arc::new(chunk)
        };
        let count = (LARGE * 512 + 700) as u32;
        let added = (0..count).map(passage).collect();
        let delta = turnflow_engine::component::Delta { added, removed: Vec::new(), whole: true };
        let reader = index.apply(&delta).await.unwrap().downcast::<SparseReader>().unwrap();
        assert!(reader.blocks.len() >= LARGE);
        let queries: Vec<SparseVector> = [7, 15, 31, 8, 4999].map(Hashed::of).into();
        let queries: Vec<&SparseVector> = queries.iter().collect();
        let seen =
            |hits: &[Hit]| hits.iter().map(|hit| (hit.chunk.id.clone(), hit.score.to_bits())).collect::<Vec<_>>();
        for every in [1, 3, 40] {
            let permitted = match every {
                1 => Permitted::All,
                _ => Permitted::Only(Arc::new((0..count).filter(|number| number % every == 0).collect())),
            };
            let together = search(&reader, &queries, 20, &permitted);
            for (query, together) in queries.iter().zip(together) {
                let mut best = Best::new(20);
                for (vector, chunk) in reader.blocks.iter().flat_map(|block| &block.rows) {
                    let score = product(query, vector);
                    if score > 0.0 && permitted.has(chunk) {
                        best.offer(score, chunk);
                    }
                }
                let expected = seen(&best.into_hits());
                assert_eq!(seen(&together), expected);
                assert_eq!(seen(&search(&reader, &[query], 20, &permitted)[0]), expected);
            }
        }
    }
}
