//! The parts of a corpus in the other processes: their preparation for an epoch, and what they are asked.
//!
//! The first process numbers what it asks the others to prepare. Such a *version* of a part is kept until the first
//! process has dropped the snapshot that names it, so that a turn finds in every process what its epoch has. The first
//! process keeps the snapshots that turns of other processes read ([`super::manifest`]).

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::manifest::{Manifests, Part};
use super::peers::Peers;
use super::served::ServedParts;
use super::wire::{Bytes, Topic, decode, encode};
use crate::component::{ComponentError, IndexError, OperatorError};
use crate::document::Chunk;
use crate::filter::{Condition, Filter};
use crate::publish::{Epochs, Lacking};
use crate::record::Turn;

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
pub(super) enum Request {
    /// Apply all changes before this commit, and keep the result under this version. No commit: the source is not read yet.
    Prepare { corpus: Arc<str>, commits: Option<u64>, version: u64 },
    /// Switch to what a reload has opened: to its feed, with all changes before this commit, and to its indexes. Keep
    /// the result under this version.
    Switch { corpus: Arc<str>, commits: Option<u64>, version: u64 },
    /// Serve the stored passages, which must be those of this version on disk, and keep the result under this version.
    Restore { corpus: Arc<str>, stored: u64, version: u64 },
    /// Ask an index of a version.
    Index { corpus: Arc<str>, version: u64, index: String, restriction: Restriction, question: Bytes },
    /// Ask for the passages of a document that a principal of these groups may read.
    Document { corpus: Arc<str>, version: u64, document: String, groups: Vec<Arc<str>> },
    /// Drop a version.
    Release { corpus: Arc<str>, version: u64 },
    /// Ask for prepared data of an index.
    Prepared { corpus: Arc<str>, index: String, question: Bytes },
}

/// A part that is prepared for an epoch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Prepared {
    /// Number of its documents.
    pub documents: usize,
    /// Number of its passages.
    pub chunks: usize,
    /// Whether it differs from the part that was prepared before.
    pub changed: bool,
    /// The version on disk that has its passages.
    pub stored: Option<u64>,
    /// What its indexes lack.
    pub lacking: Lacking,
}

/// Has the other processes prepare their parts of a corpus. Used by the first process.
pub(crate) struct Lead {
    peers: Arc<Peers>,
    corpus: Arc<str>,
    manifests: Arc<Manifests>,
}

impl Lead {
    pub fn new(peers: Arc<Peers>, corpus: Arc<str>, manifests: Arc<Manifests>) -> Self {
        Self { peers, corpus, manifests }
    }

    /// Drops what is kept of the indexes that no plan needs any more.
    pub fn trim(&self, epochs: &Arc<Epochs>, keys: &BTreeSet<String>) {
        self.manifests.parts().trim(&self.corpus, keys);
        self.manifests.hold_again(epochs);
    }

    /// The epochs that the other processes have.
    pub fn manifests(&self) -> &Arc<Manifests> {
        &self.manifests
    }

    /// Has all changes before this commit applied; none if the source is not read yet. The result tells whether a part has
    /// changed.
    ///
    /// # Errors
    ///
    /// A process could not apply the changes. The same commit may be asked for again.
    pub fn prepare(
        &self,
        commits: Option<u64>,
    ) -> impl Future<Output = Result<(OtherShards, bool), IndexError>> + Send + use<> {
        let (corpus, version) = (self.corpus.clone(), self.peers.next_version());
        self.ask_all(version, &Request::Prepare { corpus, commits, version })
    }

    /// Has the stored passages served, which must be those of these versions on disk, in the order of the processes.
    ///
    /// # Errors
    ///
    /// A process has no stored passages, or others.
    pub fn restore(
        &self,
        stored: &[u64],
    ) -> impl Future<Output = Result<(OtherShards, bool), IndexError>> + Send + use<> {
        let version = self.peers.next_version();
        let requests = stored
            .iter()
            .map(|stored| encode(&Request::Restore { corpus: self.corpus.clone(), stored: *stored, version }));
        self.ask(version, requests.collect())
    }

    /// Has the other processes switch to what a reload has opened, with all changes before this commit.
    ///
    /// # Errors
    ///
    /// A process could not switch.
    pub fn switch(
        &self,
        commits: Option<u64>,
    ) -> impl Future<Output = Result<(OtherShards, bool), IndexError>> + Send + use<> {
        let (corpus, version) = (self.corpus.clone(), self.peers.next_version());
        self.ask_all(version, &Request::Switch { corpus, commits, version })
    }

