//! Starts a plan: models, indexes, source threads, and then the workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::build::{Former, Published, RuntimeContext, StoredPassages, TurnFeed};
use super::divided::Waiting;
use super::ending::IoThreads;
use super::lacking::warn;
use super::maintain::run_maintenance;
use super::reload::follow::follow;
use super::resume::resume;
use super::services::serve_peers;
use super::worker_pool::{Command, WorkerPool};
use super::{Engine, Inner, Options, RunError, Running, RunningCorpus};
use crate::activity::Activity;
use crate::ask::AskQueue;
use crate::cache::InferenceCache;
use crate::cluster::connect::{Channel, ConnectError, Member, connect};
use crate::cluster::{
    Beginning, ClusterOptions, Link, LinkOptions, Manifests, Peers, ServedParts, Shape, SharedModels,
};
use crate::component::{BuildError, Models, new_run};
use crate::corpus::{CorpusIndexes, CorpusState, Preparing};
use crate::dead_letter::DeadLetters;
use crate::durable::{Durable, SourceCheckpoint};
use crate::metrics::Metrics;
use crate::panics::caught;
use crate::plan::{AnswerMode, Divided, NodeKind, Plan, PlanFingerprint};
use crate::publish::Epochs;
use crate::state::StateDirectory;
use crate::turns::{Keeper, Slots, TurnsShared};

