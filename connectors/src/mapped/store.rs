//! The database of a mapped source: turns that are not answered, messages that wait, and what is known.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use turnflow_engine::connector::Offsets;
use turnflow_engine::database::{DatabaseError, Tables};
use turnflow_records::{Held, Memory};

use crate::open_once::{OpenOnce, Opened, Place};
use crate::turns::store::new_id;

/// Turns by number: the place of the record, a line end, and the turn as JSON.
const TURNS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("turns");
/// Messages that wait, as JSON.
const HELD: TableDefinition<'_, u64, &str> = TableDefinition::new("held");
/// What is known, with its age.
const KNOWN: TableDefinition<'_, &str, (u64, &str)> = TableDefinition::new("known");
/// The keys of what is known, by age.
const AGES: TableDefinition<'_, u64, &str> = TableDefinition::new("ages");
/// The number of the last turn (`turn`), of the next message (`held`), of records (`records`), of ages (`age`) and of what
/// is known (`known`), and of records that cannot have been meant for the mapping (`refused`).
const COUNTS: TableDefinition<'_, &str, u64> = TableDefinition::new("counts");
/// The offsets up to which the records of partitions are read, as JSON.
const INPUT: TableDefinition<'_, &str, &str> = TableDefinition::new("input");
/// The store's id (`id`), why the first record gave no turn (`refused`), and a hash of the mapping (`mapping`),
/// and whether records were mapped again by a command (`again`).
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("names");
/// Maximum number of keys that are kept in memory.
const CACHED: usize = 20_000;

/// The open stores of this process.
static OPEN: OpenOnce<Store> = OpenOnce::new();

pub(super) struct Store {
    tables: Tables,
    id: Arc<str>,
    /// Maximum number of keys that are known.
    max_known: u64,
    is_kept: bool,
}

/// What an earlier process has stored.
#[derive(Default)]
pub(super) struct Stored {
    pub input: Offsets,
    pub records: u64,
    pub next_held: u64,
    pub held: BTreeMap<u64, Held>,
    /// Number of turns that were made.
    pub turns: u64,
    pub refused: Refused,
}

/// Records that could not be mapped, or of which none was a message though a preset reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refused {
    pub number: u64,
    /// The place of the first one, and why.
    pub first: String,
}

/// What is stored at once.
#[derive(Default)]
pub(super) struct Change {
    /// The places that have changed.
    pub input: Offsets,
    pub records: u64,
    pub next_held: u64,
    /// Messages that wait from now on, or wait in another way.
    pub held: Vec<(u64, String)>,
    /// Those that wait no more.
    pub done: Vec<u64>,
    /// Turns with the places of their records.
    pub turns: Vec<(String, Vec<u8>)>,
    pub known: HashMap<String, Option<String>>,
    /// If it has changed.
    pub refused: Option<Refused>,
}

