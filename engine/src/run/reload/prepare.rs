//! Before the switch: builds the new plan's components next to the running ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::follow::{Change, Step};
use super::{Built, Coming, PATIENCE, Reload, ReloadError, Sinks, TICK};
use crate::claims::real;
use crate::cluster::ask_elsewhere;
use crate::component::{BuildError, Models};
use crate::corpus::{AddedIndex, CorpusIndexes, CorpusState, Preparing};
use crate::dead_letter::Onward;
use crate::plan::{Definitions, Divided, NodeKind, Plan, PlanDiff, PlanFingerprint, PlannedNode};
use crate::run::RunError;
use crate::run::build::stored_definition;
use crate::run::lacking::{KeptModel, Loaded, warn};
use crate::run::start::check_divided;
use crate::run::worker_pool::Command;
use crate::sinks::SinkHandle;
use crate::turns::{Generation, Running as RunningKind};

/// The sink that writes this sink's new file now, and gets another one: its last answers would go to the file while
/// this sink writes to it too.
fn gives_away(node: &PlannedNode, plan: &Plan, old: &Sinks) -> Option<String> {
    let file = |node: &PlannedNode| match &node.kind {
        NodeKind::Sink(config) => config.file().map(real),
        _ => None,
    };
    let wanted = file(node)?;
    let writes = |sink: &SinkHandle| *sink.id() != node.id && sink.file().map(real).as_ref() == Some(&wanted);
    let other = old.values().flatten().find(|sink| writes(sink))?;
    let stays = plan.nodes.iter().any(|node| node.id == *other.id() && file(node).is_some());
    stays.then(|| other.id().to_string())
}

