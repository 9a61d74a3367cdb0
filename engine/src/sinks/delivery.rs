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
use crate::panics::caught;
use crate::record::AnswerRecord;

/// The pause between attempts to deliver to a failing sink.
const RETRY: Duration = Duration::from_secs(1);
/// A closed sink has this long to finish its current delivery.
const PATIENCE: Duration = Duration::from_secs(3);
/// The interval between checks for its end.
const LOOK: Duration = Duration::from_millis(2);
/// After this many panics of a sink on one answer, the answer is abandoned.
const PANICS: u32 = 3;

/// Counts the turns whose answers a sink has acknowledged, for one worker, and wakes it.
pub struct Acknowledged {
    count: AtomicUsize,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Acknowledged {
    /// `wake` is called after each count.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), wake: Box::new(wake) })
    }

    /// The count since the last call.
    pub fn take(&self) -> usize {
        self.count.swap(0, Ordering::AcqRel)
    }
}

/// An answer that waits for its sink; the last one of a turn has the counter to notify.
struct Waiting {
    record: AnswerRecord,
    last_of: Option<Arc<Acknowledged>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    is_closed: bool,
    /// The current error of the sink.
    fault: Option<String>,
    /// The error is that nothing reads the output.
    is_unread: bool,
}

struct Queue {
    id: Arc<str>,
    writer: Arc<Writer>,
    dead: DeadLetters,
    state: Mutex<State>,
    changed: Condvar,
    /// Number of answers that the sink has not acknowledged.
    pending: AtomicUsize,
    /// Acknowledged or abandoned.
    delivered: AtomicU64,
    refused: AtomicU64,
    /// A conversation waits for room.
    is_awaited: AtomicBool,
    has_room: Box<dyn Fn() + Send + Sync>,
}

/// A sink's queue and its thread.
pub(super) struct DeliveryThread {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DeliveryThread {
    /// `has_room` is called when a sink that was behind acknowledges answers.
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
            refused: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            has_room,
        });
        let of_thread = queue.clone();
        let thread = std::thread::Builder::new().name(format!("sink {id}")).spawn(move || of_thread.run())?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Queues the answers of a turn; at least one.
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

    /// Number of answers that the sink has not acknowledged.
    pub(super) fn pending(&self) -> usize {
        self.queue.pending.load(Ordering::SeqCst)
    }

    /// Number of answers acknowledged, and of answers abandoned.
    pub(super) fn delivered(&self) -> (u64, u64) {
        let (done, refused) = (&self.queue.delivered, &self.queue.refused);
        let refused = refused.load(Ordering::Acquire);
        (done.load(Ordering::Acquire).saturating_sub(refused), refused)
    }

    /// The current error of the sink.
    pub(super) fn fault(&self) -> Option<String> {
        self.queue.state.lock().fault.clone()
    }

    /// Whether nothing reads the sink's output any more.
    pub(super) fn is_unread(&self) -> bool {
        self.queue.state.lock().is_unread
    }

    /// Whether `most` or more answers wait. If so, `has_room` is called after the next acknowledgement.
    pub(super) fn is_behind(&self, most: usize) -> bool {
        if self.pending() < most {
            return false;
        }
        self.queue.is_awaited.store(true, Ordering::SeqCst);
        // The thread may have delivered the rest before it could see the flag.
        self.pending() >= most
    }

    /// Drops waiting answers, cancels the current delivery, and returns when the thread has ended.
    pub(super) fn close(&self) {
        self.queue.state.lock().is_closed = true;
        self.queue.writer.aborted.cancel();
        self.queue.changed.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A sink that blocks cannot be cancelled: its thread is abandoned.
            let until = Instant::now() + PATIENCE;
            while !thread.is_finished() && Instant::now() < until {
                std::thread::park_timeout(LOOK);
            }
            match thread.is_finished() {
                true => drop(thread.join()),
                false => tracing::warn!(sink = %self.queue.id, "the sink blocks; stopping without it"),
            }
        }
    }
}

impl Drop for DeliveryThread {
    fn drop(&mut self) {
        self.close();
    }
}

