//! Takes the records of a source, maps them, and holds their messages until they are due.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};
use turnflow_engine::connector::{Mode, Offsets, SourceOffset, Stopped, TakesRecords, TurnOutput};
use turnflow_engine::database::DatabaseError;
use turnflow_engine::dead_letter::RecordHash;
use turnflow_engine::panics::caught;
use turnflow_engine::record::TurnRecord;
use turnflow_records::{Item, Mapping, Odd, Record, Released, Source, Stream};

use super::store::{Change, Known, Refused, Store, Stored};
use super::{Counts, IntakeOptions, fitting};

/// Maximum number of records that are taken and not stored.
const AHEAD: usize = 2048;
/// Maximum size of such records, in bytes; one may be larger.
const AHEAD_BYTES: usize = 64 << 20;
/// Between two looks at all messages that wait, so many times the time that one takes passes, and at most this time.
const REST: u32 = 8;
const LONGEST_REST: Duration = Duration::from_millis(500);
/// How often a wait looks whether the engine stops.
const LOOK: Duration = Duration::from_millis(100);

/// Now, in milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) struct Intake {
    /// Without one, records are turns as they are.
    mapping: Option<Arc<Mapping>>,
    options: IntakeOptions,
    counts: Counts,
    mode: Mode,
    output: TurnOutput,
    taken: Mutex<Taken>,
    /// Signals that what was taken is stored.
    room: Condvar,
    changed: (Sender<()>, Receiver<()>),
    ended: AtomicBool,
    is_complete: AtomicBool,
    closed: AtomicBool,
    /// The number of the last turn whose answer a checkpoint covers.
    covered: AtomicU64,
    letters: Mutex<LettersAgain>,
}

/// Records that were dead letters, when a log is read again.
#[derive(Default)]
struct LettersAgain {
    /// Those that are.
    wanted: HashSet<RecordHash>,
    /// Those that were read without a fault since.
    read: HashSet<RecordHash>,
}

struct Taken {
    stream: Stream,
    /// What is known, and what has changed since it was stored.
    known: Known,
    /// The places that have changed since the last storing.
    input: Offsets,
    /// Turns of records that are not mapped, with their places.
    turns: Vec<(String, Vec<u8>)>,
    /// Number of records of all runs.
    records: u64,
    /// Records that could not be mapped, in all runs, and whether that is stored.
    refused: Refused,
    is_refused_stored: bool,
    /// Number of turns of all runs.
    made: u64,
    /// Number of records since the last storing, and their size.
    unstored: usize,
    unstored_bytes: usize,
    /// The first number of a message that is not stored.
    first_unstored: u64,
    /// Messages are looked at again from then on.
    rests_until: Option<Instant>,
    /// Whether there is something to store.
    is_changed: bool,
    /// All messages before this number existed at the start.
    caught_up: Option<u64>,
    /// Messages that became no turn, records that gave no message, and odd ones.
    left_out: HashMap<&'static str, u64>,
    odd: Odd,
}

impl Taken {
    /// How many messages and records became no turn, by the reason.
    fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> =
            self.left_out.iter().map(|(reason, number)| format!("{number} {reason}")).collect();
        reasons.sort_unstable();
        let waiting = self.stream.waiting_for_agents();
        if waiting > 0 {
            reasons.push(format!("{waiting} waiting for an agent in their conversations"));
        }
        reasons
    }
}

