//! The epochs of the other processes, so that they answer turns too.
//!
//! The first process publishes epochs. It tells the others of each one in a *manifest*: the versions of the parts that the
//! epoch consists of. It keeps the epoch, and with it these versions, until each process has released it. An epoch is
//! reported as published when all processes have it, so a caller who has changed a document finds the change wherever it
//! asks next.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::parts::OtherShards;
use super::peers::Peers;
use super::served::ServedParts;
use super::wire::{Bytes, Topic, decode, encode};
use crate::component::{Aliases, CorpusSnapshot, Snapshot, less};
use crate::publish::{Epochs, SnapshotGuard};

/// The interval between attempts to tell another process of an epoch.
const RETRY: Duration = Duration::from_secs(1);

/// A corpus in a manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    /// The version of its parts.
    pub version: u64,
    /// Number of its documents, in all processes.
    pub documents: usize,
    /// Number of its passages, in all processes.
    pub chunks: usize,
    /// Number of chunks that an index lacks, in all processes, by index key.
    pub missing: BTreeMap<String, u64>,
}

/// An epoch, as the first process describes it.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    epoch: u64,
    plan: u64,
    corpora: BTreeMap<Arc<str>, Part>,
}

/// What processes tell each other about epochs.
#[derive(Debug, Serialize, Deserialize)]
enum Note {
    /// The first process has published an epoch. The answer comes when the other process has it.
    Published(Manifest),
    /// Turns may start: those of callers, or those of sources too.
    Begin(Beginning),
    /// A process does not need an epoch any more.
    Released { process: usize, epoch: u64 },
    /// A process has written its stored passages anew, and has in them what all of these versions of its part have.
    Renewed { process: usize, corpus: Arc<str>, versions: Vec<u64>, stored: u64 },
    /// A process has prepared contents of a corpus after their commit: its part has more than in the last epoch.
    Found { corpus: Arc<str> },
}

/// The turns that may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Beginning {
    /// Those of callers.
    Callers,
    /// Those of callers and of sources.
    Sources,
}

/// The epochs that other processes have. Used by the first process.
pub(crate) struct Manifests {
    peers: Arc<Peers>,
    parts: Arc<ServedParts>,
    /// The last epoch that the others have been told. Locked while they are told, so that they get epochs in order.
    told: tokio::sync::Mutex<u64>,
    /// The epochs that each process has.
    held: Mutex<HashMap<(usize, u64), SnapshotGuard>>,
    /// What this process publishes.
    epochs: Arc<Epochs>,
    /// What each process has written anew last of a corpus, until it is noted.
    renewed: Mutex<HashMap<(Arc<str>, usize), RenewedPassages>>,
}

/// Stored passages that a process has written anew.
struct RenewedPassages {
    /// The versions of its part that have these passages.
    parts: Vec<u64>,
    /// The version on disk.
    stored: u64,
}

impl Manifests {
    pub fn new(peers: Arc<Peers>, parts: Arc<ServedParts>, epochs: Arc<Epochs>) -> Arc<Self> {
        let (told, held, renewed) = Default::default();
        Arc::new(Self { peers, parts, told, held, epochs, renewed })
    }

    /// What this process serves of an epoch to the others.
    pub fn parts(&self) -> &Arc<ServedParts> {
        &self.parts
    }

