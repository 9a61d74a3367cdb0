//! The dataflow of a corpus: source → documents → chunks → content hashes → prepared contents →
//! publication, as one differential dataflow per corpus.
//!
//! Time is the number of the source's commit. Chunking is stateless, and unchanged chunks of an
//! edited document cancel before any further work. Contents are arranged by hash, so that a content
//! is prepared (embedded) once, when its first chunk appears. Publication waits until everything up
//! to a commit is prepared; meanwhile turns read the previous epoch.
//!
//! # From a document to an epoch
//!
//! This module builds one differential dataflow per corpus, with one file per operator. Its timestamps are the numbers
//! of the source's commits.
//!
//! 1. **Source.** A corpus source (`connectors/src/directory`, `connectors/src/jsonl_corpus.rs`,
//!    `connectors/src/documents`) runs on its own thread. It sends upserts and deletes of documents, and commits the
//!    changes that belong together. A bounded channel carries them to the first worker; when the channel is full, the
//!    source waits. Between two commits, the worker stops reading while too many documents are read but not prepared
//!    (`backlog.rs`).
//! 2. **Changes.** The operator `Documents` remembers a short hash of each document, with a secret key. It passes on a
//!    document that is new, changed or deleted, and drops one that is unchanged.
//! 3. **Chunks.** Documents are exchanged by id. The operator `Cut` calls the corpus's chunker (`operators/src/chunk`),
//!    a pure function, on the worker for a few short documents and off the worker for more text. `Cut` remembers the
//!    chunks of each document, so it retracts exactly those. When a document is edited, its unchanged chunks cancel out
//!    in the consolidation. A document on which the chunker panics, or whose metadata has a type that the corpus does
//!    not declare, gets no chunks and becomes a dead letter. `Cut` also gives each chunk the document's metadata and
//!    its readers, and moves its text to a mapped file (below).
//! 4. **Contents.** Each chunk is mapped to the hash of its title and text, and the hashes are made distinct. A content
//!    that appears for the first time goes to the operator `Prepare`, which asks each index to compute what it needs in
//!    advance. The indexes of `operators/src/content` need an encoding (a vector, weighted terms, or a vector per
//!    token), unless it is already stored. The computation runs off the workers. `Prepare` holds the commit's
//!    capability until it is done, so its frontier tells which commits are prepared. If a model's server is away, or
//!    has not answered for 20 s, the contents are set aside (`waiting.rs`): the commit is published without their
//!    passages, and they are prepared with growing pauses and published when the server is back.
//! 5. **Publication.** The operator `Publish` collects chunks up to the last commit that is both complete and prepared,
//!    and sends the net changes to the corpus's index writer (`index_writer.rs`), one task that owns all indexes of the
//!    corpus. Each index applies the changes; then the next epoch is published in one step (`engine/src/publish.rs`).
//!    Commits that arrive meanwhile form the next delta. `chunks.rs` holds the chunks of a corpus and computes the
//!    difference between two sets of them.
//!
//! **Memory.** With a state directory, texts and vectors of a large corpus are not on the heap but in files that are
//! mapped into memory (`engine/src/mapped.rs`), so the operating system keeps only those pages in memory that are used.
//! Vectors are used where their table's data files have them, and so are the texts that a start reads. Texts that a run
//! reads anew and codes of vectors are in temporary files. Encodings without a fixed width are on the heap. The type of
//! a text (`document/text.rs`) and of a vector hide where it is kept. What a small change brings stays on the heap,
//! because a file is deleted only when nothing of it is in use. Chunks are compared by hash, so comparing them does not
//! read their texts. Tables of many small entries do not copy their keys (`engine/src/keyed.rs`), and after a large
//! change, memory that is free is given back (`memory.rs`).
//!
//! **Metadata.** A chunk carries its document's fields (`engine/src/metadata.rs`), what the corpus declares about them
//! is checked (`schema.rs`), and neither is part of its content hash, so a change of metadata is a publication without
//! encodings. The index writer assigns each chunk a number in its corpus. `component/passages.rs` holds, for each field
//! that a filter has read, a persistent map from values to bitmaps of these numbers; an epoch shares it with the
//! previous one except for what has changed. `CorpusSnapshot::permitted` evaluates a filter (`filter.rs`), the
//! condition of a caller (`filter/json.rs`) and the turn's groups to such a bitmap. An index maps numbers to its own
//! rows, so a search reads the permitted passages only.
//!
//! **Failed publications.** If an index fails, nothing is published and the previous epoch is still served. The writer
//! retries with all chunks; until then it continues with other jobs, such as a reload. If the very first publication of
//! a corpus fails, the run ends. If an index panics, the writer finds the passages that cause the panic by bisection
//! (`slot.rs`), writes them as dead letters, and publishes the rest.
//!
//! **Maintenance.** Between two publications, the index writer maintains its indexes one at a time: it merges small
//! tantivy segments, compacts small Lance files, removes old Lance versions, and drops unused encodings.
//! `engine/src/run/maintain.rs` decides when, and `Index::maintain` does the work. Maintenance is postponed while other
//! jobs wait, but only a limited number of times, and has a time limit. The indexes themselves bound what accumulates
//! without it. Errors are counted (`engine/src/maintenance.rs`) and stop nothing. The inference cache expires entries
//! that have not been used for long (`engine/src/cache/store.rs`).

