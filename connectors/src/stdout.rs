//! `Stdout`: prints answers for people, with their passages, or as JSON.
//!
//! ```ron
//! Stdout(input: "final")
//! ```
//!
//! ```text
//! demo, turn 2
//! Retention is seven years.
//!   [1] policies/records.md — Records are kept for seven years after …
//! ```
//!
//! Documents and questions are untrusted, so control characters, which a terminal would interpret, are not printed.

use std::fmt::Write as _;
use std::io::{self, Write};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use turnflow_engine::component::{Building, Check, ComponentContext, Models, SinkConfig, SinkKind, SinkMode, config};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::{AnswerRecord, Status};

use crate::shape::{Bodies, BodyConfig, Shape, When};

/// Number of characters of a passage that are shown.
const FIRST_WORDS: usize = 80;

/// Fields of `Stdout`.
#[config]
pub struct StdoutConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// Format of the output: `Text` for people, or `Json` for programs. Default: `Text`.
    #[field(default)]
    pub format: Format,
    /// Which answers the sink gets: `Answered`, `Idk`, `Failed`, `Any([…])` of these, or `Jq("…")`, a program over the
    /// answer's record whose value is true. Default: all.
    pub when: Option<When>,
    /// What is printed in place of the answer: the values of a program over its record, `Jq("…")` or `JqFile("path")`, one
    /// on each line. A text has no quotes. Default: as `format` says.
    pub body: Option<BodyConfig>,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    pub mode: Option<SinkMode>,
}

/// Format of the output.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// The answer and its numbered passages.
    #[default]
    Text,
    /// The record as one JSON object on a line.
    Json,
}

impl StdoutConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: self.body.as_ref() }
    }

    /// Builds the sink, which prints to the standard output.
    ///
    /// # Errors
    ///
    /// The program of `body` cannot be read.
    pub fn sink(&self) -> Result<Stdout, ConnectorError> {
        Ok(Stdout { bodies: self.shape().bodies()?, ..Stdout::new(self.format, Box::new(io::stdout())) })
    }
}

/// Entry in the connector table.
pub const KIND: SinkKind = SinkKind::of::<StdoutConfig>("Stdout", "answers printed as text or JSON");

impl SinkConfig for StdoutConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.shape().validate(check);
    }

    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        self.shape().chosen(self.sink())
    }
}

/// Prints answers.
pub struct Stdout {
    format: Format,
    bodies: Bodies,
    out: Box<dyn Write + Send>,
    /// The delivery key of an answer of which only a part is printed, and the rest of it.
    unfinished: Option<(String, Vec<u8>)>,
}

impl Stdout {
    /// Prints to another output instead.
    pub fn new(format: Format, out: Box<dyn Write + Send>) -> Self {
        Self { format, bodies: Bodies::default(), out, unfinished: None }
    }
}

impl AnswerSink for Stdout {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        ready(delivery.answers().iter().try_for_each(|answer| {
            self.print(answer)?;
            delivery.took(1);
            Ok(())
        }))
        .boxed()
    }
}

impl Stdout {
    fn print(&mut self, answer: &AnswerRecord) -> Result<(), ConnectorError> {
        let line = match self.format {
            _ if !self.bodies.are_records() => {
                let lines = self.bodies.of(answer)?.into_iter().map(|made| plain(&made.plain()) + "\n");
                Ok(lines.collect::<String>().into_bytes())
            }
            Format::Text => Ok(text(answer).into_bytes()),
            Format::Json => serde_json::to_vec(answer).map_err(io::Error::from).map(|mut line| {
                line.push(b'\n');
                line
            }),
        };
        let key = AnswerRecord::delivery_key(&answer.key, answer.revision.into(), answer.retracted);
        let written = line.and_then(|line| self.write(&key, line));
        written.map_err(|source| match source.kind() {
            io::ErrorKind::BrokenPipe => ConnectorError::Unread { output: "the standard output" },
            _ => ConnectorError::Io { action: "write to", path: "stdout".to_owned(), source },
        })
    }

