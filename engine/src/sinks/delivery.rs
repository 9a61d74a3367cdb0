//! The thread that delivers answers to a sink, and the queue in front of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::writer::Writer;
use crate::connector::{ConnectorError, Ends};
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

/// The turns whose answers a sink has acknowledged, for one worker, which is woken.
pub struct Acknowledged {
    next: AtomicU64,
    ended: Mutex<Vec<Ticket>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// Names the answers of a turn while the sink has them.
pub type Ticket = u64;

impl Acknowledged {
    /// `wake` is called after each acknowledgement.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { next: AtomicU64::new(0), ended: Mutex::default(), wake: Box::new(wake) })
    }

    /// The turns that were acknowledged since the last call, in that order.
    pub fn take(&self) -> Vec<Ticket> {
        std::mem::take(&mut *self.ended.lock())
    }
}

/// A turn that ends with an answer.
struct LastOf {
    ticket: Ticket,
    acknowledged: Arc<Acknowledged>,
}

/// An answer that waits for its sink; the last one of a turn has whom to tell.
struct Waiting {
    record: AnswerRecord,
    last_of: Option<LastOf>,
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
    pub(super) fn put(&self, records: Vec<AnswerRecord>, done: &Arc<Acknowledged>) -> Ticket {
        let last = records.len().saturating_sub(1);
        let ticket = done.next.fetch_add(1, Ordering::AcqRel);
        self.queue.pending.fetch_add(records.len(), Ordering::AcqRel);
        let waiting = records.into_iter().enumerate().map(|(number, record)| {
            let last_of = (number == last).then(|| LastOf { ticket, acknowledged: done.clone() });
            Waiting { record, last_of }
        });
        self.queue.state.lock().waiting.extend(waiting);
        self.queue.changed.notify_one();
        ticket
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

/// The answers of a delivery, each with its end.
#[derive(Default)]
struct Batch {
    records: VecDeque<AnswerRecord>,
    ends: VecDeque<End>,
}

/// The end of an answer.
struct End {
    has_come: bool,
    last_of: Option<LastOf>,
}

impl Batch {
    fn push(&mut self, Waiting { record, last_of }: Waiting) {
        self.records.push_back(record);
        self.ends.push_back(End { has_come: false, last_of });
    }

    fn pop_last(&mut self) -> Option<Waiting> {
        Some(Waiting { record: self.records.pop_back()?, last_of: self.ends.pop_back()?.last_of })
    }

    /// Removes the answers that have ended; returns how many.
    fn remove_ended(&mut self) -> usize {
        let before = self.records.len();
        let mut ends = self.ends.iter();
        self.records.retain(|_| ends.next().is_none_or(|end| !end.has_come));
        self.ends.retain(|end| !end.has_come);
        before - self.records.len()
    }
}

/// Hears of answers that end while a batch is delivered.
struct OutOfOrder<'a> {
    queue: &'a Queue,
    records: &'a [AnswerRecord],
    ends: Mutex<&'a mut VecDeque<End>>,
    /// The number of the first answer that is being written.
    first: usize,
}

impl OutOfOrder<'_> {
    /// The last-of of an answer that ends now; `None` if it has ended before.
    fn end(&self, number: usize) -> Option<Option<LastOf>> {
        let mut ends = self.ends.lock();
        let end = ends.get_mut(number).filter(|end| !end.has_come)?;
        end.has_come = true;
        Some(end.last_of.take())
    }
}

impl Ends for OutOfOrder<'_> {
    fn ended(&self, number: usize, refused: Option<&str>) {
        let number = self.first + number;
        let (Some(record), Some(last_of)) = (self.records.get(number), self.end(number)) else { return };
        if let Some(reason) = refused {
            self.queue.becomes_dead_letter(record, reason);
        }
        self.queue.tell(1, last_of);
    }
}

impl Queue {
    /// Delivers queued answers until the queue is closed. A panic outside of a delivery is an error of
    /// the sink like any other: the thread continues.
    fn run(&self) {
        let mut batch = Batch::default();
        while let Err(panicked) = caught(|| self.work(&mut batch)) {
            self.fails(&panicked.to_string());
            if self.pause(usize::MAX) {
                return;
            }
        }
    }

