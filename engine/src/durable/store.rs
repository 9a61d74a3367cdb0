//! The file of checkpoints: redb, whose commits are whole or not there.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use serde::de::DeserializeOwned;

use super::{Key, SourceCheckpoint, StoredConversation, StoredTurn};
use crate::connector::ConnectorError;
use crate::database::{DatabaseError, Tables};

const SOURCES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("sources");
/// By source, a zero byte, and conversation.
const CONVERSATIONS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("conversations");
/// By key.
const STANDING: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("standing");
/// Conversations that one transaction lets go.
const EXPIRE_AT_ONCE: usize = 10_000;

/// Why what outlives the process cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A sink's disk does not take what was written.
    #[error("a sink cannot be synchronised: {0}")]
    Sink(ConnectorError),
}

pub(super) struct Store(Tables);

/// Conversations that went, and those that were changed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expired {
    pub gone: usize,
    pub changed: usize,
}

impl Store {
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        Ok(Self(Tables::open(path, "the file of checkpoints")?))
    }

    pub fn source(&self, source: &str) -> Result<Option<SourceCheckpoint>, DatabaseError> {
        let bytes = self.0.read(|database| match table(&database.begin_read()?, SOURCES)? {
            Some(table) => Ok(table.get(source)?.map(|value| value.value().to_vec())),
            None => Ok(None),
        })?;
        // Taken for none, it would have all of the log answered anew where no sink can be looked into.
        bytes.map(|bytes| self.parse(&bytes, || format!("the checkpoint of `{source}`"))).transpose()
    }

    /// The newest epoch that a checkpoint names.
    pub fn epoch(&self) -> Result<Option<u64>, DatabaseError> {
        let mut newest = None;
        for value in self.values(SOURCES)? {
            let checkpoint: SourceCheckpoint = self.parse(&value, || "a checkpoint".to_owned())?;
            newest = newest.max(Some(checkpoint.epoch));
        }
        Ok(newest)
    }

    pub fn conversation(&self, source: &str, conversation: &str) -> Result<Option<StoredConversation>, DatabaseError> {
        let bytes = self.0.read(|database| match table(&database.begin_read()?, CONVERSATIONS)? {
            Some(table) => Ok(table.get(&*key(source, conversation))?.map(|value| value.value().to_vec())),
            None => Ok(None),
        })?;
        let known = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        // That does not pass, and a conversation is not to wait for ever.
        Ok(known.unwrap_or_else(|error| {
            tracing::error!(%error, source, conversation, "what is stored of a conversation is none of ours");
            None
        }))
    }

    fn parse<T: DeserializeOwned>(&self, bytes: &[u8], what: impl FnOnce() -> String) -> Result<T, DatabaseError> {
        let failed = |source| DatabaseError::Value { path: self.0.path().to_owned(), what: what(), source };
        serde_json::from_slice(bytes).map_err(failed)
    }

    /// All values of a table.
    fn values(&self, of: TableDefinition<'_, &'static str, &'static [u8]>) -> Result<Vec<Vec<u8>>, DatabaseError> {
        self.0.read(|database| {
            let mut values = Vec::new();
            if let Some(table) = table(&database.begin_read()?, of)? {
                for entry in table.iter()? {
                    values.push(entry?.1.value().to_vec());
                }
            }
            Ok(values)
        })
    }

    pub fn write(
        &self,
        sources: &[(Arc<str>, SourceCheckpoint)],
        conversations: &HashMap<Key, StoredConversation>,
        standing: &HashMap<Arc<str>, Option<StoredTurn>>,
    ) -> Result<(), DatabaseError> {
        self.0.change(|database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(SOURCES)?;
                for (source, checkpoint) in sources {
                    table.insert(&**source, &*json(checkpoint))?;
                }
                let mut table = transaction.open_table(CONVERSATIONS)?;
                for ((source, conversation), knows) in conversations {
                    table.insert(&*key(source, conversation), &*json(knows))?;
                }
                let mut table = transaction.open_table(STANDING)?;
                for (key, turn) in standing {
                    match turn {
                        Some(turn) => drop(table.insert(&**key, &*json(turn))?),
                        None => drop(table.remove(&**key)?),
                    }
                }
            }
            Ok(transaction.commit()?)
        })
    }

    /// Turns that are to be answered again when what they retrieve changes.
    pub fn standing(&self) -> Result<Vec<StoredTurn>, DatabaseError> {
        let values = self.values(STANDING)?;
        Ok(values.iter().filter_map(|value| serde_json::from_slice(value).ok()).collect())
    }

    pub fn forget(&self, source: &str) -> Result<(), DatabaseError> {
        self.0.change(|database| {
            let transaction = database.begin_write()?;
            {
                transaction.open_table(SOURCES)?.remove(source)?;
                let (from, mut to) = (key(source, ""), source.as_bytes().to_vec());
                to.push(1);
                let mut table = transaction.open_table(CONVERSATIONS)?;
                table.retain_in(&*from..&*to, |_, _| false)?;
                let of_source = |value: &[u8]| {
                    serde_json::from_slice::<StoredTurn>(value).is_ok_and(|turn| *turn.turn.source == *source)
                };
                transaction.open_table(STANDING)?.retain(|_, value| !of_source(value))?;
            }
            Ok(transaction.commit()?)
        })
    }

    /// How far each source has been answered, as places are ordered.
    fn checkpoints(&self) -> Result<HashMap<String, (u64, u64)>, DatabaseError> {
        self.0.read(|database| {
            let mut reached = HashMap::new();
            let Some(table) = table(&database.begin_read()?, SOURCES)? else { return Ok(reached) };
            for entry in table.iter()? {
                let (source, value) = entry?;
                if let Ok(checkpoint) = serde_json::from_slice::<SourceCheckpoint>(value.value()) {
                    reached.insert(source.value().to_owned(), checkpoint.place.order());
                }
            }
            Ok(reached)
        })
    }

    /// Lets conversations go that were last used `idle_s` seconds before `now`, but for those
    /// that a restart would yet ask for: a source behind them is not checkpointed that far. What
    /// was used later than now, by a clock that has been put back since, was used now.
    pub fn expire(&self, now: u64, idle_s: u64) -> Result<Expired, DatabaseError> {
        let before = now.saturating_sub(idle_s);
        let (mut gone, mut ahead) = (Vec::new(), Vec::new());
        let checkpoints = self.checkpoints()?;
        self.0.read(|database| {
            let Some(table) = table(&database.begin_read()?, CONVERSATIONS)? else { return Ok(()) };
            for entry in table.iter()? {
                let (key, value) = entry?;
                let Ok(knows) = serde_json::from_slice::<StoredConversation>(value.value()) else { continue };
                if gone.len() + ahead.len() >= EXPIRE_AT_ONCE {
                    break;
                }
                if knows.used > now {
                    ahead.push((key.value().to_vec(), StoredConversation { used: now, ..knows }));
                    continue;
                }
                let source = key.value().split(|byte| *byte == 0).next().unwrap_or_default();
                let source = String::from_utf8_lossy(source);
                if knows.used < before && checkpoints.get(&*source).is_some_and(|reached| *reached >= knows.applied) {
                    gone.push(key.value().to_vec());
                }
            }
            Ok(())
        })?;
        if !(gone.is_empty() && ahead.is_empty()) {
            self.0.change(|database| {
                let transaction = database.begin_write()?;
                {
                    let mut table = transaction.open_table(CONVERSATIONS)?;
                    for key in &gone {
                        table.remove(&**key)?;
                    }
                    for (key, knows) in &ahead {
                        table.insert(&**key, &*json(knows))?;
                    }
                }
                Ok(transaction.commit()?)
            })?;
        }
        Ok(Expired { gone: gone.len(), changed: gone.len() + ahead.len() })
    }

    /// Gives what is free back to the disk; nobody else may have the file.
    pub fn compact(mut self) -> Result<(), DatabaseError> {
        self.0.compact()
    }
}

