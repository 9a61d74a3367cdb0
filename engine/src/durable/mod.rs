//! Durable state: checkpoints of sources, conversations, and positions of sinks.
//!
//! A turn is *applied* when its answer has been delivered to every sink. Its conversation's new state
//! is then put here, and its offset is ticked off in its source's [`OffsetTracker`]. A periodic
//! checkpoint writes in one transaction: the offsets up to which everything is applied, the changed
//! conversations, and the length that each sink had before anything after these offsets was written.
//! Sinks are synced before, so everything that a checkpoint covers is on disk.
//!
//! A restart resumes after these offsets. Some records are read again: a conversation knows which of
//! them it has applied, and a sink whose contents can be read back knows which answers it has; only
//! the rest is answered. A checkpoint is valid only if the files are those that it names.
//!
//! # Restarts
//!
//! All state that outlives the process is in the state directory: indexes, inference cache, dead letters, and
//! `turns.redb` (`engine/src/durable/`).
//!
//! **Applied records.** A user's record is *applied* when its answer is in every sink, and an agent's record when it is
//! in the history. Then the new utterances are put aside for the next checkpoint (`conversation.rs`; `conversations.rs`
//! stores one row per utterance, so the cost of a turn does not grow with its history), and the record is ticked off in
//! its source's offset tracker.
//!
//! **Checkpoints.** A checkpoint is written once a second, after the sinks and the dead letters have been synced. Sinks
//! continue to write meanwhile; only a sink whose file was rotated waits for the disk, once, before its next write. One
//! transaction contains:
//!
//! - for each partition of a source, the offset up to which all records are applied;
//! - the conversations and the standing turns that have changed;
//! - the epoch;
//! - the length of each sink before any answer beyond these offsets was written. A revision that has reached one sink
//!   and not yet another holds this mark back.
//!
//! **Epochs on disk.** `epoch.json` records which version of the passages and of each index (Lance's version, tantivy's
//! commit) belongs to the epoch. The epoch that a checkpoint names is never assigned again.
//!
//! **File replacement.** A file is replaced by writing a new file beside it, syncing it, renaming it, and syncing the
//! directory (`append.rs`). Only then is anything that depends on it reported as done.
//!
//! **Unreadable store.** If the checkpoint database cannot be opened, the start fails. If it cannot be read later, the
//! turns of the affected conversations wait; they are never answered without their history. A database that is damaged
//! at the start is moved aside and replaced by an empty one (the handbook says what that loses).
//!
//! **Resuming.** A restart (`engine/src/run/resume.rs`) resumes after the checkpoint's offsets, and compares what it
//! finds:
//!
//! - **Sources** compare the log with its description in the checkpoint: device and inode, a hash of what was read of
//!   it (of a long log, of its first part and of the last bytes), and its length. A log that was rotated meanwhile is
//!   found under its new name. A log that is replaced, rewritten or copied while it is read is compared in the same
//!   way. The start of a source is recorded before its first record is read, so a log that is rotated before the first
//!   checkpoint is found too.
//! - **Sinks** compare their file with the checkpoint's mark (as for logs: the file, and a hash of what was written),
//!   remove an answer that was cut off, and collect the keys of the answers after the mark. If the file only begins
//!   like the marked one, or without a usable mark, they collect the keys of all answers, including those in rotated
//!   files. A sink that the checkpoint does not know is new and gets only new answers. A reload that adds a source
//!   which an earlier process has read searches its last answers in the same way (`resume_some`).
//! - **Replayed records** are skipped if the conversation has applied them. A record that was sent twice into one log
//!   is recognised among the utterances of the conversation (`conversations/again.rs`), by turn and text; another text
//!   for a turn ends the history before it. If a sink already has the answer, the record is applied without being
//!   answered, and the other sinks that the same node feeds get a copy of that answer.
//! - **Indexes** are compared with the epoch by version, and in any case with the corpus by content.
//! - **Corpora** are published as the last run has published them, before their sources are read
//!   (`engine/src/corpus/index_writer/stored.rs`). Their passages are a table (`PassageStore`;
//!   `operators/src/passage_table/`), to which a publication appends while its indexes are changed. Its version is in
//!   `epoch.json` with those of the indexes, so a start reads it exactly as of the last epoch. The version has a hash
//!   of all data files, and nothing is synced: after a power loss, the hash does not match, and the source is read
//!   first. So it is if an index lacks something that only a model can add. Callers are answered from then on
//!   (`TurnsShared::serving`); turns of sources wait until the sources of all corpora are read (`ready`). The first
//!   changes of a feed, which have all of its passages, are compared with the stored ones, and the difference is the
//!   next publication. A cut passage that equals a stored one is replaced by it, so nothing is kept twice. A run with
//!   `--once`, and a corpus with `access`, read their sources first. In a cluster, see `cluster`.
//!
//! If the sinks' files are gone, so are their answers, and the source is read from the beginning. If only the
//! checkpoint is gone, the answers in the files are used. An answer is therefore in a file exactly once, as long as the
//! file and the log are those that were written, or have been renamed within their directories. A sink that cannot be
//! read back gets each answer at least once, with a key that identifies duplicates.
//!
//! **Backups.** With `--backup`, `engine/src/backup/` copies the encodings to an object store. Only indexes whose
//! definition names what to keep (`IndexDefinition::backed_up`) are copied: those that call models. A task compares the
//! files on disk with those of the last copy every few seconds. Lance's files have names that are not used again, and a
//! version goes only after a newer one has come. So two equal lists in a row contain a complete version (`files.rs`).
//! Contents are uploaded under their hashes, then the description that names them is replaced, if it is still the one
//! that this run wrote, and then what it does not name is removed (`write.rs`). A start restores an index whose
//! directory is missing into a directory beside it, and renames that when everything is there and on the disk
//! (`restore.rs`). The store is a trait; `connectors/src/backup.rs` implements it.

