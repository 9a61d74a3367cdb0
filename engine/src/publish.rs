//! Epochs: the snapshots that turns read, and their publication.
//!
//! One task per corpus changes its indexes, off the workers. When all indexes have applied a delta,
//! the next epoch is published atomically. A turn keeps the epoch that it started with; old index
//! readers are dropped when the last such turn is done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::append;
use crate::component::{Aliases, CorpusSnapshot, Delta, IndexError, Snapshot};
use crate::connector::Unreadable;
use crate::state::{PASSAGES, passages_of};

/// The published epochs that are still read.
pub struct Epochs {
    /// Serializes changes. Locked before `state`, which turns also lock.
    changing: Mutex<()>,
    state: Mutex<State>,
    current: watch::Sender<u64>,
    directory: Option<PathBuf>,
}

/// A change of a corpus in one epoch.
#[derive(Clone)]
pub struct Change {
    /// The corpus.
    pub corpus: Arc<str>,
    /// Its passages that were added and removed.
    pub delta: Arc<Delta>,
}

/// A switch to another plan.
pub struct PlanSwitch {
    /// The number of the plan.
    pub plan: u64,
    /// The number of the first of the plans that give the same answers from the same passages.
    pub family: u64,
    /// Other names of its corpora.
    pub aliases: Arc<Aliases>,
    /// What it changes in the corpora, if the plan before was of the same family and all is known.
    pub changes: Option<Vec<Change>>,
}

/// Most epochs whose changes are kept for standing turns, and most passages in them.
const KEPT_EPOCHS: usize = 256;
const KEPT_PASSAGES: usize = 4096;

struct State {
    current: Arc<Snapshot>,
    /// The changes of the last epochs. `None`: not known, or of what the plan answers.
    changes: VecDeque<(u64, Option<Vec<Change>>)>,
    /// Corpora that are no longer in any plan. Their pending changes are not published.
    gone: BTreeSet<Arc<str>>,
    /// Epochs that turns read: the plan of each, and the number of turns.
    pinned: BTreeMap<u64, (u64, usize)>,
    /// On-disk versions of the indexes as of the last epoch, by corpus and key. Includes indexes of
    /// an earlier process that are not open yet.
    versions: Versions,
}

/// Index versions, by corpus and index key.
type Versions = BTreeMap<Arc<str>, BTreeMap<String, u64>>;

/// The content of `epoch.json` in the state directory.
#[derive(Default, Serialize, Deserialize)]
struct EpochFile {
    epoch: u64,
    #[serde(default)]
    indexes: Versions,
}

impl Epochs {
    /// Resumes counting from the epoch in the state directory.
    ///
    /// # Errors
    ///
    /// `epoch.json` cannot be read.
    pub fn open(directory: Option<&Path>) -> Result<Self, IndexError> {
        let mut known = EpochFile::default();
        if let Some(directory) = directory {
            let path = directory.join("epoch.json");
            match std::fs::read(&path) {
                // A torn file is harmless: the indexes are compared again and do not depend on it.
                Ok(bytes) => known = serde_json::from_slice(&bytes).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(IndexError::Io { action: "read", path, source }),
            }
        }
        let EpochFile { epoch, indexes: versions } = known;
        let current = Arc::new(Snapshot { epoch, plan: 1, family: 1, ..Snapshot::default() });
        Ok(Self {
            changing: Mutex::default(),
            state: Mutex::new(State {
                current,
                changes: VecDeque::new(),
                gone: BTreeSet::new(),
                pinned: BTreeMap::new(),
                versions,
            }),
            current: watch::channel(epoch).0,
            directory: directory.map(Path::to_owned),
        })
    }

    /// The newest epoch.
    pub fn current(&self) -> Arc<Snapshot> {
        self.state.lock().current.clone()
    }

    /// Raises the epoch to at least this number.
    pub fn count_from(&self, epoch: u64) {
        let _one = self.changing.lock();
        let mut state = self.state.lock();
        if state.current.epoch < epoch {
            state.current = Arc::new(Snapshot { epoch, ..Snapshot::clone(&state.current) });
            drop(state);
            self.current.send_replace(epoch);
        }
    }

    /// Sets the aliases of the first plan. This is not a new epoch, since no turn has started.
    pub fn set_aliases(&self, aliases: Arc<Aliases>) {
        let _one = self.changing.lock();
        let mut state = self.state.lock();
        state.current = Arc::new(Snapshot { aliases, ..Snapshot::clone(&state.current) });
    }

    /// The on-disk version of an index as of the last epoch.
    pub fn version(&self, corpus: &str, key: &str) -> Option<u64> {
        self.state.lock().versions.get(corpus)?.get(key).copied()
    }

