//! The path of a turn: source → conversation → operators → sinks → delivery.
//!
//! A reload adds a generation next to the running one: turns in flight finish where they started, and conversations are
//! not affected.
//!
//! # From a turn to its answer
//!
//! There is one timely dataflow per source and one per *generation*, which is a plan as it runs. This module builds
//! both. A source's dataflow lives as long as the source. When a turn starts, it is handed over, within its worker, to
//! the generation that its epoch names.
//!
//! 1. **Source.** A turn source (`connectors/src/jsonl_turns/`, `connectors/src/stdin.rs`, `connectors/src/turns/`)
//!    runs on its own thread, with a bounded channel. The source's operator reads the channel while the number and the
//!    bytes of waiting records are within their limits (`backlog.rs`).
//! 2. **Conversation.** Records are exchanged by conversation to `engine/src/turns/conversations/`, which keeps their
//!    order and the history.
//!    - A turn can start when the previous turn of its conversation is delivered.
//!    - At most `max_in_flight` turns run at once. Workers and callers get these slots in turn (`slots.rs`), and those
//!      of one worker its conversations in the order of their requests. A conversation has one turn in flight, so one
//!      with many turns does not hold up the others.
//!    - Conversations that have been idle longest leave memory (`conversations/held.rs`) and are loaded from the store
//!      when they are needed. Turns that an earlier process answered are applied without a call
//!      (`conversations/taken_over.rs`).
//!    - A turn that starts pins the newest snapshot, and thereby its generation, and enters it through the generation's
//!      ingress (`ingress.rs`). The guard travels with each of the turn's values (`Flow`, `TurnContext`), so nothing is
//!      looked up by number.
//!    - If a plan judges the log's own replies (`OperatorConfig::takes_replies`), the turn of a question begins with the
//!      agent's record (`conversations/replies.rs`). Until then the question is in the history, and the agent's record
//!      is applied when its turn is delivered.
//! 3. **Operators.** `engine/src/turns/node.rs` wires every node between source and sink. Each port carries exactly one
//!    value per turn, so inputs are joined by count; then the operator is called.
//!    - If an input has failed, the failure replaces the operator's value, unless the operator accepts failures, as
//!      `Fallback` does.
//!    - An operator estimates the cost of a call in advance (`Operator::weight`, in bytes of text and values of an
//!      index). A cheap call runs on the worker up to its first wait. If its value is ready at once, it is sent at
//!      once. If the call waits for a model, it continues on the I/O threads while the node holds the turn's
//!      capability, and wakes the worker when it ends. A retriever does little after a wait, for example for the
//!      passages of another process; its call continues on the worker (`Operator::continues_here`).
//!    - An expensive call runs on separate threads from the beginning, at most as many at once as there are cores
//!      (`engine/src/compute.rs`). Scans of one index that wait for a core run in one pass (`engine/src/together.rs`).
//!    - A transient failure (`is_transient`) is retried after a pause that blocks no thread (`turns/retry.rs`), and a
//!      warning records it. A failure that a back end has already retried itself is not retried.
//! 4. **Models.** A call to a model first looks in the inference cache (see `inference`). A miss goes to the model's
//!    service (`engine/src/inference/service/`): one thread per model, with a bounded queue. Inputs of different turns,
//!    operators and workers share batches. A batch of turns takes the oldest input and those closest to it in length
//!    among all that wait, and is divided where a batch more costs less than the padding; so no input waits for younger
//!    ones for ever. A batch of the corpus takes the next lengths of a sweep from long to short. An input that comes
//!    while nothing waits runs at once. The texts of one call are tokenized in parts, on another thread than the
//!    model's, and the model starts with the first part. Turns have priority over the corpus, but after every three
//!    batches of turns one small batch of the corpus runs. Turns and corpus each have half of the queue. An input on
//!    which the back end panics fails alone. `OnnxDecoder` has its own thread, which decodes the texts of several turns
//!    together. Calls to model servers are requests on the I/O threads.
//! 5. **Permissions.** A passage names the groups that may read it (`Chunk::readers`), if its corpus has `access`.
//!    Operators that read a corpus keep to `CorpusSnapshot::permitted`. In addition, the node (`turns/node.rs`) removes
//!    hits that the turn's principal may not read, or that the caller's condition leaves out, from every output, and
//!    fails a prompt or an answer that was made with them, whatever operator made it. A conversation that continues
//!    with a principal who lacks a group starts with an empty history (`conversations/held.rs`).
//! 6. **Warnings.** An operator reports in `Call::warnings` what it had to do without: a fallback, a member of an
//!    ensemble, a rewrite. The node adds its id and merges the warnings of its inputs without duplicates. Warnings
//!    travel with the value and end up in the stamp of the record.
//! 7. **Sinks.** `engine/src/turns/sink.rs` builds the answer's record with its stamp, puts it into the sink's queue,
//!    and passes the item on when the sink has acknowledged it.
//!    - Each sink has its own thread (`engine/src/sinks/delivery.rs`), which delivers batches in order and can wait for
//!      the network.
//!    - A delivery that fails is retried every second. An answer that the sink refuses, or on which it panics three
//!      times, becomes a dead letter.
//!    - A turn that waits for a sink releases its slot. When `max_in_flight` answers wait for a sink, no new turn that
//!      leads to it starts; other sinks and their turns continue.
//! 8. **Delivery.** `engine/src/turns/deliver.rs` counts the leaves of the graph that each turn has reached. When a
//!    turn has reached all of its leaves, its conversation is notified (with the answer, in case it becomes history),
//!    and its slot goes to the next that waits.
//! 9. **Standing turns.** In a live pipeline (`mode: Live`), a delivered turn stands (`engine/src/turns/standing/`): it
//!    runs through the generation again when a new epoch may change its passages. An operator that reads a corpus says
//!    in its call what decides that (`Call::watch`), and keeps the calls of standing turns (`StandingQueries`;
//!    `standing.rs` in `operators/src/bm25/`, `dense/` and `sparse/`, `StandingDocuments` for those that read passages
//!    of their input); without this, every change reaches the turn. `engine/src/turns/watched.rs` asks them with the
//!    changes of the epochs since (`Epochs::changes_since`), and names the owners of what a change reaches. A turn that
//!    ends after further epochs is compared with their changes then. Plans that give the same answers from the same
//!    passages are one *family* (`Generation::family`): a switch within a family is a change of the corpora
//!    (`PlanSwitch`). Whether an operator reads scores is said by `OperatorConfig::score_use`. Terms of questions and
//!    of changed passages are joined by differential-dataflow (`component/query_join.rs`): weights are multiplicities,
//!    so the sums of the join are scores. For BM25, a bound on how far the change moves all scores is compared with the
//!    gaps between the scores of each list. A turn that fails then is tried again with growing pauses, and few at a
//!    time while all fail. If its inputs are unchanged, the inference cache answers all model calls. The turns and the
//!    records that their sinks have are read from the store when they are needed. What the turns depend on is written at
//!    the end of a run and read by the next one (`turns/standing/kept.rs`). The sink compares the answers and, if
//!    they differ, writes a retraction and a revision. A sink's own `mode`, or else the pipeline's, decides whether it
//!    gets revisions. A turn of a queue runs again for its principal as it is now: a program that knows its callers
//!    tells the engine (`engine/src/principal.rs`, `Options::principals`). If the principal has lost something, the
//!    sinks get a revision in any case; while nothing is known of it, the turn waits. A queued turn that starts is
//!    renewed in the same way.
//!
//! **Callers.** A program can ask a turn too (`Engine::ask`, `engine/src/ask.rs`). Such a turn belongs to no
//! conversation and reaches no sink. It waits for a slot like the others, and the first free worker starts it
//! (`turns/asked.rs`). Its events go to the caller: the epoch, the output of each node if a trace is requested, the
//! text as a model writes it (`TextStream`), and the record. When the caller drops the stream, the turn's calls are
//! dropped, and a model's queue skips inputs that nobody waits for. A caller may want the value of one node only
//! (`AskRequest::until`), as a search does; the nodes that it does not need are not called. A caller may follow the answer
//! (`AskRequest::follow`): its turn then stands like those of sources, and gets a `Revised` when its answer is another
//! one (`turns/standing/follow.rs`).
//!
//! **The answer cache.** With `cache: Answers(…)`, the values of the nodes before the sinks are kept by a hash of what
//! was asked (`turns/answers.rs`), and what they depend on is watched by the worker that has answered, in the same
//! lists as standing turns. A turn that finds its answer flows through the same dataflow, in which no operator is
//! called (`turns/node.rs`). An answer counts only while its worker has looked at all changes up to the turn's epoch.
//! With `similar`, a caller's first question is compared with those in the cache that have the same words that count
//! (`turns/similar.rs`), before it waits for a slot.

