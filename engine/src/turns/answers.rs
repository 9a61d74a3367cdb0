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
use serde_json::{Map, Value as Json};

use super::similar::{Similar, words};
use crate::ask::AskRequest;
use crate::document::Chunk;
use crate::filter::Filter;
use crate::record::{Answer, Hit, Hits, Turn, Utterance, Value};

/// Maximum number of questions with the same words that one is compared with; the newest count.
const MOST_ALIKE: usize = 16;

/// What decides an answer, as a hash.
pub type AnswerKey = [u8; 16];

/// An answered question that is nearly the one of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Alike {
    /// The words of both.
    pub words: AnswerKey,
    /// What decides its answer.
    pub key: AnswerKey,
}

/// The values of the nodes before a pipeline's sinks, with their warnings.
pub struct FinalValues {
    by_node: HashMap<usize, (Value, Arc<[String]>)>,
    /// The epoch at which they were computed.
    pub epoch: u64,
    /// The question, and what decides whether another one is compared with it; `None` if none is.
    question: Option<(AnswerKey, Arc<str>)>,
}

impl FinalValues {
    /// `values`: of the nodes that count. Their texts are copied, so that no file of an old epoch is kept for them.
    pub fn new(
        values: Vec<(usize, Value, Arc<[String]>)>,
        epoch: u64,
        question: Option<(AnswerKey, Arc<str>)>,
    ) -> Self {
        let by_node = values.into_iter().map(|(node, value, warnings)| (node, (on_heap(value), warnings)));
        Self { by_node: by_node.collect(), epoch, question }
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

/// What decides an answer beside the question's text.
struct Question<'a> {
    source: &'a str,
    history: &'a [Utterance],
    collection: Option<&'a Arc<str>>,
    filter: Option<&'a Arc<Filter>>,
    extra: &'a Map<String, Json>,
}

impl<'a> Question<'a> {
    fn of(turn: &'a Turn) -> Self {
        let Turn { source, history, collection, filter, extra, .. } = turn;
        Self { source, history, collection: collection.as_ref(), filter: filter.as_ref(), extra }
    }

    fn words_key(&self, family: u64, text: &str) -> Option<AnswerKey> {
        let words = Some(words(text)).filter(|words| self.history.is_empty() && !words.is_empty())?;
        Some(self.key(family, &format!("words\n{words}")))
    }

    fn key(&self, family: u64, text: &str) -> AnswerKey {
        let mut hasher = blake3::Hasher::new();
        let mut add = |part: &[u8]| {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        };
        add(&family.to_le_bytes());
        add(self.source.as_bytes());
        add(text.as_bytes());
        add(&(self.history.len() as u64).to_le_bytes());
        for said in self.history {
            add(format!("{:?}", said.speaker).as_bytes());
            add(said.text.as_bytes());
        }
        add(self.collection.map_or(String::new(), |name| format!("+{name}")).as_bytes());
        add(self.filter.map_or(String::new(), |filter| format!("{filter:?}")).as_bytes());
        let mut extra: Vec<_> = self.extra.iter().collect();
        extra.sort_by_key(|(name, _)| *name);
        for (name, value) in extra {
            add(name.as_bytes());
            add(value.to_string().as_bytes());
        }
        let mut key = AnswerKey::default();
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        key
    }
}

/// What the answer cache has, and how it was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CachedAnswers {
    /// The answers in it.
    pub answers: usize,
    /// Turns whose answers were in it.
    pub hits: u64,
    /// Those of them that got the answer of a question that is nearly the same.
    pub similar: u64,
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
    similar: AtomicU64,
    misses: AtomicU64,
}

struct State {
    answers: LruCache<AnswerKey, Cached>,
    /// The answers whose questions have the same words that count, by these.
    alike: HashMap<AnswerKey, Vec<AnswerKey>>,
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
        Self {
            answers: LruCache::unbounded(),
            alike: HashMap::new(),
            seen: BTreeMap::new(),
            gone: BTreeMap::new(),
            next: 0,
        }
    }
}

impl State {
    /// Forgets that questions were compared with that of an answer.
    fn forget(&mut self, key: &AnswerKey, gone: &FinalValues) {
        let Some((words, _)) = &gone.question else { return };
        if let Some(alike) = self.alike.get_mut(words) {
            alike.retain(|known| known != key);
            if alike.is_empty() {
                self.alike.remove(words);
            }
        }
    }
}

