//! Sources of turns.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::{Acknowledgements, ConnectorError, Mode, Offsets, SourceOffset, Stop, Stopped, TakesRequests, TurnQueue};
use crate::dead_letter::{DeadLetters, RecordHash};
use crate::panics::caught;
use crate::record::{TurnRecord, Utterance};

/// Where a turn source sends turns.
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
    begins: Option<Arc<dyn Fn(Offsets) + Send + Sync>>,
    /// Number of records with values that JSON cannot hold.
    odd: Arc<AtomicU64>,
    /// Takes the records in place of the engine.
    taker: Option<Arc<dyn TakesRecords>>,
    /// What to do about a record that is no turn.
    hint: Option<Hint>,
}

/// Says what to do about a record that is no turn, if it knows.
pub type Hint = fn(&[u8]) -> Option<String>;

/// Takes the records of a source in place of the engine, to make turns of them.
pub trait TakesRecords: Send + Sync {
    /// A record with its place. May block. Returns why it is refused, if it is; then it is a dead letter.
    ///
    /// # Errors
    ///
    /// The engine is stopping.
    fn record(&self, record: &[u8], position: &str, place: Option<SourceOffset>) -> Result<Option<String>, Stopped>;
    /// Number of turns of the records that have no answer yet.
    fn waiting(&self) -> u64;
    /// Where the source begins (see [`TurnOutput::begins`]).
    fn begins(&self, places: Offsets);
    /// All records that existed at the start were given (see [`TurnOutput::caught_up`]).
    fn caught_up(&self);
}

/// A turn in the channel between its source and the worker.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The turn.
    pub turn: SourcedTurn,
    /// When it was read, or passed in by a caller.
    pub at: Instant,
}

/// A turn with its place in the source.
#[derive(Clone, Debug)]
pub struct SourcedTurn {
    /// The record as read.
    pub record: TurnRecord,
    /// `file:line` or `stdin:line`; for dead letters and traces.
    pub position: String,
    /// The previous utterances, if the source knows them; otherwise the engine keeps the history.
    pub history: Option<Vec<Utterance>>,
    /// Its offset, if the source can resume there after a restart.
    pub place: Option<SourceOffset>,
}

impl TurnOutput {
    /// `wake` is called after each turn; `name` is the `source` of dead letters.
    pub fn new(
        sender: Sender<Arrived>,
        wake: Arc<dyn Fn() + Send + Sync>,
        dead: DeadLetters,
        name: Arc<str>,
        stop: Stop,
    ) -> Self {
        let (resume, acknowledgements) = (Offsets::default(), Acknowledgements::default());
        let (caught_up, odd) = (Arc::default(), Arc::default());
        Self {
            sender,
            wake,
            dead,
            name,
            stop,
            resume,
            acknowledgements,
            caught_up,
            begins: None,
            odd,
            taker: None,
            hint: None,
        }
    }

    /// The same, for a source whose records go to `taker` first. The source resumes after the offsets that `taker` knows,
    /// and gets its acknowledgements from it.
    #[must_use]
    pub fn through(self, taker: Arc<dyn TakesRecords>, resume: Offsets, acknowledgements: Acknowledgements) -> Self {
        Self { taker: Some(taker), resume, acknowledgements, ..self }
    }

    /// Whether records go elsewhere first, in whatever form they have.
    pub fn is_mapped(&self) -> bool {
        self.taker.is_some()
    }

