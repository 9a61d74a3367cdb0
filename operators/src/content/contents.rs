//! Encodings by content, and their computation: once for each content, shared by the workers.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use turnflow_engine::component::{Elsewhere, IndexError, Prepare, Prepared};
use turnflow_engine::document::{Chunk, Content, ContentHash};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::keyed::{Key, Keyed};
use turnflow_engine::panics::caught_async;

use super::claims::Claims;
use super::rows::Stored;
use crate::cores::on_all_cores;

/// Fewer passages are not worth a thread that looks up their encodings.
pub(super) const WORTH: usize = 4096;

/// Encodes passage texts for a corpus's index.
pub(crate) trait Encode<V>: Send + Sync {
    /// The model's dimension, which determines the type of the stored column.
    fn dimension(&self) -> usize;
    /// Whether a server computes them.
    fn is_remote(&self) -> bool {
        false
    }
    /// One encoding for each text, in order.
    fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<V>, InferenceError>>;
}

/// Encodings by content. The workers share the part that computes them.
pub(super) struct Contents<V> {
    encoder: Arc<dyn Encode<V>>,
    pub state: Mutex<State<V>>,
    /// What operators keep with the index, by key.
    pub attached: Mutex<HashMap<String, Arc<dyn Any + Send + Sync>>>,
    /// The other processes of a cluster, which may have encodings.
    elsewhere: OnceLock<Arc<dyn Elsewhere>>,
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
    /// Contents whose model is away. They fail no publication either.
    pub waiting: HashSet<ContentHash>,
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
    pub fn new(encoder: Arc<dyn Encode<V>>, stored: Vec<(ContentHash, V)>) -> Self {
        let by_content = Keyed::of(stored.into_iter().map(|(hash, value)| Encoded { hash, value }).collect());
        let state = State {
            by_content,
            unsaved: Vec::new(),
            claims: Claims::default(),
            refused: HashSet::new(),
            waiting: HashSet::new(),
        };
        let (attached, elsewhere) = (Mutex::default(), OnceLock::new());
        Self { encoder, state: Mutex::new(state), attached, elsewhere }
    }

    /// The dimension of the encodings.
    pub fn dimension(&self) -> usize {
        self.encoder.dimension()
    }

    /// The encodings of passages. Many are looked up on all cores.
    pub fn of(&self, chunks: &[Arc<Chunk>]) -> Vec<Option<V>> {
        let by_content = &self.state.lock().by_content;
        on_all_cores(chunks, WORTH, |chunk| by_content.get(&chunk.hash).map(|of| of.value.clone()))
    }

    /// The encodings of contents, as bytes.
    pub fn bytes_of(&self, hashes: &[ContentHash]) -> Vec<Option<Vec<u8>>> {
        let state = self.state.lock();
        hashes.iter().map(|hash| state.by_content.get(hash).map(|of| of.value.bytes())).collect()
    }

    /// Adds encodings that were made elsewhere. Returns how many of them are new.
    pub fn add(&self, mut encodings: Vec<(ContentHash, V)>) -> usize {
        encodings.retain(|(hash, _)| !self.state.lock().by_content.has(hash));
        let mut state = self.state.lock();
        let mut added = 0;
        for (hash, value) in encodings {
            if state.by_content.insert(Encoded { hash, value }).is_none() {
                state.unsaved.push(hash);
                added += 1;
            }
        }
        added
    }

    /// Uses these encodings in place of equal ones, which are elsewhere in memory.
    pub fn place(&self, encodings: Vec<(ContentHash, V)>) {
        let mut state = self.state.lock();
        for (hash, value) in encodings {
            if state.by_content.has(&hash) {
                state.by_content.insert(Encoded { hash, value });
            }
        }
    }

    /// Adds the encodings that other processes have of these contents.
    async fn fetch(&self, hashes: &[ContentHash]) {
        let Some(elsewhere) = self.elsewhere.get().filter(|_| !hashes.is_empty()) else { return };
        let Ok(question) = bincode::serialize(hashes) else { return };
        for answer in elsewhere.ask(question).await {
            // Another version of the program may answer something else.
            let Ok(found) = bincode::deserialize::<Vec<Option<Vec<u8>>>>(&answer) else { continue };
            let found = hashes.iter().zip(found);
            self.add(
                found.filter_map(|(hash, bytes)| Some((*hash, V::of_bytes(&bytes?, self.dimension())?))).collect(),
            );
        }
    }

