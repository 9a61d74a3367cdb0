//! Reads a file of the directory: sends its document or its rows, or reports why there is none.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Datelike, SecondsFormat};
use turnflow_engine::connector::Stopped;
use turnflow_engine::document::Document;
use turnflow_engine::metadata::Metadata;

use super::{Known, Tree, is_gone, shown};
use crate::readers::jsonl::{Reading, Rows};
use crate::readers::{self, Format, ReadError};
use crate::watch::{FileStamp, WRITING};

/// Maximum number of bytes of an oversized file that are kept in its dead letter.
const DEAD_BYTES: usize = 4096;

/// Why a file was not read.
enum Fault {
    /// An error of the file, with the bytes that were read.
    Read(ReadError, Vec<u8>),
    /// The engine is stopping.
    Stopped(Stopped),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Read(error.into(), Vec::new())
    }
}

impl From<Stopped> for Fault {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

/// Whether a file has further names, through which it can be changed without an event here.
fn has_other_names(metadata: &fs::Metadata) -> bool {
    #[cfg(unix)]
    {
        std::os::unix::fs::MetadataExt::nlink(metadata) > 1
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        false
    }
}

/// The document's metadata with the path, the media type and the time of modification, where the file itself has no
/// field of the name.
fn with_facts(document: &Document, format: Format, modified: Option<&str>) -> Metadata {
    let facts = [("path", Some(&*document.id)), ("mime", Some(format.mime())), ("modified", modified)];
    facts.into_iter().fold(document.metadata.clone(), |metadata, (name, value)| match value {
        Some(value) => metadata.with_default(name, value.into()),
        None => metadata,
    })
}

/// A time in UTC as RFC 3339, with seconds; `None` if it is outside of the years that have four digits.
pub(super) fn written(time: SystemTime) -> Option<String> {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).ok()?,
        // Rounds down, as for later times.
        Err(before) => -i64::try_from(before.duration().as_nanos().div_ceil(1_000_000_000)).ok()?,
    };
    let time = DateTime::from_timestamp(seconds, 0).filter(|time| (0..=9999).contains(&time.year()))?;
    Some(time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

impl Tree<'_> {
    /// Whether emptying the file would change its known state.
    fn has_content(&self, path: &Path) -> bool {
        match self.known.get(path) {
            Some(Known::Document(hash, _)) => *hash != blake3::hash(b""),
            Some(Known::Rows(rows)) => !rows.is_empty(),
            Some(Known::Broken(_)) => true,
            None => false,
        }
    }

    pub(super) fn look_at_file(&mut self, path: &Path, is_link: bool, last: bool) -> Result<(), Stopped> {
        let Some(format) = self.wants(path) else { return Ok(()) };
        let place = self.root().join(path);
        let metadata = fs::metadata(&place);
        // Taken before reading, so that a change during the read is detected next time.
        let stamp = FileStamp::of(&place);
        if is_link || metadata.as_ref().is_ok_and(has_other_names) {
            self.links.insert(path.to_owned(), stamp.clone());
        } else {
            self.links.remove(path);
        }
        self.stamps.insert(path.to_owned(), stamp);
        let read = match metadata {
            // Skips directories behind links, and pipes, which could block.
            Ok(metadata) if !metadata.is_file() => Err(io::Error::from(ErrorKind::NotFound).into()),
            Ok(_) if path.to_str().is_none() => {
                Err(io::Error::new(ErrorKind::InvalidData, "its name is not UTF-8 and cannot be an id").into())
            }
            // Most likely the file was truncated to be rewritten.
            Ok(metadata) if !last && metadata.len() == 0 && self.has_content(path) => {
                self.again.push((path.to_owned(), WRITING, true));
                Ok(())
            }
            Ok(_) if format.has_rows() => self.read_rows(path, &place, format, last),
            Ok(_) => self.read_document(path, &place, format),
            Err(error) => Err(error.into()),
        };
        match read {
            Ok(()) => {
                if self.failing.remove(path) {
                    self.output.settled(&shown(path));
                }
                Ok(())
            }
            Err(Fault::Read(ReadError::Io(error) | ReadError::NoReader(error), _)) if self.passes(path, &error) => {
                Ok(())
            }
            Err(Fault::Read(ReadError::Io(error), _)) if is_gone(&error) => self.withdraw(path),
            Err(Fault::Read(error, bytes)) => self.broken(path, &error, &bytes),
            Err(Fault::Stopped(stopped)) => Err(stopped),
        }
    }

    fn read_document(&mut self, path: &Path, place: &Path, format: Format) -> Result<(), Fault> {
        let limit = self.source.max_bytes;
        let mut bytes = Vec::new();
        let file = self.open(place).map_err(|error| Fault::Read(error, Vec::new()))?;
        // Taken before reading, so that a change during the read is detected next time.
        let modified = file.metadata()?.modified().ok().and_then(written);
        // Reading one byte over the limit detects a larger file without trusting its reported size.
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            bytes.truncate(DEAD_BYTES);
            return Err(Fault::Read(ReadError::TooLarge { limit }, bytes));
        }
        let hash = blake3::hash(&bytes);
        if matches!(self.known.get(path), Some(Known::Document(known, at)) if *known == hash && *at == modified) {
            return Ok(());
        }
        match format.read_with(shown(path).into(), &bytes, &self.source.reading) {
            Ok(mut document) => {
                document.metadata = with_facts(&document, format, modified.as_deref());
                self.known.insert(path.to_owned(), Known::Document(hash, modified));
                Ok(self.send(document)?)
            }
            Err(error) => Err(Fault::Read(error, bytes)),
        }
    }

    fn send(&mut self, document: Document) -> Result<(), Stopped> {
        self.changes += 1;
        self.output.change(Arc::clone(&document.id), Some(document))
    }

    fn read_rows(&mut self, path: &Path, place: &Path, format: Format, last: bool) -> Result<(), Fault> {
        let stream = self.open(place).and_then(|file| readers::rows(format, file));
        let stream = stream.map_err(|error| Fault::Read(error, Vec::new()))?;
        let file = shown(path);
        let how = Reading {
            fields: &self.fields,
            prefix: &format!("{file}#"),
            file: &file,
            limit: usize::try_from(self.source.max_bytes).unwrap_or(usize::MAX),
            last,
        };
        let known = self.known.entry(path.to_owned()).or_insert_with(|| Known::Rows(Rows::default()));
        if matches!(known, Known::Broken(_)) {
            *known = Known::Rows(Rows::default());
        }
        let Known::Rows(rows) = known else { return Ok(()) };
        let outcome = rows.update(stream, &how, self.output)?;
        self.changes += outcome.changes;
        if outcome.torn {
            self.again.push((path.to_owned(), self.source.torn, true));
        }
        outcome.error.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Deletes the file's former documents. A link stays known, because its target may appear or return.
    fn withdraw(&mut self, path: &Path) -> Result<(), Stopped> {
        let (link, stamp) = (self.links.remove_entry(path), self.stamps.remove_entry(path));
        self.forget_one(path)?;
        self.links.extend(link);
        self.stamps.extend(stamp);
        Ok(())
    }

    /// Deletes the file's former documents, and reports the error once.
    fn broken(&mut self, path: &Path, error: &ReadError, bytes: &[u8]) -> Result<(), Stopped> {
        let reason = error.to_string();
        let fault = blake3::Hasher::new().update(reason.as_bytes()).update(b"\0").update(bytes).finalize();
        if matches!(self.known.get(path), Some(Known::Broken(known)) if *known == fault) {
            return Ok(());
        }
        self.withdraw(path)?;
        self.output.dead_letter(&shown(path), &reason, bytes);
        self.known.insert(path.to_owned(), Known::Broken(fault));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_in_utc_with_seconds() {
        let at = |seconds| written(UNIX_EPOCH + Duration::from_millis(seconds));
        assert_eq!(at(1_795_643_809_999).as_deref(), Some("2026-11-25T21:56:49Z"));
        assert_eq!(at(0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(written(UNIX_EPOCH - Duration::from_millis(1)).as_deref(), Some("1969-12-31T23:59:59Z"));
        assert_eq!(written(UNIX_EPOCH + Duration::from_secs(1 << 40)), None);
    }
}
