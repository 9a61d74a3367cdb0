//! Conversation state: order within a conversation, and the history that a turn sees.
//!
//! A conversation's turns run one after another, many conversations at once. Where the log
//! brings the agent's own turns, they are the history; where it does not, our answer is.
//! Whether it does is known when the next user turn is at hand, so the outcome does not
//! depend on who is faster.
//!
//! A record is *applied* when the conversation's state has it: an agent's when its turn comes, a
//! user's when its answer is delivered. What is applied outlives the process (see
//! [`crate::durable`]) and is passed over when a restart reads it again. While what a conversation
//! knew cannot be read, its records wait as if they had not come.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use differential_dataflow::Hashable;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{Delivered, Feedback, Local, Read, SourceHandle, TurnsShared};
use crate::durable::StoredConversation;
use crate::plan::AnswerMode;
use crate::record::{Item, Speaker, Turn, Utterance, Value};
use crate::wake::WakeSlot;

/// How often conversations that have gone idle are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// Between attempts to read what conversations knew.
const RETRY: Duration = Duration::from_secs(1);

/// A turn that is being answered.
struct InFlight {
    sequence: u64,
    read: Place,
    _capability: Capability<u64>,
}

/// Where a record is noted when it is applied.
struct Place {
    order: Option<(u64, u64)>,
    batch: u64,
}

impl Place {
    fn of(read: &Read) -> Self {
        Self { order: read.place.as_ref().map(|place| place.order()), batch: read.batch }
    }
}

#[derive(Default)]
struct Conversation {
    /// What it knew is yet to be read from the store; until then its records wait.
    unread: bool,
    history: VecDeque<Utterance>,
    /// Records that have come and wait for the running turn.
    queue: VecDeque<(Read, Capability<u64>)>,
    running: Option<InFlight>,
    /// Our answer to the last user turn, until the log brings one or the next turn needs it.
    reply: Option<Arc<str>>,
    /// The last record that is in the history.
    applied: Option<(u64, u64)>,
    last: Option<Instant>,
}

impl Conversation {
    /// Goes on with what it knew.
    fn remember(&mut self, known: StoredConversation, idle_s: u64) {
        self.applied = Some(known.applied);
        if known.used.saturating_add(idle_s) >= StoredConversation::now() {
            self.history = known.history.into();
            self.reply = known.reply;
        }
    }

    fn say(&mut self, speaker: Speaker, text: Arc<str>, limit: usize) {
        self.history.push_back(Utterance { speaker, text });
        while self.history.len() > limit {
            self.history.pop_front();
        }
    }

    /// What was answered is said before what the user says next.
    fn ask(&mut self, text: Arc<str>, limit: usize) {
        if let Some(reply) = self.reply.take() {
            self.say(Speaker::Agent, reply, limit);
        }
        self.say(Speaker::User, text, limit);
    }
}

/// The conversations of a source on one worker.
struct Conversations {
    source: Arc<SourceHandle>,
    shared: Arc<TurnsShared>,
    local: Rc<Local>,
    by_id: HashMap<Arc<str>, Conversation>,
    /// Those of which it could not be read what they knew, and when that is tried again.
    unread: Vec<Arc<str>>,
    again: Option<Instant>,
    sequence: u64,
}

impl Conversations {
    fn arrived(&mut self, read: Read, capability: Capability<u64>) -> Arc<str> {
        let id = read.record.conversation_id.clone();
        // Only of a source that can be gone on with does anything outlive the process.
        let fresh = || Conversation { unread: read.place.is_some(), ..Conversation::default() };
        self.by_id.entry(id.clone()).or_insert_with(fresh).queue.push_back((read, capability));
        id
    }

    /// Whether it is known what the conversation knew. If not, that is tried again: to go on
    /// without it would answer without the history, and then write over it.
    fn recall(&mut self, id: &Arc<str>) -> bool {
        let Some(conversation) = self.by_id.get_mut(id).filter(|conversation| conversation.unread) else { return true };
        match self.shared.durable.load(&self.source.id, id) {
            Ok(known) => {
                let idle_s = self.shared.limits.read().idle_s;
                known.into_iter().for_each(|known| conversation.remember(known, idle_s));
                conversation.unread = false;
                true
            }
            Err(error) => {
                // One word for all of them.
                if self.unread.is_empty() {
                    tracing::error!(source = %self.source.id, conversation = %id, %error,
                        "what a conversation knew cannot be read; its turns wait, and it is tried again");
                }
                self.unread.push(id.clone());
                false
            }
        }
    }

