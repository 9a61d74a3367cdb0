//! The journal: a file with one JSON line for each thing that happened. A run, a server and `turnflow review` may write it
//! at the same time: who writes holds a lock, and reads first what the others have written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnflow_engine::connector::{ConnectorError, Judgement, ReviewItem};

/// The form that this version writes.
const FORM: u32 = 1;

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line.
    Journal {
        /// The form of the file: 1.
        form: u32,
    },
    /// An answer is in the queue. It replaces an open one to the same turn.
    Item(Box<Queued>),
    /// A rule took an answer, but the queue was full.
    Left(Left),
    /// The question of a turn was deleted, and so its answers do not count any more.
    Gone {
        /// The key of the turn.
        key: Arc<str>,
    },
    /// People have judged answers: all of these at once.
    Judged(Vec<Judged>),
}

/// An answer that is queued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queued {
    /// The key of its turn.
    pub key: Arc<str>,
    /// A hash of what it says.
    pub says: String,
    /// The answer.
    pub item: ReviewItem,
}

/// An answer for which there was no room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Left {
    /// The key of its turn.
    pub key: Arc<str>,
    /// The epoch that was read.
    pub epoch: u64,
    /// The revision of the answer.
    pub revision: u32,
    /// The rules that took it.
    pub rules: Vec<Arc<str>>,
    /// When, in seconds since 1970.
    pub at: f64,
}

/// A verdict on an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The id of the answer.
    pub id: Arc<str>,
    /// What was said.
    pub judgement: Judgement,
}

/// Where a line is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// `None`: it is only read.
    file: Option<File>,
    reader: File,
    /// Bytes of whole lines that were read or written.
    read: u64,
    number: u64,
    has_warned: bool,
    /// Whether what was read is of another file.
    is_replaced: bool,
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConnectorError {
    let path = path.display().to_string();
    move |source| ConnectorError::Io { action, path, source }
}

/// While it lives, no other process writes.
#[must_use]
pub struct Alone(Option<File>);

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = file.unlock();
        }
    }
}

