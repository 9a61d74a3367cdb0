//! Sources of turns whose records have another form: a mapping makes messages of each record, and messages become turns.
//!
//! ```ron
//! JsonLines(path: "chat.jsonl", map: Preset("litellm-payload"))
//! JsonLines(path: "chat.jsonl", map: Jq("{conversation: .chat, speaker: (.role | role), text: .content}"))
//! ```
//!
//! The mapped source reads the other one (`intake.rs`), assembles turns (`turnflow_records::Stream`), and puts them into a
//! queue in its directory in the state directory (`store.rs`), from which the engine gets them (`reader.rs`). One
//! transaction stores the turns, the place up to which records are read, what waits, and what is known of conversations
//! and messages. So each message becomes a turn once, however often the process is killed, and its turn keeps its number.
//! A turn leaves the queue when a checkpoint covers its answer.
//!
//! Messages wait for `settle_s` while a log is followed. With `--once`, they wait for the end of the log, up to
//! `max_waiting` of them, so any order gives the turns that `turnflow map` gives.

mod again;
mod config;
mod fitting;
mod intake;
#[cfg(feature = "remote")]
mod keys;
mod reader;
mod rows;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use turnflow_engine::component::{Building, ComponentContext};
use turnflow_engine::connector::{
    Acknowledgements, ConnectorError, Mode, Offsets, Stopped, TakesRequests, TurnOutput, TurnSource,
};
use turnflow_engine::metrics::Counter;
use turnflow_engine::panics::caught;

pub use self::again::{Again, MapsAgain};
pub use self::config::{ConversationsConfig, MapConfig, MapFields, Reads};
pub(crate) use self::fitting::fitting;
use self::intake::Intake;
#[cfg(feature = "remote")]
pub(crate) use self::keys::{Changes, KeyMap};
use self::reader::Reader;
pub(crate) use self::rows::RowMap;
use self::store::{Store, Stored};
use crate::open_once::{Opened, Place};

/// Name of the store.
const FILE: &str = "assembly.redb";
/// Pause before the store is written or read again.
const PAUSE: Duration = Duration::from_secs(1);
/// Least and most time until it is looked for messages that are due.
const LEAST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_secs(1);
/// Most time between two changes of the store while records keep coming.
const LONGEST_REST: Duration = Duration::from_millis(20);

/// Wraps a source, if its configuration has a mapping.
pub(crate) fn mapped<'a>(
    fields: &MapFields<'_>,
    context: &ComponentContext,
    source: Building<'a, dyn TurnSource>,
) -> Building<'a, dyn TurnSource> {
    match fields.map {
        None => source,
        Some(_) => wrapped(fields, context, source),
    }
}

fn wrapped<'a>(
    fields: &MapFields<'_>,
    context: &ComponentContext,
    source: Building<'a, dyn TurnSource>,
) -> Building<'a, dyn TurnSource> {
    let place = Place::of(context, FILE);
    let counts = Counts {
        records: context.counter("mapped_records", "Records that a mapping has read"),
        left_out: context
            .counter("mapped_left_out", "Messages of mapped records that became no turn, and records without one"),
    };
    let begun = place.and_then(|place| Begun::of(fields, context.id(), place, counts));
    Box::pin(async move {
        let begun = begun?;
        Ok(Box::new(begun.over(source.await?)) as Box<dyn TurnSource>)
    })
}

/// Wraps a source that gives each file a place of its own, whether its records are mapped or not: places are stored one by
/// one, with the turns.
pub(crate) fn with_places<'a>(
    fields: &MapFields<'_>,
    context: &ComponentContext,
    source: Building<'a, dyn TurnSource>,
) -> Building<'a, dyn TurnSource> {
    wrapped(fields, context, source)
}

/// The same for a test, with its store in this directory.
#[cfg(test)]
pub(crate) fn placed(
    fields: &MapFields<'_>,
    state: &std::path::Path,
    counts: Counts,
    source: Box<dyn TurnSource>,
) -> Mapped {
    std::fs::create_dir_all(state).unwrap();
    let place = Place::File(state.canonicalize().unwrap().join(FILE));
    Begun::of(fields, "turns", place, counts).unwrap().over(source)
}

/// A mapped source without the source that it reads.
struct Begun {
    store: Arc<Opened<Store>>,
    mapping: Option<Arc<turnflow_records::Mapping>>,
    /// A hash of its program.
    hash: String,
    lasts: bool,
    options: IntakeOptions,
    counts: Counts,
}

