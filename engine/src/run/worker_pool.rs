//! The workers: their commands and their end.
//!
//! Each worker has its own queue of commands, builds the same dataflows in the same order, and steps
//! them. Dataflows are added and removed while it runs: a corpus's feed ends with its source, a
//! generation when its ingresses are closed.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use timely::CommunicationConfig;
use timely::WorkerConfig;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::communication::{Hooks, WorkerGuards};
use timely::dataflow::ProbeHandle;
use timely::worker::Worker;

use super::{PARK, RunError};
use crate::cluster::{Bytes, Link, Order, Peers, Shape, Topic, build_messages};
use crate::corpus::{self, CorpusShared};
use crate::turns::{self, Generation, SourceHandle, TurnsShared, WorkerState};

/// A command to a worker.
#[derive(Clone)]
pub(super) enum Command {
    /// Build a corpus's feed.
    Corpus(Box<CorpusShared>),
    /// Build a source of turns.
    Source(Arc<SourceHandle>),
    /// Build a generation.
    Generation(Arc<Generation>),
    /// Close a generation.
    Close(u64),
}

/// A command, and the channel that reports its completion.
type Told = (Command, Sender<()>);

/// The handle of the workers.
pub(super) struct WorkerPool {
    shape: Shape,
    senders: Vec<Sender<Told>>,
    receivers: Mutex<Vec<Option<Receiver<Told>>>>,
    threads: Mutex<Vec<Option<Thread>>>,
    /// Number of workers that have not ended.
    live: AtomicUsize,
    /// Number of turn sources that have not ended, of reloads in progress and of other holds.
    holds: AtomicUsize,
    /// No more turns will arrive.
    finished: AtomicBool,
    /// Workers first update the standing turns of an earlier process, and hold until then.
    catch_up: AtomicBool,
    /// Start no more turns of callers and no standing turns.
    stopping: AtomicBool,
    abort: AtomicBool,
    /// Whether a worker has panicked.
    panicked: AtomicBool,
    /// The other processes of its cluster.
    peers: OnceLock<Weak<Peers>>,
}

