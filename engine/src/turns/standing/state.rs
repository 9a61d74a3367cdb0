//! The standing turns of one worker: which of them wait, have failed, or have to go.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::StandingCount;
use super::entry::Entry;
use crate::component::Snapshot;
use crate::durable::StoredConversation;
use crate::plan::AnswerMode;
use crate::publish::Change;
use crate::record::{AnswerRecord, Turn};
use crate::turns::answers::{AnswerKey, FinalValues, Place};
use crate::turns::watched::{Owner, Reached, SavedSlot, Slot, Watched};
use crate::turns::{AnswerCache, Generation, TurnContext, TurnsShared};

/// The first pause before a turn that has failed is tried again, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Turns that are tried again at once while one after the other fails: enough to see that a server is back.
const TRIED: usize = 2;

/// The records that sinks have of a turn; `None`: it gets revisions, but has no record yet.
#[derive(Default)]
pub(super) struct Noted {
    pub records: BTreeMap<Arc<str>, Option<AnswerRecord>>,
    /// One of them differs from the turn's answer.
    pub is_stale: bool,
}

/// An answer in the cache.
#[derive(Clone, Copy)]
pub(super) struct Watching {
    /// Its number in the cache.
    number: u64,
    /// What it depends on.
    slot: Slot,
    /// The epoch at which it was computed.
    epoch: u64,
}

/// What a turn that has read an earlier epoch than the last one that was looked at has left behind.
struct Late {
    slot: Slot,
    epoch: u64,
    turn: Option<Arc<str>>,
    answer: Option<(AnswerKey, FinalValues, NonZeroUsize)>,
}

#[derive(Default)]
pub(super) struct State {
    pub by_key: HashMap<Arc<str>, Entry>,
    /// Those of sources, in the order of their first answers.
    pub oldest: VecDeque<Arc<str>>,
    /// Turns to answer again.
    pub waiting: VecDeque<Arc<str>>,
    /// Idle turns of which nothing is known: every change may reach them.
    pub unwatched: HashSet<Arc<str>>,
    /// The records that sinks got for turns in flight, by sequence.
    pub delivered: HashMap<u64, Noted>,
    /// The epoch for which turns were last queued.
    pub seen: u64,
    /// It is logged that turns wait for their principals.
    pub told: bool,
    /// The version of the principals for which turns were last queued.
    pub principals: u64,
    pub sequence: u64,
    /// Number of workers; each has a part of the turns.
    pub peers: usize,
    /// What the turns' answers depend on.
    pub watched: Watched,
    /// This worker's answers in the cache.
    pub cached: HashMap<AnswerKey, Watching>,
    /// The number of the worker.
    pub worker: usize,
    /// Number of turns that are being answered again.
    pub running: usize,
    /// Since when turns wait.
    since: Option<Instant>,
    /// The numbers that were last told.
    counted: (usize, usize, u64),
    /// Turns that have failed, and when they are tried again.
    failed: BTreeMap<(Instant, u64), Arc<str>>,
    /// How many turns have failed since one was answered, and until when the others that have failed wait.
    failing: (u32, Option<Instant>),
    /// Turns and answers of earlier epochs than `seen`: the changes since are still to be looked at.
    late: Vec<Late>,
    /// Number of turns of callers.
    pub followers: usize,
    /// Turns whose callers have left.
    pub left: Arc<Mutex<Vec<Arc<str>>>>,
}

impl State {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Queues a turn, unless it waits or is being answered.
    pub fn queue(&mut self, key: &Arc<str>) {
        if let Some(entry) = self.by_key.get_mut(key).filter(|entry| entry.is_idle()) {
            entry.waits = true;
            self.unwatched.remove(key);
            self.waiting.push_back(key.clone());
        }
    }

    /// Notes what an answer depends on: for its turn, if it `stands`, and for the cache.
    pub fn watch(
        &mut self,
        turn: &Arc<Turn>,
        context: &TurnContext,
        (stands, is_odd): (bool, bool),
        shared: &TurnsShared,
    ) -> Option<Slot> {
        let own = || Owner::Turn(turn.key.clone());
        if let Some(cached) = &context.cached {
            // The same may have been answered again since, from later passages.
            let slot = self.cached.get(&context.key?).filter(|answer| answer.epoch == cached.epoch)?.slot;
            return (stands && self.watched.share(slot, own())).then_some(slot);
        }
        let mut reads = std::mem::take(&mut *context.reads.as_ref()?.lock());
        let plan = context.snapshot.plan;
        let generation = shared.generations.read().get(&plan).cloned().filter(|_| !is_odd)?;
        let kept = context.key.zip(generation.cache);
        let owners = stands.then(own).into_iter().chain(kept.map(|(key, _)| Owner::Cached(key)));
        let values = std::mem::take(&mut reads.values);
        let slot = self.watched.put(&generation, reads, owners.collect())?;
        let question =
            generation.similar.is_some().then(|| AnswerCache::words_key(context.snapshot.family, turn)).flatten();
        let question = question.map(|words| (words, turn.text.clone()));
        let answer = kept.map(|(key, most)| (key, FinalValues::new(values, turn.epoch, question), most));
        if turn.epoch < self.seen {
            self.late.push(Late { slot, epoch: turn.epoch, turn: stands.then(|| turn.key.clone()), answer });
        } else if let Some(answer) = answer {
            self.keep_answer(slot, answer, shared);
        }
        Some(slot)
    }