    /// Those that are due to be tried again.
    fn due(&mut self) -> Vec<Arc<str>> {
        match self.again.take_if(|at| Instant::now() >= *at) {
            Some(_) => std::mem::take(&mut self.unread),
            None => Vec::new(),
        }
    }

    /// Whether the operator is to be scheduled after [`RETRY`].
    fn is_to_try_again(&mut self) -> bool {
        if self.unread.is_empty() || self.again.is_some() {
            return false;
        }
        self.again = Some(Instant::now() + RETRY);
        true
    }

    /// A turn has been delivered.
    fn delivered(&mut self, delivered: Delivered) -> Option<Arc<str>> {
        let conversation = self.by_id.get_mut(&delivered.conversation_id)?;
        let running = conversation.running.take_if(|running| running.sequence == delivered.sequence)?;
        conversation.reply = Some(delivered.reply).filter(|reply| !reply.is_empty());
        self.applied(&delivered.conversation_id, &running.read);
        Some(delivered.conversation_id)
    }

    /// A record is in the conversation's state.
    fn applied(&mut self, id: &Arc<str>, place: &Place) {
        if let (Some(order), Some(conversation)) = (place.order, self.by_id.get_mut(id)) {
            conversation.applied = Some(order);
            if self.shared.durable.is_kept() {
                let knows = StoredConversation {
                    history: conversation.history.iter().cloned().collect(),
                    reply: conversation.reply.clone(),
                    applied: order,
                    used: StoredConversation::now(),
                };
                self.shared.durable.put(&self.source.id, id, knows);
            }
        }
        self.source.ledger.tick(place.batch);
    }

    /// A user's turn that is not to be answered (any more) is not in flight either.
    fn let_go(&self) {
        self.shared.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.shared.wake_sources();
    }

    /// Applies what waits, until a turn runs.
    fn advance(&mut self, id: &Arc<str>) {
        if !self.recall(id) {
            return;
        }
        let limit = self.shared.limits.read().max_utterances;
        loop {
            let Some(conversation) = self.by_id.get_mut(id) else { return };
            conversation.last = Some(Instant::now());
            if conversation.running.is_some() {
                return;
            }
            let Some((read, capability)) = conversation.queue.pop_front() else { return };
            let place = Place::of(&read);
            let is_user = read.record.speaker == Speaker::User;
            if place.order.is_some() && place.order <= conversation.applied {
                self.source.ledger.tick(place.batch);
                if is_user {
                    self.let_go();
                }
                continue;
            }
            if !is_user {
                conversation.reply = None;
                conversation.say(Speaker::Agent, read.record.text, limit);
                self.applied(id, &place);
                continue;
            }
            let key = key(&self.source.id, &read);
            let published = self.shared.epochs.pin();
            let generation = self.shared.generations.read().get(&published.plan).cloned();
            let by = read.place.as_ref().and(generation);
            let answered = by.as_ref().and_then(|by| by.answered(&self.source.id, &key));
            if let Some(reply) = answered {
                self.shared.epochs.unpin(published.epoch);
                if let Some(by) = by.filter(|by| by.mode != AnswerMode::Once) {
                    let mut history: Vec<Utterance> = conversation.history.iter().cloned().collect();
                    history.extend(conversation.reply.clone().map(|text| Utterance { speaker: Speaker::Agent, text }));
                    let record = read.record.clone();
                    let turn = Turn {
                        conversation_id: record.conversation_id,
                        turn: record.turn,
                        text: record.text,
                        history: read.history.clone().unwrap_or(history),
                        collection: record.collection,
                        timestamp: record.timestamp,
                        extra: record.extra,
                        position: read.position.as_str().into(),
                        epoch: 0,
                        entered_us: read.entered_us,
                        sequence: 0,
                        source: self.source.id.clone(),
                        standing: None,
                        key: key.clone(),
                    };
                    self.local.standing.adopt(turn, by.records(&self.source.id, &key), &self.shared);
                }
                conversation.ask(read.record.text, limit);
                conversation.reply = Some(reply).filter(|reply| !reply.is_empty());
                self.shared.recovered.fetch_add(1, Ordering::AcqRel);
                self.applied(id, &place);
                self.let_go();
                continue;
            }
            let Some(inlet) = self.local.inlet(published.plan, &self.source.id) else {
                // A plan without this source does not come to serve while the source has turns.
                tracing::error!(source = %self.source.id, "no plan takes this source's turns");
                self.shared.epochs.unpin(published.epoch);
                conversation.queue.push_front((read, capability));
                return;
            };
            let mut history: Vec<Utterance> = conversation.history.iter().cloned().collect();
            history.extend(conversation.reply.clone().map(|text| Utterance { speaker: Speaker::Agent, text }));
            // No more of it than the conversation keeps.
            history.drain(..history.len().saturating_sub(limit));
            conversation.ask(read.record.text.clone(), limit);
            self.sequence += 1;
            let sequence = self.sequence;
            conversation.running = Some(InFlight { sequence, read: place, _capability: capability });
            let Read { record, history: given, entered_us, position, .. } = read;
            let turn = Arc::new(Turn {
                conversation_id: record.conversation_id,
                turn: record.turn,
                text: record.text,
                history: given.unwrap_or(history),
                collection: record.collection,
                timestamp: record.timestamp,
                extra: record.extra,
                position: position.into(),
                epoch: published.epoch,
                entered_us,
                sequence,
                source: self.source.id.clone(),
                standing: None,
                key,
            });
            let item = Item { turn, value: Value::Turn, notes: Arc::default() };
            self.shared.observe(&self.source.id, &item);
            inlet.give(item);
            return;
        }
    }

