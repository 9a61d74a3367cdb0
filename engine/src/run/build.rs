//! Builds the parts of a plan: models, indexes, feeds, sources, sinks, operators.

mod feeds;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub(super) use self::feeds::{Feed, Manual, TurnFeed};
pub(super) use self::stored::{Published, StoredPassages, stored_definition};
use super::lacking::{KeptModel, Loaded, WithoutModel, warn};
use super::services::Drains;
use super::worker_pool::WorkerPool;
use super::{Options, RunError};
use crate::backup::Backup;
use crate::cache::InferenceCache;
use crate::claims::{Claim, ClaimError, Claims, real};
use crate::cluster::{Lead, Manifests, Peers, ServedParts, SharedModels};
use crate::component::{
    BuildError, BuildFuture, Building, ComponentContext, Index, IndexDefinition, IndexError, Model, ModelConfig,
    Models, ScoreUse, TurnSourceConfig,
};
use crate::connector::{ConnectorError, Stopped, TurnSource};
use crate::corpus::Parts;
use crate::dead_letter::{DeadLetters, Onward};
use crate::maintenance;
use crate::mapped::MappedFiles;
use crate::metrics::Metrics;
use crate::panics::{Panicked, caught_async};
use crate::plan::{AnswerCacheSettings, Definitions, Divided, FailedTurns, NodeKind, Plan, PlannedNode};
use crate::publish::Epochs;
use crate::sinks::{SinkContext, SinkHandle};
use crate::state::{StateDirectory, StateError};
use crate::turns::{Generation, Reach, Running as RunningKind, RunningNode, Similar, TurnsShared};

/// The interval between checks whether a build is cancelled.
const TICK: Duration = Duration::from_millis(10);
/// Capacity of the channel from a source's thread to its worker.
const CHANNEL: usize = 1024;

/// The context for building all parts of a run.
#[derive(Clone)]
pub(super) struct RuntimeContext {
    pub options: Arc<Options>,
    pub handle: tokio::runtime::Handle,
    pub dead: DeadLetters,
    pub cache: Arc<InferenceCache>,
    pub maintenance: Arc<maintenance::Journal>,
    pub state: Option<Arc<StateDirectory>>,
    pub claims: Arc<Claims>,
    pub shared: Arc<TurnsShared>,
    pub pool: Arc<WorkerPool>,
    pub errors: Arc<Mutex<Vec<RunError>>>,
    pub metrics: Metrics,
    /// Cancelled when everything that calls components has ended.
    pub shutdown: CancellationToken,
    /// The next number of a feed or source.
    pub numbers: Arc<AtomicU64>,
    /// The number of the run, for components.
    pub run: u64,
    /// The other processes, in a cluster.
    pub peers: Option<Arc<Peers>>,
    /// The models of all processes, in a cluster.
    pub models: Option<Arc<SharedModels>>,
    /// What this process serves to the others.
    pub parts: Arc<ServedParts>,
    /// The epochs that the other processes have; for the first process of a cluster.
    pub manifests: Option<Arc<Manifests>>,
    /// The epochs that the index writers publish. In another process than the first, they have its parts alone, and turns
    /// read those of the first process (`TurnsShared::epochs`).
    pub published: Arc<Epochs>,
    /// Set when another process was told to stop.
    pub stop_asked: Arc<AtomicBool>,
    /// The requests of the program, when the first process ends.
    pub drains: Arc<Drains>,
    /// Processes that are no longer in the cluster, until the corpora are published.
    pub former: Arc<Mutex<Vec<Former>>>,
    /// Where encodings are copied to and restored from.
    pub backup: Option<Arc<Backup>>,
}

/// A process on this machine that is no longer in the cluster.
pub(super) struct Former {
    /// Its state directory.
    pub directory: StateDirectory,
    /// Its indexes that were taken over.
    pub indexes: Vec<PathBuf>,
}

