//! `JsonLines`: turns from a conversation log, one JSON object a line.
//!
//! ```ron
//! JsonLines(path: "turns.jsonl", follow: true)
//! ```
//!
//! Followed like `tail -F` does, from the beginning of the file: what is appended is read
//! as it comes, a line counts when its newline is there, and a file that is not there yet
//! is waited for. When the file is renamed away and a new one is made (rotation), the old
//! one is read to its end first; an unfinished line at its end counts as a line. A file
//! that is shorter than what was read of it has been truncated and is read from its
//! beginning; one that has outgrown that length before it was looked at cannot be told
//! from one that was appended to.
//!
//! Positions are `path:line`. Lines that are no turns become dead letters, as do lines
//! longer than the limit, which are read past without being kept.
//!
//! ```
//! # use turnflow_connectors::jsonl_turns::JsonLinesConfig;
//! # let ron = r#"
//! (path: "turns.jsonl", follow: true)
//! # "#;
//! # let config: JsonLinesConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_line_bytes, 1 << 20);
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use turnflow_engine::component::{Check, TurnSourceConfig, TurnSourceKind};
use turnflow_engine::connector::{ConnectorError, Mode, Stopped, TurnOutput, TurnSource};
use turnflow_engine::spec::{FilePath, from_tree};

use crate::jsonl_corpus::directory_of;
use crate::lines::{Line, LineReader};
use crate::watch::{Watch, identity_of};

/// How often the file is looked at when no event tells of anything.
const POLL: Duration = Duration::from_millis(250);

/// The node's fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonLinesConfig {
    /// The file; relative to the pipeline file.
    pub path: FilePath,
    /// Whether to follow the file as it grows, or to end at its end. Default: true.
    #[serde(default = "yes")]
    pub follow: bool,
    /// The most bytes of a line; a longer one becomes a dead letter. Default: 1 MiB.
    #[serde(default = "max_line_bytes")]
    pub max_line_bytes: usize,
}

fn yes() -> bool {
    true
}
fn max_line_bytes() -> usize {
    1 << 20
}

impl JsonLinesConfig {
    /// The source, which touches nothing until it runs.
    pub fn source(&self, base: &Path) -> JsonLines {
        JsonLines { path: base.join(&self.path.path), follow: self.follow, max_line_bytes: self.max_line_bytes }
    }
}

/// The table's entry.
pub const KIND: TurnSourceKind = TurnSourceKind {
    name: "JsonLines",
    summary: "a conversation log, followed as it grows and is rotated",
    parse: |tree, sources| Ok(Box::new(from_tree::<JsonLinesConfig>(tree, sources)?)),
};

impl TurnSourceConfig for JsonLinesConfig {
    fn validate(&self, check: &mut Check<'_>) {
        // The file itself may come later; the directory that is to be watched may not.
        if !self.path.path.exists() {
            let directory = directory_of(&self.path.path);
            check.exists("path", &FilePath::from(directory));
        }
        check.range("max_line_bytes", self.max_line_bytes, 1, usize::MAX);
    }

    fn explain(&self) -> String {
        format!("path: {:?}, follow: {}", self.path.written, self.follow)
    }

    fn build(&self) -> Box<dyn TurnSource> {
        Box::new(self.source(Path::new("")))
    }
}

/// Reads and follows one conversation log.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    follow: bool,
    max_line_bytes: usize,
}