mod backlog;
mod chunks;
mod cut;
mod documents;
mod empty;
mod index_writer;
mod pages;
mod prepare;
mod publish;
mod slot;
mod stored;
mod waiting;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;
use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::trace::implementations::{KeyBatcher, KeyBuilder, KeySpine};
use differential_dataflow::{Hashable, VecCollection};
use parking_lot::Mutex;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::{ProbeHandle, Scope};
use tokio::sync::{mpsc, oneshot, watch};

use self::backlog::PreparationBacklog;
use self::chunks::contents_of;
use self::cut::cut;
pub use self::cut::{NotCut, passages};
use self::documents::documents;
pub use self::index_writer::AddedIndex;
use self::index_writer::{IndexWriter, Job, MaintenanceRequest, Restored};
pub(crate) use self::index_writer::{Restore, RestoredPart};
use self::prepare::prepare;
pub use self::prepare::{Preparations, Preparing};
use self::publish::publish;
use self::stored::Stored;
use crate::cluster::{Lead, ServedParts, Shape, Targets};
use crate::component::{
    Chunker, CorpusSnapshot, Delta, Index, IndexError, Maintained, MaintenanceLimits, PassageStore, Prepare,
};
use crate::connector::CorpusEvent;
use crate::document::{Chunk, Content};
use crate::keyed::Keyed;
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
    /// What an earlier run has published is served, and is being compared with the source.
    Stored {
        /// The epoch that has it.
        epoch: u64,
    },
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

impl CorpusState {
    /// Whether the source has been read for the first time.
    pub fn is_read(&self) -> bool {
        !matches!(self, Self::Loading | Self::Stored { .. })
    }
}

/// What a process has of its corpora.
pub(crate) enum Parts {
    /// All of them.
    Whole,
    /// A part, and it has the other processes prepare theirs.
    Leading(Lead),
    /// A part, which it serves to the first process.
    Served(Arc<ServedParts>),
}