    /// Whether the cluster is ending, so that nothing can be prepared.
    pub fn is_ending(&self) -> bool {
        self.peers.is_closing()
    }

    fn ask_all(
        &self,
        version: u64,
        request: &Request,
    ) -> impl Future<Output = Result<(OtherShards, bool), IndexError>> + Send + use<> {
        let request = encode(request);
        self.ask(version, self.peers.others().map(|_| request.clone()).collect())
    }

    /// Asks the other processes, in their order.
    fn ask(
        &self,
        version: u64,
        requests: Vec<Result<Bytes, String>>,
    ) -> impl Future<Output = Result<(OtherShards, bool), IndexError>> + Send + use<> {
        let (peers, corpus, own) = (self.peers.clone(), self.corpus.clone(), Some(self.manifests.parts().clone()));
        async move {
            let (documents, chunks, kept, stored, lacking) = (0, 0, Mutex::default(), Vec::new(), Lacking::default());
            let mut others = OtherShards { peers, corpus, version, own, documents, chunks, lacking, kept, stored };
            let mut any_changed = false;
            for prepared in others.peers.ask_each(Topic::Parts, requests).await.map_err(failed)? {
                let Prepared { documents, chunks, changed, stored, lacking } = decode(&prepared).map_err(failed)?;
                others.documents += documents;
                others.chunks += chunks;
                others.lacking.missing += lacking.missing;
                for (index, missing) in lacking.indexes {
                    *others.lacking.indexes.entry(index).or_default() += missing;
                }
                others.lacking.problem = others.lacking.problem.take().or(lacking.problem);
                others.stored.push(stored);
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

/// The parts of a corpus in the other processes, at a version. They keep it until the first process drops this.
pub(crate) struct OtherShards {
    peers: Arc<Peers>,
    corpus: Arc<str>,
    version: u64,
    /// What the first process itself serves. `None` in the other processes.
    own: Option<Arc<ServedParts>>,
    /// Number of their documents.
    pub documents: usize,
    /// Number of their passages.
    pub chunks: usize,
    /// What their indexes lack.
    pub lacking: Lacking,
    /// What operators keep with them, by index and key.
    kept: Mutex<Kept>,
    /// The versions of their passages on disk.
    stored: Vec<Option<u64>>,
}

impl OtherShards {
    /// For another process than the first, which keeps the version meanwhile.
    pub(super) fn following(peers: Arc<Peers>, corpus: Arc<str>, part: Part) -> Self {
        let Part { version, documents, chunks, missing } = part;
        let (own, lacking) = (None, Lacking { indexes: missing, ..Lacking::default() });
        Self { peers, corpus, version, own, documents, chunks, lacking, kept: Mutex::default(), stored: Vec::new() }
    }

    /// The versions on disk that have these parts, in the order of the processes.
    pub fn stored(&self) -> &[Option<u64>] {
        &self.stored
    }

    /// The version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The passages of a document in the other parts that a principal of these groups may read, in no order.
    ///
    /// # Errors
    ///
    /// A part could not answer.
    pub async fn of_document(&self, document: &str, groups: &[Arc<str>]) -> Result<Vec<Chunk>, String> {
        let (document, groups) = (document.to_owned(), groups.to_vec());
        let request = Request::Document { corpus: self.corpus.clone(), version: self.version, document, groups };
        let answers = self.peers.ask_parts(&encode(&request)?).await?;
        let found = answers.iter().map(decode::<Vec<Chunk>>).collect::<Result<Vec<_>, _>>()?;
        Ok(found.into_iter().flatten().collect())
    }
}

impl Drop for OtherShards {
    fn drop(&mut self) {
        let Some(own) = &self.own else { return };
        own.release(&self.corpus, self.version);
        let release = Request::Release { corpus: self.corpus.clone(), version: self.version };
        // An order to close comes after everything else, so nothing may follow it.
        if let Ok(release) = encode(&release)
            && !self.peers.is_closing()
        {
            self.peers.tell_all(Topic::Parts, &release);
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
    /// Number of passages that the index lacks there, because a model's server is away.
    pub fn missing(&self) -> usize {
        self.shards.lacking.indexes.get(&self.index).copied().unwrap_or_default() as usize
    }

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
    /// ([`IndexDefinition::answer`](crate::component::IndexDefinition::answer)). The answers are in the order of the processes.
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
