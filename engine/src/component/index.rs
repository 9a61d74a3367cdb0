//! Indexes: what they are, how contents are prepared for them, and how an epoch changes them.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::{IndexError, Inventory, Maintained, MaintenanceLimits};
use crate::document::{Chunk, Content};

/// What one index of a corpus is; two retrievers whose definitions have the same key
/// share one index.
pub trait IndexDefinition: Send + Sync {
    /// Unique among the indexes of a corpus, and fit for a directory's name. Whatever
    /// changes what is stored changes the key.
    fn key(&self) -> String;
    /// Opens what is stored in `directory`, which exists and is this index's own; without
    /// one, nothing outlives the process.
    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>>;
    /// Reads what is stored in `directory`, if it is there, as it stands and without changing
    /// anything; `None` of an index that keeps nothing. What cannot be read is a flaw of it, not
    /// an error.
    fn stored<'a>(&'a self, _directory: &'a Path) -> BoxFuture<'a, Option<Inventory>> {
        Box::pin(async { None })
    }
    /// What a reader of this index holds, as [`Index::apply`] gave it; `None` if it is of
    /// another type, or this index cannot be looked into.
    fn served(&self, _reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        Ok(None)
    }
}

/// What an epoch changes; no chunk is in both lists, none twice.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Chunks that are new.
    pub added: Vec<Arc<Chunk>>,
    /// Chunks that are gone (same id, same content).
    pub removed: Vec<Arc<Chunk>>,
    /// The first delta after opening names every chunk there is: what is stored and not
    /// named is to go.
    pub whole: bool,
}

/// What preparing contents cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prepared {
    /// Contents that a model had to be asked for.
    pub embedded: usize,
}

/// Computes what new contents need before they can be indexed; shared by the workers.
pub trait Prepare: Send + Sync {
    /// Returns when everything that these contents need is there. What is stored already
    /// costs nothing. Called once for each content that appears.
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>>;
}

/// The writing end of an index; used by one task at a time.
pub trait Index: Send {
    /// What must be computed for contents before `apply` is told of their chunks.
    fn preparation(&self) -> Option<Arc<dyn Prepare>> {
        None
    }
    /// Applies a delta and gives what readers of the new epoch hold: immutable, and of the
    /// type that this index's operators expect. If it fails, the next delta comes `whole`.
    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>>;
    /// Of what is on the disk: counts up with each commit. `None` where nothing is kept.
    fn version(&self) -> Option<u64> {
        None
    }
    /// Merges, compacts and lets go of what has accumulated, within limits. What readers of any
    /// epoch hold goes on being right. It is called between two deltas, never beside one, may
    /// be given up at any await, and what accumulates without it is bounded all the same.
    fn maintain(&mut self, _limits: MaintenanceLimits) -> BoxFuture<'_, Result<Maintained, IndexError>> {
        Box::pin(async { Ok(Maintained::default()) })
    }
}