impl Store {
    /// Opens the store at a place, or returns the open one.
    pub fn open(place: Place, max_known: u64) -> Result<Arc<Opened<Self>>, DatabaseError> {
        OPEN.open(place, |place| {
            let tables = match place {
                Place::File(path) => Tables::open_kept(path)?,
                Place::Memory { .. } => Tables::in_memory()?,
            };
            let id = tables.change(|database| {
                let transaction = database.begin_write()?;
                let id = {
                    transaction.open_table(TURNS)?;
                    transaction.open_table(HELD)?;
                    transaction.open_table(KNOWN)?;
                    transaction.open_table(AGES)?;
                    transaction.open_table(COUNTS)?;
                    transaction.open_table(INPUT)?;
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
            Ok(Self { tables, id, max_known, is_kept: matches!(place, Place::File(_)) })
        })
    }

    /// Whether what is stored outlives the process.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// A hash of the mapping that has read the records so far.
    pub fn mapping(&self) -> Result<Option<String>, DatabaseError> {
        self.tables.read(|database| {
            let names = database.begin_read()?.open_table(NAMES)?;
            Ok(names.get("mapping")?.map(|mapping| mapping.value().to_owned()))
        })
    }

    /// Whether records that could not be read were mapped again by a command.
    pub fn is_mapped_again(&self) -> Result<bool, DatabaseError> {
        self.tables.read(|database| Ok(database.begin_read()?.open_table(NAMES)?.get("again")?.is_some()))
    }

    /// Keeps that records were mapped again.
    pub fn set_mapped_again(&self) -> Result<(), DatabaseError> {
        self.tables.change(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(NAMES)?.insert("again", "")?;
            Ok(transaction.commit()?)
        })
    }

    /// Keeps a hash of the mapping. `is_anew`: the records are read from their beginning, and all that was made of them is
    /// forgotten.
    pub fn set_mapping(&self, mapping: &str, is_anew: bool) -> Result<(), DatabaseError> {
        self.tables.change(|database| {
            let transaction = database.begin_write()?;
            if is_anew {
                transaction.open_table(TURNS)?.retain(|_, _| false)?;
                transaction.open_table(HELD)?.retain(|_, _| false)?;
                transaction.open_table(KNOWN)?.retain(|_, _| false)?;
                transaction.open_table(AGES)?.retain(|_, _| false)?;
                transaction.open_table(COUNTS)?.retain(|_, _| false)?;
                transaction.open_table(INPUT)?.retain(|_, _| false)?;
            }
            {
                let mut names = transaction.open_table(NAMES)?;
                names.insert("mapping", mapping)?;
                if is_anew {
                    names.remove("refused")?;
                    names.remove("again")?;
                }
            }
            Ok(transaction.commit()?)
        })
    }

    /// What an earlier process has stored.
    pub fn begin(&self) -> Result<Stored, DatabaseError> {
        self.tables.read(|database| {
            let read = database.begin_read()?;
            let (input, counts, held) = (read.open_table(INPUT)?, read.open_table(COUNTS)?, read.open_table(HELD)?);
            let count = |name: &str| Ok::<u64, redb::Error>(counts.get(name)?.map_or(0, |count| count.value()));
            let mut places = Offsets::default();
            for entry in input.iter()? {
                if let Ok(place) = serde_json::from_str(entry?.1.value()) {
                    places.set(place);
                }
            }
            let names = read.open_table(NAMES)?;
            let first = names.get("refused")?.map(|first| first.value().to_owned()).unwrap_or_default();
            let mut stored = Stored {
                turns: count("turn")?,
                refused: Refused { number: count("refused")?, first },
                input: places,
                records: count("records")?,
                next_held: count("held")?,
                held: BTreeMap::new(),
            };
            for entry in held.iter()? {
                let (number, message) = entry?;
                match serde_json::from_str(message.value()) {
                    Ok(message) => {
                        stored.held.insert(number.value(), message);
                    }
                    Err(error) => tracing::warn!(%error, "a message that waits cannot be read, and is left out"),
                }
            }
            Ok(stored)
        })
    }

    /// Stores a change: all of it or nothing.
    pub fn commit(&self, change: &Change) -> Result<(), DatabaseError> {
        self.tables.change(|database| {
            let transaction = database.begin_write()?;
            {
                let mut counts = transaction.open_table(COUNTS)?;
                let mut turns = transaction.open_table(TURNS)?;
                let mut held = transaction.open_table(HELD)?;
                let mut input = transaction.open_table(INPUT)?;
                let mut last = counts.get("turn")?.map_or(0, |last| last.value());
                for (position, turn) in &change.turns {
                    last += 1;
                    turns.insert(last, [position.replace('\n', " ").as_bytes(), b"\n", turn].concat().as_slice())?;
                }
                counts.insert("turn", last)?;
                counts.insert("held", change.next_held)?;
                counts.insert("records", change.records)?;
                for number in &change.done {
                    held.remove(number)?;
                }
                for (number, message) in &change.held {
                    held.insert(number, message.as_str())?;
                }
                for place in change.input.iter() {
                    let written = serde_json::to_string(place).unwrap_or_default();
                    input.insert(&*place.partition, written.as_str())?;
                }
                if let Some(refused) = &change.refused {
                    counts.insert("refused", refused.number)?;
                    transaction.open_table(NAMES)?.insert("refused", refused.first.as_str())?;
                }
                let mut known = transaction.open_table(KNOWN)?;
                let mut ages = transaction.open_table(AGES)?;
                let mut age = counts.get("age")?.map_or(0, |age| age.value());
                let mut number = counts.get("known")?.map_or(0, |number| number.value());
                for (key, value) in &change.known {
                    let former = known.get(key.as_str())?.map(|former| former.value().0);
                    if let Some(former) = former {
                        ages.remove(former)?;
                        number -= 1;
                    }
                    match value {
                        Some(value) => {
                            (age, number) = (age + 1, number + 1);
                            known.insert(key.as_str(), (age, value.as_str()))?;
                            ages.insert(age, key.as_str())?;
                        }
                        None => {
                            known.remove(key.as_str())?;
                        }
                    }
                }
                while number > self.max_known {
                    let Some(oldest) = ages.pop_first()?.map(|(_, key)| key.value().to_owned()) else { break };
                    known.remove(oldest.as_str())?;
                    number -= 1;
                }
                counts.insert("age", age)?;
                counts.insert("known", number)?;
            }
            Ok(transaction.commit()?)
        })
    }

    /// At most `limit` turns after a number, until they reach `bytes`; at least one, if there is any.
    pub fn page(&self, after: u64, limit: usize, bytes: usize) -> Result<Vec<(u64, String, Vec<u8>)>, DatabaseError> {
        self.tables.read(|database| {
            let turns = database.begin_read()?.open_table(TURNS)?;
            let (mut page, mut size) = (Vec::new(), 0);
            for entry in turns.range(after.saturating_add(1)..)? {
                let (number, stored) = entry?;
                let stored = stored.value();
                size += stored.len();
                let end = stored.iter().position(|byte| *byte == b'\n').unwrap_or(stored.len());
                let turn = stored.get(end + 1..).unwrap_or_default().to_vec();
                page.push((number.value(), String::from_utf8_lossy(&stored[..end]).into_owned(), turn));
                if page.len() >= limit || size >= bytes {
                    break;
                }
            }
            Ok(page)
        })
    }

    /// Removes all turns up to a number.
    pub fn remove(&self, until: u64) -> Result<(), DatabaseError> {
        self.tables.change(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(TURNS)?.retain_in(..=until, |_, _| false)?;
            Ok(transaction.commit()?)
        })
    }

    fn get(&self, key: &str) -> Result<Option<String>, DatabaseError> {
        self.tables.read(|database| {
            let known = database.begin_read()?.open_table(KNOWN)?;
            Ok(known.get(key)?.map(|value| value.value().1.to_owned()))
        })
    }
}

/// What is known, as far as it is in memory.
#[derive(Default)]
pub(super) struct Known {
    cached: HashMap<String, Option<String>>,
    changed: HashMap<String, Option<String>>,
}

impl Known {
    /// The same, with the store behind it.
    pub fn with<'a>(&'a mut self, store: &'a Store) -> Remembered<'a> {
        Remembered { known: self, store, error: None }
    }

    /// What has changed.
    pub fn changes(&mut self) -> HashMap<String, Option<String>> {
        let changed = std::mem::take(&mut self.changed);
        if self.cached.len() > CACHED {
            self.cached.clear();
        }
        self.cached.extend(changed.clone());
        changed
    }
}

/// What is known, in memory and in the store.
pub(super) struct Remembered<'a> {
    known: &'a mut Known,
    store: &'a Store,
    error: Option<DatabaseError>,
}

impl Remembered<'_> {
    /// The first error.
    pub fn error(self) -> Result<(), DatabaseError> {
        self.error.map_or(Ok(()), Err)
    }
}

impl Memory for Remembered<'_> {
    fn get(&mut self, key: &str) -> Option<String> {
        if let Some(known) = self.known.changed.get(key).or_else(|| self.known.cached.get(key)) {
            return known.clone();
        }
        match self.store.get(key) {
            Ok(value) => {
                self.known.cached.insert(key.to_owned(), value.clone());
                value
            }
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    fn set(&mut self, key: &str, value: Option<String>) {
        self.known.changed.insert(key.to_owned(), value);
    }
}