    /// Encodes the contents that have no encoding yet, and claims all of them. Returns how many the model encoded.
    pub async fn encode(self: &Arc<Self>, contents: &[Content]) -> Result<usize, IndexError> {
        let mut preparation = Preparation::begin(self, contents.iter().map(Content::hash).collect());
        if self.elsewhere.get().is_some() {
            let missing: Vec<ContentHash> = {
                let state = self.state.lock();
                contents.iter().map(Content::hash).filter(|hash| !state.by_content.has(hash)).collect()
            };
            self.fetch(&missing).await;
        }
        let new: BTreeMap<ContentHash, String> = {
            let state = self.state.lock();
            let new = contents.iter().filter(|content| !state.by_content.has(&content.hash()));
            new.map(|content| (content.hash(), content.chunk.indexed_text())).collect()
        };
        let (hashes, texts): (Vec<_>, Vec<_>) = new.into_iter().unzip();
        let embedded = texts.len();
        let vectors = caught_async(|| self.encoder.encode(texts)).await??;
        self.add(hashes.into_iter().zip(vectors).collect());
        preparation.done = true;
        Ok(embedded)
    }

    /// Whether a passage's content waits for its model.
    pub fn waits(&self, chunk: &Chunk) -> bool {
        self.state.lock().waiting.contains(&chunk.hash)
    }

    /// Contents of these passages that have no encoding, no dead letter, and no model to wait for.
    pub fn missing(&self, chunks: &[Arc<Chunk>]) -> Vec<Content> {
        let state = self.state.lock();
        let known = |hash: &ContentHash| {
            state.by_content.has(hash) || state.refused.contains(hash) || state.waiting.contains(hash)
        };
        let known = on_all_cores(chunks, WORTH, |chunk| known(&chunk.hash));
        let missing = chunks.iter().zip(known).filter(|(_, known)| !known);
        let missing: BTreeMap<_, _> = missing.map(|(chunk, _)| (chunk.hash, chunk)).collect();
        missing.into_values().map(|chunk| Content { chunk: chunk.clone() }).collect()
    }
}

impl<V: Stored> Prepare for Contents<V> {
    fn set_aside(&self, contents: &[Content]) {
        self.state.lock().waiting.extend(contents.iter().map(Content::hash));
    }

    fn lacking(&self, contents: &[Content]) -> Vec<Content> {
        let by_content = &self.state.lock().by_content;
        contents.iter().filter(|content| !by_content.has(&content.hash())).cloned().collect()
    }

    fn asks_a_server(&self) -> bool {
        self.encoder.is_remote()
    }

    fn probe(&self) -> BoxFuture<'static, Result<(), IndexError>> {
        // A cache has no answer to it.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let answer = self.encoder.encode(vec![format!("Is the model there at {}?", now.as_nanos())]);
        async move { Ok(answer.await.map(drop)?) }.boxed()
    }

    fn ask_elsewhere(&self, elsewhere: Arc<dyn Elsewhere>) {
        let _ = self.elsewhere.set(elsewhere);
    }

    fn prepared(&self, question: Vec<u8>) -> Vec<u8> {
        let hashes: Vec<ContentHash> = bincode::deserialize(&question).unwrap_or_default();
        bincode::serialize(&self.bytes_of(&hashes)).unwrap_or_default()
    }

    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>> {
        async move {
            let encoded = self.encode(&contents).await;
            let mut state = self.state.lock();
            match (&encoded, &contents[..]) {
                (Ok(_), contents) => {
                    for content in contents {
                        state.refused.remove(&content.hash());
                        state.waiting.remove(&content.hash());
                    }
                }
                (Err(error), _) if error.is_outage() => {}
                // The last attempt at a content has only that content.
                (Err(_), [content]) => {
                    state.refused.insert(content.hash());
                    state.waiting.remove(&content.hash());
                }
                (Err(_), _) => {}
            }
            Ok(Prepared { embedded: encoded? })
        }
        .boxed()
    }
}
