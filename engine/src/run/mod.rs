//! Runs a plan: source threads, workers, background services, and shutdown.

mod backup;
mod build;
mod divided;
mod ending;
mod error;
mod lacking;
mod maintain;
mod members;
mod options;
mod passages;
mod reload;
mod resume;
mod services;
mod start;
mod status;
mod worker_pool;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use timely::communication::WorkerGuards;
use tokio::sync::watch;

use self::build::{Feed, Manual, RuntimeContext, TurnFeed};
use self::divided::Waiting;
use self::ending::IoThreads;
pub use self::error::RunError;
pub use self::lacking::LackingModel;
pub use self::maintain::MaintenanceReport;
pub use self::members::Answerer;
pub use self::options::{IsCancelled, Options, TurnSources};
pub use self::reload::ReloadError;
use self::reload::follow::Following;
pub use self::status::{CorpusStatus, EngineStatus, MOST_REASONS, NodeStatus, SourceStatus, TurnsStatus};
use self::worker_pool::WorkerPool;
use crate::ask::{AnswerStream, AskQueue, AskRequest, Asked};
use crate::cache::InferenceCache;
use crate::cluster::{Peers, Shape};
use crate::component::Models;
use crate::connector::{AnswerLog, Arrived, DocumentStore, PageViews, SourcedTurn, TakesRequests, TurnQueue};
use crate::corpus::{CorpusIndexes, CorpusState};
use crate::dead_letter::Refused;
use crate::inference::tokens::ByModel;
use crate::metrics::Metrics;
use crate::plan::{Plan, PlanFingerprint};
use crate::publish::{CorpusProgress, Epochs};
use crate::record::{AnswerRecord, Item, Provenance};
use crate::sinks::{SinkHandle, SinkStatus};
use crate::state::file_name;
use crate::turns::{self, CachedAnswers, Generation, StandingCount, TurnsShared};

/// A parked worker wakes up after this time even without a signal.
const PARK: Duration = Duration::from_millis(500);
/// The polling interval at the end of a run.
const TICK: Duration = Duration::from_millis(2);

/// A running corpus.
struct RunningCorpus {
    indexes: CorpusIndexes,
    feed: Feed,
    /// The keys of its indexes.
    keys: BTreeSet<String>,
}

/// The running plan and its components.
struct Running {
    outline: PlanFingerprint,
    models: Models,
    corpora: BTreeMap<Arc<str>, RunningCorpus>,
    sources: BTreeMap<Arc<str>, TurnFeed>,
    sinks: BTreeMap<Arc<str>, Option<Arc<SinkHandle>>>,
    generation: Arc<Generation>,
    manual: Option<Manual>,
}

/// A corpus's name, and whether its indexes are closed.
type Leaving = (Arc<str>, Arc<AtomicBool>);

struct Inner {
    context: RuntimeContext,
    running: Mutex<Running>,
    /// One reload at a time.
    reloading: Mutex<()>,
    /// Removed corpora, and whether their indexes are closed.
    leaving: Mutex<Vec<Leaving>>,
    stopping: AtomicBool,
    /// Whether the run is held, although its sources may have ended.
    stays: AtomicBool,
    /// The reload that the first process leads, in another process.
    following: Mutex<Option<Following>>,
    /// The plan of the last such reload, until it is taken.
    followed: Mutex<Option<Plan>>,
    /// The sources of a reload that another process than the first will read, until every process has the new epoch.
    waiting: Mutex<Vec<Waiting>>,
    /// The last reload that has failed elsewhere.
    undone: AtomicU64,
}

/// A running pipeline.
pub struct Engine {
    inner: Arc<Inner>,
    workers: Mutex<Option<WorkerGuards<()>>>,
    checkpoints: Option<std::thread::JoinHandle<()>>,
    io: IoThreads,
    /// The other processes, in a cluster.
    peers: Option<Arc<Peers>>,
}

impl Engine {
    /// The loaded models.
    pub fn models(&self) -> Models {
        self.inner.running.lock().models.clone()
    }

    /// The inference cache.
    pub fn cache(&self) -> &Arc<InferenceCache> {
        &self.inner.context.cache
    }

    /// The progress and the state of each corpus.
    pub fn corpora(&self) -> Vec<(Arc<str>, Arc<CorpusProgress>, watch::Receiver<CorpusState>)> {
        let running = self.inner.running.lock();
        let corpora = running.corpora.iter();
        corpora.map(|(name, of)| (name.clone(), of.indexes.progress().clone(), of.feed.shared.state())).collect()
    }