    /// The same; a dead letter for a record that is no turn also says what to do about it.
    #[must_use]
    pub fn hinting(self, hint: Hint) -> Self {
        Self { hint: Some(hint), ..self }
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

    /// The same; sets this flag when the source has caught up.
    #[must_use]
    pub(crate) fn telling(self, caught_up: Arc<AtomicBool>) -> Self {
        Self { caught_up, ..self }
    }

    /// The same; calls this function with the offsets where the source begins.
    #[must_use]
    pub fn beginning(self, begins: Arc<dyn Fn(Offsets) + Send + Sync>) -> Self {
        Self { begins: Some(begins), ..self }
    }

    /// Records where a source without an offset to resume after begins, before all records. Call it
    /// before the first record is sent. After it returns, a restart finds the same log, even after
    /// rotation.
    pub fn begins(&self, place: SourceOffset) {
        self.begin_partitions(place.into());
    }

    /// The same for a source with partitions. Call it once, with all of them: a later call is not on disk at once.
    pub fn begin_partitions(&self, places: Offsets) {
        if let Some(taker) = &self.taker {
            return taker.begins(places);
        }
        if let Some(begins) = &self.begins {
            begins(places);
        }
    }

    /// Signals that all records that existed at the start are sent; may be called repeatedly. Until
    /// then, a restart searches sinks for answers from the same position as this run.
    pub fn caught_up(&self) {
        if let Some(taker) = &self.taker {
            return taker.caught_up();
        }
        if !self.caught_up.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Where to resume: an earlier process answered everything up to this offset. A source compares
    /// the offset with the log that it finds, and reads an unknown log from the beginning. For a
    /// source without partitions.
    pub fn resume(&self) -> Option<&SourceOffset> {
        self.resume.get("")
    }

    /// The same for each partition. A partition without an offset is read from the beginning.
    pub fn resume_partitions(&self) -> &Offsets {
        &self.resume
    }

    /// The records that a restart does not need again, for sources that acknowledge to a broker.
    pub fn acknowledgements(&self) -> &Acknowledgements {
        &self.acknowledgements
    }

    /// Parses one line as a turn record and sends it; blocks while the engine is behind. An invalid
    /// line becomes a dead letter. Blank lines are skipped.
    pub fn line(&self, line: &[u8], position: &str, place: Option<SourceOffset>) -> Result<(), Stopped> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        if let Some(taker) = &self.taker {
            return taker.record(line, position, place).map(|_| ());
        }
        let parsed = caught(|| TurnRecord::read(line)).map_err(|panic| format!("reading it {panic}"));
        match parsed.and_then(|parsed| parsed.map_err(|error| error.to_string())) {
            Ok((record, changed)) => {
                self.tell_changed(position, &changed);
                self.send(SourcedTurn { record, position: position.to_owned(), history: None, place })
            }
            Err(reason) => {
                let hint = self.hint.and_then(|hint| caught(|| hint(line)).ok().flatten());
                hint.iter().for_each(|hint| self.hint_at(hint));
                let reason = hint.map_or_else(|| reason.clone(), |hint| format!("{reason}; {hint}"));
                self.dead_letter(position, &reason, line);
                Ok(())
            }
        }
    }

    /// Sends a record of a source that is mapped; returns why it is refused, if it is. Then it is a dead letter.
    ///
    /// # Errors
    ///
    /// The engine is stopping.
    pub fn record(&self, record: &[u8], position: &str, place: SourceOffset) -> Result<Option<String>, Stopped> {
        match &self.taker {
            Some(taker) => taker.record(record, position, Some(place)),
            None => self.line(record, position, Some(place)).map(|()| None),
        }
    }

    /// Number of turns of a source that is mapped which have no answer yet.
    pub fn waiting(&self) -> u64 {
        self.taker.as_ref().map_or(0, |taker| taker.waiting())
    }

    /// Counts records with values that JSON cannot hold, and tells about the first, the second, the fourth and so on.
    fn tell_changed(&self, position: &str, fields: &[String]) {
        if fields.is_empty() {
            return;
        }
        let records = self.odd.fetch_add(1, Ordering::AcqRel) + 1;
        if records.is_power_of_two() {
            tracing::warn!(
                source = &*self.name,
                position,
                fields = fields.join(", "),
                records,
                "a record has values that JSON cannot hold; they were left out"
            );
        }
    }

    /// Sends a turn; blocks while the engine is behind.
    pub fn send(&self, turn: SourcedTurn) -> Result<(), Stopped> {
        let arrived = Arrived { turn, at: Instant::now() };
        crossbeam_channel::select! {
            send(self.sender, arrived) -> sent => sent.map_err(|_| Stopped)?,
            recv(self.stop.receiver()) -> _ => return Err(Stopped),
        }
        (self.wake)();
        Ok(())
    }

    /// Writes a dead letter for an unreadable record.
    pub fn dead_letter(&self, position: &str, reason: &str, record: &[u8]) {
        self.dead.refuse(position, reason);
        self.dead.write(&self.name, position, reason, record);
    }

    /// Writes a dead letter for a record that is too long to read; `beginning` is its first part.
    pub fn dead_beginning(&self, position: &str, reason: &str, beginning: &[u8]) {
        self.dead.refuse(position, reason);
        self.dead.write_beginning(&self.name, position, reason, beginning);
    }

    /// The records of the source that are dead letters. Blocks.
    ///
    /// # Errors
    ///
    /// The file of dead letters cannot be read.
    pub fn letters(&self) -> io::Result<HashSet<RecordHash>> {
        self.dead.records_of(&self.name)
    }

    /// Records of the source were read again, without a fault: their dead letters go.
    ///
    /// # Errors
    ///
    /// The file of dead letters cannot be written.
    pub fn forget_letters(&self, read: &HashSet<RecordHash>) -> io::Result<()> {
        self.dead.forget(&self.name, read).map(drop)
    }

    /// The id of the source.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of records that could not be read in this process, by whatever source.
    pub fn refused(&self) -> u64 {
        self.dead.refused().number
    }

    /// Tells that an earlier process could not read records, and did not read them again. `first` is the place of the first
    /// one, and why.
    pub fn refused_before(&self, number: u64, first: &str) {
        self.dead.refused_before(number, first);
    }

    /// Tells what would read records that the source cannot read.
    pub fn hint_at(&self, hint: &str) {
        self.dead.hint(hint);
    }

    /// Tells that no record of the source ever became a turn, and what became of those that were read.
    pub fn without_turns(&self, told: String) {
        self.dead.without_turns(told);
    }

    /// Signals the source when to stop.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }
}

/// Reads turns, in order within a conversation.
pub trait TurnSource: Send {
    /// Sends all existing turns and calls `caught_up`; with [`Mode::Follow`] continues until
    /// `output.stop()` is set.
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError>;

    /// The queue that it reads, if a program fills it. The engine asks once, before `run`, and
    /// [`Engine::turn_queue`](crate::run::Engine::turn_queue) returns it.
    fn queue(&self) -> Option<Arc<dyn TurnQueue>> {
        None
    }

    /// What takes the requests of other programs for it. The engine asks once, before `run`, and
    /// [`Engine::requests`](crate::run::Engine::requests) returns it.
    fn requests(&self) -> Option<Arc<dyn TakesRequests>> {
        None
    }
}
