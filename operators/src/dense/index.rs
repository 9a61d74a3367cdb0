//! The index: vectors by content, and blocks of passages to scan.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use turnflow_engine::component::{BuildError, Delta, Index, IndexDefinition, IndexError, Models, Prepare, Prepared};
use turnflow_engine::document::{Chunk, Content, ContentHash};
use turnflow_engine::inference::{Embedder, Role, Urgency, Vector};
use turnflow_engine::record::Hit;

use super::scan::{Best, dot};
use super::store::VectorStore;
use crate::models::embedder;

/// Passages in a block; an epoch copies the blocks that it changes.
const BLOCK: usize = 512;
/// Vectors of contents that are in no passage now are kept, for when they come back, up to
/// this many or as many as are in use.
const SPARE: usize = 4096;

/// What the index is.
pub(super) struct DenseDefinition {
    fingerprint: String,
    embedder: Arc<dyn Embedder>,
}

impl DenseDefinition {
    pub fn new(models: &Models, model: &str) -> Result<Self, BuildError> {
        let fingerprint = models.get(model).map(|model| model.fingerprint.clone()).unwrap_or_default();
        Ok(Self { fingerprint, embedder: embedder(models, model, "Dense")? })
    }
}

impl IndexDefinition for DenseDefinition {
    fn key(&self) -> String {
        format!("dense-{}", self.fingerprint.get(..16).unwrap_or(&self.fingerprint))
    }

    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>> {
        async move {
            let (store, stored) = VectorStore::open(directory, self.embedder.dimension()).await?;
            let vectors = Arc::new(Vectors {
                embedder: self.embedder.clone(),
                state: Mutex::new(VectorState { by_content: stored, unsaved: Vec::new() }),
            });
            let index = DenseIndex { vectors, store, blocks: Vec::new(), places: HashMap::new() };
            Ok(Box::new(index) as Box<dyn Index>)
        }
        .boxed()
    }
}

/// Vectors by content; the part that computes them is shared by the workers.
struct Vectors {
    embedder: Arc<dyn Embedder>,
    state: Mutex<VectorState>,
}

struct VectorState {
    by_content: HashMap<ContentHash, Vector>,
    unsaved: Vec<ContentHash>,
}

impl Prepare for Vectors {
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>> {
        async move {
            let mut new: BTreeMap<ContentHash, String> = BTreeMap::new();
            {
                let state = self.state.lock();
                for content in &contents {
                    if !state.by_content.contains_key(&content.hash) {
                        new.insert(content.hash, content.chunk.indexed_text());
                    }
                }
            }
            let (hashes, texts): (Vec<_>, Vec<_>) = new.into_iter().unzip();
            let embedded = texts.len();
            let vectors = self.embedder.embed(texts, Role::Passage, Urgency::Corpus).await?;
            let mut state = self.state.lock();
            for (hash, vector) in hashes.into_iter().zip(vectors) {
                if state.by_content.insert(hash, vector).is_none() {
                    state.unsaved.push(hash);
                }
            }
            Ok(Prepared { embedded })
        }
        .boxed()
    }
}

type Row = (Vector, Arc<Chunk>);

struct DenseIndex {
    vectors: Arc<Vectors>,
    store: VectorStore,
    blocks: Vec<Arc<Vec<Row>>>,
    /// Block and place in it of each passage.
    places: HashMap<Arc<str>, (usize, usize)>,
}

impl DenseIndex {
    /// The last row of all takes the place of the one that goes, so that blocks stay full.
    fn remove(&mut self, id: &str) {
        let Some((block, place)) = self.places.remove(id) else { return };
        let Some(last) = self.blocks.last_mut().and_then(|rows| Arc::make_mut(rows).pop()) else { return };
        if self.blocks.last().is_some_and(|rows| rows.is_empty()) {
            self.blocks.pop();
        }
        if *last.1.id != *id {
            self.places.insert(last.1.id.clone(), (block, place));
            Arc::make_mut(&mut self.blocks[block])[place] = last;
        }
    }