mod checkpoint;
mod conversation;
mod conversations;
mod expire;
mod first;
mod former;
mod histories;
mod offsets;
mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

pub use self::conversation::{ConversationChange, FormerTurn, Said, StoredConversation};
pub(crate) use self::first::{First, StoreQuestion};
pub use self::histories::Histories;
pub use self::offsets::OffsetTracker;
use self::store::Store;
pub use self::store::StoreError;
use crate::connector::{Offsets, SinkPosition};
use crate::dead_letter::DeadLetters;
use crate::record::{AnswerRecord, Turn};
use crate::sinks::SinkHandle;

/// Bytes of changes that may wait for a checkpoint; then no more records are read.
const UNWRITTEN: u64 = 16 << 20;

/// The database in a state directory.
const STORE: &str = "turns.redb";

/// The position of each sink, by node.
pub type SinkPositions = BTreeMap<Arc<str>, SinkPosition>;

/// The checkpoint of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCheckpoint {
    /// Everything up to these offsets is applied.
    #[serde(alias = "place")]
    pub offsets: Offsets,
    /// Answers to records after the offsets are after these positions.
    pub marks: SinkPositions,
    /// Answers to records before the offsets are before these positions.
    pub written: SinkPositions,
    /// The corpus epoch at the time of the checkpoint.
    pub epoch: u64,
}

impl SourceCheckpoint {
    /// Whether it names the same sink files. When a sink's file is replaced, the checkpoints of all
    /// sources must name the new one, also of sources without new records.
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

/// A standing turn, which is answered again when its retrieved passages change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredTurn {
    /// The turn, as it was last answered.
    pub turn: Arc<Turn>,
    /// The answers that the sinks have, by node.
    pub records: BTreeMap<Arc<str>, AnswerRecord>,
    /// Time of its first answer, in seconds since the Unix epoch.
    pub since: u64,
}

type Key = (Arc<str>, Arc<str>);
type Standing = HashMap<Arc<str>, Option<StoredTurn>>;

/// Where the durable state is.
enum Kept {
    /// In a database of this process.
    Here(Store),
    /// With the first process of the cluster.
    First(First),
}

/// A conversation as it is loaded.
pub(crate) type Loaded = Result<Option<StoredConversation>, StoreError>;

