//! Backup of what cannot be had again for nothing: a copy of the indexes' encodings, for which models were called, and of the
//! documents that programs have put into corpora, in an object store, so that a lost disk costs a download.
//!
//! A task (`service`) looks every few seconds which indexes have changed, and copies each of them on its own ([`write`]).
//! Publications and turns never wait for it. `copy.rs` says what a copy consists of, `files.rs` which files of an index
//! belong together, `documents.rs` how documents become such files, and `restore.rs` brings a copy back when the directory of an index is missing at a start.
//!
//! **One writer.** Each run has an id, which is in the description of every copy that it writes. A run takes over what it
//! finds when it writes for the first time. From then on, it replaces a description only if it is still its own. A second
//! run with the same URL and pipeline therefore takes over, and the first one notices it at its next change, says so and
//! stops its backup. Stores that cannot replace an object conditionally compare it just before; two runs that write in the
//! same moment can then leave a copy that lacks objects, which a restore notices by the hashes.
//!
//! **Several processes.** Each process of a cluster copies its own indexes. With fewer processes, the first one restores what
//! the former processes have copied to where their disks would be, takes it over from there as if it had never been lost,
//! and removes their copies when its own has everything.

mod copy;
mod documents;
mod files;
mod restore;
mod service;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod write;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use self::copy::{Place, Writer, description};
pub(crate) use self::documents::{DOCUMENTS, DocumentsCopy, PART};
use self::restore::{is_empty, restore};
pub use self::store::{BackupStore, Body, StoreError, Tag, Tagged};
use self::write::IndexCopy;
use crate::cluster::Shape;
use crate::component::BackedUp;
use crate::metrics::{Counter, Gauge, Metrics};
use crate::state::{StateDirectory, StateError, file_name};

/// How long a start waits for the store when an index is missing.
///
/// Then the start fails. Who has a backup has it because embedding again takes hours or costs money, and until that is done
/// nothing is answered anyway. A missing index and a store that is away usually come together, on a machine that has just
/// been set up, and the store comes back before the embedding would be done. A supervisor starts the process again
/// meanwhile. An index that is there needs no store, so a store that is away never stops a normal start.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits for what is only useful: the copies of former processes.
const SHORT: Duration = Duration::from_secs(20);

/// Why an index could not be restored.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.told())]
pub struct BackupError {
    /// The corpus.
    corpus: String,
    /// The index's key.
    index: String,
    /// The store's address.
    address: String,
    /// Why.
    source: StoreError,
}

impl BackupError {
    fn told(&self) -> String {
        let Self { corpus, index, address, source } = self;
        match &**index {
            DOCUMENTS => format!(
                "the documents that were put into the corpus `{corpus}` are not in the state directory, and their backup in \
                 {address} cannot be read: {source}; a start without `--backup` has none of them"
            ),
            index => format!(
                "the index `{index}` of the corpus `{corpus}` is not in the state directory, and its backup in {address} \
                 cannot be read: {source}; without `--backup`, a start computes it again"
            ),
        }
    }
}

/// The metrics of a backup.
struct Measures {
    complete: Gauge,
    sent: Counter,
    failures: Counter,
}

/// The state of a run's backup.
#[derive(Clone, Debug, Serialize)]
pub struct BackupStatus {
    /// The store's address.
    pub address: String,
    /// Unix time at which the copy was last found or made complete, in seconds; `None` if it never was in this run.
    pub complete_s: Option<u64>,
    /// Bytes copied in this run.
    pub bytes: u64,
    /// Failed attempts to bring it up to date.
    pub failures: u64,
    /// Why it is not up to date.
    pub problem: Option<String>,
}

/// The backup of a run.
pub(crate) struct Backup {
    store: Arc<dyn BackupStore>,
    /// The pipeline, as a file name.
    pipeline: String,
    shape: Shape,
    state: PathBuf,
    writer: Writer,
    /// Indexes that were opened and that the task has not taken yet.
    opened: Mutex<Vec<IndexCopy>>,
    /// The documents that were put into corpora, which exist nowhere else.
    documents: Mutex<Vec<Arc<DocumentsCopy>>>,
    /// All indexes that were opened.
    known: Mutex<BTreeSet<Place>>,
    /// Copies of processes that are no longer in the cluster; `None` until they were listed.
    former: Mutex<Option<Vec<Place>>>,
    /// Copies of such processes that are not needed any more when those of this process are complete.
    obsolete: Mutex<BTreeSet<Place>>,
    measures: Measures,
    /// Why the copy is not up to date, since the last failure.
    problem: Mutex<Option<String>>,
    /// Set when the run ends.
    ending: AtomicBool,
    /// Whether an index was missing on the disk.
    is_missing: AtomicBool,
    wake: Notify,
    /// Whether everything is copied, when the task has ended.
    ended: watch::Sender<Option<bool>>,
}

