//! Reload: from the plan that runs to another, without a turn lost.
//!
//! What is the same in both goes on with what it has. What is new or changed is built beside
//! what runs: models are loaded, a changed corpus is read and cut beside the one that serves, a
//! new index is filled. When all is there, the workers build the new plan's dataflow, and one
//! epoch switches: turns that start from then on are answered by the new plan, from corpora and
//! indexes that are the new plan's; turns in flight finish on the old one, and when the last has,
//! what only it used is let go. Whatever fails before the switch leaves the running plan as it
//! was.

mod prepare;
mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::switch::retire;
use super::build::{Feed, RuntimeContext};
use super::worker_pool::Command;
use super::{Engine, Inner, RunError};
use crate::component::{Index, Models};
use crate::connector::TurnSource;
use crate::corpus::{AddedIndex, CorpusIndexes};
use crate::dead_letter::Onward;
use crate::panics::caught;
use crate::plan::{Plan, PlanDiff, PlanFingerprint};
use crate::sinks::SinkHandle;
use crate::turns::Generation;

/// How often what is waited for is looked at.
const TICK: Duration = Duration::from_millis(2);

/// Why a reload was not done; the plan before goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// Something of the new plan cannot be built, read or filled.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run is ending, or the reload was given up for another.
    #[error("the reload was given up")]
    GivenUp,
    /// All turns are answered and no more can come.
    #[error("the run has ended")]
    Ended,
}

impl Engine {
    /// Goes over to another plan, and gives what was different; blocks until it serves, or
    /// until `give_up` says so.
    ///
    /// # Errors
    ///
    /// Something of the new plan cannot be built; then the running plan has not changed.
    pub fn reload(&self, plan: Plan, give_up: &dyn Fn() -> bool) -> Result<PlanDiff, ReloadError> {
        let inner = &self.inner;
        let one = inner.reloading.lock();
        let pool = &inner.context.pool;
        pool.hold();
        let done = if pool.is_finished() { Err(ReloadError::Ended) } else { Reload::new(inner, give_up).run(plan) };
        pool.let_go();
        drop(one);
        // Turns of an older plan may have ended meanwhile, and left what only they used to us.
        retire(inner, inner.context.shared.epochs.oldest_plan());
        done
    }

    /// What a reload to this plan would do.
    pub fn difference(&self, plan: &Plan) -> PlanDiff {
        PlanDiff::between(&self.inner.running.lock().outline, &PlanFingerprint::of(plan))
    }

    /// The plans that have turns in flight, the running one included.
    pub fn generations(&self) -> usize {
        self.inner.context.shared.generations.read().len()
    }
}

/// Sinks by node; `None` where answers go to the observer alone.
type Sinks = BTreeMap<Arc<str>, Option<Arc<SinkHandle>>>;

/// What a new plan runs with, built.
struct Built {
    models: Models,
    sinks: Sinks,
    generation: Arc<Generation>,
    /// Sources of turns that are new or changed, by node.
    sources: BTreeMap<Arc<str>, Box<dyn TurnSource>>,
    /// Where dead letters go from then on.
    letters: Onward,
}

/// A corpus on its way.
struct Coming {
    name: Arc<str>,
    indexes: CorpusIndexes,
    /// The corpus is new.
    fresh: bool,
    /// Of a corpus that is new or changed.
    feed: Option<Feed>,
    /// Indexes that it has not got, opened.
    opened: Vec<(String, Box<dyn Index>)>,
    /// The same, filled.
    filled: Vec<AddedIndex>,
    keys: BTreeSet<String>,
}

struct Reload<'a> {
    inner: &'a Arc<Inner>,
    context: &'a RuntimeContext,
    give_up: &'a dyn Fn() -> bool,
    coming: Vec<Coming>,
    generation: Option<Arc<Generation>>,
}

impl<'a> Reload<'a> {
    fn new(inner: &'a Arc<Inner>, give_up: &'a dyn Fn() -> bool) -> Self {
        Self { inner, context: &inner.context, give_up, coming: Vec::new(), generation: None }
    }

    fn run(mut self, plan: Plan) -> Result<PlanDiff, ReloadError> {
        let outline = PlanFingerprint::of(&plan);
        let diff = PlanDiff::between(&self.inner.running.lock().outline, &outline);
        if diff.is_empty() {
            return Ok(diff);
        }
        // Operators, models and sinks are built in it.
        let prepared = caught(|| self.prepare(&plan, &diff));
        let failed = |source| ReloadError::Run(RunError::Panicked { what: "the reload", source });
        match prepared.map_err(failed).flatten() {
            Ok(built) => {
                let switched = self.switch(&plan, &diff, outline, built);
                switched.map(|()| diff).inspect_err(|_| self.undo())
            }
            Err(error) => {
                self.undo();
                Err(error)
            }
        }
    }

    fn going_on(&self) -> Result<(), ReloadError> {
        match self.inner.stopping.load(Ordering::Acquire) || (self.give_up)() || self.context.pool.is_aborted() {
            true => Err(ReloadError::GivenUp),
            false => Ok(()),
        }
    }

    /// Takes back what was begun.
    fn undo(&mut self) {
        if let Some(generation) = self.generation.take() {
            self.context.shared.generations.write().remove(&generation.number);
            self.context.pool.tell(&Command::Close(generation.number));
        }
        let running = self.inner.running.lock();
        for mut coming in self.coming.drain(..) {
            if let Some(feed) = &mut coming.feed {
                coming.indexes.forget(feed.shared.feed);
                feed.source.end();
            }
            match running.corpora.get(&coming.name) {
                Some(there) => there.indexes.prepare_for(&there.keys),
                None => {
                    self.context.shared.epochs.admit(&coming.name, false);
                    self.inner.leaving.lock().push(coming.indexes.ended());
                }
            }
        }
        // A corpus that was new may have been published already.
        let current = self.context.shared.epochs.current();
        if current.corpora.keys().any(|name| !running.corpora.contains_key(name)) {
            let kept = |name: &str| running.corpora.contains_key(name);
            if let Err(error) = self.context.shared.epochs.switch(current.plan, Vec::new(), kept) {
                tracing::warn!(%error, "a corpus of a plan that was given up stays published");
            }
        }
    }
}
