//! The journal: what outlives a process. Its first line is all that was known when it was written; each further line is
//! one delivery, whole or not at all. When the lines have grown, all is written anew.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use turnflow_engine::append::replace;
use turnflow_engine::connector::ConnectorError;

use crate::observation::Observation;
use crate::saved::{Change, Saved};
use crate::watch::Watch;

/// The form that this version writes.
const FORM: u32 = 1;
/// Bytes of lines before all is written anew, at least.
const LEAST: u64 = 1 << 20;

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// All that is known.
    Saved {
        /// The form of the file: 1.
        form: u32,
        /// What is known.
        saved: Box<Saved>,
    },
    /// What happened at once.
    Batch {
        /// The present.
        now: f64,
        /// What happened to turns.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        observations: Vec<Observation>,
        /// What the rules made of it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changes: Vec<Change>,
    },
    /// The file of alerts has the records up to this one.
    Told {
        /// Its number.
        number: u32,
    },
}

/// The first line as it is written, without a copy of all that is known.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum First<'a> {
    Saved { form: u32, saved: &'a Saved },
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of the first line.
    first: u64,
    /// Bytes of the others.
    others: u64,
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConnectorError {
    let path = path.display().to_string();
    move |source| ConnectorError::Io { action, path, source }
}

impl Journal {
    /// What a journal has; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Option<Saved>, ConnectorError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault("open", path)(error)),
        };
        let (mut reader, mut bytes, mut number) = (BufReader::new(file), Vec::new(), 0_u64);
        let mut watch: Option<Watch> = None;
        loop {
            bytes.clear();
            reader.read_until(b'\n', &mut bytes).map_err(fault("read", path))?;
            // What follows the last whole line was written when the process was killed.
            if bytes.last() != Some(&b'\n') {
                return Ok(watch.map(|watch| watch.saved));
            }
            number += 1;
            let unreadable = |what: String| ConnectorError::Unreadable {
                reason: format!("{}:{number}: {what}; move the file away to begin anew", path.display()),
            };
            let line = serde_json::from_slice(&bytes)
                .map_err(|error| unreadable(format!("this is no line of a journal of alerts ({error})")))?;
            match (line, &mut watch) {
                (Line::Saved { form, .. }, _) if form > FORM => {
                    return Err(unreadable(format!("a newer version of turnflow wrote this journal (form {form})")));
                }
                (Line::Saved { saved, .. }, watch) => *watch = Some(Watch::new("", *saved, 0.0)),
                (_, None) => return Err(unreadable("this is no journal of alerts".to_owned())),
                (Line::Batch { now, observations, changes }, Some(watch)) => {
                    observations.into_iter().for_each(|one| watch.note(one));
                    watch.advance(now);
                    for change in changes {
                        watch.saved.set(&change.rule, change.state);
                        if let Some(record) = change.record {
                            watch.saved.made = record.turn;
                            watch.saved.outbox.push_back(record);
                        }
                    }
                }
                (Line::Told { number }, Some(watch)) => {
                    watch.saved.told = number;
                    watch.saved.outbox.retain(|record| record.turn > number);
                }
            }
        }
    }

    /// Writes a journal anew, with all that is known.
    ///
    /// # Errors
    ///
    /// It cannot be written; the former one stays.
    pub fn write(path: &Path, saved: &Saved) -> Result<Self, ConnectorError> {
        let line = First::Saved { form: FORM, saved };
        let mut bytes = serde_json::to_vec(&line).map_err(io::Error::from).map_err(fault("write", path))?;
        bytes.push(b'\n');
        replace(path, &bytes).map_err(fault("write", path))?;
        let file = OpenOptions::new().append(true).open(path).map_err(fault("open", path))?;
        Ok(Self { path: path.to_owned(), file, first: bytes.len() as u64, others: 0 })
    }

    /// Appends a line and waits until it is on the disk. After an error, the journal must be opened again.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append(&mut self, line: &Line) -> Result<(), ConnectorError> {
        let mut bytes = serde_json::to_vec(line).map_err(io::Error::from).map_err(fault("write", &self.path))?;
        bytes.push(b'\n');
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        written.map_err(fault("write", &self.path))?;
        self.others += bytes.len() as u64;
        Ok(())
    }

    /// Whether it has grown so much that it should be written anew.
    pub fn is_long(&self) -> bool {
        self.others > LEAST.max(2 * self.first)
    }
}

#[cfg(test)]
impl Journal {
    /// Writes to another file from now on.
    pub(crate) fn break_off(&mut self, path: &Path) {
        self.file = OpenOptions::new().append(true).open(path).unwrap();
    }
}