/// The answers of a delivery, each with the counter to notify.
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
    /// Delivers queued answers until the queue is closed. A panic outside of a delivery is an error of
    /// the sink like any other: the thread continues.
    fn run(&self) {
        let mut batch = Batch::default();
        while let Err(panicked) = caught(|| self.work(&mut batch)) {
            self.fails(&panicked.to_string());
            if self.pause() {
                return;
            }
        }
    }

    fn work(&self, batch: &mut Batch) {
        // Answers that are delivered one at a time, to find the one that cannot be delivered.
        let (mut panics, mut singly) = (0, 0_usize);
        while self.fill(batch, if singly > 0 { 1 } else { self.writer.batch() }) {
            let (passed, failed) = self.deliver(batch.records.make_contiguous());
            self.done(batch, passed);
            singly = singly.saturating_sub(passed);
            if passed > 0 {
                panics = 0;
                self.is_well();
            }
            let Some(reason) = failed else { continue };
            let is_of_an_answer = matches!(reason, ConnectorError::Refused { .. } | ConnectorError::Panicked(_));
            if is_of_an_answer && batch.records.len() > 1 {
                singly = singly.max(batch.records.len());
                self.put_back(batch, 1);
                continue;
            }
            match reason {
                ConnectorError::Stopped(_) if self.writer.aborted.is_cancelled() => return,
                ConnectorError::Refused { reason } => {
                    self.give_up(batch, &reason);
                    singly = singly.saturating_sub(1);
                    continue;
                }
                ConnectorError::Panicked(panicked) => {
                    panics += 1;
                    if panics >= PANICS {
                        panics = 0;
                        self.give_up(batch, &panicked.to_string());
                        singly = singly.saturating_sub(1);
                        continue;
                    }
                    self.fails(&panicked.to_string());
                }
                reason => {
                    self.state.lock().is_unread = matches!(reason, ConnectorError::Unread { .. });
                    self.fails(&reason.to_string());
                }
            }
            if self.pause() {
                return;
            }
        }
    }

    /// Waits until there is something to deliver; false when the thread must end.
    fn fill(&self, batch: &mut Batch, size: usize) -> bool {
        let mut state = self.state.lock();
        while batch.records.is_empty() && state.waiting.is_empty() && !state.is_closed {
            self.changed.wait(&mut state);
        }
        let more = size.saturating_sub(batch.records.len()).min(state.waiting.len());
        state.waiting.drain(..more).for_each(|waiting| batch.push(waiting));
        !state.is_closed
    }

    /// Delivers answers. Returns how many of them the sink has, including those that it had before,
    /// and the error on the next one.
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

    /// Removes the first `count` answers of a batch, which are acknowledged or abandoned.
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

    /// Returns all answers after the first `count` to the queue.
    fn put_back(&self, batch: &mut Batch, count: usize) {
        let mut state = self.state.lock();
        while batch.records.len() > count
            && let Some(last) = batch.pop_last()
        {
            state.waiting.push_front(last);
        }
    }

    /// Abandons the first answer of a batch: it becomes a dead letter.
    fn give_up(&self, batch: &mut Batch, reason: &str) {
        let Some(first) = batch.records.front() else { return };
        let AnswerRecord { conversation_id, turn, revision, .. } = first;
        tracing::error!(sink = %self.id, conversation = %conversation_id, turn, reason,
            "the sink refuses an answer; it becomes a dead letter");
        let position = format!("{conversation_id}, turn {turn}, revision {revision}");
        let record = serde_json::to_vec(first).unwrap_or_default();
        self.dead.write(&self.id, &position, &format!("the sink refuses it: {reason}"), &record);
        self.refused.fetch_add(1, Ordering::AcqRel);
        self.done(batch, 1);
    }

    fn is_well(&self) {
        if self.state.lock().fault.take().is_some() {
            tracing::warn!(sink = %self.id, "the sink accepts answers again");
        }
    }

    fn fails(&self, reason: &str) {
        let mut state = self.state.lock();
        if state.fault.as_deref() != Some(reason) {
            tracing::error!(sink = %self.id, reason, waiting = self.pending.load(Ordering::Acquire),
                "the sink failed; delivery is retried every second");
            state.fault = Some(reason.to_owned());
        }
    }

    /// Waits before the next attempt; returns whether the thread must end.
    fn pause(&self) -> bool {
        let until = Instant::now() + RETRY;
        let mut state = self.state.lock();
        while !state.is_closed && !self.changed.wait_until(&mut state, until).timed_out() {}
        state.is_closed
    }
}
