//! Limits of what a program may do with one record: steps, memory, depth of calls and of values.
//!
//! The library that runs programs has no limits. So programs run on values of our own ([`Value`](super::value::Value)),
//! which count what is done with them, and definitions that call themselves are changed to count their calls
//! ([`program`](super::program)). A program that has used up what it may is ended by unwinding, which it cannot catch.
//! Steps are counted and time is not measured, so a record has the same fate on every machine.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use jaq_json::{Num, Val};

/// Steps for each record, for each byte of it, and for each two bytes beyond the first [`LARGE`]. A step takes 50 to 250 ns.
/// Of a large record, the presets take 1 or 2 steps for each byte, and 3.5 if it is a chat of 20,000 messages of three
/// letters.
const STEPS: u64 = 600_000;
const STEPS_PER_BYTE: u64 = 4;
const STEPS_PER_TWO_BYTES_BEYOND: u64 = 5;
const LARGE: u64 = 256 << 10;
/// Length from which a text counts less, since what is done with texts takes a step for many bytes, and what share.
const LONG_TEXT: u64 = 256;
const OF_LONG_TEXT: u64 = 32;
/// Bytes that a program may hold at a time, and how many more for each byte of the record.
const BYTES: u64 = 20 << 20;
const BYTES_PER_BYTE: u64 = 24;
/// Maximum size of a text, in bytes, and how much larger it may be for each byte of the record.
const TEXT: u64 = 4 << 20;
const TEXT_PER_BYTE: u64 = 4;
/// Maximum size of the stack below the start of a program, in bytes. Threads have 2 MiB.
const STACK: usize = 1 << 20;
/// Maximum depth of lists and objects in each other.
pub(super) const DEPTH: u32 = 1_000;
/// Maximum number of regular expressions: it takes some milliseconds to compile one that is not known.
const EXPRESSIONS: u32 = 48;
/// Maximum number of bits of a whole number.
const BITS: u64 = 1 << 16;

/// What a program has used up.
#[derive(Clone, Copy, Debug)]
struct Spent(&'static str);

thread_local! {
    /// Whether a program runs.
    static RUNS: Cell<bool> = const { Cell::new(false) };
    static STEPS_LEFT: Cell<u64> = const { Cell::new(0) };
    static BYTES_LEFT: Cell<u64> = const { Cell::new(0) };
    static BYTES_MOST: Cell<u64> = const { Cell::new(0) };
    static LONGEST: Cell<u64> = const { Cell::new(0) };
    static START: Cell<usize> = const { Cell::new(0) };
    /// Number of this run, and of its regular expressions.
    static RUN: Cell<u64> = const { Cell::new(0) };
    static PATTERNS: Cell<u32> = const { Cell::new(0) };
}

/// Number of all runs.
static ALL: AtomicU64 = AtomicU64::new(0);

/// Runs a program on a value of so many bytes, which counts as so many when its steps are bounded.
///
/// # Errors
///
/// The program has used up what it may.
pub(super) fn bounded<T>((size, weight): (u64, u64), program: impl FnOnce() -> T) -> Result<T, &'static str> {
    let beyond = weight.saturating_sub(LARGE);
    let allowed = STEPS + (weight - beyond) * STEPS_PER_BYTE + beyond * STEPS_PER_TWO_BYTES_BEYOND / 2;
    STEPS_LEFT.set(allowed);
    BYTES_LEFT.set(BYTES + size * BYTES_PER_BYTE);
    BYTES_MOST.set(BYTES_LEFT.get());
    LONGEST.set(TEXT + size * TEXT_PER_BYTE);
    START.set(here());
    RUN.set(ALL.fetch_add(1, Relaxed) + 1);
    PATTERNS.set(0);
    RUNS.set(true);
    // What the program leaves behind when it ends in the middle is dropped.
    let done = catch_unwind(AssertUnwindSafe(program));
    RUNS.set(false);
    #[cfg(test)]
    TAKEN.set(allowed - STEPS_LEFT.get());
    done.map_err(|panic| spent_of(&*panic).unwrap_or("it panicked, which is a defect of turnflow"))
}

fn spent_of(panic: &(dyn Any + Send)) -> Option<&'static str> {
    panic.downcast_ref::<Spent>().map(|spent| spent.0)
}

fn spend(what: &'static str) -> ! {
    resume_unwind(Box::new(Spent(what)))
}

/// The place in the stack, as a number.
#[inline(never)]
fn here() -> usize {
    let local = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&local)) as usize
}

/// Counts steps, and looks at the stack: all that a program does comes by here.
#[inline]
pub(crate) fn steps(number: u64) {
    let local = 0_u8;
    let place = std::ptr::from_ref(std::hint::black_box(&local)) as usize;
    if START.get().abs_diff(place) > STACK && RUNS.get() {
        spend("its calls are nested too deeply");
    }
    take(&STEPS_LEFT, number, "it takes too many steps: it may not end");
}