impl AnswerCache {
    /// The hash of what decides an answer: the family of plans, the question, its history, and everything that its record says
    /// besides, with the principal and the filter. The conversation and the time do not count.
    pub fn key(family: u64, turn: &Turn) -> AnswerKey {
        Question::of(turn).key(family, &turn.text)
    }

    /// The same for all first questions whose words that count are equal; `None` if there is a history.
    pub fn words_key(family: u64, turn: &Turn) -> Option<AnswerKey> {
        Question::of(turn).words_key(family, &turn.text)
    }

    /// An answered question that is nearly that of a caller, by its vector.
    pub async fn nearest(&self, family: u64, source: &str, request: &AskRequest, by: &Similar) -> Option<Alike> {
        let AskRequest { text, history, collection, filter, extra, .. } = request;
        let question = Question { source, history, collection: collection.as_ref(), filter: filter.as_ref(), extra };
        let words = question.words_key(family, text)?;
        let alike = self.alike(&words);
        // The same question needs no comparison.
        if alike.is_empty() || alike.iter().any(|(_, other)| other == text) {
            return None;
        }
        let (keys, texts): (Vec<AnswerKey>, Vec<Arc<str>>) = alike.into_iter().unzip();
        let nearest = by.nearest(text, &texts).await?;
        Some(Alike { words, key: keys[nearest] })
    }
    /// The questions with these words that have answers.
    pub fn alike(&self, words: &AnswerKey) -> Vec<(AnswerKey, Arc<str>)> {
        let state = self.state.lock();
        let question = |key: &AnswerKey| Some((*key, state.answers.peek(key)?.values.question.as_ref()?.1.clone()));
        state.alike.get(words).into_iter().flatten().rev().take(MOST_ALIKE).filter_map(question).collect()
    }

    /// The answer of a question that is nearly the same, and the question; both hold at this epoch.
    pub fn find_similar(&self, key: &AnswerKey, epoch: u64) -> Option<(Arc<FinalValues>, Arc<str>)> {
        let found = self.holding(key, epoch)?;
        let question = found.question.as_ref()?.1.clone();
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.similar.fetch_add(1, Ordering::Relaxed);
        self.misses.fetch_sub(1, Ordering::Relaxed);
        Some((found, question))
    }

    /// An answer that holds at this epoch.
    pub fn find(&self, key: &AnswerKey, epoch: u64) -> Option<Arc<FinalValues>> {
        let found = self.holding(key, epoch);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    fn holding(&self, key: &AnswerKey, epoch: u64) -> Option<Arc<FinalValues>> {
        let mut state = self.state.lock();
        let State { answers, seen, .. } = &mut *state;
        let holds = |cached: &&Cached| {
            cached.values.epoch == epoch || seen.get(&cached.worker).is_some_and(|seen| *seen == epoch)
        };
        answers.get(key).filter(holds).map(|cached| cached.values.clone())
    }

    /// Adds an answer that a worker watches; returns its number. At most `most` are kept; those that were not used for
    /// longest go first.
    pub fn put(&self, key: AnswerKey, worker: usize, values: FinalValues, most: NonZeroUsize) -> u64 {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.next += 1;
        let number = state.next;
        let words = values.question.as_ref().map(|(words, _)| *words);
        if let Some(former) = state.answers.put(key, Cached { worker, number, values: Arc::new(values) }) {
            state.forget(&key, &former.values);
            state.gone.entry(former.worker).or_default().push((key, former.number));
        }
        if let Some(words) = words {
            state.alike.entry(words).or_default().push(key);
        }
        while state.answers.len() > most.get() {
            let Some((key, cached)) = state.answers.pop_lru() else { break };
            state.forget(&key, &cached.values);
            state.gone.entry(cached.worker).or_default().push((key, cached.number));
        }
        number
    }

    /// Takes out answers. The same may have been answered again since.
    pub fn remove<'a>(&self, places: impl Iterator<Item = &'a Place>) {
        let mut state = self.state.lock();
        for (key, number) in places {
            if state.answers.peek(key).is_some_and(|cached| cached.number == *number)
                && let Some(cached) = state.answers.pop(key)
            {
                state.forget(key, &cached.values);
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
            similar: self.similar.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }
}
