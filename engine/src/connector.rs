//! What a connector is: sources of documents and turns, sinks of answers.
//!
//! A source runs on a thread of its own, may block, and hands records over through a
//! bounded channel: when the engine is behind, `send` blocks, which is the back-pressure.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};
use serde::{Deserialize, Serialize};

use crate::dead_letter::DeadLetters;
use crate::document::Document;
use crate::panics::{Panicked, caught};
use crate::record::{AnswerRecord, TurnRecord, Utterance};

/// Whether a source ends when it has read what is there, or goes on with what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read what is there now, then end (`--once`).
    Once,
    /// Follow changes until told to stop.
    Follow,
}

/// Why a source stopped early: the engine is shutting down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the engine is stopping")]
pub struct Stopped;

/// Tells sources that the engine is stopping; cheap to clone and to ask.
#[derive(Clone, Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    // Nothing is ever sent: dropping the only sender wakes every waiting receiver.
    wake: Receiver<()>,
}

/// The end of [`Stop`] that the engine holds; dropping it stops the sources as well.
#[derive(Debug)]
pub struct StopHandle {
    flag: Arc<AtomicBool>,
    _wake: Sender<()>,
}

impl Drop for StopHandle {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Release);
    }
}

impl Stop {
    /// A pair of ends.
    pub fn new() -> (StopHandle, Stop) {
        let (sender, wake) = crossbeam_channel::bounded(0);
        let flag = Arc::new(AtomicBool::new(false));
        (StopHandle { flag: flag.clone(), _wake: sender }, Stop { flag, wake })
    }

    /// Whether the source is to end.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// A receiver that becomes ready (disconnected) when the source is to end; for `select!`.
    pub fn receiver(&self) -> &Receiver<()> {
        &self.wake
    }

    /// Waits for at most `duration`; true if the source is to end.
    pub fn wait(&self, duration: Duration) -> bool {
        self.wake.recv_timeout(duration) != Err(RecvTimeoutError::Timeout) || self.is_set()
    }
}

/// A message of a corpus source.
#[derive(Clone, Debug)]
pub enum CorpusEvent {
    /// The document with this id is now this; `None`: it is gone.
    Change(Arc<str>, Option<Document>),
    /// Everything sent since the last commit belongs together: one epoch publishes all of it.
    Commit,
    /// What was there at the start has been sent (and committed).
    Ready,
    /// The source has ended and will send nothing more.
    End,
}

/// Where a corpus source puts what it reads.
#[derive(Clone)]
pub struct CorpusOutput {
    sender: Sender<CorpusEvent>,
    wake: Arc<dyn Fn() + Send + Sync>,
    dead: DeadLetters,
    name: Arc<str>,
    stop: Stop,
}

impl CorpusOutput {
    /// `wake` is called after each commit, so that the worker that waits is unparked;
    /// `name` is the dead letters' `source`.
    pub fn new(
        sender: Sender<CorpusEvent>,
        wake: Arc<dyn Fn() + Send + Sync>,
        dead: DeadLetters,
        name: Arc<str>,
        stop: Stop,
    ) -> Self {
        Self { sender, wake, dead, name, stop }
    }

    /// A document is now this, or gone (`None`). Sending the value it already has is
    /// harmless: the engine compares and drops it.
    pub fn change(&self, id: impl Into<Arc<str>>, document: Option<Document>) -> Result<(), Stopped> {
        self.send(CorpusEvent::Change(id.into(), document))
    }

    /// Ends a group of changes that one epoch is to publish together.
    pub fn commit(&self) -> Result<(), Stopped> {
        self.send(CorpusEvent::Commit)?;
        (self.wake)();
        Ok(())
    }

    /// To be called once, after the commit of what was there at the start.
    pub fn ready(&self) -> Result<(), Stopped> {
        self.send(CorpusEvent::Ready)?;
        (self.wake)();
        Ok(())
    }

    /// Records something that could not be read. `position` is where in the source
    /// (`file`, `file:line`), `record` the offending bytes (cut to a mebibyte).
    pub fn dead_letter(&self, position: &str, reason: &str, record: &[u8]) {
        self.dead.write(&self.name, position, reason, record);
    }

