//! The way of a turn: source → conversation → operators → sinks → delivery, as one timely
//! dataflow.
//!
//! Turns are exchanged by conversation, so that all of a conversation happens on one
//! worker. Every port carries exactly one value a turn, so operators join their inputs by
//! count: a slow turn holds back nobody but its own conversation. Time is the number of the
//! source's batch; what is in flight holds its batch's capability, so the frontier at the
//! end tells up to where everything has been delivered.

mod conversations;
mod deliver;
mod node;
mod sink;

pub(crate) use sink::record;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, TryRecvError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{ProbeHandle, Scope, StreamVec};
use timely::scheduling::Activator;

use crate::component::Operator;
use crate::connector::{AnswerSink, SourcedTurn};
use crate::plan::Conversations;
use crate::publish::Epochs;
use crate::record::{Item, Stamp, TurnRecord, Utterance};
use crate::wake::WakeSlot;

/// Is told every value that a node gives, on the worker that gives it; must be quick.
pub type Observer = Arc<dyn Fn(&str, &Item) + Send + Sync>;

/// What runs at a node.
#[derive(Clone)]
pub enum Running {
    /// The receiving end of the source's channel; taken by the worker that reads it.
    Source(Arc<Mutex<Option<Receiver<SourcedTurn>>>>, WakeSlot),
    /// An operator.
    Operator(Arc<dyn Operator>),
    /// A sink, shared by the workers. `None` where answers go to the observer alone.
    Sink(Option<Arc<Mutex<Box<dyn AnswerSink>>>>),
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

/// What all workers share of the turns' dataflow.
pub struct TurnsShared {
    /// Every node comes after those that feed it.
    pub nodes: Vec<RunningNode>,
    /// Bounds of conversations.
    pub limits: Conversations,
    /// What turns read.
    pub epochs: Arc<Epochs>,
    /// Whether every corpus is published; turns wait until then.
    pub ready: AtomicBool,
    /// Wakes each worker's conversations.
    pub conversation_wakes: Mutex<Vec<WakeSlot>>,
    /// Turns that are read and not yet delivered.
    pub outstanding: AtomicUsize,
    /// Turns that are delivered.
    pub delivered: AtomicUsize,
    /// Continues operators' calls.
    pub handle: tokio::runtime::Handle,
    /// Is told every value.
    pub observer: Option<Observer>,
    /// For answers; its epoch is each turn's own.
    pub stamp: Stamp,
    /// When the engine started.
    pub started: Instant,
}

impl TurnsShared {
    fn observe(&self, node: &str, item: &Item) {
        if let Some(observer) = &self.observer {
            observer(node, item);
        }
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Wakes the sources, which wait while too many turns are in flight.
    fn wake_sources(&self) {
        for node in &self.nodes {
            if let Running::Source(_, wake) = &node.running {
                wake.wake();
            }
        }
    }
}

/// A record on its way from a source to its conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Read {
    record: TurnRecord,
    history: Option<Vec<Utterance>>,
    position: String,
    entered_us: u64,
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

/// Builds the dataflow on this worker; the probe passes a batch when it is delivered.
pub fn build(scope: Scope<'_, u64>, shared: &Arc<TurnsShared>) -> ProbeHandle<u64> {
    let mut streams: Vec<StreamVec<'_, u64, Item>> = Vec::new();
    let mut feedbacks: HashMap<usize, Feedback> = HashMap::new();
    for (index, node) in shared.nodes.iter().enumerate() {
        let inputs: Vec<_> = node.inputs.iter().map(|&input| streams[input].clone()).collect();
        let stream = match &node.running {
            Running::Source(receiver, wake) => {
                // Sources are dealt to the workers in turn.
                let mine = feedbacks.len() % scope.peers() == scope.index();
                let receiver = if mine { receiver.lock().take() } else { None };
                let read = source(scope, node, receiver, wake, shared.clone());
                let feedback = Feedback::default();
                let stream = conversations::build(scope, node, index, read, feedback.clone(), shared.clone());
                feedbacks.insert(index, feedback);
                stream
            }
            Running::Operator(operator) => node::build(scope, node, operator.clone(), inputs, shared.clone()),
            Running::Sink(sink) => sink::build(scope, node, sink.clone(), inputs, shared.clone()),
        };
        streams.push(stream);
    }
    let is_leaf = |index: &usize| !shared.nodes.iter().any(|node| node.inputs.contains(index));
    let leaves: Vec<usize> = (0..streams.len()).filter(is_leaf).collect();
    let reach: Vec<Vec<usize>> = leaves.iter().map(|&leaf| sources_of(&shared.nodes, leaf)).collect();
    let leaf_streams = leaves.iter().map(|&leaf| streams[leaf].clone()).collect();
    deliver::build(scope, leaf_streams, reach, feedbacks, shared.clone())
}

/// The sources from which values reach a node.
fn sources_of(nodes: &[RunningNode], node: usize) -> Vec<usize> {
    if matches!(nodes[node].running, Running::Source(..)) {
        return vec![node];
    }
    let mut sources: Vec<usize> = nodes[node].inputs.iter().flat_map(|&input| sources_of(nodes, input)).collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}

/// Reads from the source's channel while not too many turns are in flight, and sends each
/// record to the worker that has its conversation.
fn source<'s>(
    scope: Scope<'s, u64>,
    node: &RunningNode,
    receiver: Option<Receiver<SourcedTurn>>,
    wake: &WakeSlot,
    shared: Arc<TurnsShared>,
) -> StreamVec<'s, u64, Read> {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", node.kind_name, node.id), scope);
    let (output, stream) = builder.new_output::<Vec<Read>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    if receiver.is_some() {
        wake.set(scope.worker().sync_activator_for(builder.operator_info().address.to_vec()));
    }
    builder.build(move |mut capabilities| {
        let mut capability = receiver.as_ref().and(capabilities.pop());
        capabilities.clear();
        move |_| {
            let (Some(receiver), Some(held)) = (&receiver, &mut capability) else { return };
            let mut output = output.activate();
            let mut any = false;
            let mut ended = false;
            while shared.outstanding.load(Ordering::Acquire) < shared.limits.max_in_flight {
                match receiver.try_recv() {
                    Ok(SourcedTurn { record, history, position, place: _ }) => {
                        if record.speaker == crate::record::Speaker::User {
                            shared.outstanding.fetch_add(1, Ordering::AcqRel);
                        }
                        let read = Read { record, history, position, entered_us: shared.now_us() };
                        output.session(&*held).give(read);
                        any = true;
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        ended = true;
                        break;
                    }
                }
            }
            if ended {
                capability = None;
            } else if any {
                let next = *held.time() + 1;
                held.downgrade(&next);
            }
        }
    });
    stream
}
