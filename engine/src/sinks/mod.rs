//! Sinks, shared by all workers and plans: their contents, their queues, and the threads that
//! deliver answers to them.

mod delivery;
mod writer;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use self::delivery::DeliveryThread;
pub use self::delivery::{Acknowledged, Ticket};
use self::writer::Writer;
use crate::claims::Claim;
use crate::connector::{
    AlertStates, AlertStatus, AnswerLog, AnswerSink, ConnectorError, ReviewQueue, Search, SinkPosition,
};
use crate::dead_letter::DeadLetters;
use crate::panics::caught;
use crate::record::AnswerRecord;

/// What a sink needs from the engine.
pub struct SinkContext {
    /// The runtime of asynchronous sinks.
    pub runtime: Handle,
    /// Receives answers that the sink refuses permanently.
    pub dead: DeadLetters,
    /// Called when a sink that was behind ([`SinkHandle::is_behind`]) acknowledges answers.
    pub has_room: Box<dyn Fn() + Send + Sync>,
}

/// The status of a sink.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SinkStatus {
    /// Its node.
    pub id: Arc<str>,
    /// Number of answers that it has not acknowledged.
    pub pending: usize,
    /// Number of answers acknowledged since the start.
    pub delivered: u64,
    /// Number of answers abandoned since the start, because the sink refused them.
    pub refused: u64,
    /// The current error, if the last delivery failed.
    pub fault: Option<String>,
    /// Whether the error is that nothing reads its output any more, as of a closed pipe.
    pub is_unread: bool,
}

/// A sink and its position.
pub struct SinkHandle {
    id: Arc<str>,
    writer: Arc<Writer>,
    /// While sources are replayed: the position after which answers of an earlier process are
    /// searched (`None`: everywhere). If this process is killed, the next one searches there too.
    replay: Mutex<Option<Option<SinkPosition>>>,
    /// By key, the positions before revisions that are not stored durably yet; the oldest first.
    held: Mutex<VecDeque<(Arc<str>, SinkPosition)>>,
    /// By key, answers that an earlier process retracted and that are delivered again.
    restored: Mutex<HashMap<Arc<str>, AnswerRecord>>,
    /// The restored answers that are acknowledged.
    repaired: Arc<Acknowledged>,
    /// Number of restored answers that are not acknowledged yet.
    repairs: Mutex<usize>,
    deliveries: DeliveryThread,
    /// The claim on its file; released when nothing more is written.
    claim: Option<Arc<Claim>>,
    /// Its answers, if a program may read them.
    log: Option<Arc<dyn AnswerLog>>,
    /// The states of its rules, if it watches the answers.
    alerts: Option<Arc<dyn AlertStates>>,
    /// Its queue, if it keeps answers for people to judge.
    review: Option<Arc<dyn ReviewQueue>>,
    /// Whether it gets answers of callers.
    pub(crate) takes_callers: bool,
}

/// Answers of callers that wait for a sink; further ones are left out.
const MOST_OF_CALLERS: usize = 10_000;

impl SinkHandle {
    /// The handle for a node's sink; starts its thread.
    ///
    /// # Errors
    ///
    /// The operating system cannot create a thread.
    pub fn new(
        id: Arc<str>,
        sink: Box<dyn AnswerSink>,
        claim: Option<Arc<Claim>>,
        context: SinkContext,
    ) -> std::io::Result<Self> {
        let SinkContext { runtime, dead, has_room } = context;
        let log = caught(|| sink.log()).ok().flatten();
        let alerts = caught(|| sink.alerts()).ok().flatten();
        let review = caught(|| sink.review()).ok().flatten();
        let writer = Arc::new(Writer::new(sink, runtime));
        let deliveries = DeliveryThread::start(id.clone(), writer.clone(), dead, has_room)?;
        Ok(Self {
            id,
            writer,
            replay: Mutex::default(),
            held: Mutex::default(),
            restored: Mutex::default(),
            repaired: Acknowledged::new(|| ()),
            repairs: Mutex::default(),
            deliveries,
            claim,
            log,
            alerts,
            review,
            takes_callers: false,
        })
    }

