//! The dataflow of a corpus: source → documents → chunks → content hashes → prepared contents →
//! publication, as one differential dataflow per corpus.
//!
//! Time is the number of the source's commit. Chunking is stateless, and unchanged chunks of an
//! edited document cancel before any further work. Contents are arranged by hash, so that a content
//! is prepared (embedded) once, when its first chunk appears. Publication waits until everything up
//! to a commit is prepared; meanwhile turns read the previous epoch.

mod backlog;
mod chunks;
mod cut;
mod documents;
mod index_writer;
mod prepare;
mod publish;
mod slot;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;
use parking_lot::Mutex;
use timely::dataflow::{ProbeHandle, Scope};
use tokio::sync::{mpsc, oneshot, watch};

use self::backlog::PreparationBacklog;
use self::chunks::contents_of;
use self::cut::cut;
use self::documents::documents;
pub use self::index_writer::AddedIndex;
use self::index_writer::{IndexWriter, Job, MaintenanceRequest};
use self::prepare::prepare;
pub use self::prepare::{Preparations, Preparing};
use self::publish::publish;
use crate::component::{Chunker, CorpusSnapshot, Delta, Index, IndexError, Maintained, MaintenanceLimits, Prepare};
use crate::connector::CorpusEvent;
use crate::document::{Chunk, Content};
use crate::maintenance::MaintenanceError;
use crate::panics::caught_async;
use crate::publish::{CorpusProgress, Epochs};
use crate::schema::Schema;
use crate::wake::WakeSlot;

/// First and maximum delay before a failed preparation or publication is retried; the delay doubles.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// The loading state of a corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorpusState {
    /// The initial documents are not published yet.
    Loading,
    /// The commits are published. For a staged feed: its chunks are collected.
    Ready {
        /// Number of published source commits.
        commits: u64,
        /// The epoch of the last one.
        epoch: u64,
    },
    /// The first publication failed.
    Failed(String),
}

/// A handle to the indexes of a corpus and to the task that owns them.
#[derive(Clone)]
pub struct CorpusIndexes {
    jobs: mpsc::UnboundedSender<Job>,
    preparations: Preparations,
    preparing: Preparing,
    handle: tokio::runtime::Handle,
    ended: Arc<AtomicBool>,
}

impl CorpusIndexes {
    /// Starts the task for newly opened indexes; `feed` is the first feed.
    pub fn start(
        preparing: Preparing,
        feed: u64,
        indexes: Vec<(String, Box<dyn Index>)>,
        epochs: Arc<Epochs>,
        handle: tokio::runtime::Handle,
    ) -> Self {
        let (jobs, todo) = mpsc::unbounded_channel();
        let prepared = indexes.iter().filter_map(|(key, index)| Some((key.clone(), index.preparation()?)));
        let preparations = Preparations::new(prepared.collect::<Vec<_>>().into());
        let keeper = IndexWriter::new(preparing.corpus.clone(), feed, indexes, epochs, preparing.clone());
        let ended = Arc::new(AtomicBool::new(false));
        let has_ended = ended.clone();
        handle.spawn(async move {
            keeper.run(todo).await;
            has_ended.store(true, Ordering::Release);
        });
        Self { jobs, preparations, preparing, handle, ended }
    }

    /// Counters.
    pub fn progress(&self) -> &Arc<CorpusProgress> {
        &self.preparing.progress
    }

    /// The corpus, and a flag that is set when its indexes are closed.
    pub fn ended(&self) -> (Arc<str>, Arc<AtomicBool>) {
        (self.preparing.corpus.clone(), self.ended.clone())
    }

    /// Returns when all earlier jobs are done.
    pub async fn barrier(&self) {
        let (reply, done) = oneshot::channel();
        let _ = self.jobs.send(Job::Barrier(reply));
        let _ = done.await;
    }

    /// Starts collecting the chunks of another feed.
    pub fn stage(&self, feed: u64) {
        let _ = self.jobs.send(Job::Stage(feed));
    }

    /// Drops the collected chunks of a staged feed.
    pub fn forget(&self, feed: u64) {
        let _ = self.jobs.send(Job::Forget(feed));
    }

    /// Starts preparing contents for an index that will be added.
    pub fn announce(&self, key: &str, preparation: Arc<dyn Prepare>) {
        self.preparations.write().push((key.to_owned(), preparation));
    }

    /// Stops preparing contents for indexes that are not in `keys`.
    pub fn prepare_for(&self, keys: &BTreeSet<String>) {
        self.preparations.write().retain(|(key, _)| keys.contains(key));
    }

    /// Drops the indexes that are not in `keys`.
    pub fn keep(&self, keys: BTreeSet<String>) {
        self.prepare_for(&keys);
        let _ = self.jobs.send(Job::Keep(keys));
    }

