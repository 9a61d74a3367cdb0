//! Vectors in Lance, by the hash of what they stand for: one commit an epoch, and only
//! appends, so that nothing has to be matched or rewritten when a passage changes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{FixedSizeBinaryBuilder, FixedSizeListBuilder, Float32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, RecordBatch, RecordBatchIterator};
use arrow_schema::{DataType, Field, Schema};
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::optimize::{CompactionOptions, compact_files};
use lance::dataset::{WriteMode, WriteParams};
use turnflow_engine::component::IndexError;
use turnflow_engine::document::ContentHash;
use turnflow_engine::inference::Vector;

/// After this many appends, their small files are made one and old versions are dropped.
const APPENDS_A_COMPACTION: usize = 64;

/// A dataset of vectors of one dimension, or nothing where nothing is to be kept.
pub(super) struct VectorStore {
    uri: Option<String>,
    dataset: Option<Dataset>,
    schema: Arc<Schema>,
    dimension: i32,
    appends: usize,
}

fn failed(action: &'static str) -> impl Fn(lance::Error) -> IndexError {
    move |error| IndexError::Store { store: "Lance", action, reason: error.to_string() }
}

fn arrow(error: impl std::fmt::Display) -> IndexError {
    IndexError::Store { store: "Lance", action: "build a batch", reason: error.to_string() }
}

impl VectorStore {
    /// Opens the dataset and reads all of it.
    pub async fn open(
        directory: Option<&Path>,
        dimension: usize,
    ) -> Result<(Self, HashMap<ContentHash, Vector>), IndexError> {
        let dimension = dimension as i32;
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let schema = Arc::new(Schema::new(vec![
            Field::new("hash", DataType::FixedSizeBinary(32), false),
            Field::new("vector", DataType::FixedSizeList(item, dimension), false),
        ]));
        let path = directory.map(|directory| directory.join("vectors.lance"));
        let mut store = Self { uri: None, dataset: None, schema, dimension, appends: 0 };
        let mut vectors = HashMap::new();
        let Some(path) = path else { return Ok((store, vectors)) };
        let uri = path.to_string_lossy().into_owned();
        if path.exists() {
            match store.load(&uri, &mut vectors).await {
                Ok(dataset) => store.dataset = Some(dataset),
                // What cannot be read is computed again; the corpus has everything.
                Err(error) => {
                    tracing::warn!(%error, %uri, "stored vectors cannot be read and are computed anew");
                    vectors.clear();
                    std::fs::remove_dir_all(&path).map_err(|source| IndexError::Io {
                        action: "clear",
                        path: path.clone(),
                        source,
                    })?;
                }
            }
        }
        store.uri = Some(uri);
        Ok((store, vectors))
    }

    async fn load(&self, uri: &str, vectors: &mut HashMap<ContentHash, Vector>) -> Result<Dataset, IndexError> {
        let dataset = Dataset::open(uri).await.map_err(failed("open the dataset"))?;
        let mut batches = dataset.scan().try_into_stream().await.map_err(failed("scan"))?;
        while let Some(batch) = batches.try_next().await.map_err(failed("scan"))? {
            let column = |name| batch.column_by_name(name).ok_or_else(|| arrow(format!("there is no column `{name}`")));
            let (hashes, lists) = (column("hash")?.clone(), column("vector")?.clone());
            let hashes = hashes.as_fixed_size_binary_opt().ok_or_else(|| arrow("`hash` has another type"))?;
            let lists = lists.as_fixed_size_list_opt().ok_or_else(|| arrow("`vector` has another type"))?;
            if lists.value_length() != self.dimension {
                return Err(arrow(format!("vectors have length {}, not {}", lists.value_length(), self.dimension)));
            }
            let values = lists.values().as_primitive_opt::<Float32Type>().ok_or_else(|| arrow("no float32"))?;
            for row in 0..batch.num_rows() {
                if let Ok(hash) = <[u8; 32]>::try_from(hashes.value(row)) {
                    let start = row * self.dimension as usize;
                    let vector = &values.values()[start..start + self.dimension as usize];
                    vectors.insert(ContentHash(hash), vector.into());
                }
            }
        }
        Ok(dataset)
    }

    /// Adds vectors, as one commit.
    pub async fn append(&mut self, vectors: &[(ContentHash, Vector)]) -> Result<(), IndexError> {
        if vectors.is_empty() {
            return Ok(());
        }
        self.write(vectors, WriteMode::Append).await?;
        self.appends += 1;
        if self.appends >= APPENDS_A_COMPACTION {
            self.appends = 0;
            self.compact().await;
        }
        Ok(())
    }

    /// Keeps these vectors and no others.
    pub async fn replace(&mut self, vectors: &[(ContentHash, Vector)]) -> Result<(), IndexError> {
        self.write(vectors, WriteMode::Overwrite).await?;
        self.compact().await;
        Ok(())
    }

    async fn write(&mut self, vectors: &[(ContentHash, Vector)], mode: WriteMode) -> Result<(), IndexError> {
        let Some(uri) = self.uri.clone() else { return Ok(()) };
        let mut hashes = FixedSizeBinaryBuilder::new(32);
        let mut lists = FixedSizeListBuilder::new(Float32Builder::new(), self.dimension);
        for (hash, vector) in vectors {
            hashes.append_value(hash.0).map_err(arrow)?;
            lists.values().append_slice(vector);
            lists.append(true);
        }
        let columns: Vec<Arc<dyn Array>> = vec![Arc::new(hashes.finish()), Arc::new(lists.finish())];
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(arrow)?;
        let batches = RecordBatchIterator::new([Ok(batch)], self.schema.clone());
        match &mut self.dataset {
            Some(dataset) if matches!(mode, WriteMode::Append) => {
                dataset.append(batches, None).await.map_err(failed("append vectors"))?;
            }
            _ => {
                let mode = if self.dataset.is_some() { mode } else { WriteMode::Create };
                let parameters = WriteParams { mode, ..WriteParams::default() };
                let written = Dataset::write(batches, uri.as_str(), Some(parameters)).await;
                self.dataset = Some(written.map_err(failed("write vectors"))?);
            }
        }
        Ok(())
    }

    /// Makes one file of many and drops versions that nobody reads. A failure costs space,
    /// not correctness, so it is told and left at that.
    async fn compact(&mut self) {
        let Some(dataset) = &mut self.dataset else { return };
        let compacted = compact_files(dataset, CompactionOptions::default(), None).await;
        // This process is the only reader, and has read the newest.
        let cleaned = dataset.cleanup_old_versions(chrono::TimeDelta::zero(), Some(true), None).await;
        if let Some(error) = compacted.err().or(cleaned.err()) {
            tracing::warn!(%error, "stored vectors could not be compacted");
        }
    }
}
