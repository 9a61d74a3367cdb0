//! The inference cache: model outputs for turns, by (model, input). Replaying a log calls no model.
//!
//! The key of an entry is a hash of the model's fingerprint and of everything that the output
//! depends on, so entries never become stale. The exception is a model server, which may put another
//! model behind the same name. Entries are stored in an embedded database (redb) in the state
//! directory, written by a separate thread a few times per second; entries lost in a crash are
//! computed again. Unused entries expire ([`InferenceCache::expire`]). Without a state directory,
//! entries are kept only in memory.
//!
//! Model outputs for corpora are not cached here: indexes store them by content.

mod models;
mod store;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

pub use self::store::CacheLimits;
use self::store::{Store, today};
use crate::component::{DiskUsage, Maintained};
use crate::database::DatabaseError;
use crate::inference::InferenceError;
use crate::wording::count;

/// The key of an entry.
pub type Key = [u8; 32];

/// Interval between writes.
const WRITE: Duration = Duration::from_millis(200);
/// The use of existing entries is recorded after this time, or with the next write.
const NOTE: Duration = Duration::from_secs(60);
/// Bytes of entries in each of the two generations held in memory.
const IN_MEMORY: usize = 32 << 20;

/// The cache of model outputs.
pub struct InferenceCache {
    shared: Arc<Shared>,
    writer: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    store: Option<Store>,
    state: Mutex<State>,
    work: Condvar,
    /// Bytes stored since the last expiry.
    grown: AtomicU64,
}

/// An output in memory, with its last-used day, which is stored or will be.
struct Held {
    value: Arc<[u8]>,
    day: u32,
}

#[derive(Default)]
struct State {
    young: HashMap<Key, Held>,
    old: HashMap<Key, Held>,
    /// Bytes in `young`.
    bytes: usize,
    unwritten: HashMap<Key, Arc<[u8]>>,
    /// Entries used today whose stored last-used day is older.
    asked: HashSet<Key>,
    /// Hits and misses so far.
    counts: (u64, u64),
    ended: bool,
}

impl State {
    fn put(&mut self, key: Key, value: Arc<[u8]>, day: u32) {
        self.bytes += value.len() + 64;
        self.young.insert(key, Held { value, day });
        if self.bytes > IN_MEMORY {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }
}

impl InferenceCache {
    /// Opens the cache in a state directory, or in memory if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be written. A damaged file is no error: it is moved away and recreated.
    pub fn open(directory: Option<&Path>) -> Result<Arc<Self>, DatabaseError> {
        let store = directory.map(|directory| Store::open(&directory.join("memo.redb"))).transpose()?;
        let durable = store.is_some();
        let shared =
            Arc::new(Shared { store, state: Mutex::default(), work: Condvar::new(), grown: AtomicU64::new(0) });
        let for_thread = shared.clone();
        // Without the thread nothing is stored, which only costs repeated work.
        let writer = durable
            .then(|| std::thread::Builder::new().name("memo".into()).spawn(move || for_thread.write()).ok())
            .flatten();
        Ok(Arc::new(Self { shared, writer }))
    }

    /// The value of a key, from memory or from the file.
    pub fn get(&self, key: &Key) -> Option<Arc<[u8]>> {
        match self.shared.in_memory(key) {
            Some(value) => Some(value),
            None => self.shared.stored(key),
        }
    }

    /// The values of keys. The file is read on a blocking thread, so workers can await this.
    async fn values(&self, keys: &[Key]) -> Vec<Option<Arc<[u8]>>> {
        let mut values: Vec<Option<Arc<[u8]>>> = keys.iter().map(|key| self.shared.in_memory(key)).collect();
        let places: Vec<usize> = (0..keys.len()).filter(|&at| values[at].is_none()).collect();
        if places.is_empty() {
            return values;
        }
        let read = match tokio::runtime::Handle::try_current().ok().filter(|_| self.shared.store.is_some()) {
            Some(handle) => {
                let (shared, keys) = (self.shared.clone(), places.iter().map(|&at| keys[at]).collect::<Vec<_>>());
                let read = move || keys.iter().map(|key| shared.stored(key)).collect::<Vec<_>>();
                // Values that cannot be read are computed again.
                handle.spawn_blocking(read).await.unwrap_or_default()
            }
            None => places.iter().map(|&at| self.shared.stored(&keys[at])).collect(),
        };
        for (at, value) in places.into_iter().zip(read) {
            values[at] = value;
        }
        values
    }

