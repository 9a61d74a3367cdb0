//! The start of a plan: models, indexes, the sources' threads, and then the workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use super::workers::{announce_ready, start_workers};
use super::{Engine, Options, RunError};
use crate::component::{BuildError, CorpusRef, Index, IndexDefinition, Models, Prepare};
use crate::connector::{ConnectorError, CorpusOutput, SourcedTurn, Stop, TurnOutput, TurnSource};
use crate::corpus::CorpusShared;
use crate::dead_letter::DeadLetters;
use crate::memo::Memo;
use crate::plan::{NodeKind, Plan, PlannedCorpus};
use crate::publish::{Epochs, Publisher};
use crate::record::Stamp;
use crate::state::{StateDirectory, StateError};
use crate::turns::{Running, RunningNode, TurnsShared};
use crate::wake::WakeSlot;

/// Documents and turns on the way from a source's thread to its worker.
const CHANNEL: usize = 1024;

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
        source: Box<dyn TurnSource>,
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