impl Intake {
    pub fn new(
        mapping: Option<Arc<Mapping>>,
        (options, counts): (IntakeOptions, Counts),
        mode: Mode,
        stored: Stored,
        output: TurnOutput,
    ) -> Self {
        let stream = Stream::new(options.assembly.clone(), stored.held, stored.next_held);
        let mut stream = stream.of_whole(mode == Mode::Once).of_kept();
        if mode == Mode::Follow {
            // What waited for the end of a log that was read once, or the clock was set.
            stream.no_later(now() + options.settle_ms);
        }
        let taken = Taken {
            stream,
            known: Known::default(),
            input: Offsets::default(),
            turns: Vec::new(),
            records: stored.records,
            refused: stored.refused,
            is_refused_stored: true,
            made: stored.turns,
            unstored: 0,
            unstored_bytes: 0,
            first_unstored: stored.next_held,
            rests_until: None,
            is_changed: false,
            caught_up: None,
            left_out: HashMap::new(),
            odd: Odd::default(),
        };
        Self {
            mapping,
            options,
            counts,
            mode,
            output,
            taken: Mutex::new(taken),
            room: Condvar::new(),
            changed: bounded(1),
            ended: AtomicBool::new(false),
            is_complete: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            covered: AtomicU64::new(0),
            letters: Mutex::default(),
        }
    }

    /// These records are dead letters, and may be read now.
    pub fn expect(&self, wanted: HashSet<RecordHash>) {
        self.letters.lock().wanted = wanted;
    }

    /// Takes the dead letters out whose records were read without a fault, when what was there is read.
    pub fn forget_letters(&self) {
        let read = std::mem::take(&mut self.letters.lock().read);
        if !read.is_empty()
            && let Err(error) = self.output.forget_letters(&read)
        {
            tracing::warn!(source = self.output.name(), %error, "cannot take dead letters out of their file");
        }
    }

    fn read_again(&self, position: &str, record: &[u8]) {
        let mut letters = self.letters.lock();
        let LettersAgain { wanted, read } = &mut *letters;
        if !wanted.is_empty() {
            read.extend(wanted.take(&RecordHash::of(position, record)));
        }
    }

    /// Receives a message when something was taken.
    pub fn changed(&self) -> &Receiver<()> {
        &self.changed.1
    }

    fn signal(&self) {
        let _ = self.changed.0.try_send(());
    }

    /// The source has ended: after all records, or because it failed or was stopped.
    pub fn ended(&self, is_complete: bool) {
        self.is_complete.store(is_complete, Ordering::Release);
        self.ended.store(true, Ordering::Release);
        self.signal();
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Nothing is stored any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.room.notify_all();
    }

    /// Says what became no turn in this run.
    pub fn tell_left_out(&self) {
        let reasons = self.taken.lock().reasons();
        if !reasons.is_empty() {
            let left_out = reasons.join(", ");
            tracing::info!(source = self.options.path, left_out, "messages of mapped records became no turn");
        }
    }

    /// If no record of this source, in whatever run, gave a turn: those that could not be mapped. `before` were told.
    pub fn never_mapped(&self) -> Option<Refused> {
        let taken = self.taken.lock();
        (taken.made == 0 && taken.refused.number > 0).then(|| taken.refused.clone())
    }

    /// If records were read, in whatever run, and none gave a turn: what became of them.
    pub fn without_turns(&self) -> Option<String> {
        let taken = self.taken.lock();
        let reasons = taken.reasons();
        let why = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
        let records = turnflow_engine::wording::count(usize::try_from(taken.records).unwrap_or(usize::MAX), "record");
        (taken.made == 0 && taken.records > 0)
            .then(|| format!("`{}` has read {records}, and none gave a turn{why}", self.output.name()))
    }

    /// How long it takes until messages are due and looked at.
    pub fn due(&self) -> Option<Duration> {
        let taken = self.taken.lock();
        let due = Duration::from_millis(taken.stream.due()?.saturating_sub(now()));
        let rest = taken.rests_until.map(|until| until.saturating_duration_since(Instant::now()));
        Some(due.max(rest.unwrap_or_default()))
    }

    /// Whether all messages that existed at the start are turns, or wait for their agent.
    pub fn has_caught_up(&self) -> bool {
        let taken = self.taken.lock();
        taken.unstored == 0 && taken.caught_up.is_some_and(|until| !taken.stream.is_any_due_before(until))
    }

    /// A checkpoint covers the answers of all turns up to a number.
    pub fn cover(&self, turn: u64) {
        self.covered.store(turn, Ordering::Release);
    }

    /// Whether no message waits, and all is stored.
    pub fn is_idle(&self) -> bool {
        let taken = self.taken.lock();
        taken.stream.waiting() == 0 && !taken.is_changed
    }

