//! Questions and orders between the processes of a cluster, over a dataflow ([`super::messages`]).

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;

use super::wire::{Bytes, Envelope, Message, Order, Topic};
use super::{Bond, Shape};
use crate::activity::{Activity, NodeActivity, Timed};
use crate::panics::caught_async;
use crate::wake::WakeSlot;

/// What answers the questions of other processes about a topic. For a message without an answer, the result is dropped.
pub(crate) type Service = Arc<dyn Fn(Bytes, AnswerParts) -> BoxFuture<'static, Result<Bytes, String>> + Send + Sync>;
/// What executes orders.
pub(crate) type Commander = Arc<dyn Fn(Order) + Send + Sync>;

/// Parts of an answer that may be under way, if the one who asks takes them slowly.
const WINDOW: usize = 16;
/// The interval of looks at answers that are under way.
const TICK: Duration = Duration::from_millis(5);

/// Sends the parts of an answer, before its end.
#[derive(Clone)]
pub(crate) struct AnswerParts {
    /// The processes, who asks, the worker, and the number of the question; `None` if nobody listens.
    to: Option<(Arc<Peers>, usize, usize, u64)>,
    /// How many more parts may be under way.
    window: Arc<Semaphore>,
}

impl AnswerParts {
    /// The process that asks; `None` if nobody listens.
    pub fn asker(&self) -> Option<usize> {
        self.to.as_ref().map(|(_, process, ..)| *process)
    }

    /// Sends a part when not too many are under way that the other side has not taken ([`Waiting::takes`]).
    pub async fn send_within(&self, part: Bytes) {
        if let Ok(permit) = self.window.acquire().await {
            permit.forget();
        }
        self.send(part);
    }

    /// Sends a part.
    pub fn send(&self, part: Bytes) {
        if let Some((peers, process, worker, number)) = &self.to {
            peers.send(*process, *worker, Message::Part(*number, part));
        }
    }
}

/// The messages that wait for a worker to send them.
struct Outbox {
    sender: Sender<Envelope>,
    receiver: Receiver<Envelope>,
    wake: WakeSlot,
}

/// A question that is being answered.
struct Answering {
    topic: Topic,
    task: AbortHandle,
    window: Arc<Semaphore>,
}

/// What waits for an answer.
struct Asked {
    answer: oneshot::Sender<Result<Bytes, String>>,
    /// Takes the parts of the answer that come before its end.
    parts: Option<mpsc::UnboundedSender<Bytes>>,
}

/// The other processes of a cluster.
pub(crate) struct Peers {
    pub shape: Shape,
    /// One for each worker of this process.
    outboxes: Vec<Outbox>,
    /// The questions that this process has asked.
    waiting: Mutex<HashMap<u64, Asked>>,
    next: AtomicU64,
    /// The last version of a part of a corpus.
    version: AtomicU64,
    /// The questions that this process is answering, by who asked and their number.
    answering: Mutex<HashMap<(usize, u64), Answering>>,
    services: RwLock<HashMap<Topic, Service>>,
    commander: OnceLock<Commander>,
    handle: tokio::runtime::Handle,
    /// Set when this process sends nothing more.
    closing: AtomicBool,
    /// Set when the run is aborted: nothing is answered any more.
    aborted: AtomicBool,
    /// How this process stands to the others.
    pub bond: Arc<Bond>,
    /// How long each process takes to answer for its part of an index; this process's own entry is not used.
    activity: OnceLock<Vec<Arc<NodeActivity>>>,
}

/// What the calls of a process are called in metrics and in the status.
pub(crate) fn name_of(process: usize) -> Arc<str> {
    format!("process {process}").into()
}

impl Peers {
    pub fn new(shape: Shape, handle: tokio::runtime::Handle) -> Arc<Self> {
        let outbox = |_| {
            let (sender, receiver) = crossbeam_channel::unbounded();
            Outbox { sender, receiver, wake: WakeSlot::default() }
        };
        Arc::new(Self {
            shape,
            outboxes: (0..shape.workers).map(outbox).collect(),
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
            version: AtomicU64::new(0),
            answering: Mutex::default(),
            services: RwLock::default(),
            commander: OnceLock::new(),
            handle,
            closing: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            bond: Arc::default(),
            activity: OnceLock::new(),
        })
    }

