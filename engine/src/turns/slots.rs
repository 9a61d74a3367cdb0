//! Turns that are worked on at once: a bound that all workers share, first come, first served.
//!
//! A conversation asks for a place when its next turn could start, and has at most one turn that
//! runs or waits; so places go round between conversations, however much one of them has queued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Who waits for places: the conversations of a source on one worker, or those who ask.
pub struct Waiter {
    granted: AtomicUsize,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Waiter {
    /// Is woken by this when it has been given a place.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { granted: AtomicUsize::new(0), wake: Box::new(wake) })
    }

    /// How many places it has been given since it asked last.
    pub fn granted(&self) -> usize {
        self.granted.swap(0, Ordering::AcqRel)
    }
}

/// The places.
#[derive(Default)]
pub struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    taken: usize,
    waiting: VecDeque<Arc<Waiter>>,
}

impl Slots {
    /// Takes one of `most` places, or waits for one in the order of those who do; whether it was
    /// taken.
    pub fn take_or_wait(&self, most: usize, waiter: &Arc<Waiter>) -> bool {
        let mut state = self.0.lock();
        if state.taken < most && state.waiting.is_empty() {
            state.taken += 1;
            return true;
        }
        state.waiting.push_back(waiter.clone());
        false
    }

    /// Takes one of `most` places if one is free and nobody waits.
    pub fn take(&self, most: usize) -> bool {
        let mut state = self.0.lock();
        let free = state.taken < most && state.waiting.is_empty();
        state.taken += usize::from(free);
        free
    }

    /// Places that are taken.
    pub fn taken(&self) -> usize {
        self.0.lock().taken
    }

    /// Gives a place back, of `most`; it goes to who has waited longest.
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
        assert!(!slots.take(2) && !slots.take(9), "those who wait go before");
        slots.give_back(2);
        assert_eq!((busy.granted(), other.granted()), (1, 1));
        // The bound is raised while some wait.
        assert!(!slots.take_or_wait(2, &other));
        slots.give_back(4);
        assert_eq!((busy.granted(), other.granted()), (1, 1));
        assert!(slots.take(4));
        (0..4).for_each(|_| slots.give_back(4));
        assert!(slots.take(1) && !slots.take(1));
    }
}
