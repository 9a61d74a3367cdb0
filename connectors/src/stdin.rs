//! `Stdin`: turns that are typed or piped in, one on each line.
//!
//! ```ron
//! Stdin()
//! ```
//!
//! A line that starts with `{` is a turn record. Any other line is a question as a person types it, and becomes the
//! next user turn of the conversation `stdin`. Blank lines are skipped. The source ends with its input, in both modes.
//! Positions are `stdin:line`.
//!
//! Reading blocks and cannot be interrupted, so it runs on its own thread. When the engine stops, that thread ends with
//! the input or the process. The next source receives the lines that the thread has read ahead, so a reload that
//! renames or moves the node loses no line.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use serde_json::Map;
use turnflow_engine::component::{Building, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, SourcedTurn, Stopped, TurnOutput, TurnSource};
use turnflow_engine::panics::caught;
use turnflow_engine::record::{Speaker, TurnRecord};

use crate::lines::{Line, LineReader};

/// Maximum length of a line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Maximum number of lines that are read ahead.
const AHEAD: usize = 16;

/// `Stdin` has no fields.
#[config]
#[derive(Default)]
pub struct StdinConfig {}

impl StdinConfig {
    /// Builds the source. It reads nothing until it runs.
    pub fn source(&self) -> Stdin {
        Stdin { input: STANDARD.clone() }
    }
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<StdinConfig>("Stdin", "lines from standard input: turn records or plain questions");

impl TurnSourceConfig for StdinConfig {
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn TurnSource> {
        built(Ok(Box::new(self.source())))
    }
}

/// Reads turns from the standard input.
pub struct Stdin {
    input: Arc<Input>,
}

impl Stdin {
    /// Reads from another input instead.
    pub fn reading(input: impl Read + Send + 'static) -> Self {
        Self { input: Arc::new(Input::new(input)) }
    }
}

/// An input together with the lines that were read ahead, so that the next source that reads from it misses nothing.
struct Input {
    /// Set until the thread takes it.
    reader: Mutex<Option<Unread>>,
    lines: Receiver<io::Result<Numbered>>,
    /// A line that could not be delivered.
    left: Mutex<Option<Numbered>>,
    /// Number of questions so far.
    typed: AtomicU32,
}

type Unread = (Box<dyn Read + Send>, Sender<io::Result<Numbered>>);

/// The standard input of the process. Nodes that a reload renames continue to read from it.
static STANDARD: LazyLock<Arc<Input>> = LazyLock::new(|| Arc::new(Input::new(io::stdin())));

impl Input {
    fn new(input: impl Read + Send + 'static) -> Self {
        let (sender, lines) = crossbeam_channel::bounded(AHEAD);
        let reader = Mutex::new(Some((Box::new(input) as Box<dyn Read + Send>, sender)));
        Self { reader, lines, left: Mutex::default(), typed: AtomicU32::new(0) }
    }
}

impl TurnSource for Stdin {
    fn run(self: Box<Self>, _: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let fault = |source| ConnectorError::Io { action: "read", path: "stdin".to_owned(), source };
        let input = &*self.input;
        // Typed lines cannot be read again after a restart.
        output.caught_up();
        if let Some((reader, sender)) = input.reader.lock().take() {
            let reader = LineReader::new(reader, MAX_LINE_BYTES);
            thread::Builder::new()
                .name("stdin".to_owned())
                .spawn(move || {
                    // Without this error, a panic would look like the end of the input.
                    if let Err(panic) = caught(|| read(reader, &sender)) {
                        let _ = sender.send(Err(io::Error::other(panic)));
                    }
                })
                .map_err(fault)?;
        }
        loop {
            let left = input.left.lock().take();
            let line = match left {
                Some(line) => line,
                None => crossbeam_channel::select! {
                    recv(input.lines) -> line => match line {
                        Ok(Ok(line)) => line,
                        Ok(Err(error)) => return Err(fault(error)),
                        Err(_) => return Ok(()),
                    },
                    recv(output.stop().receiver()) -> _ => return Err(Stopped.into()),
                },
            };
            if let Err(stopped) = hand_over(&line, &input.typed, &output) {
                *input.left.lock() = Some(line);
                return Err(stopped.into());
            }
        }
    }
}

/// A line that was read.
struct Numbered {
    number: u64,
    bytes: Vec<u8>,
    /// The line's length in bytes, if it is over the limit.
    too_long: Option<u64>,
}

/// Reads to the end of the input, or until no source receives.
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

fn hand_over(line: &Numbered, typed: &AtomicU32, output: &TurnOutput) -> Result<(), Stopped> {
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
            let turn = typed.load(Ordering::Relaxed) + 1;
            let record = TurnRecord {
                conversation_id: "stdin".into(),
                turn,
                speaker: Speaker::User,
                text: question.into(),
                collection: None,
                timestamp: None,
                extra: Map::new(),
            };
            output.send(SourcedTurn { record, position, history: None, place: None })?;
            typed.store(turn, Ordering::Relaxed);
            Ok(())
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
    fn one_that_reads_on_after_another_misses_nothing() {
        let input = Arc::new(Input::new(io::Cursor::new("one\ntwo\nthree\n")));
        let (sender, turns) = crossbeam_channel::bounded(1);
        let (handle, stop) = turnflow_engine::connector::Stop::new();
        let letters = turnflow_engine::dead_letter::DeadLetters::counted();
        let output = TurnOutput::new(sender, Arc::new(|| {}), letters, "turns".into(), stop);
        let first = Stdin { input: input.clone() };
        let thread = thread::spawn(move || Box::new(first).run(Mode::Follow, output));
        // The second line is being delivered when the source is stopped.
        while turns.is_empty() {
            thread::yield_now();
        }
        drop(handle);
        assert!(thread.join().unwrap().is_err());
        let mut all: Vec<(u32, String)> =
            turns.try_iter().map(|arrived| (arrived.turn.record.turn, arrived.turn.record.text.to_string())).collect();
        let second = Turns::run(Stdin { input }, Mode::Follow);
        while all.len() < 3 {
            let turn = second.take();
            all.push((turn.record.turn, turn.record.text.to_string()));
        }
        let expected = [(1, "one"), (2, "two"), (3, "three")];
        assert_eq!(all, expected.map(|(turn, text)| (turn, text.to_owned())));
    }

    #[test]
    fn stops_although_nothing_is_typed() {
        let (silent, writer) = io::pipe().unwrap();
        let turns = Turns::run(Stdin::reading(silent), Mode::Follow);
        assert!(matches!(turns.end(true), Err(ConnectorError::Stopped(_))));
        drop(writer);
    }
}
