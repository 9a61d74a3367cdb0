//! A reload of a cluster. The first process leads it, step by step; the others follow.
//!
//! All processes build the same dataflows in the same order. So what may fail is done in one step, in all processes,
//! and the dataflows are built in the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::sources::{Resumes, end_parts};
use super::switch::{close, keep};
use super::{Built, Coming, LOOK, PATIENCE, Reload, ReloadError, Sinks, TICK};
use crate::cluster::{Bytes, ComingPart, PlanLoader, Topic, decode, encode};
use crate::dead_letter::Onward;
use crate::panics::caught;
use crate::plan::{Definitions, NodeKind, Plan, PlanDiff, PlanFingerprint};
use crate::publish::PlanSwitch;
use crate::run::lacking::Loaded;
use crate::run::worker_pool::Command;
use crate::run::{Inner, RunError};
use crate::turns::Generation;

/// A step of a reload, in another process than the first.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// Load the file, which must be the same plan. Load the models, and open indexes and feeds.
    Open { reload: u64, change: Change },
    /// Build the dataflows of the feeds.
    Read,
    /// Collect these commits of the feeds, fill new indexes, and build the operators.
    Fill(BTreeMap<Arc<str>, u64>),
    /// Build the dataflow of the new plan.
    Build,
    /// End these sources of turns, which the new plan does not have as they are. Answered with the offsets up to which
    /// everything is applied, by source, as JSON.
    EndSources(Vec<Arc<str>>),
    /// The new plan serves.
    Serve,
    /// Begin to read the new sources of turns that all processes read together, now that every process has the epoch of the
    /// new plan. How they are read, by source, as JSON.
    ReadSources(Vec<u8>),
    /// The reload has failed: drop what it has built.
    Undo { reload: u64 },
    /// No turn needs a plan before this one any more. Keep these indexes.
    Retire { before: u64, keys: Keys },
}

/// Indexes by corpus.
pub(super) type Keys = BTreeMap<Arc<str>, BTreeSet<String>>;

/// What a process has opened for a reload. It must be the same in all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opened {
    /// The optional models that are not loaded.
    lacking: BTreeSet<String>,
    /// The fingerprint of each model, which its files decide.
    models: BTreeMap<String, String>,
    /// The indexes that are new.
    added: Keys,
}

impl Opened {
    fn of(loaded: &Loaded, coming: &[Coming]) -> Self {
        let added = coming.iter().filter(|coming| !coming.added.is_empty());
        Self {
            lacking: loaded.lacking.keys().map(|name| name.to_string()).collect(),
            models: loaded.models.iter().map(|(name, model)| (name.clone(), model.fingerprint.clone())).collect(),
            added: added.map(|coming| (coming.name.clone(), coming.added.clone())).collect(),
        }
    }
}

/// The optional models that a plan does without, also those that one of its operators cannot use.
fn lacking(generation: &Generation) -> BTreeSet<String> {
    generation.lacking.keys().map(|name| name.to_string()).collect()
}

/// What a reload changes. It must be the same in all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Change {
    /// The hash of the new plan.
    plan: String,
    /// New and changed corpora.
    corpora: Vec<Arc<str>>,
    /// New and changed sources of turns.
    sources: Vec<Arc<str>>,
}

impl Change {
    pub fn of(plan: &Plan, diff: &PlanDiff) -> Self {
        let corpora = plan.corpora.iter().map(|corpus| &corpus.name);
        let nodes = plan.nodes.iter();
        let sources = nodes.filter(|node| matches!(node.kind, NodeKind::Source(_))).map(|node| &node.id);
        Self {
            plan: plan.hash.to_string(),
            corpora: corpora.filter(|name| !PlanDiff::keeps(&diff.corpora, name)).cloned().collect(),
            sources: sources.filter(|id| !PlanDiff::keeps(&diff.nodes, id)).cloned().collect(),
        }
    }
}

/// A reload in another process than the first.
pub(in crate::run) struct Following {
    /// Its number. Later reloads have greater ones.
    reload: u64,
    plan: Plan,
    diff: PlanDiff,
    outline: PlanFingerprint,
    coming: Vec<Coming>,
    definitions: Definitions,
    letters: Onward,
    /// Until the operators are built.
    loaded: Option<Loaded>,
    built: Option<(Loaded, Sinks, Arc<Generation>)>,
    /// Once its dataflow is built.
    generation: Option<Arc<Generation>>,
}

/// The answers of the other processes that do a step.
pub(super) type Done = Option<JoinHandle<Result<Vec<Bytes>, String>>>;

