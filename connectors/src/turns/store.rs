//! The database of a queue's records.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use turnflow_engine::database::{DatabaseError, Tables};

use crate::open_once::{OpenOnce, Opened, Place};

/// Records as JSON, by number.
const TURNS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("turns");
/// Number of the last record under `last`, and size of all records in bytes under `bytes`.
const COUNTS: TableDefinition<'_, &str, u64> = TableDefinition::new("counts");
/// The queue's id, under `id`. A different queue at the same path has a different id.
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("names");

/// The open queues of this process.
static OPEN: OpenOnce<Store> = OpenOnce::new();

/// The limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub records: u64,
    pub bytes: u64,
}

/// Result of an append.
pub(super) enum Appended {
    /// The number of the last record.
    Last(u64),
    /// The queue has this many records, and no room for more.
    Full(u64),
    /// The queue can never hold this many records.
    TooLarge,
}

/// The records of a queue.
pub(super) struct Store {
    tables: Tables,
    id: Arc<str>,
    changed: (Sender<()>, Receiver<()>),
}

impl Store {
    /// Opens the queue at a place, or returns the open one.
    pub fn open(place: Place) -> Result<Arc<Opened<Self>>, DatabaseError> {
        OPEN.open(place, |place| {
            let tables = match place {
                Place::File(path) => Tables::open_kept(path)?,
                Place::Memory { component: source, .. } => {
                    tracing::warn!(source, "no state directory: the queue is lost when the engine ends");
                    Tables::in_memory()?
                }
            };
            let id = tables.change(|database| {
                let transaction = database.begin_write()?;
                let id = {
                    transaction.open_table(TURNS)?;
                    transaction.open_table(COUNTS)?;
                    let mut names = transaction.open_table(NAMES)?;
                    let known = names.get("id")?.map(|id| Arc::from(id.value()));
                    match known {
                        Some(id) => id,
                        None => {
                            let id = new_id();
                            names.insert("id", &*id)?;
                            id
                        }
                    }
                };
                transaction.commit()?;
                Ok(id)
            })?;
            Ok(Self { tables, id, changed: bounded(1) })
        })
    }

    /// The queue's id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Receives a message when records are added.
    pub fn changed(&self) -> &Receiver<()> {
        &self.changed.1
    }

    /// Appends all records or none; on disk when it returns.
    pub fn append(&self, records: &[Vec<u8>], bounds: Bounds) -> Result<Appended, DatabaseError> {
        let size: u64 = records.iter().map(|record| record.len() as u64).sum();
        if records.len() as u64 > bounds.records || size > bounds.bytes {
            return Ok(Appended::TooLarge);
        }
        let appended = self.tables.change(|database| {
            let transaction = database.begin_write()?;
            let last = {
                let mut turns = transaction.open_table(TURNS)?;
                let mut counts = transaction.open_table(COUNTS)?;
                let count = |of: &str| Ok::<u64, redb::Error>(counts.get(of)?.map_or(0, |count| count.value()));
                let (mut last, mut bytes) = (count("last")?, count("bytes")?);
                let waiting = turns.len()?;
                bytes += size;
                if waiting + records.len() as u64 > bounds.records || bytes > bounds.bytes {
                    return Ok(Appended::Full(waiting));
                }
                for record in records {
                    last += 1;
                    turns.insert(last, record.as_slice())?;
                }
                counts.insert("last", last)?;
                counts.insert("bytes", bytes)?;
                last
            };
            transaction.commit()?;
            Ok(Appended::Last(last))
        });
        // Also after an error: the records may have reached the disk. If it is full, the source will read anyway.
        let _ = self.changed.0.try_send(());
        appended
    }

    /// At most `limit` records after a number, until they reach `bytes` in total; at least one, if any exists.
    pub fn page(&self, after: u64, limit: usize, bytes: usize) -> Result<Vec<(u64, Vec<u8>)>, DatabaseError> {
        self.tables.read(|database| {
            let turns = database.begin_read()?.open_table(TURNS)?;
            let (mut page, mut size) = (Vec::new(), 0);
            for entry in turns.range(after.saturating_add(1)..)? {
                let (number, record) = entry?;
                size += record.value().len();
                page.push((number.value(), record.value().to_vec()));
                if page.len() >= limit || size >= bytes {
                    break;
                }
            }
            Ok(page)
        })
    }

    /// Removes all records up to a number.
    pub fn remove(&self, until: u64) -> Result<(), DatabaseError> {
        self.tables.change(|database| {
            let transaction = database.begin_write()?;
            {
                let mut turns = transaction.open_table(TURNS)?;
                let mut counts = transaction.open_table(COUNTS)?;
                let mut removed = 0;
                turns.retain_in(..=until, |_, record| {
                    removed += record.len() as u64;
                    false
                })?;
                let bytes = counts.get("bytes")?.map_or(0, |bytes| bytes.value());
                counts.insert("bytes", bytes.saturating_sub(removed))?;
            }
            Ok(transaction.commit()?)
        })
    }

    /// Number of records.
    pub fn count(&self) -> Result<u64, DatabaseError> {
        self.tables.read(|database| Ok(database.begin_read()?.open_table(TURNS)?.len()?))
    }
}

/// An id that no other store has.
pub(crate) fn new_id() -> Arc<str> {
    use std::hash::{BuildHasher, RandomState};
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // The keys of a `RandomState` are random.
    format!("{:016x}{:016x}", RandomState::new().hash_one(now.as_nanos()), RandomState::new().hash_one(0)).into()
}