    /// The node.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The file to which it alone appends.
    pub fn file(&self) -> Option<&Path> {
        self.claim.as_ref().map(|claim| claim.path())
    }

    /// Its answers, if a program may read them.
    pub fn log(&self) -> Option<Arc<dyn AnswerLog>> {
        self.log.clone()
    }

    /// The states of its rules.
    pub fn alerts(&self) -> Vec<AlertStatus> {
        self.alerts.as_ref().map(|alerts| alerts.alerts()).unwrap_or_default()
    }

    /// Its queue of answers that people judge.
    pub fn review(&self) -> Option<Arc<dyn ReviewQueue>> {
        self.review.clone()
    }

    /// Whether its contents can be read back.
    pub fn is_kept(&self) -> bool {
        self.writer.is_kept()
    }

    /// Its status.
    pub fn status(&self) -> SinkStatus {
        let Self { id, deliveries, .. } = self;
        let (pending, (delivered, refused)) = (deliveries.pending(), deliveries.delivered());
        SinkStatus {
            id: id.clone(),
            pending,
            delivered,
            refused,
            fault: deliveries.fault(),
            is_unread: deliveries.is_unread(),
        }
    }

    /// Queues the answers of a turn (at least one) for delivery, except for those that an earlier
    /// process delivered. `done` gets the ticket when all are acknowledged.
    pub fn deliver(&self, records: Vec<AnswerRecord>, done: &Arc<Acknowledged>) -> Ticket {
        self.deliveries.put(records, done)
    }

    /// Queues the answer to a caller, who does not wait for it, unless too many wait.
    pub(crate) fn deliver_of_caller(&self, record: AnswerRecord) {
        if self.is_behind(MOST_OF_CALLERS) {
            tracing::warn!(sink = %self.id, conversation = %record.conversation_id, "the sink is behind: an answer to a caller is left out");
            return;
        }
        self.deliveries.put(vec![record], &Acknowledged::new(|| ()));
    }

    /// Whether `most` or more answers wait for it.
    pub fn is_behind(&self, most: usize) -> bool {
        self.deliveries.is_behind(most)
    }

    /// Drops the waiting answers, and returns when nothing more is written.
    pub fn close(&self) {
        self.deliveries.close();
    }

    /// Finds the answers that the sink has after a position, or all. Returns whether the contents at
    /// that position still exist.
    pub fn recover(&self, search: Search<'_>) -> Result<bool, ConnectorError> {
        let (is_there, answers) = self.writer.recover(search)?;
        let since = search.since.filter(|_| is_there).cloned();
        // If no answers were found, the next process does not have to search either.
        *self.replay.lock() = (answers > 0).then_some(since);
        Ok(is_there)
    }

    /// Whether sources are still replayed and recovered answers of this sink are needed.
    pub fn is_replaying(&self) -> bool {
        self.replay.lock().is_some()
    }

    /// Ends the replay: answers of earlier processes are no longer looked up. A later record may have the
    /// key of an earlier one, if the log was rotated and begins with the same record again.
    pub fn replayed(&self) {
        if self.replay.lock().take().is_some() {
            self.writer.forget_recovered();
        }
    }

    /// The text of an answer that an earlier process wrote.
    pub fn found(&self, key: &str) -> Option<Arc<str>> {
        if !self.is_kept() {
            return None;
        }
        let (text, is_revised) = {
            let mut recovered = self.writer.recovered.lock();
            (recovered.found(key)?, recovered.found(&AnswerRecord::delivery_key(key, 0, true)).is_some())
        };
        if is_revised {
            // The answer was retracted, and its revision may be missing: restore it.
            self.record(key);
        }
        Some(text)
    }

