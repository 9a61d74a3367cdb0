//! The parts of a corpus in the other processes: their preparation for an epoch, and what they are asked.
//!
//! The first process numbers what it asks the others to prepare. Such a *version* of a part is kept until the first
//! process has dropped the snapshot that names it, so that a turn finds in every process what its epoch has.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::peers::{Bytes, Peers, decode, encode};
use crate::component::{ComponentError, CorpusSnapshot, Elsewhere, IndexDefinition, IndexError, OperatorError};
use crate::compute::apart_within;
use crate::corpus::Preparations;
use crate::filter::{Condition, Filter};
use crate::record::Turn;
use crate::wake::WakeSlot;

/// Which passages a turn may find, for a process that does not know the turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restriction {
    /// The groups of the turn's principal.
    pub(crate) groups: Vec<Arc<str>>,
    pub(crate) condition: Option<Condition>,
}

impl Restriction {
    /// The condition of an operator's filter and of the caller, and the groups of the principal.
    pub fn of(filter: Option<&Filter>, turn: &Turn) -> Self {
        Self { groups: turn.groups(), condition: Self::condition_of(filter, turn) }
    }

    /// The condition of an operator's filter and of the caller.
    pub(crate) fn condition_of(filter: Option<&Filter>, turn: &Turn) -> Option<Condition> {
        let own = filter.map(|filter| filter.resolve(turn));
        let of_caller = turn.filter.as_ref().map(|filter| filter.resolve(turn));
        match (own, of_caller) {
            (Some(own), Some(of_caller)) => Some(Condition::And(vec![own, of_caller])),
            (own, of_caller) => own.or(of_caller),
        }
    }
}

/// What the first process asks.
#[derive(Serialize, Deserialize)]
enum Request {
    /// Apply all changes before this commit, and keep the result under this version.
    Prepare { corpus: Arc<str>, commits: u64, version: u64 },
    /// Ask an index of a version.
    Index { corpus: Arc<str>, version: u64, index: String, restriction: Restriction, question: Bytes },
    /// Drop a version.
    Release { corpus: Arc<str>, version: u64 },
    /// Ask for prepared data of an index.
    Prepared { corpus: Arc<str>, index: String, question: Bytes },
}

/// A part that is prepared for an epoch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Prepared {
    /// Number of its documents.
    pub documents: usize,
    /// Number of its passages.
    pub chunks: usize,
    /// Whether it differs from the part that was prepared before.
    pub changed: bool,
}

/// Has the other processes prepare their parts of a corpus. Used by the first process.
pub(crate) struct Lead {
    peers: Arc<Peers>,
    corpus: Arc<str>,
    version: u64,
}

impl Lead {
    pub fn new(peers: Arc<Peers>, corpus: Arc<str>) -> Self {
        Self { peers, corpus, version: 0 }
    }

    /// Has all changes before this commit applied. The result tells whether a part has changed.
    ///
    /// # Errors
    ///
    /// A process could not apply the changes. The same commit may be asked for again.
    pub fn prepare(
        &mut self,
        commits: u64,
    ) -> impl Future<Output = Result<(OtherShards, bool), IndexError>> + Send + use<> {
        self.version += 1;
        let (peers, corpus, version) = (self.peers.clone(), self.corpus.clone(), self.version);
        async move {
            let (documents, chunks, kept) = (0, 0, Mutex::default());
            let mut others = OtherShards { peers, corpus: corpus.clone(), version, documents, chunks, kept };
            let request = encode(&Request::Prepare { corpus, commits, version }).map_err(failed)?;
            let mut any_changed = false;
            for prepared in others.peers.ask_all(&request).await.map_err(failed)? {
                let Prepared { documents, chunks, changed } = decode(&prepared).map_err(failed)?;
                others.documents += documents;
                others.chunks += chunks;
                any_changed |= changed;
            }
            Ok((others, any_changed))
        }
    }
}

fn failed(reason: String) -> IndexError {
    IndexError::Component(ComponentError::new(reason))
}