impl WorkerPool {
    pub fn new(shape: Shape) -> Arc<Self> {
        let workers = shape.workers;
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| crossbeam_channel::unbounded()).unzip();
        Arc::new(Self {
            shape,
            senders,
            receivers: Mutex::new(receivers.into_iter().map(Some).collect()),
            threads: Mutex::new(vec![None; workers]),
            live: AtomicUsize::new(workers),
            holds: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
            catch_up: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            abort: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            peers: OnceLock::new(),
        })
    }

    /// Sends a command to every worker; the result waits for its completion.
    pub fn tell(&self, command: &Command) -> Done {
        let (told, done) = crossbeam_channel::unbounded();
        for sender in &self.senders {
            let _ = sender.send((command.clone(), told.clone()));
        }
        self.wake();
        Done { done, missing: self.senders.len() }
    }

    /// Wakes every worker.
    pub fn wake(&self) {
        self.threads.lock().iter().flatten().for_each(Thread::unpark);
    }

    /// Keeps the workers running until [`WorkerPool::release`] is called.
    pub fn hold(&self) {
        self.holds.fetch_add(1, Ordering::AcqRel);
    }

    /// Keeps the run from ending before standing turns are up to date.
    pub fn catch_up(&self) {
        self.catch_up.store(true, Ordering::Release);
        self.senders.iter().for_each(|_| self.hold());
    }

    /// Stops starting turns of callers and standing turns.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Releases a hold. After the last one, no more turns will arrive.
    pub fn release(&self) {
        if self.holds.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finished.store(true, Ordering::Release);
            self.wake();
        }
    }

    /// Whether no more turns will arrive.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// The processes and workers.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Ends all workers immediately.
    pub fn abort(&self) {
        let peers = self.peers.get().and_then(Weak::upgrade);
        peers.iter().for_each(|peers| peers.bond.leaves());
        self.abort.store(true, Ordering::Release);
        // The workers carry no more messages.
        peers.iter().for_each(|peers| peers.abort());
        self.wake();
    }

    /// Whether all workers have ended.
    pub fn has_ended(&self) -> bool {
        self.live.load(Ordering::Acquire) == 0
    }

    /// Whether a worker has panicked.
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Whether the run is aborted.
    pub fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::Acquire)
    }

    /// Starts the workers. In a cluster, `cluster` has the other processes and the links to them.
    pub fn start(
        self: &Arc<Self>,
        shared: &Arc<TurnsShared>,
        cluster: Option<(Arc<Peers>, Vec<Option<Link>>)>,
    ) -> Result<WorkerGuards<()>, RunError> {
        let failed = |reason| RunError::Thread { what: "the workers", reason };
        let (peers, (builders, guard)) = match cluster {
            None => (None, CommunicationConfig::Process(self.shape.workers).try_build().map_err(failed)?),
            Some((peers, links)) => {
                let _ = self.peers.set(Arc::downgrade(&peers));
                let hooks = Hooks::default();
                let within =
                    ProcessBuilder::new_typed_vector(self.shape.workers, hooks.refill.clone(), hooks.spill.clone());
                let (process, workers) = (self.shape.process, self.shape.workers);
                let built = initialize_networking_from_sockets(within, links, process, workers, hooks);
                let (builders, guard) = built.map_err(|error| failed(error.to_string()))?;
                let builders: Vec<_> = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
                (Some(peers), (builders, Box::new(guard) as Box<dyn std::any::Any + Send>))
            }
        };
        // Workers share the cores with models: a parked worker must not spin.
        let config = WorkerConfig::default().idle_spin(Duration::ZERO);
        let (pool, shared) = (self.clone(), shared.clone());
        let work = move |worker: &mut Worker| pool.work(worker, &shared, peers.as_ref());
        timely::execute::execute_from(builders, guard, config, work).map_err(failed)
    }

    fn work(self: &Arc<Self>, worker: &mut Worker, shared: &Arc<TurnsShared>, peers: Option<&Arc<Peers>>) {
        let _ended = Ended(self);
        let index = self.shape.local(worker.index());
        self.threads.lock()[index] = Some(std::thread::current());
        let Some(commands) = self.receivers.lock()[index].take() else { return };
        let local = Rc::new(WorkerState::default());
        let mut sources: Vec<(Arc<SourceHandle>, ProbeHandle<u64>)> = Vec::new();
        let mut corpora: BTreeSet<usize> = BTreeSet::new();
        let leads = self.shape.is_first() && index == 0;
        let mut ending = Ending { pool: self, peers, shared, leads, told: None, messages: None, settled: None };
        if let Some(peers) = peers {
            ending.messages = Some(worker.next_dataflow_index());
            worker.dataflow_named::<u64, _, _>("messages", |scope| build_messages(scope, peers));
        }
        local.load(shared, index, self.shape.workers);
        shared.durable.loaded();
        let mut behind = self.catch_up.load(Ordering::Acquire);
        while !self.is_aborted() {
            for (command, told) in commands.try_iter() {
                match command {
                    Command::Corpus(corpus) => {
                        let name = format!("corpus {}", corpus.name);
                        corpora.insert(worker.next_dataflow_index());
                        worker.dataflow_named::<u64, _, _>(&name, |scope| corpus::build(scope, &corpus));
                    }
                    Command::Source(handle) => {
                        let name = format!("source {}", handle.id);
                        let probe = worker.dataflow_named::<u64, _, _>(&name, |scope| {
                            turns::build_source(scope, &handle, shared, &local)
                        });
                        sources.push((handle, probe));
                    }
                    Command::Generation(generation) => {
                        let name = format!("plan {}", generation.number);
                        worker.dataflow_named::<u64, _, _>(&name, |scope| {
                            turns::build_generation(scope, &generation, shared, &local);
                        });
                    }
                    Command::Close(number) => local.close(|of| of == number),
                }
                let _ = told.send(());
            }
            sources.retain(|(handle, probe)| {
                let ended = probe.done();
                // The probe covers the conversations of all workers.
                if ended && index == 0 {
                    shared.sources.lock().retain(|other| !Arc::ptr_eq(other, handle));
                    handle.ended.store(true, Ordering::Release);
                    self.release();
                }
                !ended
            });
            if !self.is_finished() {
                let stopping = self.stopping.load(Ordering::Acquire);
                if !stopping {
                    local.answer_again(shared);
                    local.answer_callers(shared);
                }
                if behind && (stopping || (sources.is_empty() && local.is_settled(shared))) {
                    behind = false;
                    self.release();
                }
            }
            if self.is_finished() || self.stopping.load(Ordering::Acquire) {
                shared.close_asks();
            }
            if self.is_finished() && commands.is_empty() {
                local.close(|_| true);
                // A stop does not wait until all documents are indexed; a restart continues with them.
                let stopping = self.stopping.load(Ordering::Acquire);
                let mut left = worker.installed_dataflows();
                left.retain(|dataflow| !(stopping && corpora.contains(dataflow)));
                if ending.has_come(stopping, &left) {
                    break;
                }
            }
            worker.step_or_park(Some(PARK));
        }
        shared.close_asks();
        if !self.is_aborted() {
            local.keep_slots(shared);
        }
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
    }
}

