//! A bounded queue of letters that could not be written yet.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use crate::append::{Lines, Target};

/// Maximum number of waiting letters.
pub(super) const WAITING: usize = 1_000;
/// Maximum bytes of waiting letters; a single larger letter is allowed.
pub(super) const WAITING_BYTES: usize = 64 << 20;

/// Writes lines to a file in order; lines wait while writes fail.
pub(super) struct Outbox<T> {
    pub(super) lines: Lines<T>,
    pub(super) waiting: VecDeque<Vec<u8>>,
}

impl<T: Target> Outbox<T> {
    pub(super) fn new(target: T) -> Self {
        Self { lines: Lines { target, torn: false }, waiting: VecDeque::new() }
    }

    /// Writes a line after the waiting ones.
    pub(super) fn add(&mut self, line: Vec<u8>) -> io::Result<()> {
        self.waiting.push_back(line);
        let flushed = self.flush();
        self.bound();
        flushed
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(line) = self.waiting.front() {
            self.lines.append(line.clone())?;
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Drops the oldest waiting lines until the limits are met.
    fn bound(&mut self) {
        let mut bytes: usize = self.waiting.iter().map(Vec::len).sum();
        while self.waiting.len() > WAITING || (bytes > WAITING_BYTES && self.waiting.len() > 1) {
            let Some(oldest) = self.waiting.pop_front() else { return };
            bytes -= oldest.len();
            let begins = String::from_utf8_lossy(&oldest[..oldest.len().min(200)]).into_owned();
            tracing::error!(begins, "too many dead letters are waiting to be written: the oldest is lost");
        }
    }

    /// Retries the waiting lines. The first failure was logged when the line was added.
    pub(super) fn settle(&mut self, path: &Path) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let flushed = self.flush();
        match &flushed {
            Ok(()) => tracing::warn!(file = %path.display(), "waiting dead letters are now written"),
            Err(error) => tracing::debug!(%error, file = %path.display(), "dead letters are waiting to be written"),
        }
        flushed
    }
}
