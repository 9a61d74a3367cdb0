//! Reads a log to its present end, across rotations and truncations, from the offset of an earlier process.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset, Stopped, TurnOutput};

use super::JsonLines;
use super::place::Log;
use crate::known_file::{Between, FileMark, Past, between, head_of, rotated};
use crate::lines::Line;
use crate::watch::{WRITING, identity_of};

/// How long to wait for a followed log that is shorter than what was already read and is still being written. It may be
/// a copy in progress.
const RESTORING: Duration = Duration::from_secs(10);

/// Maximum number of new searches for a log that was renamed after it was found.
const RENAMED: u32 = 20;

fn still_written() -> io::Error {
    io::Error::new(ErrorKind::WouldBlock, "the file is still being written and shorter than before")
}

pub(super) struct Tail<'a> {
    source: &'a JsonLines,
    output: &'a TurnOutput,
    name: String,
    open: Option<Log>,
    /// Number of logs before the open one, or before the next one.
    generation: u64,
    /// Offset to resume after. Taken once there is a file to compare it with.
    resume: Option<SourceOffset>,
    /// Whether the log is followed, so that missing data may still arrive.
    follows: bool,
    /// Deadline of waiting for a file that is too short to be the log. Until then, the open log is not read further:
    /// its file may have been rewritten.
    restoring: Option<Instant>,
    /// The log that was read to its end, if it is no longer at the path.
    past: Option<Past>,
    /// Files beside the log that a warning has reported.
    warned: HashSet<PathBuf>,
    /// Why the file could not be opened at the last attempt.
    fault: Option<ErrorKind>,
}

impl<'a> Tail<'a> {
    pub(super) fn new(source: &'a JsonLines, output: &'a TurnOutput, mode: Mode) -> Self {
        let resume = output.resume().cloned();
        let follows = source.follow && mode == Mode::Follow;
        let name = source.path.display().to_string();
        let (past, warned) = (None, HashSet::new());
        Self {
            source,
            output,
            name,
            open: None,
            generation: 0,
            resume,
            follows,
            restoring: None,
            past,
            warned,
            fault: None,
        }
    }

    /// Whether the log is followed as it grows.
    pub(super) fn follows(&self) -> bool {
        self.follows
    }

    fn error(&self, source: io::Error) -> ConnectorError {
        ConnectorError::Io { action: "read", path: self.name.clone(), source }
    }

    /// Opens the next log. The first one is opened after the offset of an earlier process, if its file still exists.
    fn open(&mut self) -> io::Result<()> {
        let limit = self.source.max_line_bytes;
        if let Some(place) = self.resume.clone() {
            match Log::resume(&self.source.path, &place, limit) {
                Ok(Some(log)) => {
                    tracing::info!(file = log.name, line = place.line, "resuming after the last answered line");
                    self.generation = place.generation;
                    self.open = Some(log);
                    self.resume = None;
                    return Ok(());
                }
                Ok(None) if self.is_coming(place.end) => {
                    return Err(still_written());
                }
                Ok(None) => {}
                // A file that exists but cannot be read now is retried.
                Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
                Err(_) => {}
            }
            // The log itself is lost, but those that came after it may be there.
            self.past = FileMark::past_of(&place.log);
        }
        if let Some(log) = self.open_between() {
            self.lost(&log.name);
            tracing::info!(file = log.name, "reading a log that was rotated away before it was seen");
            self.open = Some(log);
            return Ok(());
        }
        let log = Log::open(&self.source.path, limit)?;
        // The present log may have been created after the search for logs in between.
        if let Some(older) = self.open_between() {
            self.lost(&older.name);
            self.open = Some(older);
            return Ok(());
        }
        self.past = None;
        if self.output.resume().is_none() && self.generation == 0 {
            self.tell_older();
            log.last_place(0).into_iter().for_each(|place| self.output.begins(place));
        }
        self.lost(&log.name);
        self.open = Some(log);
        Ok(())
    }

    /// Says which logs are not read because no checkpoint names them, as at a first start or without the state.
    fn tell_older(&self) {
        let older = rotated(&self.source.path, &self.source.others()).unwrap_or_default();
        if let [(newest, _), ..] = &older[..] {
            tracing::warn!(file = self.name, number = older.len(), such_as = %newest.display(),
                "there is no checkpoint: these logs, which were rotated before, are not read");
        }
    }