    /// The versions of the stored passages of all processes of a cluster as of the last epoch, this one's first. `None` if
    /// one is not known, or if the epoch is that of another number of processes.
    pub fn stored(&self, corpus: &str, processes: usize) -> Option<Vec<u64>> {
        let state = self.state.lock();
        let versions = state.versions.get(corpus)?;
        let known = versions.keys().filter(|key| key.starts_with(PASSAGES)).count();
        let names = std::iter::once(PASSAGES.to_owned()).chain((1..processes).map(passages_of));
        let all: Option<Vec<u64>> = names.map(|name| versions.get(&name).copied()).collect();
        all.filter(|all| all.len() == known)
    }

    /// Records the version of another process's stored passages, which it has written anew, if the current epoch has this
    /// version of the corpus's parts. Returns whether it has.
    ///
    /// # Errors
    ///
    /// `epoch.json` cannot be written.
    pub(crate) fn note_stored(
        &self,
        corpus: &Arc<str>,
        process: usize,
        part: u64,
        stored: u64,
    ) -> Result<bool, IndexError> {
        let _one = self.changing.lock();
        let (epoch, mut versions) = {
            let state = self.state.lock();
            let others = state.current.corpora.get(corpus).and_then(|view| view.others.as_ref());
            if others.is_none_or(|others| others.version() != part) {
                return Ok(false);
            }
            (state.current.epoch, state.versions.clone())
        };
        versions.entry(corpus.clone()).or_default().insert(passages_of(process), stored);
        if let Some(directory) = &self.directory {
            write_epoch(directory, epoch, versions.clone())?;
        }
        self.state.lock().versions = versions;
        Ok(true)
    }

    /// Records the new on-disk version of an index after its maintenance.
    ///
    /// # Errors
    ///
    /// `epoch.json` cannot be written.
    pub fn note_version(&self, corpus: &Arc<str>, key: &str, version: u64) -> Result<(), IndexError> {
        let _one = self.changing.lock();
        let (epoch, versions) = {
            let mut state = self.state.lock();
            let known = state.versions.entry(corpus.clone()).or_default();
            if known.insert(key.to_owned(), version) == Some(version) {
                return Ok(());
            }
            (state.current.epoch, state.versions.clone())
        };
        self.directory.as_deref().map_or(Ok(()), |directory| write_epoch(directory, epoch, versions))
    }

