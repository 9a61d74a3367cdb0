//! `Stdin`: turns typed or piped in, a line each.
//!
//! ```ron
//! Stdin()
//! ```
//!
//! A line that begins with `{` is a turn record; any other is a question as a person
//! types it, and becomes the next user's turn of the conversation `stdin`. Blank lines are
//! skipped. The source ends with the input, in both modes. Positions are `stdin:line`.
//!
//! Reading blocks and cannot be interrupted, so a thread of its own does it; when the
//! engine stops, that thread is left to end with the input or the process.

use std::io::{self, Read};
use std::thread;

use crossbeam_channel::Sender;
use serde::Deserialize;
use serde_json::Map;
use turnflow_engine::component::{TurnSourceConfig, TurnSourceKind};
use turnflow_engine::connector::{ConnectorError, Mode, SourcedTurn, Stopped, TurnOutput, TurnSource};
use turnflow_engine::record::{Speaker, TurnRecord};
use turnflow_engine::spec::from_tree;

use crate::lines::{Line, LineReader};

/// The most bytes of a line.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Lines read ahead.
const AHEAD: usize = 16;

/// The node has no fields.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdinConfig {}

impl StdinConfig {
    /// The source, which reads nothing until it runs.
    pub fn source(&self) -> Stdin {
        Stdin::reading(io::stdin())
    }
}

/// The table's entry.
pub const KIND: TurnSourceKind = TurnSourceKind {
    name: "Stdin",
    summary: "lines from the standard input: turn records, or plain questions",
    parse: |tree, sources| Ok(Box::new(from_tree::<StdinConfig>(tree, sources)?)),
};

impl TurnSourceConfig for StdinConfig {
    fn explain(&self) -> String {
        String::new()
    }

    fn build(&self) -> Box<dyn TurnSource> {
        Box::new(self.source())
    }
}

/// Reads turns from the standard input.
pub struct Stdin {
    input: Box<dyn Read + Send>,
}

impl Stdin {
    /// Reads from something else instead.
    pub fn reading(input: impl Read + Send + 'static) -> Self {
        Self { input: Box::new(input) }
    }
}

impl TurnSource for Stdin {
    fn run(self: Box<Self>, _: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let fault = |source| ConnectorError::Io { action: "read", path: "stdin".to_owned(), source };
        let (sender, lines) = crossbeam_channel::bounded(AHEAD);
        let reader = LineReader::new(self.input, MAX_LINE_BYTES);
        thread::Builder::new().name("stdin".to_owned()).spawn(move || read(reader, &sender)).map_err(fault)?;
        let mut typed = 0;
        loop {
            crossbeam_channel::select! {
                recv(lines) -> line => match line {
                    Ok(Ok(line)) => hand_over(&line, &mut typed, &output)?,
                    Ok(Err(error)) => return Err(fault(error)),
                    Err(_) => return Ok(()),
                },
                recv(output.stop().receiver()) -> _ => return Err(Stopped.into()),
            }
        }
    }
}

/// A line that was read.
struct Numbered {
    number: u64,
    bytes: Vec<u8>,
    /// Its length, if it is longer than what is kept.
    too_long: Option<u64>,
}

/// Reads to the end, or until nobody listens.
fn read(mut reader: LineReader<impl Read>, sender: &Sender<io::Result<Numbered>>) {
    loop {
        let finished = match reader.advance() {
            Ok(finished) => finished,
            Err(error) => {
                let _ = sender.send(Err(error));
                return;
            }
        };
        if finished || reader.is_inside() {
            let (bytes, too_long) = match reader.line() {
                Line::Whole(line) => (line.to_vec(), None),
                Line::TooLong { start, bytes } => (start.to_vec(), Some(bytes)),
            };
            if sender.send(Ok(Numbered { number: reader.number(), bytes, too_long })).is_err() {
                return;
            }
        }
        if !finished {
            return;
        }
    }
}

fn hand_over(line: &Numbered, typed: &mut u32, output: &TurnOutput) -> Result<(), Stopped> {
    let position = format!("stdin:{}", line.number);
    let bytes = line.bytes.trim_ascii();
    if let Some(length) = line.too_long {
        let reason = format!("the line has {length} bytes, more than {MAX_LINE_BYTES}");
        output.dead_beginning(&position, &reason, bytes);
        return Ok(());
    }
    if bytes.is_empty() || bytes.starts_with(b"{") {
        return output.line(bytes, &position, None);
    }
    match std::str::from_utf8(bytes) {
        Ok(question) => {
            *typed += 1;
            let record = TurnRecord {
                conversation_id: "stdin".into(),
                turn: *typed,
                speaker: Speaker::User,
                text: question.into(),
                collection: None,
                timestamp: None,
                extra: Map::new(),
            };
            output.send(SourcedTurn { record, position, history: None, place: None })
        }
        Err(error) => {
            let reason = format!("not UTF-8: invalid byte at offset {}", error.valid_up_to());
            output.dead_letter(&position, &reason, bytes);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Turns, turn};

    #[test]
    fn records_and_typed_questions() {
        let input = format!("What is it?\n\n  {}\n\u{fffd}ok\n{{bad\nAnd then?", turn("asked"));
        let mut bytes = input.into_bytes();
        bytes.extend(b"\n\xff\n");
        let turns = Turns::run(Stdin::reading(io::Cursor::new(bytes)), Mode::Follow);
        let first = turns.take();
        assert_eq!(
            (&*first.record.conversation_id, first.record.turn, &*first.record.text),
            ("stdin", 1, "What is it?")
        );
        assert_eq!(turns.next(), ("asked".to_owned(), "stdin:3".to_owned()));
        assert_eq!(turns.next().1, "stdin:4");
        let last = turns.take();
        assert_eq!((&*last.record.text, last.record.turn, &*last.position), ("And then?", 3, "stdin:6"));
        let dead = turns.wait();
        assert_eq!(dead.len(), 2, "{dead:?}");
        assert!(dead[0].starts_with("stdin:5: not a turn record"));
        assert_eq!(dead[1], "stdin:7: not UTF-8: invalid byte at offset 0");
    }

    #[test]
    fn stops_although_nothing_is_typed() {
        let (silent, writer) = io::pipe().unwrap();
        let turns = Turns::run(Stdin::reading(silent), Mode::Follow);
        assert!(matches!(turns.end(true), Err(ConnectorError::Stopped(_))));
        drop(writer);
    }
}
