//! The file of checkpoints: redb, whose commits are whole or not there.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
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

    pub fn source(&self, source: &str) -> Option<SourceCheckpoint> {
        self.get(|database| {
            let table = database.begin_read().ok()?.open_table(SOURCES).ok()?;
            Some(table.get(source).ok()??.value().to_vec())
        })
    }

    /// The newest epoch that a checkpoint names.
    pub fn epoch(&self) -> Option<u64> {
        let transaction = self.0.database().ok()?.begin_read().ok()?;
        let table = transaction.open_table(SOURCES).ok()?;
        let checkpoints = table.iter().ok()?.flatten();
        let epoch = |value: &[u8]| Some(serde_json::from_slice::<SourceCheckpoint>(value).ok()?.epoch);
        checkpoints.filter_map(|(_, value)| epoch(value.value())).max()
    }

    pub fn conversation(&self, source: &str, conversation: &str) -> Option<StoredConversation> {
        self.get(|database| {
            let table = database.begin_read().ok()?.open_table(CONVERSATIONS).ok()?;
            Some(table.get(&*key(source, conversation)).ok()??.value().to_vec())
        })
    }

    /// A value that cannot be read is as good as none.
    fn get<T: DeserializeOwned>(&self, read: impl FnOnce(&Database) -> Option<Vec<u8>>) -> Option<T> {
        serde_json::from_slice(&read(&*self.0.database().ok()?)?).ok()
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
    pub fn standing(&self) -> Vec<StoredTurn> {
        let mut all = Vec::new();
        if let Ok(database) = self.0.database()
            && let Ok(transaction) = database.begin_read()
            && let Ok(table) = transaction.open_table(STANDING)
            && let Ok(entries) = table.iter()
        {
            let turns = entries.flatten().map(|(_, value)| serde_json::from_slice(value.value()));
            all.extend(turns.filter_map(Result::ok));
        }
        all
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

    /// Lets conversations go that were last used `idle_s` seconds before `now`, but for those
    /// that a restart would yet ask for: a source behind them is not checkpointed that far. What
    /// was used later than now, by a clock that has been put back since, was used now.
    pub fn expire(&self, now: u64, idle_s: u64) -> Result<Expired, DatabaseError> {
        let before = now.saturating_sub(idle_s);
        let (mut gone, mut ahead) = (Vec::new(), Vec::new());
        if let Ok(transaction) = self.0.database()?.begin_read()
            && let Ok(table) = transaction.open_table(CONVERSATIONS)
            && let Ok(all) = table.iter()
        {
            for (key, value) in all.flatten() {
                let Ok(knows) = serde_json::from_slice::<StoredConversation>(value.value()) else { continue };
                if gone.len() + ahead.len() >= EXPIRE_AT_ONCE {
                    break;
                }
                if knows.used > now {
                    ahead.push((key.value().to_vec(), StoredConversation { used: now, ..knows }));
                    continue;
                }
                let source = key.value().split(|byte| *byte == 0).next().unwrap_or_default();
                let source = String::from_utf8_lossy(source).into_owned();
                if knows.used < before
                    && self.source(&source).is_some_and(|checkpoint| checkpoint.place.order() >= knows.applied)
                {
                    gone.push(key.value().to_vec());
                }
            }
        }
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

fn key(source: &str, conversation: &str) -> Vec<u8> {
    [source.as_bytes(), &[0], conversation.as_bytes()].concat()
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    // Only maps with keys that are no strings fail, and there are none.
    serde_json::to_vec(value).unwrap_or_default()
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
            assert_eq!(store.source("a"), None);
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
        assert_eq!(store.source("a"), Some(checkpoint(10)));
        assert_eq!(store.conversation("a", "old"), Some(knows(5, 10)));
        assert_eq!(store.expire(60, 10).unwrap(), Expired { gone: 1, changed: 3 });
        assert_eq!(store.conversation("a", "old"), None);
        assert!(store.conversation("a", "ahead").is_some() && store.conversation("a", "young").is_some());
        // The clock has been put back: what is ahead of it lives no longer than what is of now.
        assert_eq!(store.conversation("b", "x").unwrap().used, 60);
        assert_eq!((store.expire(69, 10).unwrap().gone, store.expire(71, 10).unwrap().gone), (0, 1));
        assert!(store.conversation("a", "young").is_none() && store.conversation("b", "x").is_some());
        store.forget("a").unwrap();
        assert!(store.source("a").is_none() && store.conversation("a", "ahead").is_none());
        assert!(store.source("b").is_some() && store.conversation("b", "x").is_some());
    }
}
