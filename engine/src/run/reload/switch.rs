//! The switch: drains removed sources, publishes one epoch with the new plan, and releases the
//! components of older plans when their turns are done.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::MutexGuard;
use tokio::sync::oneshot;

use super::follow::{Keys, Step};
use super::sources::Resumes;
use super::{Built, Reload, ReloadError, Sinks, TICK};
use crate::cluster::{Topic, encode};
use crate::component::BuildError;
use crate::component::CorpusSnapshot;
use crate::plan::{ChangeKind, NodeKind, Plan, PlanDiff, PlanFingerprint};
use crate::publish::{Change, PlanSwitch};
use crate::run::build::Feed;
use crate::run::worker_pool::Command;
use crate::run::{Inner, RunError, RunningCorpus};
use crate::turns::Generation;

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

    /// Publishes the changes of all corpora in one epoch.
    fn publish(&mut self, generation: &Generation, plan: &Plan) -> Result<(), ReloadError> {
        let names: BTreeSet<Arc<str>> = plan.corpora.iter().map(|corpus| corpus.name.clone()).collect();
        let mut views: Vec<(Arc<str>, CorpusSnapshot)> = Vec::new();
        let mut waiting = Vec::new();
        let mut failed = None;
        let before = self.context.published.current().family;
        let mut changes = (before == generation.family).then(Vec::new);
        for coming in &mut self.coming {
            let filled = std::mem::take(&mut coming.filled);
            let feed = coming.feed.as_ref().filter(|_| !coming.fresh).map(|feed| feed.shared.feed);
            if coming.fresh || (feed.is_none() && filled.is_empty()) {
                continue;
            }
            let (published, told) = oneshot::channel();
            match self.context.handle.block_on(coming.indexes.switch(feed, filled, told, None)) {
                Ok((view, delta)) => {
                    let quiet = &self.context.options.quiet_fields;
                    let delta = delta.map(|delta| match quiet.is_empty() {
                        true => delta,
                        false => Arc::new(delta.without_fields(quiet)),
                    });
                    let change = delta.map(|delta| Change { corpus: coming.name.clone(), delta });
                    changes = changes.zip(change).map(|(mut all, change)| {
                        all.push(change);
                        all
                    });
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
                let switch = PlanSwitch { plan: generation.number, family: generation.family, aliases, changes };
                let switched = self.context.published.switch(switch, views, kept);
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
        self.wait_for_sinks(diff)?;
        // Drained sources cannot be resumed: do everything that may fail first.
        let mut known = self.checkpoints(plan, diff)?;
        self.search_answers(&built.generation, &mut known)?;
        self.leave_sinks(&built.sinks)?;
        let others = self.end_sources(diff)?;
        let resumes = self.resumes(plan, diff, known, others);
        // Before any turn can reach them.
        built.sinks.values().flatten().for_each(|sink| self.context.shared.durable.enter_sink(sink));
        if let Err(error) = self.publish(&built.generation.clone(), plan) {
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
