//! Questions and orders between the processes of a cluster, over a dataflow ([`super::messages`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::oneshot;

use super::{Bond, Shape};
use crate::activity::{Activity, NodeActivity};
use crate::panics::caught_async;
use crate::wake::WakeSlot;

/// Bytes that are sent as a whole, not one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Bytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }
        deserializer.deserialize_byte_buf(Whole)
    }
}

/// Encodes a value for another process of the same version.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Bytes, String> {
    bincode::serialize(value).map(Bytes).map_err(|error| format!("cannot encode a message: {error}"))
}

/// Decodes a value from another process of the same version.
pub(crate) fn decode<T: for<'de> Deserialize<'de>>(bytes: &Bytes) -> Result<T, String> {
    bincode::deserialize(&bytes.0).map_err(|error| format!("cannot decode a message: {error}"))
}

/// What the first process tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// No more turns come.
    Finish {
        /// Whether documents that are not indexed yet are left to a restart.
        stopping: bool,
    },
    /// Nothing more is sent.
    Close,
    /// A process other than the first was told to stop.
    Stop,
}

/// What a message is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A question that this number's answer belongs to.
    Ask(u64, Bytes),
    /// The answer to a question.
    Answer(u64, Result<Bytes, String>),
    /// A message that has no answer.
    Tell(Bytes),
    /// An order.
    Order(Order),
}

/// A message and its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// The worker that gets it, among all workers of the cluster.
    pub to: u64,
    /// The process that sent it.
    pub from: u64,
    pub message: Message,
}

/// What answers the questions of other processes. For a message without an answer, the result is dropped.
pub(crate) type Service = Arc<dyn Fn(Bytes) -> BoxFuture<'static, Result<Bytes, String>> + Send + Sync>;
/// What executes orders.
pub(crate) type Commander = Arc<dyn Fn(Order) + Send + Sync>;

/// The messages that wait for a worker to send them.
struct Outbox {
    sender: Sender<Envelope>,
    receiver: Receiver<Envelope>,
    wake: WakeSlot,
}

/// The other processes of a cluster.
pub(crate) struct Peers {
    pub shape: Shape,
    /// One for each worker of this process.
    outboxes: Vec<Outbox>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Result<Bytes, String>>>>,
    next: AtomicU64,
    service: OnceLock<Service>,
    commander: OnceLock<Commander>,
    handle: tokio::runtime::Handle,
    /// Set when this process sends nothing more.
    closing: AtomicBool,
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
            service: OnceLock::new(),
            commander: OnceLock::new(),
            handle,
            closing: AtomicBool::new(false),
            bond: Arc::default(),
            activity: OnceLock::new(),
        })
    }

    /// Sets what answers questions and executes orders. Called once, before the workers start.
    pub fn serve(&self, service: Service, commander: Commander) {
        let _ = self.service.set(service);
        let _ = self.commander.set(commander);
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

    /// Sends a message from a worker of this process to the worker with the same number in another process. Messages
    /// between the same two workers keep their order.
    fn send(&self, process: usize, worker: usize, message: Message) {
        let to = (process * self.shape.workers + worker) as u64;
        let Outbox { sender, wake, .. } = &self.outboxes[worker];
        let _ = sender.send(Envelope { to, from: self.shape.process as u64, message });
        wake.wake();
    }

    /// Asks another process.
    ///
    /// # Errors
    ///
    /// The other process's error, or that it could not be asked.
    pub async fn ask(&self, process: usize, question: Bytes) -> Result<Bytes, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().insert(number, sender);
        let waiting = Waiting { peers: self, number };
        self.send(process, number as usize % self.shape.workers, Message::Ask(number, question));
        let answer = answer.await;
        drop(waiting);
        answer.unwrap_or_else(|_| Err("the cluster is ending".to_owned()))
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
            let call = of_process.map(|activity| Asking::begin(activity));
            let answer = self.ask(process, question.clone()).await;
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
    pub async fn ask_all(&self, question: &Bytes) -> Result<Vec<Bytes>, String> {
        let asked = self.others().map(|process| async move {
            self.ask(process, question.clone()).await.map_err(|error| format!("process {process}: {error}"))
        });
        futures::future::join_all(asked).await.into_iter().collect()
    }

    /// Sends every other process a message without an answer.
    pub fn tell_all(&self, message: &Bytes) {
        for process in self.others() {
            self.send(process, 0, Message::Tell(message.clone()));
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

    /// Whether nothing more is sent.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Takes a message that arrived at a worker.
    pub fn receive(self: &Arc<Self>, worker: usize, Envelope { from, message, .. }: Envelope) {
        let from = from as usize;
        match message {
            Message::Ask(number, question) => {
                let service = self.service.get().cloned();
                let mut answer = Box::pin(async move {
                    let answer = match service {
                        Some(service) => caught_async(|| service(question)).await,
                        None => Ok(Err("this process answers nothing".to_owned())),
                    };
                    answer.unwrap_or_else(|panic| Err(format!("its answer {panic}")))
                });
                // What is quickly answered is answered here. Everything else waits for something at once.
                let _runtime = self.handle.enter();
                if let Poll::Ready(answer) = answer.poll_unpin(&mut Context::from_waker(Waker::noop())) {
                    return self.send(from, worker, Message::Answer(number, answer));
                }
                let this = self.clone();
                self.handle.spawn(async move { this.send(from, worker, Message::Answer(number, answer.await)) });
            }
            Message::Answer(number, answer) => {
                if let Some(sender) = self.waiting.lock().remove(&number) {
                    let _ = sender.send(answer);
                }
            }
            Message::Tell(message) => {
                if let Some(service) = self.service.get() {
                    self.handle.spawn(service(message));
                }
            }
            Message::Order(order) => {
                if let Some(commander) = self.commander.get() {
                    commander(order);
                }
            }
        }
    }
}

/// A question whose time is recorded, also if it is cancelled.
struct Asking<'a> {
    activity: &'a NodeActivity,
    begun: Instant,
    has_failed: bool,
}

impl<'a> Asking<'a> {
    fn begin(activity: &'a NodeActivity) -> Self {
        activity.begins();
        Self { activity, begun: Instant::now(), has_failed: false }
    }

    fn end(mut self, has_failed: bool) {
        self.has_failed = has_failed;
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.activity.ends(self.begun.elapsed(), self.has_failed);
    }
}

/// Forgets a question when it is answered or no longer asked.
struct Waiting<'a> {
    peers: &'a Peers,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.peers.waiting.lock().remove(&self.number);
    }
}