    /// Maintains an index between two publications. `None` if it was postponed: nothing is published
    /// yet, or `yields` is set and another job waits.
    pub async fn maintain(
        &self,
        key: &str,
        limits: MaintenanceLimits,
        within: Option<Duration>,
        yields: bool,
    ) -> Option<Result<Maintained, MaintenanceError>> {
        let (reply, done) = oneshot::channel();
        let _ =
            self.jobs.send(Job::Maintain(MaintenanceRequest { key: key.to_owned(), limits, within, yields, reply }));
        done.await.ok().flatten()
    }

    /// Fills a new index with the current chunks of the corpus, while the others keep serving.
    ///
    /// # Errors
    ///
    /// The index failed or panicked, or the index writer has stopped.
    pub async fn fill(&self, key: String, mut index: Box<dyn Index>) -> Result<AddedIndex, IndexError> {
        let (reply, chunks) = oneshot::channel();
        let _ = self.jobs.send(Job::Chunks(reply));
        let filled: Vec<Arc<Chunk>> = chunks.await.map_err(|_| IndexError::Feed)?;
        if let Some(preparation) = index.preparation() {
            let contents = contents_of(&filled);
            let count = contents.len() as u64;
            self.preparing.progress.prepare.fetch_add(count, Ordering::Relaxed);
            self.preparing.contents(&preparation, contents).await;
            self.preparing.progress.prepared.fetch_add(count, Ordering::Relaxed);
        }
        let whole = Delta { added: filled.clone(), removed: Vec::new(), whole: true };
        caught_async(|| index.apply(&whole)).await??;
        Ok(AddedIndex { key, index, filled })
    }

    /// Prepares a switch to another feed and added indexes; returns the resulting view. The switch
    /// takes effect when `published` receives `true`; until then the corpus does not change.
    ///
    /// # Errors
    ///
    /// An index failed, the feed is unknown, or the index writer has stopped.
    pub async fn switch(
        &self,
        feed: Option<u64>,
        added: Vec<AddedIndex>,
        published: oneshot::Receiver<bool>,
    ) -> Result<CorpusSnapshot, IndexError> {
        let (reply, view) = oneshot::channel();
        let _ = self.jobs.send(Job::Switch { feed, added, reply, published });
        view.await.map_err(|_| IndexError::Feed)?
    }
}

/// State of one feed of a corpus (a source and a chunker) that all workers share.
#[derive(Clone)]
pub struct CorpusShared {
    /// The corpus.
    pub name: Arc<str>,
    /// The id of the feed, unique in the process.
    pub feed: u64,
    /// Counters.
    pub progress: Arc<CorpusProgress>,
    chunker: Arc<dyn Chunker>,
    schema: Arc<Schema>,
    preparations: Preparations,
    preparing: Preparing,
    handle: tokio::runtime::Handle,
    /// Taken by the worker that reads the source.
    events: Arc<Mutex<Option<Receiver<CorpusEvent>>>>,
    jobs: mpsc::UnboundedSender<Job>,
    state: Arc<watch::Sender<CorpusState>>,
    source_wake: WakeSlot,
    publish_wake: WakeSlot,
}

impl CorpusShared {
    /// A feed for the given indexes.
    pub fn new(
        feed: u64,
        chunker: Arc<dyn Chunker>,
        schema: Arc<Schema>,
        indexes: &CorpusIndexes,
        events: Receiver<CorpusEvent>,
        source_wake: WakeSlot,
    ) -> Self {
        Self {
            name: indexes.preparing.corpus.clone(),
            feed,
            progress: indexes.preparing.progress.clone(),
            chunker,
            schema,
            preparations: indexes.preparations.clone(),
            preparing: indexes.preparing.clone(),
            handle: indexes.handle.clone(),
            events: Arc::new(Mutex::new(Some(events))),
            jobs: indexes.jobs.clone(),
            state: Arc::new(watch::channel(CorpusState::Loading).0),
            source_wake,
            publish_wake: WakeSlot::default(),
        }
    }

    /// The state of the feed.
    pub fn state(&self) -> watch::Receiver<CorpusState> {
        self.state.subscribe()
    }
}

/// Builds the dataflow on this worker. The probe passes a commit when it is published.
pub fn build(scope: Scope<'_, u64>, shared: &CorpusShared) -> ProbeHandle<u64> {
    let progress = Rc::new(FeedProgress::default());
    let documents = documents(scope, shared, progress.clone());
    let chunks = cut(scope, documents, shared).consolidate();
    let contents = chunks.clone().map(|chunk| Content { chunk }).distinct();
    let prepared = prepare(scope, contents, shared);
    publish(scope, chunks, prepared, shared, progress)
}

/// State shared by the first and the last operator of a feed, which are on one worker.
#[derive(Default)]
struct FeedProgress {
    /// The commit that completes the initial documents.
    ready_at: Cell<Option<u64>>,
    /// Documents that are read but not prepared.
    backlog: RefCell<PreparationBacklog>,
}
