//! The description of a copy, and where its parts are.
//!
//! Below `PIPELINE/process-I/CORPUS/INDEX`, there is an object `copy.json`, which describes the copy, and an object
//! `files/HASH` for each content of a file, with the content's hash as its name. An object of that name always has the same
//! content, so nothing that an older description names is ever overwritten, and an upload that was interrupted goes on with
//! what is there.

use std::path::Component;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::store::StoreError;

/// The version of the format.
const FORMAT: u32 = 1;

/// Who wrote a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Writer {
    /// The id of the state directory.
    pub state: String,
    /// The id of the run.
    pub run: String,
}

/// A copy of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copy {
    format: u32,
    pub writer: Writer,
    pub files: Vec<CopiedFile>,
}

/// A file of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CopiedFile {
    /// Its path below the index's directory, with `/` between the parts.
    pub path: String,
    pub bytes: u64,
    /// The hash of its content, in hexadecimal digits.
    pub hash: String,
    /// Time of its last change on the writer's disk, in nanoseconds since 1970.
    pub modified_ns: u64,
    /// Its number on the writer's disk. Clocks of file systems are coarse, so the time is not enough.
    pub inode: u64,
}

impl Copy {
    pub fn new(writer: Writer, files: Vec<CopiedFile>) -> Self {
        Self { format: FORMAT, writer, files }
    }

    /// Reads a description. A path that leads out of the index's directory is an error.
    pub fn parse(bytes: &[u8]) -> Result<Self, StoreError> {
        let damaged = |reason: String| StoreError::Damaged(format!("its description cannot be read: {reason}"));
        let copy: Self = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if copy.format != FORMAT {
            let reason = format!("the copy has the format {}, and this version reads {FORMAT}", copy.format);
            return Err(StoreError::Refused(reason));
        }
        let is_below = |path: &str| {
            !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
        };
        let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        match copy.files.iter().find(|file| !is_below(&file.path) || !is_hash(&file.hash)) {
            Some(file) => Err(damaged(format!("it names the file `{}`", file.path))),
            None => Ok(copy),
        }
    }

    pub fn to_bytes(&self) -> Result<Vec<u8>, StoreError> {
        serde_json::to_vec(self).map_err(|error| StoreError::Failed(error.to_string()))
    }

    /// Its size, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// The key of a copy's description.
pub(super) fn description(place: &str) -> String {
    format!("{place}/copy.json")
}

/// The key of the objects of a copy's files.
pub(super) fn objects(place: &str) -> String {
    format!("{place}/files")
}

/// The key of the object with this content.
pub(super) fn object(place: &str, hash: &str) -> String {
    format!("{place}/files/{hash}")
}

/// The place of an index's copy. The parts are file names, as in a state directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The number of the process.
    pub process: usize,
    pub corpus: String,
    pub index: String,
}

impl Place {
    /// The place below that of a pipeline.
    pub fn key(&self, pipeline: &str) -> String {
        let Self { process, corpus, index } = self;
        format!("{pipeline}/process-{process}/{corpus}/{index}")
    }

    /// The place that an object belongs to, from its key.
    pub fn of(key: &str, pipeline: &str) -> Option<Self> {
        let mut parts = key.strip_prefix(pipeline)?.strip_prefix("/process-")?.split('/');
        let process = parts.next()?.parse().ok()?;
        let (corpus, index) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        parts.next().map(|_| Self { process, corpus, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_leads_nowhere_else() {
        let writer = Writer { state: "s".into(), run: "r".into() };
        let of = |path: &str| {
            let file = CopiedFile { path: path.into(), bytes: 1, hash: "ab".repeat(32), modified_ns: 0, inode: 0 };
            Copy::new(writer.clone(), vec![file])
        };
        let good = of("vectors.lance/data/a");
        assert_eq!(Copy::parse(&good.to_bytes().unwrap()).unwrap(), good);
        for path in ["../a", "/a", "", "a/../../b"] {
            assert!(Copy::parse(&of(path).to_bytes().unwrap()).is_err(), "{path}");
        }
        let newer = Copy { format: 2, ..good };
        assert!(Copy::parse(&newer.to_bytes().unwrap()).unwrap_err().to_string().contains("the format 2"));
    }

    #[test]
    fn a_place_is_known_by_its_objects() {
        let place = Place { process: 3, corpus: "docs".into(), index: "dense-1".into() };
        let key = place.key("p");
        assert_eq!(key, "p/process-3/docs/dense-1");
        assert_eq!(Place::of(&description(&key), "p"), Some(place.clone()));
        assert_eq!(Place::of(&object(&key, "ab"), "p"), Some(place));
        assert_eq!(Place::of("p/process-x/docs/dense-1/copy.json", "p"), None);
        assert_eq!(Place::of("p2/process-1/docs/dense-1/copy.json", "p"), None);
    }
}
