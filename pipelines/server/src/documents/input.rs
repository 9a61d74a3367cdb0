//! Documents as callers send them.

use serde_json::{Map, Value};
use turnflow_engine::connector::StoredDocument;
use turnflow_engine::document::Markup;
use turnflow_engine::odd_json;

use crate::body::Content;
use crate::error::ApiError;

/// Maximum bytes of an id.
const LONGEST_ID: usize = 1024;

/// Checks an id.
pub(super) fn check_id(id: &str) -> Result<(), ApiError> {
    if id.is_empty() || id.len() > LONGEST_ID {
        return Err(ApiError::bad(format!("a document's id must have 1 to {LONGEST_ID} bytes")).param("id"));
    }
    if id.chars().any(char::is_control) {
        return Err(ApiError::bad("a document's id must not contain control characters").param("id"));
    }
    // Clients remove such parts from the path.
    match id.split('/').any(|part| part == "." || part == "..") {
        true => Err(ApiError::bad("a document's id must not contain `.` or `..` between slashes").param("id")),
        false => Ok(()),
    }
}

/// The documents of a body.
pub(super) fn documents(values: Vec<Value>) -> Result<Vec<StoredDocument>, ApiError> {
    let mut documents: Vec<StoredDocument> = Vec::with_capacity(values.len());
    let mut ids = std::collections::HashSet::new();
    for (at, value) in values.into_iter().enumerate() {
        let document = fields(value, None).map_err(|error| numbered(error, at))?;
        if !ids.insert(document.id.clone()) {
            return Err(numbered(ApiError::bad("another document has the same id").param("id"), at));
        }
        documents.push(document);
    }
    match documents.is_empty() {
        true => Err(ApiError::bad("the body contains no document")),
        false => Ok(documents),
    }
}

fn numbered(mut error: ApiError, at: usize) -> ApiError {
    error.message = format!("document {}: {}", at + 1, error.message);
    error
}

/// The document of a body whose id is in the path; `None` if the body is a file of another format.
pub(super) fn document(id: String, content: &Content) -> Result<Option<StoredDocument>, ApiError> {
    check_id(&id)?;
    if content.is_json() {
        return fields(content.json()?, Some(id)).map(Some);
    }
    // A text in another character set is read like a file.
    let charset = content.charset.as_deref().unwrap_or("utf-8");
    let is_utf8 = ["utf-8", "utf8", "us-ascii"].iter().any(|known| known.eq_ignore_ascii_case(charset));
    if !is_utf8 || content.is_wide() {
        return Ok(None);
    }
    let mut metadata = Map::new();
    match content.mime.as_str() {
        "text/plain" => {}
        "text/markdown" => {
            metadata.insert("mime".to_owned(), "text/markdown".into());
        }
        _ => return Ok(None),
    }
    let text = content.text()?.to_owned();
    Ok(Some(StoredDocument { id, title: None, text, markup: Default::default(), metadata, modified_ms: now_ms() }))
}

/// Reads a document's fields; unknown fields are metadata.
fn fields(value: Value, id: Option<String>) -> Result<StoredDocument, ApiError> {
    let Value::Object(mut fields) = value else {
        return Err(ApiError::bad("a document must be an object with `id`, `text`, optional `title` and `metadata`"));
    };
    let mut text = |names: &[&str]| {
        let found = names.iter().find_map(|name| Some((*name, fields.shift_remove(*name)?)));
        match found {
            None | Some((_, Value::Null)) => Ok(None),
            Some((_, Value::String(text))) => Ok(Some(text)),
            Some((name, _)) => Err(ApiError::bad(format!("`{name}` must be a text")).param(name)),
        }
    };
    let (own, title, body) = (text(&["id", "_id"])?, text(&["title"])?, text(&["text"])?);
    let id = match (id, own) {
        (Some(id), Some(own)) if id != own => {
            return Err(ApiError::bad("the `id` in the body differs from the path").param("id"));
        }
        (Some(id), _) | (None, Some(id)) => id,
        (None, None) => return Err(ApiError::bad("a document must have an `id`").param("id")),
    };
    check_id(&id)?;
    let text = body.ok_or_else(|| ApiError::bad("a document must have a `text`").param("text"))?;
    let given = match fields.shift_remove("metadata") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(given)) => given,
        Some(_) => return Err(ApiError::bad("`metadata` must be an object").param("metadata")),
    };
    // Another value is a field of the document's own.
    let markup = match fields.get("markup").and_then(Value::as_str) {
        Some("markdown") => Markup::Markdown,
        Some("plain") => Markup::Plain,
        _ => Markup::default(),
    };
    fields.retain(|name, value| name != "markup" || !matches!(value.as_str(), Some("markdown" | "plain")));
    let mut metadata = fields;
    for (name, value) in given {
        metadata.entry(name).or_insert(value);
    }
    if metadata.values().any(|value| is_deeper(value, DEEPEST)) {
        return Err(ApiError::bad(format!("the metadata is nested more than {DEEPEST} levels deep")).param("metadata"));
    }
    Ok(StoredDocument { id, title, text, markup, metadata, modified_ms: now_ms() })
}

