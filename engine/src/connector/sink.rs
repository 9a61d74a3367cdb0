//! Sinks of answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{AlertStates, AnswerLog, ConnectorError, ReviewQueue};
use crate::record::AnswerRecord;

/// Receives answers.
///
/// The engine calls each sink on its own thread, inside the engine's tokio runtime: a sink may block
/// and may await. While it is slow or fails, its turns wait and back-pressure holds their sources
/// back; other sinks and their turns continue.
pub trait AnswerSink: Send {
    /// Delivers answers in order. `Ok` acknowledges all of them: the receiver has them, and a restart
    /// does not send them again. For a file, each has been passed to the operating system as one
    /// complete line. The future is dropped when the run is aborted.
    ///
    /// # Errors
    ///
    /// Answers that are not acknowledged by [`Delivery::took`] or [`Delivery::accepted`] are delivered again after a
    /// pause, any number of times. If the error is [`ConnectorError::Refused`], or the sink panics three times on
    /// the first of them, that answer becomes a dead letter instead.
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>>;

    /// The maximum number of answers per delivery.
    fn batch(&self) -> usize {
        256
    }

    /// Called when a run starts, before the first delivery. Not called for a sink that a reload adds.
    fn begin(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    /// For sinks whose contents can be read back: they get each answer exactly once, however often
    /// the process is killed. Other sinks get each answer at least once, with its key.
    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        None
    }

    /// Its answers, if a program may read them. The engine asks once, before the first delivery, and
    /// [`Engine::answer_log`](crate::run::Engine::answer_log) returns them.
    fn log(&self) -> Option<Arc<dyn AnswerLog>> {
        None
    }

    /// The states of its rules, if it watches the answers. The engine asks once, before the first delivery, and shows them
    /// in [`Engine::status`](crate::run::Engine::status).
    fn alerts(&self) -> Option<Arc<dyn AlertStates>> {
        None
    }

    /// Its queue, if it keeps answers for people to judge. The engine asks once, before the first delivery, and
    /// [`Engine::reviews`](crate::run::Engine::reviews) returns the queues.
    fn review(&self) -> Option<Arc<dyn ReviewQueue>> {
        None
    }
}

/// A batch of answers for a sink.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    answers: &'a [AnswerRecord],
    taken: &'a AtomicUsize,
    /// The number of the first answer.
    first: usize,
    ends: Option<&'a dyn Ends>,
}

/// Hears of answers that end before others in front of them.
pub trait Ends: Sync {
    /// The answer with this number of the batch is accepted, or is refused for this reason.
    fn ended(&self, number: usize, refused: Option<&str>);
}

impl<'a> Delivery<'a> {
    /// A batch of these answers; `taken` counts the acknowledged ones.
    pub fn new(answers: &'a [AnswerRecord], taken: &'a AtomicUsize) -> Self {
        Self { answers, taken, first: 0, ends: None }
    }

    /// The same batch; `ends` hears of answers that end out of order.
    #[must_use]
    pub fn with_ends(self, ends: &'a dyn Ends) -> Self {
        Self { ends: Some(ends), ..self }
    }

    /// The answers, at least one.
    pub fn answers(&self) -> &'a [AnswerRecord] {
        self.answers
    }

    /// The delivery of a part of the answers, which comes next.
    #[must_use]
    pub fn part(&self, answers: &'a [AnswerRecord]) -> Self {
        Self { answers, first: self.taken(), ..*self }
    }

    /// Number of acknowledged answers.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Acknowledges the next `count` answers, even if the rest fails.
    pub fn took(&self, count: usize) {
        self.taken.fetch_add(count, Ordering::AcqRel);
    }

    /// Acknowledges the answer with this number, whatever becomes of those before it. Its conversation goes on at once.
    pub fn accepted(&self, number: usize) {
        self.ended(number, None);
    }

    /// The receiver will never accept the answer with this number: it becomes a dead letter.
    pub fn refused(&self, number: usize, reason: &str) {
        self.ended(number, Some(reason));
    }

    fn ended(&self, number: usize, refused: Option<&str>) {
        if let Some(ends) = self.ends {
            ends.ended(self.first + number, refused);
        }
    }
}

/// The end of the written contents of a sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkPosition {
    /// Identifies the file, in a sink-specific form. It stays the same while the file grows.
    pub log: Arc<str>,
    /// Length in bytes.
    pub length: u64,
    /// A hash of the contents up to this length, in a sink-specific form.
    #[serde(default)]
    pub content: Option<Arc<str>>,
}

/// Where to search for answers of earlier processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Search<'a> {
    /// The position in the sink's contents after which there may be answers that no checkpoint covers.
    pub since: Option<&'a SinkPosition>,
    /// Such positions in the files that the sink had before a reload switched it to another one.
    pub former: &'a [SinkPosition],
    /// The files of the pipeline's sinks: those of others are not searched.
    pub others: &'a [PathBuf],
    /// Positions of other sinks in checkpoints: their files may no longer belong to sinks, and are not searched.
    pub others_had: &'a [SinkPosition],
}

/// The result of [`KeptAnswers::recover`].
pub struct Recovered {
    /// Whether the contents at the given position still exist. Without a position: whether the sink
    /// keeps its contents instead of starting with an empty file.
    pub is_there: bool,
    /// The answers found.
    pub answers: Box<dyn RecoveredAnswers>,
}

/// Answers that an earlier process wrote.
pub trait RecoveredAnswers: Send {
    /// Number of answers.
    fn count(&self) -> usize;
    /// The text of the answer with this [`AnswerRecord::delivery_key`].
    fn found(&mut self, key: &str) -> Option<Arc<str>>;
    /// The record of that answer.
    fn record(&mut self, key: &str) -> Option<AnswerRecord>;
}

/// No answers.
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

/// Returns when all delivered answers are on disk.
pub type Syncing = Box<dyn FnOnce() -> Result<(), ConnectorError> + Send>;

/// A sink whose contents can be read back.
pub trait KeptAnswers {
    /// The current end of its contents.
    fn mark(&self) -> SinkPosition;
    /// A function that syncs everything delivered until now to disk. It runs without the sink, which
    /// may be written to meanwhile.
    fn syncing(&mut self) -> Syncing;
    /// Finds the answers after [`Search::since`], before the first delivery. Without that, or if the
    /// contents at that position no longer exist, finds all answers, including those in rotated files.
    /// An incompletely written answer is removed.
    ///
    /// # Errors
    ///
    /// A file that may contain answers cannot be read.
    fn recover(&mut self, search: Search<'_>) -> Result<Recovered, ConnectorError>;
}