impl Reload<'_> {
    /// Has the other processes begin a step.
    pub(super) fn begin(&self, step: &Step) -> Result<Done, ReloadError> {
        let Some(peers) = self.context.peers.clone() else { return Ok(None) };
        let step = encode(step).map_err(|reason| ReloadError::Elsewhere { reason })?;
        Ok(Some(self.context.handle.spawn(async move { peers.ask_all(Topic::Reload, &step).await })))
    }

    /// Waits until the other processes have done a step.
    fn end(&self, begun: Done) -> Result<Vec<Bytes>, ReloadError> {
        let Some(asked) = begun else { return Ok(Vec::new()) };
        let failed = |reason| ReloadError::Elsewhere { reason };
        while !asked.is_finished() {
            if let Err(given_up) = self.going_on() {
                asked.abort();
                return Err(given_up);
            }
            std::thread::park_timeout(TICK);
        }
        self.context.handle.block_on(asked).map_err(|_| ReloadError::GivenUp)?.map_err(failed)
    }

    /// Waits until the other processes have opened what this one has.
    pub(super) fn all_have_opened(&self, begun: Done, loaded: &Loaded) -> Result<(), ReloadError> {
        let failed = |reason| ReloadError::Elsewhere { reason };
        let own = Opened::of(loaded, &self.coming);
        for (process, opened) in (1..).zip(self.end(begun)?) {
            let opened: Opened = decode(&opened).map_err(failed)?;
            if opened.lacking != own.lacking {
                let (theirs, own) = (opened.lacking, own.lacking);
                let reason = format!("process {process} lacks the models {theirs:?}, and process 0 lacks {own:?}");
                return Err(failed(reason));
            }
            let differing =
                own.models.iter().filter(|(name, fingerprint)| opened.models.get(*name) != Some(*fingerprint));
            let differing: Vec<&str> = differing.map(|(name, _)| name.as_str()).collect();
            if !differing.is_empty() {
                let models = differing.join(", ");
                return Err(failed(format!(
                    "process {process} has other files than process 0 for the models {models}"
                )));
            }
            if opened != own {
                let reason = format!("process {process} has other indexes than process 0: restart the cluster");
                return Err(failed(reason));
            }
        }
        Ok(())
    }

    /// Has the other processes fill their new indexes and build their operators. Returns the optional models that each of
    /// them does without.
    pub(super) fn lead_fill(&self) -> Result<Vec<BTreeSet<String>>, ReloadError> {
        let begun = self.begin(&Step::Fill(self.commits()))?;
        let failed = |reason| ReloadError::Elsewhere { reason };
        self.end(begun)?.iter().map(|lacking| decode(lacking).map_err(failed)).collect()
    }

    /// Checks that the other processes do without the same optional models.
    pub(super) fn all_lack(&self, own: &Generation, others: &[BTreeSet<String>]) -> Result<(), ReloadError> {
        let own = lacking(own);
        let Some((process, theirs)) = (1..).zip(others).find(|(_, theirs)| **theirs != own) else { return Ok(()) };
        let reason = format!("process {process} lacks the models {theirs:?}, and process 0 lacks {own:?}");
        Err(ReloadError::Elsewhere { reason })
    }

    /// Has the other processes do a step that must not fail: the dataflows would differ.
    pub(super) fn lead_surely(&self, step: &Step) -> Result<(), ReloadError> {
        let Some(peers) = self.context.peers.clone() else { return Ok(()) };
        let failed = |reason| ReloadError::Elsewhere { reason };
        let step = encode(step).map_err(failed)?;
        let done = self.context.handle.block_on(peers.ask_all(Topic::Reload, &step));
        done.map(drop).map_err(failed).inspect_err(|error| {
            self.context.errors.lock().push(RunError::Reload { reason: error.to_string() });
            self.context.pool.abort();
        })
    }

    /// The commits that the feeds of changed corpora have published.
    pub(super) fn commits(&self) -> BTreeMap<Arc<str>, u64> {
        let changed = self.coming.iter().filter(|coming| !coming.fresh);
        let changed = changed.filter_map(|coming| Some((coming.name.clone(), coming.feed.as_ref()?.shared.commits())));
        changed.collect()
    }
}