mod answers;
mod asked;
mod backlog;
mod conversations;
mod deliver;
mod generation;
mod ingress;
mod node;
mod reach;
mod retry;
mod similar;
mod sink;
mod slots;
mod source;
mod standing;
mod watched;

pub(crate) use answers::Alike;
pub use answers::{AnswerCache, CachedAnswers};
pub use backlog::TurnBacklog;
pub use generation::{Generation, Running, RunningNode};
pub use reach::Reach;
pub use similar::Similar;
pub(crate) use sink::record;
pub use slots::{Slots, Waiter};
pub use standing::{Keeper, StandingCount};

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use timely::dataflow::{ProbeHandle, Scope, StreamVec};
use timely::scheduling::Activator;

use self::answers::{AnswerKey, FinalValues};
use self::generation::Earlier;
use self::ingress::Ingress;
use self::standing::Standing;
use self::watched::Reads;
use crate::activity::{Activity, TurnWatcher};
use crate::ask::{AskQueue, Caller};
use crate::cluster::Shape;
use crate::connector::{Arrived, SourceOffset};
use crate::dead_letter::DeadLetters;
use crate::durable::{Durable, OffsetTracker};
use crate::plan::{AnswerMode, Conversations};
use crate::principal::{Principals, Renewed, renewed};
use crate::publish::{Epochs, SnapshotGuard};
use crate::record::{Item, Turn, TurnRecord, Utterance, Value};
use crate::wake::WakeSlot;

