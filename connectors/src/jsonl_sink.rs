//! `JsonLinesSink`: answers as lines of a file, one JSON object each.
//!
//! ```ron
//! JsonLinesSink(input: "final", path: "answers.jsonl", append: true)
//! ```
//!
//! A line is handed to the operating system in one write. If that fails halfway (a full
//! disk), the file is cut back to its former length, so that trying again writes no torn
//! line; a file that was left with an unfinished line is gone on with on a new one.
//!
//! ```
//! # use turnflow_connectors::jsonl_sink::JsonLinesSinkConfig;
//! # let ron = r#"
//! (input: "answer", path: "answers.jsonl", append: true)
//! # "#;
//! # let config: JsonLinesSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.input, "answer");
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::Deserialize;
use turnflow_engine::component::{Check, SinkConfig, SinkKind};
use turnflow_engine::connector::{AnswerSink, ConnectorError};
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::spec::{FilePath, from_tree};

use crate::jsonl_corpus::directory_of;

/// The node's fields.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonLinesSinkConfig {
    /// The node whose answers are written.
    pub input: String,
    /// The file; relative to the pipeline file. It and its directory are made if need be.
    pub path: FilePath,
    /// Whether to go on with a file that is there, or to begin it anew. Default: true.
    #[serde(default = "yes")]
    pub append: bool,
}

fn yes() -> bool {
    true
}

impl JsonLinesSinkConfig {
    /// Opens the file; with `append: false` this empties it.
    pub fn sink(&self, base: &Path) -> Result<JsonLinesSink, ConnectorError> {
        let path = base.join(&self.path.path);
        let name = path.display().to_string();
        match open(&path, self.append) {
            Ok((file, torn)) => Ok(JsonLinesSink { name, lines: Lines { target: file, torn } }),
            Err(source) => Err(ConnectorError::Io { action: "open", path: name, source }),
        }
    }
}

/// The table's entry.
pub const KIND: SinkKind = SinkKind {
    name: "JsonLinesSink",
    summary: "one line an answer, in a file",
    parse: |tree, sources| Ok(Box::new(from_tree::<JsonLinesSinkConfig>(tree, sources)?)),
};

impl SinkConfig for JsonLinesSinkConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.path.path.is_dir() {
            check.error("no-such-path", "path", format!("`{}` is a directory, not a file", self.path.written));
        }
    }

    fn explain(&self) -> String {
        format!("path: {:?}, append: {}", self.path.written, self.append)
    }

    fn build(&self) -> Result<Box<dyn AnswerSink>, ConnectorError> {
        Ok(Box::new(self.sink(Path::new(""))?))
    }
}

/// Gives the file, and whether it ends within a line.
fn open(path: &Path, append: bool) -> io::Result<(File, bool)> {
    fs::create_dir_all(directory_of(path))?;
    if !append {
        File::create(path)?;
    }
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let metadata = file.metadata()?;
    let mut torn = false;
    if metadata.is_file() && metadata.len() > 0 {
        let mut reader = File::open(path)?;
        let mut last = [b'\n'];
        reader.seek(SeekFrom::End(-1))?;
        reader.read_exact(&mut last)?;
        torn = last != *b"\n";
    }
    Ok((file, torn))
}

/// Writes answers to a file.
pub struct JsonLinesSink {
    name: String,
    lines: Lines<File>,
}

impl AnswerSink for JsonLinesSink {
    fn deliver(&mut self, answer: &AnswerRecord) -> Result<(), ConnectorError> {
        let written = serde_json::to_vec(answer).map_err(io::Error::from).and_then(|line| self.lines.append(line));
        written.map_err(|source| ConnectorError::Io { action: "append to", path: self.name.clone(), source })
    }
}

/// What lines are appended to.
trait Target: Write {
    /// Its length, if it is something that can be cut.
    fn length(&self) -> io::Result<Option<u64>>;
    /// Cuts it.
    fn cut(&self, length: u64) -> io::Result<()>;
}

