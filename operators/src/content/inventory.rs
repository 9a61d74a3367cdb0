//! The contents of an index by content, for comparison: as stored, and as served.

use std::any::Any;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use turnflow_engine::component::{Encoding, Encodings, IndexError, IntegrityError, Inventory, Passage, digest};
use turnflow_engine::document::{Chunk, ContentHash};
use turnflow_engine::wording::count;

use super::blocks::Derived;
use super::index::BlockReader;
use super::read::read;
use super::rows::Stored;
use super::store::dataset_path;

/// Encodings in memory.
struct InMemory<V>(HashMap<ContentHash, V>);

impl<V: Stored> Encodings for InMemory<V> {
    fn get(&self, hash: &ContentHash) -> Option<Encoding> {
        self.0.get(hash).map(Stored::numbers)
    }
}

/// Inventory of passages with their served encodings.
pub(crate) fn inventory<V: Stored>(rows: Vec<(V, &Arc<Chunk>)>) -> Inventory {
    let mut inventory = Inventory::default();
    let mut values = HashMap::new();
    for (value, chunk) in rows {
        let passage = Passage { hash: chunk.hash, words: None, chunk: Some(chunk.clone()) };
        let digest = digest(&value.bytes());
        if inventory.passages.insert(chunk.id.clone(), passage).is_some() {
            inventory
                .flaws
                .push(IntegrityError { place: chunk.id.to_string(), reason: "the passage is indexed twice".into() });
        }
        if inventory.encodings.insert(chunk.hash, digest).is_some_and(|other| other != digest) {
            let reason = "passages with equal content have different encodings".into();
            inventory.flaws.push(IntegrityError { place: chunk.id.to_string(), reason });
        }
        values.insert(chunk.hash, value);
    }
    inventory.values = Some(Arc::new(InMemory(values)));
    inventory
}

/// Inventory of what a reader serves.
pub(crate) fn served<V: Stored, D: Derived<V>>(reader: &Arc<dyn Any + Send + Sync>) -> Option<Inventory> {
    let reader = reader.clone().downcast::<BlockReader<V, D>>().ok()?;
    let rows = reader.blocks.iter().flat_map(|block| block.rows.iter());
    Some(inventory(rows.map(|(value, chunk)| (value.clone(), chunk)).collect()))
}

/// Inventory of what is stored in a directory, without repairing it.
pub(crate) async fn stored<V: Stored>(directory: &Path, dimension: usize) -> Option<Inventory> {
    let path = dataset_path(directory);
    let mut inventory = Inventory::default();
    if !path.exists() {
        return Some(inventory);
    }
    let (mut values, mut flaws) = (HashMap::new(), Vec::new());
    let mut row = |hash: ContentHash, value: V| {
        let new = digest(&value.bytes());
        if inventory.encodings.insert(hash, new).is_some_and(|old| old != new) {
            let reason = "the content is stored twice, with different encodings".into();
            flaws.push(IntegrityError { place: format!("content {hash}"), reason });
        }
        values.insert(hash, value);
    };
    let rows = |rows: Vec<(ContentHash, V)>| rows.into_iter().for_each(|(hash, value)| row(hash, value));
    let reason = match read(&path.to_string_lossy(), dimension, None, rows).await {
        Ok((_, 0)) => None,
        Ok((_, wrong)) => Some(format!("{} invalid", count(wrong, "row"))),
        Err(fault) => Some(IndexError::from(fault).to_string()),
    };
    flaws.extend(reason.map(|reason| IntegrityError { place: "vectors.lance".to_owned(), reason }));
    Some(Inventory { values: Some(Arc::new(InMemory(values))), flaws, ..inventory })
}
