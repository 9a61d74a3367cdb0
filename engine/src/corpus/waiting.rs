//! Contents whose model's server is away. The corpus is published without them; they are prepared when the server is back,
//! and then published without an edit or a restart.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::chunks::Chunks;
use super::index_writer::Job;
use super::prepare::{Preparing, in_order, parts};
use crate::component::{IndexError, Prepare};
use crate::document::{Content, ContentHash};

/// The first pause between two attempts, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The longest pause that a server may ask for.
const LONGEST: Duration = Duration::from_secs(300);

/// When the server has prepared something else, what waits is tried after this pause.
const AGAIN: Duration = Duration::from_secs(5);

/// After as many failures in a row, the server is away.
const AWAY: usize = 3;

/// A failure that the content may have caused is this part of one.
const OF_THE_INPUT: usize = 4;

/// Failures in a row, of contents that were tried alone.
#[derive(Default)]
pub(super) struct Failures(usize);

impl Failures {
    pub(super) fn add(&mut self, error: &IndexError) {
        self.0 += if error.may_be_of_the_input() { 1 } else { OF_THE_INPUT };
    }

    /// Whether they are so many that the server is away.
    pub(super) fn are_an_absence(&self) -> bool {
        self.0 >= AWAY * OF_THE_INPUT
    }
}

/// A commit of a feed.
pub(super) type Commit = (u64, u64);

/// The contents that wait, by what prepares them.
#[derive(Default)]
pub(super) struct Waiting {
    state: Mutex<State>,
    /// Told when a server has prepared something.
    worked: Notify,
}

#[derive(Default)]
struct State {
    of: Vec<(Weak<dyn Prepare>, HashMap<ContentHash, Waits>)>,
    /// Whether a task tries to prepare them.
    is_tried: bool,
    /// The preparations whose server is away, as far as known.
    away: Vec<Weak<dyn Prepare>>,
    /// The longest pause that a server has asked for since the last attempt.
    asked: Option<Duration>,
    /// Contents that were tried alone, and that the server has not answered.
    unanswered: HashSet<ContentHash>,
    /// When the server of a preparation, by its address, has last prepared something.
    worked: HashMap<usize, Instant>,
}

impl Waiting {
    /// A server has prepared something.
    pub(super) fn worked(&self, preparation: &Arc<dyn Prepare>) {
        self.is_away(preparation, Some(false));
        self.state.lock().worked.insert(address(preparation), Instant::now());
        self.worked.notify_one();
    }

    /// When the server has last prepared something.
    pub(super) fn worked_last(&self, preparation: &Arc<dyn Prepare>) -> Option<Instant> {
        self.state.lock().worked.get(&address(preparation)).copied()
    }

    /// A server has failed, and may have asked for a pause.
    pub(super) fn failed(&self, error: &IndexError) {
        if let Some(after) = error.after() {
            let asked = &mut self.state.lock().asked;
            *asked = (*asked).max(Some(after.min(LONGEST)));
        }
    }

    /// The pause until the next attempt: this one, or what a server has asked for.
    fn pause(&self, pause: Duration) -> Duration {
        // A server that asks for no pause is not asked more often than one that says nothing.
        self.state.lock().asked.take().filter(|asked| *asked >= PAUSES.0).unwrap_or(pause)
    }

    /// Waits until the next attempt.
    async fn rest(&self, pause: Duration) {
        // What it has prepared before it failed says nothing.
        let _ = self.worked.notified().now_or_never();
        let works_again = async {
            tokio::time::sleep(AGAIN).await;
            self.worked.notified().await;
        };
        let _ = tokio::time::timeout(pause, works_again).await;
    }

    /// Whether a preparation's server is away, as far as known. `now`: what is known now.
    pub(super) fn is_away(&self, preparation: &Arc<dyn Prepare>, now: Option<bool>) -> bool {
        let address = Arc::as_ptr(preparation).cast::<()>();
        let away = &mut self.state.lock().away;
        let known = away.iter().position(|other| other.as_ptr().cast::<()>() == address);
        match (known, now) {
            (Some(at), Some(false)) => drop(away.swap_remove(at)),
            (None, Some(true)) => away.push(Arc::downgrade(preparation)),
            _ => {}
        }
        now.unwrap_or(known.is_some())
    }
}

