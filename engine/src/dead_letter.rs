//! Dead letters: records that could not be processed, with the reason, one JSON object a line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

/// A dead letter keeps at most this many bytes of the record.
const KEPT_BYTES: usize = 4096;

#[derive(Serialize)]
struct DeadLetter<'a> {
    source: &'a str,
    position: &'a str,
    reason: &'a str,
    record: &'a str,
}

/// Writes dead letters; cheap to clone, shared by every source and the workers.
#[derive(Clone)]
pub struct DeadLetters {
    file: Option<Arc<Mutex<File>>>,
    count: Arc<AtomicU64>,
}

impl DeadLetters {
    /// Appends to the file at `path`, which is made if it is not there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file: Some(Arc::new(Mutex::new(file))), count: Arc::default() })
    }

    /// Counts only; for runs that have nowhere to write.
    pub fn counted() -> Self {
        Self { file: None, count: Arc::default() }
    }

    /// How many have been written by this process.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Writes one. Bytes that are not UTF-8 are shown as U+FFFD; long records are cut.
    pub fn write(&self, source: &str, position: &str, reason: &str, record: &[u8]) {
        self.count.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(source, position, reason, "dead letter");
        let Some(file) = &self.file else { return };
        let record = String::from_utf8_lossy(&record[..record.len().min(KEPT_BYTES)]);
        let letter = DeadLetter { source, position, reason, record: &record };
        // One write a line, so that lines of several threads never interleave.
        let written = serde_json::to_vec(&letter).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            file.lock().write_all(&line)
        });
        if let Err(error) = written {
            tracing::error!(%error, source, position, reason, "a dead letter could not be written");
        }
    }
}
