//! A file of turns: its mark, the check of its columns, and its rows as turn records.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use arrow_schema::{DataType, Schema};
use chrono::{DateTime, NaiveDateTime};
use serde_json::{Map, Value};
use turnflow_engine::odd_json;

use crate::lines::LineReader;
use crate::readers::columnar::{self, Lines};
use crate::readers::{Format, ReadError};

/// Bytes at the start and at the end of a file that identify it. The end has the file's footer.
const END_BYTES: u64 = 64 << 10;

/// Identifies the content of a file, whatever its name.
pub(super) fn mark(path: &Path) -> io::Result<Arc<str>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    for start in [0, length.saturating_sub(END_BYTES)] {
        let mut end = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        Read::by_ref(&mut file).take(END_BYTES).read_to_end(&mut end)?;
        hasher.update(&end);
    }
    Ok(serde_json::json!({"bytes": length, "ends": hasher.finalize().to_hex().as_str()}).to_string().into())
}

/// The names of the columns.
#[derive(Debug, Clone)]
pub(super) struct Columns {
    pub(super) conversation_id: String,
    pub(super) turn: String,
    pub(super) speaker: String,
    pub(super) text: String,
    pub(super) collection: String,
    pub(super) timestamp: String,
}

/// What a column must hold.
#[derive(Clone, Copy)]
enum Holds {
    Text,
    Id,
    Number,
    Time,
}

impl Holds {
    fn fits(self, kind: &DataType) -> bool {
        let is_text = matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        match (self, kind) {
            (_, DataType::Dictionary(_, values)) => self.fits(values),
            (Self::Text, _) => is_text,
            (Self::Id, _) => is_text || kind.is_integer(),
            (Self::Number, _) => kind.is_integer(),
            (Self::Time, _) => kind.is_numeric() || matches!(kind, DataType::Timestamp(..)),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Id => "text or whole numbers",
            Self::Number => "whole numbers",
            Self::Time => "numbers, or dates with times",
        }
    }
}

impl Columns {
    /// The fields of a turn record: name, column, what it holds, and whether it is required.
    fn fields(&self) -> [(&'static str, &str, Holds, bool); 6] {
        [
            ("conversation_id", &self.conversation_id, Holds::Id, true),
            ("turn", &self.turn, Holds::Number, true),
            ("speaker", &self.speaker, Holds::Text, true),
            ("text", &self.text, Holds::Text, true),
            ("collection", &self.collection, Holds::Text, false),
            ("timestamp", &self.timestamp, Holds::Time, false),
        ]
    }

    /// Checks that a table has the columns.
    fn check(&self, schema: &Schema) -> Result<(), String> {
        for (field, column, holds, is_required) in self.fields() {
            match schema.field_with_name(column) {
                Ok(found) if holds.fits(found.data_type()) => {}
                // A column of nulls.
                Ok(found) if !is_required && found.data_type().is_null() => {}
                Ok(found) => {
                    return Err(format!(
                        "the column `{column}` for `{field}` holds {}, not {}",
                        found.data_type(),
                        holds.words()
                    ));
                }
                Err(_) if !is_required => {}
                Err(_) => {
                    let there: Vec<String> =
                        schema.fields().iter().take(20).map(|field| format!("`{}`", field.name())).collect();
                    return Err(format!(
                        "there is no column `{column}` for `{field}`; the columns are {}",
                        there.join(", ")
                    ));
                }
            }
        }
        Ok(())
    }

    /// The turn record of a row.
    pub(super) fn turn(&self, row: &[u8]) -> Result<Vec<u8>, String> {
        let mut row: Map<String, Value> = odd_json::exact(&String::from_utf8_lossy(row))
            .map_err(|error| format!("the row cannot be read: {error}"))?;
        let mut turn = Map::new();
        for (field, column, holds, _) in self.fields() {
            let value = match (holds, row.shift_remove(column)) {
                (_, None | Some(Value::Null)) => continue,
                (Holds::Id, Some(Value::Number(id))) => id.to_string().into(),
                (Holds::Time, Some(Value::String(time))) => {
                    seconds(&time).ok_or_else(|| format!("`{field}` is {time}, not a time"))?.into()
                }
                (_, Some(value)) => value,
            };
            turn.insert(field.to_owned(), value);
        }
        for (name, value) in row {
            // Another column may have the name of a field.
            if !self.fields().iter().any(|(field, ..)| *field == name) {
                turn.insert(name, value);
            }
        }
        serde_json::to_vec(&turn).map_err(|error| error.to_string())
    }
}

/// Seconds since the Unix epoch. A time without a zone is in UTC.
fn seconds(time: &str) -> Option<f64> {
    let micros = match DateTime::parse_from_rfc3339(time) {
        Ok(time) => time.timestamp_micros(),
        Err(_) => NaiveDateTime::parse_from_str(time, "%Y-%m-%dT%H:%M:%S%.f").ok()?.and_utc().timestamp_micros(),
    };
    Some(micros as f64 / 1e6)
}

/// A file's rows as JSON, numbered from 1.
pub(super) struct Table {
    pub(super) rows: LineReader<Lines>,
}

impl Table {
    /// Opens a file after `from` rows.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or lacks a column.
    pub(super) fn open(path: &Path, columns: Option<&Columns>, from: u64, limit: usize) -> Result<Self, String> {
        let open = || -> Result<Lines, ReadError> {
            let file = File::open(path)?;
            match Format::of(path) {
                Some(Format::Arrow) => columnar::arrow_from(file, from),
                _ => columnar::parquet_from(file, from),
            }
        };
        let lines = open().map_err(|error| error.to_string())?;
        columns.map_or(Ok(()), |columns| columns.check(lines.schema()))?;
        Ok(Self { rows: LineReader::starting_at(lines, limit, 0, from) })
    }
}