impl RuntimeContext {
    /// The context for the component with this id.
    pub fn component(&self, id: &str) -> ComponentContext {
        let below = || self.state.as_ref().map(|state| state.path().join("components"));
        let state = self.options.components.clone().or_else(below);
        let (handle, shutdown, metrics) = (self.handle.clone(), self.shutdown.clone(), self.metrics.clone());
        ComponentContext::new(id, handle, shutdown, metrics, state).of_run(self.run)
    }

    /// Builds a source of turns, unless `is_cancelled`.
    pub fn turn_source(
        &self,
        id: &str,
        config: &dyn TurnSourceConfig,
        divided: bool,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Box<dyn TurnSource>, BuildError> {
        let context = self.component(id).sharing(self.share(divided));
        self.built("node", id, || config.build(&context), is_cancelled)
    }

    /// Waits for a connector that is being built, which may wait for a server, until `is_cancelled`.
    fn built<'a, T: ?Sized>(
        &self,
        of: &'static str,
        name: &str,
        build: impl FnOnce() -> Building<'a, T>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Box<T>, BuildError> {
        let built = self.wait(build, is_cancelled);
        let built = built.map_or(Err(Stopped.into()), |built| built.map_err(ConnectorError::from).flatten());
        built.map_err(|source| BuildError::Connector { of, name: name.to_owned(), source })
    }

