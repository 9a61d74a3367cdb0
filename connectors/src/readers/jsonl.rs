//! Parses rows of a JSON Lines corpus (BEIR's format) into documents, and finds what has changed in the file since it
//! was last read.
//!
//! The file is streamed. Only the id of a row and the hash of its title and text are kept in memory, so that an edit of
//! one row is a change of one document.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::Arc;

use serde_json::{Map, Value};
use turnflow_engine::connector::{CorpusOutput, Stopped};
use turnflow_engine::document::{ContentHash, Document, Markup};
use turnflow_engine::keyed::{Table, TwoKeys, secret_key};
use turnflow_engine::metadata::Metadata;
use turnflow_engine::odd_json;
use turnflow_engine::panics::{Panicked, caught};

use crate::lines::{Line, LineReader};

/// Names of the fields that hold a row's id, title and text.
#[derive(Clone, Debug)]
pub struct Fields {
    /// The id: a string, or an integer, which is converted to its decimal form.
    pub id: String,
    /// The title: a string; may be missing or null.
    pub title: String,
    /// The text: a string.
    pub text: String,
}

impl Default for Fields {
    /// BEIR's names.
    fn default() -> Self {
        Self { id: "_id".to_owned(), title: "title".to_owned(), text: "text".to_owned() }
    }
}

/// Why a line is not a document.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// Not UTF-8.
    #[error("not UTF-8: invalid byte at offset {0}")]
    Utf8(usize),
    /// Not JSON, or not an object.
    #[error("not a JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// A required field is missing.
    #[error("`{0}` is missing")]
    Missing(String),
    /// A field has an invalid value.
    #[error("`{field}` {problem}")]
    Value {
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An earlier row has the same id.
    #[error("`{field}` {id:?} is already the id of an earlier row, which is kept")]
    Duplicate {
        /// The field.
        field: String,
        /// The id.
        id: String,
    },
    /// The reader panicked.
    #[error("the reader {0}")]
    Panicked(#[from] Panicked),
    /// Longer than the limit.
    #[error("the line has {bytes} bytes, more than {limit}")]
    TooLong {
        /// Length of the line, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        limit: usize,
    },
}

impl RowError {
    /// Whether the line may be the start of a valid row.
    fn may_be_torn(&self) -> bool {
        matches!(self, Self::Utf8(_) | Self::Json(_))
    }
}

/// What a row has that is not in its document as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The fields that are too large and left out.
    pub large: Vec<String>,
    /// The fields with values that JSON cannot hold (see [`odd_json`]).
    pub odd: Vec<String>,
}

/// Parses one line. Fields other than the three are metadata.
///
/// # Errors
///
/// The line is not JSON, or a field is missing or has a wrong type.
pub fn parse(line: &[u8], fields: &Fields) -> Result<(Document, Left), RowError> {
    let line = std::str::from_utf8(line).map_err(|error| RowError::Utf8(error.valid_up_to()))?;
    let (row, odd) = odd_json::read(line)?;
    let (document, large) = of_row(row, fields)?;
    Ok((document, Left { large, odd }))
}

/// The document in a row. Also returns the names of the fields that are too large and left out.
///
/// # Errors
///
/// A field is missing or has a wrong type.
pub fn of_row(mut row: Map<String, Value>, fields: &Fields) -> Result<(Document, Vec<String>), RowError> {
    let wrong = |problem| RowError::Value { field: fields.id.clone(), problem };
    let id = match row.remove(&fields.id) {
        Some(Value::String(id)) if id.is_empty() => return Err(wrong("is empty")),
        Some(Value::String(id)) => id,
        Some(Value::Number(id)) if id.is_f64() => return Err(wrong("is not a whole number")),
        Some(Value::Number(id)) => id.to_string(),
        Some(_) => return Err(wrong("is neither text nor a number")),
        None => return Err(RowError::Missing(fields.id.clone())),
    };
    of_object(id.into(), row, fields)
}

