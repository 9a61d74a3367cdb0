//! The path of a turn: source → conversation → operators → sinks → delivery.
//!
//! There is one timely dataflow per source, and one per *generation*: a running plan. A source's
//! dataflow reads the source and exchanges its turns by conversation, so that one worker processes
//! all turns of a conversation; it lives as long as the source. When a turn starts, it pins its
//! epoch, and with it the generation that answers it; the turn is handed over within the worker. So
//! a reload adds a generation next to the running one, turns in flight finish where they started, and
//! conversations are not affected.
//!
//! Every port carries exactly one value per turn, so operators join their inputs by count: a slow
//! turn delays only its own conversation.

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
mod sink;
mod slots;
mod source;
mod standing;
mod watched;

pub use answers::{AnswerCache, CachedAnswers};
pub use backlog::TurnBacklog;
pub use generation::{Generation, Running, RunningNode};
pub use reach::Reach;
pub(crate) use sink::record;
pub use slots::{Slots, Waiter};
pub use standing::StandingCount;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
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
    fn begin(mut turn: Turn, snapshot: SnapshotGuard, caller: Option<Caller>, shared: &TurnsShared) -> Self {
        let generation = shared.generations.read().get(&snapshot.plan).cloned();
        let is_adjusted = caller.as_ref().is_some_and(|caller| !caller.adjust().is_empty());
        let caches = generation.as_ref().is_some_and(|generation| generation.cache.is_some()) && !is_adjusted;
        let family = snapshot.family;
        let key = caches.then(|| AnswerCache::key(family, &turn));
        // Who wants to see every step gets every step.
        let looks = shared.observer.is_none() && !caller.as_ref().is_some_and(Caller::traces);
        let cached = key.filter(|_| looks).and_then(|key| shared.answers.find(&key, snapshot.epoch));
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
