//! Reads which passages an index has stored, when it is opened.

use std::io;
use std::ops::Range;

use tantivy::directory::OwnedBytes;
use tantivy::error::DataCorruption;
use tantivy::fastfield::{AliveBitSet, write_alive_bitset};
use tantivy::schema::Field;
use tantivy::schema::document::{
    DeserializeError, DocumentDeserialize, DocumentDeserializer, ValueDeserialize, ValueDeserializer, ValueVisitor,
};
use tantivy::{BitSet, SegmentReader, TantivyError};
use turnflow_engine::document::ContentHash;

use super::entries::{Entry, Passage};
use super::index::Fields;
use super::share::{shares, threads};
use crate::cores::each;

/// Reads the stored passages of all segments on all cores, in their order.
pub(super) fn stored(segments: &[SegmentReader], fields: &Fields) -> Result<Vec<Entry>, TantivyError> {
    let sizes: Vec<usize> = segments.iter().map(|segment| segment.max_doc() as usize).collect();
    let read = each(&shares(&sizes, threads(sizes.iter().sum())), |share| {
        let mut entries = Vec::with_capacity(share.iter().map(|(_, numbers)| numbers.len()).sum());
        for (at, numbers) in share {
            let segment = &segments[*at];
            let (documents, alive) = (segment.get_store_reader(1)?, among(segment, numbers)?);
            let mut found = 0;
            for document in documents.iter::<Document>(alive.as_ref()) {
                entries.extend(document?.entry(fields));
                found += 1;
            }
            if found != alive.map_or(numbers.len(), |alive| alive.num_alive_docs()) {
                return Err(DataCorruption::comment_only("documents are missing").into());
            }
        }
        Ok(entries)
    });
    let read = read.into_iter().collect::<Result<Vec<Vec<Entry>>, TantivyError>>()?;
    let mut entries = Vec::with_capacity(read.iter().map(Vec::len).sum());
    read.into_iter().for_each(|some| entries.extend(some));
    Ok(entries)
}

/// The live documents among these; `None` if it is all of the segment.
fn among(segment: &SegmentReader, numbers: &Range<u32>) -> io::Result<Option<AliveBitSet>> {
    let alive = segment.alive_bitset();
    if *numbers == (0..segment.max_doc()) {
        return Ok(alive.cloned());
    }
    let mut set = BitSet::with_max_value(segment.max_doc());
    for number in numbers.clone().filter(|number| alive.is_none_or(|alive| alive.is_alive(*number))) {
        set.insert(number);
    }
    let mut bytes = Vec::new();
    write_alive_bitset(&set, &mut bytes)?;
    Ok(Some(AliveBitSet::open(OwnedBytes::new(bytes))))
}

/// A stored value.
enum Value {
    Text(String),
    Number(u64),
    Bytes(Vec<u8>),
}

/// The stored values of a document, by the numbers of their fields.
#[derive(Default)]
struct Document([Option<Value>; Fields::STORED]);

impl Document {
    fn text(&mut self, field: Field) -> Option<String> {
        match self.0.get_mut(field.field_id() as usize)?.take()? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn number(&mut self, field: Field) -> Option<u64> {
        match self.0.get_mut(field.field_id() as usize)?.take()? {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    fn hash(&mut self, field: Field) -> Option<ContentHash> {
        match self.0.get_mut(field.field_id() as usize)?.take()? {
            Value::Bytes(bytes) => Some(ContentHash(bytes.try_into().ok()?)),
            _ => None,
        }
    }

    /// The passage; `None` if the document lacks a field.
    fn entry(mut self, fields: &Fields) -> Option<Entry> {
        let (row, length) = (self.number(fields.row)?, self.number(fields.length)?);
        let (id, hash) = (self.text(fields.id)?, self.hash(fields.hash)?);
        Some(Entry::new(row, length as u32, hash, Passage::Stored(id.into())))
    }
}

impl DocumentDeserialize for Document {
    fn deserialize<'de, D: DocumentDeserializer<'de>>(mut deserializer: D) -> Result<Self, DeserializeError> {
        let mut document = Self::default();
        while let Some((field, value)) = deserializer.next_field::<Value>()? {
            if let Some(place) = document.0.get_mut(field.field_id() as usize) {
                place.get_or_insert(value);
            }
        }
        Ok(document)
    }
}

impl ValueDeserialize for Value {
    fn deserialize<'de, D: ValueDeserializer<'de>>(deserializer: D) -> Result<Self, DeserializeError> {
        deserializer.deserialize_any(ToValue)
    }
}

/// Any other type is an error: the schema has none.
struct ToValue;

impl ValueVisitor for ToValue {
    type Value = Value;

    fn visit_string(&self, text: String) -> Result<Value, DeserializeError> {
        Ok(Value::Text(text))
    }

    fn visit_u64(&self, number: u64) -> Result<Value, DeserializeError> {
        Ok(Value::Number(number))
    }

    fn visit_bytes(&self, bytes: Vec<u8>) -> Result<Value, DeserializeError> {
        Ok(Value::Bytes(bytes))
    }
}
