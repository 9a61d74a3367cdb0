//! Standing turns: turns of a live pipeline, which are answered again when an epoch changes what
//! they retrieve.
//!
//! A standing turn runs through the pipeline again at each new epoch. Model outputs are cached, so a
//! turn with the same passages costs no model call. A sink gets nothing if the answer is unchanged;
//! otherwise it gets the retraction of the old answer, and the new answer as the next revision. New
//! turns have priority.
//!
//! A turn of a queue is answered again for its principal as it is now (`crate::principal`). If the principal has lost
//! something, the sinks get a revision even if the new answer says the same, because the old one was made with what the
//! principal has no more. While nothing is known of the principal, its turns wait.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use differential_dataflow::Hashable;
use serde_json::{Map, Value as Json};

use super::watched::{Reads, Slot, Watched};
use super::{Flow, TurnContext, TurnsShared, WorkerState};
use crate::durable::{StoredConversation, StoredTurn};
use crate::plan::AnswerMode;
use crate::principal::{Renewed, principal_of, still_has};
use crate::record::{AnswerRecord, Item, Turn, Value};

/// The range of sequences for turns that are answered again; sources have the ranges from 0.
const SEQUENCES: u64 = 0xff_ffff << 40;
/// The first pause before a turn that has failed is tried again, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The maximum number of turns to pass over in a round because their sinks are behind.
const PASSED_OVER: usize = 1000;

struct Entry {
    /// The turn and its records; `None`: they are in the store only.
    stored: Option<StoredTurn>,
    source: Arc<str>,
    /// Time of its first answer, in seconds since the Unix epoch.
    since: u64,
    /// The turn's fields, if its principal may change.
    fields: Option<Box<Map<String, Json>>>,
    in_flight: bool,
    waits: bool,
    /// Nothing is known of its principal: it waits until that is seen again.
    is_unknown: bool,
    /// What its answer depends on; `None`: nothing is known, and every change may reach it.
    slot: Option<Slot>,
    /// How often it has failed, one time after the other, since it was answered.
    failures: u32,
}

impl Entry {
    fn new(stored: StoredTurn, waits: bool, shared: &TurnsShared) -> Self {
        let (turn, since) = (&stored.turn, stored.since);
        let source = turn.source.clone();
        let has_principal = shared.principals.is_some() && principal_of(&turn.extra).is_some();
        let fields = has_principal.then(|| Box::new(turn.extra.clone()));
        let stored = (!shared.durable.keeps_standing()).then_some(stored);
        Self { stored, source, since, fields, in_flight: false, waits, is_unknown: false, slot: None, failures: 0 }
    }

    /// The turn and its records. `None`: it is not stored, or cannot be read.
    fn stored(&self, key: &Arc<str>, shared: &TurnsShared) -> Option<StoredTurn> {
        let stored = || {
            shared.durable.standing_turn(key).unwrap_or_else(|error| {
                tracing::error!(turn = %key, %error, "cannot read a standing turn; it is tried again with the next change");
                None
            })
        };
        self.stored.clone().or_else(stored)
    }

    /// Whether the principal is another one than when the turn was last answered.
    fn has_other_principal(&self, shared: &TurnsShared) -> bool {
        let renewed = self.fields.as_ref().map_or(Renewed::Same, |fields| shared.renewed(&self.source, fields));
        match renewed {
            Renewed::Same => self.is_unknown,
            Renewed::Changed { .. } => true,
            Renewed::Unknown => false,
        }
    }
}

/// The number of standing turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandingCount {
    /// All of them.
    pub turns: usize,
    /// Those that wait to be answered again, or are being answered.
    pub behind: usize,
    /// Since when the first of these has waited.
    pub since: Option<Instant>,
}

impl StandingCount {
    /// Those of several workers.
    pub fn of<'a>(workers: impl Iterator<Item = &'a Self>) -> Self {
        workers.fold(Self::default(), |all, one| Self {
            turns: all.turns + one.turns,
            behind: all.behind + one.behind,
            since: all.since.into_iter().chain(one.since).min(),
        })
    }
}

/// The standing turns of one worker.
#[derive(Default)]
pub(super) struct Standing(RefCell<State>);

/// The records that sinks have of a turn; `None`: it gets revisions, but has no record yet.
#[derive(Default)]
struct Noted {
    records: BTreeMap<Arc<str>, Option<AnswerRecord>>,
    /// One of them differs from the turn's answer.
    is_stale: bool,
}

