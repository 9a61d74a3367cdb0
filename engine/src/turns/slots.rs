//! Slots for turns in flight: a bound that all workers share. Those who wait, the workers and the callers, get slots in
//! turn. If the longest wait had the next slot, a worker with a burst of waiting turns would get all slots, and the other
//! workers would be idle meanwhile.
//!
//! A conversation requests a slot when its next turn can start, and has at most one turn that runs or waits. So the slots of
//! one worker are shared fairly between its conversations, however much one of them has queued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Waits for slots: the conversations of a source on one worker, or the queue of callers.
pub struct Waiter {
    granted: AtomicUsize,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Waiter {
    /// `wake` is called after each granted slot.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { granted: AtomicUsize::new(0), wake: Box::new(wake) })
    }

    /// Number of slots granted since the last call.
    pub fn granted(&self) -> usize {
        self.granted.swap(0, Ordering::AcqRel)
    }
}

/// The slots.
#[derive(Default)]
pub struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    taken: usize,
    /// Each with the number of slots that it waits for; the first gets the next slot.
    waiting: VecDeque<(Arc<Waiter>, usize)>,
}

impl State {
    fn wait(&mut self, waiter: &Arc<Waiter>) {
        match self.waiting.iter_mut().find(|(other, _)| Arc::ptr_eq(other, waiter)) {
            Some((_, slots)) => *slots += 1,
            None => self.waiting.push_back((waiter.clone(), 1)),
        }
    }

    fn forget(&mut self, waiter: &Arc<Waiter>, slots: usize) {
        if let Some(at) = self.waiting.iter().position(|(other, _)| Arc::ptr_eq(other, waiter)) {
            let waits = &mut self.waiting[at].1;
            *waits = waits.saturating_sub(slots);
            if *waits == 0 {
                self.waiting.remove(at);
            }
        }
    }

    fn release(&mut self, slots: usize) {
        debug_assert!(slots <= self.taken, "{slots} slots are released, and {} are taken", self.taken);
        self.taken = self.taken.saturating_sub(slots);
    }

    /// The waiter that gets the next slot.
    fn next(&mut self) -> Option<Arc<Waiter>> {
        let (waiter, slots) = self.waiting.pop_front()?;
        if slots > 1 {
            self.waiting.push_back((waiter.clone(), slots - 1));
        }
        Some(waiter)
    }
}

impl Slots {
    /// Takes one of `most` slots and returns true, or queues the waiter and returns false.
    pub fn take_or_wait(&self, most: usize, waiter: &Arc<Waiter>) -> bool {
        let mut state = self.0.lock();
        if state.taken < most && state.waiting.is_empty() {
            state.taken += 1;
            return true;
        }
        state.wait(waiter);
        false
    }

    /// Takes one of `most` slots if one is free and nothing waits.
    pub fn take(&self, most: usize) -> bool {
        let mut state = self.0.lock();
        let free = state.taken < most && state.waiting.is_empty();
        state.taken += usize::from(free);
        free
    }

    /// Number of slots taken.
    pub fn taken(&self) -> usize {
        self.0.lock().taken
    }

    /// Releases one of `most` slots; the next waiter gets it.
    pub fn give_back(&self, most: usize) {
        self.change(most, |state| state.release(1));
    }

    /// Grants the free ones of `most` slots, after the bound was raised.
    pub fn grant(&self, most: usize) {
        self.change(most, |_| ());
    }

    /// The waiter waits for fewer slots than it has asked for.
    pub fn forget(&self, waiter: &Arc<Waiter>, slots: usize) {
        self.0.lock().forget(waiter, slots);
    }

    /// The waiter waits no longer, and releases what it was granted and has not used. It must not wait again.
    pub fn leave(&self, most: usize, waiter: &Arc<Waiter>) {
        self.change(most, |state| {
            state.forget(waiter, usize::MAX);
            // Slots are granted under the lock, so no more come.
            state.release(waiter.granted());
        });
    }

    /// Changes the state, and grants what is free then.
    fn change(&self, most: usize, change: impl FnOnce(&mut State)) {
        let mut woken = Vec::new();
        {
            let mut state = self.0.lock();
            change(&mut state);
            while state.taken < most
                && let Some(waiter) = state.next()
            {
                state.taken += 1;
                waiter.granted.fetch_add(1, Ordering::AcqRel);
                woken.push(waiter);
            }
        }
        woken.iter().for_each(|waiter| (waiter.wake)());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_get_slots_in_turn_after_a_burst_of_one() {
        let slots = Slots::default();
        let (busy, other) = (Waiter::new(|| ()), Waiter::new(|| ()));
        assert!(slots.take(4) && slots.take(4) && slots.take(4) && slots.take(4));
        (0..100).for_each(|_| assert!(!slots.take_or_wait(4, &busy)));
        (0..3).for_each(|_| assert!(!slots.take_or_wait(4, &other)));
        (0..4).for_each(|_| slots.give_back(4));
        assert_eq!((busy.granted(), other.granted()), (2, 2));
        (0..4).for_each(|_| slots.give_back(4));
        assert_eq!((busy.granted(), other.granted()), (3, 1), "who waits for nothing more gets nothing");
    }

    #[test]
    fn a_bound_that_is_raised_frees_slots() {
        let slots = Slots::default();
        let (busy, other) = (Waiter::new(|| ()), Waiter::new(|| ()));
        assert!(slots.take_or_wait(2, &busy) && slots.take_or_wait(2, &busy));
        assert!(!slots.take_or_wait(2, &busy) && !slots.take_or_wait(2, &other) && !slots.take_or_wait(2, &busy));
        slots.give_back(2);
        assert!(!slots.take(2) && !slots.take(9), "waiters go first");
        slots.give_back(2);
        assert_eq!((busy.granted(), other.granted()), (1, 1));
        // The bound is raised while others wait.
        assert!(!slots.take_or_wait(2, &other));
        slots.give_back(4);
        assert_eq!((busy.granted(), other.granted()), (1, 1));
        assert!(slots.take(4));
        (0..4).for_each(|_| slots.give_back(4));
        assert!(slots.take(1) && !slots.take(1));
    }

    #[test]
    fn a_raised_bound_is_granted_at_once() {
        let slots = Slots::default();
        let waiter = Waiter::new(|| ());
        assert!(slots.take(1) && !slots.take_or_wait(1, &waiter) && !slots.take_or_wait(1, &waiter));
        slots.grant(2);
        assert_eq!((waiter.granted(), slots.taken()), (1, 2));
    }

    #[test]
    fn who_leaves_gets_no_slot_and_releases_what_was_granted() {
        let slots = Slots::default();
        let (leaving, other) = (Waiter::new(|| ()), Waiter::new(|| ()));
        assert!(slots.take(1));
        (0..3).for_each(|_| assert!(!slots.take_or_wait(1, &leaving)));
        slots.forget(&leaving, 1);
        assert!(!slots.take_or_wait(1, &other));
        slots.give_back(1);
        slots.leave(1, &leaving);
        assert_eq!((leaving.granted(), other.granted(), slots.taken()), (0, 1, 1));
        slots.give_back(1);
        assert_eq!((leaving.granted(), slots.taken()), (0, 0));
    }
}