impl Reload<'_> {
    /// Opens the destination of dead letters, loads the models, and makes the definitions of the indexes.
    pub(super) fn load(&self, plan: &Plan, diff: &PlanDiff) -> Result<(Onward, Loaded, Definitions), ReloadError> {
        let (before, old_models) = {
            let running = self.inner.running.lock();
            (running.generation.clone(), running.models.clone())
        };
        let kept = |name: &str| {
            if !PlanDiff::keeps(&diff.models, name) {
                return None;
            }
            let is_optional = plan.models.get(name).is_some_and(|model| model.optional);
            let lacking = before.lacking.get(name).filter(|_| is_optional).cloned();
            let loaded = old_models.get(name).cloned().map(KeptModel::Loaded);
            loaded.or(lacking.map(KeptModel::Lacking))
        };
        let letters = self.context.letters(plan)?;
        let loaded = self.context.models(plan, kept, &|| self.is_cancelled())?;
        warn(plan, &loaded.lacking);
        if self.inner.context.options.shape().is_cluster() {
            check_divided(plan, &loaded.models)?;
        }
        let definitions = plan.definitions(&loaded.models).map_err(RunError::Build)?;
        Ok((letters, loaded, definitions))
    }

    /// Builds the operators of the new plan.
    pub(super) fn operators(
        &self,
        plan: &Plan,
        diff: &PlanDiff,
        loaded: &Loaded,
        definitions: &Definitions,
        sinks: &Sinks,
    ) -> Result<Arc<Generation>, ReloadError> {
        let before = self.inner.running.lock().generation.clone();
        let operators: BTreeMap<Arc<str>, RunningKind> =
            before.nodes.iter().map(|node| (node.id.clone(), node.running.clone())).collect();
        let kept = |id: &str| operators.get(id).filter(|_| PlanDiff::keeps(&diff.nodes, id)).cloned();
        let (number, is_cancelled) = (before.number + 1, || self.is_cancelled());
        let is_same = self.inner.running.lock().outline.answers_like(&PlanFingerprint::of(plan));
        let family =
            if is_same && loaded.lacking.is_empty() && before.lacking.is_empty() { before.family } else { number };
        Ok(self.context.generation((number, family), plan, loaded, definitions, sinks, kept, &is_cancelled)?)
    }

    /// Builds all components of the new plan.
    pub(super) fn prepare(&mut self, plan: &Plan, diff: &PlanDiff) -> Result<Built, ReloadError> {
        let old_sinks = self.inner.running.lock().sinks.clone();
        let begun = self.begin(&Step::Open { reload: self.number, change: Change::of(plan, diff) })?;
        let (letters, loaded, definitions) = self.load(plan, diff)?;
        self.open(plan, diff, &loaded.models, &definitions)?;
        self.all_have_opened(begun, &loaded)?;
        self.lead_surely(&Step::Read)?;
        for feed in self.coming.iter().filter_map(|coming| coming.feed.as_ref()) {
            self.context.pool.tell(&Command::Corpus(Box::new(feed.shared.clone())));
        }
        self.wait_for_feeds()?;
        let others_lack = self.lead_fill()?;
        self.fill()?;
        self.wait_for_replay(plan, diff, &old_sinks)?;
        self.keep_state(plan)?;
        let sinks = self.sinks(plan, &loaded.models, &old_sinks)?;
        let generation = self.operators(plan, diff, &loaded, &definitions, &sinks)?;
        self.all_lack(&generation, &others_lack)?;
        let (mut sources, divided) = (BTreeMap::new(), Divided::of(plan).sources);
        for node in plan.nodes.iter().filter(|node| !PlanDiff::keeps(&diff.nodes, &node.id)) {
            if let NodeKind::Source(config) = &node.kind
                && self.context.options.sources.reads(&**config)
            {
                let is_divided = divided.contains(&node.id);
                let source = self.context.turn_source(&node.id, &**config, is_divided, &|| self.is_cancelled());
                let source = source.map_err(RunError::Build)?;
                sources.insert(node.id.clone(), source);
            }
        }
        self.going_on()?;
        if self.context.manifests.is_some() {
            for (corpus, added) in &definitions {
                self.context.parts.define(corpus, added);
            }
        }
        self.lead_surely(&Step::Build)?;
        self.context.shared.generations.write().insert(generation.number, generation.clone());
        self.generation = Some(generation.clone());
        if !self.context.pool.tell(&Command::Generation(generation.clone())).wait() {
            return Err(ReloadError::Ended);
        }
        Ok(Built { loaded, sinks, generation, sources, letters })
    }

    /// Opens the new sinks of this process.
    pub(super) fn sinks(&self, plan: &Plan, models: &Models, old: &Sinks) -> Result<Sinks, ReloadError> {
        let mut sinks = BTreeMap::new();
        for node in plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Sink(_))) {
            // A sink is kept if only its inputs have changed.
            let same = self.inner.running.lock().outline.same_settings(&node.id, &node.settings);
            let sink = match old.get(&node.id).filter(|_| same && self.context.writes(plan, &node.id)) {
                Some(Some(sink)) => Some(sink.clone()),
                _ if let Some(other) = gives_away(node, plan, old) => {
                    return Err(RunError::FileOfAnother { sink: node.id.to_string(), other }.into());
                }
                Some(None) | None => self.context.sink(plan, node, models, &|| self.is_cancelled())?,
            };
            sinks.insert(node.id.clone(), sink);
        }
        Ok(sinks)
    }

    /// Opens the durable state, if the new plan is the first with a source that is read.
    fn keep_state(&self, plan: &Plan) -> Result<(), ReloadError> {
        let (options, shared) = (&self.context.options, &self.context.shared);
        if let Some(state) = self.context.state.as_ref().filter(|_| options.sinks && options.reads_any(plan)) {
            shared.durable.keep(state.path()).map_err(RunError::Store)?;
            shared.epochs.count_from(shared.durable.epoch().map_err(RunError::Store)?);
        }
        Ok(())
    }

    /// Opens new indexes, and starts the feeds of new and changed corpora. Their dataflows are not built yet.
    pub(super) fn open(
        &mut self,
        plan: &Plan,
        diff: &PlanDiff,
        models: &Models,
        definitions: &Definitions,
    ) -> Result<(), ReloadError> {
        for planned in &plan.corpora {
            let wanted = &definitions[&planned.name];
            let running = self.inner.running.lock();
            let there = running.corpora.get(&planned.name).map(|of| (of.indexes.clone(), of.keys.clone()));
            drop(running);
            match &there {
                // Wait until removed indexes are closed before opening them again.
                Some((indexes, _)) => self.context.handle.block_on(indexes.barrier()),
                None => self.wait_for_leaving(&planned.name)?,
            }
            let had = there.as_ref().map(|(_, keys)| keys.clone()).unwrap_or_default();
            let mut opened = Vec::new();
            for (key, definition) in wanted.iter().filter(|(key, _)| !had.contains(*key)) {
                let index = self.context.index(&planned.name, key, &**definition, &|| self.is_cancelled())?;
                opened.push((key.clone(), index));
            }
            let changed = !PlanDiff::keeps(&diff.corpora, &planned.name);
            let number = self.context.feed_number();
            let fresh = there.is_none();
            let indexes = match there {
                Some((indexes, _)) => {
                    for (key, index) in &opened {
                        let Some(preparation) = index.preparation() else { continue };
                        if let Some(peers) = &self.context.peers {
                            ask_elsewhere(peers, &planned.name, key, &preparation);
                        }
                        indexes.announce(key, preparation);
                    }
                    indexes
                }
                None => {
                    self.context.published.admit(&planned.name, true);
                    let (dead, files) = (self.context.dead.clone(), self.context.files());
                    let preparing = Preparing::new(planned.name.clone(), dead, files);
                    let epochs = self.context.published.clone();
                    let opened = std::mem::take(&mut opened);
                    let parts = self.context.parts_of(&planned.name);
                    let (keeper, handle) = (self.context.passage_store(planned), self.context.handle.clone());
                    CorpusIndexes::start(preparing, number, opened, epochs, parts, keeper, handle)
                }
            };
            let (name, keys) = (planned.name.clone(), wanted.keys().cloned().collect());
            let added = wanted.keys().filter(|key| !had.contains(*key)).cloned().collect();
            let mut coming = Coming { name, indexes, fresh, feed: None, opened, added, filled: Vec::new(), keys };
            if changed {
                coming.indexes.stage(number, &stored_definition(planned, self.context.options.shape()));
                let feed = self.context.feed(number, planned, models, &coming.indexes, false, &|| self.is_cancelled());
                let feed = feed.inspect_err(|_| coming.indexes.forget(number))?;
                if let Some(peers) = self.context.peers.as_ref().filter(|_| fresh) {
                    let (targets, preparations) = (feed.shared.targets().clone(), feed.shared.preparations().clone());
                    let (definitions, again) = (Arc::new(wanted.clone()), coming.indexes.again());
                    self.context.parts.add(peers, &planned.name, targets, definitions, preparations, again);
                }
                coming.feed = Some(feed);
            }
            self.coming.push(coming);
        }
        Ok(())
    }

    /// Waits until a removed corpus of this name has closed its indexes.
    fn wait_for_leaving(&self, name: &str) -> Result<(), ReloadError> {
        loop {
            let mut leaving = self.inner.leaving.lock();
            leaving.retain(|(_, ended)| !ended.load(Ordering::Acquire));
            if leaving.iter().all(|(of, _)| **of != *name) {
                return Ok(());
            }
            drop(leaving);
            self.going_on()?;
            std::thread::park_timeout(TICK);
        }
    }

    /// Waits until changed corpora are read and chunked, and their new contents are prepared.
    fn wait_for_feeds(&self) -> Result<(), ReloadError> {
        for coming in &self.coming {
            let Some(feed) = &coming.feed else { continue };
            loop {
                match &*feed.shared.state().borrow() {
                    CorpusState::Ready { .. } => break,
                    CorpusState::Failed(reason) => {
                        let (corpus, reason) = (coming.name.to_string(), reason.clone());
                        return Err(RunError::Publish { corpus, reason }.into());
                    }
                    CorpusState::Loading | CorpusState::Stored { .. } => {}
                }
                if let Some(fault) = feed.source.fault() {
                    return Err(fault.into());
                }
                self.going_on()?;
                std::thread::park_timeout(TICK);
            }
        }
        Ok(())
    }

    /// If sinks are added, removed or changed, waits until the replay of an earlier process's turns is
    /// over: only the current handles know which answers their files have, and new handles would
    /// write them again. The same holds if a source is added whose answers are searched.
    fn wait_for_replay(&self, plan: &Plan, diff: &PlanDiff, old: &Sinks) -> Result<(), ReloadError> {
        let is_kept = |node: &PlannedNode| {
            old.contains_key(&node.id) && self.inner.running.lock().outline.same_settings(&node.id, &node.settings)
        };
        let new: Vec<_> = plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Sink(_))).collect();
        if new.len() == old.len() && new.into_iter().all(is_kept) && !self.returns_sources(plan, diff)? {
            return Ok(());
        }
        let is_replaying = || old.values().flatten().any(|sink| sink.is_replaying());
        if is_replaying() {
            tracing::info!("the reload waits until turns answered before the start are read again");
        }
        let mut told = Instant::now();
        while is_replaying() {
            if told.elapsed() > PATIENCE {
                told = Instant::now();
                let failing = |sink: &Arc<SinkHandle>| Some((sink.id().clone(), sink.status().fault?));
                for (sink, fault) in old.values().flatten().filter_map(failing) {
                    tracing::warn!(%sink, fault, "the reload waits for a sink that lacks answers of an earlier process");
                }
            }
            self.going_on()?;
            std::thread::park_timeout(TICK);
        }
        Ok(())
    }

    /// Fills new indexes with the contents of their corpora.
    pub(super) fn fill(&mut self) -> Result<(), ReloadError> {
        for at in 0..self.coming.len() {
            for (key, index) in std::mem::take(&mut self.coming[at].opened) {
                // A changed corpus gets its prepared chunks at the switch.
                if self.coming[at].feed.is_some() {
                    self.coming[at].filled.push(AddedIndex { key, index, filled: Vec::new() });
                    continue;
                }
                let corpus = self.coming[at].name.to_string();
                let indexes = self.coming[at].indexes.clone();
                let filling = self.context.handle.spawn({
                    let key = key.clone();
                    async move { indexes.fill(key, index).await }
                });
                while !filling.is_finished() {
                    if let Err(given_up) = self.going_on() {
                        filling.abort();
                        // Wait until the index is closed: it may be opened again.
                        let _ = self.context.handle.block_on(filling);
                        return Err(given_up);
                    }
                    std::thread::park_timeout(TICK);
                }
                let filled = self.context.handle.block_on(filling).map_err(|_| ReloadError::GivenUp)?;
                let failed = |source| RunError::Build(BuildError::Index { index: key, corpus, source });
                self.coming[at].filled.push(filled.map_err(failed)?);
            }
        }
        Ok(())
    }
}