/// Follows the reloads that the first process leads.
pub(in crate::run) fn follow(inner: &Arc<Inner>, load: PlanLoader) {
    let Some(peers) = &inner.context.peers else { return };
    let (inner, blocking) = (Arc::downgrade(inner), inner.context.handle.clone());
    let service = move |step, _| {
        let (inner, load, blocking) = (inner.clone(), load.clone(), blocking.clone());
        async move {
            let step: Step = decode(&step)?;
            let done = blocking.spawn_blocking(move || {
                let Some(inner) = Weak::upgrade(&inner) else { return Err("it is ending".to_owned()) };
                caught(|| do_step(&inner, step, &*load)).unwrap_or_else(|panic| Err(format!("its reload {panic}")))
            });
            done.await.unwrap_or_else(|_| Err("it is ending".to_owned()))
        }
        .boxed()
    };
    peers.serve(Topic::Reload, Arc::new(service));
}

fn do_step(inner: &Arc<Inner>, step: Step, load: &dyn Fn() -> Result<Plan, String>) -> Result<Bytes, String> {
    if let Step::Undo { reload } = step {
        inner.undone.fetch_max(reload, Ordering::AcqRel);
    }
    let mut following = inner.following.lock();
    let number = match &step {
        Step::Open { reload, .. } => *reload,
        _ => following.as_ref().map_or(0, |following| following.reload),
    };
    // Also before the reload is opened: its end may arrive first.
    let give_up = || inner.undone.load(Ordering::Acquire) >= number;
    let open = || "no reload is under way".to_owned();
    match step {
        Step::Open { .. } if give_up() => return Err("the reload is undone".to_owned()),
        Step::Open { reload, change } => {
            undo(inner, following.take());
            let (opened, found) = Following::open(inner, reload, change, load, &give_up)?;
            *following = Some(opened);
            return encode(&found);
        }
        Step::Read => following.as_ref().ok_or_else(open)?.read(inner),
        Step::Fill(commits) => return encode(&following.as_mut().ok_or_else(open)?.fill(inner, &commits, &give_up)?),
        Step::Build => following.as_mut().ok_or_else(open)?.build(inner)?,
        Step::EndSources(ids) => return end_parts(inner, &ids, &give_up),
        Step::Serve => following.take().ok_or_else(open)?.serve(inner)?,
        Step::ReadSources(readings) => {
            let readings = serde_json::from_slice(&readings).map_err(|error| error.to_string())?;
            inner.read_waiting(readings).map_err(|error| error.to_string())?;
        }
        Step::Undo { reload } => undo(inner, following.take_if(|following| following.reload <= reload)),
        // The first process does not tell this during a reload.
        Step::Retire { before, keys } => {
            close(inner, before);
            keep(inner, &keys);
        }
    }
    Ok(Bytes::default())
}

/// The file's plan, when it has this hash.
fn loaded(load: &dyn Fn() -> Result<Plan, String>, hash: &str, give_up: &dyn Fn() -> bool) -> Result<Plan, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let reason = match load() {
            Ok(plan) if *plan.hash == *hash => return Ok(plan),
            Ok(_) => "its file has another pipeline than that of process 0: copy the file, then reload".to_owned(),
            Err(reason) => reason,
        };
        if give_up() || Instant::now() >= until {
            return Err(reason);
        }
        std::thread::park_timeout(LOOK);
    }
}

fn undo(inner: &Arc<Inner>, following: Option<Following>) {
    let Some(Following { coming, generation, .. }) = following else { return };
    inner.context.parts.undo();
    Reload { coming, generation, ..Reload::new(inner, &|| true) }.undo();
}

impl Following {
    fn open(
        inner: &Arc<Inner>,
        number: u64,
        change: Change,
        load: &dyn Fn() -> Result<Plan, String>,
        give_up: &dyn Fn() -> bool,
    ) -> Result<(Self, Opened), String> {
        let plan = loaded(load, &change.plan, give_up)?;
        let outline = PlanFingerprint::of(&plan);
        let diff = inner.difference(&plan, &outline);
        if Change::of(&plan, &diff) != change {
            return Err("the reload changes other corpora or sources here than in process 0".to_owned());
        }
        let mut reload = Reload::new(inner, give_up);
        let opened = reload.load(&plan, &diff).and_then(|(letters, loaded, definitions)| {
            reload.open(&plan, &diff, &loaded.models, &definitions)?;
            Ok((letters, loaded, definitions))
        });
        match opened {
            Ok((letters, loaded, definitions)) => {
                let coming = std::mem::take(&mut reload.coming);
                let found = Opened::of(&loaded, &coming);
                let (reload, loaded, built, generation) = (number, Some(loaded), None, None);
                let this =
                    Self { reload, plan, diff, outline, coming, definitions, letters, loaded, built, generation };
                Ok((this, found))
            }
            Err(error) => {
                reload.undo();
                Err(error.to_string())
            }
        }
    }

