//! Conversation state: the order within a conversation, and the history that a turn reads.
//!
//! A conversation's turns run in sequence, and many conversations run concurrently; slots limit
//! their number fairly (see `slots.rs`). If the log has the agent's own turns, they become the
//! history; otherwise our answers do. This is decided when the next user turn arrives, so the
//! outcome does not depend on timing.
//!
//! A record is *applied* when the conversation's state includes it: an agent's record when it is its
//! turn, a user's record when its answer is delivered. Applied records outlive the process (see
//! [`crate::durable`]), and a restart skips them. While the stored state of a conversation cannot be
//! read, its records wait.

mod held;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use differential_dataflow::Hashable;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use self::held::Held;
use super::slots::Waiter;
use super::{
    Delivered, Earlier, Feedback, Flow, Generation, Read, SourceHandle, TurnContext, TurnsShared, WorkerState,
};
use crate::connector::SourceOffset;
use crate::plan::AnswerMode;
use crate::record::{AnswerRecord, Item, Speaker, Turn, Utterance, Value};
use crate::sinks::{Acknowledged, SinkHandle};
use crate::wake::WakeSlot;

/// The pause between attempts to load conversations.
const RETRY: Duration = Duration::from_secs(1);

/// A turn that is being answered.
struct InFlight {
    sequence: u64,
    read: RecordOffset,
    _capability: Capability<u64>,
}

/// A turn that an earlier process answered, while sinks that lack the answer get a copy.
struct TakenOver {
    id: Arc<str>,
    sequence: u64,
    /// In a live pipeline: the turn, and the records that the sinks have then.
    stands: Option<(Turn, BTreeMap<Arc<str>, AnswerRecord>)>,
    /// The sinks that have not acknowledged their copy. A reload may replace a sink meanwhile; it
    /// continues until then.
    copies: Vec<(Arc<SinkHandle>, Arc<Acknowledged>)>,
}

/// The offset and batch to mark when a record is applied.
struct RecordOffset {
    offset: Option<SourceOffset>,
    batch: u64,
}

impl RecordOffset {
    fn of(read: &Read) -> Self {
        Self { offset: read.place.clone(), batch: read.batch }
    }
}

/// The conversations of a source on one worker.
struct Conversations {
    source: Arc<SourceHandle>,
    shared: Arc<TurnsShared>,
    local: Rc<WorkerState>,
    held: Held,
    /// Waits for slots.
    waiter: Arc<Waiter>,
    /// Conversations whose next turn waits for a slot, in the order of their requests.
    waiting: VecDeque<Arc<str>>,
    /// Conversations whose next turn waits for sinks that are behind, in the order of arrival.
    held_back: VecDeque<Arc<str>>,
    /// Turns whose earlier answers are copied.
    taking_over: Vec<TakenOver>,
    wake: WakeSlot,
    /// Conversations that could not be loaded; `again` is the time of the next attempt.
    unread: Vec<Arc<str>>,
    again: Option<Instant>,
    sequence: u64,
    workers: usize,
}

impl Conversations {
    fn arrived(&mut self, read: Read, capability: Capability<u64>) -> Arc<str> {
        let id = read.record.conversation_id.clone();
        // State outlives the process only for sources that can resume.
        let is_stored = read.place.is_some() && self.shared.durable.is_kept();
        self.held.enter(&id, is_stored).queue.push_back((read, capability));
        id
    }

    /// Removes a record from the backlog.
    fn left(&self, read: &Read) {
        let limits = self.shared.limits.read();
        if self.source.backlog.remove(read.bytes, &limits) {
            self.source.wake.wake();
        }
    }

    /// Loads the conversation's stored state if necessary; returns whether it is loaded. A failure is
    /// retried: continuing without the state would answer without history and then overwrite it.
    fn recall(&mut self, id: &Arc<str>) -> bool {
        let Some(conversation) = self.held.get(id).filter(|conversation| conversation.unread) else { return true };
        match self.shared.durable.load(&self.source.id, id) {
            Ok(known) => {
                let idle_s = self.shared.limits.read().idle_s;
                known.into_iter().for_each(|known| conversation.remember(known, idle_s));
                conversation.unread = false;
                true
            }
            Err(error) => {
                // Log one message for all conversations.
                if self.unread.is_empty() {
                    tracing::error!(source = %self.source.id, conversation = %id, %error,
                        "cannot load the conversation; its turns wait, and loading is retried");
                }
                self.unread.push(id.clone());
                false
            }
        }
    }

