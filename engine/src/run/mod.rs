//! Running a plan: threads of sources, workers, the services behind them, and their end.

mod build;
mod maintain;
mod reload;
mod resume;
mod start;
mod worker_pool;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use timely::communication::WorkerGuards;
use tokio::sync::watch;

use self::build::{Feed, Manual, RuntimeContext, TurnFeed};
pub use self::maintain::MaintenanceReport;
pub use self::reload::ReloadError;
use crate::ask::{AnswerStream, AskRequest};
use crate::cache::InferenceCache;
use crate::component::{BuildError, IndexError, Models};
use crate::connector::{Arrived, ConnectorError, Mode, SourcedTurn};
use crate::corpus::{CorpusIndexes, CorpusState};
use crate::database::DatabaseError;
use crate::durable::StoreError;
use crate::metrics::Metrics;
use crate::panics::Panicked;
use crate::plan::PlanFingerprint;
use crate::publish::{CorpusProgress, Epochs};
use crate::record::{AnswerRecord, Item, Provenance};
use crate::sinks::{SinkHandle, SinkStatus};
use crate::state::{StateError, file_name};
use crate::turns::{self, Generation, Observer};

/// A parked worker looks up after this even if nobody woke it.
const PARK: Duration = Duration::from_millis(500);

/// How to run.
#[derive(Clone)]
pub struct Options {
    /// Worker threads.
    pub workers: usize,
    /// Where what must survive is kept; in memory only, if not given.
    pub state: Option<PathBuf>,
    /// Whether turn sources follow.
    pub turns: Mode,
    /// Whether corpus sources watch.
    pub corpora: Mode,
    /// Turns come from [`Engine::submit`], not from the sources of the file.
    pub manual_turns: bool,
    /// Whether answers go to the sinks of the file.
    pub sinks: bool,
    /// Whether there are turns at all; else only the corpora are brought up to date.
    pub answer: bool,
    /// Is told every value that a node gives.
    pub observer: Option<Observer>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 1,
            state: None,
            turns: Mode::Follow,
            corpora: Mode::Follow,
            manual_turns: false,
            sinks: true,
            answer: true,
            observer: None,
        }
    }
}

/// Why a pipeline cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// What outlives the process cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The inference cache cannot be used.
    #[error(transparent)]
    InferenceCache(#[from] DatabaseError),
    /// Something could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Epochs cannot be counted.
    #[error(transparent)]
    Epochs(#[from] IndexError),
    /// A source failed.
    #[error("{name}: {source}")]
    Source {
        /// The node or corpus.
        name: String,
        /// Why.
        source: ConnectorError,
    },
    /// The first epoch of a corpus could not be published.
    #[error("corpus `{corpus}` cannot be published: {reason}")]
    Publish {
        /// The corpus.
        corpus: String,
        /// Why.
        reason: String,
    },
    /// The operating system gave no thread.
    #[error("cannot start {what}: {reason}")]
    Thread {
        /// What was to run.
        what: &'static str,
        /// What the operating system said.
        reason: String,
    },
    /// A worker panicked.
    #[error("a worker ended early: {0}")]
    Worker(String),
    /// Something else of the engine did.
    #[error("{what} {source}")]
    Panicked {
        /// What.
        what: &'static str,
        /// With what.
        source: Panicked,
    },
}

/// A corpus that is served.
struct RunningCorpus {
    indexes: CorpusIndexes,
    feed: Feed,
    /// Of the indexes that it has.
    keys: BTreeSet<String>,
}

/// The plan that runs, and what it runs with.
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
    /// Corpora that are let go, and whether they have been.
    leaving: Mutex<Vec<Leaving>>,
    stopping: AtomicBool,
}

