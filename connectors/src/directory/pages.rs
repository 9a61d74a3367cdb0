//! Shows the pages of the directory's PDF files.

use std::io::{ErrorKind, Read as _};
use std::path::PathBuf;

use turnflow_engine::connector::{ConnectorError, PageViews};

use super::tree::open_inside;
use super::{Directory, Links};
use crate::page_views::draw;
use crate::readers::{ReadError, ReadOptions};

/// Reads the files of the directory as they are now.
pub(super) struct Pages {
    root: PathBuf,
    links: Links,
    max_bytes: u64,
    reading: ReadOptions,
}

impl Pages {
    pub(super) fn of(source: &Directory) -> Self {
        let Directory { root, links, max_bytes, reading, .. } = source;
        Self { root: root.clone(), links: *links, max_bytes: *max_bytes, reading: reading.clone() }
    }

    fn content(&self, document: &str) -> Result<Option<Vec<u8>>, ConnectorError> {
        let unreadable = |error: ReadError| match error {
            ReadError::Io(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            error => Err(ConnectorError::Unreadable { reason: error.to_string() }),
        };
        let read = || {
            let real = self.root.canonicalize()?;
            let file = open_inside(&real.join(document), self.links, &real)?.ok_or(ReadError::Outside)?;
            let mut bytes = Vec::new();
            file.take(self.max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
            match bytes.len() as u64 > self.max_bytes {
                true => Err(ReadError::TooLarge { limit: self.max_bytes }),
                false => Ok(Some(bytes)),
            }
        };
        read().or_else(unreadable)
    }
}

impl PageViews for Pages {
    fn picture(&self, document: &str, page: u32, passage: &str) -> Result<Option<Vec<u8>>, ConnectorError> {
        draw(document, (page, passage), &self.reading, || self.content(document))
    }
}
