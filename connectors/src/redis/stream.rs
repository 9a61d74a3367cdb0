//! What identifies a stream, and what it says about itself.
//!
//! A stream has no identity of its own: one that was deleted and made again has the same name, and may give the same ids.
//! So an offset has a hash of the last entry that was read, and of the first one. If another entry has one of these ids
//! now, or if an entry is missing in a stream from which nothing was removed, it is another stream.

use redis::{Connection, Value, cmd};
use serde::{Deserialize, Serialize};
use turnflow_engine::connector::ConnectorError;

use super::failed;
use super::turns::{Entry, bytes, entries_of, id_of, items, offset_of};

/// Identifies a stream in an offset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Mark {
    stream: String,
    /// The last id that it had given when it was first read.
    newest: u64,
    /// Number of entries that had been removed by then; `None` if the server does not count them.
    #[serde(default)]
    removed: Option<u64>,
    /// The first entry that was read, and the hash of the last one.
    #[serde(default)]
    first: Option<(u64, String)>,
    #[serde(default)]
    pub(super) last: Option<String>,
}

impl Mark {
    /// The mark of a stream that is read from its beginning.
    pub(super) fn new(stream: &str, info: Option<&Info>) -> Self {
        let newest = info.map_or(0, |info| info.newest);
        Self { stream: stream.to_owned(), newest, removed: info.map_or(Some(0), Info::removed), ..Self::default() }
    }

    /// Reads a stored mark, also of an earlier version. `None` if it is of another stream.
    pub(super) fn parse(log: &str, stream: &str) -> Option<Self> {
        let earlier = || {
            let (name, newest) = log.rsplit_once('@')?;
            Some(Self { stream: name.to_owned(), newest: newest.parse().ok()?, ..Self::default() })
        };
        serde_json::from_str(log).ok().or_else(earlier).filter(|mark: &Self| mark.stream == stream)
    }

    /// The mark in its stored form.
    pub(super) fn to_log(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// An entry was read.
    pub(super) fn read(&mut self, offset: u64, entry: &Entry) {
        let hash = hash_of(entry);
        self.first.get_or_insert_with(|| (offset, hash.clone()));
        self.last = Some(hash);
    }

    /// Whether the stream is the marked one, which was read up to `end`.
    pub(super) fn standing(
        &self,
        connection: &mut Connection,
        info: &Info,
        end: u64,
    ) -> Result<Standing, ConnectorError> {
        let last = self.last.as_ref().filter(|_| end <= info.newest).map(|hash| (end, hash));
        let first = self.first.as_ref().map(|(offset, hash)| (*offset, hash));
        let mut standing = Standing::Unknown;
        for (offset, hash) in last.into_iter().chain(first) {
            match entry_at(connection, &self.stream, offset)? {
                Some(entry) if hash_of(&entry) == *hash => standing = Standing::Same,
                None if !info.lacks(offset) => {}
                _ => return Ok(Standing::Another),
            }
        }
        Ok(match standing {
            Standing::Unknown if info.newest < end && info.newest < self.newest => Standing::Another,
            standing => standing,
        })
    }

    /// Number of entries that were removed before they were read, if all that were read up to `end` are removed.
    pub(super) fn unread(&self, info: &Info, end: u64, read: u64) -> u64 {
        let is_gap = info.oldest.is_none_or(|oldest| oldest > end);
        let removed = self.removed.zip(info.removed()).filter(|_| is_gap);
        removed.map_or(0, |(then, now)| now.saturating_sub(then).saturating_sub(read))
    }
}

/// Whether a stream is the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Same,
    Another,
    /// The entries that are known are removed.
    Unknown,
}

/// What a stream says about itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    /// The last id that it has given, as an offset.
    pub(super) newest: u64,
    /// The first entry that it has.
    oldest: Option<u64>,
    length: u64,
    /// Number of entries that were ever added, from Redis 7 on.
    added: Option<u64>,
    /// The largest id that was deleted, from Redis 7 on.
    deleted: Option<u64>,
}

impl Info {
    /// Asks for it; `None` if there is no stream.
    pub(super) fn of(connection: &mut Connection, stream: &str) -> Result<Option<Self>, ConnectorError> {
        let exists: bool = cmd("EXISTS").arg(stream).query(connection).map_err(failed)?;
        if !exists {
            return Ok(None);
        }
        let reply: Value = cmd("XINFO").arg("STREAM").arg(stream).query(connection).map_err(failed)?;
        let mut info = Self::default();
        let mut fields = items(reply).into_iter();
        while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
            let number = |value| String::from_utf8(bytes(value)).ok()?.parse().ok();
            let id = |value| offset_of(&String::from_utf8(bytes(value)).ok()?);
            match &bytes(name)[..] {
                b"last-generated-id" => info.newest = id(value).unwrap_or_default(),
                b"length" => info.length = number(value).unwrap_or_default(),
                b"entries-added" => info.added = number(value),
                b"max-deleted-entry-id" => info.deleted = id(value),
                b"first-entry" => info.oldest = items(value).into_iter().next().and_then(id),
                _ => {}
            }
        }
        Ok(Some(info))
    }

    /// Number of entries that were removed.
    fn removed(&self) -> Option<u64> {
        self.added.map(|added| added.saturating_sub(self.length))
    }

    /// Whether an entry that the stream does not have was never removed from it.
    fn lacks(&self, offset: u64) -> bool {
        let is_deleted = self.deleted.is_none_or(|deleted| deleted >= offset);
        let is_trimmed = self.oldest.is_none_or(|oldest| oldest > offset);
        self.removed() == Some(0) || !(is_deleted || is_trimmed)
    }
}

/// The entry with the id of an offset.
pub(super) fn entry_at(
    connection: &mut Connection,
    stream: &str,
    offset: u64,
) -> Result<Option<Entry>, ConnectorError> {
    let id = id_of(offset);
    let reply: Value = cmd("XRANGE").arg(stream).arg(&id).arg(&id).query(connection).map_err(failed)?;
    Ok(entries_of(reply).into_iter().next())
}

/// A hash of an entry's fields.
pub(super) fn hash_of(entry: &Entry) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in entry.fields.iter().flat_map(|(name, value)| [name, value]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_earlier_versions_are_read() {
        let mark = Mark::parse("a@b@17", "a@b").unwrap();
        assert_eq!((mark.newest, mark.last.clone()), (17, None));
        assert_eq!(Mark::parse(&mark.to_log(), "a@b"), Some(mark));
        assert_eq!((Mark::parse("a@17", "b"), Mark::parse("a", "a")), (None, None));
    }

    #[test]
    fn a_missing_entry_was_removed_or_never_there() {
        let info = |added, length, oldest, deleted| Info { newest: 90, oldest, length, added, deleted };
        for (info, lacks) in [
            (info(Some(3), 3, Some(10), Some(0)), true),
            (info(Some(9), 3, Some(10), Some(0)), true),
            (info(Some(9), 3, Some(60), Some(0)), false),
            (info(Some(9), 3, Some(10), Some(50)), false),
            (info(None, 3, Some(10), None), false),
        ] {
            assert_eq!(info.lacks(50), lacks, "{info:?}");
        }
    }
}
