//! What models gave for turns, remembered by (model, input): the same log a second time asks
//! no model anything.
//!
//! An entry's key is a hash of the model's fingerprint and of all that its output depends on;
//! entries outlive what they were made for without being wrong, but for servers, which may put
//! another model behind the same name. They are kept in an embedded store (redb) in the state
//! directory, written by a thread of its own a few times a second; what a crash loses of them
//! is computed again. Without a state directory they are kept in memory alone.
//!
//! What corpora are made of is not remembered here: indexes keep that by content.

mod models;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use redb::{Database, ReadableDatabase, TableDefinition};

use crate::inference::InferenceError;

/// The key of an entry.
pub type Key = [u8; 32];

const OUTPUTS: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("outputs");
/// Between writes.
const WRITE: Duration = Duration::from_millis(200);
/// Bytes of entries in each of the two generations that are held in memory.
const IN_MEMORY: usize = 32 << 20;

/// The store.
pub struct Memo {
    shared: Arc<Shared>,
    writer: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    database: Option<Database>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    young: HashMap<Key, Arc<[u8]>>,
    old: HashMap<Key, Arc<[u8]>>,
    /// Bytes in `young`.
    bytes: usize,
    unwritten: HashMap<Key, Arc<[u8]>>,
    /// Hits and misses so far.
    counts: (u64, u64),
    ended: bool,
}