/// Forgets an index that could not be opened, or whose opening was cancelled.
struct Opening<'a> {
    backup: &'a Backup,
    /// The index, until it is opened.
    place: Option<Place>,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.backup.known.lock().remove(&place);
        }
    }
}

impl Backup {
    /// Opens the backup of a run in a state directory.
    ///
    /// # Errors
    ///
    /// The id of the state directory cannot be read or written.
    pub fn open(
        store: Arc<dyn BackupStore>,
        state: &StateDirectory,
        pipeline: &str,
        shape: Shape,
        metrics: &Metrics,
    ) -> Result<Arc<Self>, StateError> {
        let time = "Unix time at which the copy was last complete, in seconds; 0 if it never was in this run";
        let measures = Measures {
            complete: metrics.gauge("backup", "backup_complete_time_seconds", time),
            sent: metrics.counter("backup", "backup_bytes", "Bytes copied to the backup"),
            failures: metrics.counter("backup", "backup_failures", "Failed attempts to bring the backup up to date"),
        };
        let id = state_id(state.path())?;
        Ok(Arc::new(Self {
            store,
            pipeline: file_name(pipeline),
            shape,
            state: state.path().to_owned(),
            writer: Writer { state: id, run: new_id() },
            opened: Mutex::default(),
            documents: Mutex::default(),
            known: Mutex::default(),
            former: Mutex::default(),
            obsolete: Mutex::default(),
            measures,
            problem: Mutex::default(),
            ending: AtomicBool::new(false),
            is_missing: AtomicBool::new(false),
            wake: Notify::new(),
            ended: watch::Sender::new(None),
        }))
    }

    /// Its state.
    pub fn status(&self) -> BackupStatus {
        let complete = u64::try_from(self.measures.complete.get()).ok().filter(|at| *at > 0);
        BackupStatus {
            address: self.store.address().to_owned(),
            complete_s: complete,
            bytes: self.measures.sent.get(),
            failures: self.measures.failures.get(),
            problem: self.problem.lock().clone(),
        }
    }

    /// Restores an index if its directory holds nothing, and copies it from now on. Returns whether it was restored. A copy
    /// that is damaged is left out, with a warning. At a start, waits for a store that is away.
    ///
    /// # Errors
    ///
    /// The index is missing, and the store cannot be read: if it were computed again, it would replace its copy.
    pub async fn open_index(
        &self,
        corpus: &str,
        index: &str,
        directory: &Path,
        part: BackedUp,
        is_start: bool,
    ) -> Result<bool, BackupError> {
        let place = Place { process: self.shape.process, corpus: file_name(corpus), index: file_name(index) };
        let mut copy = IndexCopy::new(place.clone(), directory.to_owned(), part);
        let is_new = self.known.lock().insert(place.clone());
        let mut opening = Opening { backup: self, place: is_new.then(|| place.clone()) };
        let mut is_restored = false;
        if !is_empty(directory) {
            // What an attempt left that did not come to its end.
            discard(&restore::beside(directory));
        } else {
            self.is_missing.store(true, Ordering::Relaxed);
            match self.restore_index(&place.key(&self.pipeline), corpus, index, directory, is_start).await {
                Ok(restored) => is_restored = restored,
                // Documents cannot be computed again.
                Err(error @ StoreError::Damaged(_)) if index != DOCUMENTS => {
                    tracing::warn!(%corpus, key = index, store = self.store.address(), %error,
                        "the backup of an index is damaged; what is missing is computed again");
                    discard(&restore::beside(directory));
                    copy.distrust();
                }
                Err(source) => {
                    let (corpus, index) = (corpus.to_owned(), index.to_owned());
                    return Err(BackupError { corpus, index, address: self.store.address().to_owned(), source });
                }
            }
        }
        if opening.place.take().is_some() {
            self.opened.lock().push(copy);
        }
        Ok(is_restored)
    }

    async fn restore_index(
        &self,
        place: &str,
        corpus: &str,
        index: &str,
        directory: &Path,
        is_start: bool,
    ) -> Result<bool, StoreError> {
        let (begun, patience) = (Instant::now(), if is_start { PATIENCE } else { Duration::ZERO });
        let restored = restore(&*self.store, place, directory, patience).await?;
        if let Some(bytes) = restored {
            let took = begun.elapsed();
            tracing::info!(%corpus, key = index, bytes, ?took, "the index is restored from the backup");
        }
        Ok(restored.is_some())
    }

