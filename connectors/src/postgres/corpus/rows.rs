//! The rows as they were last read: only changes of them are passed on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};
use turnflow_engine::connector::{CorpusOutput, Stopped};
use turnflow_engine::document::Document;
use turnflow_engine::odd_json;
use turnflow_engine::panics::caught;

use crate::mapped::KeyMap;
use crate::readers::jsonl::{Fields, RowError, of_object};

/// A row as the server sends it.
pub(super) struct Row<'a> {
    /// The id, as text.
    pub(super) id: Option<&'a str>,
    /// The row as JSON, or its beginning if it is too large.
    pub(super) json: &'a str,
    /// The size of the JSON, in bytes.
    pub(super) bytes: u64,
}

/// Part of a hash, long enough to recognise a change.
type Hash = [u8; 16];

struct Known {
    hash: Hash,
    /// The number of the reading in which it was last found.
    found: u32,
    is_document: bool,
}

/// The rows as they were last read.
pub(super) struct Rows {
    fields: Fields,
    /// The column that says that a row is deleted.
    deleted: Option<String>,
    max_bytes: u64,
    /// How dead letters name the database.
    name: String,
    known: HashMap<Arc<str>, Known>,
    reading: u32,
    /// Rows without an id, and second rows of an id, that were reported.
    told: HashSet<Hash>,
    /// Changes since the last commit.
    changes: usize,
    /// With a mapping: what it has made.
    keys: Option<KeyMap>,
}

/// Maximum number of reported rows that are remembered. Further ones are reported each time.
const TOLD: usize = 100_000;

fn hash(text: &str) -> Hash {
    let mut short = Hash::default();
    short.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
    short
}

impl Rows {
    pub(super) fn new(fields: Fields, deleted: Option<String>, max_bytes: usize, name: &str) -> Self {
        let (known, told) = Default::default();
        let max_bytes = max_bytes as u64;
        let (name, keys) = (name.to_owned(), None);
        Self { fields, deleted, max_bytes, name, known, reading: 0, told, changes: 0, keys }
    }

    /// The same with a mapping.
    pub(super) fn mapped(self, keys: Option<KeyMap>) -> Self {
        Self { keys, ..self }
    }

    /// Begins a reading: a row may occur in it once.
    pub(super) fn begin(&mut self) {
        self.reading = self.reading.wrapping_add(1);
    }

    /// Takes a row.
    pub(super) fn row(&mut self, row: &Row<'_>, output: &CorpusOutput) -> Result<(), Stopped> {
        let hash = hash(row.json);
        let Some(id) = row.id.filter(|id| !id.is_empty()) else {
            let reason = RowError::Missing(self.fields.id.clone()).to_string();
            self.tell(hash, &format!("{}: a row", self.name), &reason, row, output);
            return Ok(());
        };
        let position = format!("{}: {id}", self.name);
        let is_known = match self.known.get_mut(id) {
            Some(known) if known.found == self.reading && known.hash == hash => return Ok(()),
            Some(known) if known.found == self.reading => {
                let duplicate = RowError::Duplicate { field: self.fields.id.clone(), id: id.to_owned() };
                self.tell(hash, &position, &duplicate.to_string(), row, output);
                return Ok(());
            }
            Some(known) if known.hash == hash => {
                known.found = self.reading;
                return Ok(());
            }
            Some(known) => known.is_document,
            None => false,
        };
        let id: Arc<str> = id.into();
        if self.keys.is_some() {
            self.map(&id, row, &position, output)?;
            self.known.insert(id, Known { hash, found: self.reading, is_document: true });
            return Ok(());
        }
        let document = self.document(&id, row, &position, output);
        let is_document = document.is_some();
        if is_document || is_known {
            output.change(id.clone(), document)?;
            self.changes += 1;
        }
        self.known.insert(id, Known { hash, found: self.reading, is_document });
        Ok(())
    }