    /// Caches a value and returns the cached one. If two callers compute the same key at once, both get
    /// the first value, as they will when the log is read again.
    pub fn put(&self, key: Key, value: Vec<u8>) -> Arc<[u8]> {
        let value: Arc<[u8]> = value.into();
        let mut state = self.shared.state.lock();
        if let Some(first) = state.young.get(&key).map(|held| &held.value).or_else(|| state.unwritten.get(&key)) {
            return first.clone();
        }
        state.put(key, value.clone(), today());
        if self.writer.is_some() {
            // Notify only for the first entry: a second notification would end the writer's wait for more.
            if state.unwritten.is_empty() {
                self.shared.work.notify_one();
            }
            state.unwritten.insert(key, value.clone());
        }
        value
    }

    /// Removes unused entries and, above the size limit, the least recently used ones. Works in small
    /// transactions, so others can read and write meanwhile. `None` without a file.
    ///
    /// # Errors
    ///
    /// The file cannot be written. Entries removed before the error stay removed.
    pub fn expire(&self, limits: &CacheLimits) -> Result<Option<Maintained>, DatabaseError> {
        let Some(store) = &self.shared.store else { return Ok(None) };
        let (begun, before) = (Instant::now(), DiskUsage::of(store.path()));
        let asked = |key: &Key| {
            let state = self.shared.state.lock();
            state.asked.contains(key) || state.unwritten.contains_key(key)
        };
        self.shared.grown.store(0, Ordering::Relaxed);
        let expired = store.expire(limits, today(), asked).inspect_err(|error| store.mend(error))?;
        let mut did = Vec::new();
        if !expired.gone.is_empty() {
            // Memory must agree with the file, as after a restart.
            let mut state = self.shared.state.lock();
            for key in &expired.gone {
                state.young.remove(key);
                state.old.remove(key);
            }
            did.push(format!("{} expired, {} left", count(expired.gone.len(), "output"), expired.left));
        }
        Ok(Some(Maintained { before, after: DiskUsage::of(store.path()), took: begun.elapsed(), did }))
    }

    /// Expires entries of the cache file in a state directory and compacts the file. The file must not
    /// be open elsewhere. `None` if there is no file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or written.
    pub fn maintain(directory: &Path, limits: &CacheLimits) -> Result<Option<Maintained>, DatabaseError> {
        let path = directory.join("memo.redb");
        if !path.exists() {
            return Ok(None);
        }
        let (begun, before) = (Instant::now(), DiskUsage::of(&path));
        let mut store = Store::open(&path)?;
        let expired = store.expire(limits, today(), |_| false).inspect_err(|error| store.mend(error))?;
        store.compact()?;
        drop(store);
        let mut did = Vec::new();
        if !expired.gone.is_empty() {
            did.push(format!("{} expired, {} left", count(expired.gone.len(), "output"), expired.left));
        }
        let after = DiskUsage::of(&path);
        if after.bytes < before.bytes {
            did.push("compacted".to_owned());
        }
        Ok(Some(Maintained { before, after, took: begun.elapsed(), did }))
    }

    /// Bytes of outputs stored since the last expiry.
    pub fn grown(&self) -> u64 {
        self.shared.grown.load(Ordering::Relaxed)
    }

    /// The numbers of hits and misses.
    pub fn counts(&self) -> (u64, u64) {
        self.shared.state.lock().counts
    }

