//! Indexes: their definitions, the preparation of contents, and the changes of an epoch.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::{IndexError, Inventory, Maintained, MaintenanceLimits, OperatorError, Permitted};
use crate::document::{Chunk, Content};
use crate::metadata::{FieldValue, Metadata};

/// The definition of one index of a corpus. Two retrievers whose definitions have the same key
/// share one index.
pub trait IndexDefinition: Send + Sync {
    /// Unique among the indexes of a corpus, and valid as a directory name. Every setting that
    /// changes the stored data changes the key.
    fn key(&self) -> String;
    /// Opens the index stored in `directory`, which exists and belongs to this index alone. Without
    /// a directory, the index is in memory only.
    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>>;
    /// Reads the contents stored in `directory`, if it exists, without changing anything. `None` for
    /// an index that stores nothing. Unreadable data is reported in [`Inventory::flaws`], not as an
    /// error.
    fn stored<'a>(&'a self, _directory: &'a Path) -> BoxFuture<'a, Option<Inventory>> {
        Box::pin(async { None })
    }
    /// The part of the index's directory that a backup keeps, because models were called for it. `None` if the documents
    /// are enough to make the index again.
    fn backed_up(&self) -> Option<BackedUp> {
        None
    }
    /// The contents of a reader that [`Index::apply`] returned. `None` if the reader has another
    /// type, or the contents of this index cannot be listed.
    fn served(&self, _reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        Ok(None)
    }
    /// Answers a question of another process about the part of the index that this process has
    /// ([`OtherParts::ask`](crate::cluster::OtherParts::ask)). Only the permitted passages may be named. The first poll is
    /// on a worker: what takes longer than a few milliseconds runs on the threads for computations
    /// ([`apart_within`](crate::compute::apart_within)).
    fn answer(
        &self,
        _reader: Arc<dyn Any + Send + Sync>,
        _permitted: Permitted,
        _question: Vec<u8>,
    ) -> BoxFuture<'static, Result<Vec<u8>, OperatorError>> {
        let key = self.key();
        Box::pin(async { Err(OperatorError::Divided(key)) })
    }
}

/// The part of an index that a backup keeps. Its files change in versions: a file gets its name when it is complete, and is
/// removed only when a newer version no longer needs it.
#[derive(Clone, Copy, Debug)]
pub struct BackedUp {
    /// The directory, below that of the index.
    pub directory: &'static str,
    /// The directory of the files that describe a version, below that of the index. Without any, nothing is stored yet.
    pub versions: &'static str,
    /// Whether a name is that of a file that is still being written.
    pub is_temporary: fn(&str) -> bool,
}

/// The changes of an epoch. No chunk is in both lists, and none is in a list twice.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// New chunks.
    pub added: Vec<Arc<Chunk>>,
    /// Removed chunks (same id, same content).
    pub removed: Vec<Arc<Chunk>>,
    /// Set for the first delta after opening: it lists every chunk, and stored chunks that it does
    /// not list must be removed.
    pub whole: bool,
}

impl Delta {
    /// The same without the passages of which only these fields of the metadata differ.
    #[must_use]
    pub fn without_fields(&self, fields: &BTreeSet<String>) -> Self {
        let kept = |metadata: &Metadata| -> Vec<(Arc<str>, FieldValue)> {
            let rest = metadata.fields().filter(|(name, _)| !fields.contains(&***name));
            rest.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let is_same = |one: &Chunk, other: &Chunk| {
            one.hash == other.hash && one.readers == other.readers && kept(&one.metadata) == kept(&other.metadata)
        };
        let by_id = |chunks: &[Arc<Chunk>]| -> BTreeMap<Arc<str>, Arc<Chunk>> {
            chunks.iter().map(|chunk| (chunk.id.clone(), chunk.clone())).collect()
        };
        let (added, removed) = (by_id(&self.added), by_id(&self.removed));
        let differs = |chunk: &&Arc<Chunk>, others: &BTreeMap<Arc<str>, Arc<Chunk>>| {
            others.get(&chunk.id).is_none_or(|other| !is_same(chunk, other))
        };
        Self {
            added: self.added.iter().filter(|chunk| differs(chunk, &removed)).cloned().collect(),
            removed: self.removed.iter().filter(|chunk| differs(chunk, &added)).cloned().collect(),
            whole: self.whole,
        }
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        !self.whole && self.added.is_empty() && self.removed.is_empty()
    }
}

/// The cost of preparing contents.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prepared {
    /// Contents that needed a model call.
    pub embedded: usize,
}

