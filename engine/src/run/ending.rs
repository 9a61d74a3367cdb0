//! The end of a run: by itself, by a stop, or by an error.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};

use super::build::Manual;
use super::{Engine, RunError, Running, TICK};
use crate::cluster::Order;
use crate::connector::Mode;
use crate::corpus::CorpusIndexes;
use crate::sinks::SinkStatus;

/// How long the end waits for work that blocks an I/O thread, and for what the index writers are doing.
const BLOCKED: Duration = Duration::from_secs(5);
/// How long a run that ends after the existing documents waits until their passages are stored.
const STORED: Duration = Duration::from_secs(60);

/// The I/O threads of a run.
pub(super) struct IoThreads {
    runtime: Option<Runtime>,
    pub handle: Handle,
}

impl IoThreads {
    pub fn start() -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).thread_name("turnflow-io").enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(BLOCKED);
        }
    }
}

/// Also after a start that has failed or was given up.
impl Drop for IoThreads {
    fn drop(&mut self) {
        self.end();
    }
}

impl Engine {
    /// Whether the run has ended: all sources drained, all answers delivered.
    pub fn has_ended(&self) -> bool {
        let pool = &self.inner.context.pool;
        // Answers that an earlier process should have written are not part of any turn.
        pool.has_ended() && (pool.is_aborted() || !self.is_repairing())
    }

    fn is_repairing(&self) -> bool {
        self.inner.context.shared.durable.sinks().iter().any(|sink| sink.is_repairing())
    }

    /// The sinks with answers that wait, also those of earlier plans, each with its name in messages.
    /// A stop waits for them.
    pub fn undelivered(&self) -> Vec<SinkStatus> {
        let sinks = self.inner.context.shared.durable.sinks();
        sinks.iter().map(|sink| sink.status()).filter(|sink| sink.pending > 0).collect()
    }

    /// Whether an error has ended the run.
    pub fn has_failed(&self) -> bool {
        !self.inner.context.errors.lock().is_empty()
    }

    /// Returns the first error, if there is one; the run is then over.
    pub fn check(&self) -> Result<(), RunError> {
        let mut errors = self.inner.context.errors.lock();
        if errors.is_empty() { Ok(()) } else { Err(errors.remove(0)) }
    }

    /// Ends the submission of turns. From now on, a run that stays ([`Options::stays`](super::Options::stays)) ends with its sources.
    pub fn end_turns(&self) {
        if self.inner.stays.swap(false, Ordering::AcqRel) {
            self.inner.context.pool.release();
        }
        let manual = self.inner.running.lock().manual.take();
        if let Some(Manual { sender, wake, .. }) = manual {
            drop(sender);
            wake.wake();
        }
    }

    /// Whether another process of the cluster was told to stop, and all are to stop with it.
    pub fn is_asked_to_stop(&self) -> bool {
        self.inner.context.stop_asked.load(Ordering::Acquire)
    }

    /// Stops the sources. Running turns are answered first, and so are waiting turns, unless a restart
    /// reads them again; callers who wait, and those who come later, are told that the run has ended. A reload in progress is aborted. In a cluster, all processes stop; call
    /// [`Engine::drain_others`] before, so that the callers of the others get their answers.
    pub fn stop(&self) {
        // The first process ends the cluster.
        if let Some(peers) = self.peers.as_ref().filter(|_| !self.shape().is_first()) {
            peers.ask_to_stop();
            return;
        }
        drop(self.inner.context.handle.spawn(self.drain_others()));
        self.stop_others();
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.context.shared.stopping.store(true, Ordering::Release);
        self.end_turns();
        self.inner.context.shared.close_asks();
        self.inner.context.pool.stop();
        self.inner.context.shared.wake_conversations();
        let _reload = self.inner.reloading.lock();
        // A reload may have finished meanwhile, with new sources.
        self.end_turns();
        self.stop_others();
        let mut running = self.inner.running.lock();
        let Running { sources, corpora, .. } = &mut *running;
        let mut threads: Vec<_> = sources.values_mut().filter_map(|source| source.source.as_mut()).collect();
        threads.extend(corpora.values_mut().map(|corpus| &mut corpus.feed.source));
        threads.iter_mut().for_each(|thread| thread.stop());
        threads.iter_mut().for_each(|thread| thread.end());
        for source in sources.values() {
            source.handle.wake.wake();
        }
    }

