//! The way of a turn: source → conversation → operators → sinks → delivery.
//!
//! It is a timely dataflow a source, and one a *generation*: a plan as it runs. A source's
//! dataflow reads it and exchanges its turns by conversation, so that all of a conversation
//! happens on one worker, and lives as long as the source does. When a turn starts, its epoch
//! is pinned, and with it the generation by which it is answered; it is handed over within the
//! worker. So a reload puts another generation beside the one that runs, turns in flight finish
//! where they started, and conversations know nothing of it.
//!
//! Every port carries exactly one value a turn, so operators join their inputs by count: a slow
//! turn holds back nobody but its own conversation.

mod asked;
mod backlog;
mod conversations;
mod deliver;
mod ingress;
mod node;
mod reach;
mod retry;
mod sink;
mod slots;
mod source;
mod standing;

pub use backlog::TurnBacklog;
pub use reach::Reach;
pub(crate) use sink::record;
pub use slots::{Slots, Waiter};

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::Receiver;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use timely::dataflow::{ProbeHandle, Scope, StreamVec};
use timely::scheduling::Activator;

use self::ingress::Ingress;
use self::standing::Standing;
use crate::ask::{AskQueue, Caller};
use crate::component::Operator;
use crate::connector::{Arrived, SourceOffset};
use crate::dead_letter::DeadLetters;
use crate::durable::{Durable, OffsetTracker};
use crate::plan::{AnswerMode, Conversations, FailedTurns, Retries};
use crate::publish::{Epochs, SnapshotGuard};
use crate::record::{AnswerRecord, Item, Provenance, TurnRecord, Utterance, Value};
use crate::sinks::SinkHandle;
use crate::wake::WakeSlot;

/// Is told every value that a node gives, on the worker that gives it; must be quick.
pub type Observer = Arc<dyn Fn(&str, &Item) + Send + Sync>;

/// What runs at a node.
#[derive(Clone)]
pub enum Running {
    /// Turns come in; the source's own dataflow reads them.
    Source,
    /// An operator.
    Operator(Arc<dyn Operator>),
    /// A sink. `None` where answers go to the observer alone.
    Sink(Option<Arc<SinkHandle>>),
}

/// A node with what feeds it.
#[derive(Clone)]
pub struct RunningNode {
    /// Its id.
    pub id: Arc<str>,
    /// Its kind's name.
    pub kind_name: &'static str,
    /// Indexes of the nodes that feed it; these come earlier.
    pub inputs: Vec<usize>,
    /// What runs.
    pub running: Running,
}

/// A plan as it runs.
pub struct Generation {
    /// Counts the plans of a process from 1.
    pub number: u64,
    /// Every node comes after those that feed it.
    pub nodes: Vec<RunningNode>,
    /// For answers; its epoch is each turn's own.
    pub stamp: Provenance,
    /// Whether its turns are answered again.
    pub mode: AnswerMode,
    /// The sinks that get revisions.
    pub live: BTreeSet<Arc<str>>,
    /// How often operators are called again.
    pub retries: Retries,
    /// Where turns go that failed.
    pub failed_turns: FailedTurns,
    /// The indexes that its operators read, by corpus.
    pub indexes: BTreeMap<Arc<str>, BTreeSet<String>>,
    /// From which sources values reach each node.
    pub reach: Reach,
}

impl Generation {
    /// The sources' nodes.
    pub fn sources(&self) -> impl Iterator<Item = &Arc<str>> {
        self.nodes.iter().filter(|node| matches!(node.running, Running::Source)).map(|node| &node.id)
    }

    /// The sinks, each with the sources whose turns reach it.
    pub fn sinks(&self) -> Vec<(Arc<SinkHandle>, BTreeSet<Arc<str>>)> {
        let sink = |(index, node): (usize, &RunningNode)| {
            let Running::Sink(Some(sink)) = &node.running else { return None };
            let sources = self.reach.sources_of(index).map(|at| self.nodes[at].id.clone());
            Some((sink.clone(), sources.collect()))
        };
        self.nodes.iter().enumerate().filter_map(sink).collect()
    }

