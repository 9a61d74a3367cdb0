//! Dead letters: records that could not be processed, with the reason, one JSON object a line.
//!
//! A letter keeps the record whole, up to [`KEPT_BYTES`], so that it can be tried again. A
//! process that starts with a file of letters reads the same bad records again; what the file
//! says already is not said twice.
//!
//! What cannot be written (a full disk) waits, up to a bound, and is tried again before the next
//! letter, at each checkpoint, and at the end.

mod outbox;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use self::outbox::Outbox;
use crate::append::sync_directory;

/// A dead letter keeps at most this many bytes of the record.
pub const KEPT_BYTES: usize = 1 << 20;
/// So many letters of earlier processes are remembered, the last ones.
const REMEMBERED: usize = 100_000;
/// How every letter begins.
const BEGINNING: &[u8] = b"{\"source\":";
/// No letter is longer: a byte of the record takes at most 6 in JSON, and 2 in digits.
const LONGEST: u64 = 10 * KEPT_BYTES as u64;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The corpus or the node that read it.
    pub source: String,
    /// Where it stood: a file, or a file and a line.
    pub position: String,
    /// Why it could not be processed.
    pub reason: String,
    /// The record, as text.
    pub record: String,
    /// Only the beginning of the record was kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The record's bytes in hexadecimal digits, where they are no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_hex: Option<String>,
    /// Fields that somebody has added.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl DeadLetter {
    /// Of a record. Bytes that are not UTF-8 are shown as U+FFFD, and kept as digits besides;
    /// of a long record the beginning is kept.
    pub fn new(source: &str, position: &str, reason: &str, record: &[u8]) -> Self {
        let mut kept = &record[..record.len().min(KEPT_BYTES)];
        if let Err(error) = std::str::from_utf8(kept)
            && error.error_len().is_none()
            && kept.len() < record.len()
        {
            // The cut went through a character.
            kept = &kept[..error.valid_up_to()];
        }
        let is_text = std::str::from_utf8(kept).is_ok();
        Self {
            source: source.to_owned(),
            position: position.to_owned(),
            reason: reason.to_owned(),
            record: String::from_utf8_lossy(kept).into_owned(),
            truncated: kept.len() < record.len(),
            record_hex: (!is_text).then(|| to_hex(kept)),
            extra: Map::new(),
        }
    }

    /// The record as it was read.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = self.record_hex.as_deref().and_then(from_hex);
        bytes.unwrap_or_else(|| self.record.as_bytes().to_vec())
    }
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| Some((value(pair[0])? << 4) | value(*pair.get(1)?)?)).collect()
}

/// Writes dead letters; cheap to clone, shared by every source and the workers.
#[derive(Clone)]
pub struct DeadLetters {
    file: Arc<Mutex<Option<Letters>>>,
    count: Arc<AtomicU64>,
}

impl DeadLetters {
    /// Appends to the file at `path`, which is made if it is not there. A letter that a crash
    /// has cut off is taken away.
    pub fn open(path: &Path) -> io::Result<Self> {
        let letters = Self::counted();
        letters.go_on(Onward::To(Letters::open(path)?));
        Ok(letters)
    }

    /// Counts only; for runs that have nowhere to write.
    pub fn counted() -> Self {
        Self { file: Arc::default(), count: Arc::default() }
    }

    /// What it takes to have them go there, or nowhere; the file is opened if it is another.
    pub fn toward(&self, path: Option<&Path>) -> io::Result<Onward> {
        let Some(path) = path else { return Ok(Onward::Nowhere) };
        if self.file.lock().as_ref().is_some_and(|letters| letters.path == path) {
            return Ok(Onward::AsBefore);
        }
        Letters::open(path).map(Onward::To)
    }

    /// From now on they go there, those that wait included.
    pub fn go_on(&self, onward: Onward) {
        let mut file = self.file.lock();
        match onward {
            Onward::AsBefore => {}
            Onward::To(mut letters) => {
                if let Some(before) = &mut *file {
                    // Where they belong, if it takes them after all.
                    let _ = before.outbox.settle(&before.path);
                    letters.outbox.waiting.append(&mut before.outbox.waiting);
                    let _ = letters.outbox.settle(&letters.path);
                }
                *file = Some(letters);
            }
            Onward::Nowhere => *file = None,
        }
    }

    /// Tries those again that could not be written; returns when all are on the disk.
    ///
    /// # Errors
    ///
    /// Some still wait, or the disk failed.
    pub fn settle(&self) -> io::Result<()> {
        let (file, path) = {
            let mut letters = self.file.lock();
            let Some(letters) = &mut *letters else { return Ok(()) };
            letters.outbox.settle(&letters.path)?;
            if !std::mem::take(&mut letters.unsynced) {
                return Ok(());
            }
            (letters.outbox.lines.target.try_clone()?, letters.path.clone())
        };
        // Workers may write a letter while the disk is waited for.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = file.sync_data().and_then(|()| sync_directory(directory));
        if synced.is_err()
            && let Some(letters) = &mut *self.file.lock()
        {
            letters.unsynced = true;
        }
        synced
    }