impl TurnSource for JsonLines {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let name = self.path.display().to_string();
        let mut tail = Tail { source: &self, output: &output, name, open: None, fault: None };
        if !self.follow || mode == Mode::Once {
            tail.open = Some(tail.open().map_err(|source| tail.error(source))?);
            tail.drain()?;
            return tail.unfinished();
        }
        // Without a watch, for want of the directory or of watches, there is still the poll.
        let directory = directory_of(&self.path);
        let mut watch = Watch::new(directory)?;
        let mut watching = watch.add(directory).is_ok();
        loop {
            tail.catch_up()?;
            crossbeam_channel::select! {
                recv(watch.signals()) -> signal => match signal {
                    // One look answers all of them.
                    Ok(_) => watch.signals().try_iter().for_each(drop),
                    // The watcher has died: wait as if there were no events.
                    Err(_) if output.stop().wait(POLL) => return Err(Stopped.into()),
                    Err(_) => {}
                },
                recv(output.stop().receiver()) -> _ => return Err(Stopped.into()),
                default(POLL) => watching = watching || watch.add(directory).is_ok(),
            }
        }
    }
}

/// An open file and what tells it from others.
struct Open {
    lines: LineReader<File>,
    identity: (u64, u64),
}

struct Tail<'a> {
    source: &'a JsonLines,
    output: &'a TurnOutput,
    name: String,
    open: Option<Open>,
    /// Why the file could not be opened the last time.
    fault: Option<io::ErrorKind>,
}

