//! Reload: replaces the running plan with another one, without losing a turn.
//!
//! Unchanged components are kept. New and changed components are built next to the running ones:
//! models are loaded, a changed corpus is read and chunked, a new index is filled. When everything is
//! ready, the workers build the new plan's dataflow, and one epoch switches over: turns that start
//! from then on are answered by the new plan, with its corpora and indexes. Turns in flight finish on
//! the old plan; after the last one, components that only the old plan used are released. A failure
//! before the switch leaves the running plan unchanged.
//!
//! # The steps of a reload
//!
//! `prepare.rs` builds the new plan, `switch.rs` switches to it, and `sources.rs` ends and begins the sources of turns.
//!
//! 1. **Diff.** `engine/src/plan/diff.rs` compares the settings in the two pipeline files. Each model, corpus and node
//!    is kept, added, removed, or changed with reasons. Kept components continue with their state.
//! 2. **Preparation.** New and changed models are loaded. A new index is filled beside those that are served. A corpus
//!    whose source or chunker changes is read by a second feed; its chunks are collected while those of the first feed
//!    are still served. If sinks change while a restart is still replaying its log, the reload waits for the replay,
//!    because only the running sinks know what their files contain. When a sink gets another file, the store keeps the
//!    position in the old file until no turn from before the switch is left, and a restart searches both files.
//! 3. **Switch.** The workers build the new generation, and removed sources are drained. Each index writer applies the
//!    difference between the chunks of the old and the new feed. One epoch then publishes all of these changes and
//!    names the new generation.
//! 4. **Retirement.** Turns in flight finish on the old generation. When no pinned epoch names it any more, its
//!    ingresses are closed, its dataflow ends, and indexes that no generation uses are released.
//!
//! A failure before the switch is undone. The one exception is a drained source: if the epoch cannot be written at that
//! moment, the run ends, and a restart resumes. A sink is emptied (`append: false`) only when a run starts with it,
//! never by a reload.

pub(super) mod follow;
mod prepare;
mod sources;
mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::follow::Step;
use self::switch::retire;
use super::build::{Feed, RuntimeContext};
use super::lacking::Loaded;
use super::worker_pool::Command;
use super::{Engine, Inner, RunError};
use crate::component::Index;
use crate::connector::TurnSource;
use crate::corpus::{AddedIndex, CorpusIndexes};
use crate::dead_letter::Onward;
use crate::panics::caught;
use crate::plan::{ChangeKind, Divided, Plan, PlanDiff, PlanFingerprint};
use crate::publish::PlanSwitch;
use crate::sinks::SinkHandle;
use crate::turns::Generation;

/// The polling interval.
const TICK: Duration = Duration::from_millis(2);
/// How long a process waits for its file to become that of the first one, and for a checkpoint that fails. After this long,
/// sinks that delay a reload are logged.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval between looks at the file, and between attempts to write a checkpoint.
const LOOK: Duration = Duration::from_millis(200);

/// Why a reload failed; the previous plan keeps running.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A part of the new plan cannot be built, read or filled.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run is ending, or another reload replaces this one.
    #[error("the reload was cancelled")]
    GivenUp,
    /// The first process of a cluster leads its reloads.
    #[error("process 0 reloads the pipeline of a cluster: send the signal to it")]
    Follower,
    /// Another process of the cluster cannot reload.
    #[error("{reason}")]
    Elsewhere {
        /// The process and its reason.
        reason: String,
    },
    /// All turns are answered and no more can arrive.
    #[error("the run has ended")]
    Ended,
}

impl Engine {
    /// Switches to another plan and returns the differences; blocks until the new plan serves, or
    /// until `give_up` returns true.
    ///
    /// # Errors
    ///
    /// The new plan cannot be built, and the running plan is unchanged.
    pub fn reload(&self, plan: Plan, give_up: &dyn Fn() -> bool) -> Result<PlanDiff, ReloadError> {
        if !self.shape().is_first() {
            return Err(ReloadError::Follower);
        }
        let inner = &self.inner;
        let one = inner.reloading.lock();
        let pool = &inner.context.pool;
        pool.hold();
        let done = if pool.is_finished() { Err(ReloadError::Ended) } else { Reload::new(inner, give_up).run(plan) };
        pool.release();
        drop(one);
        // The last turns of an older plan may have ended during the reload: release its components.
        retire(inner, inner.context.shared.epochs.oldest_plan());
        done
    }

    /// The changes that a reload to this plan would make.
    pub fn difference(&self, plan: &Plan) -> PlanDiff {
        self.inner.difference(plan, &PlanFingerprint::of(plan))
    }

    /// Number of plans with turns in flight, including the running one.
    pub fn generations(&self) -> usize {
        self.inner.context.shared.generations.read().len()
    }
}

impl Inner {
    /// The changes from the running plan to another one.
    fn difference(&self, plan: &Plan, outline: &PlanFingerprint) -> PlanDiff {
        let running = self.running.lock();
        let mut diff = PlanDiff::between(&running.outline, outline);
        if self.context.options.shape().is_cluster() {
            let divided = Divided::of(plan).sources;
            for (id, feed) in &running.sources {
                if PlanDiff::keeps(&diff.nodes, id) && feed.handle.divided != divided.contains(id) {
                    let reason = "the processes that read it".to_owned();
                    diff.nodes.insert(id.clone(), ChangeKind::Changed(vec![reason]));
                }
            }
        }
        diff
    }
}