impl Engine {
    /// Loads the models, opens the indexes and starts everything.
    pub fn start(plan: Plan, options: Options) -> Result<Self, RunError> {
        let state = options.state.as_deref().map(StateDirectory::open).transpose()?.map(Arc::new);
        let directory = state.as_ref().map(|state| state.path());
        if let Some((directory, writer)) = directory.zip(options.writer(&plan)) {
            writer.check(directory)?;
        }
        let cache = InferenceCache::open(directory)?;
        let thread_error = |what| move |error: std::io::Error| RunError::Thread { what, reason: error.to_string() };
        let io = IoThreads::start().map_err(thread_error("the I/O threads"))?;
        let shape = options.shape();
        if let Some(cluster) = &options.cluster {
            member(cluster, shape, &plan.hash).check().map_err(ConnectError::from)?;
        }
        let peers = shape.is_cluster().then(|| Peers::new(shape, io.handle.clone()));
        let dead = DeadLetters::counted();
        let published = Arc::new(Epochs::open(directory)?);
        published.set_aliases(Arc::new(plan.aliases()));
        let epochs = if shape.is_first() { published.clone() } else { Arc::new(Epochs::open(None)?) };
        // Turns of a caller, and turns without sinks, leave no durable state.
        let lasting = shape.is_first() && options.answer && options.sinks && options.reads_any(&plan);
        let durable = Durable::open(directory.filter(|_| lasting), dead.clone())?;
        let kept = Keeper::new(directory.filter(|_| lasting && !shape.is_cluster()), published.current().epoch);
        // An epoch number that is stamped on answers must not be used again.
        epochs.count_from(durable.epoch()?);
        let options = Arc::new(options);
        let pool = WorkerPool::new(shape);
        let woken = pool.clone();
        let metrics = Metrics::default();
        let shared = Arc::new(TurnsShared {
            shape,
            limits: RwLock::new(plan.conversations.clone()),
            epochs,
            durable,
            dead: dead.clone(),
            serving: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            sources: Mutex::default(),
            generations: RwLock::default(),
            outstanding: AtomicUsize::new(0),
            slots: Slots::default(),
            asks: AskQueue::new(move || woken.wake()),
            stopping: AtomicBool::new(false),
            delivered: AtomicUsize::new(0),
            recovered: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            revised: AtomicU64::new(0),
            answered_again: AtomicU64::new(0),
            standing: Mutex::default(),
            answers: Default::default(),
            kept,
            handle: io.handle.clone(),
            observer: options.observer.clone(),
            watcher: options.watcher.clone(),
            principals: options.principals.clone(),
            activity: Activity::new(metrics.clone()),
            started: Instant::now(),
        });
        let others = state.as_ref().filter(|_| shape.is_first()).map(|state| state.processes_from(shape.processes));
        let former = others.into_iter().flatten();
        let former = former.map(|(_, directory)| Former { directory, indexes: Vec::new() }).collect();
        let backup = super::backup::open(&options, state.as_deref(), &plan.name, &metrics)?;
        let parts = Arc::<ServedParts>::default();
        let manifests = peers.as_ref().filter(|_| shape.is_first());
        let manifests = manifests.map(|peers| Manifests::new(peers.clone(), parts.clone(), published.clone()));
        let context = RuntimeContext {
            options: options.clone(),
            handle: io.handle.clone(),
            dead,
            cache,
            maintenance: Arc::default(),
            state,
            claims: Arc::default(),
            shared: shared.clone(),
            pool: pool.clone(),
            errors: Arc::default(),
            metrics,
            shutdown: CancellationToken::new(),
            numbers: Arc::default(),
            run: new_run(),
            models: peers.as_ref().map(|peers| SharedModels::new(peers.clone(), &shared.activity)),
            peers: peers.clone(),
            parts,
            manifests,
            published,
            stop_asked: Arc::default(),
            drains: Arc::default(),
            former: Arc::new(Mutex::new(former)),
            backup,
        };
        context.dead.go_on(context.letters(&plan)?);
        // Released when all sources exist.
        pool.hold();
        *context.maintenance.settings.write() = plan.maintenance.clone();
        let (running, places) = first(&context, &plan)?;
        let same = identity(&plan, &running);
        // The others end with the first process.
        let stays = options.stays && shape.is_first();
        let feeds = running.corpora.iter().map(|(name, corpus)| (name.clone(), corpus.feed.shared.state())).collect();
        let inner = Arc::new(Inner {
            context,
            running: Mutex::new(running),
            reloading: Mutex::default(),
            leaving: Mutex::default(),
            stopping: AtomicBool::new(false),
            stays: AtomicBool::new(stays),
            following: Mutex::default(),
            followed: Mutex::default(),
            waiting: Mutex::default(),
            undone: AtomicU64::new(0),
        });
        if stays {
            pool.hold();
        }
        if shared.generation().is_some_and(|generation| generation.mode != AnswerMode::Once) {
            pool.catch_up();
        }
        if let Some(peers) = &peers {
            peers.observe(&shared.activity);
            serve_peers(peers, &inner);
            if let Some(cluster) = options.cluster.as_ref().filter(|_| !shape.is_first()) {
                follow(&inner, cluster.load.clone());
            }
        }
        // As late as possible: what a process loads before takes its own time.
        let links = match (&peers, &options.cluster) {
            (Some(peers), Some(cluster)) => {
                let is_cancelled = || inner.context.options.is_cancelled();
                Some((peers.clone(), join_cluster(cluster, peers, &same, &is_cancelled)?))
            }
            _ => None,
        };
        // After this, the start is not given up: a sink may truncate its file.
        let mut running = inner.running.lock();
        let waiting = running.begin(&inner.context, &plan, places)?;
        pool.release();
        shared.durable.begin_loading(shape.workers);
        let workers = pool.start(&shared, links)?;
        if let Err(error) = inner.context.read_parts(waiting, &mut running) {
            inner.context.errors.lock().push(error);
            pool.abort();
        }
        drop(running);
        // Epochs are published off the workers: wake the workers to check the standing turns.
        let (mut epochs, woken) = (shared.epochs.subscribe(), pool.clone());
        io.handle.spawn(async move {
            while epochs.changed().await.is_ok() {
                woken.wake();
            }
        });
        io.handle.spawn(announce_ready(feeds, inner.context.clone()));
        io.handle.spawn(run_maintenance(Arc::downgrade(&inner)));
        inner.context.backup.iter().for_each(|backup| drop(io.handle.spawn(backup.clone().work())));
        let checkpoints = inner.context.options.answer.then(|| {
            let (shared, errors, pool) = (shared.clone(), inner.context.errors.clone(), pool.clone());
            std::thread::Builder::new().name("checkpoint".into()).spawn(move || {
                let idle = || shared.limits.read().idle_s;
                let epoch = || shared.epochs.current().epoch;
                // Without checkpoints a restart would repeat ever more turns: end the run.
                let wake = || shared.wake_sources();
                if let Err(source) = caught(|| shared.durable.work(epoch, idle, wake)) {
                    errors.lock().push(RunError::Panicked { what: "the checkpoint thread", source });
                    pool.abort();
                }
            })
        });
        let checkpoints = checkpoints.transpose().map_err(thread_error("the checkpoint thread"))?;
        inner.context.remember(&plan);
        Ok(Self { inner, workers: Mutex::new(Some(workers)), checkpoints, io, peers })
    }
}

