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
use turnflow_engine::component::{
    BuildError, Encoding, Index, IndexDefinition, IndexError, Inventory, Models, Permitted,
};
use turnflow_engine::document::ContentHash;
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};
use turnflow_engine::record::Hit;

use crate::content::{Best, BlockReader, Encode, ROWS, Stored, dot, open, served, stored};
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
        open::<Vector, ()>(directory, Arc::new(Encoder(self.embedder.clone()))).boxed()
    }

    fn stored<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, Option<Inventory>> {
        stored::<Vector>(directory, self.embedder.dimension()).boxed()
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        Ok(served::<Vector, ()>(reader))
    }
}

struct Encoder(Arc<dyn Embedder>);

impl Encode<Vector> for Encoder {
    fn dimension(&self) -> usize {
        self.0.dimension()
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

    fn bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn numbers(&self) -> Encoding {
        Encoding { values: (0..).zip(self.iter().copied()).collect(), step: 0.0 }
    }
}

/// The index at an epoch.
pub(crate) type DenseReader = BlockReader<Vector, ()>;

/// For each query, the permitted passages whose vectors have the greatest inner product with it.
pub(super) fn search(reader: &DenseReader, queries: &[&Vector], top: usize, permitted: &Permitted) -> Vec<Vec<Hit>> {
    let mut all: Vec<Best<'_>> = queries.iter().map(|_| Best::new(top)).collect();
    if let Some(rows) = reader.permitted(permitted) {
        for (vector, chunk) in rows {
            queries.iter().zip(&mut all).for_each(|(query, best)| best.offer(dot(query, vector), chunk));
        }
        return all.into_iter().map(Best::into_hits).collect();
    }
    for rows in reader.blocks.iter().flat_map(|block| block.rows.chunks(ROWS)) {
        for (query, best) in queries.iter().zip(&mut all) {
            for (vector, chunk) in rows {
                best.offer(dot(query, vector), chunk);
            }
        }
    }
    all.into_iter().map(Best::into_hits).collect()
}

/// The vectors of some passages, from the index if it has them, else from the model.
pub(crate) async fn passage_vectors(
    reader: Option<&DenseReader>,
    embedder: &Arc<dyn Embedder>,
    hits: &[Hit],
) -> Result<Vec<Vector>, InferenceError> {
    let mut vectors: Vec<Option<Vector>> =
        hits.iter().map(|hit| reader.and_then(|reader| reader.encoding(&hit.chunk))).collect();
    let missing: Vec<usize> = (0..hits.len()).filter(|&at| vectors[at].is_none()).collect();
    let texts = missing.iter().map(|&at| hits[at].chunk.indexed_text()).collect();
    for (at, vector) in missing.into_iter().zip(embedder.embed(texts, Role::Passage, Priority::Turn).await?) {
        vectors[at] = Some(vector);
    }
    Ok(vectors.into_iter().flatten().collect())
}
