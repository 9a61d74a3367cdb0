//! Reading a log to its present end, over rotations and truncations, and from where an
//! earlier process has come to.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset, Stopped, TurnOutput};

use super::JsonLines;
use super::place::Log;
use crate::known_file::{Between, Past, between};
use crate::lines::Line;
use crate::watch::{WRITING, identity_of};

/// How long a followed log that is shorter than what was read of it is waited for while it is
/// written to: it may be a copy that is on its way.
const RESTORING: Duration = Duration::from_secs(10);

/// So often it is looked anew for a log that was renamed since it was found.
const RENAMED: u32 = 20;

pub(super) struct Tail<'a> {
    source: &'a JsonLines,
    output: &'a TurnOutput,
    name: String,
    open: Option<Log>,
    /// How many logs came before the open one, or before the next.
    generation: u64,
    /// Behind which place to go on; taken when there is a file to compare it with.
    resume: Option<SourceOffset>,
    /// Whether the log is followed, so that what is not there yet may come.
    follows: bool,
    /// Until when a file that is too short to be the log is waited for.
    restoring: Option<Instant>,
    /// The log that was read to its end, if it is not at the path any more.
    past: Option<Past>,
    /// Files beside the log that have been warned of.
    warned: HashSet<PathBuf>,
    /// Why the file could not be opened the last time.
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

    /// Opens the next log; the first one behind the place of an earlier process, if it is
    /// still there.
    fn open(&mut self) -> io::Result<()> {
        let limit = self.source.max_line_bytes;
        if let Some(place) = &self.resume {
            match Log::resume(&self.source.path, place, limit) {
                Ok(Some(log)) => {
                    tracing::info!(file = log.name, line = place.line, "going on behind what has been answered");
                    self.generation = place.generation;
                    self.open = Some(log);
                    self.resume = None;
                    return Ok(());
                }
                Ok(None) if self.is_coming(place.end) => {
                    return Err(io::Error::new(
                        ErrorKind::WouldBlock,
                        "it is being written, and not yet as long as before",
                    ));
                }
                Ok(None) => {}
                // What cannot be read now, but is there, is tried again.
                Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
                Err(_) => {}
            }
        }
        if let Some(log) = self.open_between() {
            tracing::info!(file = log.name, "reading a log that was rotated away before it was seen");
            self.open = Some(log);
            return Ok(());
        }
        let log = Log::open(&self.source.path, limit)?;
        // It may have been made since it was looked for what came between.
        if let Some(older) = self.open_between() {
            self.open = Some(older);
            return Ok(());
        }
        self.past = None;
        if self.output.resume().is_none() && self.generation == 0 {
            log.beginning().into_iter().for_each(|place| self.output.begins(place));
        }
        if let Some(place) = self.resume.take() {
            tracing::warn!(
                file = self.name,
                line = place.line,
                "the log that was read up to this line has been truncated, rewritten or taken away: \
                 reading what is there from its beginning"
            );
            self.generation = place.generation.saturating_add(1);
        }
        self.open = Some(log);
        Ok(())
    }

    /// Whether the file may yet become the log that was read up to `end`.
    fn is_coming(&mut self, end: u64) -> bool {
        let is_being_written = |metadata: &fs::Metadata| {
            let written = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            metadata.is_file() && metadata.len() < end && written.is_none_or(|since| since < WRITING)
        };
        let comes = self.follows && fs::metadata(&self.source.path).is_ok_and(|metadata| is_being_written(&metadata));
        comes && Instant::now() < *self.restoring.get_or_insert_with(|| Instant::now() + RESTORING)
    }

    /// The oldest of the logs that were rotated away behind the one that was read.
    fn open_between(&mut self) -> Option<Log> {
        let mut between = between(&self.source.path, self.past.as_ref()?);
        for _ in 0..RENAMED {
            // The oldest, if it is still what it was.
            let oldest = between.logs.first();
            let Some((file, identity)) = oldest else { break };
            match Log::open_away(file, self.source.max_line_bytes) {
                Ok(log) if log.identity == *identity => return Some(log),
                _ => between = crate::known_file::between(&self.source.path, self.past.as_ref()?),
            }
        }
        let Between { logs, unclear } = between;
        for (file, why) in unclear {
            if self.warned.insert(file.clone()) {
                tracing::warn!(file = %file.display(), log = self.name, why,
                    "this may be a part of the log, and is not read");
            }
        }
        // One that cannot be opened has gone: then the next is told of.
        let open = |(file, _): (PathBuf, _)| Log::open_away(&file, self.source.max_line_bytes).ok();
        logs.into_iter().find_map(open)
    }

    /// Done with the open log, which `has_gone` if it is not at the path any more.
    fn close(&mut self, has_gone: bool) {
        let log = self.open.take();
        self.past = log.filter(|_| has_gone).and_then(|log| log.past());
        self.generation = self.generation.saturating_add(1);
    }

    /// Reads all there is, an unfinished last line included.
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
                // It was renamed, and none has been made in its place.
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                opened => opened.map_err(|source| self.error(source))?,
            }
        }
    }

    /// Reads all there is to read now.
    pub(super) fn catch_up(&mut self) -> Result<(), ConnectorError> {
        loop {
            if self.open.is_none() {
                if let Err(error) = self.open() {
                    if self.fault.replace(error.kind()) != Some(error.kind()) {
                        tracing::info!(file = self.name, %error, "waiting for the file");
                    }
                    return Ok(());
                }
                self.fault = None;
            }
            self.drain()?;
            let Some(log) = &self.open else { return Ok(()) };
            // Renamed away and not made again yet: the old file may still be written to, unless others
            // have been made and renamed away since.
            let Ok(metadata) = fs::metadata(&self.source.path) else {
                let past = log.past();
                if past.is_some_and(|past| !between(&self.source.path, &past).logs.is_empty()) {
                    self.drain()?;
                    self.unfinished()?;
                    self.close(true);
                    continue;
                }
                self.output.caught_up();
                return Ok(());
            };
            let has_gone = identity_of(&metadata) != log.identity;
            if has_gone {
                // Its writer has gone over to the new file, so this is the end of the old.
                self.drain()?;
                self.unfinished()?;
            } else if metadata.len() < log.lines.position() {
                tracing::info!(file = self.name, "the file was truncated: reading from its beginning");
                if let (true, Line::Whole(start) | Line::TooLong { start, .. }) =
                    (log.lines.is_inside(), log.lines.line())
                {
                    let position = format!("{}:{}", log.name, log.lines.number());
                    self.output.dead_beginning(&position, "the file was truncated within this line", start);
                }
            } else {
                self.output.caught_up();
                return Ok(());
            }
            self.close(has_gone);
        }
    }

    /// Hands over all finished lines.
    fn drain(&mut self) -> Result<(), ConnectorError> {
        while let Some(log) = &mut self.open {
            match log.lines.advance() {
                Ok(true) => self.hand_over(false)?,
                Ok(false) => break,
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(())
    }

    /// Hands over the last line, which has no newline.
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
