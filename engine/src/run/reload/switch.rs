//! The switch: drains removed sources, publishes one epoch with the new plan, and releases the
//! components of older plans when their turns are done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tokio::sync::oneshot;

use super::follow::{Keys, Step};
use super::{Built, Reload, ReloadError, Sinks, TICK};
use crate::cluster::{Topic, encode};
use crate::component::BuildError;
use crate::component::CorpusSnapshot;
use crate::connector::{Offsets, TurnSource};
use crate::plan::{ChangeKind, Divided, NodeKind, Plan, PlanDiff, PlanFingerprint, PlannedNode};
use crate::run::build::{Feed, Manual, TurnFeed};
use crate::run::divided::{Reading, Waiting};
use crate::run::worker_pool::Command;
use crate::run::{Inner, RunError, RunningCorpus};
use crate::sinks::SinkStatus;

/// After this time, a reload logs the sinks that delay it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where new and changed sources begin.
#[derive(Default)]
pub(super) struct Resumes {
    /// The offsets after which they resume.
    pub offsets: BTreeMap<Arc<str>, Offsets>,
    /// How those are read that all processes of a cluster read together.
    pub readings: BTreeMap<Arc<str>, Reading>,
}

impl Reload<'_> {
    /// Records the positions in files that sinks no longer use.
    fn leave_sinks(&self, sinks: &Sinks) -> Result<(), ReloadError> {
        let old = self.inner.running.lock().sinks.clone();
        for (id, new) in sinks {
            if let (Some(old), Some(new)) = (old.get(id).and_then(Option::as_ref), new)
                && !Arc::ptr_eq(old, new)
                && old.file() != new.file()
            {
                self.context.shared.durable.leaves(old).map_err(RunError::Store)?;
            }
        }
        Ok(())
    }

    /// Ends removed and changed sources: no turn may start that only the old plan can answer. Returns the offsets up to
    /// which the other processes have applied everything.
    fn end_sources(&self, diff: &PlanDiff) -> Result<BTreeMap<Arc<str>, Offsets>, ReloadError> {
        self.end_manual(diff);
        let goes = |id: &&Arc<str>| !PlanDiff::keeps(&diff.nodes, id);
        let going: Vec<Arc<str>> = self.inner.running.lock().sources.keys().filter(goes).cloned().collect();
        if going.is_empty() {
            return Ok(BTreeMap::new());
        }
        let begun = self.begin(&Step::EndSources(going))?;
        let handles: Vec<_> = {
            let mut running = self.inner.running.lock();
            let going = running.sources.iter_mut().filter(|(id, _)| goes(id));
            going.map(|(_, feed)| (feed.end(), feed.queue.clone())).collect()
        };
        // The ended sources can only be started again, so from here on only the end of the run
        // cancels the reload.
        let mut told = Instant::now();
        for (handle, queue) in handles {
            while !handle.ended.load(Ordering::Acquire) {
                let failing = || self.context.shared.durable.sinks().into_iter().map(|sink| sink.status());
                if told.elapsed() > PATIENCE {
                    told = Instant::now();
                    for SinkStatus { id, pending, fault, .. } in failing().filter(|status| status.fault.is_some()) {
                        tracing::warn!(source = %handle.id, sink = %id, pending, fault = fault.unwrap_or_default(),
                            "the reload waits for turns of the old source, whose answers the sink does not accept");
                    }
                }
                if self.context.pool.is_aborted() || self.inner.stopping.load(Ordering::Acquire) {
                    return Err(ReloadError::GivenUp);
                }
                std::thread::park_timeout(TICK);
            }
            let is_removed = matches!(diff.nodes.get(&handle.id), Some(ChangeKind::Removed) | None);
            let waiting = queue.filter(|_| is_removed).and_then(|queue| queue.waiting().ok()).unwrap_or_default();
            if waiting > 0 {
                tracing::warn!(source = %handle.id, waiting,
                    "the removed source has turns: those without an answer wait until it is added again");
            }
        }
        self.all_have_ended(begun)
    }

    /// Ends the source that the program fills, if the new plan does not have it.
    pub(super) fn end_manual(&self, diff: &PlanDiff) {
        // Dropping the sender ends its source.
        let mut running = self.inner.running.lock();
        running.manual.take_if(|manual| !PlanDiff::keeps(&diff.nodes, &manual.source));
    }

    /// Publishes the changes of all corpora in one epoch.
    fn publish(&mut self, generation: u64, plan: &Plan) -> Result<(), ReloadError> {
        let names: BTreeSet<Arc<str>> = plan.corpora.iter().map(|corpus| corpus.name.clone()).collect();
        let mut views: Vec<(Arc<str>, CorpusSnapshot)> = Vec::new();
        let mut waiting = Vec::new();
        let mut failed = None;
        for coming in &mut self.coming {
            let filled = std::mem::take(&mut coming.filled);
            let feed = coming.feed.as_ref().filter(|_| !coming.fresh).map(|feed| feed.shared.feed);
            if coming.fresh || (feed.is_none() && filled.is_empty()) {
                continue;
            }
            let (published, told) = oneshot::channel();
            match self.context.handle.block_on(coming.indexes.switch(feed, filled, told)) {
                Ok(view) => {
                    views.push((coming.name.clone(), view));
                    waiting.push(published);
                }
                Err(source) => {
                    let (index, corpus) = ("all".to_owned(), coming.name.to_string());
                    failed = Some(RunError::Build(BuildError::Index { index, corpus, source }));
                    break;
                }
            }
        }
        let switched = match failed {
            Some(error) => Err(error),
            None => {
                let kept = |name: &str| names.contains(name);
                let aliases = Arc::new(plan.aliases());
                let switched = self.context.published.switch(generation, aliases, views, kept);
                switched.map(drop).map_err(RunError::Epochs)
            }
        };
        // Before an index writer asks the other processes for more.
        if switched.is_ok() {
            self.lead_surely(&Step::Serve)?;
            self.announce();
        }
        for published in waiting {
            let _ = published.send(switched.is_ok());
        }
        Ok(switched?)
    }

    /// Switches to the built plan.
    pub(super) fn switch(
        &mut self,
        plan: &Plan,
        diff: &PlanDiff,
        outline: PlanFingerprint,
        built: Built,
    ) -> Result<(), ReloadError> {
        for coming in &self.coming {
            if let Some(fault) = coming.feed.as_ref().and_then(|feed| feed.source.fault()) {
                return Err(fault.into());
            }
        }
        // Drained sources cannot be resumed: do everything that may fail first.
        let known = self.checkpoints(plan, diff)?;
        self.leave_sinks(&built.sinks)?;
        let others = self.end_sources(diff)?;
        let resumes = self.resumes(plan, diff, known, others);
        // Before any turn can reach them.
        built.sinks.values().flatten().for_each(|sink| self.context.shared.durable.enter_sink(sink));
        if let Err(error) = self.publish(built.generation.number, plan) {
            // Resuming the ended sources would need the old plan's file, which is not available. So
            // the run ends, and a restart resumes.
            let changed = diff.nodes.iter().filter(|(_, fate)| !matches!(fate, ChangeKind::Kept | ChangeKind::Added));
            if changed.map(|(id, _)| id).any(|id| self.source_has_ended(id)) {
                if let ReloadError::Run(error) = error {
                    self.context.errors.lock().push(error);
                }
                self.context.pool.abort();
                return Err(ReloadError::Ended);
            }
            return Err(error);
        }
        let elsewhere = |error: serde_json::Error| ReloadError::Elsewhere { reason: error.to_string() };
        let readings = serde_json::to_vec(&resumes.readings).map_err(elsewhere)?;
        self.adopt(plan, diff, outline, built, resumes);
        self.lead_surely(&Step::ReadSources(readings))?;
        // After a crash, sinks of the new plan that no checkpoint contains would seem to lack all answers.
        let shared = &self.context.shared;
        if let Err(error) = shared.durable.commit(shared.epochs.current().epoch) {
            tracing::warn!(%error, "cannot write a checkpoint after a reload");
        }
        Ok(())
    }

    /// The published plan takes the place of the running one.
    pub(super) fn adopt(
        &mut self,
        plan: &Plan,
        diff: &PlanDiff,
        outline: PlanFingerprint,
        built: Built,
        mut resumes: Resumes,
    ) {
        let Built { loaded, sinks, generation, mut sources, letters } = built;
        let names: BTreeSet<Arc<str>> = plan.corpora.iter().map(|corpus| corpus.name.clone()).collect();
        self.generation = None;
        let mut running = self.inner.running.lock();
        *self.context.shared.limits.write() = plan.conversations.clone();
        *self.context.maintenance.settings.write() = plan.maintenance.clone();
        self.context.dead.go_on(letters);
        let mut ended: Vec<Feed> = Vec::new();
        for coming in self.coming.drain(..) {
            if let Some(feed) = &coming.feed {
                feed.source.serves();
                if let Some(fault) = feed.source.fault() {
                    self.context.errors.lock().push(fault);
                    self.context.pool.abort();
                }
            }
            match running.corpora.get_mut(&coming.name) {
                Some(there) => {
                    there.keys.extend(coming.keys);
                    if let Some(feed) = coming.feed {
                        ended.push(std::mem::replace(&mut there.feed, feed));
                    }
                }
                None => {
                    if let Some(feed) = coming.feed {
                        let corpus = RunningCorpus { indexes: coming.indexes, feed, keys: coming.keys };
                        running.corpora.insert(coming.name, corpus);
                    }
                }
            }
        }
        self.context.parts.retain(|name| names.contains(name));
        let gone: Vec<Arc<str>> = running.corpora.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for corpus in gone.iter().filter_map(|name| running.corpora.remove(name)) {
            self.inner.leaving.lock().push(corpus.indexes.ended());
            ended.push(corpus.feed);
        }
        running.outline = outline.running_without(loaded.lacking.into_keys());
        running.models = loaded.models;
        running.sinks = sinks;
        running.generation = generation.clone();
        // Turns may wait for sinks, or for bounds, that the old plan had.
        self.context.shared.slots.grant(plan.conversations.max_in_flight);
        self.context.shared.wake_conversations();
        running.sources.retain(|id, _| PlanDiff::keeps(&diff.nodes, id));
        let coming = plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Source(_)));
        let coming: Vec<_> = coming.filter(|node| !running.sources.contains_key(&node.id)).collect();
        for node in coming {
            match self.start_source(plan, node, &mut resumes, sources.remove(&node.id)) {
                Ok((feed, manual)) => {
                    running.sources.insert(node.id.clone(), feed);
                    if running.manual.is_none() {
                        running.manual = manual;
                    }
                }
                // The new plan already serves: a source that fails to start ends the run.
                Err(error) => {
                    self.context.errors.lock().push(error);
                    self.context.pool.abort();
                }
            }
        }
        self.context.shared.durable.keep_sources(|source| running.sources.contains_key(source));
        drop(running);
        self.clean_up(generation.number, ended);
    }

    fn source_has_ended(&self, id: &str) -> bool {
        let running = self.inner.running.lock();
        running.sources.get(id).is_some_and(|feed| feed.handle.ended.load(Ordering::Acquire))
    }

    /// The checkpointed offsets of new and changed sources.
    fn checkpoints(&self, plan: &Plan, diff: &PlanDiff) -> Result<BTreeMap<Arc<str>, Offsets>, RunError> {
        let mut known = BTreeMap::new();
        for node in plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Source(_))) {
            if !PlanDiff::keeps(&diff.nodes, &node.id)
                && let Some(checkpoint) = self.context.shared.durable.checkpoint(&node.id)?
            {
                known.insert(node.id.clone(), checkpoint.offsets);
            }
        }
        Ok(known)
    }

    /// The offsets after which new and changed sources resume; `known` contains those of checkpoints.
    fn resumes(
        &self,
        plan: &Plan,
        diff: &PlanDiff,
        mut known: BTreeMap<Arc<str>, Offsets>,
        mut others: BTreeMap<Arc<str>, Offsets>,
    ) -> Resumes {
        let durable = &self.context.shared.durable;
        if let Err(error) = durable.commit(self.context.shared.epochs.current().epoch) {
            tracing::warn!(%error, "cannot write a checkpoint before sources change");
        }
        let running = self.inner.running.lock();
        let (mut resumes, divided) = (Resumes::default(), Divided::of(plan).sources);
        for node in &plan.nodes {
            let NodeKind::Source(config) = &node.kind else { continue };
            if PlanDiff::keeps(&diff.nodes, &node.id) {
                continue;
            }
            // A source resumes where its predecessor of the same name has answered.
            let before = running.sources.get(&node.id).map(|feed| &feed.handle);
            let low = before.and_then(|handle| handle.tracker.low()).map(|(offsets, _)| offsets);
            let known = known.remove(&node.id);
            let resume = match before.is_some_and(|handle| handle.divided) {
                false => low.or(known),
                // Each process knows its own partitions.
                true => [known, low, others.remove(&node.id)].into_iter().flatten().reduce(|mut all, part| {
                    all.extend(part);
                    all
                }),
            };
            match &resume {
                Some(offsets) => drop(resumes.offsets.insert(node.id.clone(), offsets.clone())),
                None => {
                    if let Err(error) = durable.forget(&node.id) {
                        tracing::warn!(%error, source = %node.id, "cannot delete the state of a source");
                    }
                }
            }
            if divided.contains(&node.id) && self.context.options.sources.reads(&**config) {
                let reading = Reading::new(self.context, resume.unwrap_or_default());
                resumes.readings.insert(node.id.clone(), reading);
            }
        }
        resumes
    }

    /// Starts a new or changed source after its answered records.
    fn start_source(
        &self,
        plan: &Plan,
        node: &PlannedNode,
        resumes: &mut Resumes,
        source: Option<Box<dyn TurnSource>>,
    ) -> Result<(TurnFeed, Option<Manual>), RunError> {
        let durable = &self.context.shared.durable;
        let divided = Divided::of(plan).sources.contains(&node.id);
        let (handle, to) = self.context.source(node, divided);
        let resume = resumes.offsets.remove(&node.id).unwrap_or_default();
        let own = self.context.share(divided).of(&resume);
        if !own.is_empty() {
            // All earlier records of a running source are answered, so new answers come after the
            // sinks' current positions. For a source of an earlier process, the checkpoint says so.
            handle.tracker.resume(own, durable.marks());
        }
        let waits = divided && !self.context.options.shape().is_first();
        if source.is_some() || !durable.is_kept() && !waits {
            durable.add_source(&handle.tracker);
        }
        self.context.shared.sources.lock().push(handle.clone());
        self.context.pool.hold();
        self.context.pool.tell(&Command::Source(handle.clone()));
        if waits {
            let feed = TurnFeed { handle: handle.clone(), source: None, queue: None };
            let NodeKind::Source(config) = &node.kind else { return Ok((feed, None)) };
            let source = self.context.turn_source(&node.id, &**config, true, &|| false)?;
            self.inner.waiting.lock().push(Waiting::new(handle, to, source));
            return Ok((feed, None));
        }
        let mode = self.context.options.turns;
        match source {
            Some(source) => Ok((self.context.read(handle, source, to, resume, mode)?, None)),
            None => Ok((TurnFeed { handle, source: None, queue: None }, Some(to))),
        }
    }

    /// Releases the components of older plans when they have no turns in flight.
    fn clean_up(&self, number: u64, mut ended: Vec<Feed>) {
        let epoch = self.context.published.current().epoch;
        for feed in &mut ended {
            feed.source.stop();
            feed.shared.end(epoch);
        }
        let inner = Arc::downgrade(self.inner);
        let shared = self.context.shared.clone();
        self.context.handle.spawn(async move {
            while shared.epochs.oldest_plan() < number {
                tokio::time::sleep(TICK * 5).await;
            }
            // The first process knows when no turn needs the old plan any more.
            let is_first = shared.shape.is_first();
            let ends = move || {
                // Dropped before the lock: a reload that adds a removed corpus again holds it, and waits until the corpus's
                // indexes are closed.
                for mut feed in ended {
                    feed.source.end();
                }
                if let Some(inner) = inner.upgrade().filter(|_| is_first) {
                    close(&inner, number);
                    drop_unneeded(&inner, number, &inner.reloading.lock());
                }
            };
            let _ = tokio::task::spawn_blocking(ends).await;
        });
    }
}

