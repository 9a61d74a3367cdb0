//! Sinks as all workers and plans share them: what they have, what waits for them, and the thread
//! that delivers it.

mod delivery;
mod writer;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;

pub use self::delivery::Acknowledged;
use self::delivery::DeliveryThread;
use self::writer::Writer;
use crate::claims::Claim;
use crate::connector::{AnswerSink, ConnectorError, SinkPosition};
use crate::dead_letter::DeadLetters;
use crate::record::AnswerRecord;

/// What a sink needs of the engine.
pub struct SinkContext {
    /// Where asynchronous sinks run.
    pub runtime: Handle,
    /// Where answers go that the sink will never take.
    pub dead: DeadLetters,
    /// Called when the sink has taken answers after [`SinkHandle::is_behind`].
    pub has_room: Box<dyn Fn() + Send + Sync>,
}

/// How a sink does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkStatus {
    /// Its node.
    pub id: Arc<str>,
    /// Answers that wait for it.
    pub pending: usize,
    /// Answers that it has taken since the start.
    pub delivered: u64,
    /// Why it takes none now.
    pub fault: Option<String>,
}

/// A sink, and how far it is written.
pub struct SinkHandle {
    id: Arc<str>,
    writer: Arc<Writer>,
    /// While what an earlier process has left is read again: where its answers are looked for
    /// (`None`: anywhere), so that the next process, if this one is killed, looks there too.
    replay: Mutex<Option<Option<SinkPosition>>>,
    /// By key, where it stood before revisions that are not noted everywhere yet; the oldest first.
    held: Mutex<VecDeque<(Arc<str>, SinkPosition)>>,
    /// By key, answers that were withdrawn by an earlier process and are there again.
    restored: Mutex<HashMap<Arc<str>, AnswerRecord>>,
    /// By key, answers that another sink had, while the log is read again.
    copied: Mutex<HashMap<Arc<str>, AnswerRecord>>,
    deliveries: DeliveryThread,
    /// Of its file; let go of when nothing is written any more.
    claim: Option<Arc<Claim>>,
}

impl SinkHandle {
    /// Of a node.
    ///
    /// # Errors
    ///
    /// The operating system gives no thread.
    pub fn new(
        id: Arc<str>,
        sink: Box<dyn AnswerSink>,
        claim: Option<Arc<Claim>>,
        context: SinkContext,
    ) -> std::io::Result<Self> {
        let SinkContext { runtime, dead, has_room } = context;
        let writer = Arc::new(Writer::new(sink, runtime));
        let deliveries = DeliveryThread::start(id.clone(), writer.clone(), dead, has_room)?;
        Ok(Self {
            id,
            writer,
            replay: Mutex::default(),
            held: Mutex::default(),
            restored: Mutex::default(),
            copied: Mutex::default(),
            deliveries,
            claim,
        })
    }

    /// The node.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The file that it appends to, and nobody else.
    pub fn file(&self) -> Option<&Path> {
        self.claim.as_ref().map(|claim| claim.path())
    }

    /// Whether it can be looked into.
    pub fn is_kept(&self) -> bool {
        self.writer.is_kept()
    }

    /// How it does.
    pub fn status(&self) -> SinkStatus {
        let Self { id, deliveries, .. } = self;
        let (pending, delivered) = (deliveries.pending(), deliveries.delivered());
        SinkStatus { id: id.clone(), pending, delivered, fault: deliveries.fault() }
    }

    /// Has the answers of a turn delivered, at least one, but for those that an earlier process has
    /// delivered; `done` counts the turn when all are.
    pub fn deliver(&self, records: Vec<AnswerRecord>, done: &Arc<Acknowledged>) {
        self.deliveries.put(records, done);
    }

    /// Whether `most` answers or more wait for it.
    pub fn is_behind(&self, most: usize) -> bool {
        self.deliveries.is_behind(most)
    }

    /// Gives up what waits, and returns when nothing is written any more.
    pub fn close(&self) {
        self.deliveries.close();
    }

    /// Finds which answers it has got behind the mark, or all; gives whether what the mark was
    /// taken of is there. `others` are the files of other sinks.
    pub fn recover(&self, since: Option<&SinkPosition>, others: &[PathBuf]) -> Result<bool, ConnectorError> {
        let (is_there, answers) = self.writer.recover(since, others)?;
        let since = since.filter(|_| is_there).cloned();
        // Where nothing was found there is nothing to look for.
        *self.replay.lock() = (answers > 0).then_some(since);
        Ok(is_there)
    }

    /// Whether what an earlier process has left is yet to be read again, and passed over by what
    /// this handle has found.
    pub fn is_replaying(&self) -> bool {
        self.replay.lock().is_some()
    }

