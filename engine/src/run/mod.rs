//! Running a plan: threads of sources, workers, the services behind them, and their end.

mod start;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use timely::communication::WorkerGuards;
use tokio::sync::watch;

use crate::component::{BuildError, IndexError, Models};
use crate::connector::{ConnectorError, Mode, SourcedTurn, StopHandle};
use crate::corpus::{CorpusShared, CorpusState};
use crate::dead_letter::DeadLetters;
use crate::memo::{Memo, MemoError};
use crate::publish::{CorpusProgress, Epochs};
use crate::record::{AnswerRecord, Item};
use crate::state::{StateDirectory, StateError};
use crate::turns::{self, Observer, Running, TurnsShared};
use crate::wake::WakeSlot;

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
    /// The memo store cannot be used.
    #[error(transparent)]
    Memo(#[from] MemoError),
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
}

/// A running pipeline.
pub struct Engine {
    // Fields are dropped in this order: workers end before the services they call.
    manual: Option<Sender<SourcedTurn>>,
    stop: Option<StopHandle>,
    workers: Option<WorkerGuards<()>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    shared: Arc<TurnsShared>,
    corpora: Vec<CorpusShared>,
    abort: Arc<AtomicBool>,
    errors: Arc<Mutex<Vec<RunError>>>,
    models: Models,
    memo: Arc<Memo>,
    dead: DeadLetters,
    runtime: Option<tokio::runtime::Runtime>,
    manual_wake: Option<WakeSlot>,
    live_workers: Arc<AtomicUsize>,
    _state: Option<StateDirectory>,
}

impl Engine {
    /// The loaded models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// What models gave for turns.
    pub fn memo(&self) -> &Arc<Memo> {
        &self.memo
    }

    /// Counters of each corpus, and how far it has come.
    pub fn corpora(&self) -> Vec<(Arc<str>, Arc<CorpusProgress>, watch::Receiver<CorpusState>)> {
        self.corpora.iter().map(|corpus| (corpus.name.clone(), corpus.progress.clone(), corpus.state())).collect()
    }

    /// The published epochs.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.shared.epochs
    }

    /// Turns that are answered, idk's and failures included.
    pub fn delivered(&self) -> usize {
        self.shared.delivered.load(Ordering::Acquire)
    }

    /// Turns that are read and not answered yet.
    pub fn outstanding(&self) -> usize {
        self.shared.outstanding.load(Ordering::Acquire)
    }

    /// Dead letters written so far.
    pub fn dead_letters(&self) -> u64 {
        self.dead.count()
    }

    /// The record that a sink would get for an item.
    pub fn record(&self, item: &Item) -> AnswerRecord {
        turns::record(item, &self.shared.stamp, self.shared.started.elapsed().as_micros() as u64)
    }

    /// The engine's models and pipeline, for records made elsewhere.
    pub fn recorder(&self) -> impl Fn(&Item) -> AnswerRecord + Send + Sync + 'static {
        let shared = self.shared.clone();
        move |item| turns::record(item, &shared.stamp, shared.started.elapsed().as_micros() as u64)
    }

    /// Hands a turn over; blocks while too many are in flight. With `manual_turns` only.
    pub fn submit(&self, turn: SourcedTurn) -> bool {
        let Some(manual) = &self.manual else { return false };
        let mut turn = turn;
        loop {
            let sent = manual.send_timeout(turn, PARK);
            if let Some(wake) = &self.manual_wake {
                wake.wake();
            }
            match sent {
                Ok(()) => return true,
                Err(crossbeam_channel::SendTimeoutError::Timeout(back)) if !self.has_failed() => turn = back,
                Err(_) => return false,
            }
        }
    }

    /// Waits until every corpus is published.
    pub fn wait_ready(&self) -> Result<(), RunError> {
        while !self.wait_ready_for(PARK)? {}
        Ok(())
    }

    /// Waits for at most `duration`; whether every corpus is published.
    pub fn wait_ready_for(&self, duration: Duration) -> Result<bool, RunError> {
        let until = Instant::now() + duration;
        while !self.shared.ready.load(Ordering::Acquire) {
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
        self.live_workers.load(Ordering::Acquire) == 0
    }

    /// Whether an error has ended it.
    pub fn has_failed(&self) -> bool {
        !self.errors.lock().is_empty()
    }

    /// The first error, if there is one; the run is then over.
    pub fn check(&self) -> Result<(), RunError> {
        let mut errors = self.errors.lock();
        if errors.is_empty() { Ok(()) } else { Err(errors.remove(0)) }
    }

    /// No more turns will be submitted.
    pub fn end_turns(&mut self) {
        self.manual = None;
        if let Some(wake) = &self.manual_wake {
            wake.wake();
        }
    }

    /// Asks sources to end; what has been read is still answered.
    pub fn stop(&mut self) {
        self.end_turns();
        self.stop = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for node in &self.shared.nodes {
            if let Running::Source(_, wake) = &node.running {
                wake.wake();
            }
        }
    }

    /// Waits for the end. With sources that follow, [`Engine::stop`] comes first.
    pub fn join(mut self) -> Result<(), RunError> {
        self.end_turns();
        let joined = self.workers.take().map(WorkerGuards::join).into_iter().flatten();
        let panicked: Vec<String> = joined.filter_map(Result::err).collect();
        self.stop = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.check()?;
        match panicked.into_iter().next() {
            Some(panic) => Err(RunError::Worker(panic)),
            None => Ok(()),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.manual = None;
        self.stop = None;
        self.abort.store(true, Ordering::Release);
        drop(self.workers.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// Where a pipeline keeps its state when the user names no place.
pub fn default_state(name: &str) -> PathBuf {
    Path::new(".turnflow").join(name)
}