    /// The conversations that are due for another attempt to load.
    fn due(&mut self) -> Vec<Arc<str>> {
        match self.again.take_if(|at| Instant::now() >= *at) {
            Some(_) => std::mem::take(&mut self.unread),
            None => Vec::new(),
        }
    }

    /// Whether to schedule the operator after [`RETRY`].
    fn is_to_try_again(&mut self) -> bool {
        if self.unread.is_empty() || self.again.is_some() {
            return false;
        }
        self.again = Some(Instant::now() + RETRY);
        true
    }

    /// Handles a delivered turn; returns its conversation.
    fn delivered(&mut self, delivered: Delivered) -> Option<Arc<str>> {
        let conversation = self.held.get(&delivered.conversation_id)?;
        let running = conversation.running.take_if(|running| running.sequence == delivered.sequence)?;
        conversation.reply = Some(delivered.reply).filter(|reply| !reply.is_empty());
        self.applied(&delivered.conversation_id, &running.read);
        Some(delivered.conversation_id)
    }

    /// Marks a record as applied.
    fn applied(&mut self, id: &Arc<str>, place: &RecordOffset) {
        if let (Some(offset), Some(conversation)) = (&place.offset, self.held.get(id)) {
            conversation.applied.set(offset);
            if self.shared.durable.is_kept() {
                self.shared.durable.put(&self.source.id, id, conversation.change());
            }
        }
        self.source.tracker.tick(place.batch);
    }

