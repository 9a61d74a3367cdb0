//! The thread that delivers answers to a sink, and the queue in front of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::writer::Writer;
use crate::connector::ConnectorError;
use crate::dead_letter::DeadLetters;
use crate::record::AnswerRecord;

/// Between attempts at a sink that fails.
const RETRY: Duration = Duration::from_secs(1);
/// A sink that panics so often on one answer is not given it again.
const PANICS: u32 = 3;

/// Counts the turns whose answers a sink has taken, for one worker, and wakes it.
pub struct Acknowledged {
    count: AtomicUsize,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Acknowledged {
    /// `wake` is called after each count.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), wake: Box::new(wake) })
    }

    /// How many since this was asked last.
    pub fn take(&self) -> usize {
        self.count.swap(0, Ordering::AcqRel)
    }
}

/// An answer that waits for its sink; the last one of a turn tells who is to know.
struct Waiting {
    record: AnswerRecord,
    last_of: Option<Arc<Acknowledged>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    is_closed: bool,
    /// Why the sink does not take answers now.
    fault: Option<String>,
}

struct Queue {
    id: Arc<str>,
    writer: Arc<Writer>,
    dead: DeadLetters,
    state: Mutex<State>,
    changed: Condvar,
    /// Answers that the sink has not taken yet.
    pending: AtomicUsize,
    delivered: AtomicU64,
    /// Somebody waits for room.
    is_awaited: AtomicBool,
    has_room: Box<dyn Fn() + Send + Sync>,
}

