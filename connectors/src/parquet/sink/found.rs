//! Finds the answers in closed files: of each answer it keeps the hash of the key and its row.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use turnflow_engine::connector::{ConnectorError, RecoveredAnswers};
use turnflow_engine::record::AnswerRecord;

use super::{rows, store};

type KeyHash = [u8; 16];

fn hash_of(key: &str) -> KeyHash {
    let mut hash = [0; 16];
    hash.copy_from_slice(&blake3::hash(key.as_bytes()).as_bytes()[..16]);
    hash
}

/// The answers that were found.
#[derive(Default)]
pub(super) struct Found {
    files: Vec<PathBuf>,
    /// The file and the row, from 0.
    answers: HashMap<KeyHash, (usize, u64)>,
}

impl Found {
    /// Collects the answers of a directory after the first `after` ones. A file that is gone has none.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub(super) fn scan(&mut self, directory: &Path, after: u64) -> Result<(), ConnectorError> {
        let failed = |path: &Path, source: io::Error| ConnectorError::Io {
            action: "read the answers in",
            path: path.display().to_string(),
            source,
        };
        let files = store::closed(directory).map_err(|source| failed(directory, source))?;
        for (at, (first, path)) in files.iter().enumerate() {
            // All answers of a file are before the first one of the next file.
            if files.get(at + 1).is_some_and(|(next, _)| *next <= after.saturating_add(1)) {
                continue;
            }
            let skip = after.saturating_add(1).saturating_sub(*first);
            let keys = match rows::keys(path, skip) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                keys => keys.map_err(|source| failed(path, source))?,
            };
            for (row, key) in keys.iter().enumerate().filter(|(_, key)| !key.is_empty()) {
                self.answers.insert(hash_of(key), (self.files.len(), skip + row as u64));
            }
            self.files.push(path.clone());
        }
        Ok(())
    }
}

impl RecoveredAnswers for Found {
    fn count(&self) -> usize {
        self.answers.len()
    }

    fn found(&mut self, key: &str) -> Option<Arc<str>> {
        self.answers.get(&hash_of(key))?;
        // The answer exists anyway, and must not be written again.
        Some(self.record(key).map(|record| record.answer).unwrap_or_default())
    }

    fn record(&mut self, key: &str) -> Option<AnswerRecord> {
        let (file, row) = self.answers.get(&hash_of(key))?;
        match rows::read(self.files.get(*file)?, *row) {
            Ok(record) => Some(record),
            Err(error) => {
                tracing::warn!(%error, key, "cannot read back an existing answer");
                None
            }
        }
    }
}
