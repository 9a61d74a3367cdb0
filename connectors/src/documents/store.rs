//! The store of a corpus's documents, and the queues of the sources that follow it.
//!
//! Each running source has a queue of the ids that have changed. It is in memory, because a source reads everything
//! when it starts. An id occurs in a queue at most once, and its document is read when the id is taken, so a queue is
//! never longer than the number of documents that exist or have been deleted meanwhile. A change and its entries in the
//! queues are made under one lock, and so are the removal of entries and the reading of their documents. So a source
//! sees each change whole and in order. No lock is held while a source sends: a slow source delays no change.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use turnflow_engine::connector::Deleted;
use turnflow_engine::database::DatabaseError;

use super::kept::{Change, Kept};
use crate::open_once::{OpenOnce, Opened, Place};

/// Size of a page of documents, in bytes; it ends with the document that reaches it.
pub(super) const PAGE_BYTES: usize = 4 << 20;

/// The open stores of this process.
static OPEN: OpenOnce<Store> = OpenOnce::new();

/// A store that connectors share.
pub(super) type SharedStore = Arc<Opened<Store>>;

/// Documents and their followers.
pub(super) struct Store {
    kept: Kept,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    /// Number of the next follower.
    next: u64,
    /// Number of the last change.
    changes: u64,
    of: BTreeMap<u64, Queue>,
}

/// The changes that a follower has not read.
struct Queue {
    ids: VecDeque<Arc<str>>,
    /// The same ids, as a set.
    waiting: HashSet<Arc<str>>,
    changed: Sender<()>,
}

impl Store {
    /// Opens the store at a place, or returns the open one.
    pub fn open(place: Place) -> Result<SharedStore, DatabaseError> {
        OPEN.open(place, |place| {
            let kept = match place {
                Place::File(path) => Kept::in_file(path)?,
                Place::Memory { component, .. } => {
                    let corpus = component;
                    tracing::warn!(corpus, "no state directory: the documents are lost when the engine ends");
                    Kept::in_memory()?
                }
            };
            Ok(Self { kept, queues: Mutex::default() })
        })
    }

    /// Applies all changes or none. Returns the number of deleted documents, and the number of the change.
    pub fn change(&self, changes: &[Change]) -> Result<Deleted, DatabaseError> {
        let mut queues = self.queues.lock();
        if changes.is_empty() {
            return Ok(Deleted { documents: 0, change: queues.changes });
        }
        queues.changes += 1;
        let change = queues.changes;
        let changed = self.kept.apply(changes);
        // Also after an error: the changes may have reached the disk. Followers read the current state.
        for queue in queues.of.values_mut() {
            for (id, _) in changes {
                if queue.waiting.insert(id.clone()) {
                    queue.ids.push_back(id.clone());
                }
            }
            // If it is full, the follower will read anyway.
            let _ = queue.changed.try_send(());
        }
        changed.map(|documents| Deleted { documents, change })
    }

    /// The number of the last change.
    pub fn last_change(&self) -> u64 {
        self.queues.lock().changes
    }

    /// The encoded document with this id.
    pub fn get(&self, id: &str) -> Result<Option<Vec<u8>>, DatabaseError> {
        let found = self.kept.now([&Arc::from(id)].into_iter(), usize::MAX)?;
        Ok(found.into_iter().find_map(|(_, document)| document))
    }

    /// At most `limit` encoded documents after an id, in the order of ids, until they reach `bytes` in total.
    pub fn page(
        &self,
        after: Option<&str>,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, DatabaseError> {
        self.kept.page(after, limit, bytes)
    }

    /// The same, of the documents whose field names one of these groups or everybody.
    pub fn page_for(
        &self,
        readers: (&str, &[Arc<str>]),
        after: Option<&str>,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, DatabaseError> {
        self.kept.page_for(readers, after, limit, bytes)
    }

    /// Number of documents.
    pub fn count(&self) -> Result<u64, DatabaseError> {
        self.kept.count()
    }

    /// Follows all changes from now on.
    pub fn follow(this: &SharedStore) -> Follower {
        let (sender, changed) = bounded(1);
        let mut queues = this.queues.lock();
        let number = queues.next;
        queues.next += 1;
        queues.of.insert(number, Queue { ids: VecDeque::new(), waiting: HashSet::new(), changed: sender });
        Follower { store: this.clone(), number, changed }
    }
}

/// Changed documents that a follower has taken.
pub(super) struct Page {
    pub changes: Vec<Change>,
    /// Number of documents that still wait after these.
    pub left: usize,
    /// Number of the last change. These documents and the waiting ones contain it, and all earlier ones.
    pub last: u64,
}

/// A source's queue in a store.
pub(super) struct Follower {
    store: SharedStore,
    number: u64,
    changed: Receiver<()>,
}

impl Follower {
    /// Receives a message when there are changes.
    pub fn changed(&self) -> &Receiver<()> {
        &self.changed
    }

    /// Takes at most `limit` changed documents in their current state, up to a page. After an error, nothing is taken.
    pub fn next(&self, limit: usize) -> Result<Page, DatabaseError> {
        let mut queues = self.store.queues.lock();
        let mut page = Page { changes: Vec::new(), left: 0, last: queues.changes };
        let Some(queue) = queues.of.get_mut(&self.number) else { return Ok(page) };
        if queue.ids.is_empty() {
            return Ok(page);
        }
        page.changes = self.store.kept.now(queue.ids.iter().take(limit), PAGE_BYTES)?;
        queue.ids.drain(..page.changes.len());
        for (id, _) in &page.changes {
            queue.waiting.remove(id);
        }
        page.left = queue.ids.len();
        Ok(page)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.store.queues.lock().of.remove(&self.number);
    }
}