    /// The sinks that a source's turns reach, each with what feeds it; `None` if there are none, or
    /// they are not written to.
    fn sinks_of(&self, source: &str) -> Option<Vec<(&[usize], &Arc<SinkHandle>)>> {
        let mut sinks = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let Running::Sink(sink) = &node.running else { continue };
            if self.reach.sources_of(index).any(|at| *self.nodes[at].id == *source) {
                sinks.push((&node.inputs[..], sink.as_ref()?));
            }
        }
        Some(sinks).filter(|sinks| !sinks.is_empty())
    }

    /// What its sinks have of a turn that an earlier process has answered.
    fn records(&self, source: &str, key: &str) -> BTreeMap<Arc<str>, AnswerRecord> {
        let sinks = self.sinks_of(source).unwrap_or_default();
        sinks.into_iter().filter_map(|(_, sink)| Some((sink.id().clone(), sink.record(key)?))).collect()
    }

    /// The answer that an earlier process has given to a turn, when it is in every sink. One that
    /// lacks it is given what another has that is fed by the same node: answered again, it might be
    /// another answer, and history would have only one of them.
    fn answered(&self, source: &str, key: &str) -> Option<Arc<str>> {
        let sinks = self.sinks_of(source)?;
        let found: Vec<Option<Arc<str>>> = sinks.iter().map(|(_, sink)| sink.found(key)).collect();
        let text = found.iter().flatten().next()?.clone();
        let mut copies = Vec::new();
        for ((inputs, sink), _) in sinks.iter().zip(&found).filter(|(_, found)| found.is_none()) {
            let mut donors = sinks.iter().zip(&found).filter(|((from, _), found)| found.is_some() && from == inputs);
            copies.push((sink, donors.find_map(|((_, donor), _)| donor.first(key))?));
        }
        for (sink, record) in copies {
            if let Err(error) = sink.copy(record) {
                tracing::error!(sink = %sink.id(), %error, "an answer that another sink has cannot be written; it is given again");
                return None;
            }
        }
        Some(text)
    }
}

/// A source of turns as all workers share it.
pub struct SourceHandle {
    /// Its node.
    pub id: Arc<str>,
    /// Its kind's name.
    pub kind_name: &'static str,
    /// Tells the sources of a process apart.
    pub number: u64,
    /// The receiving end of its channel; taken by the worker that reads it.
    pub receiver: Mutex<Option<Receiver<Arrived>>>,
    /// Wakes the operator that reads it.
    pub wake: WakeSlot,
    /// Wakes each worker's conversations.
    pub conversation_wakes: Mutex<Vec<WakeSlot>>,
    /// All that was there at the start is in the channel.
    pub caught_up: Arc<AtomicBool>,
    /// What of it is applied.
    pub tracker: Arc<OffsetTracker>,
    /// What of it waits.
    pub backlog: TurnBacklog,
    /// All that it read is answered, on all workers.
    pub ended: AtomicBool,
}

/// What all workers share of turns.
pub struct TurnsShared {
    /// Bounds of conversations.
    pub limits: RwLock<Conversations>,
    /// What turns read.
    pub epochs: Arc<Epochs>,
    /// What outlives the process.
    pub durable: Arc<Durable>,
    /// Where turns go that failed, if the pipeline says so.
    pub dead: DeadLetters,
    /// Whether every corpus is published; turns wait until then.
    pub ready: AtomicBool,
    /// Sources that are read.
    pub sources: Mutex<Vec<Arc<SourceHandle>>>,
    /// The plan that runs, and those before it that have turns in flight.
    pub generations: RwLock<BTreeMap<u64, Arc<Generation>>>,
    /// Turns that are read and not yet delivered.
    pub outstanding: AtomicUsize,
    /// Turns that are worked on.
    pub slots: Slots,
    /// Turns that callers ask and that are not begun.
    pub asks: AskQueue,
    /// The run is to end: what waits and is read again by a restart need not be begun.
    pub stopping: AtomicBool,
    /// Turns that are delivered.
    pub delivered: AtomicUsize,
    /// Turns that an earlier process had answered.
    pub recovered: AtomicU64,
    /// Answers that took the place of another.
    pub revised: AtomicU64,
    /// Continues operators' calls.
    pub handle: tokio::runtime::Handle,
    /// Is told every value.
    pub observer: Option<Observer>,
    /// When the engine started.
    pub started: Instant,
}