/// What operators keep, by index and key.
type Kept = HashMap<(String, &'static str), Arc<dyn Any + Send + Sync>>;

/// The parts of a corpus in the other processes, at a version, which they keep until this is dropped.
pub(crate) struct OtherShards {
    peers: Arc<Peers>,
    corpus: Arc<str>,
    version: u64,
    /// Number of their documents.
    pub documents: usize,
    /// Number of their passages.
    pub chunks: usize,
    /// What operators keep with them, by index and key.
    kept: Mutex<Kept>,
}

impl Drop for OtherShards {
    fn drop(&mut self) {
        let release = Request::Release { corpus: self.corpus.clone(), version: self.version };
        // An order to close comes after everything else, so nothing may follow it.
        if let Ok(release) = encode(&release)
            && !self.peers.is_closing()
        {
            self.peers.tell_all(&release);
        }
    }
}

/// The parts of an index in the other processes, and what a turn may find in them.
pub struct OtherParts {
    pub(crate) shards: Arc<OtherShards>,
    pub(crate) index: String,
    pub(crate) restriction: Restriction,
}

impl OtherParts {
    /// What an operator keeps with the index for the epoch, under a key. `make` makes it the first time.
    pub fn kept<T: Send + Sync + 'static>(&self, key: &'static str, make: impl FnOnce() -> T) -> Arc<T> {
        let mut kept = self.shards.kept.lock();
        let found = kept.get(&(self.index.clone(), key)).and_then(|found| found.clone().downcast::<T>().ok());
        found.unwrap_or_else(|| {
            let made = Arc::new(make());
            kept.insert((self.index.clone(), key), made.clone());
            made
        })
    }

    /// Asks each part. The index's definition answers in the other process
    /// ([`IndexDefinition::answer`]). The answers are in the order of the processes.
    ///
    /// # Errors
    ///
    /// A part could not answer.
    pub async fn ask<Q: Serialize, A: for<'de> Deserialize<'de>>(&self, question: &Q) -> Result<Vec<A>, OperatorError> {
        let failed = |reason| OperatorError::Component(ComponentError::transient(reason));
        let request = Request::Index {
            corpus: self.shards.corpus.clone(),
            version: self.shards.version,
            index: self.index.clone(),
            restriction: self.restriction.clone(),
            question: encode(question).map_err(failed)?,
        };
        let request = encode(&request).map_err(failed)?;
        let answers = self.shards.peers.ask_parts(&request).await.map_err(failed)?;
        answers.iter().map(|answer| decode(answer).map_err(failed)).collect()
    }
}

/// A request to prepare a part.
pub(crate) struct Target {
    /// All changes before this commit.
    pub commits: u64,
    pub version: u64,
    pub reply: oneshot::Sender<Result<Prepared, String>>,
}

/// The requests to prepare a corpus's part, and what wakes the operator that fulfils them.
#[derive(Default)]
pub(crate) struct Targets {
    queue: Mutex<VecDeque<Target>>,
    wake: WakeSlot,
}

impl Targets {
    pub fn new(wake: WakeSlot) -> Self {
        Self { queue: Mutex::default(), wake }
    }

    /// The next request, if all changes that it asks for are complete.
    pub fn take(&self, complete: u64) -> Option<Target> {
        let mut queue = self.queue.lock();
        queue.front().is_some_and(|target| target.commits <= complete).then(|| queue.pop_front()).flatten()
    }

    fn push(&self, target: Target) {
        self.queue.lock().push_back(target);
        self.wake.wake();
    }
}

/// The same index in the other processes.
struct OtherIndexes {
    peers: Arc<Peers>,
    corpus: Arc<str>,
    index: String,
}

impl Elsewhere for OtherIndexes {
    fn ask(&self, question: Vec<u8>) -> BoxFuture<'static, Vec<Vec<u8>>> {
        let (corpus, index) = (self.corpus.clone(), self.index.clone());
        let Ok(request) = encode(&Request::Prepared { corpus, index, question: Bytes(question) }) else {
            return async { Vec::new() }.boxed();
        };
        let peers = self.peers.clone();
        async move {
            let asked = peers.others().map(|process| peers.ask(process, request.clone()));
            futures::future::join_all(asked).await.into_iter().flatten().map(|answer| answer.0).collect()
        }
        .boxed()
    }
}

/// The indexes of a corpus by key.
type ByKey = BTreeMap<String, Arc<dyn IndexDefinition>>;

/// A corpus that is served.
struct ServedCorpus {
    targets: Arc<Targets>,
    definitions: ByKey,
    preparations: Preparations,
}