    /// The record of an answer as an earlier process first wrote it.
    pub fn first(&self, key: &str) -> Option<AnswerRecord> {
        self.writer.recovered.lock().record(key)
    }

    /// Queues an answer that this sink lacks; no checkpoint is written until it is acknowledged.
    fn repair(&self, record: AnswerRecord) {
        *self.repairs.lock() += 1;
        self.deliveries.put(vec![record], &self.repaired);
    }

    /// Whether answers are queued that an earlier process should have written. A checkpoint would make
    /// the next process believe that they exist.
    pub fn is_repairing(&self) -> bool {
        let mut repairs = self.repairs.lock();
        *repairs = repairs.saturating_sub(self.repaired.take().len());
        *repairs > 0
    }

    /// The current revision of an answer that an earlier process wrote.
    pub fn record(&self, key: &str) -> Option<AnswerRecord> {
        let first = self.first(key)?;
        Some(self.newer(&first).unwrap_or(first))
    }

    /// The newest revision after `known` that an earlier process wrote. If that process retracted an
    /// answer and was killed before it wrote the revision, the same answer is written again.
    pub fn newer(&self, known: &AnswerRecord) -> Option<AnswerRecord> {
        if let Some(restored) = self.restored.lock().get(&known.key) {
            return Some(restored.clone()).filter(|restored| restored.revision > known.revision);
        }
        let (newest, is_to_follow) = {
            let mut recovered = self.writer.recovered.lock();
            let mut newest: Option<AnswerRecord> = None;
            for revision in known.revision + 1.. {
                match recovered.record(&AnswerRecord::delivery_key(&known.key, u64::from(revision), false)) {
                    Some(record) => newest = Some(record),
                    None => break,
                }
            }
            let stands = newest.as_ref().unwrap_or(known);
            let retraction = AnswerRecord::delivery_key(&stands.key, u64::from(stands.revision), true);
            // After an answer that was taken back for good, none follows: the turn that replaced it has another key.
            let is_final = recovered.record(&retraction).is_some_and(|record| record.withdrawn);
            (newest, !is_final && recovered.found(&retraction).is_some())
        };
        if !is_to_follow {
            return newest;
        }
        let stands = newest.as_ref().unwrap_or(known);
        let restored = AnswerRecord { revision: stands.revision + 1, retracted: false, ..stands.clone() };
        self.repair(restored.clone());
        self.restored.lock().insert(restored.key.clone(), restored.clone());
        Some(restored)
    }

    /// Called when the run starts.
    pub fn begin(&self) -> Result<(), ConnectorError> {
        if self.writer.begin()? {
            *self.replay.lock() = None;
        }
        Ok(())
    }

    /// Holds the current position before a revision of this answer is delivered. Until the release,
    /// a process after a crash searches for answers from here.
    pub fn hold(&self, key: &Arc<str>) {
        let Some(mark) = self.mark() else { return };
        let mut held = self.held.lock();
        if !held.iter().any(|(of, _)| of == key) {
            held.push_back((key.clone(), mark));
        }
    }

    /// Releases the position: the delivery of the revision is stored durably.
    pub fn release(&self, key: &str) {
        self.held.lock().retain(|(of, _)| **of != *key);
    }

    /// The position after which the sink may have answers that no checkpoint covers.
    pub fn since(&self) -> Option<SinkPosition> {
        // Read the position first: whatever is held later comes after it.
        let mark = self.mark();
        if let Some(replay) = &*self.replay.lock() {
            return replay.clone();
        }
        self.held.lock().front().map(|(_, mark)| mark.clone()).or(mark)
    }

    /// The end of its contents.
    pub fn mark(&self) -> Option<SinkPosition> {
        self.writer.mark()
    }

    /// Returns when all delivered answers are on disk.
    pub fn sync(&self) -> Result<(), ConnectorError> {
        self.writer.sync()
    }
}

#[cfg(test)]
mod tests;
