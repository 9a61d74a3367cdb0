//! The object store that a backup is in, as the engine sees it.

use std::fmt::Debug;
use std::io;

use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// The bytes of an object, in pieces of about a megabyte.
pub type Body = BoxStream<'static, Result<Vec<u8>, StoreError>>;

/// Which content of an object was read or written. Each write gives it another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The store's `ETag`.
    pub etag: Option<String>,
    /// The store's version of the object.
    pub version: Option<String>,
}

/// The content of a small object, with its tag.
pub type Tagged = (Vec<u8>, Tag);

/// Why an operation of a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached or does not work; it may work later.
    #[error("{0}")]
    Failed(String),
    /// The store refuses: wrong credentials, no permission, no such bucket. It will refuse again until someone changes
    /// something.
    #[error("{0}")]
    Refused(String),
    /// The object is not the one that was to be replaced.
    #[error("someone else has written the object")]
    Changed,
    /// The file was changed or removed while it was read.
    #[error("the file was changed while it was read")]
    Moved,
    /// What was read is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// A file on this machine cannot be read or written.
    #[error(transparent)]
    Local(#[from] io::Error),
}

/// An object store. Keys are relative to the backup's URL; they consist of ASCII letters, digits, `-`, `_`, `.` and `/`.
///
/// A write is atomic: whoever reads finds the old object or the new one, also if the writer is killed. What is written is
/// found by all reads and listings that begin afterwards.
pub trait BackupStore: Debug + Send + Sync {
    /// The store's address, for messages. It contains no secret.
    fn address(&self) -> &str;

    /// Reads a small object; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The store fails or refuses.
    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Tagged>, StoreError>>;

    /// Writes a small object, if it is still the one with this tag, or if there is none (`None`). Returns the new tag.
    ///
    /// # Errors
    ///
    /// [`StoreError::Changed`] if it is another one; or the store fails or refuses.
    fn replace<'a>(
        &'a self,
        key: &'a str,
        bytes: Vec<u8>,
        tag: Option<&'a Tag>,
    ) -> BoxFuture<'a, Result<Tag, StoreError>>;

    /// Writes an object of this many bytes, whatever was there before. Holds a bounded number of them in memory. If the body
    /// ends with an error, nothing is written.
    ///
    /// # Errors
    ///
    /// The body's error; or the store fails or refuses.
    fn upload<'a>(&'a self, key: &'a str, bytes: u64, body: Body) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Reads an object; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The store fails or refuses, now or within the body.
    fn download<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Body>, StoreError>>;

    /// The keys of all objects below a key.
    ///
    /// # Errors
    ///
    /// The store fails or refuses.
    fn list<'a>(&'a self, below: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>>;

    /// Removes an object, if there is one.
    ///
    /// # Errors
    ///
    /// The store fails or refuses.
    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;
}
