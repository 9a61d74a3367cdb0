//! Files that a source fetches from elsewhere: objects of a bucket, files of a commit, pages of a site. Remembers which
//! version of each file was sent, so that a source fetches and sends only what has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnflow_engine::connector::{CorpusOutput, Stopped};

use crate::readers::jsonl::{Fields, Reading, Rows};
use crate::readers::{self, Format, ReadError, ReadOptions};

/// Maximum size of a row, unless the file is larger.
const MAX_ROW_BYTES: usize = 16 << 20;
/// Maximum number of bytes of a file that are kept in its dead letter.
const DEAD_BYTES: usize = 4096;

/// What was last sent for a file.
enum Sent {
    Document,
    /// Rows of a `.jsonl` file.
    Rows(Rows),
    /// A dead letter.
    Broken,
}

struct Known {
    version: Arc<str>,
    sent: Sent,
}

/// A file as it was fetched.
pub(crate) struct File<'a> {
    /// Its path, which is the document's id.
    pub(crate) path: &'a str,
    /// Identifies its content: another content has another version.
    pub(crate) version: &'a str,
    pub(crate) format: Format,
    /// Metadata of the source, for fields that the file itself does not have. Rows of a `.jsonl` file get none.
    pub(crate) facts: &'a [(&'a str, String)],
}

/// The files of a source, by path, as they were last sent.
#[derive(Default)]
pub(crate) struct Fetched {
    reading: ReadOptions,
    fields: Fields,
    known: BTreeMap<Arc<str>, Known>,
}

impl Fetched {
    /// Without files yet.
    pub(crate) fn new(reading: ReadOptions) -> Self {
        Self { reading, ..Self::default() }
    }

    /// Whether this version of the file is what was last sent, or was found to be unreadable.
    pub(crate) fn has(&self, path: &str, version: &str) -> bool {
        self.known.get(path).is_some_and(|known| *known.version == *version)
    }

    /// Whether anything was sent for the file, or found to be unreadable.
    pub(crate) fn knows(&self, path: &str) -> bool {
        self.known.contains_key(path)
    }

    /// The paths of all files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Arc<str>> {
        self.known.keys()
    }

    /// Sends a file's document or its rows. A file that cannot be read becomes a dead letter, and its former document is
    /// deleted. Returns the number of changes.
    pub(crate) fn put(&mut self, file: &File<'_>, bytes: &[u8], output: &CorpusOutput) -> Result<usize, Stopped> {
        if file.format.has_rows() {
            return self.put_rows(file, bytes, output);
        }
        match file.format.read_with(file.path.into(), bytes, &self.reading) {
            Err(error) => self.fault(file.path, file.version, &error, bytes, output),
            Ok(mut document) => {
                let mut changes = 1;
                if self.known.get(file.path).is_some_and(|known| matches!(known.sent, Sent::Rows(_))) {
                    changes += self.remove(file.path, output)?;
                }
                let mime = ("mime", file.format.mime().to_owned());
                for (name, value) in file.facts.iter().chain([&mime]) {
                    document.metadata = document.metadata.with_default(name, value.as_str().into());
                }
                output.change(Arc::clone(&document.id), Some(document))?;
                self.remember(file.path, file.version, Sent::Document);
                Ok(changes)
            }
        }
    }

    fn put_rows(&mut self, file: &File<'_>, bytes: &[u8], output: &CorpusOutput) -> Result<usize, Stopped> {
        let stream = match readers::rows_of(file.format, bytes) {
            Ok(stream) => stream,
            Err(error) => return self.fault(file.path, file.version, &error, bytes, output),
        };
        let mut changes = 0;
        let mut rows = match self.known.remove(file.path) {
            Some(Known { sent: Sent::Rows(rows), .. }) => rows,
            Some(Known { sent: Sent::Document, .. }) => {
                output.change(file.path, None)?;
                changes += 1;
                Rows::default()
            }
            Some(Known { sent: Sent::Broken, .. }) | None => Rows::default(),
        };
        let prefix = format!("{}#", file.path);
        let (fields, limit) = (&self.fields, MAX_ROW_BYTES.max(bytes.len()));
        let how = Reading { fields, prefix: &prefix, file: file.path, limit, last: true };
        let outcome = rows.update(stream, &how, output);
        self.remember(file.path, file.version, Sent::Rows(rows));
        let outcome = outcome?;
        if let Some(error) = &outcome.error {
            output.dead_letter(file.path, &format!("cannot be read to its end: {error}"), b"");
        }
        Ok(changes + outcome.changes)
    }

    /// Reports a file that cannot be read, once for each version, and deletes its former document. Returns the number of
    /// changes.
    pub(crate) fn fault(
        &mut self,
        path: &str,
        version: &str,
        error: &ReadError,
        bytes: &[u8],
        output: &CorpusOutput,
    ) -> Result<usize, Stopped> {
        if self.has(path, version) {
            return Ok(0);
        }
        let changes = self.remove(path, output)?;
        let reason = error.to_string();
        if bytes.len() > DEAD_BYTES {
            output.dead_beginning(path, &reason, &bytes[..DEAD_BYTES]);
        } else {
            output.dead_letter(path, &reason, bytes);
        }
        self.remember(path, version, Sent::Broken);
        Ok(changes)
    }

    /// Deletes a file's document or its rows. Returns the number of changes.
    pub(crate) fn remove(&mut self, path: &str, output: &CorpusOutput) -> Result<usize, Stopped> {
        output.settled(path);
        output.settled_rows(path, &[]);
        match self.known.remove(path) {
            Some(Known { sent: Sent::Document, .. }) => {
                output.change(path, None)?;
                Ok(1)
            }
            Some(Known { sent: Sent::Rows(mut rows), .. }) => rows.withdraw(output),
            Some(Known { sent: Sent::Broken, .. }) | None => Ok(0),
        }
    }

    fn remember(&mut self, path: &str, version: &str, sent: Sent) {
        self.known.insert(path.into(), Known { version: version.into(), sent });
    }
}