impl State {
    fn put(&mut self, key: Key, value: Arc<[u8]>) {
        self.bytes += value.len() + 64;
        self.young.insert(key, value);
        if self.bytes > IN_MEMORY {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open `{path}`: {source}")]
pub struct MemoError {
    path: std::path::PathBuf,
    source: redb::DatabaseError,
}

impl Memo {
    /// Opens the store in a state directory, or one in memory.
    ///
    /// # Errors
    ///
    /// The file cannot be written. One that is damaged is put aside and begun anew.
    pub fn open(directory: Option<&Path>) -> Result<Arc<Self>, MemoError> {
        let database = directory.map(|directory| database(&directory.join("memo.redb"))).transpose()?;
        let durable = database.is_some();
        let shared = Arc::new(Shared { database, state: Mutex::default(), work: Condvar::new() });
        let for_thread = shared.clone();
        // Without a thread nothing is written, which costs only work.
        let writer = durable
            .then(|| std::thread::Builder::new().name("memo".into()).spawn(move || for_thread.write()).ok())
            .flatten();
        Ok(Arc::new(Self { shared, writer }))
    }

    /// The value of a key.
    pub fn get(&self, key: &Key) -> Option<Arc<[u8]>> {
        let mut state = self.shared.state.lock();
        let found = state.young.get(key).or_else(|| state.unwritten.get(key)).cloned();
        let found = match found {
            Some(value) => Some(value),
            None => {
                let value = match state.old.remove(key) {
                    Some(value) => Some(value),
                    None => self.shared.read(key),
                };
                if let Some(value) = &value {
                    state.put(*key, value.clone());
                }
                value
            }
        };
        match found {
            Some(_) => state.counts.0 += 1,
            None => state.counts.1 += 1,
        }
        found
    }

    /// Remembers a value, and gives what is remembered: if two ask for the same at once, the
    /// first answer stands for both, as it will when the log is read again.
    pub fn put(&self, key: Key, value: Vec<u8>) -> Arc<[u8]> {
        let value: Arc<[u8]> = value.into();
        let mut state = self.shared.state.lock();
        if let Some(first) = state.young.get(&key).or_else(|| state.unwritten.get(&key)) {
            return first.clone();
        }
        state.put(key, value.clone());
        if self.writer.is_some() {
            // One that is woken waits for more; waking it again would end its wait.
            if state.unwritten.is_empty() {
                self.shared.work.notify_one();
            }
            state.unwritten.insert(key, value.clone());
        }
        value
    }

    /// How often a value was found, and how often not.
    pub fn counts(&self) -> (u64, u64) {
        self.shared.state.lock().counts
    }

    /// Looks each key up, has what is missing computed (each key once), and remembers it.
    /// `compute` is given the places of the missing keys.
    pub async fn each<T, F>(
        &self,
        keys: &[Key],
        decode: impl Fn(&[u8]) -> Option<T>,
        encode: impl Fn(&T) -> Vec<u8>,
        compute: impl FnOnce(Vec<usize>) -> F,
    ) -> Result<Vec<T>, InferenceError>
    where
        T: Clone,
        F: Future<Output = Result<Vec<T>, InferenceError>>,
    {
        let mut found: Vec<Option<T>> = keys.iter().map(|key| decode(&self.get(key)?)).collect();
        let mut missing: Vec<usize> = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            if found[at].is_none() && !missing.iter().any(|&other| keys[other] == *key) {
                missing.push(at);
            }
        }
        if !missing.is_empty() {
            let values = compute(missing.clone()).await?;
            for (at, value) in missing.into_iter().zip(values) {
                let stored = self.put(keys[at], encode(&value));
                let value = decode(&stored).unwrap_or(value);
                for (other, key) in keys.iter().enumerate() {
                    if *key == keys[at] && found[other].is_none() {
                        found[other] = Some(value.clone());
                    }
                }
            }
        }
        let expected = found.len();
        let values: Vec<T> = found.into_iter().flatten().collect();
        if values.len() == expected {
            Ok(values)
        } else {
            Err(InferenceError::Shape(format!("gave {} outputs for {expected} inputs", values.len())))
        }
    }
}

impl Drop for Memo {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.work.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn read(&self, key: &Key) -> Option<Arc<[u8]>> {
        let transaction = self.database.as_ref()?.begin_read().ok()?;
        // There is no table before the first write.
        let table = transaction.open_table(OUTPUTS).ok()?;
        Some(table.get(key).ok()??.value().into())
    }

    fn write(&self) {
        loop {
            let entries = {
                let mut state = self.state.lock();
                while state.unwritten.is_empty() && !state.ended {
                    self.work.wait(&mut state);
                }
                if state.unwritten.is_empty() {
                    return;
                }
                if !state.ended {
                    // More will have come after a moment.
                    self.work.wait_for(&mut state, WRITE);
                }
                state.unwritten.clone()
            };
            if let Err(error) = self.commit(&entries) {
                tracing::warn!(%error, "what models gave could not be stored, and will be computed again");
            }
            self.state.lock().unwritten.retain(|key, _| !entries.contains_key(key));
        }
    }

    fn commit(&self, entries: &HashMap<Key, Arc<[u8]>>) -> Result<(), redb::Error> {
        let Some(database) = &self.database else { return Ok(()) };
        let transaction = database.begin_write()?;
        {
            let mut table = transaction.open_table(OUTPUTS)?;
            for (key, value) in entries {
                table.insert(key, &**value)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

fn database(path: &Path) -> Result<Database, MemoError> {
    match Database::create(path) {
        // Also what a process that was killed while it made the file leaves.
        Err(error @ (redb::DatabaseError::Storage(_) | redb::DatabaseError::UpgradeRequired(_))) if path.exists() => {
            tracing::warn!(%error, path = %path.display(), "the memo store cannot be read and is begun anew");
            let aside = path.with_extension("redb.damaged");
            let moved = std::fs::rename(path, &aside).map_err(redb::DatabaseError::from);
            moved.and_then(|()| Database::create(path))
        }
        other => other,
    }
    .map_err(|source| MemoError { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_outlives_the_process() {
        let directory = tempfile::tempdir().unwrap();
        {
            let memo = Memo::open(Some(directory.path())).unwrap();
            assert_eq!(memo.get(&[1; 32]), None);
            memo.put([1; 32], vec![1, 2, 3]);
            assert_eq!(memo.get(&[1; 32]).as_deref(), Some(&[1, 2, 3][..]));
        }
        let memo = Memo::open(Some(directory.path())).unwrap();
        assert_eq!(memo.get(&[1; 32]).as_deref(), Some(&[1, 2, 3][..]));
        assert_eq!(memo.get(&[2; 32]), None);
        assert_eq!(memo.counts(), (1, 1));
    }

    #[test]
    fn a_file_that_is_no_store_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memo.redb");
        drop(Memo::open(Some(directory.path())).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.iter_mut().for_each(|byte| *byte = 0x55);
        std::fs::write(&path, bytes).unwrap();
        match Memo::open(Some(directory.path())) {
            Ok(memo) => assert_eq!(memo.get(&[1; 32]), None),
            Err(error) => assert!(error.to_string().contains("memo.redb"), "{error}"),
        }
    }

    #[tokio::test]
    async fn only_what_is_missing_is_computed_and_once() {
        let memo = Memo::open(None).unwrap();
        memo.put([1; 32], vec![10]);
        let keys = [[1; 32], [2; 32], [3; 32], [2; 32]];
        let run = |expected: Vec<usize>| {
            let memo = &memo;
            async move {
                memo.each(
                    &keys,
                    |bytes| bytes.first().copied(),
                    |value| vec![*value],
                    |missing| async move {
                        assert_eq!(missing, expected);
                        Ok(missing.iter().map(|at| *at as u8 * 10 + 10).collect())
                    },
                )
                .await
                .unwrap()
            }
        };
        assert_eq!(run(vec![1, 2]).await, [10, 20, 30, 20]);
        let again =
            memo.each(&keys, |bytes| bytes.first().copied(), |value| vec![*value], |_| async { unreachable!() });
        assert_eq!(again.await.unwrap(), [10, 20, 30, 20]);
    }
}