/// Computes the data that new contents need before they can be indexed, such as embeddings. The
/// workers share it.
pub trait Prepare: Send + Sync {
    /// Returns when all data for these contents is computed. Contents with stored data cost nothing.
    /// Called once for each new content.
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>>;
    /// These contents cannot be prepared now, because a server is away. Until they are prepared, changes are applied
    /// without their passages.
    fn set_aside(&self, _contents: &[Content]) {}
    /// Those of the contents that are not prepared, after [`Prepare::prepare`] has failed for all of them. By default all.
    fn lacking(&self, contents: &[Content]) -> Vec<Content> {
        contents.to_vec()
    }
    /// Whether it asks a server, which may not answer for long.
    fn asks_a_server(&self) -> bool {
        false
    }
    /// Asks the server for something short that it has not been asked before, to tell whether it or a content is at fault.
    fn probe(&self) -> BoxFuture<'static, Result<(), IndexError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// In a cluster: from now on, data that another process has is not computed again.
    fn ask_elsewhere(&self, _elsewhere: Arc<dyn Elsewhere>) {}
    /// Answers what this index asks in another process ([`Elsewhere::ask`]).
    fn prepared(&self, _question: Vec<u8>) -> Vec<u8> {
        Vec::new()
    }
}

/// The same index in the other processes of a cluster.
pub trait Elsewhere: Send + Sync {
    /// Asks each process; those that cannot answer are left out.
    fn ask(&self, question: Vec<u8>) -> BoxFuture<'static, Vec<Vec<u8>>>;
}

/// The writer of an index; used by one task at a time.
pub trait Index: Send {
    /// The preparation that contents need before `apply` gets their chunks.
    fn preparation(&self) -> Option<Arc<dyn Prepare>> {
        None
    }
    /// Applies a delta and returns the reader of the new epoch: immutable, and of the type that this
    /// index's operators expect. After a failure, the next delta is `whole`.
    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>>;
    /// Applies a whole delta with the passages that an earlier run has published, before the source is read. Calls no model:
    /// passages whose prepared data is missing are left out.
    fn restore<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        self.apply(delta)
    }
    /// The source is read after [`Index::restore`]: it differs from the restored passages by this delta, which is applied
    /// next. Returns whether no passage was left out; otherwise the next delta is whole.
    fn confirm(&mut self, _difference: &Delta) -> bool {
        true
    }
    /// Takes over the prepared data that is stored in another directory, of a process that is no longer in the cluster.
    /// Returns how much was new.
    fn take_over<'a>(&'a mut self, _from: &'a Path) -> BoxFuture<'a, Result<usize, IndexError>> {
        Box::pin(async { Ok(0) })
    }
    /// Stores prepared data that is not published yet, so that a restart need not prepare it again.
    /// It is called between two deltas.
    fn save(&mut self) -> BoxFuture<'_, Result<(), IndexError>> {
        Box::pin(async { Ok(()) })
    }
    /// The version on disk, which increases with each commit. `None` if nothing is stored.
    fn version(&self) -> Option<u64> {
        None
    }
    /// Merges and compacts the store and deletes obsolete data, within limits. Existing readers stay
    /// valid. It is called between two deltas, never during one, and may be cancelled at any await.
    /// Even without it, the obsolete data is bounded.
    fn maintain(&mut self, _limits: MaintenanceLimits) -> BoxFuture<'_, Result<Maintained, IndexError>> {
        Box::pin(async { Ok(Maintained::default()) })
    }
}
