//! Sinks of answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::ConnectorError;
use crate::record::AnswerRecord;

/// Takes answers away.
///
/// The engine calls a sink on a thread that belongs to this sink alone, inside the engine's
/// tokio runtime: it may block, and it may await. While it is slow or fails, the turns that go to
/// it wait, and their sources are held back; other sinks and their turns go on.
pub trait AnswerSink: Send {
    /// Delivers answers in their order. `Ok` acknowledges all of them: they are the receiver's,
    /// and a restart does not send them again. For a file, each has been handed to the operating
    /// system as one whole line. The future is dropped when the run is aborted.
    ///
    /// # Errors
    ///
    /// What is not acknowledged by [`Delivery::took`] is delivered again after a pause, for as long
    /// as it takes. A first answer that is [`ConnectorError::Refused`], or on which the sink panics
    /// three times, becomes a dead letter instead.
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>>;

    /// How many answers a delivery has at most.
    fn batch(&self) -> usize {
        256
    }

    /// A run begins with this sink, before anything is delivered. Not called of one that comes
    /// into a run by a reload.
    fn begin(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    /// Of a sink that keeps what it is given, so that it can be looked into: then each answer
    /// gets there exactly once, however often the process is killed. Others get each at least
    /// once, with its key.
    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        None
    }
}

/// Answers on their way into a sink.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    answers: &'a [AnswerRecord],
    taken: &'a AtomicUsize,
}

impl<'a> Delivery<'a> {
    /// Of these answers; `taken` counts those that are acknowledged.
    pub fn new(answers: &'a [AnswerRecord], taken: &'a AtomicUsize) -> Self {
        Self { answers, taken }
    }

    /// The answers, at least one.
    pub fn answers(&self) -> &'a [AnswerRecord] {
        self.answers
    }

    /// The receiver has so many more of them, whatever becomes of the rest.
    pub fn took(&self, count: usize) {
        self.taken.fetch_add(count, Ordering::AcqRel);
    }
}

/// How far a sink has been written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkPosition {
    /// What tells the file from others, in a form that is the sink's own.
    pub log: Arc<str>,
    /// Bytes.
    pub length: u64,
}

/// What a sink was found to have.
pub struct Recovered {
    /// What the mark was taken of is there. Without a mark: the sink keeps what it has, and does
    /// not begin with an empty file.
    pub is_there: bool,
    /// The answers that were found.
    pub answers: Box<dyn RecoveredAnswers>,
}

/// Answers that an earlier process has written.
pub trait RecoveredAnswers: Send {
    /// How many.
    fn count(&self) -> usize;
    /// Of the answer with this [`AnswerRecord::delivery_key`], the text.
    fn found(&mut self, key: &str) -> Option<Arc<str>>;
    /// The same answer's record.
    fn record(&mut self, key: &str) -> Option<AnswerRecord>;
}

/// None.
pub struct NoAnswers;

impl RecoveredAnswers for NoAnswers {
    fn count(&self) -> usize {
        0
    }
    fn found(&mut self, _: &str) -> Option<Arc<str>> {
        None
    }
    fn record(&mut self, _: &str) -> Option<AnswerRecord> {
        None
    }
}

/// Returns when what was delivered is on the disk.
pub type Syncing = Box<dyn FnOnce() -> Result<(), ConnectorError> + Send>;

/// A sink that can be looked into.
pub trait KeptAnswers {
    /// Up to where it is written.
    fn mark(&self) -> SinkPosition;
    /// What it takes to have all that was delivered until now on the disk. It is called without
    /// the sink, which may meanwhile be written to.
    fn syncing(&mut self) -> Syncing;
    /// Finds which answers are there behind `since`, before the first delivery; without a mark, or
    /// if what it was taken of is not there any more, all of them, those too that were rotated
    /// away. `others` are the files of the pipeline's other sinks, whose answers are not this
    /// one's. An answer that was not written to its end is taken away.
    ///
    /// # Errors
    ///
    /// What may have answers cannot be read.
    fn recover(&mut self, since: Option<&SinkPosition>, others: &[PathBuf]) -> Result<Recovered, ConnectorError>;
}
