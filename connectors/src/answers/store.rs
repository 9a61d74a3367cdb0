//! The database of a log's answers.

use std::sync::Arc;

use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use tokio::sync::watch;
use turnflow_engine::database::{DatabaseError, Tables};
use turnflow_engine::record::AnswerRecord;

use crate::open_once::{OpenOnce, Opened, Place};
use crate::turns::store::new_id;

/// Answers as JSON, by number.
const ANSWERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("answers");
/// Number of the last answer with each delivery key.
const KEYS: TableDefinition<'_, &str, u64> = TableDefinition::new("keys");
/// Numbers of each conversation's answers.
const CONVERSATIONS: TableDefinition<'_, (&str, u64), ()> = TableDefinition::new("conversations");
/// Number of the last answer under `last`, and size of all answers in bytes under `bytes`.
const COUNTS: TableDefinition<'_, &str, u64> = TableDefinition::new("counts");
/// The log's id, under `id`. A different log at the same path has a different id.
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("names");

/// The open logs of this process.
static OPEN: OpenOnce<Store> = OpenOnce::new();

/// The limits of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub answers: u64,
    pub bytes: u64,
}

/// An encoded answer.
pub(super) struct Encoded {
    pub key: String,
    pub conversation: Arc<str>,
    pub json: Vec<u8>,
}

impl Encoded {
    pub fn of(record: &AnswerRecord) -> Result<Self, serde_json::Error> {
        Ok(Self {
            key: key_of(record),
            conversation: record.conversation_id.clone(),
            json: serde_json::to_vec(record)?,
        })
    }
}

fn key_of(record: &AnswerRecord) -> String {
    AnswerRecord::delivery_key(&record.key, record.revision.into(), record.retracted)
}

/// The answers of a log.
pub(super) struct Store {
    tables: Tables,
    id: Arc<str>,
    last: watch::Sender<u64>,
}

impl Store {
    /// Opens the log at a place, or returns the open one.
    pub fn open(place: Place) -> Result<Arc<Opened<Self>>, DatabaseError> {
        OPEN.open(place, |place| {
            let tables = match place {
                Place::File(path) => Tables::open_kept(path)?,
                Place::Memory { component: sink, .. } => {
                    tracing::warn!(sink, "no state directory: the answers are lost when the engine ends");
                    Tables::in_memory()?
                }
            };
            let (id, last) = tables.change(|database| {
                let transaction = database.begin_write()?;
                let found = {
                    transaction.open_table(ANSWERS)?;
                    transaction.open_table(KEYS)?;
                    transaction.open_table(CONVERSATIONS)?;
                    let last = transaction.open_table(COUNTS)?.get("last")?.map_or(0, |last| last.value());
                    let mut names = transaction.open_table(NAMES)?;
                    let known = names.get("id")?.map(|id| Arc::from(id.value()));
                    let id = match known {
                        Some(id) => id,
                        None => {
                            let id = new_id();
                            names.insert("id", &*id)?;
                            id
                        }
                    };
                    (id, last)
                };
                transaction.commit()?;
                Ok(found)
            })?;
            Ok(Self { tables, id, last: watch::Sender::new(last) })
        })
    }

