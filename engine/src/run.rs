//! Running a plan: threads of sources, workers, the services behind them, and their end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use timely::WorkerConfig;
use timely::communication::WorkerGuards;
use tokio::sync::watch;

use crate::component::{BuildError, CorpusRef, Index, IndexDefinition, IndexError, Models, Prepare};
use crate::connector::{ConnectorError, CorpusOutput, Mode, SourcedTurn, Stop, StopHandle, TurnOutput};
use crate::corpus::{self, CorpusShared, CorpusState};
use crate::dead_letter::DeadLetters;
use crate::memo::{Memo, MemoError};
use crate::plan::{NodeKind, Plan, PlannedCorpus};
use crate::publish::{CorpusProgress, Epochs, Publisher};
use crate::record::{AnswerRecord, Item, Stamp};
use crate::state::{StateDirectory, StateError};
use crate::turns::{self, Observer, Running, RunningNode, TurnsShared};
use crate::wake::WakeSlot;

/// Documents and turns on the way from a source's thread to its worker.
const CHANNEL: usize = 1024;
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
    /// Loads the models, opens the indexes and starts everything.
    pub fn start(plan: Plan, options: Options) -> Result<Self, RunError> {
        let state = options.state.as_deref().map(StateDirectory::open).transpose()?;
        let memo = Memo::open(state.as_ref().map(StateDirectory::path))?;
        let mut models = Models::new();
        for (name, model) in &plan.models {
            models.insert(name.clone(), Arc::new(model.config.load(name)?.remembering(&memo)));
        }
        let thread_error = |what| move |error: std::io::Error| RunError::Thread { what, reason: error.to_string() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("turnflow-io")
            .enable_all()
            .build()
            .map_err(thread_error("the I/O threads"))?;
        let dead = dead_letters(&plan, state.as_ref())?;
        let epochs = Arc::new(Epochs::open(state.as_ref().map(StateDirectory::path))?);
        let (stop_handle, stop) = Stop::new();
        let errors: Arc<Mutex<Vec<RunError>>> = Arc::default();
        let abort = Arc::new(AtomicBool::new(false));
        let mut start = Start {
            options: &options,
            models: &models,
            handle: runtime.handle().clone(),
            dead: dead.clone(),
            stop: stop.clone(),
            errors: errors.clone(),
            abort: abort.clone(),
            threads: Vec::new(),
        };

        let definitions = start.definitions(&plan)?;
        let mut corpora = Vec::new();
        for corpus in plan.corpora {
            let definitions = definitions.get(&corpus.name).cloned().unwrap_or_default();
            corpora.push(start.corpus(corpus, definitions, state.as_ref(), &epochs)?);
        }
        let stamp = Stamp {
            pipeline: plan.hash.clone(),
            epoch: 0,
            models: Arc::new(models.iter().map(|(name, model)| (name.clone(), model.fingerprint.clone())).collect()),
            notes: Arc::default(),
        };
        let mut manual = None;
        let mut manual_wake = None;
        let mut nodes = Vec::new();
        if options.answer {
            for node in plan.nodes {
                let running = match node.kind {
                    NodeKind::Source(config) => {
                        let (sender, receiver) = crossbeam_channel::bounded(CHANNEL);
                        let wake = WakeSlot::default();
                        if !options.manual_turns {
                            start.turns(&node.id, config.build(), sender, wake.clone())?;
                        } else if manual.is_none() {
                            manual = Some(sender);
                            manual_wake = Some(wake.clone());
                        }
                        Running::Source(Arc::new(Mutex::new(Some(receiver))), wake)
                    }
                    NodeKind::Operator(config) => Running::Operator(config.build(&models)?),
                    NodeKind::Sink(_) if !options.sinks => Running::Sink(None),
                    NodeKind::Sink(config) => {
                        let sink = config
                            .build()
                            .map_err(|source| BuildError::Connector { node: node.id.to_string(), source })?;
                        Running::Sink(Some(Arc::new(Mutex::new(sink))))
                    }
                };
                nodes.push(RunningNode { id: node.id, kind_name: node.kind_name, inputs: node.inputs, running });
            }
        }
        let shared = Arc::new(TurnsShared {
            nodes,
            limits: plan.conversations,
            epochs,
            ready: AtomicBool::new(false),
            conversation_wakes: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            delivered: AtomicUsize::new(0),
            handle: runtime.handle().clone(),
            observer: options.observer.clone(),
            stamp,
            started: Instant::now(),
        });
        let threads = start.threads;
        let live_workers = Arc::new(AtomicUsize::new(options.workers.max(1)));
        let workers = start_workers(&options, &shared, &corpora, &abort, &live_workers)?;
        runtime.spawn(announce_ready(corpora.clone(), shared.clone(), errors.clone(), abort.clone()));
        Ok(Self {
            manual,
            stop: Some(stop_handle),
            workers: Some(workers),
            threads,
            shared,
            corpora,
            abort,
            errors,
            models,
            memo,
            dead,
            runtime: Some(runtime),
            manual_wake,
            live_workers,
            _state: state,
        })
    }

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

fn dead_letters(plan: &Plan, state: Option<&StateDirectory>) -> Result<DeadLetters, RunError> {
    let path = match (&plan.dead_letters, state) {
        (Some(given), _) => given.path.clone(),
        (None, Some(state)) => state.path().join("dead-letters.jsonl"),
        (None, None) => return Ok(DeadLetters::counted()),
    };
    DeadLetters::open(&path).map_err(|source| RunError::State(StateError::Io { action: "append to", path, source }))
}

struct Start<'a> {
    options: &'a Options,
    models: &'a Models,
    handle: tokio::runtime::Handle,
    dead: DeadLetters,
    stop: Stop,
    errors: Arc<Mutex<Vec<RunError>>>,
    abort: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

type Definitions = BTreeMap<String, Arc<dyn IndexDefinition>>;

impl Start<'_> {
    /// What indexes each corpus needs; equal definitions are one index.
    fn definitions(&self, plan: &Plan) -> Result<BTreeMap<Arc<str>, Definitions>, RunError> {
        let mut all: BTreeMap<Arc<str>, Definitions> = BTreeMap::new();
        for node in &plan.nodes {
            let NodeKind::Operator(config) = &node.kind else { continue };
            let Some(corpus) = config.corpus() else { continue };
            for definition in config.indexes(self.models)? {
                for planned in &plan.corpora {
                    if !matches!(corpus, CorpusRef::Named(name) if **name != *planned.name) {
                        all.entry(planned.name.clone()).or_default().insert(definition.key(), definition.clone());
                    }
                }
            }
        }
        Ok(all)
    }

    fn corpus(
        &mut self,
        planned: PlannedCorpus,
        definitions: Definitions,
        state: Option<&StateDirectory>,
        epochs: &Arc<Epochs>,
    ) -> Result<CorpusShared, RunError> {
        let name = planned.name.clone();
        let mut indexes: Vec<(String, Box<dyn Index>)> = Vec::new();
        let mut preparations: Vec<Arc<dyn Prepare>> = Vec::new();
        for (key, definition) in definitions {
            let directory = match state {
                Some(state) => Some(state.index(&name, &key)?),
                None => None,
            };
            let index = self
                .handle
                .block_on(definition.open(directory.as_deref()))
                .map_err(|source| BuildError::Index { index: key.clone(), corpus: name.to_string(), source })?;
            preparations.extend(index.preparation());
            indexes.push((key, index));
        }
        let tokenizer =
            planned.tokenizer.and_then(|model| self.models.get(&model)).and_then(|model| model.tokenizer.clone());
        let chunker = planned.chunker.build(tokenizer);
        let (sender, events) = crossbeam_channel::bounded(CHANNEL);
        let source_wake = WakeSlot::default();
        let shared = CorpusShared::start(
            name.clone(),
            chunker,
            preparations,
            Publisher::new(name.clone(), indexes, epochs.clone()),
            events,
            source_wake.clone(),
            self.handle.clone(),
            self.dead.clone(),
        );
        let wake = Arc::new(move || source_wake.wake());
        let output = CorpusOutput::new(sender, wake, self.dead.clone(), name.clone(), self.stop.clone());
        let (source, mode) = (planned.source.build(), self.options.corpora);
        self.thread(format!("corpus {name}"), move || {
            let result = source.run(mode, output.clone());
            output.end();
            result
        })?;
        Ok(shared)
    }

    fn turns(
        &mut self,
        id: &str,
        source: Box<dyn crate::connector::TurnSource>,
        sender: Sender<SourcedTurn>,
        wake: WakeSlot,
    ) -> Result<(), RunError> {
        let for_output = wake.clone();
        let output = TurnOutput::new(
            sender,
            Arc::new(move || for_output.wake()),
            self.dead.clone(),
            id.into(),
            self.stop.clone(),
        );
        let mode = self.options.turns;
        self.thread(format!("node {id}"), move || {
            let result = source.run(mode, output);
            // The channel has closed with the output: let the worker see it.
            wake.wake();
            result
        })
    }

    fn thread(
        &mut self,
        name: String,
        body: impl FnOnce() -> Result<(), ConnectorError> + Send + 'static,
    ) -> Result<(), RunError> {
        let (errors, abort) = (self.errors.clone(), self.abort.clone());
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || match body() {
                Ok(()) | Err(ConnectorError::Stopped(_)) => {}
                Err(source) => {
                    errors.lock().push(RunError::Source { name, source });
                    abort.store(true, Ordering::Release);
                }
            })
            .map_err(|error| RunError::Thread { what: "a source's thread", reason: error.to_string() })?;
        self.threads.push(thread);
        Ok(())
    }
}

