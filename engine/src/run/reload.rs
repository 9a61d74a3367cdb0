//! Reload: from the plan that runs to another, without a turn lost.
//!
//! What is the same in both goes on with what it has. What is new or changed is built beside
//! what runs: models are loaded, a changed corpus is read and cut beside the one that serves, a
//! new index is filled. When all is there, the workers build the new plan's dataflow, and one
//! epoch switches: turns that start from then on are answered by the new plan, from corpora and
//! indexes that are the new plan's; turns in flight finish on the old one, and when the last has,
//! what only it used is let go. Whatever fails before the switch leaves the running plan as it
//! was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;

use super::build::{Definitions, Feed, TurnFeed, Workshop};
use super::crew::Command;
use super::{Engine, Inner, RunError, RunningCorpus};
use crate::component::{BuildError, Index, Models};
use crate::connector::Place;
use crate::corpus::{AddedIndex, CorpusIndexes, CorpusState, Preparing};
use crate::durable::SinkHandle;
use crate::plan::{Fate, NodeKind, Outline, Plan, PlanDiff, PlannedNode};
use crate::publish::CorpusView;
use crate::turns::{Generation, Running as RunningKind};

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
        let _one = inner.reloading.lock();
        let crew = &inner.shop.crew;
        crew.hold();
        let done = if crew.is_finished() { Err(ReloadError::Ended) } else { Reload::new(inner, give_up).run(plan) };
        crew.let_go();
        done
    }

    /// What a reload to this plan would do.
    pub fn difference(&self, plan: &Plan) -> PlanDiff {
        PlanDiff::between(&self.inner.running.lock().outline, &Outline::of(plan))
    }

    /// The plans that have turns in flight, the running one included.
    pub fn generations(&self) -> usize {
        self.inner.shop.shared.generations.read().len()
    }
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
    shop: &'a Workshop,
    give_up: &'a dyn Fn() -> bool,
    coming: Vec<Coming>,
    generation: Option<Arc<Generation>>,
}

impl<'a> Reload<'a> {
    fn new(inner: &'a Arc<Inner>, give_up: &'a dyn Fn() -> bool) -> Self {
        Self { inner, shop: &inner.shop, give_up, coming: Vec::new(), generation: None }
    }

    fn run(mut self, plan: Plan) -> Result<PlanDiff, ReloadError> {
        let outline = Outline::of(&plan);
        let diff = PlanDiff::between(&self.inner.running.lock().outline, &outline);
        if diff.is_empty() {
            return Ok(diff);
        }
        match self.prepare(&plan, &diff) {
            Ok((models, sinks, generation)) => {
                let switched = self.switch(&plan, &diff, outline, models, sinks, generation);
                switched.map(|()| diff).inspect_err(|_| self.undo())
            }
            Err(error) => {
                self.undo();
                Err(error)
            }
        }
    }

    fn going_on(&self) -> Result<(), ReloadError> {
        match self.inner.stopping.load(Ordering::Acquire) || (self.give_up)() || self.shop.crew.is_aborted() {
            true => Err(ReloadError::GivenUp),
            false => Ok(()),
        }
    }