/// The document with this id in an object: a title, a text, and metadata.
pub(crate) fn of_object(
    id: Arc<str>,
    mut row: Map<String, Value>,
    fields: &Fields,
) -> Result<(Document, Vec<String>), RowError> {
    let wrong = |field: &String| RowError::Value { field: field.clone(), problem: "is not text" };
    let title = match row.remove(&fields.title) {
        Some(Value::String(title)) => title.into(),
        Some(Value::Null) | None => Arc::default(),
        Some(_) => return Err(wrong(&fields.title)),
    };
    let text: Arc<str> = match row.remove(&fields.text) {
        Some(Value::String(text)) => text.into(),
        Some(_) => return Err(wrong(&fields.text)),
        None => return Err(RowError::Missing(fields.text.clone())),
    };
    // The fields of an object `metadata` count like those beside it, which take precedence.
    if row.get("metadata").is_some_and(Value::is_object)
        && let Some(Value::Object(inner)) = row.remove("metadata")
    {
        for (name, value) in inner {
            row.entry(name).or_insert(value);
        }
    }
    let (metadata, large) = Metadata::of(&row);
    Ok((Document { id, title, text, markup: Markup::Plain, metadata }, large))
}

/// Settings for reading a file of rows.
pub(crate) struct Reading<'a> {
    /// The names of the fields.
    pub(crate) fields: &'a Fields,
    /// Prefix of each row's id.
    pub(crate) prefix: &'a str,
    /// The file's name in dead letters.
    pub(crate) file: &'a str,
    /// Maximum length of a line, in bytes.
    pub(crate) limit: usize,
    /// Whether to take an unfinished last line as it is.
    pub(crate) last: bool,
}

/// Result of reading a file of rows.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Number of changes that were sent.
    pub(crate) changes: usize,
    /// The file ends in the middle of a row, because someone is writing. Rows that were not found are kept until the
    /// file has been read again, because they may still follow.
    pub(crate) torn: bool,
    /// The read failed early; rows that were not found are kept.
    pub(crate) error: Option<io::Error>,
}

/// A row as it was last sent.
struct Known {
    id: Arc<str>,
    /// The beginnings of the hashes, with a secret key, of its value and of its line.
    content: [u8; 8],
    line: LineHash,
    /// The number of the read in which it was last found.
    found: u32,
}

type LineHash = [u8; 12];

/// The beginning of the hash of these parts. With the key, which is new in each process, nobody can make two rows whose
/// hashes begin alike.
fn beginning<const LENGTH: usize>(key: &[u8; 32], parts: &[&[u8]]) -> [u8; LENGTH] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    let mut beginning = [0; LENGTH];
    hasher.finalize_xof().fill(&mut beginning);
    beginning
}

impl TwoKeys for Known {
    type Other = LineHash;

    fn id(&self) -> &str {
        &self.id
    }

    fn other(&self) -> LineHash {
        self.line
    }
}

/// The rows of one file as they were last sent.
pub(crate) struct Rows {
    /// By id and by line: an unchanged line is not parsed again.
    known: Box<Table<Known>>,
    /// The key of the hashes.
    key: [u8; 32],
    reading: u32,
    /// Bad lines that were reported, so that each is reported only once.
    told: HashSet<ContentHash>,
    /// Fields that were left out of some row because they are too large.
    large: HashSet<String>,
    /// Number of rows with values that JSON cannot hold, each time they were read.
    odd: u64,
}

/// Maximum number of such fields that are told.
const MOST_LARGE: usize = 16;
/// Maximum number of bad lines that are known by their numbers.
const MOST_BAD: usize = 10_000;

/// The hash of a row's value.
fn content(key: &[u8; 32], row: &Document) -> [u8; 8] {
    let fields = match row.metadata.is_empty() {
        true => String::new(),
        false => Value::Object(row.metadata.to_json()).to_string(),
    };
    beginning(key, &[row.title.as_bytes(), row.text.as_bytes(), fields.as_bytes()])
}

impl Default for Rows {
    fn default() -> Self {
        let (known, told, large) = (Box::default(), HashSet::new(), HashSet::new());
        Self { known, key: secret_key(), reading: 0, told, large, odd: 0 }
    }
}