    /// How many there were in this process, those included that were told of before.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Writes one, unless an earlier process has written the same.
    pub fn write(&self, source: &str, position: &str, reason: &str, record: &[u8]) {
        self.letter(DeadLetter::new(source, position, reason, record));
    }

    /// As [`DeadLetters::write`], of a record of which only the beginning is known.
    pub fn write_beginning(&self, source: &str, position: &str, reason: &str, beginning: &[u8]) {
        self.letter(DeadLetter { truncated: true, ..DeadLetter::new(source, position, reason, beginning) });
    }

    fn letter(&self, letter: DeadLetter) {
        let DeadLetter { source, position, reason, .. } = &letter;
        self.count.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(source, position, reason, "dead letter");
        let mut file = self.file.lock();
        let Some(file) = &mut *file else { return };
        let written = serde_json::to_vec(&letter).map_err(io::Error::from).and_then(|line| file.write(line));
        if let Err(error) = written {
            let waiting = file.outbox.waiting.len();
            tracing::error!(%error, source, position, reason, waiting,
                "a dead letter could not be written; it is tried again");
        }
    }
}

type Hash = [u8; 16];

fn short(hash: blake3::Hash) -> Hash {
    let mut short = [0; 16];
    short.copy_from_slice(&hash.as_bytes()[..16]);
    short
}

/// The lines of earlier processes, the last ones, each as often as it is there.
#[derive(Default)]
struct Told {
    order: VecDeque<Hash>,
    counts: HashMap<Hash, u32>,
}

impl Told {
    fn add(&mut self, line: Hash) {
        self.order.push_back(line);
        *self.counts.entry(line).or_default() += 1;
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.take(oldest);
        }
    }

    /// Whether the line was there once more than it has been taken.
    fn take(&mut self, line: Hash) -> bool {
        let Some(count) = self.counts.get_mut(&line) else { return false };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&line);
        }
        true
    }
}

/// After a loss of power there may be zeros where the rest of a line was to be.
fn without_zeros(line: &[u8]) -> &[u8] {
    &line[..line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

/// Where dead letters go from a moment on.
pub enum Onward {
    /// Where they went.
    AsBefore,
    /// To this file.
    To(Letters),
    /// They are only counted.
    Nowhere,
}

/// A file of dead letters, open for more.
pub struct Letters {
    path: PathBuf,
    outbox: Outbox<File>,
    told: Told,
    /// What was written last may not be on the disk.
    unsynced: bool,
    is_file: bool,
}

impl Letters {
    /// Opens the file, which is made if it is not there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let is_file = file.metadata()?.is_file();
        let mut letters = Self {
            path: path.to_owned(),
            outbox: Outbox::new(file),
            told: Told::default(),
            // A process that was killed may have written without waiting for the disk.
            unsynced: is_file,
            is_file,
        };
        if is_file {
            letters.remember(File::open(path)?)?;
        }
        Ok(letters)
    }

    /// Notes what is in the file, and mends its end.
    fn remember(&mut self, reader: File) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(1 << 16, reader);
        let mut line = blake3::Hasher::new();
        let (mut start, mut end) = (0_u64, 0_u64);
        loop {
            let buffer = reader.fill_buf()?;
            if buffer.is_empty() {
                break;
            }
            let newline = buffer.iter().position(|byte| *byte == b'\n');
            line.update(&buffer[..newline.unwrap_or(buffer.len())]);
            let read = newline.map_or(buffer.len(), |newline| newline + 1);
            end += read as u64;
            reader.consume(read);
            if newline.is_some() {
                self.told.add(short(line.finalize()));
                line.reset();
                start = end;
            }
        }
        if start == end {
            return Ok(());
        }
        self.outbox.lines.torn = true;
        let mut last = Vec::new();
        reader.seek(SeekFrom::Start(start))?;
        reader.take(LONGEST).read_to_end(&mut last)?;
        if serde_json::from_slice::<DeadLetter>(&last).is_ok() {
            // All that it lacks is its end.
            self.told.add(short(line.finalize()));
        } else if last.starts_with(BEGINNING) || BEGINNING.starts_with(without_zeros(&last)) {
            tracing::warn!(file = %self.path.display(), "taking away a dead letter that was not written to its end");
            self.outbox.lines.cut(start)?;
        }
        Ok(())
    }

    fn write(&mut self, line: Vec<u8>) -> io::Result<()> {
        if self.told.take(short(blake3::hash(&line))) {
            return Ok(());
        }
        self.unsynced = self.is_file;
        self.outbox.add(line)
    }
}

impl Drop for Letters {
    fn drop(&mut self) {
        let _ = self.outbox.settle(&self.path);
        let lost = self.outbox.waiting.len();
        if lost > 0 {
            tracing::error!(lost, file = %self.path.display(), "dead letters could not be written and are lost");
        }
    }
}