impl Tail<'_> {
    fn error(&self, source: io::Error) -> ConnectorError {
        ConnectorError::Io { action: "read", path: self.name.clone(), source }
    }

    fn open(&self) -> io::Result<Open> {
        let file = File::open(&self.source.path)?;
        let identity = identity_of(&file.metadata()?);
        Ok(Open { lines: LineReader::new(file, self.source.max_line_bytes), identity })
    }

    /// Reads all there is to read now.
    fn catch_up(&mut self) -> Result<(), ConnectorError> {
        loop {
            if self.open.is_none() {
                match self.open() {
                    Ok(open) => self.open = Some(open),
                    Err(error) => {
                        if self.fault.replace(error.kind()) != Some(error.kind()) {
                            tracing::info!(file = self.name, %error, "waiting for the file");
                        }
                        return Ok(());
                    }
                }
                self.fault = None;
            }
            self.drain()?;
            let Some(open) = &self.open else { return Ok(()) };
            // Renamed away and not made again yet: the old file may still be written to.
            let Ok(metadata) = fs::metadata(&self.source.path) else { return Ok(()) };
            if identity_of(&metadata) != open.identity {
                // Its writer has gone over to the new file, so this is the end of the old.
                self.drain()?;
                self.unfinished()?;
            } else if metadata.len() < open.lines.position() {
                tracing::info!(file = self.name, "the file was truncated: reading from its beginning");
                if let (true, Line::Whole(start) | Line::TooLong { start, .. }) =
                    (open.lines.is_inside(), open.lines.line())
                {
                    let position = format!("{}:{}", self.name, open.lines.number());
                    self.output.dead_letter(&position, "the file was truncated within this line", start);
                }
            } else {
                return Ok(());
            }
            self.open = None;
        }
    }

    /// Hands over all finished lines.
    fn drain(&mut self) -> Result<(), ConnectorError> {
        while let Some(open) = &mut self.open {
            match open.lines.advance() {
                Ok(true) => self.hand_over()?,
                Ok(false) => break,
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(())
    }

    /// Hands over the last line, which has no newline.
    fn unfinished(&self) -> Result<(), ConnectorError> {
        match &self.open {
            Some(open) if open.lines.is_inside() => Ok(self.hand_over()?),
            _ => Ok(()),
        }
    }

    fn hand_over(&self) -> Result<(), Stopped> {
        let Some(Open { lines, .. }) = &self.open else { return Ok(()) };
        let position = format!("{}:{}", self.name, lines.number());
        match lines.line() {
            Line::Whole(line) => self.output.line(line, &position, None),
            Line::TooLong { start, bytes } => {
                let limit = self.source.max_line_bytes;
                self.output.dead_letter(&position, &format!("the line has {bytes} bytes, more than {limit}"), start);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::testing::{Turns, turn};

    fn source(base: &Path) -> JsonLines {
        turnflow_engine::spec::from_str::<JsonLinesConfig>(r#"(path: "t.jsonl", max_line_bytes: 200)"#)
            .unwrap()
            .source(base)
    }

    fn append(path: &Path, bytes: &str) {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(bytes.as_bytes()).unwrap();
    }

    #[test]
    fn once_ends_at_the_end_and_counts_the_last_line() {
        let directory = tempfile::tempdir().unwrap();
        let error = Turns::run(source(directory.path()), Mode::Once).end(false).unwrap_err();
        assert!(matches!(error, ConnectorError::Io { action: "read", .. }), "{error}");
        let path = directory.path().join("t.jsonl");
        let long = "x".repeat(500);
        fs::write(&path, format!("{}\n\nbad\n{}\n{}", turn("a"), turn(&long), turn("b"))).unwrap();
        let turns = Turns::run(source(directory.path()), Mode::Once);
        assert_eq!(turns.next(), ("a".to_owned(), format!("{}:1", path.display())));
        assert_eq!(turns.next(), ("b".to_owned(), format!("{}:5", path.display())));
        let dead = turns.dead();
        assert!(dead[0].starts_with(&format!("{}:3: not a turn record", path.display())), "{dead:?}");
        assert!(dead[1].ends_with(":4: the line has 566 bytes, more than 200"), "{dead:?}");
        assert_eq!(dead.len(), 2);
        turns.end(false).unwrap();
    }

    #[test]
    fn a_file_that_comes_and_grows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl");
        let turns = Turns::run(source(directory.path()), Mode::Follow);
        append(&path, &format!("{}\n", turn("a")));
        assert_eq!(turns.text(), "a");
        let line = turn("b");
        append(&path, &line[..20]);
        append(&path, &line[20..]);
        // The unfinished line is not handed over before its newline.
        append(&path, &format!("\n{}\n", turn("c")));
        assert_eq!(turns.text(), "b");
        assert_eq!(turns.next(), ("c".to_owned(), format!("{}:3", path.display())));
        assert_eq!(turns.dead(), [""; 0]);
        assert!(matches!(turns.end(true), Err(ConnectorError::Stopped(_))));
    }

    #[test]
    fn even_the_directory_may_come_later() {
        let directory = tempfile::tempdir().unwrap();
        let later = directory.path().join("later");
        let turns = Turns::run(source(&later), Mode::Follow);
        fs::create_dir(&later).unwrap();
        append(&later.join("t.jsonl"), &format!("{}\n", turn("a")));
        assert_eq!(turns.text(), "a");
    }

    #[test]
    fn rotation_loses_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("t.jsonl"), directory.path().join("t.jsonl.1"));
        append(&path, &format!("{}\n", turn("a")));
        let turns = Turns::run(source(directory.path()), Mode::Follow);
        assert_eq!(turns.text(), "a");
        fs::rename(&path, &old).unwrap();
        // The writer has not noticed yet.
        append(&old, &format!("{}\n", turn("b")));
        assert_eq!(turns.text(), "b");
        append(&old, &turn("c"));
        append(&path, &format!("{}\n", turn("d")));
        assert_eq!(turns.next(), ("c".to_owned(), format!("{}:3", path.display())));
        assert_eq!(turns.next(), ("d".to_owned(), format!("{}:1", path.display())));
    }

    #[test]
    fn truncation_starts_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl");
        append(&path, &format!("{}\n{}\n{{\"half", turn("a"), turn("b")));
        let turns = Turns::run(source(directory.path()), Mode::Follow);
        assert_eq!((turns.text(), turns.text()), ("a".to_owned(), "b".to_owned()));
        fs::write(&path, format!("{}\n", turn("c"))).unwrap();
        assert_eq!(turns.next(), ("c".to_owned(), format!("{}:1", path.display())));
        let dead = turns.dead();
        assert!(dead.iter().all(|letter| letter.contains("truncated within")), "{dead:?}");
    }
}