impl Begun {
    fn of(fields: &MapFields<'_>, id: &str, place: Place, counts: Counts) -> Result<Self, ConnectorError> {
        let read = fields.mapping().transpose().map_err(|reason| ConnectorError::Refused { reason })?;
        let (mapping, code) = read.map_or_else(Default::default, |(mapping, code)| (Some(Arc::new(mapping)), code));
        let hash = blake3::hash(code.as_bytes()).to_hex()[..16].to_owned();
        let store = Store::open(place, fields.conversations.max_known).map_err(crate::turns::failed)?;
        let options = mapping.as_ref().map(|mapping| mapping.options().clone()).unwrap_or_default();
        let options = fields.intake(id, &options);
        Ok(Self { store, mapping, hash, lasts: fields.lasts, options, counts })
    }

    fn over(self, inner: Box<dyn TurnSource>) -> Mapped {
        let Self { store, mapping, hash, lasts, options, counts } = self;
        Mapped { inner, store, mapping, hash, lasts, options, counts }
    }
}

/// What a mapped source counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub records: Counter,
    pub left_out: Counter,
}

/// How records are taken.
#[derive(Clone, Debug)]
pub(super) struct IntakeOptions {
    /// How long a message waits, in milliseconds.
    pub settle_ms: u64,
    /// Maximum number of messages that wait.
    pub max_waiting: usize,
    /// The source, as `$source.path`.
    pub path: String,
    /// Whether the positions of records are files, with the number of the record behind a colon.
    pub names_files: bool,
    pub assembly: turnflow_records::Options,
}

/// A source with a mapping.
pub(crate) struct Mapped {
    inner: Box<dyn TurnSource>,
    store: Arc<Opened<Store>>,
    mapping: Option<Arc<turnflow_records::Mapping>>,
    hash: String,
    lasts: bool,
    options: IntakeOptions,
    counts: Counts,
}

/// Begins again with the records if nothing was ever made of them that counts: the engine knows no answer, or the mapping is
/// another one since, and the one before made no turn.
fn begin(store: &Store, hash: &str, lasts: bool, output: &TurnOutput) -> Result<Stored, ConnectorError> {
    let failed = crate::turns::failed;
    let stored = store.begin().map_err(failed)?;
    let former = store.mapping().map_err(failed)?;
    let is_other = former.as_deref().is_some_and(|former| former != hash);
    let is_unknown = output.resume_partitions().is_empty() && !stored.input.is_empty();
    // What waits cannot be had again if its log is gone, and what was mapped again by hand is answered.
    let is_free = stored.turns == 0 && stored.held.is_empty() && !store.is_mapped_again().map_err(failed)?;
    let is_anew = lasts && (is_unknown || (is_other && is_free));
    if former.as_deref() != Some(hash) || is_anew {
        store.set_mapping(hash, is_anew).map_err(failed)?;
    }
    let source = output.name();
    if is_anew && is_other {
        tracing::info!(source, "the mapping has changed, and made no turn before: the records are read again");
    } else if is_other && let Some(refused) = still_refused(stored.refused.number, output) {
        tracing::warn!(
            source,
            refused,
            "the mapping has changed; records that it could not map before are dead letters: `turnflow dead-letters --retry` \
             maps them again"
        );
    }
    if is_anew { store.begin().map_err(failed) } else { Ok(stored) }
}

/// How many of so many records are dead letters still, if any are: others were mapped again by hand.
fn still_refused(refused: u64, output: &TurnOutput) -> Option<u64> {
    let letters = if refused > 0 { output.letters().map_or(refused, |letters| letters.len() as u64) } else { 0 };
    Some(refused.min(letters)).filter(|refused| *refused > 0)
}