    /// Tells the other processes of the newest epoch; returns when all have it, or when the cluster ends. As long as a
    /// process cannot take it, its turns go on reading the epoch before, and it is told again.
    pub async fn announce(&self, epochs: &Arc<Epochs>) {
        let mut told = self.told.lock().await;
        while let Err(error) = self.tell(epochs, &mut told).await {
            if self.peers.is_ending() {
                tracing::debug!(error, "the cluster is ending");
                return;
            }
            tracing::error!(error, "another process cannot take an epoch; it will be told again");
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn tell(&self, epochs: &Arc<Epochs>, told: &mut u64) -> Result<(), String> {
        let guard = epochs.pin();
        let (epoch, plan) = (guard.epoch, guard.plan);
        if epoch <= *told || self.peers.is_ending() {
            return Ok(());
        }
        let mut corpora = BTreeMap::new();
        for (name, view) in &guard.corpora {
            if let Some(others) = &view.others {
                let version = others.version();
                self.parts.keep(name, version, Arc::new(view.own_part()));
                let (documents, chunks, missing) = (view.documents, view.chunks, view.missing.clone());
                corpora.insert(name.clone(), Part { version, documents, chunks, missing });
            }
        }
        {
            let mut held = self.held.lock();
            self.peers.others().for_each(|process| drop(held.insert((process, epoch), guard.clone())));
        }
        let all = match encode(&Note::Published(Manifest { epoch, plan, corpora })) {
            Ok(note) => self.peers.ask_all(Topic::Epochs, &note).await,
            Err(error) => Err(error),
        };
        all?;
        *told = epoch;
        Ok(())
    }

    /// Notes what other processes have written anew, if the current epoch has these parts. A restart serves what they
    /// contain.
    pub async fn note_stored(self: &Arc<Self>) {
        let this = self.clone();
        let _ = tokio::task::spawn_blocking(move || this.note_stored_now()).await;
    }

    fn note_stored_now(&self) {
        let current = self.epochs.current();
        let current = |corpus: &str| Some(current.corpora.get(corpus)?.others.as_ref()?.version());
        let due: Vec<_> = {
            let renewed = self.renewed.lock();
            let is_due = |of: &(Arc<str>, usize), renewed: &RenewedPassages| {
                let part = current(&of.0).filter(|part| renewed.parts.contains(part))?;
                Some((of.clone(), part, renewed.stored))
            };
            renewed.iter().filter_map(|(of, renewed)| is_due(of, renewed)).collect()
        };
        let mut noted = Vec::new();
        for ((corpus, process), part, stored) in due {
            match self.epochs.note_stored(&corpus, process, part, stored) {
                Ok(is_noted) => noted.extend(is_noted.then_some((corpus, process, stored))),
                Err(error) => {
                    tracing::warn!(%error, %corpus, process, "cannot record the stored of passages of a process")
                }
            }
        }
        self.renewed.lock().retain(|(corpus, process), RenewedPassages { parts, stored }| {
            let is_noted = noted.iter().any(|(of, by, known)| of == corpus && by == process && known == stored);
            // It may have been noted for an epoch that is followed by another one with the same part.
            let newest = parts.iter().max();
            newest > current(corpus).as_ref() || (!is_noted && newest == current(corpus).as_ref())
        });
    }

    /// Keeps the newest epoch as it is now, without the indexes that it had before.
    pub fn hold_again(&self, epochs: &Arc<Epochs>) {
        let guard = epochs.pin();
        let mut before = Vec::new();
        for (_, held) in self.held.lock().iter_mut().filter(|((_, epoch), _)| *epoch == guard.epoch) {
            before.push(std::mem::replace(held, guard.clone()));
        }
        drop(before);
    }

    /// Tells the other processes which turns may start.
    pub fn begin(&self, beginning: Beginning) {
        if let Ok(note) = encode(&Note::Begin(beginning)) {
            self.peers.tell_all(Topic::Epochs, &note);
        }
    }

    /// Takes a message of another process.
    ///
    /// # Errors
    ///
    /// It cannot be decoded, or this process does not expect it.
    pub fn receive(self: &Arc<Self>, note: &Bytes) -> Result<Bytes, String> {
        match decode(note)? {
            Note::Released { process, epoch } => {
                let released = self.held.lock().remove(&(process, epoch));
                // A large part takes a while to drop.
                drop(tokio::task::spawn_blocking(move || drop(released)));
            }
            Note::Renewed { process, corpus, versions, stored } => {
                self.renewed.lock().insert((corpus, process), RenewedPassages { parts: versions, stored });
                let this = self.clone();
                drop(tokio::task::spawn_blocking(move || this.note_stored_now()));
            }
            Note::Found { corpus } => self.parts.publish_again(&corpus),
            Note::Published(_) | Note::Begin(_) => return Err("process 0 publishes the epochs".to_owned()),
        }
        Ok(Bytes::default())
    }
}

/// Tells the first process that this process has written its stored of passages anew, with those that all of these versions of
/// its part have.
pub(super) fn tell_renewed(peers: &Peers, corpus: &Arc<str>, versions: Vec<u64>, stored: u64) {
    let note = Note::Renewed { process: peers.shape.process, corpus: corpus.clone(), versions, stored };
    if let Ok(note) = encode(&note) {
        peers.tell_first(Topic::Epochs, note);
    }
}

/// Tells the first process that this process has more of a corpus than in the last epoch.
pub(super) fn tell_found(peers: &Peers, corpus: &Arc<str>) {
    if let Ok(note) = encode(&Note::Found { corpus: corpus.clone() }) {
        peers.tell_first(Topic::Epochs, note);
    }
}

/// Tells the first process when it is dropped that this process does not need the epoch any more.
struct Lease {
    peers: Arc<Peers>,
    epoch: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (process, epoch) = (self.peers.shape.process, self.epoch);
        if let Ok(note) = encode(&Note::Released { process, epoch }) {
            self.peers.tell_first(Topic::Epochs, note);
        }
    }
}

/// The epochs of another process than the first: those that the first process publishes.
pub(crate) struct FollowedEpochs {
    pub peers: Weak<Peers>,
    pub parts: Arc<ServedParts>,
    pub epochs: Arc<Epochs>,
    /// The aliases of a plan, which turns of the epoch use; `None` if this process has no such plan.
    pub aliases_of: Box<dyn Fn(u64) -> Option<Arc<Aliases>> + Send + Sync>,
    /// Starts turns.
    pub begin: Box<dyn Fn(Beginning) + Send + Sync>,
}

impl FollowedEpochs {
    /// Takes a message of the first process.
    ///
    /// # Errors
    ///
    /// It cannot be decoded, or this process lacks what an epoch consists of.
    pub fn receive(&self, note: &Bytes) -> Result<Bytes, String> {
        match decode(note)? {
            Note::Published(manifest) => self.adopt(manifest)?,
            Note::Begin(beginning) => (self.begin)(beginning),
            Note::Released { .. } | Note::Renewed { .. } | Note::Found { .. } => {
                return Err("only process 0 keeps epochs for others".to_owned());
            }
        }
        Ok(Bytes::default())
    }