/// Where sources resume.
type Places = BTreeMap<Arc<str>, SourceCheckpoint>;

/// Builds the first plan without its sources; the workers pick it up when they start.
fn first(context: &RuntimeContext, plan: &Plan) -> Result<(Running, Places), RunError> {
    let (shared, pool, options) = (&context.shared, &context.pool, &context.options);
    let is_cancelled = || options.is_cancelled();
    let loaded = context.models(plan, |_| None, &is_cancelled)?;
    warn(plan, &loaded.lacking);
    let models = &loaded.models;
    if options.shape().is_cluster() {
        check_divided(plan, models)?;
    }
    let definitions = plan.definitions(models)?;
    let mut corpora = BTreeMap::new();
    for planned in &plan.corpora {
        let passages = context.stored_passages(planned);
        let mut indexes = Vec::new();
        for (key, definition) in &definitions[&planned.name] {
            let mut index = context.index(&planned.name, key, &**definition, &is_cancelled)?;
            context.take_over(&planned.name, key, &mut *index, &is_cancelled)?;
            indexes.push((key.clone(), index));
        }
        let keys = definitions[&planned.name].keys().cloned().collect();
        let number = context.feed_number();
        let mut preparing = Preparing::new(planned.name.clone(), context.dead.clone(), context.files());
        if options.corpora == crate::connector::Mode::Once {
            preparing = preparing.silent_for(None);
        }
        let (epochs, parts) = (context.published.clone(), context.parts_of(&planned.name));
        let (keeper, passages) = passages.map(StoredPassages::wait).unwrap_or_default();
        let passages =
            passages.filter(|_| indexes.iter().all(|(key, index)| context.has_all(&planned.name, key, &**index)));
        let indexes = CorpusIndexes::start(preparing, number, indexes, epochs, parts, keeper, context.handle.clone());
        let mut feed = context.feed(number, planned, models, &indexes, true, &is_cancelled)?;
        let restore = passages.map(|Published { passages, others }| feed.shared.restoring(passages, others));
        if let Some(peers) = &context.peers {
            let (targets, preparations) = (feed.shared.targets().clone(), feed.shared.preparations().clone());
            let definitions = Arc::new(definitions[&planned.name].clone());
            context.parts.add(peers, &planned.name, targets, definitions, preparations, indexes.again());
        }
        match restore {
            // When the first process says so.
            Some(restore) if !options.shape().is_first() => context.parts.may_restore(&planned.name, restore),
            Some(restore) => {
                feed.shared.waits_for_stored();
                restore(None);
            }
            None => {}
        }
        pool.tell(&Command::Corpus(Box::new(feed.shared.clone())));
        corpora.insert(planned.name.clone(), RunningCorpus { indexes, feed, keys });
    }
    let (mut sinks, mut places) = (BTreeMap::new(), BTreeMap::new());
    if options.answer {
        for node in plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Sink(_))) {
            let sink = context.sink(plan, node, &loaded.models, &is_cancelled)?;
            if let Some(sink) = &sink {
                shared.durable.add_sink(sink);
            }
            sinks.insert(node.id.clone(), sink);
        }
    }
    let generation = context.generation((1, 1), plan, &loaded, &definitions, &sinks, |_| None, &is_cancelled)?;
    shared.generations.write().insert(1, generation.clone());
    if options.answer {
        pool.tell(&Command::Generation(generation.clone()));
        if shared.durable.is_kept() {
            places = resume(context, &generation)?;
        }
        if is_cancelled() {
            return Err(BuildError::Cancelled { of: "pipeline", name: plan.name.to_string() }.into());
        }
    }
    let outline = PlanFingerprint::of(plan).running_without(loaded.lacking.into_keys());
    let (sources, manual) = (BTreeMap::new(), None);
    let running = Running { outline, models: loaded.models, corpora, sources, sinks, generation, manual };
    Ok((running, places))
}