/// Called with every value of a node, on the worker that computed it; must be quick.
pub type Observer = Arc<dyn Fn(&str, &Item) + Send + Sync>;

/// A source of turns, shared by all workers.
pub struct SourceHandle {
    /// Its node.
    pub id: Arc<str>,
    /// Its kind's name.
    pub kind_name: &'static str,
    /// Whether a program supplies its turns.
    pub is_queue: bool,
    /// The file that it reads.
    pub file: Option<PathBuf>,
    /// Unique among the sources of a process.
    pub number: u64,
    /// Whether all processes of a cluster read it together. Otherwise the first process reads it.
    pub divided: bool,
    /// The receiving end of its channel; taken by the worker that reads it.
    pub receiver: Mutex<Option<Receiver<Arrived>>>,
    /// Wakes the operator that reads it.
    pub wake: WakeSlot,
    /// Wakes each worker's conversations.
    pub conversation_wakes: Mutex<Vec<WakeSlot>>,
    /// All records that existed at the start are in the channel.
    pub caught_up: Arc<AtomicBool>,
    /// Which of its records are applied.
    pub tracker: Arc<OffsetTracker>,
    /// Its waiting records.
    pub backlog: TurnBacklog,
    /// All its records are answered, on all workers.
    pub ended: AtomicBool,
}

/// The state of turns that all workers share.
pub struct TurnsShared {
    /// The processes and workers.
    pub shape: Shape,
    /// Limits of conversations.
    pub limits: RwLock<Conversations>,
    /// Epochs and their snapshots.
    pub epochs: Arc<Epochs>,
    /// State that outlives the process.
    pub durable: Arc<Durable>,
    /// The destination of failed turns, if configured.
    pub dead: DeadLetters,
    /// Whether every corpus is published, perhaps as an earlier run has stored it; turns of callers wait until then.
    pub serving: AtomicBool,
    /// Whether the source of every corpus is read and published; turns of sources wait until then.
    pub ready: AtomicBool,
    /// Sources that are being read.
    pub sources: Mutex<Vec<Arc<SourceHandle>>>,
    /// The current generation, and earlier ones with turns in flight.
    pub generations: RwLock<BTreeMap<u64, Arc<Generation>>>,
    /// Turns read but not delivered.
    pub outstanding: AtomicUsize,
    /// Slots of turns in flight.
    pub slots: Slots,
    /// Turns of callers that have not started.
    pub asks: AskQueue,
    /// The run is stopping: waiting turns that a restart reads again are not started.
    pub stopping: AtomicBool,
    /// Turns delivered.
    pub delivered: AtomicUsize,
    /// Turns that an earlier process answered.
    pub recovered: AtomicU64,
    /// Records that came a second time and were not answered again.
    pub repeated: AtomicU64,
    /// Revisions delivered.
    pub revised: AtomicU64,
    /// Standing turns that were answered again because a change could reach them.
    pub answered_again: AtomicU64,
    /// The standing turns of each worker.
    pub standing: Mutex<BTreeMap<usize, StandingCount>>,
    /// Answers that hold until a change reaches them.
    pub answers: AnswerCache,
    /// What the standing turns depend on, over a restart.
    pub kept: Keeper,
    /// Runs operator calls off the workers.
    pub handle: tokio::runtime::Handle,
    /// Called with every value.
    pub observer: Option<Observer>,
    /// The calls of operators.
    pub activity: Activity,
    /// Observes calls and answers.
    pub watcher: Option<Arc<dyn TurnWatcher>>,
    /// What is known of the principals whose turns are in queues.
    pub principals: Option<Arc<dyn Principals>>,
    /// When the engine started.
    pub started: Instant,
}

