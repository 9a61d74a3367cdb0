//! The sources of turns in a reload: ends those that change, finds where the new ones begin, and starts them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::follow::{Done, Step};
use super::{LOOK, PATIENCE, Reload, ReloadError, TICK};
use crate::cluster::Bytes;
use crate::connector::{Offsets, TurnSource};
use crate::plan::{ChangeKind, Divided, NodeKind, Plan, PlanDiff, PlannedNode};
use crate::run::build::{Manual, TurnFeed};
use crate::run::divided::{Reading, Waiting};
use crate::run::resume::resume_some;
use crate::run::worker_pool::Command;
use crate::run::{Inner, RunError};
use crate::sinks::SinkStatus;
use crate::turns::Generation;

/// Where new and changed sources begin.
#[derive(Default)]
pub(super) struct Resumes {
    /// The offsets after which they resume.
    pub offsets: BTreeMap<Arc<str>, Offsets>,
    /// How those are read that all processes of a cluster read together.
    pub readings: BTreeMap<Arc<str>, Reading>,
}

impl Reload<'_> {
    /// If sources are removed or changed, waits until nothing holds back the ends of their turns: no sink is failing, and
    /// checkpoints are written. As long as nothing has ended, a further change cancels the reload.
    pub(super) fn wait_for_sinks(&self, diff: &PlanDiff) -> Result<(), ReloadError> {
        if self.inner.running.lock().sources.keys().all(|id| PlanDiff::keeps(&diff.nodes, id)) {
            return Ok(());
        }
        let durable = &self.context.shared.durable;
        let mut told: Option<Instant> = None;
        loop {
            let failing = |status: &SinkStatus| status.fault.is_some() && status.pending > 0;
            let failing: Vec<_> = durable.sinks().iter().map(|sink| sink.status()).filter(failing).collect();
            let has_room = durable.has_room();
            if failing.is_empty() && has_room {
                return Ok(());
            }
            if told.is_none_or(|told| told.elapsed() > PATIENCE) {
                told = Some(Instant::now());
                for SinkStatus { id, pending, fault, .. } in failing {
                    tracing::warn!(sink = %id, pending, fault = fault.unwrap_or_default(),
                        "a source changes: the reload waits for a sink that does not accept answers");
                }
                if !has_room {
                    tracing::warn!("a source changes: the reload waits until a checkpoint can be written");
                }
            }
            self.going_on()?;
            std::thread::park_timeout(TICK);
        }
    }

    /// Ends removed and changed sources: no turn may start that only the old plan can answer. Returns the offsets up to
    /// which the other processes have applied everything.
    pub(super) fn end_sources(&self, diff: &PlanDiff) -> Result<BTreeMap<Arc<str>, Offsets>, ReloadError> {
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

    /// Waits until the other processes have ended their parts of sources. If one fails, the run ends, and a restart goes on:
    /// it does not know where the source was left.
    fn all_have_ended(&self, begun: Done) -> Result<BTreeMap<Arc<str>, Offsets>, ReloadError> {
        let ended = self.all_ends(begun).and_then(|ended| {
            let mut lows: BTreeMap<Arc<str>, Offsets> = BTreeMap::new();
            for of_process in ended {
                let of_process = serde_json::from_slice(&of_process.0);
                let of_process: BTreeMap<Arc<str>, Offsets> =
                    of_process.map_err(|error| ReloadError::Elsewhere { reason: error.to_string() })?;
                for (source, offsets) in of_process {
                    lows.entry(source).or_default().extend(offsets);
                }
            }
            Ok(lows)
        });
        ended.inspect_err(|error| {
            if let ReloadError::Elsewhere { reason } = error {
                self.context.errors.lock().push(RunError::Reload { reason: reason.clone() });
                self.context.pool.abort();
            }
        })
    }

    /// Waits until the other processes have done a step that cannot be undone.
    fn all_ends(&self, begun: Done) -> Result<Vec<Bytes>, ReloadError> {
        let Some(asked) = begun else { return Ok(Vec::new()) };
        while !asked.is_finished() {
            if self.context.pool.is_aborted() || self.inner.stopping.load(Ordering::Acquire) {
                asked.abort();
                return Err(ReloadError::GivenUp);
            }
            std::thread::park_timeout(TICK);
        }
        let is_stopping = self.inner.stopping.load(Ordering::Acquire);
        let failed = |reason| if is_stopping { ReloadError::GivenUp } else { ReloadError::Elsewhere { reason } };
        self.context.handle.block_on(asked).map_err(|_| ReloadError::GivenUp)?.map_err(failed)
    }

    pub(super) fn source_has_ended(&self, id: &str) -> bool {
        let running = self.inner.running.lock();
        running.sources.get(id).is_some_and(|feed| feed.handle.ended.load(Ordering::Acquire))
    }

    /// The checkpointed offsets of new and changed sources.
    pub(super) fn checkpoints(&self, plan: &Plan, diff: &PlanDiff) -> Result<BTreeMap<Arc<str>, Offsets>, RunError> {
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

    /// Searches the last answers of added sources that an earlier process has read, and checks that the sinks have those
    /// that its checkpoint names. Sources of which answers are missing are taken from `known`.
    pub(super) fn search_answers(
        &self,
        generation: &Generation,
        known: &mut BTreeMap<Arc<str>, Offsets>,
    ) -> Result<(), RunError> {
        let added: BTreeSet<Arc<str>> = {
            let running = self.inner.running.lock();
            known.keys().filter(|id| !running.sources.contains_key(*id)).cloned().collect()
        };
        if added.is_empty() {
            return Ok(());
        }
        // Otherwise the next checkpoint would forget what is found.
        self.context.shared.durable.will_replay(&added);
        let places = resume_some(self.context, generation, &added)?;
        known.retain(|id, _| !added.contains(id) || places.contains_key(id));
        Ok(())
    }

    /// Whether the new plan has sources that an earlier process has read, and this one has not.
    pub(super) fn returns_sources(&self, plan: &Plan, diff: &PlanDiff) -> Result<bool, RunError> {
        let known = self.checkpoints(plan, diff)?;
        let running = self.inner.running.lock();
        Ok(known.keys().any(|id| !running.sources.contains_key(id)))
    }

    /// The offsets after which new and changed sources resume; `known` contains those of checkpoints.
    pub(super) fn resumes(
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
    pub(super) fn start_source(
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
            let feed = TurnFeed::unread(handle.clone());
            let NodeKind::Source(config) = &node.kind else { return Ok((feed, None)) };
            let source = self.context.turn_source(&node.id, &**config, true, &|| false)?;
            self.inner.waiting.lock().push(Waiting::new(handle, to, source));
            return Ok((feed, None));
        }
        let mode = self.context.options.turns;
        match source {
            Some(source) => Ok((self.context.read(handle, source, to, resume, mode)?, None)),
            None => Ok((TurnFeed::unread(handle), Some(to))),
        }
    }
}

/// Ends this process's parts of these sources. Returns the offsets up to which everything is applied.
pub(super) fn end_parts(inner: &Inner, ids: &[Arc<str>], give_up: &dyn Fn() -> bool) -> Result<Bytes, String> {
    let handles: Vec<_> = {
        let mut running = inner.running.lock();
        let going = running.sources.iter_mut().filter(|(id, feed)| ids.contains(id) && feed.source.is_some());
        going.map(|(_, feed)| feed.end()).collect()
    };
    let mut lows = BTreeMap::new();
    for handle in &handles {
        while !handle.ended.load(Ordering::Acquire) {
            let is_stopping = inner.context.shared.stopping.load(Ordering::Acquire);
            if is_stopping || give_up() || inner.context.pool.is_aborted() {
                return Err("it is ending".to_owned());
            }
            std::thread::park_timeout(TICK);
        }
        lows.insert(handle.id.clone(), handle.tracker.low().map(|(offsets, _)| offsets).unwrap_or_default());
    }
    // The next process that reads a partition finds its conversations as they are now.
    let until = Instant::now() + PATIENCE;
    while !handles.is_empty()
        && let Err(error) = inner.checkpoint()
    {
        if Instant::now() >= until || inner.context.pool.is_aborted() {
            return Err(error.to_string());
        }
        std::thread::park_timeout(LOOK);
    }
    serde_json::to_vec(&lows).map(Bytes).map_err(|error| error.to_string())
}