    /// Sets what executes orders. Called once, before the workers start.
    pub fn command(&self, commander: Commander) {
        let _ = self.commander.set(commander);
    }

    /// Sets what answers the questions about a topic.
    pub fn serve(&self, topic: Topic, service: Service) {
        self.services.write().insert(topic, service);
    }

    /// Answers no more questions about a topic. Answers that are under way may take this long.
    pub fn retire(&self, topic: Topic, patience: Duration) {
        self.services.write().remove(&topic);
        let until = Instant::now() + patience;
        while self.answering.lock().values().any(|answering| answering.topic == topic) && Instant::now() < until {
            std::thread::park_timeout(TICK);
        }
        let mut left = Vec::new();
        self.answering.lock().retain(|key, answering| {
            let stays = answering.topic != topic;
            if !stays {
                answering.task.abort();
                left.push(*key);
            }
            stays
        });
        for (process, number) in left.into_iter().filter(|_| !self.is_closing()) {
            let answer = Err("process 0 is ending".to_owned());
            self.send(process, self.worker_of(number), Message::Answer(number, answer));
        }
    }

    /// Answers nothing any more, and waits for no answer: the run is aborted.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.waiting.lock().clear();
    }

    /// Drops what answers questions, which may refer to this.
    pub fn forget_services(&self) {
        self.services.write().clear();
    }

    /// A number for a version of a part of a corpus.
    pub fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The numbers of the other processes.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.shape.process;
        (0..self.shape.processes).filter(move |process| *process != own)
    }

    /// The queue that a worker of this process sends, and what wakes the worker.
    pub fn outbox(&self, worker: usize) -> (Receiver<Envelope>, WakeSlot) {
        let Outbox { receiver, wake, .. } = &self.outboxes[worker];
        (receiver.clone(), wake.clone())
    }

    /// The worker that sends a question and gets its answer.
    fn worker_of(&self, number: u64) -> usize {
        number as usize % self.shape.workers
    }

    /// Sends a message from a worker of this process to the worker with the same number in another process. Messages
    /// between the same two workers keep their order.
    fn send(&self, process: usize, worker: usize, message: Message) {
        let to = (process * self.shape.workers + worker) as u64;
        let Outbox { sender, wake, .. } = &self.outboxes[worker];
        let _ = sender.send(Envelope { to, from: self.shape.process as u64, message });
        wake.wake();
    }

    /// Asks another process. If the result is dropped before the answer, the other process is told to stop.
    ///
    /// # Errors
    ///
    /// The other process's error, or that it could not be asked.
    pub async fn ask(&self, process: usize, topic: Topic, question: Bytes) -> Result<Bytes, String> {
        Waiting::begin(self, process, topic, question, None).answer().await
    }

    /// Asks another process. The parts of its answer that come before its end go to `parts`.
    pub fn begin(
        self: &Arc<Self>,
        process: usize,
        topic: Topic,
        question: Bytes,
        parts: mpsc::UnboundedSender<Bytes>,
    ) -> Waiting<Arc<Self>> {
        Waiting::begin(self.clone(), process, topic, question, Some(parts))
    }

    /// Records how long each process takes to answer for its part of an index.
    pub fn observe(&self, activity: &Activity) {
        let _ = self.activity.set((0..self.shape.processes).map(|process| activity.node(&name_of(process))).collect());
    }

    /// Asks every other process for its part of an index; their answers are in the order of the processes.
    ///
    /// # Errors
    ///
    /// The first error.
    pub async fn ask_parts(&self, question: &Bytes) -> Result<Vec<Bytes>, String> {
        let asked = self.others().map(|process| async move {
            let of_process = self.activity.get().and_then(|activity| activity.get(process));
            let call = of_process.map(|activity| Timed::begin(activity.clone()));
            let answer = self.ask(process, Topic::Parts, question.clone()).await;
            call.into_iter().for_each(|call| call.end(answer.is_err()));
            answer.map_err(|error| format!("process {process}: {error}"))
        });
        futures::future::try_join_all(asked).await
    }

    /// Asks every other process, and waits for all of them; their answers are in the order of the processes.
    ///
    /// # Errors
    ///
    /// The first error.
    pub async fn ask_all(&self, topic: Topic, question: &Bytes) -> Result<Vec<Bytes>, String> {
        self.ask_each(topic, self.others().map(|_| Ok(question.clone())).collect()).await
    }

    /// The same with a question for each other process, in the order of the processes.
    ///
    /// # Errors
    ///
    /// The first error, also of a question.
    pub async fn ask_each(&self, topic: Topic, questions: Vec<Result<Bytes, String>>) -> Result<Vec<Bytes>, String> {
        let asked = self.others().zip(questions).map(|(process, question)| async move {
            let answer = self.ask(process, topic, question?).await;
            answer.map_err(|error| format!("process {process}: {error}"))
        });
        futures::future::join_all(asked).await.into_iter().collect()
    }

    /// Sends every other process a message without an answer.
    pub fn tell_all(&self, topic: Topic, message: &Bytes) {
        for process in self.others() {
            self.send(process, 0, Message::Tell(topic, message.clone()));
        }
    }

    /// Sends the first process a message without an answer.
    pub fn tell_first(&self, topic: Topic, message: Bytes) {
        if !self.is_closing() {
            self.send(0, 0, Message::Tell(topic, message));
        }
    }

    /// Orders something of every other process.
    pub fn order_all(&self, order: Order) {
        for process in self.others() {
            self.send(process, 0, Message::Order(order));
        }
    }

    /// Asks the first process to stop the cluster.
    pub fn ask_to_stop(&self) {
        self.send(0, 0, Message::Order(Order::Stop));
    }

    /// Sends nothing more: the dataflow of messages ends when every process does so.
    pub fn close(&self) {
        self.bond.ends();
        self.closing.store(true, Ordering::Release);
        self.outboxes.iter().for_each(|outbox| outbox.wake.wake());
    }

    /// The last message of a worker to each worker.
    pub fn last(&self) -> impl Iterator<Item = Envelope> + use<> {
        let from = self.shape.process as u64;
        let workers = 0..(self.shape.processes * self.shape.workers) as u64;
        workers.map(move |to| Envelope { to, from, message: Message::Last })
    }

    /// Whether nothing more is sent, or the run is aborted.
    pub fn is_ending(&self) -> bool {
        self.is_closing() || self.aborted.load(Ordering::Acquire)
    }

    /// Whether nothing more is sent.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Takes a message that arrived at a worker.
    pub fn receive(self: &Arc<Self>, worker: usize, Envelope { from, message, .. }: Envelope) {
        let from = from as usize;
        match message {
            Message::Ask(number, topic, question) => self.answer(from, worker, number, topic, question),
            Message::Part(number, part) => {
                let waiting = self.waiting.lock();
                if let Some(parts) = waiting.get(&number).and_then(|asked| asked.parts.as_ref()) {
                    let _ = parts.send(part);
                }
            }
            Message::Taken(number) => {
                if let Some(answering) = self.answering.lock().get(&(from, number)) {
                    answering.window.add_permits(1);
                }
            }
            Message::Answer(number, answer) => {
                let asked = self.waiting.lock().remove(&number);
                if let Some(Asked { answer: sender, parts }) = asked {
                    let _ = sender.send(answer);
                    drop(parts);
                }
            }
            Message::Cancel(number) => {
                if let Some(Answering { task, .. }) = self.answering.lock().remove(&(from, number)) {
                    task.abort();
                }
            }
            Message::Tell(topic, message) => {
                let service = self.services.read().get(&topic).cloned();
                if let Some(service) = service {
                    let _runtime = self.handle.enter();
                    let parts = AnswerParts { to: None, window: Arc::new(Semaphore::new(0)) };
                    let mut done = service(message, parts);
                    // What waits for nothing is done when the message has been taken.
                    if done.poll_unpin(&mut Context::from_waker(Waker::noop())).is_pending() {
                        self.handle.spawn(done);
                    }
                }
            }
            // All close together, and nobody answers what still waits.
            Message::Last if from != self.shape.process && (from == 0 || self.shape.is_first()) => {
                self.waiting.lock().clear();
            }
            Message::Last => {}
            Message::Order(order) => {
                if let Some(commander) = self.commander.get() {
                    commander(order);
                }
            }
        }
    }

    /// Answers a question of another process.
    fn answer(self: &Arc<Self>, from: usize, worker: usize, number: u64, topic: Topic, question: Bytes) {
        let service = self.services.read().get(&topic).cloned();
        let window = Arc::new(Semaphore::new(WINDOW));
        let parts = AnswerParts { to: Some((self.clone(), from, worker, number)), window: window.clone() };
        let mut answer = Box::pin(async move {
            let answer = match service {
                Some(service) => caught_async(|| service(question, parts)).await,
                None => Ok(Err("this process does not answer that".to_owned())),
            };
            answer.unwrap_or_else(|panic| Err(format!("its answer {panic}")))
        });
        // What is quickly answered is answered here. Everything else waits for something at once.
        let _runtime = self.handle.enter();
        if let Poll::Ready(answer) = answer.poll_unpin(&mut Context::from_waker(Waker::noop())) {
            return self.send(from, worker, Message::Answer(number, answer));
        }
        let this = self.clone();
        // The task takes the lock at its end, so it is entered before it is removed.
        let mut answering = self.answering.lock();
        let task = self.handle.spawn(async move {
            let answer = answer.await;
            this.answering.lock().remove(&(from, number));
            this.send(from, worker, Message::Answer(number, answer));
        });
        answering.insert((from, number), Answering { topic, task: task.abort_handle(), window });
    }
}