    /// A receiver that is notified of each new epoch.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.current.subscribe()
    }

    /// Publishes a corpus's new view in the next epoch; returns the epoch. `delta`: what it changes, if that is known.
    ///
    /// # Errors
    ///
    /// `epoch.json` cannot be written; nothing is published.
    pub fn publish(
        &self,
        corpus: &Arc<str>,
        view: CorpusSnapshot,
        delta: Option<Arc<Delta>>,
    ) -> Result<u64, IndexError> {
        let changes = delta.map(|delta| vec![Change { corpus: corpus.clone(), delta }]);
        self.change(changes, |next, gone| {
            let published = !gone.contains(corpus);
            if published {
                next.corpora.insert(corpus.clone(), Arc::new(view));
            }
            published
        })
    }

    /// Whether a reload has removed a corpus: nothing of it is published any more.
    pub fn has_left(&self, corpus: &str) -> bool {
        self.state.lock().gone.contains(corpus)
    }

    /// Sets whether later changes of a corpus are published.
    pub fn admit(&self, corpus: &Arc<str>, admitted: bool) {
        let _one = self.changing.lock();
        let gone = &mut self.state.lock().gone;
        match admitted {
            true => gone.remove(corpus),
            false => gone.insert(corpus.clone()),
        };
    }

    /// Switches to another plan in one epoch: adds the views that it needs, removes the corpora that
    /// it does not name, and sets its aliases.
    ///
    /// # Errors
    ///
    /// `epoch.json` cannot be written; nothing is published.
    pub fn switch(
        &self,
        PlanSwitch { plan, family, aliases, changes }: PlanSwitch,
        views: Vec<(Arc<str>, CorpusSnapshot)>,
        kept: impl Fn(&str) -> bool,
    ) -> Result<u64, IndexError> {
        self.change(changes, |next, gone| {
            gone.extend(next.corpora.keys().filter(|name| !kept(name)).cloned());
            (next.plan, next.family) = (plan, family);
            next.aliases = aliases;
            next.corpora.extend(views.into_iter().map(|(name, view)| (name, Arc::new(view))));
            next.corpora.retain(|name, _| kept(name));
            true
        })
    }

    /// Drops a corpus's readers of indexes that are not in `keys`: no plan uses them any more.
    /// This is not a new epoch, since no turn can observe the difference.
    pub fn trim(&self, corpus: &str, keys: &BTreeSet<String>) {
        let _one = self.changing.lock();
        let mut state = self.state.lock();
        let Some(view) = state.current.corpora.get(corpus) else { return };
        if view.indexes.keys().all(|key| keys.contains(key)) {
            return;
        }
        let view = view.with_indexes(keys);
        let mut trimmed = Snapshot::clone(&state.current);
        trimmed.corpora.insert(corpus.into(), Arc::new(view));
        state.current = Arc::new(trimmed);
    }

    /// The changes of the epochs after this one, if all are known.
    pub fn changes_since(&self, epoch: u64) -> Option<Vec<Change>> {
        let state = self.state.lock();
        let later = state.changes.iter().filter(|(of, _)| *of > epoch);
        let changes: Vec<Vec<Change>> = later.map(|(_, changes)| changes.clone()).collect::<Option<_>>()?;
        let are_all = changes.len() as u64 == state.current.epoch.saturating_sub(epoch);
        are_all.then(|| changes.into_iter().flatten().collect())
    }

    fn change(
        &self,
        told: Option<Vec<Change>>,
        change: impl FnOnce(&mut Snapshot, &mut BTreeSet<Arc<str>>) -> bool,
    ) -> Result<u64, IndexError> {
        let _one = self.changing.lock();
        let (current, mut gone, mut versions) = {
            let state = self.state.lock();
            (state.current.clone(), state.gone.clone(), state.versions.clone())
        };
        let mut next = Snapshot::clone(&current);
        next.epoch += 1;
        let epoch = next.epoch;
        if !change(&mut next, &mut gone) {
            return Ok(current.epoch);
        }
        // Unchanged corpora are skipped: their on-disk versions may be newer than their views.
        let is_new = |(corpus, view): &(&Arc<str>, &Arc<CorpusSnapshot>)| {
            current.corpora.get(*corpus).is_none_or(|old| !Arc::ptr_eq(old, view))
        };
        for (corpus, view) in next.corpora.iter().filter(is_new) {
            versions.insert(corpus.clone(), view.versions.clone());
        }
        if let Some(directory) = &self.directory {
            // `state` is not locked here, so turns can pin epochs meanwhile.
            write_epoch(directory, epoch, versions.clone())?;
        }
        {
            let mut state = self.state.lock();
            state.versions = versions;
            state.gone = gone;
            state.current = Arc::new(next);
            state.keep(epoch, told);
        }
        self.current.send_replace(epoch);
        Ok(epoch)
    }

    /// Takes an epoch that another process has published, unless it is older than the current one.
    pub(crate) fn follow(&self, next: Snapshot) {
        let _one = self.changing.lock();
        let epoch = next.epoch;
        let before = {
            let mut state = self.state.lock();
            if state.current.epoch > epoch {
                return;
            }
            std::mem::replace(&mut state.current, Arc::new(next))
        };
        // It may be the last hold on a large index.
        drop(before);
        self.current.send_replace(epoch);
    }

    /// Pins the newest snapshot for a turn that starts.
    pub fn pin(self: &Arc<Self>) -> SnapshotGuard {
        let mut state = self.state.lock();
        let snapshot = state.current.clone();
        state.pinned.entry(snapshot.epoch).or_insert((snapshot.plan, 0)).1 += 1;
        drop(state);
        SnapshotGuard(Arc::new(Held { snapshot, epochs: self.clone() }))
    }

    /// The number of turns that hold a snapshot.
    pub fn pinned(&self) -> usize {
        self.state.lock().pinned.values().map(|(_, turns)| turns).sum()
    }

    /// The oldest plan that still answers turns: that of a pinned epoch or of the current one.
    pub fn oldest_plan(&self) -> u64 {
        let state = self.state.lock();
        let pinned = state.pinned.values().map(|(plan, _)| *plan);
        pinned.chain([state.current.plan]).min().unwrap_or_default()
    }

    /// Releases a turn's hold on its epoch.
    fn unpin(&self, epoch: u64) {
        let mut state = self.state.lock();
        if let Some((_, readers)) = state.pinned.get_mut(&epoch) {
            *readers -= 1;
            if *readers == 0 {
                state.pinned.remove(&epoch);
            }
        }
    }
}

