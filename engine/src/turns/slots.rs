//! Slots for turns in flight: a bound that all workers share. Those who wait, the workers and the callers, get slots in
//! turn. If the longest wait had the next slot, a worker with a burst of waiting turns would get all slots, and the other
//! workers would be idle meanwhile.
//!
//! A conversation requests a slot when its next turn can start, and has at most one turn that runs
//! or waits. So slots are shared fairly between conversations, however much one of them has queued.

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
        let mut woken = Vec::new();
        {
            let mut state = self.0.lock();
            state.taken = state.taken.saturating_sub(1);
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
}