/// A running pipeline.
pub struct Engine {
    inner: Arc<Inner>,
    workers: Mutex<Option<WorkerGuards<()>>>,
    checkpoints: Option<std::thread::JoinHandle<()>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Engine {
    /// The loaded models.
    pub fn models(&self) -> Models {
        self.inner.running.lock().models.clone()
    }

    /// What models gave for turns.
    pub fn cache(&self) -> &Arc<InferenceCache> {
        &self.inner.context.cache
    }

    /// Counters of each corpus, and how far it has come.
    pub fn corpora(&self) -> Vec<(Arc<str>, Arc<CorpusProgress>, watch::Receiver<CorpusState>)> {
        let running = self.inner.running.lock();
        let corpora = running.corpora.iter();
        corpora.map(|(name, of)| (name.clone(), of.indexes.progress().clone(), of.feed.shared.state())).collect()
    }

    /// The published epochs.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.inner.context.shared.epochs
    }

    /// Turns that are answered, idk's and failures included.
    pub fn delivered(&self) -> usize {
        self.inner.context.shared.delivered.load(Ordering::Acquire)
    }

    /// Turns that were read again and had been answered by an earlier process.
    pub fn recovered(&self) -> u64 {
        self.inner.context.shared.recovered.load(Ordering::Acquire)
    }

    /// Answers that took the place of another, in a live pipeline.
    pub fn revised(&self) -> u64 {
        self.inner.context.shared.revised.load(Ordering::Acquire)
    }

    /// Turns that are read and not answered yet.
    pub fn outstanding(&self) -> usize {
        self.inner.context.shared.outstanding.load(Ordering::Acquire)
    }

    /// Records that are read and wait for their turn.
    pub fn queued(&self) -> usize {
        self.inner.context.shared.sources.lock().iter().map(|source| source.backlog.records()).sum()
    }

    /// How the sinks of the plan that runs do.
    pub fn sinks(&self) -> Vec<SinkStatus> {
        let running = self.inner.running.lock();
        running.sinks.values().flatten().map(|sink| sink.status()).collect()
    }