/// A sink's queue and its thread.
pub(super) struct DeliveryThread {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DeliveryThread {
    /// `has_room` is called when the sink has taken answers after it was found to be behind.
    pub(super) fn start(
        id: Arc<str>,
        writer: Arc<Writer>,
        dead: DeadLetters,
        has_room: Box<dyn Fn() + Send + Sync>,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(Queue {
            id: id.clone(),
            writer,
            dead,
            state: Mutex::default(),
            changed: Condvar::new(),
            pending: AtomicUsize::new(0),
            delivered: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            has_room,
        });
        let of_thread = queue.clone();
        let thread = std::thread::Builder::new().name(format!("sink {id}")).spawn(move || of_thread.work())?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Puts the answers of a turn into the queue; at least one.
    pub(super) fn put(&self, records: Vec<AnswerRecord>, done: &Arc<Acknowledged>) {
        let last = records.len().saturating_sub(1);
        self.queue.pending.fetch_add(records.len(), Ordering::AcqRel);
        let waiting = records.into_iter().enumerate().map(|(number, record)| {
            let last_of = (number == last).then(|| done.clone());
            Waiting { record, last_of }
        });
        self.queue.state.lock().waiting.extend(waiting);
        self.queue.changed.notify_one();
    }

    /// Answers that the sink has not taken yet.
    pub(super) fn pending(&self) -> usize {
        self.queue.pending.load(Ordering::Acquire)
    }

    /// Answers that it has taken.
    pub(super) fn delivered(&self) -> u64 {
        self.queue.delivered.load(Ordering::Acquire)
    }

    /// Why it takes none now.
    pub(super) fn fault(&self) -> Option<String> {
        self.queue.state.lock().fault.clone()
    }

    /// Whether `most` answers or more wait; then `has_room` is called when the sink has taken some.
    pub(super) fn is_behind(&self, most: usize) -> bool {
        if self.pending() < most {
            return false;
        }
        self.queue.is_awaited.store(true, Ordering::SeqCst);
        // The last ones may have been taken meanwhile, by a thread that did not see that.
        self.pending() >= most
    }

    /// Gives up what waits and what is being delivered, and returns when the thread has ended.
    pub(super) fn close(&self) {
        self.queue.state.lock().is_closed = true;
        self.queue.writer.aborted.cancel();
        self.queue.changed.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for DeliveryThread {
    fn drop(&mut self) {
        self.close();
    }
}

/// Answers that are being delivered, each with who is to know of it.
#[derive(Default)]
struct Batch {
    records: VecDeque<AnswerRecord>,
    last_of: VecDeque<Option<Arc<Acknowledged>>>,
}

impl Batch {
    fn push(&mut self, Waiting { record, last_of }: Waiting) {
        self.records.push_back(record);
        self.last_of.push_back(last_of);
    }

    fn pop_last(&mut self) -> Option<Waiting> {
        Some(Waiting { record: self.records.pop_back()?, last_of: self.last_of.pop_back()? })
    }
}

impl Queue {
    /// Delivers what comes, until it is closed.
    fn work(&self) {
        let mut batch = Batch::default();
        let (mut panics, mut size) = (0, self.writer.batch());
        while self.fill(&mut batch, size) {
            let (passed, failed) = self.deliver(batch.records.make_contiguous());
            self.done(&mut batch, passed);
            if passed > 0 {
                panics = 0;
                self.is_well();
            }
            let Some(reason) = failed else {
                size = self.writer.batch();
                continue;
            };
            match reason {
                ConnectorError::Stopped(_) => return,
                ConnectorError::Refused { reason } => {
                    self.give_up(&mut batch, &reason);
                    continue;
                }
                ConnectorError::Panicked(panicked) => {
                    // Alone, to know which answer it is.
                    size = 1;
                    self.put_back(&mut batch, size);
                    panics += 1;
                    if panics >= PANICS {
                        panics = 0;
                        self.give_up(&mut batch, &panicked.to_string());
                        continue;
                    }
                    self.fails(&panicked.to_string());
                }
                reason => self.fails(&reason.to_string()),
            }
            if self.pause() {
                return;
            }
        }
    }

    /// Waits until there is something to deliver; false when the thread is to end.
    fn fill(&self, batch: &mut Batch, size: usize) -> bool {
        let mut state = self.state.lock();
        while batch.records.is_empty() && state.waiting.is_empty() && !state.is_closed {
            self.changed.wait(&mut state);
        }
        let more = size.saturating_sub(batch.records.len()).min(state.waiting.len());
        state.waiting.drain(..more).for_each(|waiting| batch.push(waiting));
        !state.is_closed
    }

    /// Delivers answers. Gives how many of them are the sink's, those included that it had already,
    /// and why the next is not.
    fn deliver(&self, records: &[AnswerRecord]) -> (usize, Option<ConnectorError>) {
        let mut passed = 0;
        while passed < records.len() {
            let rest = &records[passed..];
            let new = rest.iter().position(|record| self.writer.has(record)).unwrap_or(rest.len());
            if new == 0 {
                passed += 1;
                continue;
            }
            match self.writer.write(&rest[..new]) {
                Ok(()) => passed += new,
                Err((taken, reason)) => return (passed + taken, Some(reason)),
            }
        }
        (passed, None)
    }

    /// The first ones of a batch are the sink's, or given up.
    fn done(&self, batch: &mut Batch, count: usize) {
        if count == 0 {
            return;
        }
        batch.records.drain(..count);
        let mut told: Vec<Arc<Acknowledged>> = Vec::new();
        for last_of in batch.last_of.drain(..count).flatten() {
            last_of.count.fetch_add(1, Ordering::AcqRel);
            if !told.iter().any(|known| Arc::ptr_eq(known, &last_of)) {
                told.push(last_of);
            }
        }
        self.delivered.fetch_add(count as u64, Ordering::AcqRel);
        self.pending.fetch_sub(count, Ordering::SeqCst);
        told.iter().for_each(|told| (told.wake)());
        if self.is_awaited.swap(false, Ordering::SeqCst) {
            (self.has_room)();
        }
    }

    /// What is behind the first `count` of a batch waits again.
    fn put_back(&self, batch: &mut Batch, count: usize) {
        let mut state = self.state.lock();
        while batch.records.len() > count
            && let Some(last) = batch.pop_last()
        {
            state.waiting.push_front(last);
        }
    }

    /// The first of a batch will not be taken: it becomes a dead letter.
    fn give_up(&self, batch: &mut Batch, reason: &str) {
        let Some(first) = batch.records.front() else { return };
        let AnswerRecord { conversation_id, turn, revision, .. } = first;
        tracing::error!(sink = %self.id, conversation = %conversation_id, turn, reason,
            "the sink does not take an answer; it is put among the dead letters");
        let position = format!("{conversation_id}, turn {turn}, revision {revision}");
        let record = serde_json::to_vec(first).unwrap_or_default();
        self.dead.write(&self.id, &position, &format!("the sink does not take it: {reason}"), &record);
        self.done(batch, 1);
    }

    fn is_well(&self) {
        if self.state.lock().fault.take().is_some() {
            tracing::warn!(sink = %self.id, "the sink takes answers again");
        }
    }

    fn fails(&self, reason: &str) {
        let mut state = self.state.lock();
        if state.fault.as_deref() != Some(reason) {
            tracing::error!(sink = %self.id, reason, waiting = self.pending.load(Ordering::Acquire),
                "the sink failed; trying again every second");
            state.fault = Some(reason.to_owned());
        }
    }

    /// Waits before the next attempt; whether the thread is to end.
    fn pause(&self) -> bool {
        let until = Instant::now() + RETRY;
        let mut state = self.state.lock();
        while !state.is_closed && !self.changed.wait_until(&mut state, until).timed_out() {}
        state.is_closed
    }
}