impl Running {
    /// Begins the sinks and the sources. Late, when little else can fail.
    /// Returns the sources of which another process than the first will read a part.
    fn begin(&mut self, context: &RuntimeContext, plan: &Plan, mut places: Places) -> Result<Vec<Waiting>, RunError> {
        let (shared, pool, options) = (&context.shared, &context.pool, &context.options);
        let (is_first, mut waiting) = (options.shape().is_first(), Vec::new());
        if !options.answer {
            return Ok(waiting);
        }
        let Divided { sources: divided, whole, .. } = Divided::of(plan);
        for (source, why) in whole.iter().filter(|_| is_first && options.shape().is_cluster()) {
            tracing::info!(%source, why, "process 0 reads all partitions");
        }
        for sink in self.sinks.values().flatten() {
            sink.begin().map_err(|source| RunError::Source { name: format!("node {}", sink.id()), source })?;
            shared.durable.enters(sink)?;
        }
        for node in &plan.nodes {
            let NodeKind::Source(config) = &node.kind else { continue };
            let is_divided = divided.contains(&node.id);
            let (handle, to) = context.source(node, is_divided);
            let reads = options.sources.reads(&**config) && is_first;
            let waits = is_divided && !is_first;
            // A source that is not read leaves its checkpoint as it is.
            if reads || !shared.durable.is_kept() && !waits {
                shared.durable.add_source(&handle.tracker);
            }
            shared.sources.lock().push(handle.clone());
            pool.hold();
            pool.tell(&Command::Source(handle.clone()));
            let feed = if waits {
                let source = context.turn_source(&node.id, &**config, true, &|| false)?;
                waiting.push(Waiting::new(handle, to, source));
                continue;
            } else if reads {
                let checkpoint = places.remove(&node.id);
                if let Some(SourceCheckpoint { offsets, marks, .. }) = checkpoint.clone() {
                    handle.tracker.resume(context.share(is_divided).of(&offsets), marks);
                }
                let resume = checkpoint.map(|checkpoint| checkpoint.offsets).unwrap_or_default();
                let source = context.turn_source(&node.id, &**config, is_divided, &|| false)?;
                context.read(handle, source, to, resume, options.turns)?
            } else {
                self.manual.get_or_insert(to);
                TurnFeed::unread(handle)
            };
            self.sources.insert(node.id.clone(), feed);
        }
        Ok(waiting)
    }
}

impl RuntimeContext {
    /// Remembers in the state directory which pipeline writes it.
    pub(super) fn remember(&self, plan: &Plan) {
        let Some((state, writer)) = self.state.as_ref().zip(self.options.writer(plan)) else { return };
        if let Err(error) = writer.keep(state.path()) {
            tracing::warn!(%error, "another pipeline that is run on this state directory will not be noticed");
        }
    }
}

