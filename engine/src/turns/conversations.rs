//! Conversation state: order within a conversation, and the history that a turn sees.
//!
//! A conversation's turns run one after another, many conversations at once. Where the log
//! brings the agent's own turns, they are the history; where it does not, our answer is.
//! Whether it does is known when the next user turn is at hand, so the outcome does not
//! depend on who is faster.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use differential_dataflow::Hashable;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{Delivered, Feedback, Read, RunningNode, TurnsShared};
use crate::record::{Item, Speaker, Turn, Utterance, Value};
use crate::wake::WakeSlot;

/// How often conversations that have gone idle are looked for.
const SWEEP: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Conversation {
    history: VecDeque<Utterance>,
    /// Records that have come and wait for the running turn.
    queue: VecDeque<(Read, Capability<u64>)>,
    /// The sequence number of the turn that runs.
    running: Option<u64>,
    /// Our answer to the last user turn, until the log brings one or the next turn needs it.
    reply: Option<Arc<str>>,
    last: Option<Instant>,
}

impl Conversation {
    fn say(&mut self, speaker: Speaker, text: Arc<str>, limit: usize) {
        self.history.push_back(Utterance { speaker, text });
        while self.history.len() > limit {
            self.history.pop_front();
        }
    }

    /// Takes records until a user turn is to start; gives that turn.
    fn next(&mut self, limit: usize) -> Option<(Read, Vec<Utterance>, Capability<u64>)> {
        while self.running.is_none() {
            let (read, capability) = self.queue.pop_front()?;
            let text = read.record.text.clone();
            match read.record.speaker {
                Speaker::Agent => {
                    self.reply = None;
                    self.say(Speaker::Agent, text, limit);
                }
                Speaker::User => {
                    if let Some(reply) = self.reply.take() {
                        self.say(Speaker::Agent, reply, limit);
                    }
                    let history = self.history.iter().cloned().collect();
                    self.say(Speaker::User, text, limit);
                    return Some((read, history, capability));
                }
            }
        }
        None
    }
}

pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    node: &RunningNode,
    index: usize,
    read: StreamVec<'s, u64, Read>,
    feedback: Feedback,
    shared: Arc<TurnsShared>,
) -> StreamVec<'s, u64, Item> {
    let mut builder = OperatorBuilder::new(format!("Conversations {:?}", node.id), scope);
    let mut input = builder.new_input(read, Exchange::new(|read: &Read| read.record.conversation_id.hashed()));
    let (output, stream) = builder.new_output::<Vec<Item>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let address = builder.operator_info().address;
    let activator = scope.activator_for(address.clone());
    *feedback.activator.borrow_mut() = Some(activator.clone());
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(address.to_vec()));
    shared.conversation_wakes.lock().push(wake);
    let node_id = node.id.clone();
    builder.build(move |_| {
        let mut conversations: HashMap<Arc<str>, Conversation> = HashMap::new();
        // Sources are numbered apart, so that sequences are unique on a worker.
        let mut sequence = (index as u64) << 48;
        let mut touched: VecDeque<Arc<str>> = VecDeque::new();
        let mut swept = Instant::now();
        move |_| {
            let limit = shared.limits.max_utterances;
            input.for_each_stamp(|time, batches| {
                let Some(capability) = time.retain_least(0) else { return };
                for read in batches.flat_map(|batch| batch.drain(..)) {
                    let id = read.record.conversation_id.clone();
                    let conversation = conversations.entry(id.clone()).or_default();
                    conversation.queue.push_back((read, capability.clone()));
                    touched.push_back(id);
                }
            });
            while let Some(Delivered { conversation_id, sequence, reply }) = feedback.queue.borrow_mut().pop_front() {
                if let Some(conversation) = conversations.get_mut(&conversation_id)
                    && conversation.running == Some(sequence)
                {
                    conversation.running = None;
                    conversation.reply = Some(reply).filter(|reply| !reply.is_empty());
                    touched.push_back(conversation_id);
                }
            }
            if !shared.ready.load(Ordering::Acquire) {
                return;
            }
            let mut output = output.activate();
            while let Some(id) = touched.pop_front() {
                let Some(conversation) = conversations.get_mut(&id) else { continue };
                conversation.last = Some(Instant::now());
                let Some((read, history, capability)) = conversation.next(limit) else { continue };
                sequence += 1;
                conversation.running = Some(sequence);
                let Read { record, history: given, entered_us, .. } = read;
                let turn = Arc::new(Turn {
                    conversation_id: record.conversation_id,
                    turn: record.turn,
                    text: record.text,
                    history: given.unwrap_or(history),
                    collection: record.collection,
                    extra: record.extra,
                    epoch: shared.epochs.pin(),
                    entered_us,
                    sequence,
                    key: "".into(),
                });
                let item = Item { turn, value: Value::Turn, notes: Arc::default() };
                shared.observe(&node_id, &item);
                output.session(&capability).give(item);
            }
            if swept.elapsed() > SWEEP {
                swept = Instant::now();
                let idle = Duration::from_secs(shared.limits.idle_s);
                conversations.retain(|_, conversation| {
                    conversation.running.is_some()
                        || !conversation.queue.is_empty()
                        || conversation.last.is_none_or(|last| last.elapsed() < idle)
                });
            }
        }
    });
    stream
}