    fn adopt(&self, Manifest { epoch, plan, corpora }: Manifest) -> Result<(), String> {
        let peers = self.peers.upgrade().ok_or("it is ending")?;
        let before = self.epochs.current();
        if before.epoch >= epoch {
            // Told again, because another process could not take it.
            return Ok(());
        }
        let lease = Lease { peers: peers.clone(), epoch };
        let aliases = (self.aliases_of)(plan).ok_or_else(|| format!("it has no plan {plan}"))?;
        let mut views = BTreeMap::new();
        for (name, part) in corpora {
            let version = part.version;
            let same = before.corpora.get(&name);
            let same = same.filter(|view| view.others.as_ref().is_some_and(|others| others.version() == version));
            let view = match same {
                Some(view) => view.clone(),
                None => {
                    let own = self.parts.version(&name, version);
                    let own = own.ok_or_else(|| format!("it has no version {version} of the corpus `{name}`"))?;
                    let mut view = CorpusSnapshot::clone(&own);
                    let others = Part {
                        version,
                        documents: part.documents.saturating_sub(view.documents),
                        chunks: part.chunks.saturating_sub(view.chunks),
                        missing: less(&part.missing, &view.missing),
                    };
                    view.add(OtherShards::following(peers.clone(), name.clone(), others));
                    Arc::new(view)
                }
            };
            views.insert(name, view);
        }
        self.epochs.follow(Snapshot {
            epoch,
            plan,
            family: plan,
            corpora: views,
            aliases,
            lease: Some(Arc::new(lease)),
        });
        Ok(())
    }
}