fn address(preparation: &Arc<dyn Prepare>) -> usize {
    Arc::as_ptr(preparation).cast::<()>() as usize
}

/// A content that waits.
struct Waits {
    content: Content,
    /// The commits that bring it, as long as the index writer does not have them.
    coming: Vec<Commit>,
}

impl State {
    fn contents(&mut self, preparation: &Arc<dyn Prepare>) -> &mut HashMap<ContentHash, Waits> {
        let at = self.position(preparation).unwrap_or_else(|| {
            self.of.push((Arc::downgrade(preparation), HashMap::new()));
            self.of.len() - 1
        });
        &mut self.of[at].1
    }

    fn position(&self, preparation: &Arc<dyn Prepare>) -> Option<usize> {
        let address = Arc::as_ptr(preparation).cast::<()>();
        self.of.iter().position(|(other, _)| other.as_ptr().cast::<()>() == address)
    }

    fn of(&self, preparation: &Arc<dyn Prepare>) -> Option<&HashMap<ContentHash, Waits>> {
        self.position(preparation).map(|at| &self.of[at].1)
    }

    fn count(&self) -> u64 {
        let kept = self.of.iter().filter(|(preparation, _)| preparation.strong_count() > 0);
        let hashes: HashSet<&ContentHash> = kept.flat_map(|(_, contents)| contents.keys()).collect();
        hashes.len() as u64
    }

    /// Forgets contents that no chunk of these feeds has, and that no commit brings.
    fn forget_gone(&mut self, feeds: &BTreeMap<u64, Chunks>, commits: &BTreeMap<u64, u64>) {
        let mut searched: HashSet<ContentHash> = HashSet::new();
        for waits in self.of.iter_mut().flat_map(|(_, contents)| contents.values_mut()) {
            waits.coming.retain(|(feed, at)| commits.get(feed).is_none_or(|commits| at >= commits));
            let chunk = &waits.content.chunk;
            if waits.coming.is_empty() && !feeds.values().any(|chunks| chunks.has(chunk)) {
                searched.insert(chunk.hash);
            }
        }
        if searched.is_empty() {
            return;
        }
        // Other chunks may have the same content.
        let all = feeds.values().flat_map(Chunks::each);
        let found: HashMap<_, _> =
            all.filter(|chunk| searched.contains(&chunk.hash)).map(|chunk| (chunk.hash, chunk.clone())).collect();
        for (_, contents) in &mut self.of {
            contents.retain(|hash, waits| {
                if let Some(chunk) = found.get(hash) {
                    waits.content.chunk = chunk.clone();
                }
                !waits.coming.is_empty() || !searched.contains(hash) || found.contains_key(hash)
            });
        }
    }
}

impl Preparing {
    /// Leaves contents for later, because a server is away. `commit` brings them, if the index writer may not have them yet.
    pub(super) fn set_aside(
        &self,
        preparation: &Arc<dyn Prepare>,
        part: &[Content],
        commit: Option<Commit>,
        error: &dyn fmt::Display,
    ) {
        let part = preparation.lacking(part);
        if part.is_empty() {
            return;
        }
        preparation.set_aside(&part);
        let mut waiting = self.waiting.state.lock();
        let contents = waiting.contents(preparation);
        for content in part {
            let waits = contents.entry(content.hash()).or_insert_with(|| Waits { content, coming: Vec::new() });
            if let Some((feed, at)) = commit {
                match waits.coming.iter_mut().find(|(of, _)| *of == feed) {
                    Some((_, known)) => *known = at.max(*known),
                    None => waits.coming.push((feed, at)),
                }
            }
        }
        self.tell(&waiting, Some(error));
        tracing::warn!(corpus = %self.corpus, %error, missing = waiting.count(),
            "passages are missing from an index until the model's server is back");
        if !std::mem::replace(&mut waiting.is_tried, true) {
            tokio::spawn(self.clone().prepare_waiting());
        }
    }