/// Counts bytes of memory that are taken.
#[inline]
pub(crate) fn bytes(number: u64) {
    take(&BYTES_LEFT, number, "it needs too much memory");
}

/// Counts bytes of memory that are given back.
#[inline]
pub(super) fn freed(number: u64) {
    if RUNS.get() {
        let left = BYTES_LEFT.get().saturating_add(number);
        #[cfg(test)]
        DRIFT.set(DRIFT.get().max(left.saturating_sub(BYTES_MOST.get())));
        BYTES_LEFT.set(left.min(BYTES_MOST.get()));
    }
}

#[cfg(test)]
thread_local! {
    /// How many more bytes were given back than taken.
    pub(super) static DRIFT: Cell<u64> = const { Cell::new(0) };
    /// How many steps the last run took.
    pub(super) static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Bytes of memory that are taken for a while.
pub(crate) struct Lent(u64);

impl Lent {
    /// Counts them, until this is dropped.
    pub fn of(number: u64) -> Self {
        bytes(number);
        Self(number)
    }

    /// Counts more.
    pub fn more(&mut self, number: u64) {
        bytes(number);
        self.0 += number;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        freed(self.0);
    }
}

#[inline]
fn take(of: &'static std::thread::LocalKey<Cell<u64>>, number: u64, what: &'static str) {
    match of.get().checked_sub(number) {
        Some(left) => of.set(left),
        None if RUNS.get() => spend(what),
        None => {}
    }
}

/// Ends the program if a text of so many bytes is too long.
pub(super) fn text(length: u64) {
    if length > LONGEST.get() && RUNS.get() {
        spend("it makes a text that is too long");
    }
}

/// Ends the program if a path has grown too long.
pub(super) fn path(is_long: bool) {
    if is_long && RUNS.get() {
        spend("it makes a path that is too long");
    }
}

/// The number of this run.
pub(super) fn run() -> u64 {
    RUN.get()
}

/// Counts another regular expression.
pub(super) fn pattern() {
    PATTERNS.set(PATTERNS.get() + 1);
    if PATTERNS.get() > EXPRESSIONS && RUNS.get() {
        spend("it makes too many regular expressions");
    }
}

/// Ends the program if a whole number of so many bits is too large.
pub(super) fn bits(number: u64) {
    if number > BITS && RUNS.get() {
        spend("it makes a number that is too large");
    }
}

/// Counts a walk over all of a value, as often as its parts occur in it. Returns its depth.
pub(super) fn walk(value: &Val) -> u32 {
    let within = |parts: &mut dyn Iterator<Item = &Val>| 1 + parts.map(walk).max().unwrap_or(0);
    let depth = match value {
        Val::Arr(list) => {
            steps(1 + list.len() as u64 / 4);
            within(&mut list.iter())
        }
        Val::Obj(fields) => {
            steps(1 + fields.len() as u64 / 2);
            within(&mut fields.iter().flat_map(|(name, value)| [name, value]))
        }
        Val::TStr(text) | Val::BStr(text) => {
            steps(1 + text.len() as u64 / 256);
            0
        }
        Val::Num(Num::BigInt(number)) => {
            steps(number.bits() / 32);
            0
        }
        _ => 0,
    };
    if depth > DEPTH && RUNS.get() {
        spend("it makes a value that is nested too deeply");
    }
    depth
}

/// What a value of so many bytes counts for its steps.
pub(super) fn weight_of(value: &Val, size: u64) -> u64 {
    fn less(value: &Val) -> u64 {
        match value {
            Val::Arr(list) => list.iter().map(less).sum(),
            Val::Obj(fields) => fields.iter().map(|(name, value)| less(name) + less(value)).sum(),
            Val::TStr(text) | Val::BStr(text) => {
                let beyond = (text.len() as u64).saturating_sub(LONG_TEXT);
                beyond - beyond / OF_LONG_TEXT
            }
            _ => 0,
        }
    }
    if size > LONG_TEXT { size.saturating_sub(less(value)) } else { size }
}

/// The size of a value that nothing shares, in bytes, and its depth.
pub(super) fn size_of(value: &Val) -> (u64, u32) {
    let sum = |parts: &mut dyn Iterator<Item = &Val>| {
        let add = |(size, depth): (u64, u32), part| {
            let (of_part, depth_of_part) = size_of(part);
            (size + of_part, depth.max(depth_of_part + 1))
        };
        parts.fold((2, 1), add)
    };
    match value {
        Val::Arr(list) => sum(&mut list.iter()),
        Val::Obj(fields) => sum(&mut fields.iter().flat_map(|(name, value)| [name, value])),
        Val::TStr(text) | Val::BStr(text) => (text.len() as u64 + 2, 0),
        _ => (4, 0),
    }
}