    /// Records something too long to be read, of which this is the beginning.
    pub fn dead_beginning(&self, position: &str, reason: &str, beginning: &[u8]) {
        self.dead.write_beginning(&self.name, position, reason, beginning);
    }

    /// The engine's wish that this source end.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Says that the source has ended; called by whoever runs the source. The closing of
    /// the channel says so too, for when the channel is full and the engine is stopping.
    pub(crate) fn end(self) {
        let _ = self.send(CorpusEvent::End);
        let wake = self.wake.clone();
        drop(self);
        wake();
    }

    fn send(&self, event: CorpusEvent) -> Result<(), Stopped> {
        let event = match self.sender.try_send(event) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(_)) => return Err(Stopped),
            Err(TrySendError::Full(event)) => event,
        };
        // The worker that is to make room may be parked: it is otherwise woken by commits only.
        (self.wake)();
        crossbeam_channel::select! {
            send(self.sender, event) -> sent => sent.map_err(|_| Stopped),
            recv(self.stop.receiver()) -> _ => Err(Stopped),
        }
    }
}

/// Reads a corpus and goes on telling its changes.
pub trait CorpusSource: Send {
    /// Sends what is there, `commit`s, says `ready`, and (with [`Mode::Follow`], where it
    /// watches) goes on until `output.stop()` is set. Unreadable records become dead
    /// letters; only a source that cannot work at all returns an error.
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError>;
}

/// Where a record stands in its source, so that a restart can go on behind it. Places of one
/// source are ordered as its records are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceOffset {
    /// What tells the log from others (of a file: its identity), in a form that is the
    /// source's own.
    pub log: Arc<str>,
    /// Counts the logs that the source has gone through.
    pub generation: u64,
    /// Where the record ends: a byte's offset, or a broker's sequence number. Increases
    /// within a log.
    pub end: u64,
    /// The record's number in its log, from 1.
    pub line: u64,
}

impl SourceOffset {
    /// What places of one source are ordered by.
    pub fn order(&self) -> (u64, u64) {
        (self.generation, self.end)
    }
}

/// Where a turn source puts what it reads.
#[derive(Clone)]
pub struct TurnOutput {
    sender: Sender<Arrived>,
    wake: Arc<dyn Fn() + Send + Sync>,
    dead: DeadLetters,
    name: Arc<str>,
    stop: Stop,
    resume: Option<SourceOffset>,
    caught_up: Arc<AtomicBool>,
    begins: Option<Arc<dyn Fn(SourceOffset) + Send + Sync>>,
}

/// A turn as it waits between its source and the worker.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The turn.
    pub turn: SourcedTurn,
    /// When it was read, or given by a caller.
    pub at: Instant,
}

/// A turn with the place it came from.
#[derive(Clone, Debug)]
pub struct SourcedTurn {
    /// The record as read.
    pub record: TurnRecord,
    /// Where it stood: `file:line` or `stdin:line`; for dead letters and traces.
    pub position: String,
    /// What was said before, where the source knows; else the engine remembers.
    pub history: Option<Vec<Utterance>>,
    /// Where it stood, of a source that can go on there after a restart.
    pub place: Option<SourceOffset>,
}

impl TurnOutput {
    /// `wake` is called after each turn; `name` is the dead letters' `source`.
    pub fn new(
        sender: Sender<Arrived>,
        wake: Arc<dyn Fn() + Send + Sync>,
        dead: DeadLetters,
        name: Arc<str>,
        stop: Stop,
    ) -> Self {
        Self { sender, wake, dead, name, stop, resume: None, caught_up: Arc::default(), begins: None }
    }

    /// The same, for a source that is to go on behind this place.
    #[must_use]
    pub fn resuming(self, resume: Option<SourceOffset>) -> Self {
        Self { resume, ..self }
    }

    /// The same, telling here when it has caught up.
    #[must_use]
    pub(crate) fn telling(self, caught_up: Arc<AtomicBool>) -> Self {
        Self { caught_up, ..self }
    }

    /// The same, telling here where it begins.
    #[must_use]
    pub(crate) fn beginning(self, begins: Arc<dyn Fn(SourceOffset) + Send + Sync>) -> Self {
        Self { begins: Some(begins), ..self }
    }