    /// Prints an answer, or the rest of it after an error.
    fn write(&mut self, key: &str, line: Vec<u8>) -> io::Result<()> {
        let mut rest = match self.unfinished.take() {
            Some((of, rest)) if of == key => rest,
            Some((_, mut rest)) => {
                rest.extend(line);
                rest
            }
            None => line,
        };
        while !rest.is_empty() {
            match self.out.write(&rest) {
                Ok(count @ 1..) => drop(rest.drain(..count)),
                Ok(0) => return self.unfinished_at(key, rest, io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.unfinished_at(key, rest, error),
            }
        }
        self.out.flush()
    }

    fn unfinished_at(&mut self, key: &str, rest: Vec<u8>, error: io::Error) -> io::Result<()> {
        self.unfinished = Some((key.to_owned(), rest));
        Err(error)
    }
}

/// The answer as text for people.
fn text(answer: &AnswerRecord) -> String {
    let mut out = format!("{}, turn {}", plain(&answer.conversation_id), answer.turn);
    if answer.revision > 0 {
        let _ = write!(out, ", revision {}", answer.revision);
    }
    if answer.retracted {
        out.push_str(" [withdrawn]\n\n");
        return out;
    }
    match answer.status {
        Status::Answered => {}
        Status::Idk => out.push_str(" [not in the documents]"),
        Status::Failed => {
            let reason = answer.error.as_deref().unwrap_or("no reason given");
            let _ = write!(out, " [failed: {}]", plain(reason));
        }
    }
    out.push('\n');
    if !answer.answer.is_empty() {
        out.push_str(&plain(&answer.answer));
        out.push('\n');
    }
    for (number, hit) in answer.hits.iter().enumerate() {
        let _ = writeln!(out, "  [{}] {} — {}", number + 1, plain(&hit.document), first_words(&plain(&hit.text)));
    }
    out.push('\n');
    out
}

/// Removes control characters except line ends and tabs, which a terminal would interpret.
pub fn plain(text: &str) -> String {
    text.chars().filter(|character| !character.is_control() || matches!(character, '\n' | '\t')).collect()
}

/// The start of a passage on one line, cut between words.
fn first_words(text: &str) -> String {
    let mut out = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let more = word.chars().count() + usize::from(length > 0);
        if length + more > FIRST_WORDS {
            // A first word that is too long by itself is cut.
            if length == 0 {
                out.extend(word.chars().take(FIRST_WORDS));
            } else {
                out.push(' ');
            }
            out.push('…');
            return out;
        }
        if length > 0 {
            out.push(' ');
        }
        out.push_str(word);
        length += more;
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing::answer;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);
    impl Write for Shared {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(buffer)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printed(format: Format, answer: &AnswerRecord) -> String {
        let out = Shared::default();
        Stdout::new(format, Box::new(out.clone())).print(answer).unwrap();
        String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn for_people() {
        let mut record = answer();
        assert_eq!(
            printed(Format::Text, &record),
            "c, turn 2\nSeven years.\n  [1] a.md — Records are kept. For seven years.\n\n"
        );
        record.status = Status::Idk;
        record.hits.clear();
        record.answer = "I do not\u{1b}[31m know.".into();
        assert_eq!(printed(Format::Text, &record), "c, turn 2 [not in the documents]\nI do not[31m know.\n\n");
        record.status = Status::Failed;
        record.answer = "".into();
        record.error = Some("no model".to_owned());
        record.revision = 1;
        assert_eq!(printed(Format::Text, &record), "c, turn 2, revision 1 [failed: no model]\n\n");
    }

    #[test]
    fn for_programs() {
        let line = printed(Format::Json, &answer());
        assert_eq!(serde_json::from_str::<AnswerRecord>(&line).unwrap(), answer());
        assert!(line.ends_with("}\n"));
    }

    #[test]
    fn passages_are_cut_between_words() {
        assert_eq!(first_words(&"word ".repeat(17)), format!("{}…", "word ".repeat(16)));
        assert_eq!(first_words(&"x".repeat(100)), format!("{}…", "x".repeat(80)));
        assert_eq!(first_words("  "), "");
    }

    #[test]
    fn a_closed_pipe_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let error = Stdout::new(Format::Json, Box::new(writer)).print(&answer()).unwrap_err();
        assert!(matches!(error, ConnectorError::Unread { .. }), "{error}");
    }

    /// Writes so many bytes, and then fails once.
    struct Full(Shared, Option<usize>);
    impl Write for Full {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            match self.1.as_mut() {
                Some(0) => {
                    self.1 = None;
                    Err(io::ErrorKind::StorageFull.into())
                }
                Some(left) => {
                    let count = buffer.len().min(*left);
                    *left -= count;
                    self.0.write(&buffer[..count])
                }
                None => self.0.write(buffer),
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_that_was_cut_off_is_continued() {
        let out = Shared::default();
        let mut sink = Stdout::new(Format::Json, Box::new(Full(out.clone(), Some(20))));
        assert!(sink.print(&answer()).is_err());
        sink.print(&answer()).unwrap();
        sink.print(&AnswerRecord { revision: 1, ..answer() }).unwrap();
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<AnswerRecord> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [answer(), AnswerRecord { revision: 1, ..answer() }]);
    }

    #[test]
    fn formats_are_named() {
        let config: StdoutConfig = turnflow_engine::spec::from_str("(input: \"a\", format: Json)").unwrap();
        assert_eq!(config.format, Format::Json);
        assert!(turnflow_engine::spec::from_str::<StdoutConfig>("(input: \"a\", fmt: Json)").is_err());
    }
}
