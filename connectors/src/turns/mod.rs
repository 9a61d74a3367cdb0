//! `Turns`: a durable queue of turns that a program adds.
//!
//! ```ron
//! Turns()
//! ```
//!
//! A program adds records through [`TurnQueue`], which `Engine::turn_queue` returns; `turnflow serve` does so for `POST
//! /v1/turns?durable=true`. A turn is on disk when the call returns. It keeps its place in its conversation, goes to
//! the pipeline's sinks, and is answered exactly once in sinks that can be read back, however often the process is
//! killed. A turn is removed from the queue when a checkpoint covers its answer.
//!
//! The queue is the file `turns.redb` in the source's directory in the state directory. Waiting turns exist nowhere
//! else, so a damaged file is not modified, and the start fails. Without a state directory, the queue is kept in memory
//! and lost when the engine ends, with a warning.
//!
//! ```
//! # use turnflow_connectors::turns::TurnsConfig;
//! # let ron = r#"
//! (max_waiting: 1000)
//! # "#;
//! # let config: TurnsConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_waiting, 1000);
//! ```

pub(crate) mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use turnflow_engine::component::{
    Building, ComponentContext, ComponentError, TurnSourceConfig, TurnSourceKind, built, config,
};
use turnflow_engine::connector::{
    ConnectorError, Mode, QueueError, SourceOffset, Stopped, TurnOutput, TurnQueue, TurnSource,
};
use turnflow_engine::database::DatabaseError;
use turnflow_engine::record::TurnRecord;

use self::store::{Appended, Bounds, Encoded, Store};
use crate::open_once::{Opened, Place};

/// Name of the file.
const FILE: &str = "turns.redb";
/// Maximum number of records in a page.
const PAGE: usize = 256;
/// Size of a page of records, in bytes; it ends with the record that reaches it.
const PAGE_BYTES: usize = 4 << 20;
/// Records that may be sent and not covered by a checkpoint before the next ones are only sent at intervals of [`PACE`]:
/// callers take turns among those that are not sent.
const AHEAD: u64 = 2048;
/// See [`AHEAD`].
const PACE: Duration = Duration::from_millis(100);
/// Pause before the store is read again.
const PAUSE: Duration = Duration::from_secs(1);

/// Fields of `Turns`.
#[config(default)]
pub struct TurnsConfig {
    /// Maximum number of turns in the queue. Further turns are rejected until turns are answered.
    #[field(default = 100_000, range = 1..=100_000_000)]
    pub max_waiting: u64,
    /// Maximum size of all turns in the queue, in MiB.
    #[field(default = 256, range = 1..=1 << 20)]
    pub max_mb: u64,
    /// Maximum number of waiting turns of one caller with a token.
    #[field(default = 25_000, range = 1..=100_000_000)]
    pub max_waiting_each: u64,
    /// Maximum size of the waiting turns of one caller with a token, in MiB.
    #[field(default = 64, range = 1..=1 << 20)]
    pub max_mb_each: u64,
}

