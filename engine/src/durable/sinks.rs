//! A sink as all workers and plans share it.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::claims::Claim;
use crate::connector::{AnswerSink, ConnectorError, Recovered, SinkPosition};
use crate::record::AnswerRecord;

/// A sink, and how far it is written.
pub struct SinkHandle {
    id: Arc<str>,
    /// Of its file.
    claim: Option<Arc<Claim>>,
    sink: Mutex<Box<dyn AnswerSink>>,
    kept: bool,
    /// Apart from the sink, which may be waiting for its disk.
    mark: Mutex<Option<SinkPosition>>,
    /// While what an earlier process has left is read again: where its answers are looked for
    /// (`None`: anywhere), so that the next process, if this one is killed, looks there too.
    replay: Mutex<Option<Option<SinkPosition>>>,
    /// By key, where it stood before revisions that are not noted everywhere yet; the oldest first.
    held: Mutex<VecDeque<(Arc<str>, SinkPosition)>>,
    /// By key, answers that were withdrawn by an earlier process and are there again.
    restored: Mutex<HashMap<Arc<str>, AnswerRecord>>,
    /// By key, answers that another sink had, while the log is read again.
    copied: Mutex<HashMap<Arc<str>, AnswerRecord>>,
    written: AtomicBool,
}

impl SinkHandle {
    /// Of a node.
    pub fn new(id: Arc<str>, mut sink: Box<dyn AnswerSink>, claim: Option<Arc<Claim>>) -> Self {
        let mark = sink.kept().map(|kept| kept.mark());
        let (kept, mark, sink) = (mark.is_some(), Mutex::new(mark), Mutex::new(sink));
        Self {
            id,
            claim,
            kept,
            mark,
            sink,
            replay: Mutex::default(),
            held: Mutex::default(),
            restored: Mutex::default(),
            copied: Mutex::default(),
            written: false.into(),
        }
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
        self.kept
    }

    /// Finds which answers it has got behind the mark, or all; gives whether what the mark was
    /// taken of is there. `others` are the files of other sinks.
    pub fn recover(&self, since: Option<&SinkPosition>, others: &[PathBuf]) -> Result<bool, ConnectorError> {
        let mut sink = self.sink.lock();
        let Some(kept) = sink.kept() else { return Ok(true) };
        let Recovered { is_there, answers } = kept.recover(since, others)?;
        let since = since.filter(|_| is_there).cloned();
        // Where nothing was found there is nothing to look for.
        *self.replay.lock() = (answers > 0).then_some(since);
        *self.mark.lock() = Some(kept.mark());
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
        if !self.kept {
            return None;
        }
        let (text, revised) = {
            let mut sink = self.sink.lock();
            let kept = sink.kept()?;
            (kept.found(key)?, kept.found(&AnswerRecord::delivery_key(key, 0, true)).is_some())
        };
        if revised {
            // It may be that nothing stands in its place.
            self.record(key);
        }
        Some(text)
    }

    /// The record of an answer as an earlier process has written it first.
    pub fn first(&self, key: &str) -> Option<AnswerRecord> {
        self.sink.lock().kept()?.record(key)
    }

    /// Delivers an answer that an earlier process has given to another sink.
    pub fn copy(&self, record: AnswerRecord) -> Result<(), ConnectorError> {
        self.deliver(&record)?;
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
        let mut sink = self.sink.lock();
        if let Some(restored) = self.restored.lock().get(&known.key) {
            return Some(restored.clone()).filter(|restored| restored.revision > known.revision);
        }
        let kept = sink.kept()?;
        let mut newest: Option<AnswerRecord> = None;
        for revision in known.revision + 1.. {
            match kept.record(&AnswerRecord::delivery_key(&known.key, u64::from(revision), false)) {
                Some(record) => newest = Some(record),
                None => break,
            }
        }
        let stands = newest.as_ref().unwrap_or(known);
        let withdrawn = AnswerRecord::delivery_key(&stands.key, u64::from(stands.revision), true);
        if kept.found(&withdrawn).is_none() {
            return newest;
        }
        let restored = AnswerRecord { revision: stands.revision + 1, retracted: false, ..stands.clone() };
        if let Err(error) = self.write(&mut **sink, &restored) {
            tracing::error!(sink = %self.id, %error, key = %restored.key, "an answer stays withdrawn");
            return newest;
        }
        self.restored.lock().insert(restored.key.clone(), restored.clone());
        Some(restored)
    }