/// Adds the metadata that a caller gives beside a body which is not JSON.
pub(super) fn add_metadata(document: &mut StoredDocument, given: &str) -> Result<(), ApiError> {
    let wrong = |what: &str| ApiError::bad(format!("`metadata` in the URL must be {what}")).param("metadata");
    let Ok(Value::Object(given)) = odd_json::exact(given) else { return Err(wrong("a JSON object")) };
    if given.values().any(|value| is_deeper(value, DEEPEST)) {
        return Err(wrong(&format!("nested at most {DEEPEST} levels deep")));
    }
    document.metadata.extend(given);
    Ok(())
}

/// Maximum nesting depth of metadata: stored metadata must remain readable.
const DEEPEST: usize = 32;

fn is_deeper(value: &Value, most: usize) -> bool {
    match value {
        Value::Array(values) => most == 0 || values.iter().any(|value| is_deeper(value, most - 1)),
        Value::Object(fields) => most == 0 || fields.values().any(|value| is_deeper(value, most - 1)),
        _ => false,
    }
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_are_not_nested_without_end() {
        let nested = |depth| (0..depth).fold(json!(1), |inner, _| json!([inner]));
        let read = |depth| documents(vec![json!({ "id": "a", "text": "t", "x": nested(depth) })]);
        assert!(read(DEEPEST).is_ok() && read(DEEPEST + 1).is_err() && read(100).is_err());
    }

    #[test]
    fn a_document_has_an_id_and_a_text() {
        let read = |value| documents(vec![value]).map(|mut documents| documents.remove(0));
        let document =
            read(json!({"_id": "a/b", "title": "T", "text": "x", "lang": "en", "metadata": {"k": 1}})).unwrap();
        assert_eq!((document.id.as_str(), document.title.as_deref(), document.text.as_str()), ("a/b", Some("T"), "x"));
        assert_eq!(Value::Object(document.metadata), json!({"lang": "en", "k": 1}));
        let marked = read(json!({"id": "a", "text": "# x", "markup": "markdown"})).unwrap();
        assert_eq!((marked.markup, marked.metadata.len()), (Markup::Markdown, 0));
        let own = read(json!({"id": "a", "text": "x", "markup": "tall"})).unwrap();
        assert_eq!((own.markup, &own.metadata["markup"]), (Markup::Plain, &json!("tall")));
        for (value, param) in [
            (json!({"text": "x"}), Some("id")),
            (json!({"id": "a"}), Some("text")),
            (json!({"id": 7, "text": "x"}), Some("id")),
            (json!({"id": "", "text": "x"}), Some("id")),
            (json!({"id": "a\n", "text": "x"}), Some("id")),
            (json!({"id": "a", "text": "x", "metadata": []}), Some("metadata")),
            (json!("a"), None),
        ] {
            let error = read(value).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, param));
            assert!(error.message.starts_with("document 1: "));
        }
        let twice = vec![json!({"id": "a", "text": "x"}), json!({"id": "a", "text": "y"})];
        assert!(documents(twice).unwrap_err().message.contains("same id"));
    }

    #[test]
    fn a_body_is_json_or_text() {
        let body = |mime: &str, text: &str| {
            let bytes = bytes::Bytes::copy_from_slice(text.as_bytes());
            document("a".to_owned(), &Content { mime: mime.to_owned(), charset: None, bytes, load: None })
        };
        assert_eq!(body("text/plain", "x").unwrap().unwrap().text, "x");
        assert_eq!(body("text/markdown", "# x").unwrap().unwrap().metadata["mime"], "text/markdown");
        assert_eq!(body("application/json", r#"{"text": "x"}"#).unwrap().unwrap().id, "a");
        assert_eq!(body("application/json", r#"{"id": "b", "text": "x"}"#).unwrap_err().status.as_u16(), 400);
        assert_eq!(body("application/pdf", "x").unwrap(), None, "a file");
    }
}