    /// A source that goes on behind nothing begins here, before all records; to be said before the
    /// first of them is sent. When this returns, a restart finds the same log, wherever it was
    /// rotated to.
    pub fn begins(&self, place: SourceOffset) {
        if let Some(begins) = &self.begins {
            begins(place);
        }
    }

    /// All that was there when the source started has been sent; to be said once or more often.
    /// Until then a restart looks for answers where this one has begun to look.
    pub fn caught_up(&self) {
        if !self.caught_up.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Behind which place to go on: everything up to it has been answered by an earlier
    /// process. A source compares it with what is there, and begins at the beginning of what
    /// it does not know.
    pub fn resume(&self) -> Option<&SourceOffset> {
        self.resume.as_ref()
    }

    /// Parses one line as a turn record and hands it over; blocks while the engine is
    /// behind. A line that is no turn becomes a dead letter. Blank lines are skipped.
    pub fn line(&self, line: &[u8], position: &str, place: Option<SourceOffset>) -> Result<(), Stopped> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let parsed = caught(|| TurnRecord::parse(line)).map_err(|panic| format!("reading it {panic}"));
        match parsed.and_then(|parsed| parsed.map_err(|error| error.to_string())) {
            Ok(record) => self.send(SourcedTurn { record, position: position.to_owned(), history: None, place }),
            Err(reason) => {
                self.dead_letter(position, &reason, line);
                Ok(())
            }
        }
    }

    /// Hands a turn over; blocks while the engine is behind.
    pub fn send(&self, turn: SourcedTurn) -> Result<(), Stopped> {
        let arrived = Arrived { turn, at: Instant::now() };
        crossbeam_channel::select! {
            send(self.sender, arrived) -> sent => sent.map_err(|_| Stopped)?,
            recv(self.stop.receiver()) -> _ => return Err(Stopped),
        }
        (self.wake)();
        Ok(())
    }

    /// Records something that could not be read.
    pub fn dead_letter(&self, position: &str, reason: &str, record: &[u8]) {
        self.dead.write(&self.name, position, reason, record);
    }

    /// Records something too long to be read, of which this is the beginning.
    pub fn dead_beginning(&self, position: &str, reason: &str, beginning: &[u8]) {
        self.dead.write_beginning(&self.name, position, reason, beginning);
    }

    /// The engine's wish that this source end.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }
}

/// Reads turns, in order within a conversation.
pub trait TurnSource: Send {
    /// Sends what is there, and says that it has `caught_up`; with [`Mode::Follow`] goes on
    /// until `output.stop()` is set.
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError>;
}

/// Takes answers away.
pub trait AnswerSink: Send {
    /// Delivers one answer. When this returns `Ok` the answer is the receiver's: for a
    /// file, it has been handed to the operating system as one whole line.
    fn deliver(&mut self, answer: &AnswerRecord) -> Result<(), ConnectorError>;
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

/// How far a sink has been written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkPosition {
    /// What tells the file from others, in a form that is the sink's own.
    pub log: Arc<str>,
    /// Bytes.
    pub length: u64,
}

/// What a sink was found to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// What the mark was taken of is there. Without a mark: the sink keeps what it has, and does
    /// not begin with an empty file.
    pub is_there: bool,
    /// How many answers [`KeptAnswers::found`] knows of.
    pub answers: usize,
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
    /// Of an answer with this [`AnswerRecord::delivery_key`] that [`KeptAnswers::recover`] has
    /// found, the text.
    fn found(&mut self, key: &str) -> Option<Arc<str>>;
    /// The same answer's record.
    fn record(&mut self, key: &str) -> Option<AnswerRecord>;
}

/// A connector that cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// A file or directory could not be used.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// What was tried, as a verb: `read`, `watch`, `append to`.
        action: &'static str,
        /// The file or directory.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The operating system's file watcher failed.
    #[error("cannot watch `{path}`: {reason}")]
    Watch {
        /// The file or directory.
        path: String,
        /// What the watcher said.
        reason: String,
    },
    /// Another process writes the same file.
    #[error(
        "`{path}` is written by another run of turnflow: stop that one, or give this one a file of its own \
         (answers of two runs in one file could not be told apart after a restart)"
    )]
    InUse {
        /// The file.
        path: String,
    },
    /// The engine is shutting down.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The connector's own code failed.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}