/// The end of the workers of a cluster. The first worker of the first process decides: it tells the others that no more
/// turns come, and closes the dataflow of messages when all other dataflows have ended.
struct Ending<'a> {
    pool: &'a Arc<WorkerPool>,
    peers: Option<&'a Arc<Peers>>,
    shared: &'a TurnsShared,
    /// Whether this is that worker.
    leads: bool,
    told: Option<Order>,
    /// The dataflow of messages.
    messages: Option<usize>,
    /// Whether the other processes have written their last checkpoints, once they are asked to.
    settled: Option<Arc<AtomicBool>>,
}

impl Ending<'_> {
    /// Whether this worker has ended, as these dataflows are left.
    fn has_come(&mut self, stopping: bool, left: &[usize]) -> bool {
        let Some(peers) = self.peers.filter(|_| self.leads) else { return left.is_empty() };
        let order = Order::Finish { stopping };
        if self.told != Some(order) && self.told != Some(Order::Close) {
            self.told = Some(order);
            peers.order_all(order);
        }
        let is_last = self.told != Some(Order::Close) && left.iter().all(|dataflow| Some(*dataflow) == self.messages);
        if is_last && self.have_settled(peers) {
            self.told = Some(Order::Close);
            peers.order_all(Order::Close);
            peers.close();
        }
        left.is_empty()
    }

    /// Whether the other processes have written their last checkpoints.
    fn have_settled(&mut self, peers: &Arc<Peers>) -> bool {
        let settled = self.settled.get_or_insert_with(|| {
            let settled = Arc::<AtomicBool>::default();
            let (peers, pool, done) = (peers.clone(), self.pool.clone(), settled.clone());
            self.shared.handle.spawn(async move {
                if let Err(error) = peers.ask_all(Topic::Settle, &Bytes::default()).await {
                    tracing::warn!(error, "a process ends without a checkpoint: its last turns are answered again");
                }
                done.store(true, Ordering::Release);
                pool.wake();
            });
            settled
        });
        settled.load(Ordering::Acquire)
    }
}

/// Marks the end of a worker when dropped; after a panic, it aborts the others.
struct Ended<'a>(&'a WorkerPool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::AcqRel);
        if std::thread::panicking() {
            self.0.panicked.store(true, Ordering::Release);
            self.0.abort();
        }
    }
}

/// Waits until all workers have executed a command.
pub(super) struct Done {
    done: Receiver<()>,
    missing: usize,
}

impl Done {
    /// Waits; returns false if a worker ended before executing the command.
    pub fn wait(self) -> bool {
        (0..self.missing).all(|_| self.done.recv().is_ok())
    }
}
