//! What a process serves to the others: its parts of the corpora, at the versions that the first process has numbered.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::manifest;
use super::parts::{Prepared, Request};
use super::peers::Peers;
use super::wire::{Bytes, Topic, decode, encode};
use crate::component::{ComponentError, CorpusSnapshot, Elsewhere, IndexDefinition, OperatorError, Prepare};
use crate::compute::apart_within;
use crate::corpus::{AddedIndex, Again, CorpusIndexes, Preparations, Restore, RestoredPart};
use crate::publish::Lacking;
use crate::state::PASSAGES;
use crate::wake::WakeSlot;

/// A request to prepare a part.
pub(crate) struct Target {
    /// All changes before this commit.
    pub commits: u64,
    /// Whether the source has been read, so that these are all of its documents.
    pub is_read: bool,
    /// The version to keep the result under.
    pub version: Option<u64>,
    pub reply: oneshot::Sender<Result<Prepared, String>>,
}

/// The requests to prepare a corpus's part, and what wakes the operator that fulfils them.
#[derive(Default)]
pub(crate) struct Targets {
    queue: Mutex<Queue>,
    wake: WakeSlot,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Target>,
    /// Takes the requests when the operator has ended.
    ended: Option<Takes>,
}

/// Takes a request to prepare a part.
type Takes = Box<dyn Fn(Target) + Send>;

impl Targets {
    pub fn new(wake: WakeSlot) -> Self {
        Self { queue: Mutex::default(), wake }
    }

    /// The next request, if all changes that it asks for are complete.
    pub fn take(&self, complete: u64) -> Option<Target> {
        let waiting = &mut self.queue.lock().waiting;
        waiting.front().is_some_and(|target| target.commits <= complete).then(|| waiting.pop_front()).flatten()
    }

    /// The operator has ended: all changes are complete.
    pub fn end(&self, takes: Takes) {
        let mut queue = self.queue.lock();
        queue.waiting.drain(..).for_each(&takes);
        queue.ended = Some(takes);
    }

    /// Waits until all changes before a commit are applied; the result is kept under the version. No commit: the source is
    /// not read yet.
    pub async fn prepare(&self, commits: Option<u64>, version: Option<u64>) -> Result<Prepared, String> {
        let (reply, prepared) = oneshot::channel();
        let (is_read, commits) = (commits.is_some(), commits.unwrap_or_default());
        let target = Target { commits, is_read, version, reply };
        {
            let mut queue = self.queue.lock();
            match &queue.ended {
                Some(takes) => takes(target),
                None => queue.waiting.push_back(target),
            }
        }
        self.wake.wake();
        prepared.await.unwrap_or_else(|_| Err("it is ending".to_owned()))
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
            let asked = peers.others().map(|process| peers.ask(process, Topic::Parts, request.clone()));
            futures::future::join_all(asked).await.into_iter().flatten().map(|answer| answer.0).collect()
        }
        .boxed()
    }
}

/// The indexes of a corpus by key.
pub(crate) type ByKey = BTreeMap<String, Arc<dyn IndexDefinition>>;

/// A corpus that is served.
struct ServedCorpus {
    targets: Arc<Targets>,
    definitions: Arc<ByKey>,
    preparations: Preparations,
    /// Publishes it again.
    again: Again,
    /// What a reload switches to.
    coming: Option<ComingPart>,
    /// What serves the stored passages.
    stored: Option<Restore>,
}

/// What a reload has opened of a corpus.
pub(crate) struct ComingPart {
    pub indexes: CorpusIndexes,
    /// Another feed.
    pub feed: Option<(u64, Arc<Targets>)>,
    /// More indexes.
    pub filled: Vec<AddedIndex>,
    /// The indexes of the new plan.
    pub definitions: Arc<ByKey>,
}

/// A corpus that has been prepared for a switch, and is told whether the switch takes effect.
pub(crate) struct Switched {
    pub corpus: Arc<str>,
    pub view: CorpusSnapshot,
    pub published: oneshot::Sender<bool>,
}

/// A version of a corpus, and what answers questions about its indexes.
struct Version {
    view: Arc<CorpusSnapshot>,
    definitions: Arc<ByKey>,
}

/// The kept versions, by corpus and number.
type Versions = HashMap<(Arc<str>, u64), Arc<Version>>;

/// What this process serves to the others.
#[derive(Default)]
pub(crate) struct ServedParts {
    corpora: Mutex<HashMap<Arc<str>, ServedCorpus>>,
    versions: Mutex<Versions>,
    /// The corpora that a reload has prepared for its switch, and how many reloads have been undone.
    switched: Mutex<(Vec<Switched>, u64)>,
    /// Set with the first corpus.
    peers: OnceLock<Weak<Peers>>,
}