    /// Counters and gauges of components.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.context.metrics
    }

    /// Dead letters written so far.
    pub fn dead_letters(&self) -> u64 {
        self.inner.context.dead.count()
    }

    fn stamp(&self) -> Provenance {
        self.inner.running.lock().generation.stamp.clone()
    }

    /// The record that a sink would get for an item.
    pub fn record(&self, item: &Item) -> AnswerRecord {
        turns::record(item, &self.stamp(), self.inner.context.shared.now_us())
    }

    /// The engine's models and pipeline, for records made elsewhere.
    pub fn recorder(&self) -> impl Fn(&Item) -> AnswerRecord + Send + Sync + 'static {
        let (shared, stamp) = (self.inner.context.shared.clone(), self.stamp());
        move |item| turns::record(item, &stamp, shared.now_us())
    }

    /// Hands a turn over; blocks while too many wait. With `manual_turns` only.
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

    /// Asks a turn, and gives what comes of it. Any number may be asked at once: as many are worked
    /// on as `conversations.max_in_flight` says, together with those of the sources, and as many wait
    /// as `conversations.max_queued` says. Dropping the stream cancels the turn.
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
    ///         Event::Started { .. } | Event::Node { .. } => {}
    ///     }
    /// }
    /// # }
    /// ```
    pub fn ask(&self, request: AskRequest) -> AnswerStream {
        let shared = &self.inner.context.shared;
        let (places, queued) = {
            let limits = shared.limits.read();
            (limits.max_in_flight, limits.max_queued)
        };
        let stream = shared.asks.submit(request, &shared.slots, places, queued);
        self.inner.context.pool.wake();
        stream
    }

    /// Turns that hold a place among those that are worked on.
    pub fn in_flight(&self) -> usize {
        self.inner.context.shared.slots.taken()
    }

    /// Turns that are asked and not begun.
    pub fn waiting_callers(&self) -> usize {
        self.inner.context.shared.asks.len()
    }

    /// Waits until every corpus is published.
    pub fn wait_ready(&self) -> Result<(), RunError> {
        while !self.wait_ready_for(PARK)? {}
        Ok(())
    }

    /// Waits for at most `duration`; whether every corpus is published.
    pub fn wait_ready_for(&self, duration: Duration) -> Result<bool, RunError> {
        let until = Instant::now() + duration;
        while !self.inner.context.shared.ready.load(Ordering::Acquire) {
            self.check()?;
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        Ok(true)
    }

    /// Whether everything has come to its end: sources drained, answers delivered.
    pub fn has_ended(&self) -> bool {
        self.inner.context.pool.has_ended()
    }

    /// Whether an error has ended it.
    pub fn has_failed(&self) -> bool {
        !self.inner.context.errors.lock().is_empty()
    }

    /// The first error, if there is one; the run is then over.
    pub fn check(&self) -> Result<(), RunError> {
        let mut errors = self.inner.context.errors.lock();
        if errors.is_empty() { Ok(()) } else { Err(errors.remove(0)) }
    }

    /// No more turns will be submitted.
    pub fn end_turns(&self) {
        let manual = self.inner.running.lock().manual.take();
        if let Some(Manual { sender, wake, .. }) = manual {
            drop(sender);
            wake.wake();
        }
    }

    /// Asks sources to end. Turns that are worked on are answered first, and those that wait too,
    /// unless a restart reads them again. A reload that is under way is given up.
    pub fn stop(&self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.context.shared.stopping.store(true, Ordering::Release);
        self.end_turns();
        self.inner.context.pool.stop();
        self.inner.context.shared.wake_conversations();
        let _reload = self.inner.reloading.lock();
        // A reload may have come to its end meanwhile, with a source of its own.
        self.end_turns();
        let mut running = self.inner.running.lock();
        let Running { sources, corpora, .. } = &mut *running;
        let mut threads: Vec<_> = sources.values_mut().filter_map(|source| source.source.as_mut()).collect();
        threads.extend(corpora.values_mut().map(|corpus| &mut corpus.feed.source));
        threads.iter_mut().for_each(|thread| thread.stop());
        threads.iter_mut().for_each(|thread| thread.end());
        for source in sources.values() {
            source.handle.wake.wake();
        }
    }

    /// Waits for the end. With sources that follow, [`Engine::stop`] comes first.
    pub fn join(mut self) -> Result<(), RunError> {
        self.end_turns();
        let joined = self.workers.get_mut().take().map(WorkerGuards::join).into_iter().flatten();
        let panicked: Vec<String> = joined.filter_map(Result::err).collect();
        self.stop();
        self.end_sinks_and_checkpoints();
        self.check()?;
        match panicked.into_iter().next() {
            Some(panic) => Err(RunError::Worker(panic)),
            None => Ok(()),
        }
    }

    /// Ends what is written to, and writes the last checkpoint.
    fn end_sinks_and_checkpoints(&mut self) {
        self.inner.context.shared.durable.sinks().iter().for_each(|sink| sink.close());
        self.inner.context.shutdown.cancel();
        self.inner.context.shared.durable.end();
        if let Some(thread) = self.checkpoints.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.context.pool.abort();
        self.end_turns();
        drop(self.workers.get_mut().take());
        self.stop();
        self.end_sinks_and_checkpoints();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// Where a pipeline keeps its state when the user names no place: always below `.turnflow`,
/// whatever the name is.
pub fn default_state(name: &str) -> PathBuf {
    let top = Path::new(".turnflow");
    let mut parts = Path::new(name).components();
    let is_one = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if *part == *name);
    if is_one && name.len() < 200 && !name.contains('\0') {
        return top.join(name);
    }
    // Where an earlier version has put it, if that is below.
    let is_below = !name.is_empty() && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let before = top.join(name);
    if is_below && before.join("format").is_file() { before } else { top.join(file_name(name)) }
}

#[cfg(test)]
mod tests;