    /// The log's id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Number of the last answer.
    pub fn last(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Appends all answers or none, and removes the oldest ones beyond the bounds; on disk when it returns. After an
    /// error, the call is repeated with the same answers first; those that reached the disk in spite of the error are
    /// not added again.
    pub fn append(&self, answers: &[Encoded], bounds: Bounds) -> Result<(), DatabaseError> {
        let last = self.tables.change(|database| {
            let transaction = database.begin_write()?;
            let last = {
                let mut table = transaction.open_table(ANSWERS)?;
                let mut keys = transaction.open_table(KEYS)?;
                let mut conversations = transaction.open_table(CONVERSATIONS)?;
                let mut counts = transaction.open_table(COUNTS)?;
                let count = |of: &str| Ok::<u64, redb::Error>(counts.get(of)?.map_or(0, |count| count.value()));
                let (mut last, mut bytes) = (count("last")?, count("bytes")?);
                let stored = last.saturating_sub(*self.last.borrow());
                for answer in answers.iter().skip(usize::try_from(stored).unwrap_or(usize::MAX)) {
                    last += 1;
                    bytes += answer.json.len() as u64;
                    table.insert(last, answer.json.as_slice())?;
                    keys.insert(answer.key.as_str(), last)?;
                    conversations.insert((&*answer.conversation, last), ())?;
                }
                // The newest answer is kept, whatever its size.
                while table.len()? > 1 && (table.len()? > bounds.answers || bytes > bounds.bytes) {
                    let Some((number, json)) = table.pop_first()?.map(|(at, of)| (at.value(), of.value().to_vec()))
                    else {
                        break;
                    };
                    bytes = bytes.saturating_sub(json.len() as u64);
                    let Ok(record) = serde_json::from_slice::<AnswerRecord>(&json) else { continue };
                    conversations.remove((&*record.conversation_id, number))?;
                    let key = key_of(&record);
                    let is_last = keys.get(key.as_str())?.is_some_and(|last| last.value() == number);
                    if is_last {
                        keys.remove(key.as_str())?;
                    }
                }
                counts.insert("last", last)?;
                counts.insert("bytes", bytes)?;
                last
            };
            transaction.commit()?;
            Ok(last)
        })?;
        self.last.send_replace(last);
        Ok(())
    }

    /// At most `limit` answers after a number, of one conversation or of all, until they reach `bytes` in total; at
    /// least one, if any exists.
    pub fn page(
        &self,
        conversation: Option<&str>,
        after: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, DatabaseError> {
        self.tables.read(|database| {
            let read = database.begin_read()?;
            let table = read.open_table(ANSWERS)?;
            let (mut page, mut size) = (Vec::new(), 0);
            let mut is_full = |number: u64, json: &[u8]| {
                size += json.len();
                page.push((number, json.to_vec()));
                page.len() >= limit || size >= bytes
            };
            let from = after.saturating_add(1);
            match conversation {
                None => {
                    for entry in table.range(from..)? {
                        let (number, json) = entry?;
                        if is_full(number.value(), json.value()) {
                            break;
                        }
                    }
                }
                Some(conversation) => {
                    let conversations = read.open_table(CONVERSATIONS)?;
                    for entry in conversations.range((conversation, from)..=(conversation, u64::MAX))? {
                        let number = entry?.0.value().1;
                        let Some(json) = table.get(number)? else { continue };
                        if is_full(number, json.value()) {
                            break;
                        }
                    }
                }
            }
            Ok(page)
        })
    }

    /// Number of answers with numbers in `(after, until]`.
    pub fn count(&self, after: u64, until: u64) -> Result<usize, DatabaseError> {
        self.tables.read(|database| {
            let table = database.begin_read()?.open_table(ANSWERS)?;
            let (first, last) = (table.first()?, table.last()?);
            let first = first.map_or(0, |(number, _)| number.value()).max(after.saturating_add(1));
            let last = last.map_or(0, |(number, _)| number.value()).min(until);
            // Numbers have no gaps.
            Ok((last + 1).saturating_sub(first) as usize)
        })
    }

    /// The answer with this delivery key, if its number is in `(after, until]`.
    pub fn find(&self, key: &str, after: u64, until: u64) -> Result<Option<Vec<u8>>, DatabaseError> {
        self.tables.read(|database| {
            let read = database.begin_read()?;
            let number = read.open_table(KEYS)?.get(key)?.map(|number| number.value());
            let Some(number) = number.filter(|number| (after + 1..=until).contains(number)) else { return Ok(None) };
            Ok(read.open_table(ANSWERS)?.get(number)?.map(|json| json.value().to_vec()))
        })
    }

    /// Simulates an append that was stored but returned an error: the store has more answers than it knows.
    #[cfg(test)]
    pub fn forget(&self, answers: u64) {
        self.last.send_modify(|last| *last -= answers);
    }
}