/// The kept versions, by corpus and number.
type Versions = HashMap<(Arc<str>, u64), Arc<CorpusSnapshot>>;

/// What this process serves to the others.
#[derive(Default)]
pub(crate) struct ServedParts {
    corpora: Mutex<HashMap<Arc<str>, ServedCorpus>>,
    versions: Mutex<Versions>,
}

impl ServedParts {
    /// Serves a corpus, and has its indexes ask the other processes for prepared data.
    pub fn add(
        &self,
        peers: &Arc<Peers>,
        corpus: &Arc<str>,
        targets: Arc<Targets>,
        definitions: ByKey,
        preparations: Preparations,
    ) {
        for (index, preparation) in &*preparations.read() {
            let (peers, corpus, index) = (peers.clone(), corpus.clone(), index.clone());
            preparation.ask_elsewhere(Arc::new(OtherIndexes { peers, corpus, index }));
        }
        self.corpora.lock().insert(corpus.clone(), ServedCorpus { targets, definitions, preparations });
    }

    /// Keeps a version of a corpus until the first process releases it.
    pub fn keep(&self, corpus: &Arc<str>, version: u64, view: Arc<CorpusSnapshot>) {
        self.versions.lock().insert((corpus.clone(), version), view);
    }

    /// Answers a message of the first process.
    pub async fn answer(&self, message: Bytes) -> Result<Bytes, String> {
        let unknown = |corpus: &str| format!("it has no corpus `{corpus}`");
        match decode(&message)? {
            Request::Prepare { corpus, commits, version } => {
                let (reply, prepared) = oneshot::channel();
                let known = self.corpora.lock().get(&corpus).map(|served| served.targets.clone());
                known.ok_or_else(|| unknown(&corpus))?.push(Target { commits, version, reply });
                let prepared = prepared.await.unwrap_or_else(|_| Err("it is ending".to_owned()))?;
                encode(&prepared)
            }
            Request::Index { corpus, version, index, restriction, question } => {
                let view = self.versions.lock().get(&(corpus.clone(), version)).cloned();
                let view = view.ok_or_else(|| format!("it has no version {version} of the corpus `{corpus}`"))?;
                let definition =
                    self.corpora.lock().get(&corpus).and_then(|served| served.definitions.get(&index)).cloned();
                let (Some(definition), Some(reader)) = (definition, view.indexes.get(&index).cloned()) else {
                    return Err(format!("the corpus `{corpus}` has no index `{index}`"));
                };
                let is_restricted = view.passages.is_restricted() || restriction.condition.is_some();
                let passages = view.passages.clone();
                let within = move || passages.within(Some(&restriction.groups), restriction.condition);
                // Combining bitmaps of many values takes a while.
                let permitted = if is_restricted { apart_within(async { within() }).await } else { within() };
                definition.answer(reader, permitted, question.0).await.map(Bytes).map_err(|error| error.to_string())
            }
            Request::Prepared { corpus, index, question } => {
                let preparations = self.corpora.lock().get(&corpus).map(|served| served.preparations.clone());
                let preparations = preparations.ok_or_else(|| unknown(&corpus))?;
                let known = preparations.read().iter().find(|(key, _)| *key == index).map(|(_, known)| known.clone());
                let known = known.ok_or_else(|| format!("the corpus `{corpus}` has no index `{index}`"))?;
                Ok(Bytes(known.prepared(question.0)))
            }
            Request::Release { corpus, version } => {
                let released = self.versions.lock().remove(&(corpus, version));
                // A large part takes a while to drop.
                drop(tokio::task::spawn_blocking(move || drop(released)));
                Ok(Bytes::default())
            }
        }
    }
}

/// Answers a question of another process about an index: decodes it, and encodes the answer.
///
/// # Errors
///
/// The question cannot be decoded, or the answer cannot be made.
pub async fn answered<Q, A: Serialize, F>(
    question: Vec<u8>,
    answer: impl FnOnce(Q) -> F,
) -> Result<Vec<u8>, OperatorError>
where
    Q: for<'de> Deserialize<'de>,
    F: Future<Output = Result<A, OperatorError>>,
{
    let failed = |reason| OperatorError::Component(ComponentError::new(reason));
    let question = decode(&Bytes(question)).map_err(failed)?;
    encode(&answer(question).await?).map(|bytes| bytes.0).map_err(failed)
}