/// Drops generations older than `number`, and the indexes that only they used.
pub(super) fn retire(inner: &Inner, number: u64) {
    close(inner, number);
    // A reload in progress may need such an index; it then drops the index at its end.
    if let Some(one) = inner.reloading.try_lock() {
        drop_unneeded(inner, number, &one);
    }
}

/// Drops the indexes that no generation needs, in all processes, while no reload is in progress.
fn drop_unneeded(inner: &Inner, number: u64, _one: &MutexGuard<'_, ()>) {
    let shared = &inner.context.shared;
    let mut needed: Keys = inner.running.lock().corpora.keys().map(|name| (name.clone(), BTreeSet::new())).collect();
    for generation in shared.generations.read().values() {
        for (corpus, keys) in &generation.indexes {
            needed.entry(corpus.clone()).or_default().extend(keys.iter().cloned());
        }
    }
    keep(inner, &needed);
    let Some(peers) = inner.context.peers.as_ref().filter(|peers| peers.shape.is_first()) else { return };
    // Answered before the next reload begins.
    let told = encode(&Step::Retire { before: number, keys: needed });
    let told = told.and_then(|step| inner.context.handle.block_on(peers.ask_all(Topic::Reload, &step)));
    if let Err(error) = told {
        tracing::debug!(error, "another process keeps indexes of an older plan");
    }
}

/// Drops generations older than `number`.
pub(super) fn close(inner: &Inner, number: u64) {
    let shared = &inner.context.shared;
    let old: Vec<u64> = shared.generations.read().range(..number).map(|(number, _)| *number).collect();
    for number in old {
        shared.generations.write().remove(&number);
        inner.context.pool.tell(&Command::Close(number));
    }
}

/// Drops all indexes except these.
pub(super) fn keep(inner: &Inner, needed: &Keys) {
    for (name, corpus) in &mut inner.running.lock().corpora {
        let Some(keys) = needed.get(name) else { continue };
        if corpus.keys.iter().any(|key| !keys.contains(key)) {
            corpus.keys.retain(|key| keys.contains(key));
            corpus.indexes.keep(keys.clone());
            // In another process than the first, turns read other epochs than its index writers publish.
            if !inner.context.shared.shape.is_first() {
                inner.context.shared.epochs.trim(name, keys);
            }
        }
    }
}