impl TurnsConfig {
    pub(crate) fn open(&self, place: Place) -> Result<Turns, ConnectorError> {
        let bounds = Bounds {
            records: self.max_waiting,
            bytes: self.max_mb << 20,
            records_each: self.max_waiting_each,
            bytes_each: self.max_mb_each << 20,
        };
        Ok(Turns { store: Store::open(place).map_err(failed)?, bounds })
    }
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<TurnsConfig>("Turns", "a durable queue of turns that a program adds");

impl TurnSourceConfig for TurnsConfig {
    fn is_queue(&self) -> bool {
        true
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        let source = Place::of(context, FILE).and_then(|place| self.open(place));
        built(source.map(|source| Box::new(source) as Box<dyn TurnSource>))
    }
}

/// Reads the turns of a queue.
pub struct Turns {
    store: Arc<Opened<Store>>,
    bounds: Bounds,
}

impl TurnSource for Turns {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let mut reader = Reader::new(&self.store, &output);
        let mut is_failing = false;
        loop {
            match reader.step() {
                Ok(true) => {}
                Ok(false) => {
                    is_failing = false;
                    if reader.is_ahead {
                        // What is sent is answered in the order of callers, so not too much may be sent at once.
                        crossbeam_channel::select! {
                            recv(output.acknowledgements().changed()) -> _ => {}
                            recv(output.stop().receiver()) -> _ => return Err(Stopped.into()),
                            default(PACE) => {}
                        }
                        reader.allowed = PAGE;
                        continue;
                    }
                    output.caught_up();
                    if mode == Mode::Once {
                        return Ok(());
                    }
                    crossbeam_channel::select! {
                        recv(self.store.changed()) -> _ => {}
                        recv(output.acknowledgements().changed()) -> _ => {}
                        recv(output.stop().receiver()) -> _ => return Err(Stopped.into()),
                    }
                }
                Err(ConnectorError::Component(error)) if error.is_transient() => {
                    if !is_failing {
                        tracing::warn!(%error, "cannot read the queue of turns; will retry");
                    }
                    is_failing = true;
                    if output.stop().wait(PAUSE) {
                        return Err(Stopped.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn queue(&self) -> Option<Arc<dyn TurnQueue>> {
        Some(Arc::new(Handle { store: self.store.clone(), bounds: self.bounds }))
    }
}

/// Reads a queue once, from where an earlier process stopped.
struct Reader<'a> {
    store: &'a Store,
    output: &'a TurnOutput,
    /// Counts the queues that the source has read: a lost queue is followed by another, whose numbers start again at 1.
    generation: u64,
    /// The number of the last record that was sent.
    after: u64,
    /// The records up to this number have answers that a checkpoint covers.
    covered: u64,
    /// The records up to this number are removed.
    removed: u64,
    /// The caller whose record was made the next one last.
    caller: String,
    /// Whether records wait, but too many are sent.
    is_ahead: bool,
    /// How many may be sent all the same.
    allowed: usize,
}

impl<'a> Reader<'a> {
    fn new(store: &'a Store, output: &'a TurnOutput) -> Self {
        let mut reader = Self {
            store,
            output,
            generation: 0,
            after: 0,
            covered: 0,
            removed: 0,
            caller: String::new(),
            is_ahead: false,
            allowed: 0,
        };
        match output.resume() {
            Some(offset) if offset.log == *store.id() => {
                reader.generation = offset.generation;
                (reader.after, reader.covered) = (offset.end, offset.end);
            }
            Some(offset) => {
                tracing::warn!("the queue of turns was replaced; reading it from its beginning");
                reader.generation = offset.generation + 1;
            }
            None => output.begins(reader.offset(0)),
        }
        reader
    }

    fn offset(&self, number: u64) -> SourceOffset {
        let log = self.store.id().clone();
        SourceOffset { log, generation: self.generation, end: number, line: number, ..SourceOffset::default() }
    }

    /// Removes the records that a checkpoint covers, and sends the next page; false if there is none.
    fn step(&mut self) -> Result<bool, ConnectorError> {
        let offsets = self.output.acknowledgements().offsets();
        if let Some(offset) = offsets.get("").filter(|offset| offset.log == *self.store.id()) {
            self.covered = self.covered.max(offset.end);
        }
        if self.covered > self.removed {
            self.store.remove(self.covered).map_err(failed)?;
            self.removed = self.covered;
        }
        let mut page = self.store.page(self.after, PAGE, PAGE_BYTES).map_err(failed)?;
        self.is_ahead = false;
        if page.is_empty() {
            let is_much = self.after.saturating_sub(self.covered) >= AHEAD;
            if is_much && self.allowed == 0 {
                self.is_ahead = self.store.is_any_waiting().map_err(failed)?;
                return Ok(false);
            }
            self.allowed = 0;
            if let Some(caller) = self.store.advance(&self.caller, PAGE).map_err(failed)? {
                self.caller = caller;
                page = self.store.page(self.after, PAGE, PAGE_BYTES).map_err(failed)?;
            }
        }
        let is_any = !page.is_empty();
        for (number, record) in page {
            self.output.line(&record, &format!("{FILE}: {number}"), Some(self.offset(number)))?;
            self.after = number;
        }
        Ok(is_any)
    }
}

/// A damaged file stays damaged; any other error may be temporary.
pub(crate) fn failed(error: DatabaseError) -> ConnectorError {
    match error.is_damage() {
        true => ComponentError::new(error).into(),
        false => ComponentError::transient(error).into(),
    }
}

/// A program's handle to a queue.
struct Handle {
    store: Arc<Opened<Store>>,
    bounds: Bounds,
}

impl TurnQueue for Handle {
    fn append(&self, turns: &[TurnRecord]) -> Result<u64, QueueError> {
        let refused = |error: serde_json::Error| ConnectorError::Refused { reason: error.to_string() };
        let records: Result<Vec<Encoded>, _> = turns.iter().map(Encoded::of).collect();
        match self.store.append(&records.map_err(refused)?, self.bounds).map_err(failed)? {
            Appended::Last(number) => Ok(number),
            Appended::Full(waiting) => Err(QueueError::Full { waiting }),
            Appended::TooLarge => {
                let reason =
                    "more turns than the queue can hold, or than one caller may queue (`max_waiting`, `max_mb`, \
                              `max_waiting_each`, `max_mb_each`)"
                        .to_owned();
                Err(ConnectorError::Refused { reason }.into())
            }
        }
    }

    fn waiting(&self) -> Result<u64, ConnectorError> {
        self.store.count().map_err(failed)
    }
}