    /// Delivers an answer, unless an earlier process has.
    pub fn deliver(&self, record: &AnswerRecord) -> Result<(), ConnectorError> {
        let mut sink = self.sink.lock();
        let key = AnswerRecord::delivery_key(&record.key, u64::from(record.revision), record.retracted);
        if sink.kept().is_some_and(|kept| kept.found(&key).is_some()) {
            return Ok(());
        }
        self.write(&mut **sink, record)
    }

    fn write(&self, sink: &mut dyn AnswerSink, record: &AnswerRecord) -> Result<(), ConnectorError> {
        let delivered = sink.deliver(record);
        if let Some(kept) = sink.kept() {
            *self.mark.lock() = Some(kept.mark());
        }
        delivered?;
        self.written.store(true, Ordering::Release);
        Ok(())
    }

    /// The run begins.
    pub fn begin(&self) -> Result<(), ConnectorError> {
        let mut sink = self.sink.lock();
        let length = |sink: &mut dyn AnswerSink| sink.kept().map(|kept| kept.mark());
        let before = length(&mut **sink);
        sink.begin()?;
        let now = length(&mut **sink);
        if now != before {
            *self.replay.lock() = None;
            *self.mark.lock() = now;
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
        self.mark.lock().clone()
    }

    /// Returns when what was delivered is on the disk.
    pub fn sync(&self) -> Result<(), ConnectorError> {
        if !self.written.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        // Workers deliver to it while the disk is waited for.
        let syncing = self.sink.lock().kept().map(|kept| kept.syncing());
        let synced = syncing.map_or(Ok(()), |syncing| syncing());
        if synced.is_err() {
            self.written.store(true, Ordering::Release);
        }
        synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::{KeptAnswers, Syncing};

    /// Counts what it is given.
    struct Counting(u64);

    impl AnswerSink for Counting {
        fn deliver(&mut self, _: &AnswerRecord) -> Result<(), ConnectorError> {
            self.0 += 1;
            Ok(())
        }
        fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
            Some(self)
        }
    }

    impl KeptAnswers for Counting {
        fn mark(&self) -> SinkPosition {
            SinkPosition { log: "l".into(), length: self.0 }
        }
        fn syncing(&mut self) -> Syncing {
            Box::new(|| Ok(()))
        }
        fn recover(&mut self, since: Option<&SinkPosition>, _: &[PathBuf]) -> Result<Recovered, ConnectorError> {
            let before = since.map_or(0, |since| since.length);
            Ok(Recovered { is_there: true, answers: (self.0 - before) as usize })
        }
        fn found(&mut self, _: &str) -> Option<Arc<str>> {
            None
        }
        fn record(&mut self, _: &str) -> Option<AnswerRecord> {
            None
        }
    }

    #[test]
    fn what_is_looked_for_after_a_crash_begins_at_the_oldest_that_is_held() {
        let sink = SinkHandle::new("out".into(), Box::new(Counting(0)), None);
        let (one, two): (Arc<str>, Arc<str>) = ("1".into(), "2".into());
        let since = || sink.since().unwrap().length;
        let record = r#"{"conversation_id": "c", "turn": 1, "revision": 0, "status": "failed", "query": "",
            "answer": "", "hits": [], "latency_ms": 0, "stamp": {"pipeline": "", "epoch": 1, "models": {}}}"#;
        let record: AnswerRecord = serde_json::from_str(record).unwrap();
        sink.hold(&one);
        sink.deliver(&record).unwrap();
        sink.hold(&two);
        sink.hold(&one);
        sink.deliver(&record).unwrap();
        assert_eq!((since(), sink.mark().unwrap().length), (0, 2));
        sink.release("1");
        assert_eq!(since(), 1);
        sink.release("2");
        assert_eq!(since(), 2);
        // While a log is read again, from where it was looked.
        let mark = SinkPosition { log: "l".into(), length: 1 };
        sink.recover(Some(&mark), &[]).unwrap();
        sink.deliver(&record).unwrap();
        assert_eq!((since(), sink.mark().unwrap().length), (1, 3));
        assert!(sink.is_replaying());
        sink.replayed();
        assert!(!sink.is_replaying());
        assert_eq!(since(), 3);
        sink.recover(None, &[]).unwrap();
        assert_eq!(sink.since(), None);
        let mark = sink.mark();
        sink.recover(mark.as_ref(), &[]).unwrap();
        assert_eq!(sink.since(), mark);
    }
}