impl TurnsShared {
    fn observe(&self, node: &str, flow: &Flow, took: Option<Duration>) {
        if let Some(observer) = &self.observer {
            observer(node, &flow.item);
        }
        if let (Some(watcher), Some(took)) = (&self.watcher, took) {
            watcher.called(&flow.item.turn, node, &flow.item.value, took);
        }
        if let Some(caller) = &flow.context.caller {
            caller.observe(node, &flow.item, took);
        }
    }

    /// A turn's fields with its principal as it is now, if its source is a queue.
    fn renewed(&self, source: &str, fields: &Map<String, Json>) -> Renewed {
        let Some(principals) = &self.principals else { return Renewed::Same };
        match self.generation().is_some_and(|generation| generation.queues.contains(source)) {
            true => renewed(principals, fields),
            false => Renewed::Same,
        }
    }

    /// Microseconds since the start.
    pub fn now_us(&self) -> u64 {
        self.us_of(Instant::now())
    }

    /// Microseconds from the start to `at`.
    fn us_of(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started).as_micros() as u64
    }

    /// Called when a turn is delivered.
    fn turn_ends(&self, context: &TurnContext) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.place_back(context);
    }

    /// Called when a turn has reached one of its `ends` leaves. After the last one, the turn at most
    /// waits for sinks, so its slot is released.
    fn reaches(&self, context: &TurnContext, ends: usize) {
        if context.reached.fetch_add(1, Ordering::AcqRel) + 1 >= ends {
            self.place_back(context);
        }
    }

    fn place_back(&self, context: &TurnContext) {
        if context.has_place.swap(false, Ordering::AcqRel) {
            let most = self.limits.read().max_in_flight;
            self.slots.give_back(most);
        }
    }

    /// Fails the waiting turns of callers and refuses new ones.
    pub fn close_asks(&self) {
        self.asks.close(&self.slots, self.limits.read().max_in_flight);
    }

    /// Whether a sink of this source's turns is so far behind that no more of them may start.
    fn is_behind(&self, source: &str) -> bool {
        // A reload prepares a generation before that one answers.
        let plan = self.epochs.current().plan;
        let Some(generation) = self.generations.read().get(&plan).cloned() else { return false };
        let most = self.limits.read().max_in_flight;
        generation.sinks_of(source).is_some_and(|sinks| sinks.iter().any(|(_, sink)| sink.is_behind(most)))
    }

    /// Wakes all conversations, for example when the corpora are published.
    pub fn wake_conversations(&self) {
        for source in &*self.sources.lock() {
            for wake in &*source.conversation_wakes.lock() {
                wake.wake();
            }
        }
    }

    /// Wakes the conversations of the sources that are there now.
    fn waker(&self) -> impl Fn() + Send + 'static {
        let sources = self.sources.lock().clone();
        move || sources.iter().for_each(|source| source.conversation_wakes.lock().iter().for_each(WakeSlot::wake))
    }

    /// Wakes the sources, which may continue reading.
    pub fn wake_sources(&self) {
        self.sources.lock().iter().for_each(|source| source.wake.wake());
    }

    /// The current generation.
    pub fn generation(&self) -> Option<Arc<Generation>> {
        self.generations.read().last_key_value().map(|(_, generation)| generation.clone())
    }
}

/// A value that flows through a generation, with the context of its turn.
#[derive(Clone)]
struct Flow {
    item: Item,
    context: Arc<TurnContext>,
}