    /// Those of the contents that do not wait already.
    pub(super) fn not_waiting(&self, preparation: &Arc<dyn Prepare>, mut contents: Vec<Content>) -> Vec<Content> {
        if let Some(waiting) = self.waiting.state.lock().of(preparation) {
            contents.retain(|content| !waiting.contains_key(&content.hash()));
        }
        contents
    }

    /// Number of chunks whose contents wait for a preparation.
    pub(super) fn count_waiting(&self, preparation: &Arc<dyn Prepare>, chunks: &Chunks) -> u64 {
        let waiting = self.waiting.state.lock();
        let contents = waiting.of(preparation).filter(|contents| !contents.is_empty());
        // Several chunks may have the same content.
        contents.map_or(0, |contents| chunks.each().filter(|chunk| contents.contains_key(&chunk.hash)).count() as u64)
    }

    /// Forgets contents that are in no feed any more. `commits`: the number of commits that each feed has.
    pub(super) fn forget_gone(&self, feeds: &BTreeMap<u64, Chunks>, commits: &BTreeMap<u64, u64>) {
        let mut waiting = self.waiting.state.lock();
        if waiting.of.iter().any(|(_, contents)| !contents.is_empty()) {
            waiting.forget_gone(feeds, commits);
            self.tell(&waiting, None);
        }
    }

    /// Forgets what waits for a feed that is dropped.
    pub(super) fn forget_feed(&self, feed: u64) {
        let mut waiting = self.waiting.state.lock();
        let all = waiting.of.iter_mut().flat_map(|(_, contents)| contents.values_mut());
        all.for_each(|waits| waits.coming.retain(|(of, _)| *of != feed));
    }

    /// Forgets what waits for an index that is dropped.
    pub(super) fn forget_index(&self, preparation: &Arc<dyn Prepare>) {
        let mut waiting = self.waiting.state.lock();
        if let Some(at) = waiting.position(preparation) {
            waiting.of.remove(at);
            self.tell(&waiting, None);
        }
    }

    /// Counts what is missing.
    fn tell(&self, waiting: &State, error: Option<&dyn fmt::Display>) {
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
            self.waiting.rest(self.waiting.pause(pause)).await;
            round = round.wrapping_add(1);
            let is_open = || self.jobs.get().is_some_and(|jobs| jobs.upgrade().is_some());
            if !is_open() {
                return;
            }
            let mut any = false;
            let waiting: Vec<(Arc<dyn Prepare>, Vec<Content>)> = {
                let mut state = self.waiting.state.lock();
                // The index of a preparation that is gone was dropped by a reload.
                any |= state.of.extract_if(.., |(of, _)| of.strong_count() == 0).any(|(_, waits)| !waits.is_empty());
                state.of.retain(|(preparation, contents)| preparation.strong_count() > 0 && !contents.is_empty());
                let each = state.of.iter();
                let contents = |of: &HashMap<_, Waits>| of.values().map(|waits| waits.content.clone()).collect();
                each.filter_map(|(of, waits)| Some((of.upgrade()?, contents(waits)))).collect()
            };
            for (preparation, contents) in waiting {
                any |= self.try_again(&preparation, contents, round).await;
            }
            if any && let Some(jobs) = self.jobs.get().and_then(|jobs| jobs.upgrade()) {
                let _ = jobs.send(Job::Found);
            }
            let mut state = self.waiting.state.lock();
            self.tell(&state, None);
            if state.count() == 0 {
                state.is_tried = false;
                state.away.clear();
                state.unanswered.clear();
                drop(state);
                tracing::warn!(corpus = %self.corpus, "no passage is missing any more");
                return;
            }
            pause = if any { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
        }
    }