    fn add(&mut self, vector: Vector, chunk: Arc<Chunk>) {
        if self.blocks.last().is_none_or(|rows| rows.len() >= BLOCK) {
            self.blocks.push(Arc::new(Vec::with_capacity(BLOCK)));
        }
        let block = self.blocks.len() - 1;
        let rows = Arc::make_mut(&mut self.blocks[block]);
        self.places.insert(chunk.id.clone(), (block, rows.len()));
        rows.push((vector, chunk));
    }

    fn change(&mut self, delta: &Delta) {
        if delta.whole {
            self.blocks.clear();
            self.places.clear();
        }
        for chunk in &delta.removed {
            self.remove(&chunk.id);
        }
        for chunk in &delta.added {
            self.remove(&chunk.id);
            // A content that could not be embedded has no vector, and has been told of.
            let vector = self.vectors.state.lock().by_content.get(&chunk.hash).cloned();
            if let Some(vector) = vector {
                self.add(vector, chunk.clone());
            }
        }
    }

    /// Stores what is new; lets go of what has not been in use for long.
    async fn save(&mut self) -> Result<(), IndexError> {
        let (unsaved, count) = {
            let state = self.vectors.state.lock();
            let vector = |hash: &ContentHash| Some((*hash, state.by_content.get(hash)?.clone()));
            (state.unsaved.iter().filter_map(vector).collect::<Vec<_>>(), state.unsaved.len())
        };
        self.store.append(&unsaved).await?;
        // More may have come meanwhile; they are behind those that are saved.
        self.vectors.state.lock().unsaved.drain(..count);
        Ok(())
    }

    async fn let_go(&mut self) -> Result<(), IndexError> {
        // Passages are at least as many as contents, so this tells without looking at each.
        if self.vectors.state.lock().by_content.len() <= self.places.len() + SPARE.max(self.places.len()) {
            return Ok(());
        }
        let used: std::collections::HashSet<ContentHash> =
            self.blocks.iter().flat_map(|rows| rows.iter()).map(|(_, chunk)| chunk.hash).collect();
        let kept = {
            let mut state = self.vectors.state.lock();
            if state.by_content.len() - used.len().min(state.by_content.len()) <= SPARE.max(used.len()) {
                return Ok(());
            }
            // What is unsaved belongs to an epoch to come.
            let unsaved: std::collections::HashSet<ContentHash> = state.unsaved.iter().copied().collect();
            state.by_content.retain(|hash, _| used.contains(hash) || unsaved.contains(hash));
            let kept = state.by_content.iter().filter(|(hash, _)| !unsaved.contains(*hash));
            kept.map(|(hash, vector)| (*hash, vector.clone())).collect::<Vec<_>>()
        };
        self.store.replace(&kept).await
    }
}

impl Index for DenseIndex {
    fn preparation(&self) -> Option<Arc<dyn Prepare>> {
        Some(self.vectors.clone())
    }

    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        async move {
            let begun = std::time::Instant::now();
            self.save().await?;
            tracing::debug!(took = ?begun.elapsed(), "vectors are stored");
            self.change(delta);
            if !delta.removed.is_empty() || delta.whole {
                self.let_go().await?;
            }
            Ok(Arc::new(DenseReader { blocks: self.blocks.clone() }) as Arc<dyn Any + Send + Sync>)
        }
        .boxed()
    }
}

/// The index as of an epoch.
pub(super) struct DenseReader {
    blocks: Vec<Arc<Vec<Row>>>,
}

impl DenseReader {
    /// The passages whose vectors have the greatest inner product with this one.
    pub fn search(&self, query: &[f32], top: usize) -> Vec<Hit> {
        let mut best = Best::new(top);
        for (vector, chunk) in self.blocks.iter().flat_map(|rows| rows.iter()) {
            best.offer(dot(query, vector), chunk);
        }
        best.into_sorted().map(|(score, chunk)| Hit { chunk: chunk.clone(), score }).collect()
    }
}
