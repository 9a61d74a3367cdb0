//! What outlives the process: how far each source has been answered, what conversations know,
//! and how far sinks have been written.
//!
//! A turn is *applied* when its answer has been delivered to every sink; its conversation's new
//! state is then put here, and its place is ticked off in its source's [`OffsetTracker`]. From time to
//! time a checkpoint writes, in one transaction, the place up to which everything is applied,
//! the conversations that have changed, and how long each sink was before anything behind that
//! place was written; sinks are synchronised before. So what a checkpoint says is applied is on
//! the disk.
//!
//! A restart goes on behind that place. Of what it reads again, a conversation knows what it
//! has applied already, and a sink that can be looked into knows which answers it has got; only
//! the rest is answered. A checkpoint is believed only where the files are those that it names.

mod conversation;
mod conversations;
mod offsets;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

pub use self::conversation::{ConversationChange, StoredConversation};
pub use self::offsets::OffsetTracker;
use self::store::Store;
pub use self::store::StoreError;
use crate::component::{DiskUsage, Maintained};
use crate::connector::{Offsets, SinkPosition};
use crate::dead_letter::DeadLetters;
use crate::record::{AnswerRecord, Turn};
use crate::sinks::SinkHandle;

/// Between checkpoints.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often expired conversations are looked for, in checkpoints.
const EXPIRE_EVERY: u32 = 60;

/// How long each sink was, by node.
pub type SinkPositions = BTreeMap<Arc<str>, SinkPosition>;

/// How far a source has been answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCheckpoint {
    /// Everything up to these offsets is applied.
    #[serde(alias = "place")]
    pub offsets: Offsets,
    /// Answers to what is behind the place are behind these.
    pub marks: SinkPositions,
    /// Answers to what is before it are before these.
    pub written: SinkPositions,
    /// The corpus epoch at that time.
    pub epoch: u64,
}

impl SourceCheckpoint {
    /// Whether it names the same files of sinks: a file that has been put in the place of another
    /// is to be known by all sources at once, those too that have been silent since.
    fn names_files_of(&self, other: &Self) -> bool {
        let same = |one: &SinkPositions, other: &SinkPositions| {
            let logs = |marks: &SinkPositions| {
                marks.iter().map(|(id, mark)| (id.clone(), mark.log.clone())).collect::<Vec<_>>()
            };
            logs(one) == logs(other)
        };
        same(&self.marks, &other.marks) && same(&self.written, &other.written)
    }
}

/// A turn that is to be answered again when what it retrieves changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredTurn {
    /// As it was answered last.
    pub turn: Arc<Turn>,
    /// What the sinks have of it, by node.
    pub records: BTreeMap<Arc<str>, AnswerRecord>,
    /// Seconds since the Unix epoch, of its first answer.
    pub since: u64,
}

type Key = (Arc<str>, Arc<str>);

/// What outlives the process; nothing does, without a state directory.
pub struct Durable {
    store: Option<Store>,
    dead: DeadLetters,
    state: Mutex<State>,
    work: Condvar,
    /// One commit at a time.
    committing: Mutex<()>,
    /// Workers that have not taken over their standing turns yet.
    loading: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// Conversations that have changed since the last checkpoint.
    pending: HashMap<Key, ConversationChange>,
    /// Those that a checkpoint is writing.
    writing: Arc<HashMap<Key, ConversationChange>>,
    /// Standing turns that have changed since, or have gone.
    standing: HashMap<Arc<str>, Option<StoredTurn>>,
    trackers: Vec<Weak<OffsetTracker>>,
    sinks: Vec<Weak<SinkHandle>>,
    committed: HashMap<Arc<str>, SourceCheckpoint>,
    ended: bool,
}