#[cfg(test)]
mod tests {
    use turnflow_engine::connector::{CorpusEvent, Stop};
    use turnflow_engine::dead_letter::DeadLetters;

    use super::*;

    #[test]
    fn only_what_has_changed_is_sent() {
        let (sender, events) = crossbeam_channel::unbounded();
        let (_handle, stop) = Stop::new();
        let dead = DeadLetters::counted();
        let output = CorpusOutput::new(sender, Arc::new(|| {}), dead.clone(), "docs".into(), stop);
        let mut fetched = Fetched::default();
        let mut put = |path: &str, version: &str, bytes: &[u8]| {
            let format = Format::of(path.as_ref()).unwrap();
            let facts = [("url", format!("https://example.org/{path}"))];
            let changes = fetched.put(&File { path, version, format, facts: &facts }, bytes, &output).unwrap();
            assert!(fetched.has(path, version) && !fetched.has(path, "other"));
            let told = events.try_iter().map(|event| match event {
                CorpusEvent::Change(id, None) => format!("-{id}"),
                CorpusEvent::Change(id, Some(document)) => {
                    let url = document.metadata.values("url").first().map(ToString::to_string);
                    format!("{id}={} {}", document.text, url.unwrap_or_default())
                }
                other => panic!("unexpected {other:?}"),
            });
            let mut told: Vec<String> = told.collect();
            told.sort();
            assert_eq!(told.len(), changes);
            told
        };
        assert_eq!(put("a.md", "1", b"one"), ["a.md=one https://example.org/a.md"]);
        assert_eq!(put("a.md", "2", b"\xff"), ["-a.md"]);
        assert_eq!(put("a.md", "3", b"\xff"), [""; 0]);
        let rows = [r#"{"_id": "x", "text": "1"}"#, r#"{"_id": "y", "text": "2"}"#];
        assert_eq!(put("r.jsonl", "1", rows.join("\n").as_bytes()), ["r.jsonl#x=1 ", "r.jsonl#y=2 "]);
        assert_eq!(put("r.jsonl", "2", rows[1].as_bytes()), ["-r.jsonl#x"]);
        assert_eq!(dead.count(), 2);
        assert_eq!(fetched.remove("r.jsonl", &output).unwrap(), 1);
        assert_eq!(fetched.paths().map(|path| &**path).collect::<Vec<_>>(), ["a.md"]);
    }
}
