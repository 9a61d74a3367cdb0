//! Sources that all processes of a cluster read together: how the other processes than the first begin, stop and end them.
//!
//! The first process decides whether such a source is read, and from where. Each process has its own partitions, its own
//! conversations in memory and its own connections to the sinks. The first process has the checkpoints of all.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use futures::FutureExt;
use serde::{Deserialize, Serialize};

use super::build::{Manual, RuntimeContext, TurnFeed};
use super::{Inner, RunError, Running};
use crate::cluster::{Bytes, Peers, Service, Topic};
use crate::connector::{Mode, Offsets, TurnSource};
use crate::durable::{First, StoreQuestion};
use crate::turns::SourceHandle;

/// A source that this process will read when the first process has said from where.
pub(super) struct Waiting {
    handle: Arc<SourceHandle>,
    to: Manual,
    source: Box<dyn TurnSource>,
}

impl Waiting {
    pub fn new(handle: Arc<SourceHandle>, to: Manual, source: Box<dyn TurnSource>) -> Self {
        Self { handle, to, source }
    }

    /// Ends the source, which is not read.
    fn end(self) -> TurnFeed {
        let Manual { sender, wake, .. } = self.to;
        drop(sender);
        wake.wake();
        TurnFeed::unread(self.handle)
    }
}

/// How the first process reads a source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Reading {
    /// Everything up to these offsets is applied, in all partitions.
    pub offsets: Offsets,
    /// Whether the source ends after the existing records.
    pub once: bool,
    /// Whether the first process writes checkpoints.
    pub kept: bool,
}

impl Reading {
    pub fn new(context: &RuntimeContext, offsets: Offsets) -> Self {
        Self { offsets, once: context.options.turns == Mode::Once, kept: context.shared.durable.is_kept() }
    }

    fn mode(&self) -> Mode {
        if self.once { Mode::Once } else { Mode::Follow }
    }
}

impl RuntimeContext {
    /// Begins to read this process's partitions of a source, in another process than the first.
    fn read_part(&self, waiting: Waiting, reading: Reading) -> Result<TurnFeed, RunError> {
        let Waiting { handle, to, source } = waiting;
        if let Some(peers) = self.peers.as_ref().filter(|_| reading.kept) {
            self.shared.durable.keep_with(First::new(peers, self.handle.clone()));
        }
        self.shared.durable.add_source(&handle.tracker);
        tracing::info!(source = %handle.id, process = self.options.shape().process, "reading the partitions of this process");
        let own = self.share(true).of(&reading.offsets);
        if !own.is_empty() {
            handle.tracker.resume(own, self.shared.durable.marks());
        }
        let mode = reading.mode();
        self.read(handle, source, to, reading.offsets, mode)
    }

    /// Asks the first process how it reads these sources, and begins to read this process's partitions.
    pub fn read_parts(&self, waiting: Vec<Waiting>, running: &mut Running) -> Result<(), RunError> {
        let Some(peers) = self.peers.as_ref().filter(|_| !waiting.is_empty()) else { return Ok(()) };
        let ids: Vec<&str> = waiting.iter().map(|waiting| &*waiting.handle.id).collect();
        let failed = |reason| RunError::Sources { reason };
        let asked = serde_json::to_vec(&ids).map_err(|error| failed(error.to_string()))?;
        let answer = self.handle.block_on(peers.ask(0, Topic::Sources, Bytes(asked))).map_err(failed)?;
        self.begin_parts(
            waiting,
            serde_json::from_slice(&answer.0).map_err(|error| failed(error.to_string()))?,
            running,
        )
    }

    /// Begins to read this process's partitions of these sources, as the first process reads them.
    fn begin_parts(
        &self,
        waiting: Vec<Waiting>,
        mut readings: BTreeMap<Arc<str>, Reading>,
        running: &mut Running,
    ) -> Result<(), RunError> {
        for waiting in waiting {
            let id = waiting.handle.id.clone();
            let feed = match readings.remove(&id) {
                Some(reading) => self.read_part(waiting, reading)?,
                None => waiting.end(),
            };
            running.sources.insert(id, feed);
        }
        // A stop may have come before.
        if self.shared.stopping.load(Ordering::Acquire) {
            running.stop_sources();
        }
        Ok(())
    }
}

