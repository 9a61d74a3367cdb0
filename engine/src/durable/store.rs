//! The checkpoint database: a redb file with atomic commits.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::conversations;
use super::first::Left;
use super::{ConversationChange, Key, SourceCheckpoint, StoredConversation, StoredTurn};
use crate::connector::{Applied, ConnectorError, Offsets, SinkPosition};
use crate::database::{DatabaseError, Tables};

const SOURCES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("sources");
/// By sink, positions in files that it had before a reload switched it to another one.
const FORMER: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("former");
/// Standing turns, by key.
const STANDING: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("standing");
/// Maximum conversations changed in one transaction.
const EXPIRE_AT_ONCE: usize = 10_000;

/// Why durable state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A sink cannot be synced.
    #[error("cannot sync a sink: {0}")]
    Sink(ConnectorError),
    /// The first process of the cluster, which has the database.
    #[error("process 0: {0}")]
    First(String),
    /// Dead letters cannot be written; a checkpoint would lose their records.
    #[error("cannot write dead letters: {0}")]
    DeadLetters(std::io::Error),
}

pub(super) struct Store(Tables);

/// Numbers of removed conversations, and of all changed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expired {
    pub gone: usize,
    pub changed: usize,
}

impl Store {
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        let tables = Tables::open(path, "the checkpoint database")?;
        // Migrate in steps, so that many conversations need little memory.
        while tables.change(|database| conversations::migrate(database, EXPIRE_AT_ONCE))? {}
        Ok(Self(tables))
    }

    pub fn source(&self, source: &str) -> Result<Option<SourceCheckpoint>, DatabaseError> {
        let bytes = self.0.read(|database| match table(&database.begin_read()?, SOURCES)? {
            Some(table) => Ok(table.get(source)?.map(|value| value.value().to_vec())),
            None => Ok(None),
        })?;
        // An invalid checkpoint is an error: treated as missing, the whole log would be answered again if
        // no sink's contents can be read back.
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

    /// All checkpoints.
    pub fn sources(&self) -> Result<Vec<SourceCheckpoint>, DatabaseError> {
        self.values(SOURCES)?.iter().map(|value| self.parse(value, || "a checkpoint".to_owned())).collect()
    }

    /// The positions in former files of a sink.
    pub fn former(&self, sink: &str) -> Result<Vec<SinkPosition>, DatabaseError> {
        let bytes = self.0.read(|database| match table(&database.begin_read()?, FORMER)? {
            Some(table) => Ok(table.get(sink)?.map(|value| value.value().to_vec())),
            None => Ok(None),
        })?;
        let parsed = bytes.map(|bytes| self.parse(&bytes, || format!("the former files of `{sink}`"))).transpose()?;
        Ok(parsed.unwrap_or_default())
    }

    /// Sets the positions in former files of a sink.
    pub fn set_former(&self, sink: &str, positions: &[SinkPosition]) -> Result<(), DatabaseError> {
        self.0.change(|database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(FORMER)?;
                match positions {
                    [] => drop(table.remove(sink)?),
                    _ => drop(table.insert(sink, &*json(&positions))?),
                }
            }
            Ok(transaction.commit()?)
        })
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

    pub fn conversation(&self, source: &str, conversation: &str) -> Result<Option<StoredConversation>, DatabaseError> {
        self.0.read(|database| conversations::load(&database.begin_read()?, &key(source, conversation)))
    }

    pub fn write(
        &self,
        sources: &[(Arc<str>, SourceCheckpoint)],
        changes: &HashMap<Key, ConversationChange>,
        standing: &HashMap<Arc<str>, Option<StoredTurn>>,
    ) -> Result<(), DatabaseError> {
        self.0.change(|database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(SOURCES)?;
                for (source, checkpoint) in sources {
                    // Other processes of a cluster have the other partitions.
                    let mut offsets = known(&table, source)?.map(|known| known.offsets).unwrap_or_default();
                    offsets.extend(checkpoint.offsets.clone());
                    table.insert(&**source, &*json(&SourceCheckpoint { offsets, ..checkpoint.clone() }))?;
                }
                let mut tables = conversations::Tables::open(&transaction)?;
                for ((source, conversation), change) in changes {
                    tables.change(&key(source, conversation), change)?;
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

    /// Writes a checkpoint of another process: of the partitions that it reads, and of their conversations.
    pub fn write_parts(&self, sources: &[Left], changes: &[(Key, ConversationChange)]) -> Result<(), DatabaseError> {
        self.0.change(|database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(SOURCES)?;
                for (source, offsets, epoch) in sources {
                    let (marks, written) = Default::default();
                    let none = SourceCheckpoint { offsets: Offsets::default(), marks, written, epoch: *epoch };
                    let mut checkpoint = known(&table, source)?.unwrap_or(none);
                    checkpoint.offsets.extend(offsets.clone());
                    checkpoint.epoch = checkpoint.epoch.max(*epoch);
                    table.insert(&**source, &*json(&checkpoint))?;
                }
                let mut tables = conversations::Tables::open(&transaction)?;
                for ((source, conversation), change) in changes {
                    tables.change(&key(source, conversation), change)?;
                }
            }
            Ok(transaction.commit()?)
        })
    }

    /// Gives the standing turns one after the other: those of the conversations that are wanted.
    pub fn each_standing(
        &self,
        wanted: &dyn Fn(&Arc<str>) -> bool,
        each: &mut dyn FnMut(StoredTurn),
    ) -> Result<(), DatabaseError> {
        #[derive(Deserialize)]
        struct Head {
            turn: HeadOfTurn,
        }
        #[derive(Deserialize)]
        struct HeadOfTurn {
            conversation_id: Arc<str>,
        }
        self.0.read(|database| {
            let Some(table) = table(&database.begin_read()?, STANDING)? else { return Ok(()) };
            for entry in table.iter()? {
                let (_, value) = entry?;
                let is_wanted = |head: Head| wanted(&head.turn.conversation_id);
                if serde_json::from_slice(value.value()).is_ok_and(is_wanted)
                    && let Ok(stored) = serde_json::from_slice(value.value())
                {
                    each(stored);
                }
            }
            Ok(())
        })
    }

    /// A standing turn, if there is one of this key.
    pub fn standing_turn(&self, key: &str) -> Result<Option<StoredTurn>, DatabaseError> {
        self.0.read(|database| {
            let Some(table) = table(&database.begin_read()?, STANDING)? else { return Ok(None) };
            let value = table.get(key)?;
            Ok(value.and_then(|value| serde_json::from_slice(value.value()).ok()))
        })
    }

    pub fn forget(&self, source: &str) -> Result<(), DatabaseError> {
        self.0.change(|database| {
            let transaction = database.begin_write()?;
            {
                transaction.open_table(SOURCES)?.remove(source)?;
                let (from, mut to) = (key(source, ""), source.as_bytes().to_vec());
                to.push(1);
                conversations::Tables::open(&transaction)?.forget(&from, &to)?;
                let of_source = |value: &[u8]| {
                    serde_json::from_slice::<StoredTurn>(value).is_ok_and(|turn| *turn.turn.source == *source)
                };
                transaction.open_table(STANDING)?.retain(|_, value| !of_source(value))?;
            }
            Ok(transaction.commit()?)
        })
    }

    /// The checkpointed offsets of each source.
    fn checkpoints(&self) -> Result<HashMap<String, Offsets>, DatabaseError> {
        self.0.read(|database| {
            let mut reached = HashMap::new();
            let Some(table) = table(&database.begin_read()?, SOURCES)? else { return Ok(reached) };
            for entry in table.iter()? {
                let (source, value) = entry?;
                if let Ok(checkpoint) = serde_json::from_slice::<SourceCheckpoint>(value.value()) {
                    reached.insert(source.value().to_owned(), checkpoint.offsets);
                }
            }
            Ok(reached)
        })
    }

    /// Removes conversations last used more than `idle_s` seconds before `now`. Keeps those that a restart
    /// would need again: they have applied records that the checkpoint of their source does not cover. A
    /// last use in the future (the clock was set back) is set to `now`. Handles a limited number, so that
    /// the transaction is short; call it again while it changes any.
    pub fn expire(&self, now: u64, idle_s: u64) -> Result<Expired, DatabaseError> {
        let before = now.saturating_sub(idle_s);
        let checkpoints = self.checkpoints()?;
        let may_go = |key: &[u8], applied: &Applied| {
            let source = key.split(|byte| *byte == 0).next().unwrap_or_default();
            checkpoints.get(&*String::from_utf8_lossy(source)).is_some_and(|reached| applied.is_within(reached))
        };
        let due =
            self.0.read(|database| conversations::due(&database.begin_read()?, before, now, EXPIRE_AT_ONCE, may_go))?;
        let conversations::Due { gone, ahead } = &due;
        if !(gone.is_empty() && ahead.is_empty()) {
            self.0.change(|database| {
                let transaction = database.begin_write()?;
                {
                    let mut tables = conversations::Tables::open(&transaction)?;
                    gone.iter().try_for_each(|key| tables.remove(key))?;
                    ahead.iter().try_for_each(|key| tables.use_at(key, now))?;
                }
                Ok(transaction.commit()?)
            })?;
        }
        Ok(Expired { gone: gone.len(), changed: gone.len() + ahead.len() })
    }

    /// Compacts the file, which must not be open elsewhere.
    pub fn compact(mut self) -> Result<(), DatabaseError> {
        self.0.compact()
    }
}