impl TurnsShared {
    fn observe(&self, node: &str, flow: &Flow) {
        if let Some(observer) = &self.observer {
            observer(node, &flow.item);
        }
        if let Some(caller) = &flow.context.caller {
            caller.observe(node, &flow.item);
        }
    }

    /// Microseconds since the start.
    pub fn now_us(&self) -> u64 {
        self.us_of(Instant::now())
    }

    /// The same, of a moment.
    fn us_of(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started).as_micros() as u64
    }

    /// A turn is delivered.
    fn turn_ends(&self, context: &TurnContext) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.place_back(context);
    }

    /// A turn has reached one of `ends` ends. At the last it is not worked on any more, and waits
    /// at most for sinks: its place is another's.
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

    /// Whether a sink that turns of this source go to is so far behind that no more of them are to
    /// be begun.
    fn is_behind(&self, source: &str) -> bool {
        let Some(generation) = self.generation() else { return false };
        let most = self.limits.read().max_in_flight;
        generation.sinks_of(source).is_some_and(|sinks| sinks.iter().any(|(_, sink)| sink.is_behind(most)))
    }

    /// Wakes the conversations, which wait until corpora are published.
    pub fn wake_conversations(&self) {
        for source in &*self.sources.lock() {
            for wake in &*source.conversation_wakes.lock() {
                wake.wake();
            }
        }
    }

    /// The generation by which turns are answered now.
    pub fn generation(&self) -> Option<Arc<Generation>> {
        self.generations.read().last_key_value().map(|(_, generation)| generation.clone())
    }
}

/// A value on its way through a generation, with what its turn holds.
#[derive(Clone)]
struct Flow {
    item: Item,
    context: Arc<TurnContext>,
}

/// What a turn holds from its start until the last of its values is gone.
struct TurnContext {
    /// What it reads.
    snapshot: SnapshotGuard,
    /// Who waits for its answer, if somebody asked it.
    caller: Option<Caller>,
    /// It has a place among the turns that are worked on.
    has_place: AtomicBool,
    /// How many of its ends it has reached.
    reached: AtomicUsize,
}

impl TurnContext {
    /// Of a turn that has just got its place.
    fn new(snapshot: SnapshotGuard, caller: Option<Caller>) -> Arc<Self> {
        Arc::new(Self { snapshot, caller, has_place: AtomicBool::new(true), reached: AtomicUsize::new(0) })
    }
}

impl Flow {
    /// The next value of the same turn.
    fn then(&self, value: Value, warnings: Arc<[String]>) -> Self {
        Self { item: Item { turn: self.item.turn.clone(), value, warnings }, context: self.context.clone() }
    }
}

/// A record on its way from a source to its conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Read {
    record: TurnRecord,
    history: Option<Vec<Utterance>>,
    position: String,
    entered_us: u64,
    place: Option<SourceOffset>,
    /// In the source's offset tracker.
    batch: u64,
    /// What it takes of the bound on what waits.
    bytes: u64,
}

/// A turn's end, told to the conversation that it belongs to.
struct Delivered {
    conversation_id: Arc<str>,
    sequence: u64,
    reply: Arc<str>,
}