impl ServedParts {
    /// Serves a corpus, and has its indexes ask the other processes for prepared data.
    pub fn add(
        &self,
        peers: &Arc<Peers>,
        corpus: &Arc<str>,
        targets: Arc<Targets>,
        definitions: Arc<ByKey>,
        preparations: Preparations,
        again: Again,
    ) {
        for (index, preparation) in &*preparations.read() {
            ask_elsewhere(peers, corpus, index, preparation);
        }
        let _ = self.peers.set(Arc::downgrade(peers));
        let served = ServedCorpus { targets, definitions, preparations, again, coming: None, stored: None };
        self.corpora.lock().insert(corpus.clone(), served);
    }

    /// Takes what serves the stored passages of a corpus when the first process asks for it.
    pub fn may_restore(&self, corpus: &Arc<str>, restore: Restore) {
        if let Some(served) = self.corpora.lock().get_mut(corpus) {
            served.stored = Some(restore);
        }
    }

    /// Tells the first process that the passages that all of these versions have are stored anew.
    pub fn renewed(&self, corpus: &Arc<str>, versions: &[u64], stored: u64) {
        if let Some(peers) = self.peers.get().and_then(Weak::upgrade) {
            manifest::tell_renewed(&peers, corpus, versions.to_vec(), stored);
        }
    }

    /// Tells the first process that this one has more of a corpus than in the last epoch.
    pub fn found(&self, corpus: &Arc<str>) {
        if let Some(peers) = self.peers.get().and_then(Weak::upgrade) {
            manifest::tell_found(&peers, corpus);
        }
    }

    /// Publishes a corpus again, because another process has more of it.
    pub fn publish_again(&self, corpus: &Arc<str>) {
        let again = self.corpora.lock().get(corpus).map(|served| served.again.clone());
        again.into_iter().for_each(|again| again());
    }

    /// Takes what a reload will switch a corpus to.
    pub fn stage(&self, corpus: &Arc<str>, coming: ComingPart) {
        if let Some(served) = self.corpora.lock().get_mut(corpus) {
            served.coming = Some(coming);
        }
    }

    /// The corpora that are prepared for the switch of a reload.
    pub fn take_switched(&self) -> Vec<Switched> {
        std::mem::take(&mut self.switched.lock().0)
    }

    /// Serves the feed and the indexes that a reload has switched a corpus to. Those of the plan before stay until they are
    /// trimmed.
    pub fn adopt(&self, corpus: &Arc<str>, targets: Option<Arc<Targets>>, definitions: &ByKey) {
        self.define(corpus, definitions);
        if let Some(served) = self.corpora.lock().get_mut(corpus) {
            served.coming = None;
            if let Some(targets) = targets {
                served.targets = targets;
            }
        }
    }

    /// Drops what a reload has opened and not switched to.
    pub fn undo(&self) {
        self.corpora.lock().values_mut().for_each(|served| served.coming = None);
        // Their index writers then revert the changes.
        let (switched, undone) = &mut *self.switched.lock();
        switched.clear();
        *undone += 1;
    }

