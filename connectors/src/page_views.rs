//! The pages of a source's PDF files as pictures.

use std::path::Path;

use turnflow_engine::connector::ConnectorError;

use crate::readers::{Format, ReadOptions, page_png};

/// Draws a page of a document's file, if it is a PDF; `content` reads the file, and returns `None` if it is gone.
pub(crate) fn draw(
    document: &str,
    (page, passage): (u32, &str),
    reading: &ReadOptions,
    content: impl FnOnce() -> Result<Option<Vec<u8>>, ConnectorError>,
) -> Result<Option<Vec<u8>>, ConnectorError> {
    if Format::of(Path::new(document)) != Some(Format::Pdf) {
        return Ok(None);
    }
    let Some(bytes) = content()? else { return Ok(None) };
    let drawn = page_png(&bytes, page, passage, reading);
    drawn.map(Some).map_err(|error| ConnectorError::Unreadable { reason: error.to_string() })
}