impl Rows {
    /// Reads the file and sends the changes since the last read. Does not commit.
    pub(crate) fn update(
        &mut self,
        stream: impl Read,
        how: &Reading<'_>,
        output: &CorpusOutput,
    ) -> Result<Outcome, Stopped> {
        self.reading = self.reading.wrapping_add(1);
        let mut outcome = Outcome::default();
        let (mut told, mut bad) = (HashSet::new(), Vec::new());
        let mut lines = LineReader::new(stream, how.limit);
        loop {
            let finished = match lines.advance() {
                Ok(finished) => finished,
                Err(error) => {
                    outcome.error = Some(error);
                    break;
                }
            };
            if !finished && !lines.is_inside() {
                break;
            }
            let (bytes, row) = match lines.line() {
                Line::TooLong { start, bytes } => (start, Err(RowError::TooLong { bytes, limit: how.limit })),
                Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                Line::Whole(line) => {
                    let hash = beginning(&self.key, &[line]);
                    if self.stands(&hash) {
                        if finished { continue } else { break }
                    }
                    let row = caught(|| parse(line, how.fields)).map_err(RowError::from).flatten();
                    (line, row.map(|(row, left)| (self.tell_left(row, left, how), hash)))
                }
            };
            match row.and_then(|(row, line)| self.found(row, line, how)) {
                Ok(None) => {}
                Ok(Some(row)) => {
                    outcome.changes += 1;
                    output.change(row.id.clone(), Some(row))?;
                }
                Err(error) if !finished && !how.last && error.may_be_torn() => outcome.torn = true,
                Err(error) => {
                    let reason = error.to_string();
                    let hash = ContentHash::of(&reason, &String::from_utf8_lossy(bytes));
                    let position = format!("{}:{}", how.file, lines.number());
                    if !self.told.contains(&hash) {
                        match error {
                            RowError::TooLong { .. } => output.dead_beginning(&position, &reason, bytes),
                            _ => output.dead_letter(&position, &reason, bytes),
                        }
                    }
                    told.insert(hash);
                    if bad.len() < MOST_BAD {
                        bad.push((position, reason));
                    }
                }
            }
            if !finished {
                break;
            }
        }
        if outcome.torn || outcome.error.is_some() {
            self.told.extend(told);
            return Ok(outcome);
        }
        self.told = told;
        output.settled_rows(how.file, &bad);
        let reading = self.reading;
        for gone in self.known.remove_if(|known| known.found != reading) {
            outcome.changes += 1;
            output.change(gone.id, None)?;
        }
        Ok(outcome)
    }

    /// Tells once about each field that is too large, and about rows with values that JSON cannot hold.
    fn tell_left(&mut self, row: Document, left: Left, how: &Reading<'_>) -> Document {
        if !left.odd.is_empty() {
            self.odd += 1;
            if self.odd.is_power_of_two() {
                tracing::warn!(
                    file = how.file,
                    row = &*row.id,
                    fields = left.odd.join(", "),
                    rows = self.odd,
                    "a row has values that JSON cannot hold; they were left out"
                );
            }
        }
        for field in left.large {
            if self.large.len() < MOST_LARGE && self.large.insert(field.clone()) {
                tracing::warn!(
                    file = how.file,
                    row = &*row.id,
                    field,
                    "a field is too large for metadata and left out"
                );
            }
        }
        row
    }

    /// Whether a line is an unchanged row, found for the first time in this read.
    fn stands(&mut self, line: &LineHash) -> bool {
        let reading = self.reading;
        let Some(slot) = self.known.of_other(line) else { return false };
        let was_found = self.known.update(slot, |known| std::mem::replace(&mut known.found, reading) == reading);
        was_found == Some(false)
    }