impl Target for File {
    fn length(&self) -> io::Result<Option<u64>> {
        let metadata = self.metadata()?;
        Ok(metadata.is_file().then_some(metadata.len()))
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

struct Lines<T> {
    target: T,
    /// The target ends within a line.
    torn: bool,
}

impl<T: Target> Lines<T> {
    fn append(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        if self.torn {
            line.insert(0, b'\n');
        }
        let before = self.target.length()?;
        let mut written = 0;
        while written < line.len() {
            match self.target.write(&line[written..]) {
                Ok(0) => return Err(self.roll_back(before, written, ErrorKind::WriteZero.into())),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.roll_back(before, written, error)),
            }
        }
        self.torn = false;
        Ok(())
    }

    /// Takes back what was written of a line; gives back the error.
    fn roll_back(&mut self, before: Option<u64>, written: usize, error: io::Error) -> io::Error {
        if written == 0 {
            return error;
        }
        // Only our own bytes are cut, should someone else append to the same file.
        let ours = |before: &u64| self.target.length().is_ok_and(|now| now == Some(before + written as u64));
        let cut = before.filter(ours).is_some_and(|before| self.target.cut(before).is_ok());
        if !cut {
            self.torn = true;
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::testing::answer;

    fn sink(base: &Path, append: bool) -> JsonLinesSink {
        let ron = format!("(input: \"a\", path: \"deep/er/out.jsonl\", append: {append})");
        turnflow_engine::spec::from_str::<JsonLinesSinkConfig>(&ron).unwrap().sink(base).unwrap()
    }

    #[test]
    fn whole_lines_after_whatever_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/out.jsonl");
        sink(directory.path(), true).deliver(&answer()).unwrap();
        let line = serde_json::to_string(&answer()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{line}\n"));
        fs::write(&path, "{\"torn").unwrap();
        let mut sink_again = sink(directory.path(), true);
        sink_again.deliver(&answer()).unwrap();
        sink_again.deliver(&answer()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{{\"torn\n{line}\n{line}\n"));
        drop(sink(directory.path(), false));
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let config: JsonLinesSinkConfig = turnflow_engine::spec::from_str("(input: \"a\", path: \"x\")").unwrap();
        fs::create_dir(directory.path().join("x")).unwrap();
        let error = config.sink(directory.path()).err().unwrap().to_string();
        assert!(error.starts_with("cannot open `") && error.contains("/x`"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_with_the_path() {
        let config: JsonLinesSinkConfig =
            turnflow_engine::spec::from_str("(input: \"a\", path: \"/dev/full\")").unwrap();
        let error = config.sink(Path::new("")).unwrap().deliver(&answer()).unwrap_err().to_string();
        assert!(error.starts_with("cannot append to `/dev/full`: "), "{error}");
    }

    /// Has room for so many bytes, and may refuse to be cut.
    struct Disk {
        bytes: RefCell<Vec<u8>>,
        room: usize,
        cuts: bool,
    }

    impl Write for Disk {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            let bytes = self.bytes.get_mut();
            let fits = buffer.len().min(self.room - bytes.len());
            bytes.extend(&buffer[..fits]);
            if fits == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(fits) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Target for Disk {
        fn length(&self) -> io::Result<Option<u64>> {
            Ok(Some(self.bytes.borrow().len() as u64))
        }
        fn cut(&self, length: u64) -> io::Result<()> {
            if !self.cuts {
                return Err(ErrorKind::PermissionDenied.into());
            }
            self.bytes.borrow_mut().truncate(length as usize);
            Ok(())
        }
    }

    #[test]
    fn a_line_that_does_not_fit_is_taken_back_and_can_be_tried_again() {
        for (cuts, expected) in [(true, "one\nsecond\n"), (false, "one\nsec\nsecond\n")] {
            let target = Disk { bytes: RefCell::default(), room: 7, cuts };
            let mut lines = Lines { target, torn: false };
            lines.append(b"one".to_vec()).unwrap();
            assert_eq!(lines.append(b"second".to_vec()).unwrap_err().kind(), ErrorKind::StorageFull);
            lines.target.room = 100;
            lines.append(b"second".to_vec()).unwrap();
            assert_eq!(lines.target.bytes.into_inner(), expected.as_bytes());
        }
    }
}
