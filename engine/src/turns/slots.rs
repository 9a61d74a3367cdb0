//! Slots for turns in flight: a bound that all workers share, first come, first served.
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
    waiting: VecDeque<Arc<Waiter>>,
}

impl Slots {
    /// Takes one of `most` slots and returns true, or queues the waiter and returns false.
    pub fn take_or_wait(&self, most: usize, waiter: &Arc<Waiter>) -> bool {
        let mut state = self.0.lock();
        if state.taken < most && state.waiting.is_empty() {
            state.taken += 1;
            return true;
        }
        state.waiting.push_back(waiter.clone());
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

    /// Releases one of `most` slots; the longest waiter gets it.
    pub fn give_back(&self, most: usize) {
        let mut woken = Vec::new();
        {
            let mut state = self.0.lock();
            state.taken = state.taken.saturating_sub(1);
            while state.taken < most
                && let Some(waiter) = state.waiting.pop_front()
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
    fn places_go_to_who_has_waited_longest() {
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