    /// Builds everything beside what runs.
    #[expect(clippy::type_complexity, reason = "what a generation is made of, used once")]
    fn prepare(
        &mut self,
        plan: &Plan,
        diff: &PlanDiff,
    ) -> Result<(Models, BTreeMap<Arc<str>, Option<Arc<SinkHandle>>>, Arc<Generation>), ReloadError> {
        let (before, old_models, old_sinks) = {
            let running = self.inner.running.lock();
            (running.generation.clone(), running.models.clone(), running.sinks.clone())
        };
        let kept = |name: &str| old_models.get(name).filter(|_| PlanDiff::keeps(&diff.models, name)).cloned();
        let models = self.shop.models(plan, kept)?;
        let definitions = Workshop::definitions(plan, &models)?;
        self.open(plan, diff, &models, &definitions)?;
        self.wait_for_feeds()?;
        self.fill()?;
        let mut sinks = BTreeMap::new();
        for node in plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Sink(_))) {
            // What feeds a sink is not the sink's.
            let same = self.inner.running.lock().outline.same_settings(&node.id, &node.settings);
            let sink = match old_sinks.get(&node.id).filter(|_| same) {
                Some(sink) => sink.clone(),
                None => {
                    let sink = self.shop.sink(node)?;
                    sink.iter().for_each(|sink| self.shop.shared.durable.add_sink(sink));
                    sink
                }
            };
            sinks.insert(node.id.clone(), sink);
        }
        let operators: BTreeMap<Arc<str>, RunningKind> =
            before.nodes.iter().map(|node| (node.id.clone(), node.running.clone())).collect();
        let kept = |id: &str| operators.get(id).filter(|_| PlanDiff::keeps(&diff.nodes, id)).cloned();
        let generation = self.shop.generation(before.number + 1, plan, &models, &definitions, &sinks, kept)?;
        self.going_on()?;
        self.shop.shared.generations.write().insert(generation.number, generation.clone());
        self.generation = Some(generation.clone());
        if !self.shop.crew.tell(&Command::Generation(generation.clone())).wait() {
            return Err(ReloadError::Ended);
        }
        Ok((models, sinks, generation))
    }

    /// Opens indexes that corpora have not got, and starts the feeds of those that are new or
    /// changed.
    fn open(
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
                // What was let go before is closed before it is opened again.
                Some((indexes, _)) => self.shop.handle.block_on(indexes.barrier()),
                None => self.wait_for_leaving(&planned.name)?,
            }
            let had = there.as_ref().map(|(_, keys)| keys.clone()).unwrap_or_default();
            let mut opened = Vec::new();
            for (key, definition) in wanted.iter().filter(|(key, _)| !had.contains(*key)) {
                opened.push((key.clone(), self.shop.index(&planned.name, key, &**definition)?));
            }
            let changed = !PlanDiff::keeps(&diff.corpora, &planned.name);
            let number = self.shop.feed_number();
            let fresh = there.is_none();
            let indexes = match there {
                Some((indexes, _)) => {
                    for (key, index) in &opened {
                        index.preparation().into_iter().for_each(|preparation| indexes.announce(key, preparation));
                    }
                    indexes
                }
                None => {
                    self.shop.shared.epochs.admit(&planned.name, true);
                    let (dead, progress) = (self.shop.dead.clone(), Arc::default());
                    let preparing = Preparing { corpus: planned.name.clone(), dead, progress };
                    let epochs = self.shop.shared.epochs.clone();
                    let opened = std::mem::take(&mut opened);
                    CorpusIndexes::start(preparing, number, opened, epochs, self.shop.handle.clone())
                }
            };
            let (name, keys) = (planned.name.clone(), wanted.keys().cloned().collect());
            let mut coming = Coming { name, indexes, fresh, feed: None, opened, filled: Vec::new(), keys };
            if changed {
                coming.indexes.stage(number);
                let feed = self.shop.feed(number, planned, models, &coming.indexes, false);
                let feed = feed.inspect_err(|_| coming.indexes.forget(number))?;
                self.shop.crew.tell(&Command::Corpus(feed.shared.clone()));
                coming.feed = Some(feed);
            }
            self.coming.push(coming);
        }
        Ok(())
    }

    /// Waits until a corpus that had this name has let go of its indexes.
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

    /// Waits until changed corpora are read and cut, and what is new in them is prepared.
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
                    CorpusState::Loading => {}
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

    /// Fills new indexes with what their corpora have.
    fn fill(&mut self) -> Result<(), ReloadError> {
        for at in 0..self.coming.len() {
            for (key, index) in std::mem::take(&mut self.coming[at].opened) {
                // The chunks of a changed corpus come with the switch, and are prepared.
                if self.coming[at].feed.is_some() {
                    self.coming[at].filled.push(AddedIndex { key, index, filled: Vec::new() });
                    continue;
                }
                let corpus = self.coming[at].name.to_string();
                let indexes = self.coming[at].indexes.clone();
                let filling = self.shop.handle.spawn({
                    let key = key.clone();
                    async move { indexes.fill(key, index).await }
                });
                while !filling.is_finished() {
                    if let Err(given_up) = self.going_on() {
                        filling.abort();
                        // Its index is closed before it may be opened again.
                        let _ = self.shop.handle.block_on(filling);
                        return Err(given_up);
                    }
                    std::thread::park_timeout(TICK);
                }
                let filled = self.shop.handle.block_on(filling).map_err(|_| ReloadError::GivenUp)?;
                let failed = |source| RunError::Build(BuildError::Index { index: key, corpus, source });
                self.coming[at].filled.push(filled.map_err(failed)?);
            }
        }
        Ok(())
    }

    /// Waits until sources that go or change have ended: no turn may start that only the old
    /// plan can answer.
    fn end_sources(&self, diff: &PlanDiff) -> Result<(), ReloadError> {
        let handles: Vec<_> = {
            let mut running = self.inner.running.lock();
            let going = running.sources.iter_mut().filter(|(id, _)| !PlanDiff::keeps(&diff.nodes, id));
            going
                .map(|(_, feed)| {
                    feed.source.iter_mut().for_each(|thread| thread.end());
                    feed.handle.wake.wake();
                    feed.handle.clone()
                })
                .collect()
        };
        // From here on there is no way back for them but to start again, so nothing gives up.
        for handle in handles {
            while !handle.ended.load(Ordering::Acquire) {
                if self.shop.crew.is_aborted() {
                    return Err(ReloadError::GivenUp);
                }
                std::thread::park_timeout(TICK);
            }
        }
        Ok(())
    }

    /// The views of all corpora that change, and then one epoch that has them.
    fn publish(&mut self, generation: u64, names: &BTreeSet<Arc<str>>) -> Result<(), ReloadError> {
        let mut views: Vec<(Arc<str>, CorpusView)> = Vec::new();
        let mut waiting = Vec::new();
        let mut failed = None;
        for coming in &mut self.coming {
            let filled = std::mem::take(&mut coming.filled);
            let feed = coming.feed.as_ref().filter(|_| !coming.fresh).map(|feed| feed.shared.feed);
            if coming.fresh || (feed.is_none() && filled.is_empty()) {
                continue;
            }
            let (published, told) = oneshot::channel();
            match self.shop.handle.block_on(coming.indexes.switch(feed, filled, told)) {
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
                self.shop.shared.epochs.switch(generation, views, kept).map(drop).map_err(RunError::Epochs)
            }
        };
        for published in waiting {
            let _ = published.send(switched.is_ok());
        }
        Ok(switched?)
    }

    fn switch(
        &mut self,
        plan: &Plan,
        diff: &PlanDiff,
        outline: Outline,
        models: Models,
        sinks: BTreeMap<Arc<str>, Option<Arc<SinkHandle>>>,
        generation: Arc<Generation>,
    ) -> Result<(), ReloadError> {
        for coming in &self.coming {
            if let Some(fault) = coming.feed.as_ref().and_then(|feed| feed.source.fault()) {
                return Err(fault.into());
            }
        }
        self.end_sources(diff)?;
        let resumes = self.resumes(plan, diff);
        let names: BTreeSet<Arc<str>> = plan.corpora.iter().map(|corpus| corpus.name.clone()).collect();
        if let Err(error) = self.publish(generation.number, &names) {
            // Sources that had ended begin again where they were: that needs the old plan's
            // file, which is not at hand. It is the run's end, and a restart goes on.
            let changed = diff.nodes.iter().filter(|(_, fate)| !matches!(fate, Fate::Kept | Fate::Added));
            if changed.map(|(id, _)| id).any(|id| self.source_has_ended(id)) {
                if let ReloadError::Run(error) = error {
                    self.shop.errors.lock().push(error);
                }
                self.shop.crew.abort();
                return Err(ReloadError::Ended);
            }
            return Err(error);
        }
        self.generation = None;
        let mut running = self.inner.running.lock();
        *self.shop.shared.limits.write() = plan.conversations.clone();
        *self.shop.maintenance.settings.write() = plan.maintenance.clone();
        let mut ended: Vec<Feed> = Vec::new();
        for coming in self.coming.drain(..) {
            if let Some(feed) = &coming.feed {
                feed.source.serves();
                if let Some(fault) = feed.source.fault() {
                    self.shop.errors.lock().push(fault);
                    self.shop.crew.abort();
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
            match self.start_source(node, resumes.get(&node.id).cloned()) {
                Ok(feed) => drop(running.sources.insert(node.id.clone(), feed)),
                // The new plan serves: a source that it lacks is the run's fault, not the reload's.
                Err(error) => {
                    self.shop.errors.lock().push(error);
                    self.shop.crew.abort();
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

    /// Behind which places sources that are new or changed go on.
    fn resumes(&self, plan: &Plan, diff: &PlanDiff) -> BTreeMap<Arc<str>, Place> {
        let durable = &self.shop.shared.durable;
        if let Err(error) = durable.commit(self.shop.shared.epochs.current().epoch) {
            tracing::warn!(%error, "no checkpoint could be written before sources changed");
        }
        let running = self.inner.running.lock();
        let mut resumes = BTreeMap::new();
        for node in plan.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Source(_))) {
            if PlanDiff::keeps(&diff.nodes, &node.id) {
                continue;
            }
            // What its predecessor of the same name has answered is known of it.
            let low = running.sources.get(&node.id).and_then(|feed| feed.handle.ledger.low()).map(|(place, _)| place);
            match low.or_else(|| durable.checkpoint(&node.id).map(|checkpoint| checkpoint.place)) {
                Some(place) => drop(resumes.insert(node.id.clone(), place)),
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
    fn start_source(&self, node: &PlannedNode, resume: Option<Place>) -> Result<TurnFeed, RunError> {
        let durable = &self.shop.shared.durable;
        let (handle, to) = self.shop.source(node);
        durable.add_source(&handle.ledger);
        self.shop.shared.sources.lock().push(handle.clone());
        self.shop.crew.hold();
        self.shop.crew.tell(&Command::Source(handle.clone()));
        let NodeKind::Source(config) = &node.kind else { return Ok(TurnFeed { handle, source: None }) };
        let source = match self.shop.options.manual_turns {
            true => None,
            false => Some(self.shop.read(&handle, config.build(), to, resume)?),
        };
        Ok(TurnFeed { handle, source })
    }

    /// When no turn is in flight on an older plan, lets go of what only those used.
    fn clean_up(&self, number: u64, mut ended: Vec<Feed>) {
        ended.iter_mut().for_each(|feed| feed.source.stop());
        let inner = Arc::downgrade(self.inner);
        let shared = self.shop.shared.clone();
        self.shop.handle.spawn(async move {
            while shared.epochs.oldest_plan() < number {
                tokio::time::sleep(TICK * 5).await;
            }
            if let Some(inner) = inner.upgrade() {
                retire(&inner, number);
            }
            let _ = tokio::task::spawn_blocking(move || ended.iter_mut().for_each(|feed| feed.source.end())).await;
        });
    }

    /// Takes back what was begun.
    fn undo(&mut self) {
        if let Some(generation) = self.generation.take() {
            self.shop.shared.generations.write().remove(&generation.number);
            self.shop.crew.tell(&Command::Close(generation.number));
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
                    self.shop.shared.epochs.admit(&coming.name, false);
                    self.inner.leaving.lock().push(coming.indexes.ended());
                }
            }
        }
        // A corpus that was new may have been published already.
        let current = self.shop.shared.epochs.current();
        if current.corpora.keys().any(|name| !running.corpora.contains_key(name)) {
            let kept = |name: &str| running.corpora.contains_key(name);
            if let Err(error) = self.shop.shared.epochs.switch(current.plan, Vec::new(), kept) {
                tracing::warn!(%error, "a corpus of a plan that was given up stays published");
            }
        }
    }
}

/// Lets go of generations older than `number`, and of what only they used.
fn retire(inner: &Inner, number: u64) {
    let shared = &inner.shop.shared;
    let old: Vec<u64> = shared.generations.read().range(..number).map(|(number, _)| *number).collect();
    for number in old {
        shared.generations.write().remove(&number);
        inner.shop.crew.tell(&Command::Close(number));
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
