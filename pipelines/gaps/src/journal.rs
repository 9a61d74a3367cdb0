//! The journal: a file with one JSON line for each thing that happened. It is all that is kept, and whoever reads it has
//! the groups, also while a run writes it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnflow_engine::connector::ConnectorError;

use crate::groups::GroupId;
use crate::vector::Codes;

/// How a question was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// With an answer.
    Answered,
    /// The answer says that it does not know.
    Declined,
    /// The answer's confidence is below the bound.
    Weak,
    /// The passages do not bear the answer out.
    Unsupported,
    /// Its user said that the answer does not help.
    Unhelpful,
    /// The question was deleted, or replaced by another version.
    Withdrawn,
}

impl Outcome {
    /// Whether the question lacks an answer.
    pub fn is_gap(self) -> bool {
        !matches!(self, Self::Answered | Self::Withdrawn)
    }
}

/// A passage near a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Near {
    /// Its id.
    pub passage: Arc<str>,
    /// Its document.
    pub document: Arc<str>,
    /// Its cosine with the question, if it was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likeness: Option<f32>,
}

/// A question that lacks an answer for the first time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The key of its turn.
    pub key: Arc<str>,
    /// The revision of the answer.
    pub revision: u32,
    /// The conversation.
    pub conversation: Arc<str>,
    /// The number of its turn.
    pub turn: u32,
    /// Who asked, if the turn's record says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<Arc<str>>,
    /// When, in seconds since 1970.
    pub at: f64,
    /// The question, as it was searched.
    pub text: Arc<str>,
    /// What became of it.
    pub outcome: Outcome,
    /// The answer.
    pub answer: Arc<str>,
    /// The epoch that was read.
    pub epoch: u64,
    /// The passages that were found, the nearest first.
    pub near: Vec<Near>,
    /// The documents that made the difference, if it had an answer before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<Arc<str>>,
    /// The answer that it had before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Arc<str>>,
    /// Its group.
    pub group: GroupId,
    /// Its vector.
    pub vector: Codes,
}

/// A question of a group that is answered again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Again {
    /// The key of its turn.
    pub key: Arc<str>,
    /// The revision of the answer.
    pub revision: u32,
    /// When, in seconds since 1970.
    pub at: f64,
    /// What became of it.
    pub outcome: Outcome,
    /// The answer.
    pub answer: Arc<str>,
    /// The epoch that was read.
    pub epoch: u64,
    /// The documents that made the difference: whose passages came, went or changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<Arc<str>>,
    /// The passages that were found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<Near>,
}

/// A question with an answer: what kinds of gaps are told by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its vector.
    pub vector: Codes,
    /// Its cosine with the nearest passage.
    pub likeness: f32,
}

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line: the form of the file, and the model of the vectors.
    Journal {
        /// The form: 1.
        form: u32,
        /// The fingerprint of the model.
        model: Arc<str>,
    },
    /// A turn was answered.
    Fine {
        /// Its key.
        key: Arc<str>,
        /// The revision.
        revision: u32,
        /// The epoch that was read.
        epoch: u64,
        /// When, in seconds since 1970.
        at: f64,
    },
    /// A question lacks an answer for the first time.
    Asked(Box<Asked>),
    /// A question is answered again.
    Again(Box<Again>),
    /// A group has joined another one.
    Merged {
        /// The group that is gone.
        from: GroupId,
        /// The one that has its members.
        into: GroupId,
    },
    /// A question is in another group.
    Moved {
        /// Its place in the order of the journal, from 0.
        question: usize,
        /// Its group.
        into: GroupId,
    },
    /// A question with an answer.
    Sample(Box<Sample>),
    /// What an epoch did was told, up to here.
    Told {
        /// The number of the record in the file of edits, from 1.
        number: u32,
    },
    /// A person has put a gap aside, or taken it back.
    Dismissed {
        /// The group.
        group: GroupId,
        /// Why; `None`: it counts again.
        reason: Option<String>,
        /// When, in seconds since 1970.
        at: f64,
    },
}

/// The form that this version writes.
pub const FORM: u32 = 1;

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConnectorError {
    let path = path.display().to_string();
    move |source| ConnectorError::Io { action, path, source }
}

/// What the first line of a journal begins with.
const BEGIN: &[u8] = b"{\"journal\":";