/// The standing turns in a state directory that no process uses.
///
/// # Errors
///
/// The database is in use, or cannot be read.
pub fn standing_turns(state: &Path) -> Result<Vec<StoredTurn>, StoreError> {
    let path = state.join(STORE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let mut turns = Vec::new();
    Store::open(&path)?.each_standing(&|_| true, &mut |stored| turns.push(stored))?;
    turns.sort_by_key(|stored| stored.since);
    Ok(turns)
}

/// Durable state in the state directory. Without one, nothing outlives the process.
pub struct Durable {
    /// Empty as long as nothing has to outlive the process.
    store: OnceLock<Kept>,
    dead: DeadLetters,
    state: Mutex<State>,
    work: Condvar,
    /// Serializes commits.
    committing: Mutex<()>,
    /// Number of workers that have not loaded their standing turns yet.
    loading: AtomicUsize,
    /// Bytes of the changes of conversations that no checkpoint has.
    unwritten: AtomicU64,
    /// A source waits until there are fewer of them.
    is_waited_for: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Conversations that have changed since the last checkpoint.
    pending: HashMap<Key, ConversationChange>,
    /// Conversations that the current checkpoint is writing.
    writing: Arc<HashMap<Key, ConversationChange>>,
    /// Standing turns that have changed since the last checkpoint; `None` if they no longer stand.
    standing: Standing,
    /// Those that the current checkpoint is writing.
    writing_standing: Arc<Standing>,
    trackers: Vec<Weak<OffsetTracker>>,
    sinks: Vec<Weak<SinkHandle>>,
    /// Sinks that lack restored answers, until they have them.
    repairing: Vec<Arc<SinkHandle>>,
    /// The sinks with former files in the store.
    former: BTreeSet<Arc<str>>,
    /// The sources that have not read all records that existed at their start.
    replaying: BTreeSet<Arc<str>>,
    /// Those that a reload switches to another file, until their new sinks are entered.
    leaving: BTreeSet<Arc<str>>,
    committed: HashMap<Arc<str>, SourceCheckpoint>,
    ended: bool,
}

impl Durable {
    /// Opens the durable state in a state directory. A checkpoint waits until the letters in `dead` are
    /// on disk, since it may cover their records.
    ///
    /// # Errors
    ///
    /// The file cannot be written. A damaged file is no error: it is moved away and recreated.
    pub fn open(directory: Option<&Path>, dead: DeadLetters) -> Result<Arc<Self>, StoreError> {
        let durable = Self {
            store: OnceLock::new(),
            dead,
            state: Mutex::default(),
            work: Condvar::new(),
            committing: Mutex::default(),
            loading: AtomicUsize::new(0),
            unwritten: AtomicU64::new(0),
            is_waited_for: AtomicBool::new(false),
        };
        directory.map_or(Ok(()), |directory| durable.keep(directory))?;
        Ok(Arc::new(durable))
    }

    /// Opens the state in a state directory, unless it is open: from now on, checkpoints are written.
    ///
    /// # Errors
    ///
    /// As for [`Durable::open`].
    pub fn keep(&self, directory: &Path) -> Result<(), StoreError> {
        let _one = self.committing.lock();
        if !self.is_kept() {
            let _ = self.store.set(Kept::Here(Store::open(&directory.join(STORE))?));
        }
        Ok(())
    }

    /// Whether there is a state directory, in a cluster that of the first process.
    pub fn is_kept(&self) -> bool {
        self.store.get().is_some()
    }

    /// The checkpoint of a source; `None` if it has none.
    ///
    /// # Errors
    ///
    /// The checkpoint cannot be read.
    pub fn checkpoint(&self, source: &str) -> Result<Option<SourceCheckpoint>, StoreError> {
        Ok(self.here().map_or(Ok(None), |store| store.source(source))?)
    }

    /// The newest epoch that a checkpoint names.
    ///
    /// # Errors
    ///
    /// A checkpoint cannot be read.
    pub fn epoch(&self) -> Result<u64, StoreError> {
        Ok(self.here().map_or(Ok(None), Store::epoch)?.unwrap_or_default())
    }

    /// Deletes all state of a source, which is then read from its beginning.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn forget(&self, source: &str) -> Result<(), StoreError> {
        self.state.lock().pending.retain(|(of, _), change| {
            let is_kept = **of != *source;
            if !is_kept {
                self.unwritten.fetch_sub(change.bytes(), Ordering::AcqRel);
            }
            is_kept
        });
        Ok(self.here().map_or(Ok(()), |store| store.forget(source))?)
    }

    /// Includes this source in checkpoints.
    pub fn add_source(&self, tracker: &Arc<OffsetTracker>) {
        let mut state = self.state.lock();
        state.trackers.retain(|tracker| tracker.strong_count() > 0);
        state.trackers.push(Arc::downgrade(tracker));
        state.replaying.insert(tracker.source().clone());
    }

    /// Announces sources that a reload adds: what sinks have of their answers is needed until they are read again.
    pub fn will_replay(&self, sources: &BTreeSet<Arc<str>>) {
        self.state.lock().replaying.extend(sources.iter().cloned());
    }

    /// Excludes sources that a reload has removed: they are not read again.
    pub fn keep_sources(&self, keep: impl Fn(&str) -> bool) {
        self.state.lock().replaying.retain(|source| keep(source));
    }

    /// Makes checkpoints sync this sink.
    pub fn add_sink(&self, sink: &Arc<SinkHandle>) {
        let mut state = self.state.lock();
        state.sinks.retain(|sink| sink.strong_count() > 0);
        state.sinks.push(Arc::downgrade(sink));
    }

    /// The same for a sink that may be among them already.
    pub fn enter_sink(&self, sink: &Arc<SinkHandle>) {
        // A commit in progress may not know the sink.
        let _one = self.committing.lock();
        self.state.lock().leaving.remove(sink.id());
        if !self.sinks().iter().any(|known| Arc::ptr_eq(known, sink)) {
            self.add_sink(sink);
        }
    }

    /// The sinks that checkpoints sync.
    pub(crate) fn sinks(&self) -> Vec<Arc<SinkHandle>> {
        self.state.lock().sinks.iter().filter_map(Weak::upgrade).collect()
    }

    /// The sink positions after which there may be answers that are not recorded anywhere else.
    pub fn marks(&self) -> SinkPositions {
        let mut marks = SinkPositions::new();
        for sink in self.sinks() {
            // After a reload, a sink and its replacement may both still have turns.
            let Some(mark) = sink.since() else { continue };
            let lower = |there: &SinkPosition| there.log == mark.log && there.length <= mark.length;
            if !marks.get(sink.id()).is_some_and(lower) {
                marks.insert(sink.id().clone(), mark);
            }
        }
        marks
    }

    /// Announces that this many workers will load standing turns.
    pub fn begin_loading(&self, workers: usize) {
        self.loading.store(workers, Ordering::Release);
    }

    /// Reports that a worker has loaded its standing turns.
    pub fn loaded(&self) {
        self.loading.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notifies the sinks that the answers of a standing turn are recorded.
    pub fn release(&self, key: &str) {
        self.sinks().iter().for_each(|sink| sink.release(key));
    }

    /// Loads a conversation; `None` if it is not stored. If the first process has to be asked, returns nothing, and passes
    /// the conversation to `later`. After an error, the caller must not store a new conversation, which would overwrite the
    /// stored one.
    pub(crate) fn load(
        &self,
        source: &Arc<str>,
        conversation: &Arc<str>,
        later: impl FnOnce(Loaded) + Send + 'static,
    ) -> Option<Loaded> {
        match self.store.get() {
            None => Some(Ok(None)),
            Some(Kept::Here(store)) => Some(self.load_here(store, source, conversation)),
            Some(Kept::First(first)) => {
                let changes = self.unwritten_of(source, conversation);
                first.load(source, conversation, move |known| later(known.map(|known| changed(known, changes))));
                None
            }
        }
    }

    fn load_here(&self, store: &Store, source: &Arc<str>, conversation: &Arc<str>) -> Loaded {
        let changes = self.unwritten_of(source, conversation);
        Ok(changed(store.conversation(source, conversation)?, changes))
    }

    /// The changes of a conversation that the store may lack. Taken before the store is read, so that a change written
    /// meanwhile is not missed; `apply` ignores changes that are already in the store.
    fn unwritten_of(&self, source: &Arc<str>, conversation: &Arc<str>) -> Vec<ConversationChange> {
        let key = (source.clone(), conversation.clone());
        let state = self.state.lock();
        [state.writing.get(&key), state.pending.get(&key)].into_iter().flatten().cloned().collect()
    }

    /// Records a change of a conversation. Must be called before its record is ticked off.
    pub fn put(&self, source: &Arc<str>, conversation: &Arc<str>, change: ConversationChange) {
        if !self.is_kept() {
            return;
        }
        let key = (source.clone(), conversation.clone());
        let mut state = self.state.lock();
        let (before, change) = match state.pending.remove(&key) {
            Some(before) => (before.bytes(), before.then(change)),
            None => (0, change),
        };
        let now = change.bytes();
        state.pending.insert(key, change);
        self.unwritten.fetch_add(now, Ordering::AcqRel);
        let all = self.unwritten.fetch_sub(before, Ordering::AcqRel) - before;
        if all >= UNWRITTEN / 2 {
            self.work.notify_one();
        }
    }

    /// Recounts what waits for a checkpoint, while none is being written.
    fn count_unwritten(&self, state: &State) {
        self.unwritten.store(state.pending.values().map(ConversationChange::bytes).sum(), Ordering::Release);
    }

    /// Bytes of the changes of conversations that no checkpoint has.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten.load(Ordering::Acquire)
    }

    /// Whether sources may be read: not if too much waits for a checkpoint. A source that must wait is woken later.
    pub fn has_room(&self) -> bool {
        let has_room = || self.unwritten.load(Ordering::Acquire) < UNWRITTEN;
        if has_room() {
            return true;
        }
        self.is_waited_for.store(true, Ordering::Release);
        // A checkpoint may have been written meanwhile, without waking anything.
        has_room()
    }

    /// Gives the standing turns of an earlier process one after the other: those of the conversations that are wanted.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub fn each_standing(
        &self,
        wanted: &dyn Fn(&Arc<str>) -> bool,
        each: &mut dyn FnMut(StoredTurn),
    ) -> Result<(), StoreError> {
        Ok(self.here().map_or(Ok(()), |store| store.each_standing(wanted, each))?)
    }

    /// Whether standing turns are in a store, and need not be in memory.
    pub fn keeps_standing(&self) -> bool {
        self.here().is_some()
    }

    /// A standing turn; `None` if it is not stored.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn standing_turn(&self, key: &Arc<str>) -> Result<Option<StoredTurn>, StoreError> {
        let unwritten = {
            let state = self.state.lock();
            state.standing.get(key).or_else(|| state.writing_standing.get(key)).cloned()
        };
        match (unwritten, self.here()) {
            (Some(turn), _) => Ok(turn),
            (None, Some(store)) => Ok(store.standing_turn(key)?),
            (None, None) => Ok(None),
        }
    }

    /// Records a standing turn; `None` if it no longer stands.
    pub fn put_standing(&self, key: &Arc<str>, turn: Option<StoredTurn>) {
        if self.is_kept() {
            self.state.lock().standing.insert(key.clone(), turn);
        }
    }

    /// Whether a checkpoint has all changes.
    pub fn has_written_all(&self) -> bool {
        let state = self.state.lock();
        let writing = state.writing.is_empty() && state.writing_standing.is_empty();
        self.is_kept() && writing && state.pending.is_empty() && state.standing.is_empty()
    }

    /// Ends [`Durable::work`].
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.work.notify_all();
    }
}

/// A conversation with these changes.
fn changed(mut known: Option<StoredConversation>, changes: Vec<ConversationChange>) -> Option<StoredConversation> {
    for change in changes {
        match &mut known {
            Some(known) => known.apply(&change),
            None => known = Some(change.into()),
        }
    }
    known
}

#[cfg(test)]
impl Durable {
    /// Simulates a disk that is gone after a failed write.
    pub(crate) fn hide(&self, path: &Path) {
        self.here().into_iter().for_each(|store| store.hide(path));
    }

    /// Makes the disk available again.
    pub(crate) fn show(path: &Path) {
        Store::show(path);
    }
}