    /// Looks up each key, computes the missing values (each key once), and caches those that `encode` gives bytes for.
    /// `compute` gets the positions of the missing keys.
    ///
    /// # Errors
    ///
    /// `compute` failed, or returned another number of values.
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
        let values = self.values(keys).await;
        let mut found: Vec<Option<T>> = values.into_iter().map(|value| decode(&value?)).collect();
        let mut missing: Vec<usize> = Vec::new();
        let mut wanted: HashMap<Key, Option<T>> = HashMap::new();
        for (at, key) in keys.iter().enumerate() {
            if found[at].is_none() && wanted.insert(*key, None).is_none() {
                missing.push(at);
            }
        }
        if !missing.is_empty() {
            let values = compute(missing.clone()).await?;
            for (at, value) in missing.into_iter().zip(values) {
                let bytes = encode(&value);
                let stored = (!bytes.is_empty()).then(|| self.put(keys[at], bytes)).and_then(|stored| decode(&stored));
                wanted.insert(keys[at], Some(stored.unwrap_or(value)));
            }
            for (at, key) in keys.iter().enumerate().filter(|(_, key)| wanted.contains_key(*key)) {
                if found[at].is_none() {
                    found[at] = wanted.get(key).cloned().flatten();
                }
            }
        }
        let expected = found.len();
        let values: Vec<T> = found.into_iter().flatten().collect();
        if values.len() == expected {
            Ok(values)
        } else {
            Err(InferenceError::Shape(format!("returned {} outputs for {expected} inputs", values.len())))
        }
    }
}

impl Drop for InferenceCache {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.work.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// Looks a key up in memory.
    fn in_memory(&self, key: &Key) -> Option<Arc<[u8]>> {
        let today = today();
        let mut state = self.state.lock();
        let held = match state.young.get_mut(key) {
            Some(held) => Some((held.value.clone(), std::mem::replace(&mut held.day, today))),
            None => match state.unwritten.get(key) {
                Some(value) => Some((value.clone(), today)),
                None => state.old.remove(key).map(|held| {
                    state.put(*key, held.value.clone(), today);
                    (held.value, held.day)
                }),
            },
        };
        let (value, day) = held?;
        state.counts.0 += 1;
        self.ask(&mut state, key, day, today);
        Some(value)
    }

    /// Looks a key up in the file; holds no lock while reading.
    fn stored(&self, key: &Key) -> Option<Arc<[u8]>> {
        let held = self.store.as_ref().and_then(|store| store.get(key));
        let today = today();
        let mut state = self.state.lock();
        let Some((value, day)) = held else {
            state.counts.1 += 1;
            return None;
        };
        state.counts.0 += 1;
        state.put(*key, value.clone(), today);
        self.ask(&mut state, key, day, today);
        Some(value)
    }

    /// Records that an output with an older last-used day was used today.
    fn ask(&self, state: &mut State, key: &Key, day: u32, today: u32) {
        if day != today && self.store.is_some() {
            state.asked.insert(*key);
        }
    }

    fn write(&self) {
        let Some(store) = &self.store else { return };
        loop {
            let (entries, asked) = {
                let mut state = self.state.lock();
                while state.unwritten.is_empty() && !state.ended {
                    if self.work.wait_for(&mut state, NOTE).timed_out() && !state.asked.is_empty() {
                        break;
                    }
                }
                if state.unwritten.is_empty() && state.asked.is_empty() {
                    return;
                }
                if !state.ended {
                    // Wait for more entries to write at once.
                    self.work.wait_for(&mut state, WRITE);
                }
                (state.unwritten.clone(), std::mem::take(&mut state.asked))
            };
            if let Err(error) = store.write(&entries, &asked, today()) {
                tracing::warn!(%error, "cannot store model outputs; they will be computed again");
                store.mend(&error);
            }
            let bytes: usize = entries.values().map(|value| value.len()).sum();
            self.grown.fetch_add(bytes as u64, Ordering::Relaxed);
            self.state.lock().unwritten.retain(|key, _| !entries.contains_key(key));
        }
    }
}

#[cfg(test)]
mod tests;
