//! Storage of documents: in a file, or in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{ReadableDatabase, ReadableTableMetadata, TableDefinition};
use turnflow_engine::database::{DatabaseError, Tables};

/// Encoded documents, by id.
const DOCUMENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("documents");

/// A document's id, and the encoded document, or `None` for a deleted one.
pub(super) type Change = (Arc<str>, Option<Vec<u8>>);

/// Encoded documents.
pub(super) enum Kept {
    File(Tables),
    Memory(Mutex<BTreeMap<String, Vec<u8>>>),
}

impl Kept {
    /// Opens the file, or creates it.
    pub fn in_file(path: &Path) -> Result<Self, DatabaseError> {
        let tables = Tables::open_kept(path)?;
        // Reads expect the table.
        tables.change(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(DOCUMENTS)?;
            Ok(transaction.commit()?)
        })?;
        Ok(Self::File(tables))
    }

    /// Applies all changes in one transaction; on disk when it returns. Returns the number of deleted documents.
    pub fn apply(&self, changes: &[Change]) -> Result<usize, DatabaseError> {
        match self {
            Self::File(tables) => tables.change(|database| {
                let mut deleted = 0;
                let transaction = database.begin_write()?;
                {
                    let mut table = transaction.open_table(DOCUMENTS)?;
                    for (id, document) in changes {
                        match document {
                            Some(document) => drop(table.insert(&**id, &**document)?),
                            None => deleted += usize::from(table.remove(&**id)?.is_some()),
                        }
                    }
                }
                transaction.commit()?;
                Ok(deleted)
            }),
            Self::Memory(documents) => {
                let mut documents = documents.lock();
                let mut deleted = 0;
                for (id, document) in changes {
                    match document {
                        Some(document) => drop(documents.insert(id.to_string(), document.clone())),
                        None => deleted += usize::from(documents.remove(&**id).is_some()),
                    }
                }
                Ok(deleted)
            }
        }
    }

    /// The current documents with these ids, in order, until they reach `bytes` in total. At least one.
    pub fn now<'a>(&self, ids: impl Iterator<Item = &'a Arc<str>>, bytes: usize) -> Result<Vec<Change>, DatabaseError> {
        match self {
            Self::File(tables) => tables.read(|database| {
                let table = database.begin_read()?.open_table(DOCUMENTS)?;
                look_up(ids, bytes, |id| Ok(table.get(id)?.map(|document| document.value().to_vec())))
            }),
            Self::Memory(documents) => {
                let documents = documents.lock();
                look_up(ids, bytes, |id| Ok(documents.get(id).cloned()))
            }
        }
    }

    /// At most `limit` documents in the order of their ids, until they reach `bytes` in total. At least one, if any
    /// exists.
    pub fn page(
        &self,
        after: Option<&str>,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, DatabaseError> {
        let range: (Bound<&str>, Bound<&str>) = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut room = Room { limit, bytes };
        match self {
            Self::File(tables) => tables.read(|database| {
                let table = database.begin_read()?.open_table(DOCUMENTS)?;
                let mut page = Vec::new();
                let mut documents = table.range::<&str>(range)?;
                while room.is_left()
                    && let Some(entry) = documents.next()
                {
                    let (id, document) = entry?;
                    page.push((id.value().to_owned(), room.take(document.value())));
                }
                Ok(page)
            }),
            Self::Memory(documents) => {
                let documents = documents.lock();
                let mut page = Vec::new();
                let mut documents = documents.range::<str, _>(range);
                while room.is_left()
                    && let Some((id, document)) = documents.next()
                {
                    page.push((id.clone(), room.take(document)));
                }
                Ok(page)
            }
        }
    }

    /// Number of documents.
    pub fn count(&self) -> Result<u64, DatabaseError> {
        match self {
            Self::File(tables) => tables.read(|database| Ok(database.begin_read()?.open_table(DOCUMENTS)?.len()?)),
            Self::Memory(documents) => Ok(documents.lock().len() as u64),
        }
    }
}

/// Remaining capacity of a page.
struct Room {
    limit: usize,
    bytes: usize,
}

impl Room {
    fn is_left(&self) -> bool {
        self.limit > 0 && self.bytes > 0
    }

    fn take(&mut self, document: &[u8]) -> Vec<u8> {
        self.limit -= 1;
        self.bytes = self.bytes.saturating_sub(document.len());
        document.to_vec()
    }
}

fn look_up<'a, E>(
    ids: impl Iterator<Item = &'a Arc<str>>,
    bytes: usize,
    get: impl Fn(&str) -> Result<Option<Vec<u8>>, E>,
) -> Result<Vec<Change>, E> {
    let mut found = Vec::new();
    let mut size = 0;
    for id in ids {
        let document = get(id)?;
        size += document.as_ref().map_or(0, Vec::len);
        found.push((id.clone(), document));
        if size >= bytes {
            break;
        }
    }
    Ok(found)
}