/// The resources of a turn, from its start until its last value is dropped.
struct TurnContext {
    /// The snapshot that it reads.
    snapshot: SnapshotGuard,
    /// The caller who asked it, if any.
    caller: Option<Caller>,
    /// Whether it holds a slot.
    has_place: AtomicBool,
    /// Number of leaves that it has reached.
    reached: AtomicUsize,
    /// What its values depend on, if it stands when it is answered, or its answer goes into the cache.
    reads: Option<Mutex<Reads>>,
    /// What decides its answer, if the pipeline has a cache.
    key: Option<AnswerKey>,
    /// Its answer, which was in the cache: no operator is called.
    cached: Option<Arc<FinalValues>>,
}

impl Flow {
    /// The begin of a turn that has just received its slot.
    fn begin(
        mut turn: Turn,
        snapshot: SnapshotGuard,
        (caller, alike): (Option<Caller>, Option<Alike>),
        shared: &TurnsShared,
    ) -> Self {
        let generation = shared.generations.read().get(&snapshot.plan).cloned();
        let is_adjusted = caller.as_ref().is_some_and(|caller| !caller.adjust().is_empty() || caller.wants_no_answer());
        let caches = generation.as_ref().is_some_and(|generation| generation.cache.is_some()) && !is_adjusted;
        let family = snapshot.family;
        let mut key = caches.then(|| AnswerCache::key(family, &turn));
        // Who wants to see every step gets every step.
        let looks = shared.observer.is_none() && !caller.as_ref().is_some_and(Caller::traces);
        let mut cached = key.filter(|_| looks).and_then(|key| shared.answers.find(&key, snapshot.epoch));
        // It was found before the turn had its snapshot, perhaps among the answers of another plan.
        let alike =
            alike.filter(|alike| looks && key.is_some() && AnswerCache::words_key(family, &turn) == Some(alike.words));
        if let (None, Some(alike)) = (&cached, alike)
            && let Some((values, question)) = shared.answers.find_similar(&alike.key, snapshot.epoch)
        {
            (cached, key) = (Some(values), Some(alike.key));
            turn.similar_to = Some(question);
        }
        turn.computed_at = cached.as_ref().map(|cached| cached.epoch);
        let stands = match &caller {
            Some(caller) => caller.follows(),
            None => generation.is_some_and(|generation| generation.mode != AnswerMode::Once),
        };
        let reads = (stands || key.is_some()).then(Mutex::default);
        let (has_place, reached) = (AtomicBool::new(true), AtomicUsize::new(0));
        let context = Arc::new(TurnContext { snapshot, caller, has_place, reached, reads, key, cached });
        Self { item: Item { turn: Arc::new(turn), value: Value::Turn, warnings: Arc::default() }, context }
    }

    /// The next value of the same turn.
    fn then(&self, value: Value, warnings: Arc<[String]>) -> Self {
        Self { item: Item { turn: self.item.turn.clone(), value, warnings }, context: self.context.clone() }
    }
}

/// A record between its source and its conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Read {
    record: TurnRecord,
    history: Option<Vec<Utterance>>,
    position: String,
    entered_us: u64,
    place: Option<SourceOffset>,
    /// Its batch in the source's offset tracker.
    batch: u64,
    /// Its size in the backlog.
    bytes: u64,
}

impl Read {
    /// The number of its turn, and its log.
    fn turn(&self) -> (u32, u64) {
        (self.record.turn, self.place.as_ref().map_or(0, |place| place.generation))
    }
}

/// Notifies a conversation that its turn is delivered.
struct Delivered {
    conversation_id: Arc<str>,
    sequence: u64,
    reply: Arc<str>,
}

/// The queue from delivery back to a source's conversations, on one worker.
#[derive(Clone, Default)]
struct Feedback {
    queue: Rc<RefCell<VecDeque<Delivered>>>,
    activator: Rc<RefCell<Option<Activator>>>,
}

impl Feedback {
    fn send(&self, delivered: Delivered) {
        self.queue.borrow_mut().push_back(delivered);
        if let Some(activator) = &*self.activator.borrow() {
            activator.activate();
        }
    }
}

type Ingresses = HashMap<(u64, Arc<str>), Rc<Ingress>>;

/// Connects the dataflows of one worker: the entries into generations, and the queues that report
/// delivered turns to conversations.
#[derive(Default)]
pub struct WorkerState {
    /// By generation and source.
    ingresses: RefCell<Ingresses>,
    feedbacks: RefCell<HashMap<Arc<str>, Feedback>>,
    standing: Standing,
}

