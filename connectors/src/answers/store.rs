//! The database of a log's answers.
//!
//! Beyond the bounds, the oldest answer of the caller who has the most goes, so that nobody's answers push out those of
//! another caller before they are read. Among callers who have about as much, it is the oldest of all.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use redb::{ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};
use tokio::sync::watch;
use turnflow_engine::connector::AnswersOf;
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
/// The sizes of each caller's answers in bytes, by number.
const OF_CALLERS: TableDefinition<'_, (&str, u64), u64> = TableDefinition::new("of_callers");
/// The number and the bytes of each caller's answers.
const CALLERS: TableDefinition<'_, &str, (u64, u64)> = TableDefinition::new("callers");
/// The newest answers are not removed for the sake of callers, but only in their order: a restart looks for those after
/// the last checkpoint. At most half of the log.
const NEWEST: u64 = 1000;
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
    /// Whose turn it answers; empty if that is not known.
    pub caller: String,
    pub key: String,
    pub conversation: Arc<str>,
    pub json: Vec<u8>,
}

impl Encoded {
    pub fn of(record: &AnswerRecord) -> Result<Self, serde_json::Error> {
        Ok(Self {
            caller: caller_of(record).to_owned(),
            key: key_of(record),
            conversation: record.conversation_id.clone(),
            json: serde_json::to_vec(record)?,
        })
    }
}

fn caller_of(record: &AnswerRecord) -> &str {
    let caller = record.extra.get("principal").and_then(|principal| principal.get("name")?.as_str());
    caller.unwrap_or_default()
}

fn key_of(record: &AnswerRecord) -> String {
    AnswerRecord::delivery_key(&record.key, record.revision.into(), record.retracted)
}

/// Counts the callers' answers in a log that an earlier version has written.
fn count_callers(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    let answers = transaction.open_table(ANSWERS)?;
    let mut of_callers = transaction.open_table(OF_CALLERS)?;
    let mut callers = transaction.open_table(CALLERS)?;
    if of_callers.len()? == answers.len()? {
        return Ok(());
    }
    of_callers.retain(|_, _| false)?;
    callers.retain(|_, _| false)?;
    for answer in answers.iter()? {
        let (number, json) = answer?;
        let Ok(record) = serde_json::from_slice::<AnswerRecord>(json.value()) else { continue };
        let (caller, size) = (caller_of(&record), json.value().len() as u64);
        of_callers.insert((caller, number.value()), size)?;
        let (count, bytes) = callers.get(caller)?.map_or((0, 0), |known| known.value());
        callers.insert(caller, (count + 1, bytes + size))?;
    }
    Ok(())
}

/// The callers by how much they have, in answers or in bytes.
struct Most {
    by_bytes: bool,
    of: HashMap<String, u64>,
    sorted: BTreeSet<(u64, String)>,
}

impl Most {
    fn of(callers: &impl ReadableTable<&'static str, (u64, u64)>, by_bytes: bool) -> Result<Self, redb::Error> {
        let mut most = Self { by_bytes, of: HashMap::new(), sorted: BTreeSet::new() };
        for entry in callers.iter()? {
            let (caller, held) = entry?;
            let (caller, held) = (caller.value().to_owned(), if by_bytes { held.value().1 } else { held.value().0 });
            most.sorted.insert((held, caller.clone()));
            most.of.insert(caller, held);
        }
        Ok(most)
    }

    /// The caller who has the most, if it is at least twice what the caller of the oldest answer has.
    fn caller(
        &self,
        answers: &impl ReadableTable<u64, &'static [u8]>,
        oldest: u64,
    ) -> Result<Option<String>, redb::Error> {
        let Some((most, caller)) = self.sorted.last() else { return Ok(None) };
        let json = answers.get(oldest)?.map(|json| json.value().to_vec()).unwrap_or_default();
        let Ok(record) = serde_json::from_slice::<AnswerRecord>(&json) else { return Ok(None) };
        let of_oldest = self.of.get(caller_of(&record)).copied().unwrap_or_default();
        Ok((*most >= of_oldest.saturating_mul(2)).then(|| caller.clone()))
    }