    /// Records a row. Returns it with its full id if it is new or changed.
    fn found(&mut self, mut row: Document, line: LineHash, how: &Reading<'_>) -> Result<Option<Document>, RowError> {
        if !how.prefix.is_empty() {
            row.id = format!("{}{}", how.prefix, row.id).into();
        }
        let content = content(&self.key, &row);
        let present = Known { id: row.id.clone(), content, line, found: self.reading };
        let Some(slot) = self.known.of_id(&row.id) else {
            self.known.insert(present);
            return Ok(Some(row));
        };
        if self.known.get(slot).is_some_and(|known| known.found == self.reading) {
            let id = row.id[how.prefix.len()..].to_owned();
            return Err(RowError::Duplicate { field: how.fields.id.clone(), id });
        }
        let old = self.known.update(slot, |known| std::mem::replace(known, present));
        Ok(Some(row).filter(|_| old.is_none_or(|old| old.content != content)))
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Deletes every row, because the file no longer exists. Returns their number.
    pub(crate) fn withdraw(&mut self, output: &CorpusOutput) -> Result<usize, Stopped> {
        self.told.clear();
        let gone = std::mem::take(&mut self.known);
        let rows = gone.len();
        for row in gone.into_values() {
            output.change(row.id, None)?;
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        for (line, row) in [
            (r#"{"_id": "a", "title": "t", "text": "x", "metadata": {}}"#, ("a", "t", "x")),
            (r#"{"_id": 12, "text": ""}"#, ("12", "", "")),
            (r#"{"_id": -3, "title": null, "text": "x"}"#, ("-3", "", "x")),
        ] {
            let (document, _) = parse(line.as_bytes(), &Fields::default()).unwrap();
            assert_eq!((&*document.id, &*document.title, &*document.text), row);
        }
    }

    #[test]
    fn other_fields_are_metadata() {
        let line =
            br#"{"_id": "a", "text": "x", "lang": "en", "n": null, "metadata": {"groups": ["g"], "lang": "de"}}"#;
        let (document, large) = parse(line, &Fields::default()).unwrap();
        let expected = serde_json::json!({"lang": "en", "groups": ["g"]});
        assert_eq!((Value::Object(document.metadata.to_json()), large), (expected, Left::default()));
        let line = format!(r#"{{"_id": "a", "text": "x", "vector": {:?}}}"#, vec![0.5; 4000]);
        let (document, large) = parse(line.as_bytes(), &Fields::default()).unwrap();
        assert!(document.metadata.is_empty() && large.large == ["vector"]);
    }

    #[test]
    fn an_odd_value_costs_its_field_and_not_the_row() {
        let deep = format!(r#""x":{}{}"#, "[".repeat(130), "]".repeat(130));
        for (odd, field) in
            [(r#""by":"Ann \ud83d""#, "by"), (r#""price":1e400"#, "price"), (r#""price":NaN"#, "price"), (&deep, "x")]
        {
            let line = format!(r#"{{"_id":"a","text":"The ferry.","lang":"en",{odd}}}"#);
            let (document, left) = parse(line.as_bytes(), &Fields::default()).unwrap();
            assert_eq!((&*document.text, document.metadata.values("lang").len()), ("The ferry.", 1));
            assert_eq!(left.odd, [field]);
        }
    }

    #[test]
    fn what_is_no_row_says_why() {
        for (line, reason) in [
            (&br#"{"_id": "a""#[..], "not a JSON object: EOF"),
            (b"[]", "not a JSON object: invalid type"),
            (b"{\"_id\": \"\xff\"}", "not UTF-8: invalid byte at offset 9"),
            (br#"{"text": "x"}"#, "`_id` is missing"),
            (br#"{"_id": "", "text": "x"}"#, "`_id` is empty"),
            (br#"{"_id": 1.5, "text": "x"}"#, "`_id` is not a whole number"),
            (br#"{"_id": null, "text": "x"}"#, "`_id` is neither text nor a number"),
            (br#"{"_id": "a"}"#, "`text` is missing"),
            (br#"{"_id": "a", "text": 3}"#, "`text` is not text"),
            (br#"{"_id": "a", "text": "", "title": []}"#, "`title` is not text"),
        ] {
            let error = parse(line, &Fields::default()).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{error} should start with {reason}");
        }
    }

    #[test]
    fn numbers_of_any_size_are_exact() {
        let line = br#"{"_id": 123456789012345678901234567890, "text": "x", "of": 98765432109876543210, "n": -1e25}"#;
        let (document, left) = parse(line, &Fields::default()).unwrap();
        assert_eq!((&*document.id, left.odd.len()), ("123456789012345678901234567890", 0));
        let of = document.metadata.get("of").map(ToString::to_string);
        assert_eq!(of.as_deref(), Some("98765432109876543210"));
    }

    #[test]
    fn the_fields_names_are_free() {
        let fields = Fields { id: "key".to_owned(), title: "name".to_owned(), text: "body".to_owned() };
        let (row, _) = parse(br#"{"key": "k", "name": "n", "body": "b", "text": 7}"#, &fields).unwrap();
        assert_eq!(row.metadata.to_json().get("text"), Some(&Value::from(7)));
        assert_eq!((&*row.id, &*row.title, &*row.text), ("k", "n", "b"));
    }
}
