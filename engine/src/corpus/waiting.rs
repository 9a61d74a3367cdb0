//! Contents whose model's server is away. The corpus is published without them; they are prepared when the server is back,
//! and then published without an edit or a restart.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::index_writer::Job;
use super::prepare::{Preparing, in_order, parts};
use crate::component::{IndexError, Prepare};
use crate::document::{Content, ContentHash};

/// The first pause between two attempts, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// After as many failures in a row, the server is away.
const AWAY: usize = 3;

/// The contents that wait, by what prepares them.
#[derive(Default)]
pub(super) struct Waiting(Mutex<State>);

#[derive(Default)]
struct State {
    of: Vec<(Weak<dyn Prepare>, HashMap<ContentHash, Content>)>,
    /// Whether a task tries to prepare them.
    is_tried: bool,
}

impl State {
    fn contents(&mut self, preparation: &Arc<dyn Prepare>) -> &mut HashMap<ContentHash, Content> {
        let address = Arc::as_ptr(preparation).cast::<()>();
        let known = self.of.iter().position(|(other, _)| other.as_ptr().cast::<()>() == address);
        let at = known.unwrap_or_else(|| {
            self.of.push((Arc::downgrade(preparation), HashMap::new()));
            self.of.len() - 1
        });
        &mut self.of[at].1
    }

    fn count(&self) -> u64 {
        let hashes: HashSet<&ContentHash> = self.of.iter().flat_map(|(_, contents)| contents.keys()).collect();
        hashes.len() as u64
    }
}

impl Preparing {
    /// Leaves contents for later, because a server is away.
    pub(super) fn set_aside(&self, preparation: &Arc<dyn Prepare>, part: &[Content], error: &IndexError) {
        preparation.set_aside(part);
        let mut waiting = self.waiting.0.lock();
        waiting.contents(preparation).extend(part.iter().map(|content| (content.hash(), content.clone())));
        self.tell(&waiting, Some(error));
        tracing::warn!(corpus = %self.corpus, %error, missing = waiting.count(),
            "passages are missing from an index until the model's server is back");
        if !std::mem::replace(&mut waiting.is_tried, true) {
            tokio::spawn(self.clone().prepare_waiting());
        }
    }

    /// Counts what is missing.
    fn tell(&self, waiting: &State, error: Option<&IndexError>) {
        let missing = waiting.count();
        self.progress.missing.store(missing, Ordering::Relaxed);
        let mut problem = self.progress.problem.lock();
        match error {
            _ if missing == 0 => *problem = None,
            Some(error) => *problem = Some(error.to_string()),
            None => {}
        }
    }

    /// Prepares what waits, with growing pauses and without end.
    async fn prepare_waiting(self) {
        let (mut pause, mut round) = (PAUSES.0, 0_usize);
        loop {
            tokio::time::sleep(pause).await;
            round = round.wrapping_add(1);
            let is_open = || self.jobs.get().is_some_and(|jobs| jobs.upgrade().is_some());
            if !is_open() {
                return;
            }
            let waiting: Vec<(Arc<dyn Prepare>, Vec<Content>)> = {
                let mut state = self.waiting.0.lock();
                // The index of a preparation that is gone was dropped by a reload.
                state.of.retain(|(preparation, contents)| preparation.strong_count() > 0 && !contents.is_empty());
                let each = state.of.iter();
                each.filter_map(|(of, contents)| Some((of.upgrade()?, contents.values().cloned().collect()))).collect()
            };
            let mut any = false;
            for (preparation, contents) in waiting {
                any |= self.try_again(&preparation, contents, round).await;
            }
            if any && let Some(jobs) = self.jobs.get().and_then(|jobs| jobs.upgrade()) {
                let _ = jobs.send(Job::Found);
            }
            let mut state = self.waiting.0.lock();
            self.tell(&state, None);
            if state.count() == 0 {
                state.is_tried = false;
                drop(state);
                tracing::warn!(corpus = %self.corpus, "all passages that were missing are prepared");
                return;
            }
            pause = if any { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
        }
    }

    /// Tries once to prepare contents that wait. Returns whether any is prepared, or refused for a reason of its own.
    async fn try_again(&self, preparation: &Arc<dyn Prepare>, mut contents: Vec<Content>, round: usize) -> bool {
        in_order(&mut contents);
        let (mut any, mut failed) = (false, 0);
        for part in parts(&contents) {
            match self.attempt(preparation, part).await {
                Ok(()) => any |= self.found(preparation, part),
                Err(error) if error.is_outage() => {
                    self.tell(&self.waiting.0.lock(), Some(&error));
                    // A content may be what the server fails on, so each is tried alone, in another order each time.
                    for n in 0..part.len() {
                        let alone = std::slice::from_ref(&part[(n + round) % part.len()]);
                        match self.attempt(preparation, alone).await {
                            Ok(()) => any |= self.found(preparation, alone),
                            Err(_) => failed += 1,
                        }
                        if failed >= AWAY && !any {
                            return false;
                        }
                    }
                }
                Err(_) => {
                    self.found(preparation, part);
                    self.give_up(preparation, part).await;
                    any = true;
                }
            }
        }
        any
    }

    /// These contents wait no longer.
    fn found(&self, preparation: &Arc<dyn Prepare>, part: &[Content]) -> bool {
        let mut waiting = self.waiting.0.lock();
        let contents = waiting.contents(preparation);
        part.iter().for_each(|content| drop(contents.remove(&content.hash())));
        self.tell(&waiting, None);
        true
    }
}