impl Durable {
    /// Opens what a state directory holds. A checkpoint waits for `dead`, the letters of what it
    /// passes over.
    ///
    /// # Errors
    ///
    /// The file cannot be written. One that is damaged is put aside and begun anew.
    pub fn open(directory: Option<&Path>, dead: DeadLetters) -> Result<Arc<Self>, StoreError> {
        let store = directory.map(|directory| Store::open(&directory.join("turns.redb"))).transpose()?;
        let (state, committing, loading) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
        Ok(Arc::new(Self { store, dead, state, work: Condvar::new(), committing, loading }))
    }

    /// Whether anything outlives the process.
    pub fn is_kept(&self) -> bool {
        self.store.is_some()
    }

    /// How far a source had been answered.
    ///
    /// # Errors
    ///
    /// It cannot be read, which does not say that there is none.
    pub fn checkpoint(&self, source: &str) -> Result<Option<SourceCheckpoint>, StoreError> {
        Ok(self.store.as_ref().map_or(Ok(None), |store| store.source(source))?)
    }

    /// The newest epoch that a checkpoint names.
    ///
    /// # Errors
    ///
    /// A checkpoint cannot be read.
    pub fn epoch(&self) -> Result<u64, StoreError> {
        Ok(self.store.as_ref().map_or(Ok(None), Store::epoch)?.unwrap_or_default())
    }

    /// Forgets all of a source: it is read from its beginning.
    pub fn forget(&self, source: &str) -> Result<(), StoreError> {
        self.state.lock().pending.retain(|(of, _), _| **of != *source);
        Ok(self.store.as_ref().map_or(Ok(()), |store| store.forget(source))?)
    }

    /// Checkpoints are to tell of this source.
    pub fn add_source(&self, tracker: &Arc<OffsetTracker>) {
        let mut state = self.state.lock();
        state.trackers.retain(|tracker| tracker.strong_count() > 0);
        state.trackers.push(Arc::downgrade(tracker));
    }

    /// Checkpoints are to wait for this sink's disk.
    pub fn add_sink(&self, sink: &Arc<SinkHandle>) {
        let mut state = self.state.lock();
        state.sinks.retain(|sink| sink.strong_count() > 0);
        state.sinks.push(Arc::downgrade(sink));
    }

    /// Those that checkpoints wait for.
    pub(crate) fn sinks(&self) -> Vec<Arc<SinkHandle>> {
        self.state.lock().sinks.iter().filter_map(Weak::upgrade).collect()
    }

    /// Behind which marks of the sinks answers may be that nothing else knows of.
    pub fn marks(&self) -> SinkPositions {
        let mut marks = SinkPositions::new();
        for sink in self.sinks() {
            // A reload may have put another in the place of one that still has turns.
            let Some(mark) = sink.since() else { continue };
            let lower = |there: &SinkPosition| there.log == mark.log && there.length <= mark.length;
            if !marks.get(sink.id()).is_some_and(lower) {
                marks.insert(sink.id().clone(), mark);
            }
        }
        marks
    }

    /// So many workers are about to take standing turns over.
    pub fn begin_loading(&self, workers: usize) {
        self.loading.store(workers, Ordering::Release);
    }

    /// One of them has.
    pub fn loaded(&self) {
        self.loading.fetch_sub(1, Ordering::AcqRel);
    }

    /// What a standing turn has in the sinks is noted.
    pub fn release(&self, key: &str) {
        self.sinks().iter().for_each(|sink| sink.release(key));
    }

    /// What a conversation knew.
    ///
    /// # Errors
    ///
    /// It cannot be read; what would be put in its place takes it away.
    pub fn load(&self, source: &Arc<str>, conversation: &Arc<str>) -> Result<Option<StoredConversation>, StoreError> {
        let Some(store) = &self.store else { return Ok(None) };
        let key = (source.clone(), conversation.clone());
        // Before the store is read: what is written meanwhile is in both.
        let changes: Vec<ConversationChange> = {
            let state = self.state.lock();
            [state.writing.get(&key), state.pending.get(&key)].into_iter().flatten().cloned().collect()
        };
        let mut known = store.conversation(source, conversation)?;
        for change in changes {
            match &mut known {
                Some(known) => known.apply(&change),
                None => known = Some(change.into()),
            }
        }
        Ok(known)
    }