    /// Has the other processes of a cluster stop the sources that all read together.
    fn stop_others(&self) {
        if let Some(peers) = self.peers.as_ref().filter(|peers| !peers.is_closing()) {
            peers.order_all(Order::StopSources);
        }
    }

    /// Ends the run without the turns in flight. A restart with the same state directory answers them.
    pub fn abort(&self) {
        self.inner.context.pool.abort();
    }

    /// Waits for the end. If sources follow, call [`Engine::stop`] first.
    pub fn join(mut self) -> Result<(), RunError> {
        self.end_turns();
        let panicked = self.join_workers();
        self.stop();
        while !self.inner.context.pool.is_aborted() && self.is_repairing() {
            std::thread::park_timeout(TICK);
        }
        self.end_index_writers();
        self.end_sinks_and_checkpoints();
        self.keep_slots();
        self.inner.context.finish_backup();
        self.check()?;
        match panicked.into_iter().next() {
            Some(panic) => Err(RunError::Worker(panic)),
            None => Ok(()),
        }
    }

    /// Waits for the workers; returns the messages of those that panicked.
    fn join_workers(&mut self) -> Vec<String> {
        let pool = self.inner.context.pool.clone();
        let Some(workers) = self.workers.get_mut().take() else { return Vec::new() };
        let Some(peers) = &self.peers else { return workers.join().into_iter().filter_map(Result::err).collect() };
        while !pool.has_ended() {
            std::thread::park_timeout(TICK);
        }
        if pool.is_aborted() {
            // The other processes have not ended, and waiting for them could take for ever.
            std::mem::forget(workers);
            let panicked = pool.has_panicked().then(|| "its message is above".to_owned());
            return panicked.into_iter().collect();
        }
        let panicked = workers.join().into_iter().filter_map(Result::err).collect();
        peers.bond.has_ended();
        panicked
    }

    /// Waits until the index writers have done their jobs, and have stored what is published.
    fn end_index_writers(&self) {
        if self.inner.context.pool.is_aborted() {
            return;
        }
        let most = if self.inner.context.options.corpora == Mode::Once { STORED } else { BLOCKED };
        let indexes: Vec<_> = self.inner.running.lock().corpora.values().map(|corpus| corpus.indexes.clone()).collect();
        let done = async move { futures::future::join_all(indexes.iter().map(CorpusIndexes::barrier)).await };
        let _ = self.inner.context.handle.block_on(async { tokio::time::timeout(most, done).await });
    }

    /// Writes what the standing turns depend on, if the last checkpoint has these turns.
    fn keep_slots(&self) {
        let shared = &self.inner.context.shared;
        if self.inner.context.pool.is_aborted() || !shared.durable.has_written_all() {
            return;
        }
        if let Err(error) = shared.kept.write(shared.shape.workers) {
            tracing::warn!(%error, "what the standing turns depend on is not kept; they are answered again after a start");
        }
    }

    /// Closes the sinks and writes the last checkpoint.
    fn end_sinks_and_checkpoints(&mut self) {
        self.inner.context.shared.durable.sinks().iter().for_each(|sink| sink.close());
        self.inner.context.shutdown.cancel();
        self.inner.context.shared.durable.end();
        if let Some(thread) = self.checkpoints.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.context.pool.abort();
        self.end_turns();
        let workers = self.workers.get_mut().take();
        match &self.peers {
            // After an error, the other processes have not ended, and waiting for them could take for ever.
            Some(peers) => {
                peers.bond.leaves();
                peers.forget_services();
                std::mem::forget(workers);
            }
            None => drop(workers),
        }
        self.stop();
        self.end_sinks_and_checkpoints();
        self.io.end();
    }
}
