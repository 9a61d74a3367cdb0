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
//!
//! A record that comes a second time is applied without an answer, and one with another text for a turn is a new version
//! of it (`again.rs`).

mod again;
mod held;
mod replies;
mod taken_over;
#[cfg(test)]
mod tests;
mod withdrawn;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use differential_dataflow::Hashable;
use parking_lot::Mutex;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use self::held::Held;
use self::replies::Part;
use self::taken_over::TakenOver;
use super::slots::Waiter;
use super::{Delivered, Feedback, Flow, Read, SourceHandle, TurnsShared, WorkerState};
use crate::connector::SourceOffset;
use crate::durable::Loaded;
use crate::principal::Renewed;
use crate::record::{IN_ROW, REMOVED, REPLY, Speaker, Turn, Utterance};
use crate::wake::WakeSlot;

/// The pause between attempts to load conversations.
const RETRY: Duration = Duration::from_secs(1);

/// The pause before a record is looked at again whose turn is being answered again.
const MOMENT: Duration = Duration::from_millis(20);

/// A turn that is being answered.
struct InFlight {
    sequence: u64,
    read: RecordOffset,
    /// The turn has the agent's own reply, which is in the history.
    has_reply: bool,
    _capability: Capability<u64>,
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

/// Conversations that another process has sent, as they are loaded.
type Came = Arc<Mutex<Vec<(Arc<str>, Loaded)>>>;

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
    /// Conversations that another process has sent.
    came: Came,
    /// Conversations that could not be loaded; `again` is the time of the next attempt.
    unread: Vec<Arc<str>>,
    again: Option<Instant>,
    sequence: u64,
    workers: usize,
    /// What came again was logged: equal records, new versions of turns, and what takes back something unknown.
    told: (bool, bool, bool),
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
        let restarts = read.record.speaker == Speaker::User && read.place.is_some();
        if self.source.backlog.remove(read.bytes, restarts, read.entered_us, &limits) {
            self.source.wake.wake();
        }
    }

    /// Loads the conversation's stored state if necessary; returns whether it is loaded. If another process has it, it
    /// comes later.
    fn recall(&mut self, id: &Arc<str>) -> bool {
        let Some(conversation) = self.held.get(id).filter(|conversation| conversation.unread) else { return true };
        if conversation.is_coming {
            return false;
        }
        let (came, wake, of) = (self.came.clone(), self.wake.clone(), id.clone());
        let later = move |known| {
            came.lock().push((of, known));
            wake.wake();
        };
        let known = self.shared.durable.load(&self.source.id, id, later);
        conversation.is_coming = known.is_none();
        known.is_some_and(|known| self.recalled(id, known))
    }

    /// The conversations that have come from another process.
    fn came(&mut self) -> Vec<Arc<str>> {
        let came = std::mem::take(&mut *self.came.lock());
        came.into_iter().filter_map(|(id, known)| self.recalled(&id, known).then_some(id)).collect()
    }

    /// Takes the stored state of a conversation; returns whether it could be loaded. A failure is retried: continuing
    /// without the state would answer without history and then overwrite it.
    fn recalled(&mut self, id: &Arc<str>, known: Loaded) -> bool {
        let Some(conversation) = self.held.get(id) else { return false };
        conversation.is_coming = false;
        match known {
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
        conversation.reply = Some(delivered.reply).filter(|reply| !reply.is_empty() && !running.has_reply);
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
            if self.is_to_wait(id, &read) {
                self.put_off(id, read, capability);
                return;
            }
            if self.takes_back(id, &read, &capability) {
                continue;
            }
            if self.came_again(id, &read) {
                self.applied(id, &place);
                self.uncount(&read);
                self.left(&read);
                continue;
            }
            let question = match self.part(id, &read) {
                Part::Said => None,
                Part::Asked => Some(None),
                Part::Replied(question) => Some(Some(question)),
            };
            let Some(conversation) = self.held.get(id) else { return };
            let Some(question) = question else {
                conversation.hear(&read, limit);
                self.applied(id, &place);
                self.uncount(&read);
                self.left(&read);
                continue;
            };
            let key = key(&self.source.id, &read);
            let earlier = self.answered(&read, &key);
            let lacking = earlier.iter().flat_map(|(_, earlier)| &earlier.copies);
            let is_held_back = match &earlier {
                Some(_) => lacking.map(|(sink, _)| sink).any(|sink| sink.is_behind(most)),
                None => self.shared.is_behind(&self.source.id),
            };
            if let Some((by, earlier)) = earlier.filter(|_| !is_held_back) {
                if self.take_over(id, (read, question), capability, key, &by, earlier) {
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
            *has_place = !self.start(id, (read, question), capability, key, limit);
            return;
        }
    }

    /// Puts a record off for a moment.
    fn put_off(&mut self, id: &Arc<str>, read: Read, capability: Capability<u64>) {
        let Some(conversation) = self.held.get(id) else { return };
        conversation.waits = true;
        conversation.queue.push_front((read, capability));
        self.held_back.push_back(id.clone());
        let wake = self.wake.clone();
        self.shared.handle.spawn(async move {
            tokio::time::sleep(MOMENT).await;
            wake.wake();
        });
    }

    /// The turn of a record. `question`: what the record replies to.
    fn turn(
        &self,
        (read, question): (&Read, Option<Arc<str>>),
        history: Vec<Utterance>,
        key: Arc<str>,
        epoch: u64,
        sequence: u64,
    ) -> Turn {
        let mut record = read.record.clone();
        if withdrawn::is_version(read) {
            record.extra.remove(REMOVED);
        }
        record.extra.remove(IN_ROW);
        if let Some(question) = question {
            let reply = std::mem::replace(&mut record.text, question);
            record.extra.insert(REPLY.to_owned(), (*reply).into());
            // A user's record is counted when it is read.
            self.shared.outstanding.fetch_add(1, Ordering::AcqRel);
        }
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
            filter: None,
            sequence,
            source: self.source.id.clone(),
            standing: None,
            computed_at: None,
            similar_to: None,
            tokens: Default::default(),
            key,
        }
    }

    /// Starts a turn; returns whether it has started.
    fn start(
        &mut self,
        id: &Arc<str>,
        (mut read, question): (Read, Option<Arc<str>>),
        capability: Capability<u64>,
        key: Arc<str>,
        limit: usize,
    ) -> bool {
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
        // The turn may have waited in its queue for long.
        if let Renewed::Changed { fields, .. } = self.shared.renewed(&self.source.id, &read.record.extra) {
            read.record.extra = fields;
        }
        let (history, has_reply) = conversation.begin(&read, question.as_ref(), limit, limit);
        conversation.has_key(&key);
        let place = RecordOffset::of(&read);
        conversation.running = Some(InFlight { sequence, read: place, has_reply, _capability: capability });
        self.left(&read);
        let turn = self.turn((&read, question), history, key, snapshot.epoch, sequence);
        let flow = Flow::begin(turn, snapshot, (None, None), &self.shared);
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

impl Drop for Conversations {
    fn drop(&mut self) {
        self.shared.slots.leave(self.shared.limits.read().max_in_flight, &self.waiter);
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
    let shape = shared.shape;
    let by_conversation = move |read: &Read| shape.own_worker(read.record.conversation_id.hashed());
    let mut input = builder.new_input(read, Exchange::new(by_conversation));
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
        came: Arc::default(),
        unread: Vec::new(),
        again: None,
        sequence,
        workers: shape.workers,
        told: (false, false, false),
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
            touched.extend(conversations.came());
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
