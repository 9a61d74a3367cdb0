//! What is known of a file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use turnflow_engine::connector::SourceOffset;

use super::listing::Found;
use super::{Identity, shown};
use crate::known_file::Digest;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Form {
    /// Line by line.
    Lines,
    /// As a whole.
    Whole,
}

/// What is stored about a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    path: String,
    /// The path that it had first, if that was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first: Option<String>,
    device: u64,
    inode: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<u64>,
    /// Size and time of the last change when it was read to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<(u64, u64)>,
    form: Form,
    /// What was read, and how long it is.
    digest: String,
    length: u64,
    /// Of a file that is read as a whole: the hash of its records, and of those without the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    records: Option<(String, String)>,
    /// The file of which this one is a copy, while that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copy_of: Option<u64>,
    /// Whether a record at its end is not complete, and waits for the rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
    /// Whether nothing more is written to it: what it has at its end was given as it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_over: bool,
}

/// A file that was read, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub path: PathBuf,
    pub first: PathBuf,
    pub identity: Identity,
    pub created: Option<u64>,
    pub seen: Option<(u64, u64)>,
    pub form: Form,
    /// What was read of what is in the file, unpacked: the digest of its first `length` bytes.
    pub digest: Digest,
    pub length: u64,
    /// Number of records, and the hashes of all and of all but the last.
    pub line: u64,
    pub records: Option<(String, String)>,
    pub copy_of: Option<u64>,
    /// A record at its end is not complete, and waits for the rest.
    pub waits: bool,
    /// Nothing more is written to it: what it has at its end was given as it is.
    pub is_over: bool,
    /// It is no more where it was, or was rewritten: another file may go on with it.
    pub is_lost: bool,
    /// It is to be looked at again, though it has not changed.
    pub is_pending: bool,
}

impl Entry {
    pub fn new(found: &Found, form: Form) -> Self {
        Self {
            path: found.path.clone(),
            first: found.path.clone(),
            identity: found.identity,
            created: found.created,
            seen: None,
            form,
            digest: Digest::default(),
            length: 0,
            line: 0,
            records: None,
            copy_of: None,
            waits: false,
            is_over: false,
            is_lost: false,
            is_pending: false,
        }
    }

    /// What another process has stored.
    pub fn of(place: &SourceOffset) -> Option<Self> {
        let mark: Mark = serde_json::from_str(&place.log).ok()?;
        let path = PathBuf::from(&mark.path);
        Some(Self {
            first: mark.first.map_or_else(|| path.clone(), PathBuf::from),
            path,
            identity: (mark.device, mark.inode),
            created: mark.created,
            seen: mark.seen,
            form: mark.form,
            digest: Digest::parse(&mark.digest),
            length: mark.length,
            line: place.line,
            records: mark.records,
            copy_of: mark.copy_of,
            waits: mark.waits,
            is_over: mark.is_over,
            is_lost: false,
            is_pending: false,
        })
    }

    /// The place after what was read.
    pub fn place(&self, id: u64) -> SourceOffset {
        let mark = Mark {
            path: shown(&self.path),
            first: (self.first != self.path).then(|| shown(&self.first)),
            device: self.identity.0,
            inode: self.identity.1,
            created: self.created,
            seen: self.seen,
            form: self.form,
            digest: self.digest.told(),
            length: self.length,
            records: self.records.clone(),
            copy_of: self.copy_of,
            waits: self.waits,
            is_over: self.is_over,
        };
        let end = match self.form {
            Form::Lines => self.length,
            Form::Whole => self.line,
        };
        let log = serde_json::to_string(&mark).unwrap_or_default();
        let partition = id.to_string();
        SourceOffset { partition: partition.into(), log: log.into(), generation: 0, end, line: self.line }
    }

    /// Where it is.
    pub fn at(&self) -> (Identity, Option<u64>) {
        (self.identity, self.created)
    }

    /// Whether a file that was found is this one, as far as its inode tells.
    pub fn is_at(&self, found: &Found) -> bool {
        let differs = self.created.zip(found.created).is_some_and(|(known, now)| known != now);
        self.identity == found.identity && !differs
    }

    /// It is in this file now.
    pub fn moved(&mut self, found: &Found) {
        (self.path, self.identity, self.created) = (found.path.clone(), found.identity, found.created);
        self.is_lost = false;
    }

    /// Whether a path is made of one of its own, as rotation and packing make names, in whatever folder.
    pub fn names(&self, path: &Path) -> bool {
        [&self.path, &self.first].into_iter().any(|own| super::identify::is_made_of(path, own))
    }
}