    /// A caller has this much left.
    fn removed(&mut self, caller: &str, left: (u64, u64)) {
        let left = if self.by_bytes { left.1 } else { left.0 };
        if let Some(held) = self.of.get_mut(caller) {
            self.sorted.remove(&(*held, caller.to_owned()));
            *held = left;
            self.sorted.insert((left, caller.to_owned()));
        }
    }
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
                    count_callers(&transaction)?;
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
                let mut of_callers = transaction.open_table(OF_CALLERS)?;
                let mut callers = transaction.open_table(CALLERS)?;
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
                    let size = answer.json.len() as u64;
                    of_callers.insert((answer.caller.as_str(), last), size)?;
                    let (count, of_caller) = callers.get(answer.caller.as_str())?.map_or((0, 0), |known| known.value());
                    callers.insert(answer.caller.as_str(), (count + 1, of_caller + size))?;
                }
                // The newest answer is kept, whatever its size.
                let mut most: Option<Most> = None;
                while table.len()? > 1 && (table.len()? > bounds.answers || bytes > bounds.bytes) {
                    let by_bytes = table.len()? <= bounds.answers;
                    let most = match &mut most {
                        Some(most) if most.by_bytes == by_bytes => most,
                        other => other.insert(Most::of(&callers, by_bytes)?),
                    };
                    let Some(oldest) = table.first()?.map(|(number, _)| number.value()) else { break };
                    let number = match most.caller(&table, oldest)? {
                        Some(caller) => {
                            let own = of_callers.range((caller.as_str(), 0)..=(caller.as_str(), u64::MAX))?.next();
                            let own = own.transpose()?.map(|(key, _)| key.value().1);
                            let window = NEWEST.min(bounds.answers / 2).min(table.len()? / 2);
                            own.filter(|own| own + window <= last).unwrap_or(oldest)
                        }
                        None => oldest,
                    };
                    let Some(json) = table.remove(number)?.map(|json| json.value().to_vec()) else { break };
                    bytes = bytes.saturating_sub(json.len() as u64);
                    let Ok(record) = serde_json::from_slice::<AnswerRecord>(&json) else { continue };
                    let caller = caller_of(&record);
                    of_callers.remove((caller, number))?;
                    let (count, of_caller) = callers.get(caller)?.map_or((0, 0), |known| known.value());
                    let left = (count.saturating_sub(1), of_caller.saturating_sub(json.len() as u64));
                    match left.0 {
                        0 => drop(callers.remove(caller)?),
                        _ => drop(callers.insert(caller, left)?),
                    }
                    most.removed(caller, left);
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

    /// At most `limit` of these answers after a number, until they reach `bytes` in total; at
    /// least one, if any exists.
    pub fn page(
        &self,
        of: AnswersOf<'_>,
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
            match of {
                AnswersOf::All => {
                    for entry in table.range(from..)? {
                        let (number, json) = entry?;
                        if is_full(number.value(), json.value()) {
                            break;
                        }
                    }
                }
                AnswersOf::Caller(caller) => {
                    let of_callers = read.open_table(OF_CALLERS)?;
                    for entry in of_callers.range((caller, from)..=(caller, u64::MAX))? {
                        let number = entry?.0.value().1;
                        let Some(json) = table.get(number)? else { continue };
                        if is_full(number, json.value()) {
                            break;
                        }
                    }
                }
                AnswersOf::Conversation(conversation) => {
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
            if after >= until {
                return Ok(0);
            }
            // Numbers have gaps, where answers of one caller were removed.
            let mut count = 0;
            for answer in table.range(after + 1..=until)? {
                answer?;
                count += 1;
            }
            Ok(count)
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
