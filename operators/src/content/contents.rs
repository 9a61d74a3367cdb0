//! Encodings by content, and their computation: once for each content, shared by the workers.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use turnflow_engine::component::{IndexError, Prepare, Prepared};
use turnflow_engine::document::{Chunk, Content, ContentHash};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::keyed::{Key, Keyed};
use turnflow_engine::mapped::MappedFiles;
use turnflow_engine::panics::caught_async;

use super::claims::Claims;
use super::rows::Stored;

/// Number of new encodings from which on they are kept in mapped files.
const MANY: usize = 32;

/// Encodes passage texts for a corpus's index.
pub(crate) trait Encode<V>: Send + Sync {
    /// The model's dimension, which determines the type of the stored column.
    fn dimension(&self) -> usize;
    /// One encoding for each text, in order.
    fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<V>, InferenceError>>;
}

/// Encodings by content. The workers share the part that computes them.
pub(super) struct Contents<V> {
    encoder: Arc<dyn Encode<V>>,
    /// Where encodings are kept; `None`: on the heap.
    pub files: Option<Arc<MappedFiles>>,
    pub state: Mutex<State<V>>,
    /// What operators keep with the index, by key.
    pub attached: Mutex<HashMap<String, Arc<dyn Any + Send + Sync>>>,
}

/// The encoding of a content.
#[derive(Clone)]
pub(super) struct Encoded<V> {
    pub hash: ContentHash,
    pub value: V,
}

impl<V> Key for Encoded<V> {
    type Of = ContentHash;

    fn key(&self) -> &ContentHash {
        &self.hash
    }
}

pub(super) struct State<V> {
    pub by_content: Keyed<Encoded<V>>,
    pub unsaved: Vec<ContentHash>,
    /// Claimed encodings must not be removed.
    pub claims: Claims,
    /// Contents that could not be encoded alone and became dead letters. They stay here as long as the dead letter
    /// does, so that they fail no publication.
    refused: HashSet<ContentHash>,
}

/// A running preparation. Dropping it ends its claims, however it ends.
struct Preparation<V> {
    contents: Arc<Contents<V>>,
    hashes: Vec<ContentHash>,
    done: bool,
}

impl<V> Preparation<V> {
    fn begin(contents: &Arc<Contents<V>>, hashes: Vec<ContentHash>) -> Self {
        contents.state.lock().claims.begin(&hashes);
        Self { contents: contents.clone(), hashes, done: false }
    }
}

impl<V> Drop for Preparation<V> {
    fn drop(&mut self) {
        self.contents.state.lock().claims.end(&self.hashes, self.done);
    }
}

impl<V: Stored> Contents<V> {
    /// Starts with the stored encodings.
    pub fn new(encoder: Arc<dyn Encode<V>>, stored: HashMap<ContentHash, V>, files: Option<Arc<MappedFiles>>) -> Self {
        let mut by_content = Keyed::default();
        stored.into_iter().for_each(|(hash, value)| drop(by_content.insert(Encoded { hash, value })));
        let state = State { by_content, unsaved: Vec::new(), claims: Claims::default(), refused: HashSet::new() };
        Self { encoder, files, state: Mutex::new(state), attached: Mutex::default() }
    }

    /// Encodes the contents that have no encoding yet, and claims all of them. Returns how many the model encoded.
    pub async fn encode(self: &Arc<Self>, contents: &[Content]) -> Result<usize, IndexError> {
        let mut preparation = Preparation::begin(self, contents.iter().map(Content::hash).collect());
        let new: BTreeMap<ContentHash, String> = {
            let state = self.state.lock();
            let new = contents.iter().filter(|content| !state.by_content.has(&content.hash()));
            new.map(|content| (content.hash(), content.chunk.indexed_text())).collect()
        };
        let (hashes, texts): (Vec<_>, Vec<_>) = new.into_iter().unzip();
        let embedded = texts.len();
        let mut vectors = caught_async(|| self.encoder.encode(texts)).await??;
        // A few stay on the heap: each could keep a file in which all others are gone.
        if let Some(files) = self.files.as_deref().filter(|_| vectors.len() >= MANY) {
            V::map_all(vectors.iter_mut(), files);
        }
        let vectors = hashes.into_iter().zip(vectors).map(|(hash, value)| Encoded { hash, value });
        {
            let mut state = self.state.lock();
            for vector in vectors {
                let hash = vector.hash;
                if state.by_content.insert(vector).is_none() {
                    state.unsaved.push(hash);
                }
            }
        }
        preparation.done = true;
        Ok(embedded)
    }

    /// Contents of these passages that have no encoding and no dead letter.
    pub fn missing(&self, chunks: &[Arc<Chunk>]) -> Vec<Content> {
        let state = self.state.lock();
        let known = |hash| state.by_content.has(hash) || state.refused.contains(hash);
        let missing: BTreeMap<_, _> =
            chunks.iter().filter(|chunk| !known(&chunk.hash)).map(|chunk| (chunk.hash, chunk)).collect();
        missing.into_values().map(|chunk| Content { chunk: chunk.clone() }).collect()
    }
}

impl<V: Stored> Prepare for Contents<V> {
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>> {
        async move {
            let encoded = self.encode(&contents).await;
            let mut state = self.state.lock();
            match (&encoded, &contents[..]) {
                (Ok(_), contents) => {
                    for content in contents {
                        state.refused.remove(&content.hash());
                    }
                }
                // The last attempt at a content has only that content.
                (Err(_), [content]) => {
                    state.refused.insert(content.hash());
                }
                (Err(_), _) => {}
            }
            Ok(Prepared { embedded: encoded? })
        }
        .boxed()
    }
}
