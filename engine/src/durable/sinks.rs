//! A sink as all workers and plans share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::connector::{AnswerSink, ConnectorError, SinkMark};
use crate::record::AnswerRecord;

/// A sink, and how far it is written.
pub struct SinkHandle {
    id: Arc<str>,
    sink: Mutex<Box<dyn AnswerSink>>,
    kept: bool,
    /// Apart from the sink, which may be waiting for its disk.
    mark: Mutex<Option<SinkMark>>,
    written: AtomicBool,
}

impl SinkHandle {
    /// Of a node.
    pub fn new(id: Arc<str>, mut sink: Box<dyn AnswerSink>) -> Self {
        let mark = sink.kept().map(|kept| kept.mark());
        Self { id, kept: mark.is_some(), mark: Mutex::new(mark), sink: Mutex::new(sink), written: false.into() }
    }

    /// The node.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Whether it can be looked into.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Finds which answers it has got behind the mark, or all; gives whether it is what the
    /// mark was taken of.
    pub fn recover(&self, since: Option<&SinkMark>) -> Result<bool, ConnectorError> {
        let mut sink = self.sink.lock();
        let Some(kept) = sink.kept() else { return Ok(true) };
        let goes_on = kept.recover(since)?;
        *self.mark.lock() = Some(kept.mark());
        Ok(goes_on)
    }

    /// The text of an answer that an earlier process has written.
    pub fn found(&self, key: &str) -> Option<Arc<str>> {
        if !self.kept {
            return None;
        }
        self.sink.lock().kept()?.found(key)
    }

    /// The record of an answer that an earlier process has written, as it stands now.
    pub fn record(&self, key: &str) -> Option<AnswerRecord> {
        let first = self.sink.lock().kept()?.record(key)?;
        Some(self.newer(&first).unwrap_or(first))
    }

    /// The newest revision of an answer that an earlier process has written, behind this one.
    pub fn newer(&self, known: &AnswerRecord) -> Option<AnswerRecord> {
        let mut sink = self.sink.lock();
        let kept = sink.kept()?;
        let mut newest: Option<AnswerRecord> = None;
        for revision in known.revision + 1.. {
            match kept.record(&AnswerRecord::delivery_key(&known.key, u64::from(revision), false)) {
                Some(record) => newest = Some(record),
                None => break,
            }
        }
        newest
    }

    /// Delivers an answer, unless an earlier process has.
    pub fn deliver(&self, record: &AnswerRecord) -> Result<(), ConnectorError> {
        let mut sink = self.sink.lock();
        let key = AnswerRecord::delivery_key(&record.key, u64::from(record.revision), record.retracted);
        if sink.kept().is_some_and(|kept| kept.found(&key).is_some()) {
            return Ok(());
        }
        let delivered = sink.deliver(record);
        if let Some(kept) = sink.kept() {
            *self.mark.lock() = Some(kept.mark());
        }
        delivered?;
        self.written.store(true, Ordering::Release);
        Ok(())
    }

    /// How far it is written.
    pub fn mark(&self) -> Option<SinkMark> {
        self.mark.lock().clone()
    }

    /// Returns when what was delivered is on the disk.
    pub fn sync(&self) -> Result<(), ConnectorError> {
        if !self.written.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = self.sink.lock().kept().map_or(Ok(()), |kept| kept.sync());
        if synced.is_err() {
            self.written.store(true, Ordering::Release);
        }
        synced
    }
}