    /// What was taken is stored.
    pub fn stored(&self) {
        self.room.notify_all();
    }

    /// Makes turns of what is due, or of all after the last record. `None` if nothing has changed.
    pub fn release(&self, store: &Store, has_ended: bool) -> Result<Option<Change>, DatabaseError> {
        let mut taken = self.taken.lock();
        let Taken { stream, known, rests_until, .. } = &mut *taken;
        let excess = stream.waiting().saturating_sub(self.options.max_waiting);
        if excess > 0 {
            stream.hurry(excess + self.options.max_waiting / 10);
        }
        let begun = Instant::now();
        let rests = excess == 0 && !has_ended && rests_until.is_some_and(|until| begun < until);
        let mut released = Released::default();
        if !rests {
            let mut memory = known.with(store);
            released = stream.release(now(), has_ended && self.is_complete.load(Ordering::Acquire), &mut memory);
            memory.error()?;
            *rests_until = Some(begun + (begun.elapsed() * REST).min(LONGEST_REST));
        }
        if !taken.is_changed && released.done.is_empty() && released.waiting.is_empty() {
            return Ok(None);
        }
        for (reason, number) in &released.left_out {
            let all = taken.left_out.entry(reason).or_default();
            let is_new = *all == 0;
            *all += number;
            self.counts.left_out.inc_by(*number);
            if is_new {
                tracing::info!(source = self.options.path, reason, "a message of a mapped record is no turn");
            }
        }
        let done: BTreeSet<u64> = released.done.iter().copied().collect();
        let first = taken.first_unstored;
        let is_new = |number: &u64| *number >= first && !done.contains(number);
        let next = taken.stream.next();
        let held =
            (first..next).filter(is_new).chain(released.waiting.iter().copied().filter(|number| *number < first));
        let held = held.filter_map(|number| Some((number, serde_json::to_string(taken.stream.held(number)?).ok()?)));
        let held: Vec<(u64, String)> = held.collect();
        let turns =
            released.turns.iter().filter_map(|(turn, place)| Some((place.clone(), serde_json::to_vec(turn).ok()?)));
        let turns: Vec<(String, Vec<u8>)> = turns.collect();
        let turns = std::mem::take(&mut taken.turns).into_iter().chain(turns);
        let turns: Vec<(String, Vec<u8>)> = turns.collect();
        taken.made += turns.len() as u64;
        let refused = (!std::mem::replace(&mut taken.is_refused_stored, true)).then(|| taken.refused.clone());
        let change = Change {
            refused,
            input: std::mem::take(&mut taken.input),
            records: taken.records,
            next_held: next,
            held,
            done: done.into_iter().filter(|number| *number < first).collect(),
            turns,
            known: taken.known.changes(),
        };
        (taken.first_unstored, taken.unstored, taken.is_changed) = (next, 0, false);
        taken.unstored_bytes = 0;
        Ok(Some(change))
    }

    /// The messages of a record.
    fn map(
        &self,
        mapping: &Mapping,
        record: &[u8],
        (position, number): (&str, u64),
        odd: &mut Odd,
    ) -> Result<(Vec<Item>, Option<String>), String> {
        let value = mapping.value(record, odd)?;
        let place = position.rsplit_once(':').filter(|_| self.options.names_files);
        let source = match place.and_then(|(path, number)| Some((path, number.parse().ok()?))) {
            Some((path, number)) => Source { path: path.into(), number },
            None => Source { path: self.options.path.clone().into(), number },
        };
        mapping.run_in_parts(&Record { value, source })
    }

    fn tell_odd(&self, before: Odd, after: Odd, position: &str) {
        let all = after.replaced + after.broken;
        if all > before.replaced + before.broken && all.is_power_of_two() {
            let Odd { replaced, broken, .. } = after;
            tracing::warn!(
                position,
                replaced,
                broken,
                "records have values that JSON cannot hold, or bytes that are not UTF-8"
            );
        }
    }
}