/// Refuses a file without a whole line that is not the beginning of a journal: it would be overwritten.
fn check_begin(mut file: &File, path: &Path) -> Result<(), ConnectorError> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut begin = Vec::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(BEGIN.len() as u64).read_to_end(&mut begin));
    read.map_err(fault("read", path))?;
    match BEGIN.starts_with(&begin) {
        true => Ok(()),
        false => Err(ConnectorError::Unreadable {
            reason: format!("{}: this is no journal of gaps; move the file away to begin anew", path.display()),
        }),
    }
}

impl Journal {
    /// Opens or creates a journal, and gives its lines to `line`. What follows the last whole line is removed: a process
    /// was killed while it wrote.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written, or is no journal.
    pub fn open(path: &Path, line: impl FnMut(Line)) -> Result<Self, ConnectorError> {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(fault("create", directory))?;
        }
        let open = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = open.map_err(fault("open", path))?;
        let length = scan(&file, path, line)?;
        if length == 0 {
            check_begin(&file, path)?;
        }
        file.set_len(length).map_err(fault("write", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Gives the lines of a journal to `line`, if the file exists.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no journal.
    pub fn read(path: &Path, line: impl FnMut(Line)) -> Result<bool, ConnectorError> {
        match File::open(path) {
            Ok(file) => scan(&file, path, line).map(|_| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(fault("open", path)(error)),
        }
    }

    /// Appends a line to a journal that a run may be writing.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or its last line is not whole.
    pub fn note(path: &Path, line: &Line) -> Result<(), ConnectorError> {
        let mut file = OpenOptions::new().read(true).append(true).open(path).map_err(fault("open", path))?;
        let is_whole = |mut file: &File| -> io::Result<bool> {
            let mut last = [0];
            io::Seek::seek(&mut file, io::SeekFrom::End(-1))?;
            io::Read::read_exact(&mut file, &mut last)?;
            Ok(last == *b"\n")
        };
        // A run may be within a line.
        let mut tries = 20;
        while !is_whole(&file).map_err(fault("read", path))? {
            tries -= 1;
            if tries == 0 {
                let reason = format!(
                    "the last line of `{}` is not whole: start the pipeline once, then try again",
                    path.display()
                );
                return Err(ConnectorError::Unreadable { reason });
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let mut bytes = serde_json::to_vec(line).map_err(io::Error::from).map_err(fault("write", path))?;
        bytes.push(b'\n');
        file.write_all(&bytes).and_then(|()| file.sync_data()).map_err(fault("write", path))
    }

    /// Appends lines and waits until they are on the disk. After an error, none of them is in the file.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append(&mut self, lines: &[Line]) -> Result<(), ConnectorError> {
        let mut bytes = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut bytes, line).map_err(io::Error::from).map_err(fault("write", &self.path))?;
            bytes.push(b'\n');
        }
        let before = self.file.metadata().map_err(fault("read", &self.path))?.len();
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        written.map_err(|error| {
            // If this fails too, what is left of a part is cut off when the journal is opened again.
            let _ = self.file.set_len(before);
            fault("write", &self.path)(error)
        })
    }
}

#[cfg(test)]
impl Journal {
    /// Writes to another file from now on.
    pub(crate) fn break_off(&mut self, path: &Path) {
        self.file = OpenOptions::new().append(true).open(path).unwrap();
    }
}

/// Reads the whole lines of a file; returns their length in bytes.
fn scan(file: &File, path: &Path, mut line: impl FnMut(Line)) -> Result<u64, ConnectorError> {
    let mut reader = BufReader::with_capacity(1 << 18, file);
    let (mut length, mut number, mut bytes) = (0, 0_u64, Vec::new());
    loop {
        bytes.clear();
        let read = reader.read_until(b'\n', &mut bytes).map_err(fault("read", path))?;
        if read == 0 || bytes.last() != Some(&b'\n') {
            return Ok(length);
        }
        number += 1;
        let unreadable = |what: String| ConnectorError::Unreadable {
            reason: format!("{}:{number}: {what}; move the file away to begin anew", path.display()),
        };
        let parsed: Line = serde_json::from_slice(&bytes)
            .map_err(|error| unreadable(format!("this is no line of a journal of gaps ({error})")))?;
        match &parsed {
            Line::Journal { form, .. } if *form > FORM => {
                return Err(unreadable(format!("a newer version of turnflow wrote this journal (form {form})")));
            }
            Line::Journal { .. } => {}
            _ if number == 1 => return Err(unreadable("this is no journal of gaps".to_owned())),
            _ => {}
        }
        line(parsed);
        length += read as u64;
    }
}
