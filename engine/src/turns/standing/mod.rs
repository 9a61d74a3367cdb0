//! Standing turns: turns of a live pipeline, which are answered again when an epoch changes what
//! they retrieve.
//!
//! A standing turn runs through the pipeline again when a new epoch may change its answer. Model outputs are cached, so a
//! turn with the same passages costs no model call. A sink gets nothing if the answer is unchanged;
//! otherwise it gets the retraction of the old answer, and the new answer as the next revision. New
//! turns have priority.
//!
//! A turn of a queue is answered again for its principal as it is now (`crate::principal`). If the principal has lost
//! something, the sinks get a revision even if the new answer says the same, because the old one was made with what the
//! principal has no more. While nothing is known of the principal, its turns wait.

mod entry;
mod follow;
mod kept;
mod state;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use differential_dataflow::Hashable;

use self::entry::Entry;
pub use self::kept::Keeper;
use self::kept::{KeptSlots, identity};
use self::state::{Noted, State};
use super::watched::Owner;
use super::{Flow, TurnContext, TurnsShared, WorkerState};
use crate::durable::{StoredConversation, StoredTurn};
use crate::plan::AnswerMode;
use crate::principal::{Renewed, principal_of, still_has};
use crate::record::{AnswerRecord, Turn};

/// The range of sequences for turns that are answered again; sources have the ranges from 0.
const SEQUENCES: u64 = 0xff_ffff << 40;
/// The maximum number of turns to pass over in a round because their sinks are behind.
const PASSED_OVER: usize = 1000;

/// The number of standing turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandingCount {
    /// All of them.
    pub turns: usize,
    /// Those that wait to be answered again, or are being answered.
    pub behind: usize,
    /// Those of them that have failed, and are tried again after a pause.
    pub failed: usize,
    /// Since when the first of these has waited.
    pub since: Option<Instant>,
    /// The epoch up to which all changes were looked at.
    pub epoch: u64,
}

impl StandingCount {
    /// Those of several workers.
    pub fn of<'a>(workers: impl Iterator<Item = &'a Self>) -> Self {
        let add = |all: Self, one: Self| Self {
            turns: all.turns + one.turns,
            behind: all.behind + one.behind,
            failed: all.failed + one.failed,
            since: all.since.into_iter().chain(one.since).min(),
            epoch: all.epoch.min(one.epoch),
        };
        workers.copied().reduce(add).unwrap_or_default()
    }
}