/// Why a record without a mapping is no turn, if it is none.
fn no_turn(record: &[u8]) -> Option<String> {
    let read = caught(|| TurnRecord::read(record)).map_err(|panic| format!("reading it {panic}"));
    read.and_then(|read| read.map(drop).map_err(|error| error.to_string())).err()
}

impl TakesRecords for Intake {
    fn record(&self, record: &[u8], position: &str, place: Option<SourceOffset>) -> Result<Option<String>, Stopped> {
        let number = self.taken.lock().records + 1;
        let mut odd = Odd::default();
        let found = self.mapping.as_ref().map(|mapping| {
            let found = caught(|| self.map(mapping, record, (position, number), &mut odd));
            let (items, failed) = found.unwrap_or_else(|panic| Err(format!("mapping it {panic}")))?;
            if failed.is_none() {
                self.read_again(position, record);
            }
            if let Some(reason) = failed {
                self.output.dead_letter(position, &format!("not mapped: {reason}"), record);
            }
            Ok::<_, String>(items)
        });
        let found = found.or_else(|| no_turn(record).map(Err));
        // Only until something is a turn: then the mapping is the right one.
        let is_none_made = self.taken.lock().made == 0;
        let is_without = found.as_ref().is_some_and(|found| found.as_ref().map_or(true, Vec::is_empty));
        let fitting = if is_none_made && is_without { fitting(record) } else { None };
        fitting.iter().for_each(|fitting| self.output.hint_at(fitting));
        let mut refused = None;
        if let Some(Err(reason)) = &found {
            let reason = if self.mapping.is_some() { format!("not mapped: {reason}") } else { reason.clone() };
            let reason = fitting.as_ref().map_or(reason.clone(), |fitting| format!("{reason}; {fitting}"));
            self.output.dead_letter(position, &reason, record);
            refused = Some(format!("{position}: {reason}"));
        } else if let Some(fitting) = fitting {
            refused = Some(format!("{position}: the mapping gives no message for it; {fitting}"));
        }
        let due = match self.mode {
            Mode::Once => u64::MAX,
            Mode::Follow => now() + self.options.settle_ms,
        };
        let mut taken = self.taken.lock();
        let before = taken.odd;
        taken.odd.add(odd);
        self.tell_odd(before, taken.odd, position);
        taken.records = number;
        self.counts.records.inc();
        let told = found.as_ref().and_then(|found| found.as_ref().err()).cloned();
        if let Some(reason) = refused {
            taken.is_refused_stored = false;
            taken.refused.number += 1;
            if taken.refused.first.is_empty() {
                taken.refused.first = reason;
            }
        }
        taken.unstored += 1;
        taken.unstored_bytes += record.len();
        taken.is_changed = true;
        if let Some(place) = place {
            taken.input.set(place);
        }
        match found {
            None => taken.turns.push((position.to_owned(), record.to_vec())),
            Some(Ok(items)) if items.is_empty() => {
                self.counts.left_out.inc();
                *taken.left_out.entry("no message").or_default() += 1;
            }
            Some(Ok(items)) => {
                taken.stream.take(items, position, due);
            }
            Some(Err(_)) => {}
        }
        self.signal();
        while taken.unstored >= AHEAD || taken.unstored_bytes >= AHEAD_BYTES {
            if self.output.stop().is_set() || self.closed.load(Ordering::Acquire) {
                return Err(Stopped);
            }
            self.room.wait_for(&mut taken, LOOK);
        }
        Ok(told)
    }

    fn waiting(&self) -> u64 {
        let taken = self.taken.lock();
        let turns = taken.made.saturating_sub(self.covered.load(Ordering::Acquire));
        turns + taken.stream.waiting() as u64
    }

    fn begins(&self, places: Offsets) {
        let mut taken = self.taken.lock();
        taken.input.extend(places);
        taken.is_changed = true;
        self.signal();
    }

    fn caught_up(&self) {
        let mut taken = self.taken.lock();
        let next = taken.stream.next();
        taken.caught_up.get_or_insert(next);
        self.signal();
    }
}
