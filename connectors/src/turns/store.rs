//! The queue's records, in a database.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use turnflow_engine::database::{DatabaseError, Tables};

use crate::open_once::{OpenOnce, Opened, Place};

/// Records in JSON, by number.
const TURNS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("turns");
/// The number of the last record under `last`, and the bytes of all records under `bytes`.
const COUNTS: TableDefinition<'_, &str, u64> = TableDefinition::new("counts");
/// The queue's name under `id`. Another queue, at the same path, has another one.
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("names");

/// The open queues of this process.
static OPEN: OpenOnce<Store> = OpenOnce::new();

/// The limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub records: u64,
    pub bytes: u64,
}

/// What became of an append.
pub(super) enum Appended {
    /// The number of the last record.
    Last(u64),
    /// So many records are in the queue, which has no room for more.
    Full(u64),
    /// The queue never has room for so many records.
    TooLarge,
}

/// The records of a queue.
pub(super) struct Store {
    tables: Tables,
    id: Arc<str>,
    changed: (Sender<()>, Receiver<()>),
}

impl Store {
    /// The queue at a place, opened if no one has it open.
    pub fn open(place: Place) -> Result<Arc<Opened<Self>>, DatabaseError> {
        OPEN.open(place, |place| {
            let tables = match place {
                Place::File(path) => Tables::open_kept(path)?,
                Place::Memory { component: source, .. } => {
                    tracing::warn!(source, "there is no state directory: the queue is lost when the engine ends");
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

    /// Names the queue.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// A message comes when records are added.
    pub fn changed(&self) -> &Receiver<()> {
        &self.changed.1
    }

    /// Adds all records or none; on disk when it returns.
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
        // Also after an error: the records may have reached the disk. If it is full, the source will look anyway.
        let _ = self.changed.0.try_send(());
        appended
    }

    /// At most `limit` records after a number, until they have `bytes`; at least one, if there is one.
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

/// A name that no other store has.
pub(crate) fn new_id() -> Arc<str> {
    use std::hash::{BuildHasher, RandomState};
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // The keys of a `RandomState` are random.
    format!("{:016x}{:016x}", RandomState::new().hash_one(now.as_nanos()), RandomState::new().hash_one(0)).into()
}