impl WorkerState {
    /// Closes the ingresses of these generations, so that they end.
    pub fn close(&self, which: impl Fn(u64) -> bool) {
        self.ingresses.borrow_mut().retain(|(number, _), ingress| {
            let closes = which(*number);
            if closes {
                ingress.close();
            }
            !closes
        });
    }

    /// Loads the standing turns of an earlier process that belong to this worker.
    pub fn load(&self, shared: &TurnsShared, index: usize, peers: usize) {
        self.standing.load(shared, index, peers);
    }

    /// Gives what the standing turns depend on to the next run.
    pub fn keep_slots(&self, shared: &TurnsShared) {
        self.standing.keep_slots(shared);
    }

    /// Starts standing turns again whose answers a new epoch may change.
    pub fn answer_again(&self, shared: &TurnsShared) {
        if shared.ready.load(Ordering::Acquire) {
            self.standing.advance(shared, self);
        }
    }

    /// Starts the turns of callers.
    pub fn answer_callers(&self, shared: &TurnsShared) {
        if shared.serving.load(Ordering::Acquire) {
            asked::begin(shared, self);
        }
    }

    /// Whether all standing turns are up to date.
    pub fn is_settled(&self, shared: &TurnsShared) -> bool {
        shared.ready.load(Ordering::Acquire) && self.standing.is_settled(shared)
    }

    fn ingress(&self, generation: u64, source: &Arc<str>) -> Option<Rc<Ingress>> {
        self.ingresses.borrow().get(&(generation, source.clone())).cloned()
    }
}

/// Builds a source's dataflow on this worker; the probe is done when all turns are answered.
pub fn build_source(
    scope: Scope<'_, u64>,
    handle: &Arc<SourceHandle>,
    shared: &Arc<TurnsShared>,
    local: &Rc<WorkerState>,
) -> ProbeHandle<u64> {
    let (shape, own) = (shared.shape, shared.shape.own_worker(handle.number));
    let mine = (handle.divided || shape.is_first()) && own == scope.index() as u64;
    let receiver = if mine { handle.receiver.lock().take() } else { None };
    let read = source::build(scope, handle, receiver, shared.clone());
    let feedback = Feedback::default();
    local.feedbacks.borrow_mut().insert(handle.id.clone(), feedback.clone());
    let ends = conversations::build(scope, handle, read, feedback, shared.clone(), local.clone());
    let probe = ProbeHandle::new();
    timely::dataflow::operators::probe::Probe::probe_with(ends, &probe);
    probe
}

/// Builds a generation's dataflow on this worker; it ends when its ingresses are closed.
pub fn build_generation(
    scope: Scope<'_, u64>,
    generation: &Arc<Generation>,
    shared: &Arc<TurnsShared>,
    local: &Rc<WorkerState>,
) {
    let nodes = &generation.nodes;
    let leaves = generation.reach.leaves(nodes);
    // The number of leaves that a turn of each source reaches.
    let mut ends: HashMap<Arc<str>, usize> = HashMap::new();
    for source in leaves.iter().flat_map(|&leaf| generation.reach.sources_of(leaf)) {
        *ends.entry(nodes[source].id.clone()).or_default() += 1;
    }
    let ends = Rc::new(ends);
    let finals = if generation.cache.is_some() { generation.finals() } else { BTreeSet::new() };
    let mut streams: Vec<StreamVec<'_, u64, Flow>> = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let inputs: Vec<_> = node.inputs.iter().map(|&input| streams[input].clone()).collect();
        let stream = match &node.running {
            Running::Source => {
                let (ingress, stream) = ingress::build(scope, node);
                local.ingresses.borrow_mut().insert((generation.number, node.id.clone()), ingress);
                stream
            }
            Running::Operator(operator) => {
                let is_final = finals.contains(&at);
                node::build(scope, (at, node, is_final), operator.clone(), inputs, generation.retries, shared.clone())
            }
            Running::Sink(sink) => {
                let (sink, ends) = (sink.clone(), ends.clone());
                sink::build(scope, node, sink, inputs, generation, ends, shared.clone(), local.clone())
            }
        };
        streams.push(stream);
    }
    let leaf_streams = leaves.iter().map(|&leaf| streams[leaf].clone()).collect();
    deliver::build(scope, leaf_streams, ends, generation, local.clone(), shared.clone());
}