#[derive(Default)]
struct State {
    by_key: HashMap<Arc<str>, Entry>,
    /// In the order of their first answers.
    oldest: VecDeque<Arc<str>>,
    /// Turns to answer again.
    waiting: VecDeque<Arc<str>>,
    /// The records that sinks got for turns in flight, by sequence.
    delivered: HashMap<u64, Noted>,
    /// The epoch for which all turns were last queued.
    seen: u64,
    /// It is logged that turns wait for their principals.
    told: bool,
    /// The version of the principals for which turns were last queued.
    principals: u64,
    sequence: u64,
    /// Number of workers; each has a part of the turns.
    peers: usize,
    /// What the turns' answers depend on.
    watched: Watched,
    /// The number of the worker.
    worker: usize,
    /// Number of turns that are being answered again.
    running: usize,
    /// Since when turns wait.
    since: Option<Instant>,
    /// The numbers that were last told.
    counted: (usize, usize),
    /// Turns that have failed, and when they are tried again.
    failed: BTreeMap<(Instant, u64), Arc<str>>,
}

impl Standing {
    /// Notes the record that a sink has of a turn. `None`: it gets revisions, but has no record yet.
    /// `is_stale`: the record differs from the answer, and the turn is answered again.
    pub fn note(&self, sequence: u64, sink: &Arc<str>, record: Option<AnswerRecord>, is_stale: bool) {
        let mut state = self.0.borrow_mut();
        let noted = state.delivered.entry(sequence).or_default();
        noted.records.insert(sink.clone(), record);
        noted.is_stale |= is_stale;
    }

    /// Called when a turn has reached all its sinks; whether it has failed, and whether it is odd: it has failed, or has
    /// warnings, and may do better.
    pub fn settle(
        &self,
        turn: &Arc<Turn>,
        context: &TurnContext,
        (has_failed, is_odd): (bool, bool),
        mode: &AnswerMode,
        shared: &TurnsShared,
    ) {
        let reads = context.reads.as_ref().filter(|_| !is_odd).map(|reads| std::mem::take(&mut *reads.lock()));
        self.put(turn, (context.snapshot.plan, reads), mode, shared);
        let mut state = self.0.borrow_mut();
        if has_failed && turn.standing.is_some() {
            state.try_again_later(&turn.key, shared);
        } else if let Some(entry) = state.by_key.get_mut(&turn.key) {
            entry.failures = 0;
        }
        drop(state);
        if turn.standing.is_some() {
            shared.durable.release(&turn.key);
        }
    }

    fn put(&self, turn: &Arc<Turn>, (plan, reads): (u64, Option<Reads>), mode: &AnswerMode, shared: &TurnsShared) {
        let mut state = self.0.borrow_mut();
        state.running = state.running.saturating_sub(usize::from(turn.standing.is_some()));
        let Noted { records: delivered, is_stale } = state.delivered.remove(&turn.sequence).unwrap_or_default();
        let AnswerMode::Live { standing, .. } = mode else {
            state.remove(&turn.key, shared);
            return;
        };
        if delivered.is_empty() {
            // No sink has it.
            state.remove(&turn.key, shared);
            return;
        }
        let known = delivered.into_iter().filter_map(|(sink, record)| Some((sink, record?)));
        let mut records: BTreeMap<Arc<str>, AnswerRecord> = known.collect();
        // The turn was answered again because one sink lacked its first answer; another sink may
        // already have revisions.
        if let Some(entry) = state.by_key.get(&turn.key).filter(|_| turn.standing.is_none())
            && let Some(stored) = entry.stored(&turn.key, shared)
        {
            for (sink, known) in &stored.records {
                match records.get(sink) {
                    Some(record) if record.revision >= known.revision => {}
                    _ => drop(records.insert(sink.clone(), known.clone())),
                }
            }
        }
        // Keep the records of sinks that get no revisions now, in case they get them again.
        for (sink, record) in turn.standing.iter().flat_map(|standing| standing.iter()) {
            records.entry(sink.clone()).or_insert_with(|| record.clone());
        }
        let newest = shared.epochs.current().epoch;
        let since = match state.by_key.get(&turn.key) {
            Some(entry) => entry.since,
            // It was dropped meanwhile.
            None if turn.standing.is_some() => return,
            None => {
                state.oldest.push_back(turn.key.clone());
                StoredConversation::now()
            }
        };
        let stored = StoredTurn { turn: turn.clone(), records, since };
        shared.durable.put_standing(&turn.key, Some(stored.clone()));
        let mut entry = Entry::new(stored, false, shared);
        entry.waits = turn.epoch < newest || is_stale || entry.has_other_principal(shared);
        let waits = entry.waits;
        let generation = shared.generations.read().get(&plan).cloned();
        let known = reads.zip(generation).filter(|_| !waits);
        entry.slot = known.and_then(|(reads, generation)| state.watched.put(&generation, plan, reads));
        let former = state.by_key.insert(turn.key.clone(), entry);
        if let (Some(former), Some(entry)) = (&former, state.by_key.get_mut(&turn.key)) {
            entry.failures = former.failures;
        }
        former.and_then(|former| former.slot).into_iter().for_each(|slot| state.watched.remove(slot));
        if waits {
            state.waiting.push_back(turn.key.clone());
        }
        let most = (*standing / state.peers.max(1)).max(1);
        for _ in 0..state.oldest.len() {
            if state.by_key.len() <= most {
                break;
            }
            state.drop_oldest(shared);
        }
    }