    fn read(&self, inner: &Arc<Inner>) {
        let feeds = self.coming.iter().filter_map(|coming| coming.feed.as_ref());
        feeds.for_each(|feed| drop(inner.context.pool.tell(&Command::Corpus(Box::new(feed.shared.clone())))));
    }

    fn fill(
        &mut self,
        inner: &Arc<Inner>,
        commits: &BTreeMap<Arc<str>, u64>,
        give_up: &dyn Fn() -> bool,
    ) -> Result<BTreeSet<String>, String> {
        let mut reload = Reload::new(inner, give_up);
        for coming in &self.coming {
            if let (Some(feed), Some(&commits)) = (&coming.feed, commits.get(&coming.name)) {
                let targets = feed.shared.targets().clone();
                let collected = inner.context.handle.spawn(async move { targets.prepare(Some(commits), None).await });
                while !collected.is_finished() {
                    reload.going_on().map_err(|error| error.to_string())?;
                    std::thread::park_timeout(TICK);
                }
                inner.context.handle.block_on(collected).unwrap_or_else(|_| Err("it is ending".to_owned()))?;
            }
        }
        reload.coming = std::mem::take(&mut self.coming);
        let filled = reload.fill();
        self.coming = std::mem::take(&mut reload.coming);
        filled.map_err(|error| error.to_string())?;
        let loaded = self.loaded.take().ok_or("its models are not loaded")?;
        let old = inner.running.lock().sinks.clone();
        let built = reload.sinks(&self.plan, &loaded.models, &old).and_then(|sinks| {
            let generation = reload.operators(&self.plan, &self.diff, &loaded, &self.definitions, &sinks)?;
            Ok((sinks, generation))
        });
        let (sinks, generation) = built.map_err(|error| error.to_string())?;
        let lacking = lacking(&generation);
        self.built = Some((loaded, sinks, generation));
        Ok(lacking)
    }

    fn build(&mut self, inner: &Arc<Inner>) -> Result<(), String> {
        let (_, _, generation) = self.built.as_ref().ok_or("its operators are not built")?;
        self.generation = Some(generation.clone());
        inner.context.shared.generations.write().insert(generation.number, generation.clone());
        // Its turns may start as soon as the first process has switched.
        if !inner.context.pool.tell(&Command::Generation(generation.clone())).wait() {
            return Err("it is ending".to_owned());
        }
        for coming in self.coming.iter_mut().filter(|coming| !coming.fresh) {
            let feed = coming.feed.as_ref().map(|feed| (feed.shared.feed, feed.shared.targets().clone()));
            let filled = std::mem::take(&mut coming.filled);
            if feed.is_some() || !filled.is_empty() {
                let definitions = Arc::new(self.definitions[&coming.name].clone());
                let part = ComingPart { indexes: coming.indexes.clone(), feed, filled, definitions };
                inner.context.parts.stage(&coming.name, part);
            }
        }
        Ok(())
    }

    fn serve(self, inner: &Arc<Inner>) -> Result<(), String> {
        let Self { plan, diff, outline, coming, definitions, letters, built, .. } = self;
        let (loaded, sinks, generation) = built.ok_or("its operators are not built")?;
        // Before any turn can reach them.
        sinks.values().flatten().for_each(|sink| inner.context.shared.durable.enter_sink(sink));
        let switched = inner.context.parts.take_switched();
        let names: BTreeSet<Arc<str>> = plan.corpora.iter().map(|corpus| corpus.name.clone()).collect();
        let (views, published): (Vec<_>, Vec<_>) =
            switched.into_iter().map(|switched| ((switched.corpus, switched.view), switched.published)).unzip();
        let (number, aliases) = (generation.number, Arc::new(plan.aliases()));
        let switch = PlanSwitch { plan: number, family: number, aliases, changes: None };
        let done = inner.context.published.switch(switch, views, |name| names.contains(name));
        for published in published {
            let _ = published.send(done.is_ok());
        }
        done.map_err(|error| error.to_string())?;
        for coming in &coming {
            let targets = coming.feed.as_ref().map(|feed| feed.shared.targets().clone());
            inner.context.parts.adopt(&coming.name, targets, &definitions[&coming.name]);
        }
        inner.context.parts.retain(|name| names.contains(name));
        let built = Built { loaded, sinks, generation, sources: BTreeMap::new(), letters };
        let mut reload = Reload::new(inner, &|| false);
        reload.coming = coming;
        reload.end_manual(&diff);
        reload.adopt(&plan, &diff, outline, built, Resumes::default());
        *inner.followed.lock() = Some(plan);
        Ok(())
    }
}
