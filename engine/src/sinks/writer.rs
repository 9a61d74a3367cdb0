//! A sink and the knowledge of its contents, shared by the threads that write to it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::connector::{
    AnswerSink, ConnectorError, Delivery, Ends, NoAnswers, Recovered, RecoveredAnswers, Search, SinkPosition, Stopped,
};
use crate::panics::caught;
use crate::record::AnswerRecord;

/// A closed sink has this long to finish its current delivery.
const PATIENCE: Duration = Duration::from_millis(100);

pub(super) struct Writer {
    kept: bool,
    batch: usize,
    sink: Mutex<Box<dyn AnswerSink>>,
    /// The sink's position. It has its own lock, since the sink may be waiting for its disk.
    mark: Mutex<Option<SinkPosition>>,
    /// The answers of an earlier process; with its own lock too.
    pub(super) recovered: Mutex<Box<dyn RecoveredAnswers>>,
    /// Something was written since the last sync.
    written: AtomicBool,
    runtime: Handle,
    /// Cancels the current delivery.
    pub(super) aborted: CancellationToken,
}

/// The result of a write. An error has the number of acknowledged answers and the reason.
pub(super) type Written = Result<(), (usize, ConnectorError)>;

impl Writer {
    pub(super) fn new(mut sink: Box<dyn AnswerSink>, runtime: Handle) -> Self {
        let mark = sink.kept().map(|kept| kept.mark());
        Self {
            kept: mark.is_some(),
            batch: sink.batch().max(1),
            sink: Mutex::new(sink),
            mark: Mutex::new(mark),
            recovered: Mutex::new(Box::new(NoAnswers)),
            // The file may be new, and its name not on the disk yet.
            written: AtomicBool::new(true),
            runtime,
            aborted: CancellationToken::new(),
        }
    }

    /// Whether its contents can be read back.
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// The maximum number of answers per write.
    pub(super) fn batch(&self) -> usize {
        self.batch
    }

    /// The end of its contents.
    pub(super) fn mark(&self) -> Option<SinkPosition> {
        self.mark.lock().clone()
    }

    /// Finds the answers of an earlier process. Returns whether the contents at the given position still exist,
    /// and the number of answers found.
    pub(super) fn recover(&self, search: Search<'_>) -> Result<(bool, usize), ConnectorError> {
        let mut sink = self.sink.lock();
        let Some(kept) = sink.kept() else { return Ok((true, 0)) };
        let Recovered { is_there, answers } = kept.recover(search)?;
        *self.mark.lock() = Some(kept.mark());
        let count = answers.count();
        if count > 0 {
            // The earlier process may have been killed before its answers were synchronised.
            self.written.store(true, Ordering::Release);
        }
        *self.recovered.lock() = answers;
        Ok((is_there, count))
    }

    /// Forgets the answers of earlier processes.
    pub(super) fn forget_recovered(&self) {
        *self.recovered.lock() = Box::new(NoAnswers);
    }

    /// Called when the run starts; returns whether the sink has dropped its contents.
    pub(super) fn begin(&self) -> Result<bool, ConnectorError> {
        let mut sink = self.sink.lock();
        let mark = |sink: &mut dyn AnswerSink| sink.kept().map(|kept| kept.mark());
        let before = mark(&mut **sink);
        sink.begin()?;
        let now = mark(&mut **sink);
        let is_changed = now != before;
        if is_changed {
            *self.mark.lock() = now;
        }
        Ok(is_changed)
    }

    /// Whether an earlier process wrote this answer.
    pub(super) fn has(&self, record: &AnswerRecord) -> bool {
        let key = AnswerRecord::delivery_key(&record.key, u64::from(record.revision), record.retracted);
        self.kept && self.recovered.lock().found(&key).is_some()
    }

    /// Writes answers, and returns when the sink has acknowledged them; `ends` hears of those that end out of order.
    pub(super) fn write(&self, answers: &[AnswerRecord], ends: &dyn Ends) -> Written {
        let mut sink = self.sink.lock();
        let taken = AtomicUsize::new(0);
        let delivered = caught(|| {
            let delivering = sink.deliver(Delivery::new(answers, &taken).with_ends(ends));
            self.runtime.block_on(self.aborted.run_until_cancelled(delivering))
        });
        let delivered = match delivered {
            Ok(Some(delivered)) => delivered,
            Ok(None) => Err(Stopped.into()),
            Err(panicked) => Err(panicked.into()),
        };
        if delivered.is_ok() || taken.load(Ordering::Acquire) > 0 {
            self.written.store(true, Ordering::Release);
        }
        if let Some(Ok(mark)) = sink.kept().map(|kept| caught(|| kept.mark())) {
            *self.mark.lock() = Some(mark);
        }
        delivered.map_err(|reason| (taken.into_inner().min(answers.len()), reason))
    }

    /// Returns when all delivered answers are on disk.
    pub(super) fn sync(&self) -> Result<(), ConnectorError> {
        // Do not wait for a sink whose contents cannot be read back: it may be busy for a long time.
        if !self.kept || !self.written.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        // The sink accepts answers while the disk syncs.
        let sink = match self.aborted.is_cancelled() {
            // It may block forever in its last delivery.
            true => self.sink.try_lock_for(PATIENCE),
            false => Some(self.sink.lock()),
        };
        let Some(mut sink) = sink else {
            self.written.store(true, Ordering::Release);
            return Err(Stopped.into());
        };
        let syncing = sink.kept().map(|kept| kept.syncing());
        drop(sink);
        let synced = syncing.map_or(Ok(()), |syncing| syncing());
        if synced.is_err() {
            self.written.store(true, Ordering::Release);
        }
        synced
    }
}