    /// Adds a turn that an earlier process answered but did not keep as a standing turn.
    pub fn adopt(&self, turn: Turn, records: BTreeMap<Arc<str>, AnswerRecord>, shared: &TurnsShared) {
        let mut state = self.0.borrow_mut();
        let key = turn.key.clone();
        if records.is_empty() || state.by_key.contains_key(&key) {
            return;
        }
        let stored = StoredTurn { turn: Arc::new(turn), records, since: StoredConversation::now() };
        shared.durable.put_standing(&key, Some(stored.clone()));
        state.oldest.push_back(key.clone());
        state.waiting.push_back(key.clone());
        state.by_key.insert(key, Entry::new(stored, true, shared));
    }

    /// Loads the standing turns of an earlier process that belong to this worker.
    pub fn load(&self, shared: &TurnsShared, index: usize, peers: usize) {
        (self.0.borrow_mut().peers, self.0.borrow_mut().worker) = (peers, index);
        let Some(generation) = shared.generation() else { return };
        // On an error they stay in the store, for the next process.
        let mut turns = shared.durable.standing().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot load the standing turns; they are not answered again");
            Vec::new()
        });
        turns.retain(|stored| worker_of(&stored.turn.conversation_id, peers) == index);
        turns.sort_by_key(|stored| stored.since);
        let mut state = self.0.borrow_mut();
        let now = StoredConversation::now();
        for mut stored in turns {
            // The clock may have been set back since.
            stored.since = stored.since.min(now);
            // The process may have crashed after a delivery and before the checkpoint.
            for (sink, _) in generation.sinks() {
                let found = match stored.records.get(sink.id()) {
                    Some(record) => sink.newer(record),
                    // The sink was added after the turn was answered, and may have got an answer
                    // since the last checkpoint.
                    None => sink.record(&stored.turn.key),
                };
                if let Some(found) = found {
                    stored.records.insert(sink.id().clone(), found);
                    shared.durable.put_standing(&stored.turn.key, Some(stored.clone()));
                }
            }
            if generation.mode == AnswerMode::Once {
                continue;
            }
            let key = stored.turn.key.clone();
            state.oldest.push_back(key.clone());
            state.by_key.insert(key, Entry::new(stored, false, shared));
        }
    }

    /// Whether all turns are answered at the newest epoch.
    pub fn is_settled(&self, shared: &TurnsShared) -> bool {
        let state = self.0.borrow();
        let idle = state.waiting.is_empty() && state.by_key.values().all(|entry| !entry.in_flight);
        idle && (state.by_key.is_empty() || state.seen == shared.epochs.current().epoch)
    }

    /// Starts turns whose answers a new epoch may change, while slots are free.
    pub fn advance(&self, shared: &TurnsShared, local: &WorkerState) {
        let current = shared.epochs.current();
        let mut state = self.0.borrow_mut();
        if state.by_key.is_empty() {
            state.waiting.clear();
            state.seen = current.epoch;
            state.tell(shared);
            return;
        }
        if state.seen != current.epoch {
            let changes = shared.epochs.changes_since(state.seen);
            state.seen = current.epoch;
            state.expire(shared);
            let State { by_key, waiting, oldest, watched, .. } = &mut *state;
            let reached = watched.reached(changes, &current);
            for key in oldest.iter() {
                if let Some(entry) = by_key.get_mut(key)
                    && !entry.in_flight
                    && !entry.waits
                    && reached.has(entry.slot)
                {
                    entry.waits = true;
                    waiting.push_back(key.clone());
                }
            }
        }
        state.look_at_principals(shared);
        state.look_at_failures();
        // Half of the slots are reserved for new turns.
        let most = shared.limits.read().max_in_flight;
        let room = (most / 2).max(1);
        // Turns whose sinks are behind keep their order, and others pass them.
        let (mut behind, mut passed_over) = (BTreeSet::new(), VecDeque::new());
        while !state.waiting.is_empty() && passed_over.len() < PASSED_OVER && shared.slots.take(room) {
            let Some(key) = state.waiting.pop_front() else {
                shared.slots.give_back(most);
                break;
            };
            let source = state.by_key.get(&key).map(|entry| entry.source.clone());
            if let Some(source) = source.filter(|source| behind.contains(source) || shared.is_behind(source)) {
                shared.slots.give_back(most);
                behind.insert(source);
                passed_over.push_back(key);
                continue;
            }
            let sequence = SEQUENCES | state.sequence;
            let Some(entry) = state.by_key.get_mut(&key) else {
                shared.slots.give_back(most);
                continue;
            };
            entry.waits = false;
            let Some(stored) = entry.stored(&key, shared) else {
                let slot = entry.slot.take();
                slot.into_iter().for_each(|slot| state.watched.remove(slot));
                shared.slots.give_back(most);
                continue;
            };
            let old = &stored.turn;
            let renewed = shared.renewed(&old.source, &old.extra);
            entry.is_unknown = renewed == Renewed::Unknown;
            let (extra, history) = match renewed {
                Renewed::Same => (old.extra.clone(), old.history.clone()),
                // The history may say what the principal may not read any more.
                Renewed::Changed { fields, lost: true } => (fields, Vec::new()),
                Renewed::Changed { fields, lost: false } => (fields, old.history.clone()),
                Renewed::Unknown => {
                    if !std::mem::replace(&mut state.told, true) {
                        tracing::info!(
                            "standing turns of callers who are not known now wait until they are seen again"
                        );
                    }
                    shared.slots.give_back(most);
                    continue;
                }
            };
            let snapshot = shared.epochs.pin();
            let Some(ingress) = local.ingress(snapshot.plan, &old.source) else {
                shared.slots.give_back(most);
                state.remove(&key, shared);
                continue;
            };
            let turn = Arc::new(Turn {
                epoch: snapshot.epoch,
                entered_us: shared.now_us(),
                filter: old.filter.clone(),
                sequence,
                standing: Some(Arc::new(stored.records)),
                conversation_id: old.conversation_id.clone(),
                turn: old.turn,
                text: old.text.clone(),
                history,
                collection: old.collection.clone(),
                timestamp: old.timestamp,
                extra,
                position: old.position.clone(),
                source: old.source.clone(),
                key: old.key.clone(),
            });
            entry.in_flight = true;
            let slot = entry.slot.take();
            state.running += 1;
            shared.answered_again.fetch_add(1, Ordering::AcqRel);
            slot.into_iter().for_each(|slot| state.watched.remove(slot));
            state.sequence += 1;
            shared.outstanding.fetch_add(1, Ordering::AcqRel);
            let item = Item { turn, value: Value::Turn, warnings: Arc::default() };
            let flow = Flow { item, context: TurnContext::new(snapshot, None, shared) };
            shared.observe(&flow.item.turn.source.clone(), &flow, None);
            ingress.give(flow);
        }
        passed_over.into_iter().rev().for_each(|key| state.waiting.push_front(key));
        state.tell(shared);
    }
}

