//! The answer cache: answers that no change of the corpora has reached, by what was asked.
//!
//! A turn that asks the same gets the values that the pipeline's last nodes had then, and no operator is called. Each
//! worker watches what the answers that it has added depend on, and takes out those that a change reaches
//! (`standing/mod.rs`). An answer counts only while its worker has looked at every change up to the epoch of the new turn.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::LruCache;
use parking_lot::Mutex;
use serde::Serialize;

use crate::document::Chunk;
use crate::record::{Answer, Hit, Hits, Turn, Value};

/// What decides an answer, as a hash.
pub type AnswerKey = [u8; 16];

/// The values of the nodes before a pipeline's sinks, with their warnings.
pub struct FinalValues {
    by_node: HashMap<usize, (Value, Arc<[String]>)>,
    /// The epoch at which they were computed.
    pub epoch: u64,
}

impl FinalValues {
    /// `values`: of the nodes that count. Their texts are copied, so that no file of an old epoch is kept for them.
    pub fn new(values: Vec<(usize, Value, Arc<[String]>)>, epoch: u64) -> Self {
        let by_node = values.into_iter().map(|(node, value, warnings)| (node, (on_heap(value), warnings)));
        Self { by_node: by_node.collect(), epoch }
    }

    /// The value of a node; of the others, which nobody reads, the turn itself.
    pub fn at(&self, node: usize) -> (Value, Arc<[String]>) {
        self.by_node.get(&node).cloned().unwrap_or((Value::Turn, Arc::default()))
    }
}

fn on_heap(value: Value) -> Value {
    let copies = |hits: &[Hit]| -> Vec<Hit> {
        let copy = |hit: &Hit| {
            let chunk = Chunk { text: hit.chunk.text.on_heap(), ..Chunk::clone(&hit.chunk) };
            Hit { chunk: Arc::new(chunk), score: hit.score }
        };
        hits.iter().map(copy).collect()
    };
    match value {
        Value::Hits(hits) => Value::Hits(Arc::new(Hits { query: hits.query.clone(), hits: copies(&hits.hits) })),
        Value::Answer(answer) => {
            Value::Answer(Arc::new(Answer { hits: copies(&answer.hits), ..Answer::clone(&answer) }))
        }
        other => other,
    }
}

/// What the answer cache has, and how it was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CachedAnswers {
    /// The answers in it.
    pub answers: usize,
    /// Turns whose answers were in it.
    pub hits: u64,
    /// Turns whose answers were not.
    pub misses: u64,
    /// The epoch up to which every worker has looked at the changes. Answers of a worker that is behind are misses.
    pub looked_at: u64,
}

/// The answers of all workers.
#[derive(Default)]
pub struct AnswerCache {
    state: Mutex<State>,
    hits: AtomicU64,
    misses: AtomicU64,
}

struct State {
    answers: LruCache<AnswerKey, Cached>,
    /// Up to which epoch a worker has looked at the changes.
    seen: BTreeMap<usize, u64>,
    /// Answers that were pushed out, by the worker that still watches them.
    gone: BTreeMap<usize, Vec<Place>>,
    /// The number of the next answer.
    next: u64,
}

/// An answer in the cache: its key, and its number, since a key may have another answer later.
pub type Place = (AnswerKey, u64);

struct Cached {
    worker: usize,
    number: u64,
    values: Arc<FinalValues>,
}

impl Default for State {
    fn default() -> Self {
        Self { answers: LruCache::unbounded(), seen: BTreeMap::new(), gone: BTreeMap::new(), next: 0 }
    }
}

impl AnswerCache {
    /// The hash of what decides an answer: the family of plans, the question, its history, and everything that its record says
    /// besides, with the principal and the filter. The conversation and the time do not count.
    pub fn key(family: u64, turn: &Turn) -> AnswerKey {
        let mut hasher = blake3::Hasher::new();
        let mut add = |part: &[u8]| {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        };
        add(&family.to_le_bytes());
        add(turn.source.as_bytes());
        add(turn.text.as_bytes());
        add(&(turn.history.len() as u64).to_le_bytes());
        for said in &turn.history {
            add(format!("{:?}", said.speaker).as_bytes());
            add(said.text.as_bytes());
        }
        add(turn.collection.as_deref().map_or(String::new(), |name| format!("+{name}")).as_bytes());
        add(turn.filter.as_ref().map_or(String::new(), |filter| format!("{filter:?}")).as_bytes());
        let mut extra: Vec<_> = turn.extra.iter().collect();
        extra.sort_by_key(|(name, _)| *name);
        for (name, value) in extra {
            add(name.as_bytes());
            add(value.to_string().as_bytes());
        }
        let mut key = AnswerKey::default();
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        key
    }

    /// An answer that holds at this epoch.
    pub fn find(&self, key: &AnswerKey, epoch: u64) -> Option<Arc<FinalValues>> {
        let mut state = self.state.lock();
        let State { answers, seen, .. } = &mut *state;
        let holds = |cached: &&Cached| {
            cached.values.epoch == epoch || seen.get(&cached.worker).is_some_and(|seen| *seen == epoch)
        };
        let found = answers.get(key).filter(holds).map(|cached| cached.values.clone());
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Adds an answer that a worker watches; returns its number. At most `most` are kept; those that were not used for
    /// longest go first.
    pub fn put(&self, key: AnswerKey, worker: usize, values: FinalValues, most: NonZeroUsize) -> u64 {
        let mut state = self.state.lock();
        let State { answers, gone, next, .. } = &mut *state;
        *next += 1;
        let number = *next;
        if let Some(former) = answers.put(key, Cached { worker, number, values: Arc::new(values) }) {
            gone.entry(former.worker).or_default().push((key, former.number));
        }
        while answers.len() > most.get() {
            let Some((key, cached)) = answers.pop_lru() else { break };
            gone.entry(cached.worker).or_default().push((key, cached.number));
        }
        number
    }

    /// Takes out answers. The same may have been answered again since.
    pub fn remove<'a>(&self, places: impl Iterator<Item = &'a Place>) {
        let mut state = self.state.lock();
        for (key, number) in places {
            if state.answers.peek(key).is_some_and(|cached| cached.number == *number) {
                state.answers.pop(key);
            }
        }
    }

    /// A worker has looked at all changes up to this epoch, and has taken out what they reach.
    pub fn has_seen(&self, worker: usize, epoch: u64) {
        self.state.lock().seen.insert(worker, epoch);
    }

    /// The answers that a worker need not watch any more.
    pub fn gone(&self, worker: usize) -> Vec<Place> {
        self.state.lock().gone.remove(&worker).unwrap_or_default()
    }

    /// What it has, and how it was used.
    pub fn counts(&self) -> CachedAnswers {
        let (answers, looked_at) = {
            let state = self.state.lock();
            (state.answers.len(), state.seen.values().min().copied().unwrap_or_default())
        };
        CachedAnswers {
            answers,
            looked_at,
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }
}