/// What must be the same in all processes of a cluster: the plan, the files of its models, and which optional models are not
/// loaded.
fn identity(plan: &Plan, running: &Running) -> String {
    let mut identity = plan.hash.to_string();
    if !running.models.is_empty() {
        let mut hasher = blake3::Hasher::new();
        for (name, model) in &running.models {
            for part in [name, &model.fingerprint] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
        }
        identity += " with models ";
        identity += &hasher.finalize().to_hex()[..16];
    }
    let lacking: Vec<&str> = running.generation.lacking.keys().map(|name| &**name).collect();
    if !lacking.is_empty() {
        identity += " without ";
        identity += &lacking.join(", ");
    }
    identity
}

/// What this process says about itself.
fn member(cluster: &ClusterOptions, shape: Shape, plan: &str) -> Member {
    let ClusterOptions { hosts, secret, certificates, .. } = cluster.clone();
    Member { process: shape.process, hosts, workers: shape.workers, secret, certificates, plan: plan.to_owned() }
}

/// Connects this process with the others of its cluster.
fn join_cluster(
    cluster: &ClusterOptions,
    peers: &Peers,
    plan: &str,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Vec<Option<Link>>, RunError> {
    // The first process gives each start another number, so that no process of an earlier one takes part.
    let generation = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let connected = connect(&member(cluster, peers.shape, plan), generation, cluster.patience, is_cancelled)?;
    let channels = connected.channels.into_iter().enumerate();
    let link = |(process, channel): (usize, Option<Channel>)| {
        let Some(channel) = channel else { return Ok(None) };
        let options = LinkOptions {
            other: format!("process {process} ({})", cluster.hosts[process]).into(),
            bond: peers.bond.clone(),
            on_lost: cluster.on_lost.clone(),
            lost_after: cluster.lost_after,
        };
        Link::new(channel, options).map(Some)
    };
    let links: Result<Vec<_>, _> = channels.map(link).collect();
    let Shape { process, processes, .. } = peers.shape;
    tracing::info!(process, processes, generation = connected.generation, "connected");
    links.map_err(|source| RunError::Links { source })
}

/// Checks that every operator with an index can use it in a cluster.
pub(super) fn check_divided(plan: &Plan, models: &Models) -> Result<(), RunError> {
    for node in &plan.nodes {
        for config in node.operators() {
            let Some(corpus) = config.corpus().filter(|_| !config.asks_other_parts()) else { continue };
            if !config.indexes(models)?.is_empty() {
                let (node, kind, corpus) = (node.id.to_string(), node.kind_name, corpus.to_string());
                return Err(RunError::Divided { node, kind, corpus });
            }
        }
    }
    Ok(())
}

/// Starts the turns of callers once every corpus is published, and those of sources once every source of a corpus is read.
/// In a cluster, the first process says so.
async fn announce_ready(mut feeds: Vec<(Arc<str>, watch::Receiver<CorpusState>)>, context: RuntimeContext) {
    for begun in [|state: &CorpusState| *state != CorpusState::Loading, CorpusState::is_read] {
        for (corpus, state) in &mut feeds {
            let reached = state.wait_for(begun).await;
            if let Ok(state) = reached
                && let CorpusState::Failed(reason) = &*state
            {
                let error = RunError::Publish { corpus: corpus.to_string(), reason: reason.clone() };
                context.errors.lock().push(error);
                context.pool.abort();
                return;
            }
        }
        if context.peers.is_some() && context.manifests.is_none() {
            continue;
        }
        if !context.shared.serving.swap(true, Ordering::AcqRel) {
            context.pool.wake();
            if let Some(manifests) = &context.manifests {
                // Also if there is no corpus.
                manifests.announce(&context.shared.epochs).await;
                manifests.begin(Beginning::Callers);
            }
        }
    }
    if context.peers.is_none() || context.manifests.is_some() {
        context.shared.ready.store(true, Ordering::Release);
        context.shared.wake_conversations();
        context.manifests.iter().for_each(|manifests| manifests.begin(Beginning::Sources));
    }
    context.forget_former();
}
