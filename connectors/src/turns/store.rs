//! The database of a queue's records.
//!
//! Records that are next are numbered in the order in which the source sends them. Behind them, each caller's records wait
//! in their own order. The source takes from the callers in turn ([`Store::advance`]), so nobody waits for all that another
//! caller has queued.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use turnflow_engine::database::{DatabaseError, Tables};
use turnflow_engine::record::TurnRecord;

use crate::open_once::{OpenOnce, Opened, Place};

/// Records that are next, as JSON, by number.
const TURNS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("turns");
/// Records behind them, by caller and by the number of their arrival.
const WAITING: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("waiting");
/// The number and the bytes of the waiting records of each caller that has some.
const CALLERS: TableDefinition<'_, &str, (u64, u64)> = TableDefinition::new("callers");
/// Records that may be next without a wait, if no other waits.
const DIRECT: u64 = 256;
/// Number of the last record that arrived under `last`, of the last one in [`TURNS`] under `next`, and size of all
/// records in bytes under `bytes`.
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
    /// Of one caller.
    pub records_each: u64,
    pub bytes_each: u64,
}

/// An encoded record.
pub(super) struct Encoded {
    /// Who has queued it; empty if that is not known.
    pub caller: String,
    pub json: Vec<u8>,
}

impl Encoded {
    pub fn of(record: &TurnRecord) -> Result<Self, serde_json::Error> {
        let caller = record.extra.get("principal").and_then(|principal| principal.get("name")?.as_str());
        Ok(Self { caller: caller.unwrap_or_default().to_owned(), json: serde_json::to_vec(record)? })
    }
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
                    transaction.open_table(WAITING)?;
                    transaction.open_table(CALLERS)?;
                    let mut counts = transaction.open_table(COUNTS)?;
                    if counts.get("next")?.is_none() {
                        let last = counts.get("last")?.map_or(0, |last| last.value());
                        counts.insert("next", last)?;
                    }
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
    pub fn append(&self, records: &[Encoded], bounds: Bounds) -> Result<Appended, DatabaseError> {
        let mut of_callers: HashMap<&str, (u64, u64)> = HashMap::new();
        for record in records {
            let (count, bytes) = of_callers.entry(&record.caller).or_default();
            (*count, *bytes) = (*count + 1, *bytes + record.json.len() as u64);
        }
        let size: u64 = of_callers.values().map(|(_, bytes)| bytes).sum();
        let is_too_much = |caller: &str, count: u64, bytes: u64| {
            !caller.is_empty() && (count > bounds.records_each || bytes > bounds.bytes_each)
        };
        let is_large = of_callers.iter().any(|(caller, (count, bytes))| is_too_much(caller, *count, *bytes));
        if records.len() as u64 > bounds.records || size > bounds.bytes || is_large {
            return Ok(Appended::TooLarge);
        }
        let appended = self.tables.change(|database| {
            let transaction = database.begin_write()?;
            let last = {
                let mut turns = transaction.open_table(TURNS)?;
                let mut waiting = transaction.open_table(WAITING)?;
                let mut callers = transaction.open_table(CALLERS)?;
                let mut counts = transaction.open_table(COUNTS)?;
                let count = |of: &str| Ok::<u64, redb::Error>(counts.get(of)?.map_or(0, |count| count.value()));
                let (mut last, mut next, mut bytes) = (count("last")?, count("next")?, count("bytes")?);
                let before = turns.len()? + waiting.len()?;
                bytes += size;
                if before + records.len() as u64 > bounds.records || bytes > bounds.bytes {
                    return Ok(Appended::Full(before));
                }
                for (caller, (count, bytes)) in &of_callers {
                    let (known, known_bytes) = callers.get(caller)?.map_or((0, 0), |known| known.value());
                    if is_too_much(caller, known + count, known_bytes + bytes) {
                        return Ok(Appended::Full(known));
                    }
                }
                let is_direct = waiting.is_empty()? && turns.len()? + records.len() as u64 <= DIRECT;
                for record in records {
                    last += 1;
                    if is_direct {
                        next += 1;
                        turns.insert(next, record.json.as_slice())?;
                    } else {
                        waiting.insert((record.caller.as_str(), last), record.json.as_slice())?;
                    }
                }
                if !is_direct {
                    for (caller, (count, bytes)) in &of_callers {
                        let (known, known_bytes) = callers.get(caller)?.map_or((0, 0), |known| known.value());
                        callers.insert(caller, (known + count, known_bytes + bytes))?;
                    }
                }
                counts.insert("last", last)?;
                counts.insert("next", next)?;
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

    /// Takes at most `limit` waiting records, one of each caller in turn, and makes them the next ones; on disk when it
    /// returns. The first caller is the one after `after`; returns the last one. `None` if no record waits.
    pub fn advance(&self, after: &str, limit: usize) -> Result<Option<String>, DatabaseError> {
        self.tables.change(|database| {
            let transaction = database.begin_write()?;
            let mut last = None;
            {
                let mut turns = transaction.open_table(TURNS)?;
                let mut waiting = transaction.open_table(WAITING)?;
                let mut callers = transaction.open_table(CALLERS)?;
                let mut counts = transaction.open_table(COUNTS)?;
                let mut next = counts.get("next")?.map_or(0, |next| next.value());
                let mut moved = 0;
                let all: Result<Vec<String>, redb::Error> =
                    callers.iter()?.map(|entry| Ok(entry?.0.value().to_owned())).collect();
                let mut turn: VecDeque<String> = all?.into();
                let begins = turn.iter().take_while(|caller| caller.as_str() <= after).count();
                turn.rotate_left(begins);
                while moved < limit
                    && let Some(caller) = turn.pop_front()
                {
                    let oldest = waiting.range((caller.as_str(), 0)..=(caller.as_str(), u64::MAX))?.next();
                    let oldest = oldest.transpose()?.map(|(key, json)| (key.value().1, json.value().to_vec()));
                    let Some((number, json)) = oldest else { continue };
                    waiting.remove((caller.as_str(), number))?;
                    (next, moved) = (next + 1, moved + 1);
                    turns.insert(next, json.as_slice())?;
                    let (count, bytes) = callers.get(caller.as_str())?.map_or((0, 0), |known| known.value());
                    last = Some(caller.clone());
                    if count > 1 {
                        callers.insert(caller.as_str(), (count - 1, bytes.saturating_sub(json.len() as u64)))?;
                        turn.push_back(caller);
                    } else {
                        callers.remove(caller.as_str())?;
                    }
                }
                counts.insert("next", next)?;
            }
            match last {
                Some(_) => transaction.commit()?,
                None => transaction.abort()?,
            }
            Ok(last)
        })
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

    /// Whether records wait behind those that are next.
    pub fn is_any_waiting(&self) -> Result<bool, DatabaseError> {
        self.tables.read(|database| Ok(!database.begin_read()?.open_table(WAITING)?.is_empty()?))
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
        self.tables.read(|database| {
            let read = database.begin_read()?;
            Ok(read.open_table(TURNS)?.len()? + read.open_table(WAITING)?.len()?)
        })
    }
}

/// An id that no other store has.
pub(crate) fn new_id() -> Arc<str> {
    use std::hash::{BuildHasher, RandomState};
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // The keys of a `RandomState` are random.
    format!("{:016x}{:016x}", RandomState::new().hash_one(now.as_nanos()), RandomState::new().hash_one(0)).into()
}