/// Sinks by node; `None` if only the observer gets answers.
type Sinks = BTreeMap<Arc<str>, Option<Arc<SinkHandle>>>;

/// The built components of a new plan.
struct Built {
    loaded: Loaded,
    sinks: Sinks,
    generation: Arc<Generation>,
    /// New and changed turn sources, by node.
    sources: BTreeMap<Arc<str>, Box<dyn TurnSource>>,
    /// The new destination of dead letters.
    letters: Onward,
}

/// A corpus that is being prepared.
struct Coming {
    name: Arc<str>,
    indexes: CorpusIndexes,
    /// The corpus is new.
    fresh: bool,
    /// The feed of a new or changed corpus.
    feed: Option<Feed>,
    /// Its new indexes, opened.
    opened: Vec<(String, Box<dyn Index>)>,
    /// The keys of its new indexes.
    added: BTreeSet<String>,
    /// Its new indexes, filled.
    filled: Vec<AddedIndex>,
    keys: BTreeSet<String>,
}

struct Reload<'a> {
    inner: &'a Arc<Inner>,
    context: &'a RuntimeContext,
    give_up: &'a dyn Fn() -> bool,
    coming: Vec<Coming>,
    generation: Option<Arc<Generation>>,
    /// Its number among the reloads of a cluster.
    number: u64,
}

impl<'a> Reload<'a> {
    fn new(inner: &'a Arc<Inner>, give_up: &'a dyn Fn() -> bool) -> Self {
        let number = inner.context.peers.as_ref().map_or(0, |peers| peers.next_version());
        Self { inner, context: &inner.context, give_up, coming: Vec::new(), generation: None, number }
    }

    fn run(mut self, plan: Plan) -> Result<PlanDiff, ReloadError> {
        let outline = PlanFingerprint::of(&plan);
        let diff = self.inner.difference(&plan, &outline);
        if diff.is_empty() {
            return Ok(diff);
        }
        // This builds operators, models and sinks, which may panic.
        let prepared = caught(|| self.prepare(&plan, &diff));
        let failed = |source| ReloadError::Run(RunError::Panicked { what: "the reload", source });
        match prepared.map_err(failed).flatten() {
            Ok(built) => {
                let switched = self.switch(&plan, &diff, outline, built);
                switched.inspect_err(|_| self.undo_everywhere())?;
                self.context.remember(&plan);
                Ok(diff)
            }
            Err(error) => {
                self.undo_everywhere();
                self.going_on().and(Err(error))
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.inner.stopping.load(Ordering::Acquire) || (self.give_up)() || self.context.pool.is_aborted()
    }

    fn going_on(&self) -> Result<(), ReloadError> {
        if self.is_cancelled() { Err(ReloadError::GivenUp) } else { Ok(()) }
    }

    /// Reverts the changes of a failed reload, in all processes.
    fn undo_everywhere(&mut self) {
        self.undo();
        if !self.context.pool.is_aborted()
            && let Err(error) = self.lead_surely(&Step::Undo { reload: self.number })
        {
            tracing::warn!(%error, "cannot revert the reload in another process");
        }
    }

    /// Reverts the changes of a failed reload.
    fn undo(&mut self) {
        if let Some(generation) = self.generation.take() {
            self.context.shared.generations.write().remove(&generation.number);
            self.context.pool.tell(&Command::Close(generation.number));
        }
        let running = self.inner.running.lock();
        self.context.shared.durable.keep_sources(|source| running.sources.contains_key(source));
        for mut coming in self.coming.drain(..) {
            if let Some(feed) = &mut coming.feed {
                coming.indexes.forget(feed.shared.feed);
                feed.source.end();
            }
            match running.corpora.get(&coming.name) {
                Some(there) => there.indexes.prepare_for(&there.keys),
                None => {
                    self.context.published.admit(&coming.name, false);
                    self.context.parts.retain(|name| *name != *coming.name);
                    self.inner.leaving.lock().push(coming.indexes.ended());
                }
            }
        }
        // A new corpus may already be published.
        let current = self.context.published.current();
        if current.corpora.keys().any(|name| !running.corpora.contains_key(name)) {
            let kept = |name: &str| running.corpora.contains_key(name);
            let (plan, family, aliases) = (current.plan, current.family, current.aliases.clone());
            let switch = PlanSwitch { plan, family, aliases, changes: None };
            let switched = self.context.published.switch(switch, Vec::new(), kept);
            drop(running);
            match switched {
                Ok(_) => self.announce(),
                Err(error) => {
                    tracing::warn!(%error, "cannot remove a corpus of the cancelled plan; it stays published");
                }
            }
        }
    }

    /// Tells the other processes of a cluster of the newest epoch.
    fn announce(&self) {
        if let Some(manifests) = self.context.manifests.as_ref().filter(|_| !self.context.pool.is_aborted()) {
            self.context.handle.block_on(manifests.announce(&self.context.published));
        }
    }
}