/// From delivery back to a source's conversations, on one worker.
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

/// What the dataflows of one worker know of each other: where turns go into a generation, and
/// where they are told of when they are delivered.
#[derive(Default)]
pub struct WorkerState {
    /// By generation and source.
    ingresses: RefCell<Ingresses>,
    feedbacks: RefCell<HashMap<Arc<str>, Feedback>>,
    standing: Standing,
}

impl WorkerState {
    /// Lets generations end.
    pub fn close(&self, which: impl Fn(u64) -> bool) {
        self.ingresses.borrow_mut().retain(|(number, _), ingress| {
            let closes = which(*number);
            if closes {
                ingress.close();
            }
            !closes
        });
    }

    /// Takes the standing turns over that an earlier process has left to this worker.
    pub fn load(&self, shared: &TurnsShared, index: usize, peers: usize) {
        self.standing.load(shared, index, peers);
    }

    /// Has turns answered again that a new epoch may have changed.
    pub fn answer_again(&self, shared: &TurnsShared) {
        if shared.ready.load(Ordering::Acquire) {
            self.standing.advance(shared, self);
        }
    }

    /// Begins the turns that callers ask.
    pub fn answer_callers(&self, shared: &TurnsShared) {
        if shared.ready.load(Ordering::Acquire) {
            asked::begin(shared, self);
        }
    }

    /// Whether no standing turn is to be answered again.
    pub fn is_settled(&self, shared: &TurnsShared) -> bool {
        shared.ready.load(Ordering::Acquire) && self.standing.is_settled(shared)
    }

    fn ingress(&self, generation: u64, source: &Arc<str>) -> Option<Rc<Ingress>> {
        self.ingresses.borrow().get(&(generation, source.clone())).cloned()
    }
}

/// Builds a source's dataflow on this worker; the probe is done when all is answered.
pub fn build_source(
    scope: Scope<'_, u64>,
    handle: &Arc<SourceHandle>,
    shared: &Arc<TurnsShared>,
    local: &Rc<WorkerState>,
) -> ProbeHandle<u64> {
    let mine = handle.number % scope.peers() as u64 == scope.index() as u64;
    let receiver = if mine { handle.receiver.lock().take() } else { None };
    let read = source::build(scope, handle, receiver, shared.clone());
    let feedback = Feedback::default();
    local.feedbacks.borrow_mut().insert(handle.id.clone(), feedback.clone());
    let ends = conversations::build(scope, handle, read, feedback, shared.clone(), local.clone());
    let probe = ProbeHandle::new();
    timely::dataflow::operators::probe::Probe::probe_with(ends, &probe);
    probe
}

/// Builds a generation's dataflow on this worker; it ends when its inlets are closed.
pub fn build_generation(
    scope: Scope<'_, u64>,
    generation: &Arc<Generation>,
    shared: &Arc<TurnsShared>,
    local: &Rc<WorkerState>,
) {
    let nodes = &generation.nodes;
    let leaves = generation.reach.leaves(nodes);
    // How many ends a turn of each source reaches.
    let mut ends: HashMap<Arc<str>, usize> = HashMap::new();
    for source in leaves.iter().flat_map(|&leaf| generation.reach.sources_of(leaf)) {
        *ends.entry(nodes[source].id.clone()).or_default() += 1;
    }
    let ends = Rc::new(ends);
    let mut streams: Vec<StreamVec<'_, u64, Flow>> = Vec::new();
    for node in nodes {
        let inputs: Vec<_> = node.inputs.iter().map(|&input| streams[input].clone()).collect();
        let stream = match &node.running {
            Running::Source => {
                let (ingress, stream) = ingress::build(scope, node);
                local.ingresses.borrow_mut().insert((generation.number, node.id.clone()), ingress);
                stream
            }
            Running::Operator(operator) => {
                node::build(scope, node, operator.clone(), inputs, generation.retries, shared.clone())
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
