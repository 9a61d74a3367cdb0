//! Paths in pipeline files, which are relative to the file that contains them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// The newtype name that makes the deserializer resolve a [`FilePath`].
pub(super) const PATH_TOKEN: &str = "$turnflow::FilePath";

/// A path in a pipeline file, relative to the directory of that file. On the command line,
/// it is relative to the working directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath {
    /// As written.
    pub written: String,
    /// The resolved path.
    pub path: PathBuf,
}

impl AsRef<Path> for FilePath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl From<&Path> for FilePath {
    fn from(path: &Path) -> Self {
        Self { written: path.display().to_string(), path: path.to_owned() }
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Resolved;
        impl<'de> Visitor<'de> for Resolved {
            type Value = FilePath;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path in quotes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<FilePath, E> {
                Ok(FilePath { written: text.to_owned(), path: text.into() })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FilePath, A::Error> {
                let missing = || de::Error::custom("a path has two forms");
                let written = seq.next_element()?.ok_or_else(missing)?;
                let path: String = seq.next_element()?.ok_or_else(missing)?;
                Ok(FilePath { written, path: path.into() })
            }
        }
        deserializer.deserialize_newtype_struct(PATH_TOKEN, Resolved)
    }
}