/// Publishes a corpus again.
pub(crate) type Again = Arc<dyn Fn() + Send + Sync>;

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
    /// Starts the task for newly opened indexes; `feed` is the first feed, and `passages` keeps what is published.
    pub(crate) fn start(
        preparing: Preparing,
        feed: u64,
        indexes: Vec<(String, Box<dyn Index>)>,
        epochs: Arc<Epochs>,
        parts: Parts,
        passages: Option<Box<dyn PassageStore>>,
        handle: tokio::runtime::Handle,
    ) -> Self {
        let (jobs, todo) = mpsc::unbounded_channel();
        let prepared = indexes.iter().filter_map(|(key, index)| Some((key.clone(), index.preparation()?)));
        let preparations = Preparations::new(prepared.collect::<Vec<_>>().into());
        let corpus = preparing.corpus.clone();
        let _ = preparing.jobs.set(jobs.downgrade());
        let keeper = IndexWriter::new(corpus, feed, indexes, epochs, parts, preparing.clone()).keeping(passages);
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

    /// Publishes again what another process of a cluster has added to its part. It does not keep the task alive.
    pub(crate) fn again(&self) -> Again {
        let jobs = self.jobs.downgrade();
        Arc::new(move || drop(jobs.upgrade().map(|jobs| jobs.send(Job::Again))))
    }

    /// Returns when all earlier jobs are done.
    pub async fn barrier(&self) {
        let (reply, done) = oneshot::channel();
        let _ = self.jobs.send(Job::Barrier(reply));
        let _ = done.await;
    }

    /// Starts collecting the chunks of another feed, with this definition of the corpus.
    pub fn stage(&self, feed: u64, definition: &Arc<str>) {
        let _ = self.jobs.send(Job::Stage(feed, definition.clone()));
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
    /// takes effect when `published` receives `true`; until then the corpus does not change. In another process than the
    /// first of a cluster, the view is kept under `version`.
    ///
    /// # Errors
    ///
    /// An index failed, the feed is unknown, or the index writer has stopped.
    pub async fn switch(
        &self,
        feed: Option<u64>,
        added: Vec<AddedIndex>,
        published: oneshot::Receiver<bool>,
        version: Option<u64>,
    ) -> Result<Switched, IndexError> {
        let (reply, view) = oneshot::channel();
        let _ = self.jobs.send(Job::Switch { feed, added, reply, published, version });
        view.await.map_err(|_| IndexError::Feed)?
    }
}

/// The view of a corpus after a switch to another feed, and what the switch changes, if that is known.
pub type Switched = (CorpusSnapshot, Option<Arc<Delta>>);

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
    shape: Shape,
    /// What the first process asks this one to prepare.
    targets: Arc<Targets>,
    stored: Arc<Stored>,
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
        shape: Shape,
    ) -> Self {
        let publish_wake = WakeSlot::default();
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
            targets: Arc::new(Targets::new(publish_wake.clone())),
            publish_wake,
            shape,
            stored: Arc::default(),
        }
    }

    /// What serves passages that an earlier run has published until the source is read. `others` are the versions that the
    /// other processes of a cluster must have. Must be called before the dataflow is built.
    pub(crate) fn restoring(&mut self, passages: Keyed<Arc<Chunk>>, others: Vec<u64>) -> Restore {
        self.stored = Arc::default();
        let (state, stored, jobs) = (self.state.clone(), self.stored.clone(), self.jobs.clone());
        let (feed, source) = (self.feed, self.source_wake.clone());
        Box::new(move |part| {
            let restored = Restored { feed, passages, others, state, stored, source, part };
            let _ = jobs.send(Job::Restore(restored));
        })
    }

    /// The source waits until the stored passages are served.
    pub(crate) fn waits_for_stored(&self) {
        self.stored.wait();
    }

    /// The feed ends. If its source is not read, nobody waits for it any more.
    pub(crate) fn end(&self, epoch: u64) {
        self.stored.forget();
        self.state.send_if_modified(|state| {
            let waits = !state.is_read();
            if waits {
                *state = CorpusState::Ready { commits: u64::MAX, epoch };
            }
            waits
        });
    }

    /// The number of commits that are published; for a staged feed, collected.
    pub(crate) fn commits(&self) -> u64 {
        match *self.state.borrow() {
            CorpusState::Ready { commits, .. } => commits,
            CorpusState::Loading | CorpusState::Stored { .. } | CorpusState::Failed(_) => 0,
        }
    }

    /// What its indexes need in advance.
    pub(crate) fn preparations(&self) -> &Preparations {
        &self.preparations
    }

    /// The requests of the first process.
    pub(crate) fn targets(&self) -> &Arc<Targets> {
        &self.targets
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
    let chunks = net(cut(scope, documents, shared));
    let prepared = prepare(scope, contents(chunks.clone(), shared.shape), shared);
    publish(scope, chunks, prepared, shared, progress)
}

/// The net changes of each commit. All chunks of a document are on one worker.
fn net<'s>(chunks: VecCollection<'s, u64, Arc<Chunk>>) -> VecCollection<'s, u64, Arc<Chunk>> {
    let keyed = chunks.map(|chunk| (chunk, ()));
    let net = arrange_core::<_, _, _, KeySpine<Arc<Chunk>, u64, isize>>(keyed.inner, Pipeline, "Net", KeyBatcher::new);
    net.as_collection(|chunk, ()| chunk.clone())
}

/// The distinct contents of the chunks that this process has.
fn contents<'s>(chunks: VecCollection<'s, u64, Arc<Chunk>>, shape: Shape) -> VecCollection<'s, u64, Content> {
    let keyed = chunks.map(|chunk| (Content { chunk }, ()));
    let own =
        Exchange::new(move |((content, ()), _, _): &((Content, ()), u64, isize)| shape.own_worker(content.hashed()));
    let all = arrange_core::<_, _, _, KeySpine<Content, u64, isize>>(keyed.inner, own, "Contents", KeyBatcher::new);
    let distinct = all.reduce_abelian::<_, KeyBuilder<Content, u64, isize>, KeySpine<Content, u64, isize>, _, _>(
        "Distinct",
        |_, _, output| output.push(((), 1)),
        |updates, content, new| {
            updates.clear();
            updates.extend(new.drain(..).map(|((), time, diff)| ((content.clone(), ()), time, diff)));
        },
    );
    distinct.as_collection(|content, ()| content.clone())
}

/// State shared by the first and the last operator of a feed, which are on one worker.
#[derive(Default)]
struct FeedProgress {
    /// The commit that completes the initial documents.
    ready_at: Cell<Option<u64>>,
    /// Documents that are read but not prepared.
    backlog: RefCell<PreparationBacklog>,
}