impl State {
    /// A turn has failed when it was answered again. The fault may pass, so it is tried again, with growing pauses.
    fn try_again_later(&mut self, key: &Arc<str>, shared: &TurnsShared) {
        let Some(entry) = self.by_key.get_mut(key).filter(|entry| !entry.waits) else { return };
        let pause = (PAUSES.0 * 2_u32.saturating_pow(entry.failures)).min(PAUSES.1);
        entry.failures = entry.failures.saturating_add(1);
        self.sequence += 1;
        self.failed.insert((Instant::now() + pause, self.sequence), key.clone());
        let wake = shared.waker();
        shared.handle.spawn(async move {
            tokio::time::sleep(pause).await;
            wake();
        });
    }

    /// Queues the turns that have failed and whose pause is over.
    fn look_at_failures(&mut self) {
        let now = Instant::now();
        while let Some(first) = self.failed.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.remove();
            if let Some(entry) = self.by_key.get_mut(&key).filter(|entry| !entry.waits && !entry.in_flight) {
                entry.waits = true;
                self.waiting.push_back(key);
            }
        }
    }

    /// Tells how many turns stand and are behind.
    fn tell(&mut self, shared: &TurnsShared) {
        let (turns, behind) = (self.by_key.len(), self.waiting.len() + self.running + self.failed.len());
        if std::mem::replace(&mut self.counted, (turns, behind)) == (turns, behind) {
            return;
        }
        self.since = if behind == 0 { None } else { self.since.or_else(|| Some(Instant::now())) };
        let count = StandingCount { turns, behind, since: self.since };
        shared.standing.lock().insert(self.worker, count);
    }

    fn remove(&mut self, key: &Arc<str>, shared: &TurnsShared) {
        if let Some(entry) = self.by_key.remove(key) {
            entry.slot.into_iter().for_each(|slot| self.watched.remove(slot));
            shared.durable.put_standing(key, None);
        }
    }

    /// Queues the turns whose principals have changed, or are seen again.
    fn look_at_principals(&mut self, shared: &TurnsShared) {
        let Some(version) = shared.principals.as_ref().map(|principals| principals.version()) else { return };
        if std::mem::replace(&mut self.principals, version) == version {
            return;
        }
        let Self { by_key, waiting, oldest, .. } = self;
        for key in oldest.iter() {
            if let Some(entry) = by_key.get_mut(key)
                && !entry.in_flight
                && !entry.waits
                && entry.has_other_principal(shared)
            {
                entry.waits = true;
                waiting.push_back(key.clone());
            }
        }
    }

    fn expire(&mut self, shared: &TurnsShared) {
        let mode = shared.generation().map(|generation| generation.mode.clone()).unwrap_or_default();
        let ttl_s = match mode {
            AnswerMode::Live { ttl_s, .. } => ttl_s,
            AnswerMode::Once => 0,
        };
        let before = StoredConversation::now().saturating_sub(ttl_s);
        let is_over = |entry: &Entry| ttl_s == 0 || entry.since < before;
        let over = self.oldest.iter().filter_map(|key| self.by_key.get(key)).take_while(|entry| is_over(entry));
        for _ in 0..over.filter(|entry| !entry.in_flight).count() {
            self.drop_oldest(shared);
        }
    }

    /// Drops the oldest turn that is not being answered. A turn in flight is kept until it is done:
    /// the process may crash between the retraction and the revision.
    fn drop_oldest(&mut self, shared: &TurnsShared) {
        let is_idle = |key: &Arc<str>| self.by_key.get(key).is_none_or(|entry| !entry.in_flight);
        let oldest = self.oldest.iter().position(is_idle).and_then(|at| self.oldest.remove(at));
        oldest.into_iter().for_each(|oldest| self.remove(&oldest, shared));
    }
}

/// The worker of a standing turn of an earlier process: the one that has its conversation. If the
/// source reads the turn again, because the process ended before a checkpoint covered it, the same
/// worker gets it and finds that it already stands.
fn worker_of(conversation: &Arc<str>, peers: usize) -> usize {
    (conversation.hashed() % peers.max(1) as u64) as usize
}

/// The records to deliver to a sink that has `standing`: none if the new record says the same for a principal who still
/// has what it had, or if it is a failure and the sink has an answer.
pub(super) fn revision(standing: &AnswerRecord, mut record: AnswerRecord) -> Vec<AnswerRecord> {
    let failed = record.error.is_some() && standing.error.is_none();
    let has_lost = principal_of(&standing.extra).is_some_and(|before| !still_has(principal_of(&record.extra), before));
    if failed || !has_lost && record.says_what(standing) {
        return Vec::new();
    }
    record.revision = standing.revision + 1;
    vec![AnswerRecord { retracted: true, ..standing.clone() }, record]
}