fn start_workers(
    options: &Options,
    shared: &Arc<TurnsShared>,
    corpora: &[CorpusShared],
    abort: &Arc<AtomicBool>,
    live: &Arc<AtomicUsize>,
) -> Result<WorkerGuards<()>, RunError> {
    let config = timely::Config {
        communication: timely::CommunicationConfig::Process(options.workers.max(1)),
        // Workers share the cores with models: a parked worker must not spin.
        worker: WorkerConfig::default().idle_spin(Duration::ZERO),
    };
    let (shared, corpora, abort, live) = (shared.clone(), corpora.to_vec(), abort.clone(), live.clone());
    timely::execute(config, move |worker| {
        for corpus in &corpora {
            worker
                .dataflow_named::<u64, _, _>(&format!("corpus {}", corpus.name), |scope| corpus::build(scope, corpus));
        }
        if !shared.nodes.is_empty() {
            worker.dataflow_named::<u64, _, _>("turns", |scope| turns::build(scope, &shared));
        }
        while worker.has_dataflows() && !abort.load(Ordering::Acquire) {
            worker.step_or_park(Some(PARK));
        }
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
        live.fetch_sub(1, Ordering::AcqRel);
    })
    .map_err(|reason| RunError::Thread { what: "the workers", reason })
}

/// Lets turns begin when every corpus is published.
async fn announce_ready(
    corpora: Vec<CorpusShared>,
    shared: Arc<TurnsShared>,
    errors: Arc<Mutex<Vec<RunError>>>,
    abort: Arc<AtomicBool>,
) {
    for corpus in &corpora {
        let mut state = corpus.state();
        let reached = state.wait_for(|state| *state != CorpusState::Loading).await;
        if let Ok(state) = reached
            && let CorpusState::Failed(reason) = &*state
        {
            errors.lock().push(RunError::Publish { corpus: corpus.name.to_string(), reason: reason.clone() });
            abort.store(true, Ordering::Release);
            return;
        }
    }
    shared.ready.store(true, Ordering::Release);
    for wake in shared.conversation_wakes.lock().iter() {
        wake.wake();
    }
}

/// Where a pipeline keeps its state when the user names no place.
pub fn default_state(name: &str) -> PathBuf {
    Path::new(".turnflow").join(name)
}
