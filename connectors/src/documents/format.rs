//! How a document is stored: one byte with the version of the format, and JSON.

use turnflow_engine::connector::StoredDocument;
use turnflow_engine::wording::JsonError;

/// The version of the format.
const VERSION: u8 = 1;

pub(super) fn encode(document: &StoredDocument) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = vec![VERSION];
    serde_json::to_writer(&mut bytes, document)?;
    Ok(bytes)
}

/// Decodes a document, or returns why the bytes are not one.
pub(super) fn decode(bytes: &[u8]) -> Result<StoredDocument, String> {
    match bytes.split_first() {
        Some((&VERSION, json)) => {
            serde_json::from_slice(json).map_err(|error| format!("not a document: {}", JsonError::from(error)))
        }
        Some((version, _)) => {
            Err(format!("format {version} is not supported; this version of turnflow reads only {VERSION}"))
        }
        None => Err("it is empty".to_owned()),
    }
}
