//! The switch: sources that go are drained, one epoch goes over to the new plan, and what only
//! older plans used is let go when their turns are done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::{Built, Reload, ReloadError, TICK};
use crate::component::BuildError;
use crate::component::CorpusSnapshot;
use crate::connector::{Offsets, TurnSource};
use crate::plan::{ChangeKind, NodeKind, Plan, PlanDiff, PlanFingerprint, PlannedNode};
use crate::run::build::{Feed, Manual, TurnFeed};
use crate::run::worker_pool::Command;
use crate::run::{Inner, RunError, RunningCorpus};

impl Reload<'_> {
    /// Waits until sources that go or change have ended: no turn may start that only the old
    /// plan can answer.
    fn end_sources(&self, diff: &PlanDiff) -> Result<(), ReloadError> {
        let handles: Vec<_> = {
            let mut running = self.inner.running.lock();
            // Dropping it ends the source that it hands turns to.
            running.manual.take_if(|manual| !PlanDiff::keeps(&diff.nodes, &manual.source));
            let going = running.sources.iter_mut().filter(|(id, _)| !PlanDiff::keeps(&diff.nodes, id));
            going
                .map(|(_, feed)| {
                    feed.source.iter_mut().for_each(|thread| thread.end());
                    feed.handle.wake.wake();
                    feed.handle.clone()
                })
                .collect()
        };
        // From here on there is no way back for them but to start again, so only the run's end
        // gives up.
        for handle in handles {
            while !handle.ended.load(Ordering::Acquire) {
                if self.context.pool.is_aborted() || self.inner.stopping.load(Ordering::Acquire) {
                    return Err(ReloadError::GivenUp);
                }
                std::thread::park_timeout(TICK);
            }
        }
        Ok(())
    }

    /// The views of all corpora that change, and then one epoch that has them.
    fn publish(&mut self, generation: u64, names: &BTreeSet<Arc<str>>) -> Result<(), ReloadError> {
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
                self.context.shared.epochs.switch(generation, views, kept).map(drop).map_err(RunError::Epochs)
            }
        };
        for published in waiting {
            let _ = published.send(switched.is_ok());
        }
        Ok(switched?)
    }

    /// Goes over to what was built.
    pub(super) fn switch(
        &mut self,
        plan: &Plan,
        diff: &PlanDiff,
        outline: PlanFingerprint,
        built: Built,
    ) -> Result<(), ReloadError> {
        let Built { models, sinks, generation, mut sources, letters } = built;
        for coming in &self.coming {
            if let Some(fault) = coming.feed.as_ref().and_then(|feed| feed.source.fault()) {
                return Err(fault.into());
            }
        }
        // Sources that have been drained cannot be begun again: what may fail comes before.
        let known = self.checkpoints(plan, diff)?;
        self.end_sources(diff)?;
        let resumes = self.resumes(plan, diff, known);
        let names: BTreeSet<Arc<str>> = plan.corpora.iter().map(|corpus| corpus.name.clone()).collect();
        if let Err(error) = self.publish(generation.number, &names) {
            // Sources that had ended begin again where they were: that needs the old plan's
            // file, which is not at hand. It is the run's end, and a restart goes on.
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
        let gone: Vec<Arc<str>> = running.corpora.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for corpus in gone.iter().filter_map(|name| running.corpora.remove(name)) {
            self.inner.leaving.lock().push(corpus.indexes.ended());
            ended.push(corpus.feed);
        }
        running.outline = outline;
        running.models = models;
        running.sinks = sinks;
        running.generation = generation.clone();
        running.sources.retain(|id, _| PlanDiff::keeps(&diff.nodes, id));
        let coming = plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Source(_)));
        let coming: Vec<_> = coming.filter(|node| !running.sources.contains_key(&node.id)).collect();
        for node in coming {
            match self.start_source(node, resumes.get(&node.id).cloned().unwrap_or_default(), sources.remove(&node.id))
            {
                Ok((feed, manual)) => {
                    running.sources.insert(node.id.clone(), feed);
                    if running.manual.is_none() {
                        running.manual = manual;
                    }
                }
                // The new plan serves: a source that it lacks is the run's fault, not the reload's.
                Err(error) => {
                    self.context.errors.lock().push(error);
                    self.context.pool.abort();
                }
            }
        }
        drop(running);
        self.clean_up(generation.number, ended);
        Ok(())
    }

    fn source_has_ended(&self, id: &str) -> bool {
        let running = self.inner.running.lock();
        running.sources.get(id).is_some_and(|feed| feed.handle.ended.load(Ordering::Acquire))
    }

    /// Up to which places checkpoints say that sources that are new or changed are answered.
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

    /// Behind which places sources that are new or changed go on; `known` says what checkpoints do.
    fn resumes(
        &self,
        plan: &Plan,
        diff: &PlanDiff,
        mut known: BTreeMap<Arc<str>, Offsets>,
    ) -> BTreeMap<Arc<str>, Offsets> {
        let durable = &self.context.shared.durable;
        if let Err(error) = durable.commit(self.context.shared.epochs.current().epoch) {
            tracing::warn!(%error, "no checkpoint could be written before sources changed");
        }
        let running = self.inner.running.lock();
        let mut resumes = BTreeMap::new();
        for node in plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Source(_))) {
            if PlanDiff::keeps(&diff.nodes, &node.id) {
                continue;
            }
            // What its predecessor of the same name has answered is known of it.
            let low =
                running.sources.get(&node.id).and_then(|feed| feed.handle.tracker.low()).map(|(offsets, _)| offsets);
            match low.or_else(|| known.remove(&node.id)) {
                Some(offsets) => drop(resumes.insert(node.id.clone(), offsets)),
                None => {
                    if let Err(error) = durable.forget(&node.id) {
                        tracing::warn!(%error, source = %node.id, "what was known of a source stays");
                    }
                }
            }
        }
        resumes
    }

    /// Starts a source that is new or changed, behind what is answered of it.
    fn start_source(
        &self,
        node: &PlannedNode,
        resume: Offsets,
        source: Option<Box<dyn TurnSource>>,
    ) -> Result<(TurnFeed, Option<Manual>), RunError> {
        let durable = &self.context.shared.durable;
        let (handle, to) = self.context.source(node);
        if !resume.is_empty() {
            // Of a source that was there, all before it is answered, so what comes is behind what
            // sinks have; of one that an earlier process had, so far as its checkpoint says.
            handle.tracker.resume(resume.clone(), durable.marks());
        }
        durable.add_source(&handle.tracker);
        self.context.shared.sources.lock().push(handle.clone());
        self.context.pool.hold();
        self.context.pool.tell(&Command::Source(handle.clone()));
        match source {
            Some(source) => {
                let source = Some(self.context.read(&handle, source, to, resume)?);
                Ok((TurnFeed { handle, source }, None))
            }
            None => Ok((TurnFeed { handle, source: None }, Some(to))),
        }
    }

    /// When no turn is in flight on an older plan, lets go of what only those used.
    fn clean_up(&self, number: u64, mut ended: Vec<Feed>) {
        ended.iter_mut().for_each(|feed| feed.source.stop());
        let inner = Arc::downgrade(self.inner);
        let shared = self.context.shared.clone();
        self.context.handle.spawn(async move {
            while shared.epochs.oldest_plan() < number {
                tokio::time::sleep(TICK * 5).await;
            }
            if let Some(inner) = inner.upgrade() {
                retire(&inner, number);
            }
            let _ = tokio::task::spawn_blocking(move || ended.iter_mut().for_each(|feed| feed.source.end())).await;
        });
    }
}

/// Lets go of generations older than `number`, and of what only they used.
pub(super) fn retire(inner: &Inner, number: u64) {
    let shared = &inner.context.shared;
    let old: Vec<u64> = shared.generations.read().range(..number).map(|(number, _)| *number).collect();
    for number in old {
        shared.generations.write().remove(&number);
        inner.context.pool.tell(&Command::Close(number));
    }
    let mut running = inner.running.lock();
    let mut needed: BTreeMap<Arc<str>, BTreeSet<String>> = BTreeMap::new();
    for generation in shared.generations.read().values() {
        for (corpus, keys) in &generation.indexes {
            needed.entry(corpus.clone()).or_default().extend(keys.iter().cloned());
        }
    }
    for (name, corpus) in &mut running.corpora {
        let keys = needed.remove(name).unwrap_or_default();
        // A reload that is under way may count on one; then the next to end lets it go.
        if corpus.keys.iter().any(|key| !keys.contains(key)) && inner.reloading.try_lock().is_some() {
            corpus.keys.retain(|key| keys.contains(key));
            corpus.indexes.keep(keys);
        }
    }
}