    /// What an earlier process has left has been read again.
    pub fn replayed(&self) {
        *self.replay.lock() = None;
        self.copied.lock().clear();
    }

    /// The text of an answer that an earlier process has written.
    pub fn found(&self, key: &str) -> Option<Arc<str>> {
        if !self.is_kept() {
            return None;
        }
        let (text, is_revised) = {
            let mut recovered = self.writer.recovered.lock();
            (recovered.found(key)?, recovered.found(&AnswerRecord::delivery_key(key, 0, true)).is_some())
        };
        if is_revised {
            // It may be that nothing stands in its place.
            self.record(key);
        }
        Some(text)
    }

    /// The record of an answer as an earlier process has written it first.
    pub fn first(&self, key: &str) -> Option<AnswerRecord> {
        self.writer.recovered.lock().record(key)
    }

    /// Delivers an answer that an earlier process has given to another sink, before this returns.
    pub fn copy(&self, record: AnswerRecord) -> Result<(), ConnectorError> {
        self.write(&record)?;
        self.copied.lock().insert(record.key.clone(), record);
        Ok(())
    }

    /// The record of an answer that an earlier process has written, as it stands now.
    pub fn record(&self, key: &str) -> Option<AnswerRecord> {
        if let Some(copied) = self.copied.lock().get(key) {
            return Some(copied.clone());
        }
        let first = self.first(key)?;
        Some(self.newer(&first).unwrap_or(first))
    }

    /// The newest revision of an answer that an earlier process has written, behind this one.
    /// Where that process has withdrawn an answer and was killed before it wrote what follows,
    /// the same answer follows.
    pub fn newer(&self, known: &AnswerRecord) -> Option<AnswerRecord> {
        if let Some(restored) = self.restored.lock().get(&known.key) {
            return Some(restored.clone()).filter(|restored| restored.revision > known.revision);
        }
        let (newest, is_withdrawn) = {
            let mut recovered = self.writer.recovered.lock();
            let mut newest: Option<AnswerRecord> = None;
            for revision in known.revision + 1.. {
                match recovered.record(&AnswerRecord::delivery_key(&known.key, u64::from(revision), false)) {
                    Some(record) => newest = Some(record),
                    None => break,
                }
            }
            let stands = newest.as_ref().unwrap_or(known);
            let withdrawn = AnswerRecord::delivery_key(&stands.key, u64::from(stands.revision), true);
            (newest, recovered.found(&withdrawn).is_some())
        };
        if !is_withdrawn {
            return newest;
        }
        let stands = newest.as_ref().unwrap_or(known);
        let restored = AnswerRecord { revision: stands.revision + 1, retracted: false, ..stands.clone() };
        if let Err(error) = self.write(&restored) {
            tracing::error!(sink = %self.id, %error, key = %restored.key, "an answer stays withdrawn");
            return newest;
        }
        self.restored.lock().insert(restored.key.clone(), restored.clone());
        Some(restored)
    }

    /// Writes an answer, unless an earlier process has, before this returns.
    fn write(&self, record: &AnswerRecord) -> Result<(), ConnectorError> {
        if self.writer.has(record) {
            return Ok(());
        }
        self.writer.write(std::slice::from_ref(record)).map_err(|(_, reason)| reason)
    }

    /// The run begins.
    pub fn begin(&self) -> Result<(), ConnectorError> {
        if self.writer.begin()? {
            *self.replay.lock() = None;
        }
        Ok(())
    }

    /// A revision of this answer is about to be delivered: until it is released, what is
    /// looked for after a crash is looked for from here on.
    pub fn hold(&self, key: &Arc<str>) {
        let Some(mark) = self.mark() else { return };
        let mut held = self.held.lock();
        if !held.iter().any(|(of, _)| of == key) {
            held.push_back((key.clone(), mark));
        }
    }

    /// What is known of the answer says that the sink has it.
    pub fn release(&self, key: &str) {
        self.held.lock().retain(|(of, _)| **of != *key);
    }

    /// Behind which mark answers may be that nothing else knows of.
    pub fn since(&self) -> Option<SinkPosition> {
        // The mark first: what is held after that is behind it.
        let mark = self.mark();
        if let Some(replay) = &*self.replay.lock() {
            return replay.clone();
        }
        self.held.lock().front().map(|(_, mark)| mark.clone()).or(mark)
    }

    /// How far it is written.
    pub fn mark(&self) -> Option<SinkPosition> {
        self.writer.mark()
    }

    /// Returns when what was delivered is on the disk.
    pub fn sync(&self) -> Result<(), ConnectorError> {
        self.writer.sync()
    }
}

#[cfg(test)]
mod tests;