    /// Notes what has changed of a conversation; to be called before its record is ticked off.
    pub fn put(&self, source: &Arc<str>, conversation: &Arc<str>, change: ConversationChange) {
        if self.store.is_none() {
            return;
        }
        let key = (source.clone(), conversation.clone());
        let mut state = self.state.lock();
        let change = match state.pending.remove(&key) {
            Some(before) => before.then(change),
            None => change,
        };
        state.pending.insert(key, change);
    }

    /// Standing turns of an earlier process.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub fn standing(&self) -> Result<Vec<StoredTurn>, StoreError> {
        Ok(self.store.as_ref().map_or(Ok(Vec::new()), Store::standing)?)
    }

    /// Notes a standing turn, or that it stands no more.
    pub fn put_standing(&self, key: &Arc<str>, turn: Option<StoredTurn>) {
        if self.store.is_some() {
            self.state.lock().standing.insert(key.clone(), turn);
        }
    }

    /// Without a state directory: what is answered is with every sink, and that is all there is.
    fn acknowledge(&self) -> Result<(), StoreError> {
        let trackers: Vec<_> = self.state.lock().trackers.iter().filter_map(Weak::upgrade).collect();
        let lows: Vec<_> = trackers.iter().filter_map(|tracker| Some((tracker, tracker.low()?))).collect();
        self.dead.settle().map_err(StoreError::DeadLetters)?;
        self.sinks().iter().try_for_each(|sink| sink.sync()).map_err(StoreError::Sink)?;
        lows.iter().for_each(|(tracker, (offsets, _))| tracker.acknowledgements().acknowledge(offsets));
        Ok(())
    }

    /// Writes a checkpoint, if there is anything new, and tells the sources what it covers.
    pub fn commit(&self, epoch: u64) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return self.acknowledge() };
        let _one = self.committing.lock();
        let sinks = self.sinks();
        let trackers: Vec<_> = self.state.lock().trackers.iter().filter_map(Weak::upgrade).collect();
        if self.loading.load(Ordering::Acquire) == 0 && trackers.iter().all(|tracker| tracker.is_replayed()) {
            sinks.iter().for_each(|sink| sink.replayed());
        }
        let now = self.marks();
        // Before the conversations are taken: what is ticked off has been put.
        let low = |tracker: &Arc<OffsetTracker>| Some((tracker.clone(), tracker.low_since(&now)?));
        let lows: Vec<_> = trackers.iter().filter_map(low).collect();
        // And after: what is applied is written.
        let written: SinkPositions = sinks.iter().filter_map(|sink| Some((sink.id().clone(), sink.mark()?))).collect();
        let checkpoint = |(tracker, (offsets, marks))| {
            (tracker, SourceCheckpoint { offsets, marks, written: written.clone(), epoch })
        };
        let lows: Vec<(Arc<OffsetTracker>, SourceCheckpoint)> = lows.into_iter().map(checkpoint).collect();
        let (pending, standing, new) = {
            let mut state = self.state.lock();
            let is_new = |(source, low): &(Arc<str>, SourceCheckpoint)| {
                state.committed.get(source).is_none_or(|old| old.offsets != low.offsets || !old.names_files_of(low))
            };
            let of_source =
                |(tracker, low): &(Arc<OffsetTracker>, SourceCheckpoint)| (tracker.source().clone(), low.clone());
            let new: Vec<_> = lows.iter().map(of_source).filter(is_new).collect();
            let pending = Arc::new(std::mem::take(&mut state.pending));
            state.writing = pending.clone();
            (pending, std::mem::take(&mut state.standing), new)
        };
        if pending.is_empty() && standing.is_empty() && new.is_empty() {
            return Ok(());
        }
        // What it passes over is an answer or a dead letter, and these are on the disk before it is.
        let written = self.dead.settle().map_err(StoreError::DeadLetters);
        let written = written.and_then(|()| sinks.iter().try_for_each(|sink| sink.sync()).map_err(StoreError::Sink));
        let written = written.and_then(|()| Ok(store.write(&new, &pending, &standing)?));
        let mut state = self.state.lock();
        state.writing = Arc::default();
        match &written {
            Ok(()) => {
                state.committed.extend(new);
                lows.iter().for_each(|(tracker, low)| tracker.acknowledgements().acknowledge(&low.offsets));
            }
            // What has been put since is newer.
            Err(_) => {
                for (key, change) in Arc::unwrap_or_clone(pending) {
                    let change = match state.pending.remove(&key) {
                        Some(newer) => change.then(newer),
                        None => change,
                    };
                    state.pending.insert(key, change);
                }
                for (key, turn) in standing {
                    state.standing.entry(key).or_insert(turn);
                }
            }
        }
        written
    }

    /// Writes checkpoints until [`Durable::end`], and the last one.
    pub fn work(&self, epoch: impl Fn() -> u64, idle: impl Fn() -> u64) {
        let mut failing = false;
        for round in 1u32.. {
            let ended = {
                let mut state = self.state.lock();
                if !state.ended {
                    self.work.wait_for(&mut state, INTERVAL);
                }
                state.ended
            };
            let mut done = self.commit(epoch());
            if round.is_multiple_of(EXPIRE_EVERY) && done.is_ok() {
                done = self.expire(idle());
            }
            match done {
                Err(error) if !failing => {
                    failing = true;
                    tracing::error!(%error, "no checkpoint could be written; turns go on, and it is tried again");
                }
                Err(error) => tracing::debug!(%error, "no checkpoint could be written"),
                Ok(()) if failing => {
                    failing = false;
                    tracing::warn!("checkpoints are written again");
                }
                Ok(()) => {}
            }
            if ended {
                return;
            }
        }
    }

    /// Lets go of conversations that have not been used for so many seconds. Gives how many
    /// through the log.
    pub fn expire(&self, idle_s: u64) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        let mut gone = 0;
        loop {
            // Checkpoints come between, and have none to wait for long.
            let _one = self.committing.lock();
            let expired = store.expire(StoredConversation::now(), idle_s)?;
            gone += expired.gone;
            if expired.changed == 0 || self.state.lock().ended {
                break;
            }
        }
        if gone > 0 {
            tracing::info!(gone, "conversations have expired");
        }
        Ok(())
    }

    /// Lets go of conversations in a state directory that have not been used for so many
    /// seconds, and gives what is free back to the disk; nobody else may have it open. `None`
    /// where nothing is there.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or written.
    pub fn maintain(directory: &Path, idle_s: u64) -> Result<Option<Maintained>, StoreError> {
        let path = directory.join("turns.redb");
        if !path.exists() {
            return Ok(None);
        }
        let (begun, before) = (Instant::now(), DiskUsage::of(&path));
        let store = Store::open(&path)?;
        let now = StoredConversation::now();
        let mut gone = 0;
        loop {
            let expired = store.expire(now, idle_s)?;
            gone += expired.gone;
            if expired.changed == 0 {
                break;
            }
        }
        store.compact()?;
        let after = DiskUsage::of(&path);
        let mut did = Vec::new();
        if gone > 0 {
            did.push(format!("{gone} conversations expired"));
        }
        if after.bytes < before.bytes {
            did.push("compacted".to_owned());
        }
        Ok(Some(Maintained { before, after, took: begun.elapsed(), did }))
    }

    /// Ends [`Durable::work`].
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.work.notify_all();
    }
}

#[cfg(test)]
impl Durable {
    /// As on a disk that has gone after a write failed.
    pub(crate) fn hide(&self, path: &Path) {
        self.store.iter().for_each(|store| store.hide(path));
    }

    /// The disk is there again.
    pub(crate) fn show(path: &Path) {
        Store::show(path);
    }
}
