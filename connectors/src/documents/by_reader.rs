//! Which documents name a group as their reader, so that a list costs what it shows.
//!
//! The tables are made for a field when it is first asked for, a part in each transaction, and every change of a
//! document changes them in its own transaction. A store whose corpora have no `access` has none.

use std::ops::Bound;
use std::sync::Arc;

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};
use turnflow_engine::document::{EVERYBODY, Readers};
use turnflow_engine::metadata::Metadata;

use super::format;
use super::kept::DOCUMENTS;

type Key = (&'static str, &'static str, &'static str);

/// Of a field, a group and an id: the document's field names the group.
const BY_READER: TableDefinition<'_, Key, ()> = TableDefinition::new("by_reader");
/// Of a field and an id: the groups, as JSON.
const READERS: TableDefinition<'_, (&str, &str), &str> = TableDefinition::new("readers");
/// The last id that the tables have of a field; `None` if they have all.
const FIELDS: TableDefinition<'_, &str, Option<&str>> = TableDefinition::new("reader_fields");
/// Number of documents, and their bytes, in a transaction that makes the tables.
const PART: usize = 1000;
const PART_BYTES: usize = 8 << 20;

/// Creates the tables.
pub(super) fn create(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(BY_READER)?;
    transaction.open_table(READERS)?;
    transaction.open_table(FIELDS)?;
    Ok(())
}

/// Whether the tables have all documents, by this field.
pub(super) fn is_complete(transaction: &ReadTransaction, field: &str) -> Result<bool, redb::Error> {
    let fields = transaction.open_table(FIELDS)?;
    Ok(fields.get(field)?.is_some_and(|last| last.value().is_none()))
}

/// Goes on with making the tables for a field.
pub(super) fn go_on(transaction: &WriteTransaction, field: &str) -> Result<(), redb::Error> {
    let mut fields = transaction.open_table(FIELDS)?;
    let last = match fields.get(field)?.map(|last| last.value().map(str::to_owned)) {
        Some(None) => return Ok(()),
        Some(Some(last)) => Some(last),
        None => None,
    };
    let documents = transaction.open_table(DOCUMENTS)?;
    let mut tables = Writing::of(transaction, vec![field.to_owned()])?;
    let from: Bound<&str> = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let (mut count, mut bytes, mut next) = (0, 0, None);
    for entry in documents.range::<&str>((from, Bound::Unbounded))? {
        let (id, document) = entry?;
        tables.change(id.value(), Some(document.value()))?;
        (count, bytes) = (count + 1, bytes + document.value().len());
        if count >= PART || bytes >= PART_BYTES {
            next = Some(id.value().to_owned());
            break;
        }
    }
    fields.insert(field, next.as_deref())?;
    Ok(())
}

/// The tables, for changes of documents in one transaction.
pub(super) struct Writing<'t> {
    fields: Vec<String>,
    by_reader: Table<'t, Key, ()>,
    readers: Table<'t, (&'static str, &'static str), &'static str>,
}

impl<'t> Writing<'t> {
    /// For all fields that the tables have; `None` if there are none.
    pub fn begin(transaction: &'t WriteTransaction) -> Result<Option<Self>, redb::Error> {
        let mut fields = Vec::new();
        for entry in transaction.open_table(FIELDS)?.iter()? {
            fields.push(entry?.0.value().to_owned());
        }
        if fields.is_empty() { Ok(None) } else { Self::of(transaction, fields).map(Some) }
    }

    fn of(transaction: &'t WriteTransaction, fields: Vec<String>) -> Result<Self, redb::Error> {
        let (by_reader, readers) = (transaction.open_table(BY_READER)?, transaction.open_table(READERS)?);
        Ok(Self { fields, by_reader, readers })
    }

    /// A document has changed, or is deleted.
    pub fn change(&mut self, id: &str, document: Option<&[u8]>) -> Result<(), redb::Error> {
        // One that cannot be decoded has no readers.
        let metadata = document.and_then(|document| format::decode(document).ok()).map(|known| known.metadata);
        let metadata = metadata.map(|metadata| Metadata::of(&metadata).0);
        for field in &self.fields {
            let before = self.readers.remove((&**field, id))?.map(|groups| groups.value().to_owned());
            let before: Vec<String> =
                before.map(|groups| serde_json::from_str(&groups).unwrap_or_default()).unwrap_or_default();
            for group in &before {
                self.by_reader.remove((&**field, &**group, id))?;
            }
            let Some(Readers::Groups(groups)) = metadata.as_ref().map(|metadata| Readers::named(metadata, field))
            else {
                continue;
            };
            if groups.is_empty() {
                continue;
            }
            for group in groups.iter() {
                self.by_reader.insert((&**field, &**group, id), ())?;
            }
            let groups = serde_json::to_string(&*groups).map_err(std::io::Error::from)?;
            self.readers.insert((&**field, id), &*groups)?;
        }
        Ok(())
    }
}

/// The ids of the documents that some groups may read, in order.
pub(super) struct Ids {
    named: Vec<Named>,
}

/// The ids of the documents that name one group.
struct Named {
    field: String,
    group: Arc<str>,
    ids: redb::Range<'static, Key, ()>,
    next: Option<String>,
}

impl Ids {
    /// After an id, or from the first.
    pub fn of(
        transaction: &ReadTransaction,
        field: &str,
        groups: &[Arc<str>],
        after: Option<&str>,
    ) -> Result<Self, redb::Error> {
        let table: ReadOnlyTable<Key, ()> = transaction.open_table(BY_READER)?;
        let mut groups = groups.to_vec();
        groups.push(EVERYBODY.into());
        groups.sort_unstable();
        groups.dedup();
        let mut named = Vec::with_capacity(groups.len());
        for group in groups {
            let from = match after {
                Some(after) => Bound::Excluded((field, &*group, after)),
                None => Bound::Included((field, &*group, "")),
            };
            let ids = table.range::<(&str, &str, &str)>((from, Bound::Unbounded))?;
            let mut of = Named { field: field.to_owned(), group, ids, next: None };
            of.advance()?;
            named.push(of);
        }
        Ok(Self { named })
    }

    /// The next id.
    pub fn next(&mut self) -> Result<Option<String>, redb::Error> {
        let Some(first) = self.named.iter().filter_map(|of| of.next.as_ref()).min().cloned() else { return Ok(None) };
        for of in self.named.iter_mut().filter(|of| of.next.as_ref() == Some(&first)) {
            of.advance()?;
        }
        Ok(Some(first))
    }
}

impl Named {
    fn advance(&mut self) -> Result<(), redb::Error> {
        self.next = match self.ids.next().transpose()? {
            Some((key, _)) => {
                let (field, group, id) = key.value();
                (field == self.field && *group == *self.group).then(|| id.to_owned())
            }
            None => None,
        };
        Ok(())
    }
}
