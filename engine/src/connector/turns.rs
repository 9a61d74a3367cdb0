//! Sources of turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::{Acknowledgements, ConnectorError, Mode, Offsets, SourceOffset, Stop, Stopped};
use crate::dead_letter::DeadLetters;
use crate::panics::caught;
use crate::record::{TurnRecord, Utterance};

/// Where a turn source puts what it reads.
#[derive(Clone)]
pub struct TurnOutput {
    sender: Sender<Arrived>,
    wake: Arc<dyn Fn() + Send + Sync>,
    dead: DeadLetters,
    name: Arc<str>,
    stop: Stop,
    resume: Offsets,
    acknowledgements: Acknowledgements,
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
        let (resume, acknowledgements) = (Offsets::default(), Acknowledgements::default());
        Self { sender, wake, dead, name, stop, resume, acknowledgements, caught_up: Arc::default(), begins: None }
    }

    /// The same, for a source that resumes after these offsets.
    #[must_use]
    pub fn resuming(self, resume: Offsets) -> Self {
        Self { resume, ..self }
    }

    /// The same, with the acknowledgements of this source.
    #[must_use]
    pub(crate) fn acknowledged_by(self, acknowledgements: Acknowledgements) -> Self {
        Self { acknowledgements, ..self }
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

    /// Where to resume: an earlier process has answered everything up to this offset. A source
    /// compares the offset with the log that it finds, and reads a log that it does not know from
    /// the beginning. For a source without partitions.
    pub fn resume(&self) -> Option<&SourceOffset> {
        self.resume.get("")
    }

    /// The same, of each partition. A partition that is not named is read from the beginning.
    pub fn resume_partitions(&self) -> &Offsets {
        &self.resume
    }

    /// Tells which records a restart does not read again, for sources that acknowledge to a broker.
    pub fn acknowledgements(&self) -> &Acknowledgements {
        &self.acknowledgements
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