/// The standing turns of one worker.
#[derive(Default)]
pub(super) struct Standing(RefCell<State>);

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
        self.put(turn, context, is_odd, mode, shared);
        let (mut state, is_again) = (self.0.borrow_mut(), turn.standing.is_some());
        match has_failed && is_again {
            true => state.try_again_later(&turn.key, shared),
            false => state.has_succeeded(&turn.key, is_again),
        }
        drop(state);
        if is_again {
            shared.durable.release(&turn.key);
        }
    }

    /// Called when a turn that does not stand has reached all its sinks: its answer may go into the cache.
    pub fn keep(&self, turn: &Arc<Turn>, context: &TurnContext, is_odd: bool, shared: &TurnsShared) {
        self.0.borrow_mut().watch(turn, context, (false, is_odd), shared);
    }

    fn put(&self, turn: &Arc<Turn>, context: &TurnContext, is_odd: bool, mode: &AnswerMode, shared: &TurnsShared) {
        let mut state = self.0.borrow_mut();
        state.running = state.running.saturating_sub(usize::from(turn.standing.is_some()));
        let Noted { records: delivered, is_stale } = state.delivered.remove(&turn.sequence).unwrap_or_default();
        // `delivered` is empty if no sink has it.
        let standing = match mode {
            AnswerMode::Live { standing, .. } if !delivered.is_empty() => Some(*standing),
            _ => None,
        };
        let Some(standing) = standing else {
            state.watch(turn, context, (false, is_odd), shared);
            state.remove(&turn.key, shared);
            return;
        };
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
        let (since, born) = match state.by_key.get(&turn.key) {
            Some(entry) => (entry.since, entry.born),
            // It was dropped meanwhile.
            None if turn.standing.is_some() => return,
            None => {
                state.oldest.push_back(turn.key.clone());
                (StoredConversation::now(), state.number())
            }
        };
        let stored = StoredTurn { turn: turn.clone(), records, since };
        shared.durable.put_standing(&turn.key, Some(stored.clone()));
        let mut entry = Entry::new(stored, false, born, shared);
        let is_old = is_stale || entry.has_other_principal(shared);
        let slot = state.watch(turn, context, (!is_old, is_odd), shared);
        let waits = is_old || slot.is_none() && turn.epoch < newest;
        let former = state.by_key.remove(&turn.key);
        entry.slot = former.as_ref().and_then(|former| former.slot);
        entry.is_leaving = former.as_ref().is_some_and(|former| former.is_leaving);
        entry.failures = former.map_or(0, |former| former.failures);
        state.by_key.insert(turn.key.clone(), entry);
        state.set_slot(&turn.key, slot);
        if waits {
            state.queue(&turn.key);
        }
        let most = (standing / state.peers.max(1)).max(1);
        for _ in 0..state.oldest.len() {
            if state.by_key.len() - state.followers <= most {
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
        let born = state.number();
        state.by_key.insert(key, Entry::new(stored, true, born, shared));
    }

    /// Whether a turn is being answered again. If it `leaves`, it is not answered again after that.
    pub fn is_leaving(&self, key: &Arc<str>, leaves: bool) -> bool {
        let mut state = self.0.borrow_mut();
        let Some(entry) = state.by_key.get_mut(key).filter(|entry| entry.in_flight) else { return false };
        entry.is_leaving |= leaves;
        true
    }

    /// Removes a turn whose answer is taken back. Returns the records that its sinks have.
    pub fn withdraw(&self, key: &Arc<str>, shared: &TurnsShared) -> BTreeMap<Arc<str>, AnswerRecord> {
        let mut state = self.0.borrow_mut();
        let stored = state.by_key.get(key).and_then(|entry| entry.stored(key, shared));
        state.remove(key, shared);
        stored.map(|stored| stored.records).unwrap_or_default()
    }

    /// Loads the standing turns of an earlier process that belong to this worker.
    pub fn load(&self, shared: &TurnsShared, index: usize, peers: usize) {
        (self.0.borrow_mut().peers, self.0.borrow_mut().worker) = (peers, index);
        let Some(generation) = shared.generation() else { return };
        let (now, mut turns) = (StoredConversation::now(), Vec::new());
        let each = &mut |mut stored: StoredTurn| {
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
            if generation.mode != AnswerMode::Once {
                let (since, key) = (stored.since, stored.turn.key.clone());
                // One by one, since the records of all of them may take much memory.
                turns.push((since, key, Entry::new(stored, false, 0, shared)));
            }
        };
        // On an error they stay in the store, for the next process.
        if let Err(error) = shared.durable.each_standing(&|id| worker_of(id, peers) == index, each) {
            tracing::error!(%error, "cannot load the standing turns; they are not answered again");
        }
        turns.sort_by_key(|(since, ..)| *since);
        let mut state = self.0.borrow_mut();
        let earlier = shared.kept.earlier(&generation);
        if let Some(earlier) = &earlier {
            state.watched.missing.clone_from(&earlier.missing);
            state.seen = earlier.epoch;
        }
        for (_, key, entry) in turns {
            state.oldest.push_back(key.clone());
            let born = state.number();
            let saved = earlier.as_ref().and_then(|earlier| earlier.turns.get(&key));
            let slot = saved.and_then(|saved| state.watched.restore(&generation, saved, Owner::Turn(key.clone())));
            state.by_key.insert(key.clone(), Entry { born, slot, ..entry });
            if slot.is_none() {
                state.unwatched.insert(key.clone());
                // Without any, all of them are reached by the first epoch.
                if earlier.is_some() {
                    state.queue(&key);
                }
            }
        }
    }

    /// Gives what the turns depend on to the next run, at the end of this one.
    pub fn keep_slots(&self, shared: &TurnsShared) {
        let state = self.0.borrow();
        let Some(generation) = shared.generation().filter(|_| shared.kept.keeps()) else { return };
        if state.seen == shared.epochs.current().epoch
            && let Some(by) = identity(&generation)
        {
            let (epoch, missing) = (state.seen, state.watched.missing.clone());
            shared.kept.put(state.worker, KeptSlots { by, epoch, missing, turns: state.saved(&generation) });
        }
    }

    /// Whether all turns are answered at the newest epoch.
    pub fn is_settled(&self, shared: &TurnsShared) -> bool {
        let state = self.0.borrow();
        let idle = state.waiting.is_empty() && state.running == 0 && !state.has_late();
        idle && (state.by_key.is_empty() || state.seen == shared.epochs.current().epoch)
    }

    /// Starts turns whose answers a new epoch may change, while slots are free.
    pub fn advance(&self, shared: &TurnsShared, local: &WorkerState) {
        let current = shared.epochs.current();
        let mut state = self.0.borrow_mut();
        state.look_at_callers(shared);
        let gone = shared.answers.gone(state.worker);
        state.forget_answers(gone);
        if state.seen != current.epoch {
            let changes = shared.epochs.changes_since(state.seen);
            state.seen = current.epoch;
            if !state.by_key.is_empty() || !state.cached.is_empty() {
                state.expire(shared);
                state.reach(changes, &current, shared);
            } else {
                state.watched.note(&current);
            }
            shared.answers.has_seen(state.worker, current.epoch);
        }
        state.look_at_late(&current, shared);
        if state.by_key.is_empty() {
            state.waiting.clear();
            state.tell(shared);
            return;
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
            let of_sink = state.by_key.get(&key).filter(|entry| entry.follower.is_none());
            let source = of_sink.map(|entry| entry.source.clone());
            if let Some(source) = source.filter(|source| behind.contains(source) || shared.is_behind(source)) {
                shared.slots.give_back(most);
                behind.insert(source);
                passed_over.push_back(key);
                continue;
            }
            let sequence = SEQUENCES | state.number();
            let Some(entry) = state.by_key.get_mut(&key) else {
                shared.slots.give_back(most);
                continue;
            };
            entry.waits = false;
            let Some(stored) = entry.stored(&key, shared) else {
                state.set_slot(&key, None);
                shared.slots.give_back(most);
                continue;
            };
            let old = &stored.turn;
            let caller = entry.follower.as_ref().map(|follower| follower.caller.clone());
            let renewed = match caller {
                // A caller follows as the principal who has asked.
                Some(_) => Renewed::Same,
                None => shared.renewed(&old.source, &old.extra),
            };
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
            let turn = Turn {
                epoch: snapshot.epoch,
                entered_us: shared.now_us(),
                filter: old.filter.clone(),
                sequence,
                standing: Some(Arc::new(stored.records)),
                computed_at: None,
                similar_to: None,
                tokens: Default::default(),
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
            };
            entry.in_flight = true;
            state.set_slot(&key, None);
            state.running += 1;
            shared.answered_again.fetch_add(1, Ordering::AcqRel);
            shared.outstanding.fetch_add(1, Ordering::AcqRel);
            let flow = Flow::begin(turn, snapshot, (caller, None), shared);
            shared.observe(&flow.item.turn.source.clone(), &flow, None);
            ingress.give(flow);
        }
        passed_over.into_iter().rev().for_each(|key| state.waiting.push_front(key));
        state.tell(shared);
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
