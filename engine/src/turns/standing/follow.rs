//! Callers who follow an answer: they are told when it changes.

use std::sync::Arc;

use super::Standing;
use super::entry::{Entry, Follower};
use crate::ask::{Caller, Event};
use crate::record::{AnswerRecord, Turn};
use crate::turns::{TurnContext, TurnsShared};

impl Standing {
    /// Called when the turn of a caller is complete. The caller gets the answer; one who follows it is told of each later
    /// answer that says something else.
    pub fn told(
        &self,
        turn: &Arc<Turn>,
        context: &TurnContext,
        record: Option<AnswerRecord>,
        (has_failed, is_odd): (bool, bool),
        shared: &TurnsShared,
    ) {
        let Some(caller) = &context.caller else { return };
        let mut state = self.0.borrow_mut();
        let is_again = turn.standing.is_some();
        state.running = state.running.saturating_sub(usize::from(is_again));
        let follows = caller.follows() && !caller.cancel().is_cancelled();
        // Before the caller has the answer: who asks again at once finds it in the cache.
        let slot = state.watch(turn, context, (follows, is_odd), shared);
        if let Some(record) = record.clone().filter(|_| !is_again) {
            caller.tell(Event::Answer { record: Box::new(record) });
        }
        let waits = slot.is_none() && turn.epoch < shared.epochs.current().epoch;
        let (true, Some(record)) = (follows, record) else {
            state.remove(&turn.key, shared);
            return;
        };
        if is_again {
            let Some(entry) = state.by_key.get_mut(&turn.key) else { return };
            entry.in_flight = false;
            entry.epoch = turn.epoch;
            let Some(follower) = entry.follower.as_mut() else { return };
            // As for a sink: a failure takes no answer back.
            let is_kept = has_failed && follower.record.error.is_none() || record.says_what(&follower.record);
            if !is_kept {
                follower.record = AnswerRecord { revision: follower.record.revision + 1, ..record };
                shared.revised.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
                caller.tell(Event::Revised { record: Box::new(follower.record.clone()) });
            }
        } else {
            let follower = Follower { caller: caller.follower(), record };
            let born = state.number();
            state.by_key.insert(turn.key.clone(), Entry::followed(turn, follower, born));
            state.followers += 1;
            forget_when_left(&state.left, caller, turn.key.clone(), shared);
        }
        state.set_slot(&turn.key, slot);
        match (waits, has_failed) {
            (true, _) => state.queue(&turn.key),
            (false, true) => state.try_again_later(&turn.key, shared),
            (false, false) => state.has_succeeded(&turn.key, is_again),
        }
    }
}

/// Lets a worker remove the turn when its caller leaves.
fn forget_when_left(
    left: &Arc<parking_lot::Mutex<Vec<Arc<str>>>>,
    caller: &Caller,
    key: Arc<str>,
    shared: &TurnsShared,
) {
    let (left, cancelled, wake) = (left.clone(), caller.cancel().clone(), shared.waker());
    shared.handle.spawn(async move {
        cancelled.cancelled().await;
        left.lock().push(key);
        wake();
    });
}