    /// Sends the documents that a mapping makes of a row.
    fn map(&mut self, id: &str, row: &Row<'_>, position: &str, output: &CorpusOutput) -> Result<(), Stopped> {
        let Some(keys) = &mut self.keys else { return Ok(()) };
        let is_large = row.bytes > self.max_bytes;
        if is_large {
            tell_large(row, self.max_bytes, position, output);
        }
        let is_deleted = self.deleted.as_ref().is_some_and(|deleted| {
            let fields = odd_json::read::<Map<String, Value>>(row.json);
            fields
                .is_ok_and(|(fields, _)| !matches!(fields.get(deleted), None | Some(Value::Null | Value::Bool(false))))
        });
        let value = Some(row.json.as_bytes()).filter(|_| !is_large && !is_deleted);
        let (changes, wrong) = keys.change(id, value);
        if let Some(reason) = wrong {
            output.dead_letter(position, &reason, row.json.as_bytes());
        }
        for (id, document) in changes {
            output.change(id, document)?;
            self.changes += 1;
        }
        Ok(())
    }

    /// The document of a row, if it has one.
    fn document(&self, id: &Arc<str>, row: &Row<'_>, position: &str, output: &CorpusOutput) -> Option<Document> {
        if row.bytes > self.max_bytes {
            tell_large(row, self.max_bytes, position, output);
            return None;
        }
        let read = || {
            let (mut fields, odd): (Map<String, Value>, _) = odd_json::read(row.json)?;
            if !odd.is_empty() {
                let columns = odd.join(", ");
                tracing::warn!(id = &**id, columns, "a row has values that JSON cannot hold; they were left out");
            }
            fields.shift_remove(&self.fields.id);
            if let Some(deleted) = &self.deleted
                && !matches!(fields.shift_remove(deleted), None | Some(Value::Null | Value::Bool(false)))
            {
                return Ok(None);
            }
            if fields.get(&self.fields.text).is_none_or(Value::is_null) {
                return Err(RowError::Missing(self.fields.text.clone()));
            }
            of_object(id.clone(), fields, &self.fields).map(Some)
        };
        match caught(read).map_err(RowError::from).flatten() {
            Ok(Some((document, large))) => {
                if !large.is_empty() {
                    tracing::warn!(
                        id = &**id,
                        fields = large.join(", "),
                        "columns are too large for metadata and left out"
                    );
                }
                Some(document)
            }
            Ok(None) => None,
            Err(error) => {
                output.dead_letter(position, &error.to_string(), row.json.as_bytes());
                None
            }
        }
    }

    /// Reports a row that has no place among the known ones, once.
    fn tell(&mut self, hash: Hash, position: &str, reason: &str, row: &Row<'_>, output: &CorpusOutput) {
        let is_new = if self.told.len() < TOLD { self.told.insert(hash) } else { !self.told.contains(&hash) };
        if is_new {
            output.dead_letter(position, reason, row.json.as_bytes());
        }
    }

    /// Deletes those of these ids that the reading has not found.
    pub(super) fn delete_unfound(&mut self, ids: &[String], output: &CorpusOutput) -> Result<(), Stopped> {
        for id in ids {
            if self.known.get(&**id).is_some_and(|known| known.found != self.reading) {
                self.delete(id, output)?;
            }
        }
        Ok(())
    }

    /// Deletes everything that the reading has not found.
    pub(super) fn delete_others(&mut self, output: &CorpusOutput) -> Result<(), Stopped> {
        let others = self.known.iter().filter(|(_, known)| known.found != self.reading);
        let others: Vec<Arc<str>> = others.map(|(id, _)| id.clone()).collect();
        others.iter().try_for_each(|id| self.delete(id, output))
    }

    fn delete(&mut self, id: &str, output: &CorpusOutput) -> Result<(), Stopped> {
        if let Some((id, known)) = self.known.remove_entry(id)
            && known.is_document
        {
            let changes = match &mut self.keys {
                Some(keys) => keys.change(&id, None).0,
                None => vec![(id, None)],
            };
            for (id, document) in changes {
                output.change(id, document)?;
                self.changes += 1;
            }
        }
        Ok(())
    }

    /// Commits the changes, if there are any, or in any case.
    pub(super) fn commit(&mut self, in_any_case: bool, output: &CorpusOutput) -> Result<(), Stopped> {
        if in_any_case || self.changes > 0 {
            output.commit()?;
            self.changes = 0;
        }
        Ok(())
    }
}

fn tell_large(row: &Row<'_>, most: u64, position: &str, output: &CorpusOutput) {
    let reason = format!("the row has {} bytes, more than `max_bytes` ({most})", row.bytes);
    output.dead_beginning(position, &reason, row.json.as_bytes());
}