    /// Copies the documents of a corpus from now on.
    pub fn open_documents(&self, copy: Arc<DocumentsCopy>) {
        let mut documents = self.documents.lock();
        documents.retain(|known| known.corpus() != copy.corpus());
        documents.push(copy);
    }

    /// Restores what processes that are no longer in the cluster have copied of an index, to where they had it: below the
    /// state directory of process 0. Returns their numbers. What cannot be restored is left out, with a warning.
    pub async fn restore_former(&self, corpus: &str, index: &str) -> Vec<usize> {
        if !self.shape.is_first() {
            return Vec::new();
        }
        let copies = self.former().await;
        let (corpus, index) = (file_name(corpus), file_name(index));
        let mut restored = Vec::new();
        for place in copies.iter().filter(|place| place.corpus == corpus && place.index == index) {
            let directory = StateDirectory::of_process(&self.state, place.process);
            let target = directory.join("corpora").join(&corpus).join(&index);
            if !is_empty(&target) {
                continue;
            }
            match restore(&*self.store, &place.key(&self.pipeline), &target, PATIENCE).await {
                Ok(Some(_)) => restored.push(place.process),
                // Only objects are left of a copy that was being removed.
                Ok(None) => drop(self.obsolete.lock().insert(place.clone())),
                Err(error) => {
                    // Each of the others would wait as long.
                    if !matches!(error, StoreError::Damaged(_)) {
                        self.former.lock().replace(Vec::new());
                    }
                    tracing::warn!(process = place.process, %corpus, key = %index, store = self.store.address(), %error,
                        "the backup of a former process cannot be read; what is missing is computed again");
                    discard(&restore::beside(&target));
                }
            }
        }
        restored
    }

    /// The copies of processes that are no longer in the cluster. Listed once.
    async fn former(&self) -> Vec<Place> {
        if let Some(former) = &*self.former.lock() {
            return former.clone();
        }
        let listed = async {
            loop {
                match self.store.list(&self.pipeline).await {
                    // A start that misses nothing does not wait for the store.
                    Err(StoreError::Failed(_)) if self.is_missing.load(Ordering::Relaxed) => {
                        tokio::time::sleep(Duration::from_millis(500)).await
                    }
                    listed => break listed,
                }
            }
        };
        let late = |_| Err(StoreError::Failed(format!("no answer for {} s", SHORT.as_secs())));
        let keys = tokio::time::timeout(SHORT, listed).await.unwrap_or_else(late).unwrap_or_else(|error| {
            tracing::warn!(store = self.store.address(), %error,
                "the backup cannot be listed; encodings of processes that are no longer in the cluster are not restored");
            Vec::new()
        });
        let places = keys.iter().filter_map(|key| Place::of(key, &self.pipeline));
        let places: BTreeSet<Place> = places.filter(|place| place.process >= self.shape.processes).collect();
        self.former.lock().insert(places.into_iter().collect()).clone()
    }

    /// The indexes at these paths, of processes that are no longer in the cluster, are stored by this process: their copies
    /// are removed when the copies of this process are complete.
    pub fn forget_former(&self, indexes: &[PathBuf]) {
        let processes = self.state.join("processes");
        let place_of = |path: &PathBuf| {
            let below = path.strip_prefix(&processes).ok()?;
            let mut parts = below.iter().map(|part| part.to_str());
            let process = parts.next()??.parse().ok()?;
            let (corpus, index) = (parts.nth(1)??.to_owned(), parts.next()??.to_owned());
            Some(Place { process, corpus, index })
        };
        self.obsolete.lock().extend(indexes.iter().filter_map(place_of));
        self.wake.notify_one();
    }

    fn description_of(&self, place: &Place) -> String {
        description(&place.key(&self.pipeline))
    }
}

/// Removes what was restored and is of no use.
pub(crate) fn discard(directory: &Path) {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %directory.display(), "cannot remove what was restored");
        }
        _ => {}
    }
}

/// The id of a state directory. It is made when it is first needed.
fn state_id(state: &Path) -> Result<String, StateError> {
    let path = state.join("backup-id");
    let io = |action, source| StateError::Io { action, path: path.clone(), source };
    match std::fs::read_to_string(&path) {
        Ok(id) if !id.trim().is_empty() => Ok(id.trim().to_owned()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("read", error)),
        _ => {
            let id = new_id();
            crate::append::replace(&path, id.as_bytes()).map_err(|error| io("write", error))?;
            Ok(id)
        }
    }
}

/// An id that no other run or directory has.
fn new_id() -> String {
    let part = || RandomState::new().hash_one((SystemTime::now(), std::process::id()));
    format!("{:016x}{:016x}", part(), part())
}
