//! Documents under keys, as in a compacted topic or a bucket of keys: the last value of a key is the document, and an
//! empty value deletes it.

use serde_json::{Map, Value};
use turnflow_engine::component::config;
use turnflow_engine::document::{Document, Markup};
use turnflow_engine::metadata::Metadata;
use turnflow_engine::odd_json;
use turnflow_engine::panics::caught;

use crate::readers::jsonl::{Fields, RowError, of_object};

/// How a value is read as a document. The document's id is the key.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum ValueFormat {
    /// A JSON object with the fields `text` and `title`; the others are metadata.
    #[default]
    Json,
    /// The text itself, without markup.
    Text,
    /// The text itself, in Markdown.
    Markdown,
}

/// Builds the document under a key. Also returns the names of the fields that are too large and left out.
///
/// # Errors
///
/// The value is not a document, or the key is empty.
pub(crate) fn document(
    key: &str,
    value: &[u8],
    format: ValueFormat,
    fields: &Fields,
) -> Result<(Document, Vec<String>), RowError> {
    if key.is_empty() {
        return Err(RowError::Missing("key".to_owned()));
    }
    let text = std::str::from_utf8(value).map_err(|error| RowError::Utf8(error.valid_up_to()))?;
    if format == ValueFormat::Json {
        let (mut row, odd): (Map<String, Value>, _) = odd_json::read(text)?;
        if !odd.is_empty() {
            let fields = odd.join(", ");
            tracing::warn!(key, fields, "a document has values that JSON cannot hold; they were left out");
        }
        row.shift_remove(&fields.id);
        return of_object(key.into(), row, fields);
    }
    let plain = |title: &str, text: &str, markup, metadata| {
        (Document { id: key.into(), title: title.into(), text: text.into(), markup, metadata }, Vec::new())
    };
    match format {
        ValueFormat::Markdown => {
            let content = caught(|| crate::readers::markdown::read(text))?;
            Ok(plain(&content.title, &content.text, content.markup, content.metadata))
        }
        _ => Ok(plain("", text, Markup::Plain, Metadata::default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_the_id() {
        let fields = Fields::default();
        let read =
            |format, value: &str| document("a/b", value.as_bytes(), format, &fields).map(|(document, _)| document);
        let row = read(ValueFormat::Json, r#"{"_id": "other", "title": "T", "text": "x", "lang": "en"}"#).unwrap();
        assert_eq!((&*row.id, &*row.title, &*row.text), ("a/b", "T", "x"));
        assert_eq!(Value::Object(row.metadata.to_json()), serde_json::json!({"lang": "en"}));
        let text = read(ValueFormat::Text, "# No heading").unwrap();
        assert_eq!((&*text.title, &*text.text), ("", "# No heading"));
        assert_eq!(
            &*read(ValueFormat::Markdown, "---\nlang: en\n---\n# A heading\n\nText.").unwrap().title,
            "A heading"
        );
    }

    #[test]
    fn what_is_no_document_says_why() {
        let read = |key: &str, value: &[u8]| {
            document(key, value, ValueFormat::Json, &Fields::default()).unwrap_err().to_string()
        };
        assert_eq!(read("", b"{}"), "`key` is missing");
        assert_eq!(read("a", b"{}"), "`text` is missing");
        assert_eq!(read("a", b"\xff"), "not UTF-8: invalid byte at offset 0");
        assert!(read("a", b"[1]").starts_with("not a JSON object"));
    }
}