/// Answers the other processes, in the first process.
pub(super) fn serve_sources(peers: &Arc<Peers>, inner: &Arc<Inner>) {
    let durable = inner.context.shared.durable.clone();
    let store = blocking(inner, move |_, question| {
        let question: StoreQuestion = serde_json::from_slice(&question.0).map_err(|error| error.to_string())?;
        durable.answer(question).map(Bytes).map_err(|error| error.to_string())
    });
    peers.serve(Topic::Store, store);
    let sources = blocking(inner, |inner, ids| {
        let ids: Vec<Arc<str>> = serde_json::from_slice(&ids.0).map_err(|error| error.to_string())?;
        let read = inner.reading(&ids).map_err(|error| error.to_string())?;
        serde_json::to_vec(&read).map(Bytes).map_err(|error| error.to_string())
    });
    peers.serve(Topic::Sources, sources);
}

/// Answers the first process, in another one.
pub(super) fn serve_settling(peers: &Arc<Peers>, inner: &Arc<Inner>) {
    let settle = blocking(inner, |inner, _| {
        inner.checkpoint().map_err(|error| error.to_string())?;
        Ok(Bytes::default())
    });
    peers.serve(Topic::Settle, settle);
}

/// A service that blocks.
fn blocking(
    inner: &Arc<Inner>,
    answer: impl Fn(Arc<Inner>, Bytes) -> Result<Bytes, String> + Clone + Send + Sync + 'static,
) -> Service {
    let (inner, threads) = (Arc::downgrade(inner), inner.context.handle.clone());
    Arc::new(move |question, _| {
        let (inner, answer, threads) = (inner.clone(), answer.clone(), threads.clone());
        async move {
            let ending = || "it is ending".to_owned();
            let answered = threads.spawn_blocking(move || match Weak::upgrade(&inner) {
                Some(inner) => answer(inner, question),
                None => Err(ending()),
            });
            answered.await.unwrap_or_else(|_| Err(ending()))
        }
        .boxed()
    })
}

impl Running {
    fn stop_sources(&mut self) {
        self.sources.values_mut().filter_map(|feed| feed.source.as_mut()).for_each(|source| source.stop());
    }
}

impl Inner {
    /// Begins to read the sources of a reload that wait for it.
    pub(super) fn read_waiting(&self, readings: BTreeMap<Arc<str>, Reading>) -> Result<(), RunError> {
        let mut running = self.running.lock();
        let waiting = std::mem::take(&mut *self.waiting.lock());
        self.context.begin_parts(waiting, readings, &mut running)
    }

    /// How this process reads those of these sources that it reads.
    fn reading(&self, ids: &[Arc<str>]) -> Result<BTreeMap<Arc<str>, Reading>, RunError> {
        let running = self.running.lock();
        let mut all = BTreeMap::new();
        for id in ids {
            if running.sources.get(id).is_some_and(|feed| feed.source.is_some()) {
                let checkpoint = self.context.shared.durable.checkpoint(id)?;
                let offsets = checkpoint.map(|checkpoint| checkpoint.offsets).unwrap_or_default();
                all.insert(id.clone(), Reading::new(&self.context, offsets));
            }
        }
        Ok(all)
    }

    /// Writes a checkpoint.
    pub(super) fn checkpoint(&self) -> Result<(), RunError> {
        let shared = &self.context.shared;
        Ok(shared.durable.commit(shared.epochs.current().epoch)?)
    }

    /// Stops the sources that this process reads, because the first process stops the cluster.
    pub(super) fn stop_parts(&self) {
        self.context.shared.stopping.store(true, Ordering::Release);
        self.context.stop_asked.store(true, Ordering::Release);
        self.running.lock().stop_sources();
        self.context.shared.wake_sources();
        self.context.shared.wake_conversations();
    }
}