impl TurnSource for Mapped {
    fn requests(&self) -> Option<Arc<dyn TakesRequests>> {
        self.inner.requests()
    }

    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let Self { inner, store, mapping, hash, lasts, options, counts } = *self;
        let stored = begin(&store, &hash, lasts, &output)?;
        let output = if mapping.is_none() { output.hinting(fitting) } else { output };
        let mut reader = Reader::new(&store, &output);
        // A source that had no mapping before goes on where it was.
        let resume = match stored.input.is_empty() {
            true => reader.former().unwrap_or_default(),
            false => stored.input.clone(),
        };
        let is_file = options.names_files;
        if is_file && !stored.input.is_empty() && stored.input.iter().all(|place| place.partition.is_empty()) {
            tracing::warn!(
                source = output.name(),
                "the node was a source of another kind before: the files are read from their beginning, and messages without \
                 an id that were turns become turns again"
            );
        }
        let begins = if is_file { Offsets::default() } else { resume.clone() };
        let is_first = stored.records == 0;
        // What a command has mapped again is answered.
        let is_mapped_again = store.is_mapped_again().map_err(crate::turns::failed)?;
        let intake = Arc::new(Intake::new(mapping, (options, counts), mode, stored, output.clone()));
        if is_first {
            match output.letters() {
                Ok(letters) => intake.expect(letters),
                Err(error) => tracing::warn!(source = output.name(), %error, "cannot read the dead letters"),
            }
        }
        let acknowledgements = Acknowledgements::default();
        let to_intake = output.clone().through(intake.clone(), resume, acknowledgements.clone());
        thread::scope(|scope| {
            let run = || {
                let done = caught(|| inner.run(mode, to_intake));
                intake.ended(matches!(done, Ok(Ok(()))));
                done
            };
            let builder = thread::Builder::new().name("records".to_owned());
            let thread = builder.spawn_scoped(scope, run).map_err(|source| ConnectorError::Io {
                action: "start a thread for",
                path: "records".to_owned(),
                source,
            })?;
            let safe = Safe { acknowledgements: &acknowledgements, all: begins, is_told: !is_file };
            let pumped = pump(&store, &mut reader, &intake, safe, &output);
            intake.close();
            intake.tell_left_out();
            // What another process could not map is not read again, and what gave no message has no letter.
            if mode == Mode::Once
                && !is_mapped_again
                && let Some(refused) = intake.never_mapped()
                && output.refused() == 0
            {
                output.refused_before(refused.number, &refused.first);
            }
            if mode == Mode::Once
                && !is_mapped_again
                && let Some(told) = intake.without_turns()
            {
                output.without_turns(told);
            }
            let done = thread.join().unwrap_or_else(|_| Ok(Err(Stopped.into())));
            pumped?;
            done?
        })
    }
}

/// Tells the source which of its records are stored.
struct Safe<'a> {
    acknowledgements: &'a Acknowledgements,
    all: Offsets,
    /// Whether the source wants to know. A file does not, and there may be many.
    is_told: bool,
}

impl Safe<'_> {
    fn add(&mut self, input: Offsets) {
        if self.is_told {
            self.all.extend(input);
            self.acknowledgements.acknowledge(&self.all);
        }
    }
}

/// Stores what was taken, and sends what is stored, until the source has ended and everything is sent.
fn pump(
    store: &Store,
    reader: &mut Reader<'_>,
    intake: &Intake,
    mut safe: Safe<'_>,
    output: &TurnOutput,
) -> Result<(), ConnectorError> {
    let mut is_failing = false;
    // What an error did not let be stored.
    let mut unstored = None;
    // What is stored in memory only, and not covered by a checkpoint.
    let mut unsafe_input: Option<Offsets> = None;
    // While records keep coming, many are stored at once.
    let mut rest = Duration::ZERO;
    loop {
        if output.stop().wait(std::mem::take(&mut rest)) {
            return Err(Stopped.into());
        }
        let has_ended = intake.has_ended();
        let mut step = || -> Result<Option<Offsets>, ConnectorError> {
            if unstored.is_none() {
                unstored = intake.release(store, has_ended).map_err(crate::turns::failed)?;
            }
            let Some(change) = &unstored else { return Ok(None) };
            let begun = Instant::now();
            store.commit(change).map_err(crate::turns::failed)?;
            rest = (begun.elapsed() * 2).min(LONGEST_REST);
            let input = change.input.clone();
            unstored = None;
            Ok(Some(input))
        };
        let steps = step().and_then(|input| {
            match input {
                Some(input) if store.is_kept() => safe.add(input),
                Some(input) => unsafe_input.get_or_insert_default().extend(input),
                None => {}
            }
            intake.stored();
            while reader.step()? {}
            intake.cover(reader.covered());
            if intake.is_idle() && reader.is_covered() {
                unsafe_input.take().into_iter().for_each(|input| safe.add(input));
            }
            Ok(())
        });
        match &steps {
            Ok(()) => is_failing = false,
            Err(ConnectorError::Component(error)) if error.is_transient() => {
                if !is_failing {
                    tracing::warn!(%error, "cannot store the turns of a mapped source; will retry");
                }
                is_failing = true;
                if output.stop().wait(PAUSE) {
                    return Err(Stopped.into());
                }
                continue;
            }
            Err(_) => return steps,
        }
        if intake.has_caught_up() {
            output.caught_up();
            intake.forget_letters();
        }
        if has_ended {
            intake.forget_letters();
        }
        if has_ended {
            return Ok(());
        }
        let due = intake.due().unwrap_or(MOST);
        crossbeam_channel::select! {
            recv(intake.changed()) -> _ => {}
            recv(output.acknowledgements().changed()) -> _ => {}
            recv(output.stop().receiver()) -> _ => return Err(Stopped.into()),
            default(due.clamp(LEAST, MOST)) => {}
        }
    }
}