    /// Puts an answer into the cache.
    fn keep_answer(&mut self, slot: Slot, answer: (AnswerKey, FinalValues, NonZeroUsize), shared: &TurnsShared) {
        let (key, values, most) = answer;
        let epoch = values.epoch;
        let number = shared.answers.put(key, self.worker, values, most);
        if let Some(former) = self.cached.insert(key, Watching { number, slot, epoch }) {
            self.watched.remove(former.slot, &Owner::Cached(key));
        }
    }

    /// Whether some turns are still to be looked at.
    pub fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Looks at the changes that those who came late have not met.
    pub fn look_at_late(&mut self, now: &Snapshot, shared: &TurnsShared) {
        let mut late = std::mem::take(&mut self.late);
        late.sort_by_key(|late| late.epoch);
        let epochs: BTreeSet<u64> = late.iter().map(|late| late.epoch).collect();
        let mut reached: Vec<Slot> = Vec::new();
        for epoch in epochs {
            let slots: Vec<Slot> = late.iter().filter(|late| late.epoch == epoch).map(|late| late.slot).collect();
            reached.extend(self.watched.reached_late(&slots, shared.epochs.changes_since(epoch), now));
        }
        for Late { slot, turn, answer, .. } in late {
            match (reached.contains(&slot), answer) {
                (true, answer) => {
                    answer.into_iter().for_each(|(key, ..)| self.watched.remove(slot, &Owner::Cached(key)));
                    turn.into_iter().for_each(|key| self.queue(&key));
                }
                (false, Some(answer)) => self.keep_answer(slot, answer, shared),
                (false, None) => {}
            }
        }
    }

    /// Sets what the answer of a turn depends on.
    pub fn set_slot(&mut self, key: &Arc<str>, slot: Option<Slot>) {
        let Some(entry) = self.by_key.get_mut(key) else { return };
        let former = std::mem::replace(&mut entry.slot, slot);
        if entry.is_idle() && slot.is_none() {
            self.unwatched.insert(key.clone());
        } else {
            self.unwatched.remove(key);
        }
        former.into_iter().for_each(|former| self.watched.remove(former, &Owner::Turn(key.clone())));
    }

    /// Queues the turns that these changes reach, the oldest first, and takes answers that they reach out of the cache.
    pub fn reach(&mut self, changes: Option<Vec<Change>>, now: &Snapshot, shared: &TurnsShared) {
        let (mut turns, answers): (Vec<Arc<str>>, Vec<AnswerKey>) = match self.watched.reached(changes, now) {
            Reached::All => (self.by_key.keys().cloned().collect(), self.cached.keys().copied().collect()),
            Reached::Some(owners) => {
                let (mut turns, mut answers) = (self.unwatched.iter().cloned().collect::<Vec<_>>(), Vec::new());
                for owner in owners {
                    match owner {
                        Owner::Turn(key) => turns.push(key),
                        Owner::Cached(key) => answers.push(key),
                    }
                }
                (turns, answers)
            }
        };
        // What has read the newest epoch has read its changes.
        turns.retain(|key| self.by_key.get(key).is_some_and(|entry| entry.epoch < now.epoch));
        let old = |key: &AnswerKey| self.cached.get(key).filter(|answer| answer.epoch < now.epoch);
        let places: Vec<Place> = answers.iter().filter_map(|key| Some((*key, old(key)?.number))).collect();
        let (reached, all) = (turns.len(), self.by_key.len());
        tracing::debug!(worker = self.worker, epoch = now.epoch, reached, all, "turns that a change reaches");
        turns.sort_by_key(|key| self.by_key.get(key).map(|entry| entry.born));
        turns.iter().for_each(|key| self.queue(key));
        shared.answers.remove(places.iter());
        self.forget_answers(places);
    }

    /// Forgets answers that are no longer in the cache.
    pub fn forget_answers(&mut self, places: Vec<Place>) {
        for (key, number) in places {
            if self.cached.get(&key).is_some_and(|answer| answer.number == number)
                && let Some(answer) = self.cached.remove(&key)
            {
                self.watched.remove(answer.slot, &Owner::Cached(key));
            }
        }
    }

