//! Dead letters: records that cannot be processed, with the reason, one JSON object per line.
//!
//! A letter keeps the whole record, up to [`KEPT_BYTES`], so that it can be retried. After a restart,
//! a process may read the same bad records again; letters that are already in the file are not
//! written twice.
//!
//! If a letter cannot be written (for example, the disk is full), it waits in a bounded queue. The
//! write is retried before the next letter, at each checkpoint, and at the end.

mod edit;
mod outbox;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

pub use self::edit::{NamedLetter, RecordHash};
use self::outbox::Outbox;
use crate::append::sync_directory;

/// Maximum number of bytes of the record that a dead letter keeps.
pub const KEPT_BYTES: usize = 1 << 20;
/// Number of letters of earlier processes that are remembered: the last ones.
const REMEMBERED: usize = 100_000;
/// So many letters of a source are logged one by one.
const LOGGED: u64 = 100;
/// The prefix of every letter.
const BEGINNING: &[u8] = b"{\"source\":";
/// Maximum length of a letter: each byte of the record takes at most 6 bytes in JSON and 2 in hexadecimal digits.
const LONGEST: u64 = 10 * KEPT_BYTES as u64;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The corpus or node that read the record.
    pub source: String,
    /// Where the record was read: a file, or a file and a line.
    pub position: String,
    /// Why it could not be processed.
    pub reason: String,
    /// The record, as text.
    pub record: String,
    /// Only the beginning of the record is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The bytes of the record in hexadecimal digits, if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_hex: Option<String>,
    /// Fields added by other tools.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl DeadLetter {
    /// A letter for a record. Bytes that are not UTF-8 become U+FFFD in `record` and are kept in
    /// `record_hex`. Of a long record, only the beginning is kept.
    pub fn new(source: &str, position: &str, reason: &str, record: &[u8]) -> Self {
        let mut kept = &record[..record.len().min(KEPT_BYTES)];
        if let Err(error) = std::str::from_utf8(kept)
            && error.error_len().is_none()
            && kept.len() < record.len()
        {
            // The cut split a character.
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

    /// The bytes of the record, as they were read.
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

/// Writes dead letters. Cheap to clone; shared by all sources and workers.
#[derive(Clone)]
pub struct DeadLetters {
    file: Arc<Mutex<Option<Letters>>>,
    count: Arc<AtomicU64>,
    /// Their numbers by source.
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
    /// Where letters go instead, in a process that has no file.
    forward: Arc<OnceLock<Box<dyn Forward>>>,
    refused: Arc<Mutex<Refused>>,
}

/// Records that sources of turns could not read in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// How many.
    pub number: u64,
    /// The place of the first one, and why.
    pub first: String,
    /// What would read such records, if that is known of one of them.
    pub hint: Option<String>,
    /// Of a source that has read records, none of which became a turn: what became of them.
    pub without_turns: Option<String>,
    /// Whether a source goes on after records that an earlier process has read.
    pub goes_on: bool,
}

/// Takes letters to where they are written.
pub(crate) trait Forward: Send + Sync {
    /// Sends a letter. Does not block.
    fn send(&self, letter: &DeadLetter);

    /// Waits until all letters have arrived.
    ///
    /// # Errors
    ///
    /// Some have not.
    fn settle(&self) -> io::Result<()>;
}

impl DeadLetters {
    /// Opens the file at `path` for appending; creates it if it does not exist. Removes an incomplete
    /// letter that a crash left at its end.
    pub fn open(path: &Path) -> io::Result<Self> {
        let letters = Self::counted();
        letters.go_on(Onward::To(Letters::open(path)?));
        Ok(letters)
    }

    /// Only counts letters; for runs without a dead-letter file.
    pub fn counted() -> Self {
        Self {
            file: Arc::default(),
            count: Arc::default(),
            counts: Arc::default(),
            forward: Arc::default(),
            refused: Arc::default(),
        }
    }

    /// Sends letters to another process from now on, as long as there is no file. Called at most once.
    pub(crate) fn forward(&self, forward: Box<dyn Forward>) {
        let _ = self.forward.set(forward);
    }

    /// Prepares a change of the dead-letter file; opens the new file if it differs. `None` for no file.
    pub fn toward(&self, path: Option<&Path>) -> io::Result<Onward> {
        let Some(path) = path else { return Ok(Onward::Nowhere) };
        if self.file.lock().as_ref().is_some_and(|letters| letters.path == path) {
            return Ok(Onward::AsBefore);
        }
        Letters::open(path).map(Onward::To)
    }

    /// Applies a change of the dead-letter file. Waiting letters move to the new file.
    pub fn go_on(&self, onward: Onward) {
        let mut file = self.file.lock();
        match onward {
            Onward::AsBefore => {}
            Onward::To(mut letters) => {
                if let Some(before) = &mut *file {
                    // First retries the old file.
                    let _ = before.outbox.settle(&before.path);
                    letters.outbox.waiting.append(&mut before.outbox.waiting);
                    let _ = letters.outbox.settle(&letters.path);
                }
                *file = Some(letters);
            }
            Onward::Nowhere => *file = None,
        }
    }

    /// Retries the waiting letters; returns when all letters are on disk, or with the process that writes them.
    ///
    /// # Errors
    ///
    /// Some letters still wait, or the disk failed.
    pub fn settle(&self) -> io::Result<()> {
        let (file, path) = {
            let mut file = self.file.lock();
            let Some(letters) = &mut *file else {
                drop(file);
                return self.forward.get().map_or(Ok(()), |forward| forward.settle());
            };
            letters.outbox.settle(&letters.path)?;
            if !std::mem::take(&mut letters.unsynced) {
                return Ok(());
            }
            (letters.outbox.lines.target.try_clone()?, letters.path.clone())
        };
        // The lock is not held here, so workers can write letters during the sync.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = file.sync_data().and_then(|()| sync_directory(directory));
        if synced.is_err()
            && let Some(letters) = &mut *self.file.lock()
        {
            letters.unsynced = true;
        }
        synced
    }

    /// The number of letters in this process, including those that an earlier process has written.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The numbers of letters by the corpus or node that they are of.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().clone()
    }

    /// Counts a record that a source of turns could not read.
    pub(crate) fn refuse(&self, position: &str, reason: &str) {
        let mut refused = self.refused.lock();
        refused.number += 1;
        if refused.number == 1 {
            refused.first = format!("{position}: {reason}");
        }
    }

    /// A source of turns could not read records in an earlier process. `first` is the place of the first one, and why.
    pub(crate) fn refused_before(&self, number: u64, first: &str) {
        let mut refused = self.refused.lock();
        if refused.number == 0 {
            first.clone_into(&mut refused.first);
        }
        refused.number += number;
    }

    /// What would read records that a source of turns cannot read. The first one counts.
    pub(crate) fn hint(&self, hint: &str) {
        self.refused.lock().hint.get_or_insert_with(|| hint.to_owned());
    }

    /// Of a source of turns that has read records, none became a turn.
    pub(crate) fn without_turns(&self, told: String) {
        self.refused.lock().without_turns.get_or_insert(told);
    }

    /// A source of turns goes on after records that an earlier process has read.
    pub(crate) fn goes_on(&self) {
        self.refused.lock().goes_on = true;
    }

    /// The records that sources of turns could not read in this process.
    pub fn refused(&self) -> Refused {
        self.refused.lock().clone()
    }

    /// Writes a letter, unless an earlier process has written the same one.
    pub fn write(&self, source: &str, position: &str, reason: &str, record: &[u8]) {
        self.letter(DeadLetter::new(source, position, reason, record));
    }

    /// Like [`DeadLetters::write`], for a record of which only the beginning is known.
    pub fn write_beginning(&self, source: &str, position: &str, reason: &str, beginning: &[u8]) {
        self.letter(DeadLetter { truncated: true, ..DeadLetter::new(source, position, reason, beginning) });
    }

    /// Writes a letter that another process has sent, unless it is there.
    pub(crate) fn take(&self, letter: DeadLetter) {
        self.letter(letter);
    }

    fn letter(&self, letter: DeadLetter) {
        let DeadLetter { source, position, reason, .. } = &letter;
        self.count.fetch_add(1, Ordering::Relaxed);
        let number = {
            let mut counts = self.counts.lock();
            let count = counts.entry(source.clone()).or_default();
            *count += 1;
            *count
        };
        let is_written = self.forward.get().is_some() || self.file.lock().is_some();
        // Of very many, the rest is in the file only.
        if number <= LOGGED || !is_written {
            tracing::warn!(source, position, reason, "dead letter");
        } else if number.is_power_of_two() {
            tracing::warn!(source, position, reason, dead_letters = number, "more dead letters; not all are logged");
        }
        let mut file = self.file.lock();
        let Some(file) = &mut *file else {
            self.forward.get().into_iter().for_each(|forward| forward.send(&letter));
            return;
        };
        let written = serde_json::to_vec(&letter).map_err(io::Error::from).and_then(|line| file.write(line));
        if let Err(error) = written {
            let waiting = file.outbox.waiting.len();
            tracing::error!(%error, source, position, reason, waiting,
                "cannot write a dead letter; will retry");
        }
    }
}