impl Journal {
    /// Opens or creates a journal.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, ConnectorError> {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(fault("create", directory))?;
        }
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(fault("open", path))?;
        Self::of(path, Some(file))
    }

    /// Opens a journal to read it.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn existing(path: &Path) -> Result<Self, ConnectorError> {
        Self::of(path, None)
    }

    fn of(path: &Path, file: Option<File>) -> Result<Self, ConnectorError> {
        let reader = File::open(path).map_err(fault("open", path))?;
        Ok(Self { path: path.to_owned(), file, reader, read: 0, number: 0, has_warned: false, is_replaced: false })
    }

    /// Waits until no other process writes.
    ///
    /// # Errors
    ///
    /// The operating system gives no further handle of the file.
    pub fn alone(&mut self) -> Result<Alone, ConnectorError> {
        self.reopen()?;
        let file = self.reader.try_clone().map_err(fault("open", &self.path))?;
        match file.lock() {
            Ok(()) => Ok(Alone(Some(file))),
            Err(error) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(%error, file = %self.path.display(),
                        "this file system does not support locks: do not use `turnflow review --verdicts` during a run");
                }
                Ok(Alone(None))
            }
        }
    }

    /// Goes on with the file that is at the path now: it may have been restored, or replaced by an editor.
    fn reopen(&mut self) -> Result<(), ConnectorError> {
        let place = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
        let own = self.reader.metadata().map_err(fault("read", &self.path))?;
        match fs::metadata(&self.path) {
            Ok(there) if place(&there) == place(&own) => return Ok(()),
            Ok(_) => {}
            // Who only reads waits for another one.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.file.is_none() => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fault("read", &self.path)(error)),
        }
        let new = match self.file.is_some() {
            true => Self::open(&self.path)?,
            false => Self::existing(&self.path)?,
        };
        tracing::warn!(file = %self.path.display(), "another file is at the path of the review queue, and is used from now on");
        (self.file, self.reader, self.is_replaced) = (new.file, new.reader, true);
        Ok(())
    }

    /// Gives the lines that are new to `line`, with their places; `None` if the file begins anew.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no journal.
    pub fn follow(&mut self, mut line: impl FnMut(Option<(Line, Place)>)) -> Result<(), ConnectorError> {
        self.reopen()?;
        let length = self.reader.metadata().map_err(fault("read", &self.path))?.len();
        if length == self.read && !self.is_replaced {
            return Ok(());
        }
        if length < self.read || std::mem::take(&mut self.is_replaced) {
            (self.read, self.number) = (0, 0);
            line(None);
        }
        self.reader.seek(SeekFrom::Start(self.read)).map_err(fault("read", &self.path))?;
        let mut reader = BufReader::with_capacity(1 << 17, &self.reader);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            reader.read_until(b'\n', &mut bytes).map_err(fault("read", &self.path))?;
            // What follows the last whole line is being written, or was when a process was killed.
            if bytes.last() != Some(&b'\n') {
                // Without a whole line, the file is new, or not ours.
                let first = serde_json::to_vec(&Line::Journal { form: FORM }).unwrap_or_default();
                return match self.number == 0 && !first.starts_with(&bytes) {
                    true => Err(ConnectorError::Unreadable {
                        reason: format!(
                            "{}: this is no review queue; move the file away to begin anew",
                            self.path.display()
                        ),
                    }),
                    false => Ok(()),
                };
            }
            let number = self.number + 1;
            let unreadable = |what: String| ConnectorError::Unreadable {
                reason: format!("{}:{number}: {what}; move the file away to begin anew", self.path.display()),
            };
            let parsed: Line = serde_json::from_slice(&bytes)
                .map_err(|error| unreadable(format!("this is no line of a review queue ({error})")))?;
            match &parsed {
                Line::Journal { form } if *form > FORM => {
                    return Err(unreadable(format!("a newer version of turnflow wrote this queue (form {form})")));
                }
                Line::Journal { .. } => {}
                _ if number == 1 => return Err(unreadable("this is no review queue".to_owned())),
                _ => {}
            }
            let place = Place { start: self.read, length: bytes.len() as u64 };
            (self.read, self.number) = (place.start + place.length, number);
            line(Some((parsed, place)));
        }
    }

    /// Where the next line will be.
    pub fn end(&self) -> u64 {
        self.read
    }

    /// Appends a line, and returns its place. Only while [`Journal::alone`], after [`Journal::follow`]; it is on the disk
    /// after [`Journal::sync`]. After an error comes [`Journal::cut`].
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append(&mut self, line: &Line) -> Result<Place, ConnectorError> {
        if self.read == 0 && !matches!(line, Line::Journal { .. }) {
            self.append(&Line::Journal { form: FORM })?;
        }
        let fault = |action| fault(action, &self.path);
        let Some(file) = &mut self.file else {
            return Err(fault("write")(io::ErrorKind::ReadOnlyFilesystem.into()));
        };
        // Nobody else writes: the rest of a line is from a process that was killed.
        let metadata = file.metadata().map_err(fault("read"))?;
        if metadata.is_file() && metadata.len() > self.read {
            file.set_len(self.read).map_err(fault("write"))?;
        }
        let mut bytes = serde_json::to_vec(line).map_err(io::Error::from).map_err(fault("write"))?;
        bytes.push(b'\n');
        file.write_all(&bytes).map_err(fault("write"))?;
        let place = Place { start: self.read, length: bytes.len() as u64 };
        (self.read, self.number) = (place.start + place.length, self.number + 1);
        Ok(place)
    }

    /// Begins a new file. Only while [`Journal::alone`], after [`Journal::follow`].
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn begin(&mut self) -> Result<(), ConnectorError> {
        match self.read {
            0 => self.append(&Line::Journal { form: FORM }).and_then(|_| self.sync()),
            _ => Ok(()),
        }
    }

    /// Waits until all lines are on the disk.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn sync(&mut self) -> Result<(), ConnectorError> {
        self.file.as_ref().map_or(Ok(()), |file| file.sync_data().map_err(fault("write", &self.path)))
    }

    /// Takes back what was written from here on. The next [`Journal::follow`] reads from the beginning.
    pub fn cut(&mut self, end: u64) {
        // If this fails, whole lines stay, and what is left of a part is cut off before the next write.
        let _ = self.file.as_ref().map(|file| file.set_len(end));
        (self.read, self.number) = (0, 0);
    }

    /// A line that was read or written before.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn line(&mut self, place: Place) -> Result<Line, ConnectorError> {
        let mut bytes = vec![0; usize::try_from(place.length).unwrap_or_default()];
        let read = self.reader.seek(SeekFrom::Start(place.start)).and_then(|_| self.reader.read_exact(&mut bytes));
        read.map_err(fault("read", &self.path))?;
        serde_json::from_slice(&bytes).map_err(io::Error::from).map_err(fault("read", &self.path))
    }
}

#[cfg(test)]
impl Journal {
    /// Writes to another file from now on.
    pub(crate) fn break_off(&mut self, path: &Path) {
        self.file = Some(OpenOptions::new().append(true).open(path).unwrap());
    }

    /// Writes to its own file again.
    pub(crate) fn mend(&mut self) {
        self.file = Some(OpenOptions::new().append(true).open(&self.path).unwrap());
    }
}
