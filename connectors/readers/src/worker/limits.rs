//! What a file may cost.

use std::time::Duration;

/// Memory that a child may take beyond what it has at its start, in bytes.
pub(super) const MEMORY: u64 = 1 << 30;
/// Maximum size of a child's answer, in bytes.
pub(super) const ANSWER: u64 = 512 << 20;
/// Maximum size of the passwords of a source, in bytes.
pub(super) const PASSWORDS: u64 = 1 << 20;
/// Maximum size of the passage that is marked on a page, as JSON, in bytes. More of it is not marked.
pub(super) const PASSAGE: u64 = 1 << 20;
/// Maximum size of what a child says about itself, in bytes.
pub(super) const REASON: u64 = 1 << 10;
/// Maximum number of pixels of a picture that a child asks about.
pub(super) const PIXELS: u64 = 2 * crate::ocr::MOST_PIXELS as u64;
/// The longest side of a picture that a child may send: what reads lines makes a strip wider.
pub(super) const SIDE: u64 = 200_000;
/// Time that a child may take from one picture to the next, beyond that of the file.
pub(super) const PICTURE: Duration = Duration::from_secs(60);
/// A child ends when it has had nothing to do for so long.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// Files and bytes that a child reads before another one takes its place: what it has left behind in memory goes.
pub(super) const FILES: u32 = 256;
pub(super) const BYTES: u64 = 256 << 20;

/// Time of the processor that a file of this size may take. Most take milliseconds.
pub(super) fn of_processor(bytes: usize) -> Duration {
    Duration::from_secs(5) + Duration::from_secs(4) * (bytes >> 20) as u32
}

/// Time that it may take, on a machine that has other things to do.
pub(super) fn of_clock(bytes: usize) -> Duration {
    of_processor(bytes) * 6
}

/// Time of the processor that the picture of a page may take, and time: people wait for it, and others behind them.
pub(super) const OF_PROCESSOR_FOR_A_PAGE: Duration = Duration::from_secs(3);
pub(super) const OF_CLOCK_FOR_A_PAGE: Duration = Duration::from_secs(15);
