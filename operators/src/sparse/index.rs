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
use turnflow_engine::compute::{MOST_ON_A_WORKER, apart_within};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::inference::{InferenceError, Priority, Role, SparseEmbedder, SparseVector};
use turnflow_engine::mapped::MappedFiles;
use turnflow_engine::record::Hit;

use crate::content::{BACKED_UP, Best, BlockReader, Derived, Encode, Stored, answer, open, served, stored};
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
            let weight = search_weight(&reader, queries.len());
            let found = move || queries.iter().map(|query| search(&reader, query, top, &permitted)).collect();
            if weight > MOST_ON_A_WORKER { apart_within(async move { found() }).await } else { found() }
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
    /// The terms, in ascending order.
    terms: Vec<u32>,
    /// Where the passages of each term end.
    ends: Vec<u32>,
    /// Row in the block, and weight.
    rows: Vec<u16>,
    weights: Vec<f32>,
}

impl Derived<SparseVector> for Inverted {
    fn derive(rows: &[(SparseVector, Arc<Chunk>)], _: Option<&MappedFiles>) -> Self {
        let of_row = |(place, (vector, _)): (u16, &(SparseVector, Arc<Chunk>))| {
            vector.iter().map(|(term, weight)| (*term, place, *weight)).collect::<Vec<_>>()
        };
        let mut all: Vec<(u32, u16, f32)> = (0..).zip(rows).flat_map(of_row).collect();
        // The rows of a term stay in their order.
        all.sort_by_key(|(term, ..)| *term);
        let (mut terms, mut ends) = (Vec::new(), Vec::new());
        for of_term in all.chunk_by(|a, b| a.0 == b.0) {
            terms.push(of_term[0].0);
            ends.push(ends.last().copied().unwrap_or(0) + of_term.len() as u32);
        }
        let (rows, weights) = all.into_iter().map(|(_, row, weight)| (row, weight)).unzip();
        Self { terms, ends, rows, weights }
    }
}

impl Inverted {
    /// The passages that have the term at a place, with their weights.
    fn passages(&self, at: usize) -> impl Iterator<Item = (usize, f32)> {
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        let range = start..self.ends[at] as usize;
        self.rows[range.clone()].iter().zip(&self.weights[range]).map(|(row, weight)| (usize::from(*row), *weight))
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
    let mut scores = Vec::new();
    for block in &reader.blocks {
        let inverted = block.derived();
        scores.clear();
        scores.resize(block.rows.len(), 0.0_f32);
        // Sums in the order of the terms, so that a score does not depend on the block. Both lists of terms ascend.
        let mut from = 0;
        for (term, weight) in query.iter() {
            from += inverted.terms[from..].partition_point(|other| other < term);
            if inverted.terms.get(from) == Some(term) {
                inverted.passages(from).for_each(|(row, other)| scores[row] += weight * other);
            }
        }
        let least = best.threshold();
        for (score, (_, chunk)) in scores.iter().zip(&block.rows) {
            if *score > 0.0 && *score >= least && permitted.has(chunk) {
                best.offer(*score, chunk);
            }
        }
    }
    best.into_hits()
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
        assert_eq!(inverted.terms, [1, 2]);
        assert_eq!(inverted.passages(0).collect::<Vec<_>>(), [(0, 0.5)]);
        assert_eq!(inverted.passages(1).collect::<Vec<_>>(), [(0, 1.0), (1, 2.0)]);
    }
}