/// The checkpoint of a source. One that is invalid was reported when the source was opened.
fn known(
    sources: &impl ReadableTable<&'static str, &'static [u8]>,
    source: &str,
) -> Result<Option<SourceCheckpoint>, redb::Error> {
    Ok(sources.get(source)?.and_then(|value| serde_json::from_slice(value.value()).ok()))
}

/// A table; `None` if nothing has been written to it.
pub(super) fn table<K: redb::Key + 'static, V: redb::Value + 'static>(
    transaction: &ReadTransaction,
    definition: TableDefinition<'_, K, V>,
) -> Result<Option<ReadOnlyTable<K, V>>, redb::Error> {
    match transaction.open_table(definition) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The key of a conversation: its source, a zero byte, and its id.
fn key(source: &str, conversation: &str) -> Vec<u8> {
    [source.as_bytes(), &[0], conversation.as_bytes()].concat()
}

pub(super) fn json(value: &impl serde::Serialize) -> Vec<u8> {
    // Serialization fails only for maps with non-string keys, and there are none.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
impl Store {
    /// Simulates a disk that is gone after a failed write.
    pub(super) fn hide(&self, path: &Path) {
        let failed = self.0.change(|_| Err::<(), _>(redb::Error::Io(std::io::ErrorKind::StorageFull.into())));
        assert!(failed.is_err());
        std::fs::rename(path, path.with_extension("hidden")).unwrap();
        std::fs::create_dir(path).unwrap();
    }

    /// Makes the disk available again.
    pub(super) fn show(path: &Path) {
        std::fs::remove_dir(path).unwrap();
        std::fs::rename(path.with_extension("hidden"), path).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::super::SinkPositions;
    use super::*;
    use crate::connector::SourceOffset;

    fn checkpoint(end: u64) -> SourceCheckpoint {
        let offset = SourceOffset { log: "l".into(), generation: 1, end, line: 2, ..SourceOffset::default() };
        SourceCheckpoint { offsets: offset.into(), marks: Default::default(), written: Default::default(), epoch: 3 }
    }

    fn knows(applied: u64, used: u64) -> ConversationChange {
        let said = vec![crate::durable::Said {
            speaker: crate::record::Speaker::User,
            text: "hm".into(),
            turn: 1,
            log: 0,
            key: None,
        }];
        ConversationChange {
            from: 0,
            said,
            first: 0,
            reply: Some("so".into()),
            groups: Vec::new(),
            former: Vec::new(),
            applied: (1, applied).into(),
            used,
        }
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
        assert_eq!(stored("a", "old"), Some(knows(5, 10).into()));
        assert_eq!(store.expire(60, 10).unwrap(), Expired { gone: 1, changed: 3 });
        assert_eq!(stored("a", "old"), None);
        assert!(stored("a", "ahead").is_some() && stored("a", "young").is_some());
        // The clock was set back: a last use in the future is set to now.
        assert_eq!(stored("b", "x").unwrap().used, 60);
        assert_eq!((store.expire(69, 10).unwrap().gone, store.expire(71, 10).unwrap().gone), (0, 1));
        assert!(stored("a", "young").is_none() && stored("b", "x").is_some());
        store.forget("a").unwrap();
        assert!(store.source("a").unwrap().is_none() && stored("a", "ahead").is_none());
        assert!(store.source("b").unwrap().is_some() && stored("b", "x").is_some());
    }

    /// Each process of a cluster writes the offsets of its partitions.
    #[test]
    fn partitions_that_others_have_written_stay() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("turns.redb")).unwrap();
        let of = |partition: &str, end| SourceOffset {
            partition: partition.into(),
            log: "l".into(),
            end,
            line: end,
            ..SourceOffset::default()
        };
        let marks = SinkPositions::from([("out".into(), SinkPosition { log: "s".into(), length: 7, content: None })]);
        let own = |end| SourceCheckpoint {
            offsets: of("0", end).into(),
            marks: marks.clone(),
            written: marks.clone(),
            epoch: 3,
        };
        store.write(&[("a".into(), own(4))], &HashMap::new(), &HashMap::new()).unwrap();
        let key: Key = ("a".into(), "c".into());
        store.write_parts(&[("a".into(), of("1", 9).into(), 5)], &[(key, knows(5, 10))]).unwrap();
        let found = store.source("a").unwrap().unwrap();
        assert_eq!(found.offsets, [of("0", 4), of("1", 9)].into_iter().collect());
        assert_eq!((&found.marks, &found.written, found.epoch), (&marks, &marks, 5));
        assert_eq!(store.conversation("a", "c").unwrap(), Some(knows(5, 10).into()));
        store.write(&[("a".into(), own(6))], &HashMap::new(), &HashMap::new()).unwrap();
        assert_eq!(store.source("a").unwrap().unwrap().offsets, [of("0", 6), of("1", 9)].into_iter().collect());
        // A source that only other processes have begun.
        store.write_parts(&[("b".into(), of("1", 2).into(), 1)], &[]).unwrap();
        assert_eq!(store.source("b").unwrap().unwrap().offsets, of("1", 2).into());
    }

    /// A store that cannot be read returns errors, not missing values.
    #[test]
    fn a_store_that_cannot_be_read_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("turns.redb");
        let store = Store::open(&path).unwrap();
        let all = HashMap::from([(("a".into(), "c".into()), knows(5, 10))]);
        store.write(&[("a".into(), checkpoint(10))], &all, &HashMap::new()).unwrap();
        store.hide(&path);
        assert!(matches!(store.conversation("a", "c"), Err(DatabaseError::Open { .. })));
        assert!(
            store.source("a").is_err()
                && store.epoch().is_err()
                && store.each_standing(&|_| true, &mut |_| ()).is_err()
        );
        assert!(store.expire(100, 10).is_err());
        Store::show(&path);
        assert_eq!(store.conversation("a", "c").unwrap(), Some(knows(5, 10).into()));
        // An invalid checkpoint is not treated as missing either.
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