    /// Stops counting a user's turn as outstanding if it will not be answered (again).
    fn uncount(&self, read: &Read) {
        if read.record.speaker == Speaker::User {
            self.shared.outstanding.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Applies waiting records until a turn runs or waits. `has_place`: the conversation has been
    /// granted a slot.
    fn advance(&mut self, id: &Arc<str>, mut has_place: bool) {
        if has_place && let Some(conversation) = self.held.get(id) {
            conversation.waits = false;
        }
        self.apply(id, &mut has_place);
        if has_place {
            let most = self.shared.limits.read().max_in_flight;
            self.shared.slots.give_back(most);
        }
        self.held.touch(id);
    }

    fn apply(&mut self, id: &Arc<str>, has_place: &mut bool) {
        if !self.recall(id) {
            return;
        }
        let (limit, most) = {
            let limits = self.shared.limits.read();
            (limits.max_utterances, limits.max_in_flight)
        };
        loop {
            let Some(conversation) = self.held.get(id) else { return };
            if conversation.running.is_some() || conversation.waits {
                return;
            }
            let Some((read, capability)) = conversation.queue.pop_front() else { return };
            let place = RecordOffset::of(&read);
            if place.offset.as_ref().is_some_and(|offset| conversation.applied.has(offset)) {
                self.source.tracker.tick(place.batch);
                self.uncount(&read);
                self.left(&read);
                continue;
            }
            if read.record.speaker != Speaker::User {
                conversation.reply = None;
                conversation.say(Speaker::Agent, read.record.text.clone(), limit);
                self.applied(id, &place);
                self.left(&read);
                continue;
            }
            let key = key(&self.source.id, &read);
            let earlier = self.answered(&read, &key);
            let lacking = earlier.iter().flat_map(|(_, earlier)| &earlier.copies);
            let is_held_back = match &earlier {
                Some(_) => lacking.map(|(sink, _)| sink).any(|sink| sink.is_behind(most)),
                None => self.shared.is_behind(&self.source.id),
            };
            if let Some((by, earlier)) = earlier.filter(|_| !is_held_back) {
                if self.take_over(id, read, capability, key, &by, earlier) {
                    continue;
                }
                return;
            }
            if is_held_back || (!*has_place && !self.shared.slots.take_or_wait(most, &self.waiter)) {
                let queue = if is_held_back { &mut self.held_back } else { &mut self.waiting };
                queue.push_back(id.clone());
                if let Some(conversation) = self.held.get(id) {
                    conversation.waits = true;
                    conversation.queue.push_front((read, capability));
                }
                return;
            }
            *has_place = !self.start(id, read, capability, key, limit);
            return;
        }
    }

    /// The answer of an earlier process to the turn, if every sink has it or can get it.
    fn answered(&self, read: &Read, key: &Arc<str>) -> Option<(Arc<Generation>, Earlier)> {
        read.place.as_ref()?;
        let plan = self.shared.epochs.current().plan;
        let by = self.shared.generations.read().get(&plan).cloned()?;
        let earlier = by.answered(&self.source.id, key)?;
        Some((by, earlier))
    }

    /// Applies the answer of an earlier process to the conversation, and copies it to the sinks that
    /// lack it. Returns whether the turn is done; else it runs until these sinks have it.
    fn take_over(
        &mut self,
        id: &Arc<str>,
        read: Read,
        capability: Capability<u64>,
        key: Arc<str>,
        by: &Generation,
        earlier: Earlier,
    ) -> bool {
        let Earlier { text, copies } = earlier;
        let limit = self.shared.limits.read().max_utterances;
        self.sequence += 1;
        let sequence = self.sequence;
        let Some(conversation) = self.held.get(id) else { return false };
        let history = read.history.clone().unwrap_or_else(|| conversation.seen(usize::MAX));
        conversation.ask(read.record.text.clone(), limit);
        conversation.reply = Some(text).filter(|reply| !reply.is_empty());
        let running = InFlight { sequence, read: RecordOffset::of(&read), _capability: capability };
        conversation.running = Some(running);
        self.left(&read);
        let stands = (by.mode != AnswerMode::Once).then(|| {
            let mut records = by.records(&self.source.id, &key);
            records.extend(copies.iter().map(|(sink, record)| (sink.id().clone(), record.clone())));
            (self.turn(&read, history, key, 0, 0), records)
        });
        let copies = copies.into_iter().map(|(sink, record)| {
            let wake = self.wake.clone();
            let acknowledged = Acknowledged::new(move || wake.wake());
            sink.deliver(vec![record], &acknowledged);
            (sink, acknowledged)
        });
        let taken = TakenOver { id: id.clone(), sequence, stands, copies: copies.collect() };
        if taken.copies.is_empty() {
            self.taken_over(taken);
            return true;
        }
        self.taking_over.push(taken);
        false
    }

    /// Applies a turn whose earlier answer every sink has.
    fn taken_over(&mut self, taken: TakenOver) {
        let TakenOver { id, sequence, stands, .. } = taken;
        let running = self.held.get(&id).and_then(|of| of.running.take_if(|running| running.sequence == sequence));
        let Some(running) = running else { return };
        self.shared.recovered.fetch_add(1, Ordering::AcqRel);
        if let Some((turn, records)) = stands {
            self.local.standing.adopt(turn, records, &self.shared);
        }
        self.applied(&id, &running.read);
        self.shared.outstanding.fetch_sub(1, Ordering::AcqRel);
    }

    /// Applies the turns whose copies are acknowledged; returns their conversations.
    fn copied(&mut self) -> Vec<Arc<str>> {
        let mut copied = Vec::new();
        for taken in &mut self.taking_over {
            taken.copies.retain(|(_, acknowledged)| acknowledged.take() == 0);
        }
        for taken in self.taking_over.extract_if(.., |taken| taken.copies.is_empty()).collect::<Vec<_>>() {
            copied.push(taken.id.clone());
            self.taken_over(taken);
        }
        copied
    }

    fn turn(&self, read: &Read, history: Vec<Utterance>, key: Arc<str>, epoch: u64, sequence: u64) -> Turn {
        let record = read.record.clone();
        Turn {
            conversation_id: record.conversation_id,
            turn: record.turn,
            text: record.text,
            history,
            collection: record.collection,
            timestamp: record.timestamp,
            extra: record.extra,
            position: read.position.as_str().into(),
            epoch,
            entered_us: read.entered_us,
            sequence,
            source: self.source.id.clone(),
            standing: None,
            key,
        }
    }

    /// Starts a turn; returns whether it has started.
    fn start(&mut self, id: &Arc<str>, read: Read, capability: Capability<u64>, key: Arc<str>, limit: usize) -> bool {
        let snapshot = self.shared.epochs.pin();
        let Some(ingress) = self.local.ingress(snapshot.plan, &self.source.id) else {
            // Unreachable: a plan without this source does not serve while the source has turns.
            tracing::error!(source = %self.source.id, "the current plan does not have this source");
            if let Some(conversation) = self.held.get(id) {
                conversation.queue.push_front((read, capability));
            }
            return false;
        };
        self.sequence += 1;
        let sequence = self.sequence;
        let Some(conversation) = self.held.get(id) else { return false };
        let history = read.history.clone().unwrap_or_else(|| conversation.seen(limit));
        conversation.ask(read.record.text.clone(), limit);
        conversation.running = Some(InFlight { sequence, read: RecordOffset::of(&read), _capability: capability });
        self.left(&read);
        let turn = Arc::new(self.turn(&read, history, key, snapshot.epoch, sequence));
        let item = Item { turn, value: Value::Turn, warnings: Arc::default() };
        let flow = Flow { item, context: TurnContext::new(snapshot, None) };
        self.shared.observe(&self.source.id, &flow, None);
        ingress.give(flow);
        true
    }

    /// Uses the granted slots for the conversations that have waited longest.
    fn granted(&mut self) {
        for _ in 0..self.waiter.granted() {
            match self.waiting.pop_front() {
                Some(id) => self.advance(&id, true),
                None => {
                    let most = self.shared.limits.read().max_in_flight;
                    self.shared.slots.give_back(most);
                }
            }
        }
    }

    /// Resumes the conversations that wait for sinks, if the sinks have caught up.
    fn go_on(&mut self) {
        if self.held_back.is_empty() || self.shared.is_behind(&self.source.id) {
            return;
        }
        for id in std::mem::take(&mut self.held_back) {
            if let Some(conversation) = self.held.get(&id) {
                conversation.waits = false;
            }
            self.advance(&id, false);
        }
    }

    /// Drops waiting records that a restart reads again, because the run is stopping.
    fn drop_waiting(&mut self) {
        if !self.shared.durable.is_kept() {
            return;
        }
        let mut dropped = Vec::new();
        for conversation in self.held.all() {
            let (stay, go) =
                std::mem::take(&mut conversation.queue).into_iter().partition(|(read, _)| read.place.is_none());
            conversation.queue = stay;
            let go: VecDeque<(Read, Capability<u64>)> = go;
            dropped.extend(go.into_iter().map(|(read, _)| read));
        }
        for read in &dropped {
            self.uncount(read);
            self.left(read);
        }
    }

    /// Evicts conversations beyond the bounds, and those that were idle for too long.
    fn bound(&mut self) {
        let limits = self.shared.limits.read();
        let share = |bound: usize| (bound / self.workers).max(1);
        let bytes = usize::try_from(limits.max_held_mb << 20).unwrap_or(usize::MAX);
        self.held.bound(share(limits.max_held), share(bytes), Duration::from_secs(limits.idle_s));
    }
}

/// The key of a turn: a hash of its content and its place, the same whenever it is read.
fn key(source: &str, read: &Read) -> Arc<str> {
    let mut hasher = blake3::Hasher::new();
    let end = read.place.as_ref().map_or_else(|| read.position.clone(), |place| place.end.to_string());
    let turn = read.record.turn.to_string();
    let partition = read.place.as_ref().map(|place| &*place.partition).filter(|partition| !partition.is_empty());
    for part in [source, &read.record.conversation_id, &turn, &read.record.text, &end].into_iter().chain(partition) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex()[..32].into()
}

/// The output has no data: its frontier passes a batch when all its records are applied.
pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    source: &Arc<SourceHandle>,
    read: StreamVec<'s, u64, Read>,
    feedback: Feedback,
    shared: Arc<TurnsShared>,
    local: Rc<WorkerState>,
) -> StreamVec<'s, u64, ()> {
    let mut builder = OperatorBuilder::new(format!("Conversations {:?}", source.id), scope);
    let mut input = builder.new_input(read, Exchange::new(|read: &Read| read.record.conversation_id.hashed()));
    let (_output, stream) = builder.new_output::<Vec<()>>();
    let address = builder.operator_info().address;
    *feedback.activator.borrow_mut() = Some(scope.activator_for(address.clone()));
    let activator = scope.activator_for(address.clone());
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(address.to_vec()));
    source.conversation_wakes.lock().push(wake.clone());
    // Each source has its own range, so that sequences are unique on a worker.
    let sequence = source.number << 40;
    let mut conversations = Conversations {
        source: source.clone(),
        shared: shared.clone(),
        local,
        held: Held::default(),
        waiter: Waiter::new({
            let wake = wake.clone();
            move || wake.wake()
        }),
        taking_over: Vec::new(),
        wake,
        waiting: VecDeque::new(),
        held_back: VecDeque::new(),
        unread: Vec::new(),
        again: None,
        sequence,
        workers: scope.peers(),
    };
    builder.build(move |_| {
        let mut touched: VecDeque<Arc<str>> = VecDeque::new();
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
            touched.extend(conversations.copied());
            if shared.stopping.load(Ordering::Acquire) {
                conversations.drop_waiting();
            }
            if !shared.ready.load(Ordering::Acquire) {
                return;
            }
            conversations.granted();
            conversations.go_on();
            touched.extend(conversations.due());
            while let Some(id) = touched.pop_front() {
                conversations.advance(&id, false);
            }
            if conversations.is_to_try_again() {
                activator.activate_after(RETRY);
            }
            conversations.bound();
        }
    });
    stream
}