    /// Serves only these corpora. Their earlier versions stay until they are released.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        let gone: Vec<ServedCorpus> = {
            let mut corpora = self.corpora.lock();
            corpora.extract_if(|name, _| !is_kept(name)).map(|(_, served)| served).collect()
        };
        // Not while workers may wait for the lock.
        drop(gone);
    }

    /// Keeps a version of this process's part of a corpus until the first process releases it.
    pub fn keep(&self, corpus: &Arc<str>, version: u64, view: Arc<CorpusSnapshot>) {
        let definitions = self.corpora.lock().get(corpus).map(|served| served.definitions.clone());
        self.keep_with(corpus, version, view, definitions.unwrap_or_default());
    }

    fn keep_with(&self, corpus: &Arc<str>, version: u64, view: Arc<CorpusSnapshot>, definitions: Arc<ByKey>) {
        let version_of = Arc::new(Version { view, definitions });
        self.versions.lock().insert((corpus.clone(), version), version_of);
    }

    /// A version of this process's part of a corpus.
    pub fn version(&self, corpus: &Arc<str>, version: u64) -> Option<Arc<CorpusSnapshot>> {
        self.versions.lock().get(&(corpus.clone(), version)).map(|kept| kept.view.clone())
    }

    /// Drops a version of a corpus.
    pub fn release(&self, corpus: &Arc<str>, version: u64) {
        let released = self.versions.lock().remove(&(corpus.clone(), version));
        drop(released);
    }

    /// Drops what is kept of the indexes of a corpus that no plan needs any more.
    pub fn trim(&self, corpus: &Arc<str>, keys: &BTreeSet<String>) {
        let only = |definitions: &Arc<ByKey>| -> Arc<ByKey> {
            let kept = definitions.iter().filter(|(key, _)| keys.contains(*key));
            Arc::new(kept.map(|(key, definition)| (key.clone(), definition.clone())).collect())
        };
        if let Some(served) = self.corpora.lock().get_mut(corpus) {
            served.definitions = only(&served.definitions);
        }
        let mut versions = self.versions.lock();
        for (_, kept) in versions.iter_mut().filter(|((of, _), _)| of == corpus) {
            if kept.view.indexes.keys().any(|key| !keys.contains(key)) {
                let (view, definitions) = (Arc::new(kept.view.with_indexes(keys)), only(&kept.definitions));
                *kept = Arc::new(Version { view, definitions });
            }
        }
    }

    /// Answers questions about more indexes of a corpus, which a reload adds.
    pub fn define(&self, corpus: &Arc<str>, added: &ByKey) {
        if let Some(served) = self.corpora.lock().get_mut(corpus) {
            let mut definitions = ByKey::clone(&served.definitions);
            definitions.extend(added.iter().map(|(key, definition)| (key.clone(), definition.clone())));
            served.definitions = Arc::new(definitions);
        }
    }

    /// Prepares the switch of a corpus to what a reload has opened.
    async fn switch(&self, corpus: &Arc<str>, commits: Option<u64>, version: u64) -> Result<Prepared, String> {
        let (coming, active, stored) = {
            let mut corpora = self.corpora.lock();
            let served = corpora.get_mut(corpus).ok_or_else(|| unknown(corpus))?;
            (served.coming.take(), served.targets.clone(), served.stored.take())
        };
        drop_elsewhere(stored);
        let undone = self.switched.lock().1;
        let coming = coming.ok_or_else(|| format!("no reload changes its corpus `{corpus}`"))?;
        let ComingPart { indexes, feed, filled, definitions } = coming;
        let (feed, targets) = feed.map_or((None, active), |(feed, targets)| (Some(feed), targets));
        targets.prepare(commits, None).await?;
        let (published, told) = oneshot::channel();
        let (view, _) = indexes.switch(feed, filled, told, Some(version)).await.map_err(|error| error.to_string())?;
        let stored = view.versions.get(PASSAGES).copied();
        let lacking = Lacking { indexes: view.missing.clone(), ..indexes.progress().lacking_here() };
        let prepared = Prepared { documents: view.documents, chunks: view.chunks, changed: true, stored, lacking };
        let mut switched = self.switched.lock();
        if switched.1 != undone {
            return Err("the reload is undone".to_owned());
        }
        self.keep_with(corpus, version, Arc::new(view.clone()), definitions);
        switched.0.push(Switched { corpus: corpus.clone(), view, published });
        Ok(prepared)
    }

    /// Answers a message of another process.
    pub async fn answer(&self, message: Bytes) -> Result<Bytes, String> {
        match decode(&message)? {
            Request::Prepare { corpus, commits, version } => {
                let known =
                    self.corpora.lock().get_mut(&corpus).map(|served| (served.targets.clone(), served.stored.take()));
                let (targets, stored) = known.ok_or_else(|| unknown(&corpus))?;
                // The first process serves its own without them, or reads the source.
                drop_elsewhere(stored);
                encode(&targets.prepare(commits, Some(version)).await?)
            }
            Request::Restore { corpus, stored, version } => {
                let restore = self.corpora.lock().get_mut(&corpus).and_then(|served| served.stored.take());
                let restore = restore.ok_or("it has no stored passages")?;
                let (reply, restored) = oneshot::channel();
                restore(Some(RestoredPart { version, stored, reply }));
                encode(&restored.await.unwrap_or_else(|_| Err("it is ending".to_owned()))?)
            }
            Request::Switch { corpus, commits, version } => encode(&self.switch(&corpus, commits, version).await?),
            Request::Index { corpus, version, index, restriction, question } => {
                let kept = self.versions.lock().get(&(corpus.clone(), version)).cloned();
                let kept = kept.ok_or_else(|| format!("it has no version {version} of the corpus `{corpus}`"))?;
                let (view, definition) = (&kept.view, kept.definitions.get(&index).cloned());
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
            Request::Document { corpus, version, document, groups } => {
                let kept = self.versions.lock().get(&(corpus.clone(), version)).cloned();
                let kept = kept.ok_or_else(|| format!("it has no version {version} of the corpus `{corpus}`"))?;
                let passages = kept.view.passages.clone();
                let found = move || passages.of_document(&document, &passages.within(Some(&groups), None));
                encode(&apart_within(async move { found() }).await)
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

/// Drops something on another thread: many passages take a while.
fn drop_elsewhere<T: Send + 'static>(what: T) {
    drop(tokio::task::spawn_blocking(move || drop(what)));
}

fn unknown(corpus: &str) -> String {
    format!("it has no corpus `{corpus}`")
}

/// Has an index ask the other processes for prepared data.
pub(crate) fn ask_elsewhere(peers: &Arc<Peers>, corpus: &Arc<str>, index: &str, preparation: &Arc<dyn Prepare>) {
    let (peers, corpus, index) = (peers.clone(), corpus.clone(), index.to_owned());
    preparation.ask_elsewhere(Arc::new(OtherIndexes { peers, corpus, index }));
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