    /// A turn has failed when it was answered again. The fault may pass, so it is tried again, with growing pauses.
    pub fn try_again_later(&mut self, key: &Arc<str>, shared: &TurnsShared) {
        let number = self.number();
        let pause = |failures: u32| (PAUSES.0 * 2_u32.saturating_pow(failures)).min(PAUSES.1);
        let (now, failing) = (Instant::now(), self.failing.0);
        let all = pause(failing / TRIED as u32);
        self.failing = (failing.saturating_add(1), Some(now + all));
        let Some(entry) = self.by_key.get_mut(key).filter(|entry| !entry.waits) else { return };
        let pause = pause(entry.failures).max(all);
        entry.failures = entry.failures.saturating_add(1);
        self.failed.insert((now + pause, number), key.clone());
        let wake = shared.waker();
        shared.handle.spawn(async move {
            tokio::time::sleep(pause).await;
            wake();
        });
    }

    /// A turn was answered.
    pub fn has_succeeded(&mut self, key: &Arc<str>, is_again: bool) {
        if let Some(entry) = self.by_key.get_mut(key) {
            entry.failures = 0;
        }
        if is_again {
            self.failing = (0, None);
        }
    }

    /// Queues turns that have failed and whose pause is over: few as long as they fail, else all.
    pub fn look_at_failures(&mut self) {
        let now = Instant::now();
        let (failing, until) = self.failing;
        let mut most = match until {
            Some(until) if until > now => 0,
            _ if failing > 0 => TRIED.saturating_sub(self.waiting.len() + self.running),
            _ => usize::MAX,
        };
        while let Some(first) = self.failed.first_entry().filter(|first| most > 0 && first.key().0 <= now) {
            let key = first.remove();
            self.queue(&key);
            most -= 1;
        }
    }

    /// Tells how many turns stand and are behind.
    pub fn tell(&mut self, shared: &TurnsShared) {
        let (turns, failed, epoch) = (self.by_key.len(), self.failed.len(), self.seen);
        let behind = self.waiting.len() + self.running + failed + self.late.len();
        let counted = (turns, behind, epoch);
        if std::mem::replace(&mut self.counted, counted) == counted {
            return;
        }
        self.since = if behind == 0 { None } else { self.since.or_else(|| Some(Instant::now())) };
        let count = StandingCount { turns, behind, failed, since: self.since, epoch };
        shared.standing.lock().insert(self.worker, count);
    }

    /// Removes a turn.
    pub fn remove(&mut self, key: &Arc<str>, shared: &TurnsShared) {
        let Some(entry) = self.by_key.remove(key) else { return };
        self.unwatched.remove(key);
        entry.slot.into_iter().for_each(|slot| self.watched.remove(slot, &Owner::Turn(key.clone())));
        match entry.follower {
            Some(_) => self.followers -= 1,
            None => shared.durable.put_standing(key, None),
        }
    }

    /// Removes the turns whose callers have left.
    pub fn look_at_callers(&mut self, shared: &TurnsShared) {
        let left = std::mem::take(&mut *self.left.lock());
        left.iter().for_each(|key| self.remove(key, shared));
    }

    /// Queues the turns whose principals have changed, or are seen again.
    pub fn look_at_principals(&mut self, shared: &TurnsShared) {
        let Some(version) = shared.principals.as_ref().map(|principals| principals.version()) else { return };
        if std::mem::replace(&mut self.principals, version) == version {
            return;
        }
        let has_other = |key: &&Arc<str>| self.by_key.get(*key).is_some_and(|entry| entry.has_other_principal(shared));
        let others: Vec<Arc<str>> = self.oldest.iter().filter(has_other).cloned().collect();
        others.iter().for_each(|key| self.queue(key));
    }

    /// Drops the turns that have stood for long enough.
    pub fn expire(&mut self, shared: &TurnsShared) {
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

    /// What the turns depend on that are up to date.
    pub fn saved(&self, generation: &Generation) -> HashMap<Arc<str>, SavedSlot> {
        let late: Vec<Slot> = self.late.iter().map(|late| late.slot).collect();
        let failed: HashSet<&Arc<str>> = self.failed.values().collect();
        let is_settled = |key: &Arc<str>, entry: &Entry| {
            entry.is_idle() && entry.follower.is_none() && !entry.is_unknown && !failed.contains(key)
        };
        let of_sources = self.by_key.iter().filter(|(key, entry)| is_settled(key, entry));
        let slots = of_sources.filter_map(|(key, entry)| Some((key, entry.slot.filter(|slot| !late.contains(slot))?)));
        slots.filter_map(|(key, slot)| Some((key.clone(), self.watched.save(generation, slot)?))).collect()
    }

    /// Drops the oldest turn that is not being answered. A turn in flight is kept until it is done:
    /// the process may crash between the retraction and the revision.
    pub fn drop_oldest(&mut self, shared: &TurnsShared) {
        let is_idle = |key: &Arc<str>| self.by_key.get(key).is_none_or(|entry| !entry.in_flight);
        let oldest = self.oldest.iter().position(is_idle).and_then(|at| self.oldest.remove(at));
        oldest.into_iter().for_each(|oldest| self.remove(&oldest, shared));
    }
}
