//! The dense index: one vector for each content.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{FixedSizeListBuilder, Float32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_schema::{DataType, Field};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use turnflow_engine::cluster::OtherParts;
use turnflow_engine::component::{
    BackedUp, BuildError, Encoding, Index, IndexDefinition, IndexError, Inventory, Models, OperatorError, Permitted,
};
use turnflow_engine::document::ContentHash;
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};
use turnflow_engine::mapped::MappedBytes;
use turnflow_engine::record::Hit;

use super::SearchIndex;
use super::codes::{self, Codes, Queries};
use crate::content::{
    BACKED_UP, Best, BlockReader, Candidates, Encode, Stored, answer, dot, encodings, open, served, stored,
};
use crate::models::{embedder, short_fingerprint};

/// Definition of the index.
pub(crate) struct DenseDefinition {
    fingerprint: String,
    embedder: Arc<dyn Embedder>,
}

impl DenseDefinition {
    pub fn new(models: &Models, model: &str, by: &str) -> Result<Self, BuildError> {
        Ok(Self { fingerprint: short_fingerprint(models, model), embedder: embedder(models, model, by)? })
    }
}

impl IndexDefinition for DenseDefinition {
    fn key(&self) -> String {
        format!("dense-{}", self.fingerprint)
    }

    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>> {
        open::<Vector, Codes>(directory, Arc::new(Encoder(self.embedder.clone()))).boxed()
    }

    fn stored<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, Option<Inventory>> {
        stored::<Vector>(directory, self.embedder.dimension()).boxed()
    }

    fn backed_up(&self) -> Option<BackedUp> {
        Some(BACKED_UP)
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        Ok(served::<Vector, Codes>(reader))
    }

    fn answer(
        &self,
        reader: Arc<dyn Any + Send + Sync>,
        permitted: Permitted,
        question: Vec<u8>,
    ) -> BoxFuture<'static, Result<Vec<u8>, OperatorError>> {
        answer(reader, question, async move |reader: Arc<DenseReader>, Asked { queries, top, index }| {
            let scans = reader.attached(&format!("scans for {top} {index:?}"), || index.scans(top, None));
            let queries: Vec<Vector> = queries.into_iter().map(Vector::from).collect();
            let cost = scan_cost(&reader, &queries, &permitted);
            scans.run(&reader, queries, &permitted, cost).await
        })
    }
}

struct Encoder(Arc<dyn Embedder>);

impl Encode<Vector> for Encoder {
    fn dimension(&self) -> usize {
        self.0.dimension()
    }

    fn is_remote(&self) -> bool {
        self.0.is_remote()
    }

    fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        self.0.embed(texts, Role::Passage, Priority::Corpus)
    }
}

fn item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Float32, true))
}

impl Stored for Vector {
    fn data_type(dimension: usize) -> DataType {
        DataType::FixedSizeList(item(), dimension as i32)
    }

    fn column(values: &[(ContentHash, Self)], dimension: usize) -> ArrayRef {
        let mut lists = FixedSizeListBuilder::new(Float32Builder::new(), dimension as i32).with_field(item());
        for (_, vector) in values {
            lists.values().append_slice(vector);
            lists.append(true);
        }
        Arc::new(lists.finish())
    }

    fn row(column: &ArrayRef, row: usize, dimension: usize) -> Option<Self> {
        let lists = column.as_fixed_size_list_opt()?;
        let values = lists.values().as_primitive_opt::<Float32Type>()?.values();
        values.get(row * dimension..(row + 1) * dimension).map(Into::into)
    }

    fn width(dimension: usize) -> Option<usize> {
        cfg!(target_endian = "little").then_some(size_of::<f32>() * dimension)
    }

    fn mapped(bytes: MappedBytes) -> Option<Self> {
        Self::mapped(bytes)
    }

    fn write(&self, to: &mut Vec<u8>) {
        let from = to.len();
        to.resize(from + 4 * self.len(), 0);
        let (places, _) = to[from..].as_chunks_mut::<4>();
        places.iter_mut().zip(self.iter()).for_each(|(place, value)| *place = value.to_le_bytes());
    }