    /// Waits for a model or an operator that is being built, until `is_cancelled`.
    fn made<'a, T>(
        &self,
        of: &'static str,
        name: &str,
        build: impl FnOnce() -> BuildFuture<'a, T>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<T, BuildError> {
        let name = || name.to_owned();
        let Some(built) = self.wait(build, is_cancelled) else {
            return Err(BuildError::Cancelled { of, name: name() });
        };
        built.map_err(|source| BuildError::Panicked { of, name: name(), source }).flatten()
    }

    /// Waits for a future; `None` if `is_cancelled` becomes true first.
    pub(super) fn wait<F: Future>(
        &self,
        build: impl FnOnce() -> F,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Option<Result<F::Output, Panicked>> {
        let cancelled = async {
            while !is_cancelled() {
                tokio::time::sleep(TICK).await;
            }
        };
        self.handle.block_on(async {
            tokio::select! {
                biased;
                () = cancelled => None,
                built = caught_async(build) => Some(built),
            }
        })
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::AcqRel)
    }

    /// Loads the models that `kept` does not have. Optional models that cannot be loaded are left out.
    pub fn models(
        &self,
        plan: &Plan,
        kept: impl Fn(&str) -> Option<KeptModel>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Loaded, RunError> {
        let mut loaded = Loaded::default();
        for (name, model) in &plan.models {
            let context = self.component(name);
            let made = match kept(name) {
                Some(KeptModel::Loaded(model)) => Ok(model),
                Some(KeptModel::Lacking(reason)) => Err(reason),
                None => match self.made("model", name, || model.config.load(&context), is_cancelled) {
                    Ok(loaded) => Ok(Arc::new(self.shared(loaded, &*model.config).remembering(&self.cache))),
                    Err(error @ BuildError::Cancelled { .. }) => return Err(error.into()),
                    Err(error) if model.optional => Err(error.to_string().into()),
                    Err(error) => return Err(error.into()),
                },
            };
            if model.optional {
                let lacks = context.gauge("model_lacking", "1 if the optional model is not loaded");
                lacks.set(i64::from(made.is_err()));
            }
            match made {
                Ok(model) => {
                    if model.generator.is_some() {
                        self.shared.activity.spending(&name.as_str().into());
                    }
                    loaded.models.insert(name.clone(), model);
                }
                Err(reason) => drop(loaded.lacking.insert(name.as_str().into(), reason)),
            }
        }
        Ok(loaded)
    }

    /// Has the calls of a model made by all processes of a cluster.
    fn shared(&self, model: Model, config: &dyn ModelConfig) -> Model {
        match self.models.as_ref().filter(|_| config.computes_here()) {
            Some(shared) => shared.share(model, &self.cache),
            None => model,
        }
    }

    /// What this process has of a corpus.
    pub fn parts_of(&self, corpus: &Arc<str>) -> Parts {
        match (&self.peers, &self.manifests) {
            (None, _) => Parts::Whole,
            (Some(peers), Some(manifests)) => {
                Parts::Leading(Lead::new(peers.clone(), corpus.clone(), manifests.clone()))
            }
            (Some(_), None) => Parts::Served(self.parts.clone()),
        }
    }

    /// Opens the destination of dead letters. In a cluster, the first process writes those of all processes.
    pub fn letters(&self, plan: &Plan) -> Result<Onward, RunError> {
        let is_first = self.options.shape().is_first();
        let path = dead_letters_of(plan, self.state.as_deref()).filter(|_| is_first);
        if let Some(path) = &path {
            let file = real(path);
            if let Some(corpus) = plan.corpora.iter().find(|corpus| corpus.source.reads(&file)) {
                let (path, corpus) = (path.clone(), corpus.name.to_string());
                return Err(RunError::State(StateError::Indexed { path, corpus }));
            }
        }
        self.dead.toward(path.as_deref()).map_err(|source| {
            let path = path.unwrap_or_default();
            RunError::State(StateError::Io { action: "append to", path, source })
        })
    }

    /// Where the texts of a corpus are kept: beside its indexes, on disk; `None` without a state directory.
    pub fn files(&self) -> Option<Arc<MappedFiles>> {
        self.state.as_ref().map(|state| MappedFiles::new(&state.path().join("corpora")))
    }

    /// Opens an index.
    pub fn index(
        &self,
        corpus: &str,
        key: &str,
        definition: &dyn IndexDefinition,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Index>, RunError> {
        self.restore(corpus, key, definition, is_cancelled)?;
        let directory = self.state.as_ref().map(|state| state.index(corpus, key)).transpose()?;
        let opened = self.handle.block_on(caught_async(|| definition.open(directory.as_deref())));
        let opened = opened.map_err(IndexError::from).flatten();
        let opened =
            opened.map_err(|source| BuildError::Index { index: key.to_owned(), corpus: corpus.to_owned(), source })?;
        // In any case, the index is compared with the whole corpus before anything is published.
        match (opened.version(), self.published.version(corpus, key)) {
            (Some(now), Some(then)) if now > then => {
                tracing::info!(%corpus, %key, now, then, "the index has commits after the last epoch");
            }
            (now, Some(then)) if now < Some(then) => {
                tracing::warn!(%corpus, %key, now, then, "the index is older than the last epoch: commits are missing");
            }
            _ => {}
        }
        Ok(opened)
    }

    /// Takes over what processes have stored for an index that are no longer in the cluster, on this machine. What cannot
    /// be read is computed again.
    pub fn take_over(
        &self,
        corpus: &str,
        key: &str,
        index: &mut dyn Index,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), RunError> {
        self.restore_former(corpus, key, is_cancelled)?;
        for Former { directory, indexes } in &mut *self.former.lock() {
            let from = directory.index_path(corpus, key);
            if !from.is_dir() {
                continue;
            }
            let taken = self.handle.block_on(caught_async(|| index.take_over(&from)));
            match taken.map_err(IndexError::from).flatten() {
                Ok(count) => {
                    tracing::info!(%corpus, %key, count, from = %from.display(), "took over what a former process stored");
                    indexes.push(from);
                }
                Err(error) => {
                    tracing::warn!(%corpus, %key, %error, from = %from.display(), "cannot take over an index")
                }
            }
        }
        Ok(())
    }

    /// Removes the indexes that were taken over, which are stored here by now.
    pub fn forget_former(&self) {
        for Former { indexes, .. } in self.former.lock().drain(..) {
            self.backup.iter().for_each(|backup| backup.forget_former(&indexes));
            for index in indexes {
                if let Err(error) = std::fs::remove_dir_all(&index) {
                    tracing::warn!(%error, path = %index.display(), "cannot remove the index of a former process");
                }
            }
        }
    }

    /// Opens a sink of a plan, unless `is_cancelled`.
    pub fn sink(
        &self,
        plan: &Plan,
        node: &PlannedNode,
        models: &Models,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Arc<SinkHandle>>, RunError> {
        let NodeKind::Sink(config) = &node.kind else { return Ok(None) };
        let takes_callers = config.takes_callers();
        let is_opened = self.options.opens_sinks(plan) || self.options.sinks && takes_callers;
        if !is_opened || !self.writes(plan, &node.id) {
            return Ok(None);
        }
        let failed = |source| BuildError::Connector { of: "node", name: node.id.to_string(), source };
        // Claim the file before opening the sink, which may create the file.
        let claim = config.file().map(|path| self.claim(path)).transpose().map_err(failed)?.flatten();
        let context = self.component(&node.id);
        let sink = self.built("node", &node.id, || config.build(&context, models), is_cancelled)?;
        // The pool may hold the sink, in a command that no worker has taken.
        let (shared, pool) = (Arc::downgrade(&self.shared), Arc::downgrade(&self.pool));
        let context = SinkContext {
            runtime: self.handle.clone(),
            dead: self.dead.clone(),
            has_room: Box::new(move || {
                shared.upgrade().iter().for_each(|shared| shared.wake_conversations());
                pool.upgrade().iter().for_each(|pool| pool.wake());
            }),
        };
        let thread = |error: std::io::Error| RunError::Thread { what: "a sink's thread", reason: error.to_string() };
        let mut handle = SinkHandle::new(node.id.clone(), sink, claim, context).map_err(thread)?;
        handle.takes_callers = takes_callers;
        Ok(Some(Arc::new(handle)))
    }

    /// Whether this process writes a sink. The first process of a cluster writes all of them.
    pub fn writes(&self, plan: &Plan, sink: &str) -> bool {
        self.options.shape().is_first() || Divided::of(plan).sinks.contains(sink)
    }

    /// Claims a file for this run alone.
    fn claim(&self, path: &Path) -> Result<Option<Arc<Claim>>, ConnectorError> {
        self.claims.claim(path).map_err(|error| match error {
            ClaimError::InUse => ConnectorError::InUse { path: path.display().to_string() },
            ClaimError::Io { path, source } => {
                ConnectorError::Io { action: "lock", path: path.display().to_string(), source }
            }
        })
    }

    /// Builds a generation; reuses the operators that `kept` returns.
    #[allow(clippy::too_many_arguments)]
    pub fn generation(
        &self,
        (number, family): (u64, u64),
        plan: &Plan,
        loaded: &Loaded,
        definitions: &Definitions,
        sinks: &BTreeMap<Arc<str>, Option<Arc<SinkHandle>>>,
        kept: impl Fn(&str) -> Option<RunningKind>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Arc<Generation>, RunError> {
        let models = &loaded.models;
        // Those that are not loaded, and those that one of the nodes cannot use.
        let mut lacking = loaded.lacking.clone();
        let mut nodes = Vec::new();
        for node in plan.nodes.iter().filter(|_| self.options.answer) {
            let running = match &node.kind {
                NodeKind::Source(_) => RunningKind::Source,
                NodeKind::Operator(config) => match kept(&node.id) {
                    Some(running @ RunningKind::Operator(_)) => running,
                    _ => RunningKind::Operator(match WithoutModel::of(&**config, &loaded.lacking) {
                        Some(without) => Arc::new(without),
                        None => {
                            let context = self.component(&node.id);
                            let build = || config.build(&context, models);
                            match self.made("node", &node.id, build, is_cancelled) {
                                Ok(operator) => operator,
                                // The model is loaded, but this operator cannot use it; others may.
                                Err(BuildError::Model { model, source }) if is_optional(plan, &model) => {
                                    let (model, reason) = (model.as_str().into(), source.to_string().into());
                                    let without = WithoutModel { model, reason };
                                    lacking.insert(without.model.clone(), without.reason.clone());
                                    warn(plan, &lacking);
                                    Arc::new(without)
                                }
                                Err(error) => return Err(error.into()),
                            }
                        }
                    }),
                },
                NodeKind::Sink(_) => RunningKind::Sink(sinks.get(&node.id).cloned().flatten()),
            };
            let weights = match &node.kind {
                NodeKind::Operator(config) => config.weights().map(|weights| weights.len()),
                NodeKind::Source(_) | NodeKind::Sink(_) => None,
            };
            let (id, inputs, output) = (node.id.clone(), node.inputs.clone(), node.output);
            let corpora = node.operators().iter().filter_map(|config| config.corpus().cloned()).collect();
            let score_use = node.operators().iter().map(|config| config.score_use()).max().unwrap_or(ScoreUse::Read);
            let takes_replies = node.operators().iter().any(|config| config.takes_replies());
            let kind_name = node.kind_name;
            nodes.push(RunningNode {
                id,
                kind_name,
                inputs,
                running,
                output,
                weights,
                corpora,
                score_use,
                takes_replies,
            });
        }
        let stamp = crate::record::Provenance {
            pipeline: plan.hash.clone(),
            epoch: 0,
            computed_at: None,
            similar_to: None,
            models: Arc::new(models.iter().map(|(name, model)| (name.clone(), model.fingerprint.clone())).collect()),
            warnings: Arc::default(),
        };
        let keys = |indexes: &BTreeMap<String, _>| indexes.keys().cloned().collect::<BTreeSet<String>>();
        let indexes = definitions.iter().map(|(corpus, indexes)| (corpus.clone(), keys(indexes))).collect();
        // Without sinks, failed turns are not written to the dead letters.
        let failed_turns = if self.options.opens_sinks(plan) { plan.failed_turns } else { FailedTurns::Answer };
        let (mode, live, retries) = (plan.standing_mode(), plan.live_sinks(), plan.retries);
        let reach = Reach::of(&nodes);
        let is_queue = |node: &&PlannedNode| matches!(&node.kind, NodeKind::Source(source) if source.is_queue());
        let queues = plan.nodes.iter().filter(is_queue).map(|node| node.id.clone()).collect();
        let aliases = Arc::new(plan.aliases());
        Ok(Arc::new(Generation {
            number,
            family,
            nodes,
            stamp,
            mode,
            cache: plan.cache.as_ref().map(|AnswerCacheSettings::Answers { entries, .. }| *entries),
            similar: similar(plan, models),
            live,
            retries,
            failed_turns,
            indexes,
            reach,
            queues,
            lacking,
            aliases,
        }))
    }
}

/// Which questions get the answers of others; `None` also without the encoder, which then is optional.
fn similar(plan: &Plan, models: &Models) -> Option<Arc<Similar>> {
    let AnswerCacheSettings::Answers { similar: Some(least), model: Some(model), .. } = plan.cache.as_ref()? else {
        return None;
    };
    let model = models.get(model)?.embedder.clone()?;
    Some(Arc::new(Similar { least: *least, model }))
}

fn is_optional(plan: &Plan, model: &str) -> bool {
    plan.models.get(model).is_some_and(|model| model.optional)
}

/// The dead letter file of a plan; `None` without a state directory or a configured file.
fn dead_letters_of(plan: &Plan, state: Option<&StateDirectory>) -> Option<PathBuf> {
    match &plan.dead_letters {
        Some(given) => Some(given.path.clone()),
        None => state.map(|state| state.path().join("dead-letters.jsonl")),
    }
}