/// A table, if anything has been put there.
fn table<K: redb::Key + 'static, V: redb::Value + 'static>(
    transaction: &ReadTransaction,
    definition: TableDefinition<'_, K, V>,
) -> Result<Option<ReadOnlyTable<K, V>>, redb::Error> {
    match transaction.open_table(definition) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn key(source: &str, conversation: &str) -> Vec<u8> {
    [source.as_bytes(), &[0], conversation.as_bytes()].concat()
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    // Only maps with keys that are no strings fail, and there are none.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
impl Store {
    /// As after a write that failed, on a disk that has gone.
    pub(super) fn hide(&self, path: &Path) {
        let failed = self.0.change(|_| Err::<(), _>(redb::Error::Io(std::io::ErrorKind::StorageFull.into())));
        assert!(failed.is_err());
        std::fs::rename(path, path.with_extension("hidden")).unwrap();
        std::fs::create_dir(path).unwrap();
    }

    /// The disk is there again.
    pub(super) fn show(path: &Path) {
        std::fs::remove_dir(path).unwrap();
        std::fs::rename(path.with_extension("hidden"), path).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::Place;

    fn checkpoint(end: u64) -> SourceCheckpoint {
        let place = Place { log: "l".into(), generation: 1, end, line: 2 };
        SourceCheckpoint { place, marks: Default::default(), written: Default::default(), epoch: 3 }
    }

    fn knows(applied: u64, used: u64) -> StoredConversation {
        StoredConversation { history: Vec::new(), reply: Some("so".into()), applied: (1, applied), used }
    }

    #[test]
    fn what_was_written_is_there_and_goes_by_source_or_age() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("turns.redb");
        {
            let store = Store::open(&path).unwrap();
            assert_eq!((store.source("a").unwrap(), store.epoch().unwrap()), (None, None));
            let of = |source: &str, id: &str| -> Key { (source.into(), id.into()) };
            let all = HashMap::from([
                (of("a", "old"), knows(5, 10)),
                (of("a", "ahead"), knows(50, 10)),
                (of("a", "young"), knows(5, 100)),
                (of("b", "x"), knows(50, 100)),
            ]);
            let sources = [("a".into(), checkpoint(10)), ("b".into(), checkpoint(10))];
            store.write(&sources, &all, &HashMap::new()).unwrap();
        }
        let store = Store::open(&path).unwrap();
        assert_eq!((store.source("a").unwrap(), store.epoch().unwrap()), (Some(checkpoint(10)), Some(3)));
        let stored = |source: &str, id: &str| store.conversation(source, id).unwrap();
        assert_eq!(stored("a", "old"), Some(knows(5, 10)));
        assert_eq!(store.expire(60, 10).unwrap(), Expired { gone: 1, changed: 3 });
        assert_eq!(stored("a", "old"), None);
        assert!(stored("a", "ahead").is_some() && stored("a", "young").is_some());
        // The clock has been put back: what is ahead of it lives no longer than what is of now.
        assert_eq!(stored("b", "x").unwrap().used, 60);
        assert_eq!((store.expire(69, 10).unwrap().gone, store.expire(71, 10).unwrap().gone), (0, 1));
        assert!(stored("a", "young").is_none() && stored("b", "x").is_some());
        store.forget("a").unwrap();
        assert!(store.source("a").unwrap().is_none() && stored("a", "ahead").is_none());
        assert!(store.source("b").unwrap().is_some() && stored("b", "x").is_some());
    }

    /// What cannot be read is not what is not there.
    #[test]
    fn a_store_that_cannot_be_read_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("turns.redb");
        let store = Store::open(&path).unwrap();
        let all = HashMap::from([(("a".into(), "c".into()), knows(5, 10))]);
        store.write(&[("a".into(), checkpoint(10))], &all, &HashMap::new()).unwrap();
        store.hide(&path);
        assert!(matches!(store.conversation("a", "c"), Err(DatabaseError::Open { .. })));
        assert!(store.source("a").is_err() && store.epoch().is_err() && store.standing().is_err());
        assert!(store.expire(100, 10).is_err());
        Store::show(&path);
        assert_eq!(store.conversation("a", "c").unwrap(), Some(knows(5, 10)));
        // A checkpoint that is none of ours is none that is not there either.
        let damage = |database: &redb::Database| {
            let transaction = database.begin_write()?;
            transaction.open_table(SOURCES)?.insert("a", &b"{"[..])?;
            Ok(transaction.commit()?)
        };
        store.0.change(damage).unwrap();
        let error = store.source("a").unwrap_err().to_string();
        assert!(error.starts_with("cannot read the checkpoint of `a` in `"), "{error}");
        assert!(store.epoch().is_err() && store.source("b").unwrap().is_none());
    }
}