    fn sweep(&mut self) {
        let idle = Duration::from_secs(self.shared.limits.read().idle_s);
        self.by_id.retain(|_, conversation| {
            conversation.running.is_some()
                || !conversation.queue.is_empty()
                || conversation.last.is_none_or(|last| last.elapsed() < idle)
        });
    }
}

/// The same whenever the record is read: of what it says and of where it stands.
fn key(source: &str, read: &Read) -> Arc<str> {
    let mut hasher = blake3::Hasher::new();
    let end = read.place.as_ref().map_or_else(|| read.position.clone(), |place| place.end.to_string());
    for part in [source, &read.record.conversation_id, &read.record.turn.to_string(), &read.record.text, &end] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].into()
}

/// Gives nothing: its frontier passes a batch when all of it is applied.
pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    source: &Arc<SourceHandle>,
    read: StreamVec<'s, u64, Read>,
    feedback: Feedback,
    shared: Arc<TurnsShared>,
    local: Rc<Local>,
) -> StreamVec<'s, u64, ()> {
    let mut builder = OperatorBuilder::new(format!("Conversations {:?}", source.id), scope);
    let mut input = builder.new_input(read, Exchange::new(|read: &Read| read.record.conversation_id.hashed()));
    let (_output, stream) = builder.new_output::<Vec<()>>();
    let address = builder.operator_info().address;
    *feedback.activator.borrow_mut() = Some(scope.activator_for(address.clone()));
    let activator = scope.activator_for(address.clone());
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(address.to_vec()));
    source.conversation_wakes.lock().push(wake);
    // Sources are numbered apart, so that sequences are unique on a worker.
    let sequence = source.number << 40;
    let mut conversations = Conversations {
        source: source.clone(),
        shared: shared.clone(),
        local,
        by_id: HashMap::new(),
        unread: Vec::new(),
        again: None,
        sequence,
    };
    builder.build(move |_| {
        let mut touched: VecDeque<Arc<str>> = VecDeque::new();
        let mut swept = Instant::now();
        move |_| {
            input.for_each_stamp(|time, batches| {
                let Some(capability) = time.retain_least(0) else { return };
                for read in batches.flat_map(|batch| batch.drain(..)) {
                    touched.push_back(conversations.arrived(read, capability.clone()));
                }
            });
            loop {
                let Some(delivered) = feedback.queue.borrow_mut().pop_front() else { break };
                touched.extend(conversations.delivered(delivered));
            }
            if !shared.ready.load(Ordering::Acquire) {
                return;
            }
            touched.extend(conversations.due());
            while let Some(id) = touched.pop_front() {
                conversations.advance(&id);
            }
            if conversations.is_to_try_again() {
                activator.activate_after(RETRY);
            }
            if swept.elapsed() > SWEEP {
                swept = Instant::now();
                conversations.sweep();
            }
        }
    });
    stream
}

#[cfg(test)]
mod tests;