    /// Tries once to prepare contents that wait. Returns whether any is prepared, or refused for a reason of its own.
    async fn try_again(&self, preparation: &Arc<dyn Prepare>, contents: Vec<Content>, round: usize) -> bool {
        let (unanswered, others): (Vec<Content>, Vec<Content>) = {
            let state = self.waiting.state.lock();
            contents.into_iter().partition(|content| state.unanswered.contains(&content.hash()))
        };
        let has_others = !others.is_empty();
        let any = self.try_others(preparation, others, round).await;
        match has_others && self.waiting.is_away(preparation, None) {
            true => any,
            false => any | self.try_unanswered(preparation, &unanswered, round).await,
        }
    }

    async fn try_others(&self, preparation: &Arc<dyn Prepare>, mut contents: Vec<Content>, round: usize) -> bool {
        in_order(&mut contents);
        let mut any = false;
        // What another process has prepared meanwhile does not show that the server is back.
        let (mut is_back, mut failed) = (false, Failures::default());
        for part in parts(&contents) {
            match self.attempt_in_time(preparation, part, Instant::now()).await {
                Ok(was_called) => {
                    is_back |= was_called;
                    any |= self.found(preparation, part);
                }
                Err(error) if error.is_outage() => {
                    self.tell(&self.waiting.state.lock(), Some(&error));
                    // A server that has asked for a pause is not asked for each.
                    if error.after().is_some() {
                        self.waiting.is_away(preparation, Some(true));
                        return any;
                    }
                    // A content may be what the server fails on, so each is tried alone. Each time, others are the first
                    // ones, in no order of length.
                    let mut part = part.to_vec();
                    part.sort_by_key(Content::hash);
                    for n in 0..part.len() {
                        let alone = std::slice::from_ref(&part[(n + round.wrapping_mul(AWAY)) % part.len()]);
                        match self.attempt_in_time(preparation, alone, Instant::now()).await {
                            Ok(was_called) => {
                                is_back |= was_called;
                                any |= self.found(preparation, alone);
                            }
                            // It may only be slow, but then it has time for one.
                            Err(error) if error.is_silence() => {
                                self.waiting.state.lock().unanswered.insert(alone[0].hash());
                                if !is_back {
                                    self.waiting.is_away(preparation, Some(true));
                                    return any;
                                }
                            }
                            Err(error) if error.is_outage() => failed.add(&error),
                            Err(error) => any |= self.refused(preparation, alone, &error).await,
                        }
                        if failed.are_an_absence() && !is_back {
                            self.waiting.is_away(preparation, Some(true));
                            return any;
                        }
                    }
                }
                Err(error) => any |= self.refused(preparation, part, &error).await,
            }
        }
        any
    }

    /// Tries contents that the server has not answered before, and that it may hang at, until one is not answered again.
    async fn try_unanswered(&self, preparation: &Arc<dyn Prepare>, contents: &[Content], round: usize) -> bool {
        let mut any = false;
        for n in 0..contents.len() {
            let alone = std::slice::from_ref(&contents[(n + round) % contents.len()]);
            let tried = self.attempt_in_time(preparation, alone, Instant::now()).await;
            if tried.as_ref().is_err_and(IndexError::is_silence) {
                break;
            }
            self.waiting.state.lock().unanswered.remove(&alone[0].hash());
            any |= match tried {
                Ok(_) => self.found(preparation, alone),
                Err(error) if error.is_outage() => false,
                Err(error) => self.refused(preparation, alone, &error).await,
            };
        }
        any
    }

    /// Tries each of these contents for the last time, for a reason that is not an outage. Returns whether any waits no
    /// longer.
    async fn refused(&self, preparation: &Arc<dyn Prepare>, part: &[Content], error: &IndexError) -> bool {
        let waiting = self.give_up(preparation, part, None, error, Instant::now()).await;
        let done: Vec<Content> = part.iter().filter(|content| !waiting.contains(&content.hash())).cloned().collect();
        !done.is_empty() && self.found(preparation, &done)
    }

    /// These contents wait no longer.
    fn found(&self, preparation: &Arc<dyn Prepare>, part: &[Content]) -> bool {
        let mut waiting = self.waiting.state.lock();
        let contents = waiting.contents(preparation);
        part.iter().for_each(|content| _ = contents.remove(&content.hash()));
        self.tell(&waiting, None);
        true
    }
}

#[cfg(test)]
mod tests;
