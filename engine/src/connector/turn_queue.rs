//! Turns that a program submits to the engine, stored until they are answered.

use super::ConnectorError;
use crate::record::TurnRecord;

/// Why turns were not queued.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The queue is full. A later call may succeed.
    #[error("the queue is full: {} without an answer", crate::wording::count(*waiting, "turn"))]
    Full {
        /// The number of waiting turns.
        waiting: u64,
    },
    /// The store of the queue failed, or refused a record.
    #[error(transparent)]
    Connector(#[from] ConnectorError),
}

/// A durable queue of turns, which a source such as `Turns` reads. Each turn is answered exactly once in
/// file sinks, however often the process is killed, and keeps its place in its conversation. All calls
/// block, and any number of threads may call at the same time.
pub trait TurnQueue: Send + Sync {
    /// Adds turns to the end: all of them, or none. They are on disk when it returns. Returns the number of
    /// the last one; numbers count up from 1.
    ///
    /// # Errors
    ///
    /// The queue is full, or its store cannot be written. In the second case, the turns may have been stored
    /// nevertheless.
    fn append(&self, turns: &[TurnRecord]) -> Result<u64, QueueError>;

    /// Number of turns in the queue. A turn leaves it when a checkpoint covers its answer.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    fn waiting(&self) -> Result<u64, ConnectorError>;
}