/// A question that waits for its answer. If this is dropped before, the other process is told that nobody waits.
pub(crate) struct Waiting<P: Deref<Target = Peers>> {
    peers: P,
    process: usize,
    number: u64,
    answer: oneshot::Receiver<Result<Bytes, String>>,
}

impl<P: Deref<Target = Peers>> Waiting<P> {
    fn begin(
        peers: P,
        process: usize,
        topic: Topic,
        question: Bytes,
        parts: Option<mpsc::UnboundedSender<Bytes>>,
    ) -> Self {
        let number = peers.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        // Otherwise the sender is dropped, and the answer is that the cluster is ending.
        if !peers.is_closing() && !peers.aborted.load(Ordering::Acquire) {
            peers.waiting.lock().insert(number, Asked { answer: sender, parts });
            peers.send(process, peers.worker_of(number), Message::Ask(number, topic, question));
            // An abort meanwhile has not seen it.
            if peers.aborted.load(Ordering::Acquire) {
                peers.waiting.lock().clear();
            }
        }
        Self { peers, process, number, answer }
    }

    /// Allows another part of the answer, for [`AnswerParts::send_within`].
    pub fn takes(&self) {
        if !self.peers.is_closing() {
            self.peers.send(self.process, self.peers.worker_of(self.number), Message::Taken(self.number));
        }
    }

    /// The answer.
    ///
    /// # Errors
    ///
    /// The other process's error, or that the cluster is ending.
    pub async fn answer(mut self) -> Result<Bytes, String> {
        (&mut self.answer).await.unwrap_or_else(|_| Err("the cluster is ending".to_owned()))
    }
}

impl<P: Deref<Target = Peers>> Drop for Waiting<P> {
    fn drop(&mut self) {
        let has_left = self.peers.waiting.lock().remove(&self.number).is_some();
        // An order to close comes after everything else, so nothing may follow it.
        if has_left && !self.peers.is_closing() {
            self.peers.send(self.process, self.peers.worker_of(self.number), Message::Cancel(self.number));
        }
    }
}
