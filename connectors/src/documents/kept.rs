//! Storage of documents: in a file, or in memory.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadableDatabase, ReadableTableMetadata, TableDefinition};
use turnflow_engine::database::{DatabaseError, Tables};

use super::by_reader;

/// Encoded documents, by id.
pub(super) const DOCUMENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("documents");

/// A document's id, and the encoded document, or `None` for a deleted one.
pub(super) type Change = (Arc<str>, Option<Vec<u8>>);

/// Encoded documents.
pub(super) struct Kept(Tables);

impl Kept {
    /// Opens the file, or creates it.
    pub fn in_file(path: &Path) -> Result<Self, DatabaseError> {
        Self::of(Tables::open_kept(path)?)
    }

    /// Documents in memory.
    pub fn in_memory() -> Result<Self, DatabaseError> {
        Self::of(Tables::in_memory()?)
    }

    fn of(tables: Tables) -> Result<Self, DatabaseError> {
        // Reads expect the tables.
        tables.change(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(DOCUMENTS)?;
            by_reader::create(&transaction)?;
            Ok(transaction.commit()?)
        })?;
        Ok(Self(tables))
    }

    /// Applies all changes in one transaction; on disk when it returns. Returns the number of deleted documents.
    pub fn apply(&self, changes: &[Change]) -> Result<usize, DatabaseError> {
        self.0.change(|database| {
            let mut deleted = 0;
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(DOCUMENTS)?;
                let mut readers = by_reader::Writing::begin(&transaction)?;
                for (id, document) in changes {
                    match document {
                        Some(document) => drop(table.insert(&**id, &**document)?),
                        None => deleted += usize::from(table.remove(&**id)?.is_some()),
                    }
                    if let Some(readers) = &mut readers {
                        readers.change(id, document.as_deref())?;
                    }
                }
            }
            transaction.commit()?;
            Ok(deleted)
        })
    }

    /// The current documents with these ids, in order, until they reach `bytes` in total. At least one.
    pub fn now<'a>(&self, ids: impl Iterator<Item = &'a Arc<str>>, bytes: usize) -> Result<Vec<Change>, DatabaseError> {
        self.0.read(|database| {
            let table = database.begin_read()?.open_table(DOCUMENTS)?;
            let (mut found, mut size) = (Vec::new(), 0);
            for id in ids {
                let document = table.get(&**id)?.map(|document| document.value().to_vec());
                size += document.as_ref().map_or(0, Vec::len);
                found.push((id.clone(), document));
                if size >= bytes {
                    break;
                }
            }
            Ok(found)
        })
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
        self.0.read(|database| {
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
        })
    }

    /// The same, of the documents whose field names one of these groups or everybody.
    pub fn page_for(
        &self,
        (field, groups): (&str, &[Arc<str>]),
        after: Option<&str>,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, DatabaseError> {
        while !self.0.read(|database| by_reader::is_complete(&database.begin_read()?, field))? {
            self.0.change(|database| {
                let transaction = database.begin_write()?;
                by_reader::go_on(&transaction, field)?;
                Ok(transaction.commit()?)
            })?;
        }
        let mut room = Room { limit, bytes };
        self.0.read(|database| {
            let transaction = database.begin_read()?;
            let table = transaction.open_table(DOCUMENTS)?;
            let mut ids = by_reader::Ids::of(&transaction, field, groups, after)?;
            let mut page = Vec::new();
            while room.is_left()
                && let Some(id) = ids.next()?
            {
                if let Some(document) = table.get(&*id)? {
                    page.push((id, room.take(document.value())));
                }
            }
            Ok(page)
        })
    }

    /// Number of documents.
    pub fn count(&self) -> Result<u64, DatabaseError> {
        self.0.read(|database| Ok(database.begin_read()?.open_table(DOCUMENTS)?.len()?))
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