    /// Gives up the log of an earlier process, if it is still searched for, for the one that is read from now on.
    fn lost(&mut self, next: &str) {
        if let Some(place) = self.resume.take() {
            tracing::warn!(
                file = self.name,
                line = place.line,
                next,
                "the log that was read up to this line has been truncated, rewritten or removed; \
                 reading the present file from its beginning"
            );
            self.generation = place.generation.saturating_add(1);
        }
    }

    /// Whether the file may still become the log that was read up to `end`.
    fn is_coming(&mut self, end: u64) -> bool {
        let is_being_written = |metadata: &fs::Metadata| {
            let written = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            metadata.is_file() && metadata.len() < end && written.is_none_or(|since| since < WRITING)
        };
        let comes = self.follows && fs::metadata(&self.source.path).is_ok_and(|metadata| is_being_written(&metadata));
        comes && self.begins_alike() && Instant::now() < self.restoring_until()
    }

    fn restoring_until(&mut self) -> Instant {
        *self.restoring.get_or_insert_with(|| Instant::now() + RESTORING)
    }

    /// Whether the open log starts with the present content of the file.
    fn begins_alike(&self) -> bool {
        let Some(log) = &self.open else { return true };
        let now = File::open(&self.source.path).and_then(|file| head_of(&file, log.head().len() as u64));
        now.is_ok_and(|now| log.head().starts_with(&now))
    }

    /// The rest of the open log, if it was truncated or another file is at its path. Searches like a restart: the log
    /// may have been rewritten or replaced with the same lines and more, or copied and then truncated.
    fn rest(&mut self, has_gone: bool) -> io::Result<Option<Log>> {
        let generation = self.generation;
        let place = self.open.as_ref().filter(|log| !log.is_away).and_then(|log| log.last_place(generation));
        let Some(place) = place else { return Ok(None) };
        // A file that exists but cannot be read now is retried.
        File::open(&self.source.path)?;
        match Log::resume(&self.source.path, &place, self.source.max_line_bytes) {
            // It was renamed, and the open file is read to its end.
            Ok(Some(log)) if log.is_away && has_gone => Ok(None),
            Ok(None) if self.is_coming(place.end) => Err(still_written()),
            found => found,
        }
    }

    /// Logs once why nothing can be read.
    fn waits(&mut self, error: &io::Error) {
        if self.fault.replace(error.kind()) != Some(error.kind()) {
            tracing::info!(file = self.name, %error, "waiting for the file");
        }
    }

    /// The oldest of the logs that were rotated away after the one that was read.
    fn open_between(&mut self) -> Option<Log> {
        let mut between = between(&self.source.path, self.past.as_ref()?, &self.source.others());
        self.tell_unclear(&between);
        for _ in 0..RENAMED {
            // The oldest log, if its name still belongs to it.
            let oldest = between.logs.first();
            let Some((file, identity)) = oldest else { break };
            match Log::open_away(file, self.source.max_line_bytes) {
                Ok(log) if log.identity == *identity => return Some(log),
                _ => {
                    let (path, others) = (&self.source.path, self.source.others());
                    between = crate::known_file::between(path, self.past.as_ref()?, &others);
                    self.tell_unclear(&between);
                }
            }
        }
        // A log that cannot be opened no longer exists; the next one is opened instead.
        let open = |(file, _): (PathBuf, _)| Log::open_away(&file, self.source.max_line_bytes).ok();
        between.logs.into_iter().find_map(open)
    }

    /// Names each file once that may be a part of the log and is not read.
    fn tell_unclear(&mut self, between: &Between) {
        for (file, why) in &between.unclear {
            if self.warned.insert(file.clone()) {
                tracing::warn!(file = %file.display(), log = self.name, why,
                    "this file may be a part of the log, but is not read");
            }
        }
    }

    /// Closes the open log. `has_gone` says that it is no longer at the path.
    fn close(&mut self, has_gone: bool) {
        let log = self.open.take();
        self.past = log.filter(|_| has_gone).and_then(|log| log.past());
        self.generation = self.generation.saturating_add(1);
    }