    fn work(&self, batch: &mut Batch) {
        // Answers that are delivered one at a time, to find the one that cannot be delivered.
        let (mut panics, mut singly) = (0, 0_usize);
        while self.fill(batch, if singly > 0 { 1 } else { self.writer.batch() }) {
            let (passed, out_of_order, failed) = self.deliver(batch);
            singly = singly.saturating_sub(passed + out_of_order);
            if passed + out_of_order > 0 {
                panics = 0;
            }
            if passed > 0 {
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
                    // Those behind it need not wait for it.
                    singly = 0;
                    self.state.lock().is_unread = matches!(reason, ConnectorError::Unread { .. });
                    self.fails(&reason.to_string());
                }
            }
            // Where others end while one fails, new ones do not wait for that.
            let is_full = out_of_order == 0 || batch.records.len() >= self.writer.batch();
            if self.pause(if is_full { usize::MAX } else { 1 }) {
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

    /// Delivers the answers of a batch, and takes those out that have ended. Returns how many of the first ones the sink has,
    /// including those that it had before, how many later ones have ended, and the error on the first of the rest.
    fn deliver(&self, batch: &mut Batch) -> (usize, usize, Option<ConnectorError>) {
        batch.remove_ended();
        let records: &[AnswerRecord] = batch.records.make_contiguous();
        let mut ends = OutOfOrder { queue: self, records, ends: Mutex::new(&mut batch.ends), first: 0 };
        let (mut passed, mut failed) = (0, None);
        while passed < records.len() && failed.is_none() {
            let rest = &records[passed..];
            let new = rest.iter().position(|record| self.writer.has(record)).unwrap_or(rest.len());
            if new == 0 {
                passed += 1;
                continue;
            }
            ends.first = passed;
            match self.writer.write(&rest[..new], &ends) {
                Ok(()) => passed += new,
                Err((taken, reason)) => {
                    passed += taken;
                    failed = Some(reason);
                }
            }
        }
        let in_order: Vec<_> = (0..passed).filter_map(|number| ends.end(number)).collect();
        self.tell(in_order.len(), in_order.into_iter().flatten());
        let ended = batch.remove_ended();
        (passed, ended - passed, failed)
    }

    /// Tells that answers have ended: these are acknowledged or abandoned.
    fn tell(&self, answers: usize, last_of: impl IntoIterator<Item = LastOf>) {
        if answers == 0 {
            return;
        }
        let mut told: Vec<Arc<Acknowledged>> = Vec::new();
        for LastOf { ticket, acknowledged } in last_of {
            acknowledged.ended.lock().push(ticket);
            if !told.iter().any(|known| Arc::ptr_eq(known, &acknowledged)) {
                told.push(acknowledged);
            }
        }
        self.delivered.fetch_add(answers as u64, Ordering::AcqRel);
        self.pending.fetch_sub(answers, Ordering::SeqCst);
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
        let (Some(first), Some(end)) = (batch.records.pop_front(), batch.ends.pop_front()) else { return };
        self.becomes_dead_letter(&first, reason);
        self.tell(1, end.last_of);
    }

    fn becomes_dead_letter(&self, answer: &AnswerRecord, reason: &str) {
        let AnswerRecord { conversation_id, turn, revision, .. } = answer;
        tracing::error!(sink = %self.id, conversation = %conversation_id, turn, reason,
            "the sink refuses an answer; it becomes a dead letter");
        let position = format!("{conversation_id}, turn {turn}, revision {revision}");
        let record = serde_json::to_vec(answer).unwrap_or_default();
        self.dead.write(&self.id, &position, &format!("the sink refuses it: {reason}"), &record);
        self.refused.fetch_add(1, Ordering::AcqRel);
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

    /// Waits before the next attempt, until so many answers are new at most; returns whether the thread must end.
    fn pause(&self, most: usize) -> bool {
        let until = Instant::now() + RETRY;
        let mut state = self.state.lock();
        while !state.is_closed && state.waiting.len() < most && !self.changed.wait_until(&mut state, until).timed_out()
        {
        }
        state.is_closed
    }
}