type Hash = [u8; 16];

fn short(hash: blake3::Hash) -> Hash {
    let mut short = [0; 16];
    short.copy_from_slice(&hash.as_bytes()[..16]);
    short
}

/// A multiset of the last lines that earlier processes have written.
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

    /// Takes one occurrence of the line; returns whether there was one.
    fn take(&mut self, line: Hash) -> bool {
        let Some(count) = self.counts.get_mut(&line) else { return false };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&line);
        }
        true
    }
}

/// Strips trailing zeros: after a power loss they may replace the rest of a line.
fn without_zeros(line: &[u8]) -> &[u8] {
    &line[..line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)]
}

/// A change of the dead-letter file.
pub enum Onward {
    /// The file stays the same.
    AsBefore,
    /// Letters are written to this file.
    To(Letters),
    /// Letters are only counted.
    Nowhere,
}

/// An open dead-letter file.
pub struct Letters {
    path: PathBuf,
    outbox: Outbox<File>,
    told: Told,
    /// The last writes may not be on disk.
    unsynced: bool,
    is_file: bool,
}

impl Letters {
    /// Opens the file; creates it if it does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // It has what was in bad records.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.create(true).append(true).open(path)?;
        let is_file = file.metadata()?.is_file();
        let mut letters = Self {
            path: path.to_owned(),
            outbox: Outbox::new(file),
            told: Told::default(),
            // A killed process may have written without a sync.
            unsynced: is_file,
            is_file,
        };
        if is_file {
            letters.index_entries(File::open(path)?)?;
        }
        Ok(letters)
    }

    /// Remembers the letters in the file, and repairs its end.
    fn index_entries(&mut self, reader: File) -> io::Result<()> {
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
            // Only the line break is missing.
            self.told.add(short(line.finalize()));
        } else if last.starts_with(BEGINNING) || BEGINNING.starts_with(without_zeros(&last)) {
            tracing::warn!(file = %self.path.display(), "removing an incomplete dead letter from the end of the file");
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
            tracing::error!(lost, file = %self.path.display(), "dead letters cannot be written and are lost");
        }
    }
}