impl State {
    /// Keeps the change of an epoch for standing turns.
    fn keep(&mut self, epoch: u64, changes: Option<Vec<Change>>) {
        self.changes.push_back((epoch, changes));
        let of = |change: &Change| change.delta.added.len() + change.delta.removed.len();
        let size = |(_, changes): &(u64, Option<Vec<Change>>)| changes.iter().flatten().map(of).sum::<usize>();
        let mut passages: usize = self.changes.iter().map(size).sum();
        while self.changes.len() > KEPT_EPOCHS || passages > KEPT_PASSAGES {
            passages -= self.changes.pop_front().as_ref().map_or(0, size);
        }
    }
}

/// A snapshot that a turn holds. Its readers and its plan are kept until the last clone is dropped.
#[derive(Clone)]
pub struct SnapshotGuard(Arc<Held>);

struct Held {
    snapshot: Arc<Snapshot>,
    epochs: Arc<Epochs>,
}

impl SnapshotGuard {
    /// The snapshot, which may outlive the guard.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.0.snapshot
    }
}

impl std::ops::Deref for SnapshotGuard {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0.snapshot
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.epochs.unpin(self.snapshot.epoch);
    }
}

/// Writes `epoch.json`. Called before the epoch is readable, so that no answer on disk names an epoch
/// that is not recorded.
fn write_epoch(directory: &Path, epoch: u64, indexes: Versions) -> Result<(), IndexError> {
    let path = directory.join("epoch.json");
    let text = serde_json::to_vec(&EpochFile { epoch, indexes }).map_err(std::io::Error::from);
    text.and_then(|text| append::replace(&path, &text)).map_err(|source| IndexError::Io {
        action: "write",
        path,
        source,
    })
}

/// Counters of a corpus, for progress bars and summaries.
#[derive(Debug, Default)]
pub struct CorpusProgress {
    /// Documents read so far.
    pub documents: AtomicU64,
    /// Those of them that have no text.
    pub empty: AtomicU64,
    /// Passages cut since the start, those of edited documents again.
    pub cut: AtomicU64,
    /// Contents queued for preparation (embedded, if new).
    pub prepare: AtomicU64,
    /// Contents that are prepared.
    pub prepared: AtomicU64,
    /// Contents computed by a model, counted once for each index that uses one.
    pub embedded: AtomicU64,
    /// The source's commits that are read, chunked and prepared.
    pub passed: AtomicU64,
    /// Epochs published for this corpus.
    pub publications: AtomicU64,
    /// Failed calls of its chunker, preparations and indexes; each attempt counts.
    pub failures: AtomicU64,
    /// What the source cannot read.
    pub unreadable: Arc<Unreadable>,
    /// The documents that were read and cannot be cut into passages.
    pub uncut: Arc<Unreadable>,
    /// Contents that indexes lack because a model's server is away.
    pub missing: AtomicU64,
    /// Why they are missing.
    pub problem: Mutex<Option<String>>,
    /// What the other processes of a cluster lacked at the last epoch. Only the first process knows it.
    pub elsewhere: Mutex<Lacking>,
}

/// Contents that indexes lack because a model's server is away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacking {
    /// Their number.
    pub missing: u64,
    /// Why they are missing.
    pub problem: Option<String>,
    /// Number of chunks that lack them by index key, in a part of an epoch.
    pub indexes: BTreeMap<String, u64>,
}

impl CorpusProgress {
    /// The value of a counter.
    pub fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Number of documents and records that are missing because they cannot be read or cut. In a cluster, those that
    /// another process cannot cut are counted there.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.count() + self.uncut.count()
    }

    /// Whether what is at this place is missing.
    pub fn lacks(&self, place: &str) -> bool {
        self.unreadable.has(place) || self.uncut.has(place)
    }

    /// The first of them, each as its place and the reason.
    pub fn unreadable_because(&self, most: usize) -> Vec<String> {
        let all = [&self.unreadable, &self.uncut].into_iter().flat_map(|unreadable| unreadable.first(most));
        all.take(most).map(|(place, reason)| format!("{place}: {reason}")).collect()
    }

    /// What indexes lack because a model's server is away: in this process, and in a cluster's first process in all of
    /// them.
    pub fn lacking(&self) -> Lacking {
        let (own, elsewhere) = (self.lacking_here(), self.elsewhere.lock().clone());
        let (missing, problem) = (own.missing + elsewhere.missing, own.problem.or(elsewhere.problem));
        Lacking { missing, problem, indexes: elsewhere.indexes }
    }

    /// What indexes of this process lack.
    pub(crate) fn lacking_here(&self) -> Lacking {
        Lacking { missing: Self::get(&self.missing), problem: self.problem.lock().clone(), indexes: BTreeMap::new() }
    }
}