    fn of_bytes(bytes: &[u8], dimension: usize) -> Option<Self> {
        let (values, rest) = bytes.as_chunks::<4>();
        let is_valid = rest.is_empty() && values.len() == dimension;
        is_valid.then(|| values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    fn numbers(&self) -> Encoding {
        Encoding { values: (0..).zip(self.iter().copied()).collect(), step: 0.0 }
    }
}

/// A search as another process asks for it.
#[derive(Serialize, Deserialize)]
pub(super) struct Asked {
    pub queries: Vec<Vec<f32>>,
    pub top: usize,
    pub index: SearchIndex,
}

/// The cost of a scan, in the units of `Operator::weight`.
pub(super) fn scan_cost(reader: &DenseReader, queries: &[Vector], permitted: &Permitted) -> usize {
    let dimension = queries.first().map_or(0, |query| query.len());
    reader.searched(permitted) * dimension / 64 * queries.len()
}

/// The index at an epoch.
pub(crate) type DenseReader = BlockReader<Vector, Codes>;

/// If at most one passage in this many is permitted, exact scores are computed at once.
const FEW: usize = 16;
/// Rows that are multiplied with every query before the next ones are read, so that they are still in the processor's
/// cache.
pub(crate) const ROWS: usize = 64;

/// For each query, the permitted passages whose vectors have the greatest inner product with it. The scores are exact.
pub(super) fn search(reader: &DenseReader, queries: &[&Vector], top: usize, permitted: &Permitted) -> Vec<Vec<Hit>> {
    if reader.searched(permitted) < reader.passages() / FEW
        && let Some(rows) = reader.permitted(permitted)
    {
        let mut all: Vec<Best<'_>> = queries.iter().map(|_| Best::new(top)).collect();
        for (vector, chunk) in rows {
            queries.iter().zip(&mut all).for_each(|(query, best)| best.offer(dot(query, vector), chunk));
        }
        return all.into_iter().map(Best::into_hits).collect();
    }
    let coded = Queries::new(queries);
    let mut candidates: Vec<Candidates> = queries.iter().map(|_| Candidates::new(top)).collect();
    let mut products = Vec::new();
    for (at, block) in reader.blocks.iter().enumerate() {
        let codes = block.derived();
        let may = |row: usize| permitted.has(&block.rows[row].1);
        for from in (0..block.rows.len()).step_by(ROWS) {
            let count = (block.rows.len() - from).min(ROWS).next_multiple_of(codes::ROWS);
            coded.products(codes, from, count, &mut products);
            let of_queries = products.chunks_exact(count).zip(&coded.bounds);
            for ((products, bound), candidates) in of_queries.zip(&mut candidates) {
                codes::look(candidates, *bound, codes, (at, from), products, may);
            }
        }
    }
    let exact = |(query, candidates): (&&Vector, Candidates)| {
        let mut best = Best::new(top);
        for (block, row) in candidates.into_rows() {
            let (vector, chunk) = &reader.blocks[block].rows[row];
            best.offer(dot(query, vector), chunk);
        }
        best.into_hits()
    };
    queries.iter().zip(candidates).map(exact).collect()
}

/// The vectors of some passages, from the index if a part of it has them, else from the model.
pub(crate) async fn passage_vectors(
    reader: Option<&DenseReader>,
    others: Option<&OtherParts>,
    embedder: &Arc<dyn Embedder>,
    hits: &[Hit],
) -> Result<Vec<Vector>, OperatorError> {
    let mut vectors = encodings(reader, others, hits).await?;
    let missing: Vec<usize> = (0..hits.len()).filter(|&at| vectors[at].is_none()).collect();
    let texts = missing.iter().map(|&at| hits[at].chunk.indexed_text()).collect();
    for (at, vector) in missing.into_iter().zip(embedder.embed(texts, Role::Passage, Priority::Turn).await?) {
        vectors[at] = Some(vector);
    }
    Ok(vectors.into_iter().flatten().collect())
}

#[cfg(test)]
pub(super) mod tests {
    use turnflow_engine::component::Delta;
    use turnflow_engine::document::Chunk;

    use super::*;

    /// A vector of a text: near to others with the same first letter, equal for every tenth text.
    pub struct Hashed(pub usize);

    impl Hashed {
        pub fn vector(&self, text: &str) -> Vector {
            let number: u64 = text[1..].parse().unwrap();
            let value = |seed: u64, at: usize| {
                let mixed =
                    (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
                (mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
            };
            let seed = if number.is_multiple_of(10) { 0 } else { number + 1000 };
            let topic = u64::from(text.as_bytes()[0]);
            (0..self.0).map(|at| value(topic, at) + 0.3 * value(seed, at)).collect::<Vec<_>>().into()
        }
    }

    impl Encode<Vector> for Hashed {
        fn dimension(&self) -> usize {
            self.0
        }
        fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
            let vectors = texts.iter().map(|text| self.vector(text)).collect();
            async move { Ok(vectors) }.boxed()
        }
    }

    pub fn chunk(number: usize) -> Arc<Chunk> {
        let text = format!("{}{number}", char::from(b'a' + (number % 5) as u8));
        let chunk = Chunk::new(format!("p{number:05}").into(), "d".into(), "".into(), text.as_str().into());
        chunk.place.assign(number as u32);
        Arc::new(chunk)
    }

    pub fn seen(hits: &[Hit]) -> Vec<(Arc<str>, u32)> {
        hits.iter().map(|hit| (hit.chunk.id.clone(), hit.score.to_bits())).collect()
    }

    /// The search by codes finds the passages with the greatest exact scores, to the bit, while the corpus changes.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_search_by_codes_is_exact() {
        for dimension in [1, 7, 64, 384] {
            let encoder = Arc::new(Hashed(dimension));
            let mut index = open::<Vector, Codes>(None, encoder.clone()).await.unwrap();
            let all: Vec<_> = (0..1500).map(chunk).collect();
            for (added, removed) in [(0..1200, 0..0), (1200..1201, 3..4), (1201..1500, 100..700)] {
                let delta = Delta { added: all[added].to_vec(), removed: all[removed].to_vec(), whole: false };
                let reader = index.apply(&delta).await.unwrap().downcast::<DenseReader>().unwrap();
                let queries: Vec<Vector> =
                    (0..11).map(|n| encoder.vector(&format!("{}{n}", char::from(b'a' + n % 5)))).collect();
                let queries: Vec<&Vector> = queries.iter().collect();
                for every in [1, 3, 40] {
                    let permitted = match every {
                        1 => Permitted::All,
                        _ => Permitted::Only(Arc::new((0..1500).filter(|number| number % every == 0).collect())),
                    };
                    for top in [1, 10, 300, 2000] {
                        let found = search(&reader, &queries, top, &permitted);
                        let exact = queries.iter().map(|query| {
                            let mut best = Best::new(top);
                            let rows = reader.blocks.iter().flat_map(|block| &block.rows);
                            let rows = rows.filter(|(_, chunk)| permitted.has(chunk));
                            rows.for_each(|(vector, chunk)| best.offer(dot(query, vector), chunk));
                            best.into_hits()
                        });
                        for (found, exact) in found.iter().zip(exact) {
                            assert_eq!(seen(found), seen(&exact), "{dimension} values, top {top}, one in {every}");
                        }
                    }
                }
            }
        }
    }
}