    /// Reads everything, including an unfinished last line.
    pub(super) fn read_to_the_end(&mut self) -> Result<(), ConnectorError> {
        self.open().map_err(|source| self.error(source))?;
        loop {
            self.drain()?;
            self.unfinished()?;
            if !self.open.as_ref().is_some_and(|log| log.is_away) {
                return Ok(());
            }
            self.close(true);
            match self.open() {
                // The log was renamed, and no new one was created.
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                opened => opened.map_err(|source| self.error(source))?,
            }
        }
    }

    /// Reads everything that is available.
    pub(super) fn catch_up(&mut self) -> Result<(), ConnectorError> {
        loop {
            if self.open.is_none() {
                if let Err(error) = self.open() {
                    self.waits(&error);
                    return Ok(());
                }
                (self.fault, self.restoring) = (None, None);
            }
            let stands = self.open.as_ref().is_none_or(Log::stands);
            if stands {
                self.drain()?;
            }
            let Some(log) = &self.open else { return Ok(()) };
            // The log was renamed, and the path does not exist yet. The old file may still be written to, unless other
            // logs were created and renamed since.
            let Ok(metadata) = fs::metadata(&self.source.path) else {
                let past = log.past();
                let others = self.source.others();
                if past.is_some_and(|past| !between(&self.source.path, &past, &others).logs.is_empty()) {
                    self.drain()?;
                    self.unfinished()?;
                    self.close(true);
                    continue;
                }
                self.output.caught_up();
                return Ok(());
            };
            let has_gone = identity_of(&metadata) != log.identity;
            if has_gone && stands {
                // The writer has switched to the new file, so the old one is complete.
                self.drain()?;
            } else if stands && self.restoring.is_none() && metadata.len() >= log.lines.position() {
                self.output.caught_up();
                return Ok(());
            }
            match self.rest(has_gone) {
                Ok(Some(log)) => {
                    tracing::info!(
                        file = log.name,
                        "the log was replaced, rewritten or copied; continuing in this file"
                    );
                    (self.fault, self.restoring) = (None, None);
                    self.open = Some(log);
                    continue;
                }
                Ok(None) if has_gone => self.unfinished()?,
                Ok(None) => self.truncated(),
                Err(error) => {
                    self.restoring_until();
                    self.waits(&error);
                    return Ok(());
                }
            }
            self.close(has_gone);
        }
    }

    /// Reports that the open log was truncated, and the unfinished line that was cut.
    fn truncated(&self) {
        tracing::info!(file = self.name, "the file was truncated; reading it from its beginning");
        let Some(log) = self.open.as_ref().filter(|log| log.lines.is_inside()) else { return };
        let (Line::Whole(start) | Line::TooLong { start, .. }) = log.lines.line();
        let position = format!("{}:{}", log.name, log.lines.number());
        self.output.dead_beginning(&position, "the file was truncated within this line", start);
    }

    /// Delivers all finished lines.
    fn drain(&mut self) -> Result<(), ConnectorError> {
        while let Some(log) = self.open.as_mut().filter(|_| self.restoring.is_none()) {
            match log.lines.advance() {
                Ok(true) => self.hand_over(false)?,
                Ok(false) => break,
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(())
    }

    /// Delivers the last line, which has no newline.
    fn unfinished(&mut self) -> Result<(), ConnectorError> {
        match &self.open {
            Some(log) if log.lines.is_inside() => Ok(self.hand_over(true)?),
            _ => Ok(()),
        }
    }

    fn hand_over(&mut self, unfinished: bool) -> Result<(), Stopped> {
        let Some(log) = &mut self.open else { return Ok(()) };
        let position = format!("{}:{}", log.name, log.lines.number());
        let place = log.place(self.generation, unfinished);
        match log.lines.line() {
            Line::Whole(line) => self.output.line(line, &position, place),
            Line::TooLong { start, bytes } => {
                let limit = self.source.max_line_bytes;
                let reason = format!("the line has {bytes} bytes, more than {limit}");
                self.output.dead_beginning(&position, &reason, start);
                Ok(())
            }
        }
    }
}
