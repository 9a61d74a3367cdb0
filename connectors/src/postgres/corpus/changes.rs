//! The documents that changes of tables touch, from the messages of logical decoding.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use turnflow_engine::connector::ConnectorError;

use crate::postgres::names::Table;
use crate::postgres::pgoutput::{Cell, Message, Relation, Tuple, parse};
use crate::postgres::slot::Snapshot;
use crate::remote::passing;

/// Maximum number of documents that are read again one by one. For more, everything is read.
const MOST: usize = 100_000;

/// What changes touch.
pub(super) struct Touched<'a> {
    /// The tables, each with the column that has the id of the document.
    keys: &'a BTreeMap<Table, String>,
    /// The tables that messages have described: the position of the column, and whether changes of it are told.
    relations: HashMap<u32, (usize, bool)>,
    transactions: Vec<u32>,
    pub(super) ids: BTreeSet<String>,
    /// Everything has to be read: not all ids are known.
    pub(super) is_everything: bool,
    /// The end of the last whole transaction.
    pub(super) end: Option<u64>,
}

impl<'a> Touched<'a> {
    pub(super) fn new(keys: &'a BTreeMap<Table, String>) -> Self {
        let (relations, transactions, ids, is_everything, end) = Default::default();
        Self { keys, relations, transactions, ids, is_everything, end }
    }

    /// Takes a message.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), ConnectorError> {
        match parse(bytes).map_err(passing)? {
            Message::Begin { transaction, .. } => self.transactions.push(transaction),
            Message::Commit { end, .. } => self.end = Some(end),
            Message::Relation(relation) => self.describe(&relation)?,
            Message::Insert { relation, new } => self.row(relation, &new),
            Message::Update { relation, old, new } => {
                // Without an old row, the replica identity has not changed.
                if let Some(old) = old {
                    self.former(relation, &old);
                }
                self.row(relation, &new);
            }
            Message::Delete { relation, old } => self.former(relation, &old),
            Message::Truncate(relations) => {
                if relations.iter().any(|relation| self.relations.contains_key(relation)) {
                    self.everything("a table was emptied");
                }
            }
            Message::Other => {}
        }
        Ok(())
    }

    fn describe(&mut self, relation: &Relation) -> Result<(), ConnectorError> {
        let table = Table { schema: relation.schema.clone(), name: relation.name.clone() };
        let Some(key) = self.keys.get(&table) else { return Ok(()) };
        let Some(column) = relation.columns.iter().position(|column| column.name == *key) else {
            return Err(passing(format!("the table {table} has no column `{key}`, or the publication leaves it out")));
        };
        let is_told = relation.identity == b'f' || relation.columns[column].is_key;
        self.relations.insert(relation.id, (column, is_told));
        Ok(())
    }

    /// The new values of a row.
    fn row(&mut self, relation: u32, row: &Tuple<'_>) {
        let Some((column, _)) = self.relations.get(&relation) else { return };
        match row.get(*column) {
            Some(Cell::Text(id)) => self.add(id),
            // A row that belongs to no document.
            Some(Cell::Null) => {}
            Some(Cell::Unchanged) | None => self.everything("a change does not tell the id"),
        }
    }

    /// The former key of a row.
    fn former(&mut self, relation: u32, row: &Tuple<'_>) {
        let Some((column, is_told)) = self.relations.get(&relation) else { return };
        match (row.get(*column), is_told) {
            (Some(Cell::Text(id)), true) => self.add(id),
            (Some(Cell::Null), true) => {}
            _ => self.everything(
                "a deleted row does not tell the id: give the table a primary key with this column, or REPLICA IDENTITY FULL",
            ),
        }
    }

    fn add(&mut self, id: &str) {
        if self.is_everything || self.ids.contains(id) {
            return;
        }
        self.ids.insert(id.to_owned());
        if self.ids.len() > MOST {
            self.everything("there are very many changes");
        }
    }

    fn everything(&mut self, why: &str) {
        if !self.is_everything {
            tracing::warn!(why, "reading all rows again");
        }
        self.is_everything = true;
        self.ids.clear();
    }

    /// Whether a reader with this snapshot sees all of these transactions.
    pub(super) fn is_seen(&self, snapshot: &Snapshot) -> bool {
        self.transactions.iter().all(|transaction| snapshot.sees(*transaction))
    }
}