    /// The store of a corpus's documents. `None` if there is no such corpus, or if its source reads its
    /// documents elsewhere, as `Directory` does. The store stays valid after a reload that keeps the
    /// corpus. Its calls block.
    ///
    /// ```no_run
    /// # fn example(engine: &turnflow_engine::run::Engine) -> Result<(), turnflow_engine::connector::ConnectorError> {
    /// use turnflow_engine::connector::StoredDocument;
    ///
    /// if let Some(documents) = engine.documents("docs") {
    ///     documents.put(vec![StoredDocument {
    ///         id: "ferry".into(),
    ///         title: Some("The ferry".into()),
    ///         text: "The ferry leaves at ten.".into(),
    ///         markup: Default::default(),
    ///         metadata: serde_json::Map::new(),
    ///         modified_ms: 0,
    ///     }])?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn documents(&self, corpus: &str) -> Option<Arc<dyn DocumentStore>> {
        self.inner.running.lock().corpora.get(corpus)?.feed.documents.clone()
    }

    /// What shows the pages of a corpus's files. `None` if its source has no such files, or another process of the cluster
    /// reads them.
    pub fn page_views(&self, corpus: &str) -> Option<Arc<dyn PageViews>> {
        self.inner.running.lock().corpora.get(corpus)?.feed.page_views.clone()
    }

    /// The queue of a turn source, or of the first one that has a queue. `None` if there is none, as of a
    /// source such as `JsonLines`, which reads its turns elsewhere. The queue stays valid after a reload that
    /// keeps the source. Its calls block.
    pub fn turn_queue(&self, source: Option<&str>) -> Option<Arc<dyn TurnQueue>> {
        let running = self.inner.running.lock();
        let mut sources = running.sources.iter().filter(|(id, _)| source.is_none_or(|source| *source == ***id));
        sources.find_map(|(_, feed)| feed.queue.clone())
    }

    /// What takes the requests of other programs for a turn source, or for the first one that takes some. It stays valid
    /// after a reload that keeps the source.
    pub fn requests(&self, source: Option<&str>) -> Option<Arc<dyn TakesRequests>> {
        let running = self.inner.running.lock();
        let mut sources = running.sources.iter().filter(|(id, _)| source.is_none_or(|source| *source == ***id));
        sources.find_map(|(_, feed)| feed.requests.clone())
    }

    /// The answers of a sink, or of the first one whose answers a program may read. `None` if there is none.
    /// Its calls block.
    pub fn answer_log(&self, sink: Option<&str>) -> Option<Arc<dyn AnswerLog>> {
        let running = self.inner.running.lock();
        let mut sinks = running.sinks.iter().filter(|(id, _)| sink.is_none_or(|sink| *sink == ***id));
        sinks.find_map(|(_, sink)| sink.as_ref()?.log())
    }

    /// Whether a change of a corpus's documents is published, or a later one of the same documents: turns that
    /// are asked after this returns see the change. The number is what [`DocumentStore::put`] returns. Also true if
    /// the change does not alter the passages. False if the corpus has no document store.
    pub fn has_published(&self, corpus: &str, change: u64) -> bool {
        let running = self.inner.running.lock();
        let Some(of) = running.corpora.get(corpus) else { return false };
        let Some(commit) = of.feed.documents.as_ref().and_then(|documents| documents.commit_of(change)) else {
            return false;
        };
        matches!(*of.feed.shared.state().borrow(), CorpusState::Ready { commits, .. } if commits >= commit)
    }

    /// The published epochs.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.inner.context.shared.epochs
    }

    /// Bytes of changed conversations that wait for a checkpoint. Above a limit, no more records are read.
    pub fn unwritten_bytes(&self) -> u64 {
        self.inner.context.shared.durable.unwritten_bytes()
    }

    /// Number of answered turns, including IDK answers and failures.
    pub fn delivered(&self) -> usize {
        self.inner.context.shared.delivered.load(Ordering::Acquire)
    }

    /// Records that came a second time (the same conversation, turn and text) and were not answered again.
    pub fn repeated(&self) -> u64 {
        self.inner.context.shared.repeated.load(Ordering::Acquire)
    }

    /// Number of turns that were read again but already answered by an earlier process.
    pub fn recovered(&self) -> u64 {
        self.inner.context.shared.recovered.load(Ordering::Acquire)
    }

    /// Number of revisions, in a live pipeline.
    pub fn revised(&self) -> u64 {
        self.inner.context.shared.revised.load(Ordering::Acquire)
    }

    /// Number of times that a standing turn was answered again because a change could reach it.
    pub fn answered_again(&self) -> u64 {
        self.inner.context.shared.answered_again.load(Ordering::Acquire)
    }

    /// What the answer cache has, and how it was used.
    pub fn cached_answers(&self) -> CachedAnswers {
        self.inner.context.shared.answers.counts()
    }

    /// The standing turns, and how many of them are behind.
    pub fn standing(&self) -> StandingCount {
        StandingCount::of(self.inner.context.shared.standing.lock().values())
    }

    /// Number of turns read but not answered yet.
    pub fn outstanding(&self) -> usize {
        self.inner.context.shared.outstanding.load(Ordering::Acquire)
    }

    /// Number of turns that a stop answers before the run ends: those that run, and those that wait and that
    /// no restart reads again.
    pub fn finishing(&self) -> usize {
        let shared = &self.inner.context.shared;
        let dropped = match shared.durable.is_kept() {
            true => shared.sources.lock().iter().map(|source| source.backlog.restartable()).sum(),
            false => 0,
        };
        self.outstanding().saturating_sub(dropped)
    }

    /// Number of records read but not started.
    pub fn queued(&self) -> usize {
        self.inner.context.shared.sources.lock().iter().map(|source| source.backlog.records()).sum()
    }

    /// The status of each sink of the running plan.
    pub fn sinks(&self) -> Vec<SinkStatus> {
        let running = self.inner.running.lock();
        running.sinks.values().flatten().map(|sink| sink.status()).collect()
    }

    /// Counters and gauges of components.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.context.metrics
    }

    /// Counts the tokens of calls of its language models that are no turns.
    pub fn spent(&self, tokens: &ByModel) {
        self.inner.context.shared.activity.spent(tokens);
    }

    /// Number of dead letters written so far.
    pub fn dead_letters(&self) -> u64 {
        self.inner.context.dead.count()
    }

    /// The same by the corpus or node that they are of.
    pub fn dead_letters_of(&self) -> BTreeMap<String, u64> {
        self.inner.context.dead.counts()
    }

    /// The dead letters themselves.
    pub fn letters(&self) -> &crate::dead_letter::DeadLetters {
        &self.inner.context.dead
    }

    /// Records that sources of turns could not read in this process.
    pub fn refused(&self) -> Refused {
        self.inner.context.dead.refused()
    }

    fn stamp(&self) -> Provenance {
        self.inner.running.lock().generation.stamp.clone()
    }

    /// The record that a sink would get for an item.
    pub fn record(&self, item: &Item) -> AnswerRecord {
        turns::record(item, &self.stamp(), self.inner.context.shared.now_us())
    }

    /// The same as a function with the current provenance, which outlives the engine.
    pub fn recorder(&self) -> impl Fn(&Item) -> AnswerRecord + Send + Sync + 'static {
        let (shared, stamp) = (self.inner.context.shared.clone(), self.stamp());
        move |item| turns::record(item, &stamp, shared.now_us())
    }

    /// Submits a turn; blocks while too many wait. Returns false if the run has ended or
    /// the options read sources.
    pub fn submit(&self, turn: SourcedTurn) -> bool {
        let manual = self.inner.running.lock().manual.as_ref().map(|to| (to.sender.clone(), to.wake.clone()));
        let Some((sender, wake)) = manual else { return false };
        let mut arrived = Arrived { turn, at: Instant::now() };
        loop {
            let sent = sender.send_timeout(arrived, PARK);
            wake.wake();
            match sent {
                Ok(()) => return true,
                Err(crossbeam_channel::SendTimeoutError::Timeout(back)) if !self.has_failed() => arrived = back,
                Err(_) => return false,
            }
        }
    }

    /// Asks a turn and returns its events. Any number of turns may be asked at once: together with the
    /// turns of sources, at most `conversations.max_in_flight` run, and at most
    /// `conversations.max_queued` wait. Dropping the stream cancels the turn.
    ///
    /// ```no_run
    /// # async fn example(engine: turnflow_engine::run::Engine) {
    /// use turnflow_engine::ask::{AskRequest, Event};
    ///
    /// let mut events = engine.ask(AskRequest::new("When does the ferry leave?"));
    /// while let Some(event) = events.next().await {
    ///     match event {
    ///         Event::Delta { text, .. } => print!("{text}"),
    ///         Event::Answer { record } => println!("\n{} passages", record.hits.len()),
    ///         Event::Failed { reason } => println!("{reason}"),
    ///         Event::Started { .. } | Event::Node { .. } | Event::Revised { .. } => {}
    ///     }
    /// }
    /// # }
    /// ```
    pub fn ask(&self, request: AskRequest) -> AnswerStream {
        let RuntimeContext { shared, pool, handle, .. } = &self.inner.context;
        let (caller, stream) = AskQueue::open(&request);
        let submit = |asked: Asked, shared: &TurnsShared, pool: &WorkerPool| {
            let (places, queued) = {
                let limits = shared.limits.read();
                (limits.max_in_flight, limits.max_queued)
            };
            shared.asks.submit(asked, &shared.slots, places, queued);
            pool.wake();
        };
        let generation = shared.generation();
        let similar = generation.as_ref().and_then(|generation| generation.similar.clone());
        match (similar, generation) {
            // An encoder may have to look at the question first.
            (Some(similar), Some(generation)) => {
                let (shared, pool) = (shared.clone(), pool.clone());
                handle.spawn(async move {
                    let source = request.source.clone().or_else(|| generation.sources().next().cloned());
                    let compared =
                        async { shared.answers.nearest(generation.family, &source?, &request, &similar).await };
                    let alike = tokio::select! {
                        alike = compared => alike,
                        () = caller.cancel().cancelled() => return,
                    };
                    submit(Asked { request, caller, alike }, &shared, &pool);
                });
            }
            _ => submit(Asked { request, caller, alike: None }, shared, pool),
        }
        stream
    }

    /// Number of turns that hold a slot.
    pub fn in_flight(&self) -> usize {
        self.inner.context.shared.slots.taken()
    }

    /// Number of asked turns that have not started.
    pub fn waiting_callers(&self) -> usize {
        self.inner.context.shared.asks.len()
    }

    /// Waits until every corpus is published.
    pub fn wait_ready(&self) -> Result<(), RunError> {
        while !self.wait_ready_for(PARK)? {}
        Ok(())
    }

    /// Waits for at most `duration`; returns whether the source of every corpus is read and published.
    pub fn wait_ready_for(&self, duration: Duration) -> Result<bool, RunError> {
        self.wait_for(&self.inner.context.shared.ready, duration)
    }

    /// Waits for at most `duration`; returns whether callers are answered: every corpus is published, perhaps as an earlier
    /// run has stored it.
    pub fn wait_serving_for(&self, duration: Duration) -> Result<bool, RunError> {
        self.wait_for(&self.inner.context.shared.serving, duration)
    }

    /// Whether the first epoch of a corpus is still awaited; before it, nobody is answered.
    pub fn is_loading(&self) -> bool {
        !self.inner.context.shared.serving.load(Ordering::Acquire)
    }

    /// Whether callers are answered. In a cluster, every other process must have given a sign of life in the last seconds,
    /// because a question needs all of them.
    pub fn is_serving(&self) -> bool {
        let hears_all = self.peers.as_ref().is_none_or(|peers| peers.bond.hears_all());
        self.inner.context.shared.serving.load(Ordering::Acquire) && hears_all
    }

    fn wait_for(&self, flag: &AtomicBool, duration: Duration) -> Result<bool, RunError> {
        let until = Instant::now() + duration;
        while !flag.load(Ordering::Acquire) {
            self.check()?;
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        Ok(true)
    }

    /// The processes and workers of the run.
    pub fn shape(&self) -> Shape {
        self.inner.context.pool.shape()
    }
}

/// The default state directory of a pipeline: always below `.turnflow`, whatever the name is.
pub fn default_state(name: &str) -> PathBuf {
    let top = Path::new(".turnflow");
    let mut parts = Path::new(name).components();
    let is_one = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if *part == *name);
    if is_one && name.len() < 200 && !name.contains('\0') {
        return top.join(name);
    }
    // The path that earlier versions used, if it is below `.turnflow`.
    let is_below = !name.is_empty() && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let before = top.join(name);
    if is_below && before.join("format").is_file() { before } else { top.join(file_name(name)) }
}

#[cfg(test)]
mod tests;
