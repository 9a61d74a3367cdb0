//! Passages that an earlier run has published. A start serves them until it has read the source.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::document::Chunk;
use crate::keyed::Keyed;
use crate::wake::WakeSlot;

/// What a feed and the index writer share of stored passages.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// The source waits until they are served: the first question is answered sooner.
    waits: AtomicBool,
    /// The passages, until they are compared with the source.
    passages: Mutex<Option<Arc<Keyed<Arc<Chunk>>>>>,
}

impl Stored {
    /// Has the source wait until [`Stored::serve`].
    pub fn wait(&self) {
        self.waits.store(true, Ordering::Release);
    }

    /// Whether the source has to wait.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    /// The passages are served now, or cannot be.
    pub fn serve(&self, passages: Option<Keyed<Arc<Chunk>>>, source: &WakeSlot) {
        *self.passages.lock() = passages.map(Arc::new);
        self.waits.store(false, Ordering::Release);
        source.wake();
    }

    /// The passages. A passage that is read and equals one of them need not be kept twice.
    pub fn passages(&self) -> Option<Arc<Keyed<Arc<Chunk>>>> {
        self.passages.lock().clone()
    }

    /// The passages are compared.
    pub fn forget(&self) {
        *self.passages.lock() = None;
    }
}
