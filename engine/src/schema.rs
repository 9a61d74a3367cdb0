//! What a corpus declares about the metadata of its documents: the types of fields, and the field that says who may
//! read a document.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::document::{Chunk, Readers};
use crate::metadata::{FieldValue, Metadata, Numeric};
use crate::odd_json;

/// The type of a field. A list of such values is a value of the type, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum FieldType {
    /// Any text.
    Text,
    /// A whole number. One of more than 64 bits is kept as a text.
    Integer,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A text with a date in ISO 8601, and perhaps a time: `2026-11-25`, `2026-11-25T21:56:49Z`.
    Date,
}

impl FieldType {
    /// Whether a scalar has this type.
    pub fn has(self, value: &FieldValue) -> bool {
        match (self, value) {
            (Self::Text, FieldValue::Text(_))
            | (Self::Boolean, FieldValue::Bool(_))
            | (Self::Integer, FieldValue::Number(Numeric::Int(_) | Numeric::Large(_)))
            | (Self::Number, FieldValue::Number(_)) => true,
            (Self::Date, FieldValue::Text(text)) => is_date(text),
            (Self::Integer | Self::Number, FieldValue::Text(text)) => odd_json::is_wide(text),
            _ => false,
        }
    }

    /// The type in words, with an article.
    pub fn described(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Integer => "a whole number",
            Self::Number => "a number",
            Self::Boolean => "true or false",
            Self::Date => "a date, as in \"2026-11-25\"",
        }
    }
}

/// Whether a text begins with year, month and day, and continues with nothing or with a time.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let Some((day, rest)) = bytes.split_at_checked(10) else { return false };
    let number = |range: std::ops::Range<usize>| {
        day[range].iter().try_fold(0_u32, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u32::from(byte - b'0')))
    };
    let (year, month, date) = (number(0..4), number(5..7), number(8..10));
    let in_range = |part: Option<u32>, most| part.is_some_and(|part| (1..=most).contains(&part));
    year.is_some()
        && in_range(month, 12)
        && in_range(date, 31)
        && day[4] == b'-'
        && day[7] == b'-'
        && matches!(rest.first(), None | Some(b'T' | b't' | b' '))
}

/// What a corpus declares about the metadata of its documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// The field whose values are the groups that may read a document; `None` if everyone may.
    pub access: Option<Arc<str>>,
    /// The declared fields. Other fields are kept without a check.
    pub fields: BTreeMap<Arc<str>, FieldType>,
}

impl Schema {
    /// What is declared, as it is written in a pipeline file: `access: "groups"`, `fields: {"part": Integer}`.
    pub fn explain(&self) -> Vec<String> {
        let access = self.access.iter().map(|field| format!("access: {field:?}"));
        let fields: Vec<String> = self.fields.iter().map(|(name, of)| format!("{name:?}: {of:?}")).collect();
        let fields = (!fields.is_empty()).then(|| format!("fields: {{{}}}", fields.join(", ")));
        access.chain(fields).collect()
    }

    /// What is wrong with a document's metadata, if something is.
    pub fn problem(&self, metadata: &Metadata) -> Option<String> {
        let wrong = |(name, of): (&Arc<str>, &FieldType)| {
            let bad = metadata.values(name).into_iter().find(|value| !of.has(value))?;
            let shown: String = bad.to_json().to_string().chars().take(60).collect();
            Some(format!("the field `{name}` must be {}, not {shown}", of.described()))
        };
        self.fields.iter().find_map(wrong)
    }

    /// Adds a document's metadata to its chunk, and who may read it.
    pub(crate) fn label(&self, chunk: &mut Chunk, metadata: &Metadata) {
        chunk.metadata = metadata.clone();
        if let Some(field) = &self.access {
            chunk.readers = Readers::named(metadata, field);
        }
    }

    /// What is wrong with comparing a field with a value: the field is not declared although others are, or it has
    /// another type.
    pub(crate) fn misuse(&self, field: &str, values: &[FieldValue]) -> Option<String> {
        if self.fields.is_empty() || self.access.as_deref() == Some(field) && !self.fields.contains_key(field) {
            return None;
        }
        let Some(of) = self.fields.get(field) else { return Some("is not declared in `fields`".to_owned()) };
        let bad = values.iter().find(|value| match (of, value) {
            // The beginning of a date can be compared, too.
            (FieldType::Date, FieldValue::Text(_)) | (FieldType::Integer, FieldValue::Number(_)) => false,
            _ => !of.has(value),
        })?;
        Some(format!("is {}, and cannot be compared with {}", of.described(), bad.to_json()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dates_are_in_iso_8601() {
        for (text, expected) in [
            ("2026-11-25", true),
            ("2026-11-25T21:56:49Z", true),
            ("2026-11-25 21:56", true),
            ("2026-13-25", false),
            ("2026-11-32", false),
            ("25.11.2026", false),
            ("2026-11-25x", false),
            ("2026/11/25", false),
            ("", false),
            ("20é6-11-2", false),
        ] {
            assert_eq!(is_date(text), expected, "{text}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_told() {
        let fields = [("date", FieldType::Date), ("size", FieldType::Integer), ("tags", FieldType::Text)];
        let fields = fields.into_iter().map(|(name, of)| (name.into(), of)).collect();
        let schema = Schema { access: None, fields };
        let problem = |value: serde_json::Value| schema.problem(&Metadata::of(value.as_object().unwrap()).0);
        assert_eq!(problem(json!({"date": "2026-01-01", "size": 3, "tags": ["a", "b"], "other": {"x": 1}})), None);
        assert_eq!(problem(json!({})), None);
        let told = problem(json!({"tags": ["a", 7]})).unwrap();
        assert_eq!(told, "the field `tags` must be a text, not 7");
        assert!(problem(json!({"size": 1.5})).unwrap().contains("`size` must be a whole number, not 1.5"));
    }

    #[test]
    fn readers_are_named_by_the_field() {
        let metadata = |value: serde_json::Value| Metadata::of(value.as_object().unwrap()).0;
        let readers = |value| Readers::named(&metadata(value), "groups");
        let staff: [Arc<str>; 1] = ["staff".into()];
        assert!(readers(json!({"groups": "staff"})).include(&staff));
        assert!(readers(json!({"groups": ["x", "staff"]})).include(&staff));
        assert!(readers(json!({"groups": "*"})).include(&[]));
        for none in [json!({}), json!({"groups": []}), json!({"groups": [7]}), json!({"groups": "other"})] {
            assert!(!readers(none.clone()).include(&staff), "{none}");
        }
        assert!(!readers(json!({"groups": "staff"})).include(&["*".into()]), "the principal cannot be everybody");
    }
}
