//! What a connector is: sources of documents and turns, sinks of answers.
//!
//! A source runs on a thread of its own, may block, and hands records over through a
//! bounded channel: when the engine is behind, `send` blocks, which is the back-pressure. A sink
//! is called on a thread of its own as well, and says which answers it has taken.

mod acknowledge;
mod corpus;
mod offsets;
mod sink;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

pub use self::acknowledge::Acknowledgements;
pub use self::corpus::{CorpusEvent, CorpusOutput, CorpusSource};
pub use self::offsets::{Applied, Offsets, SourceOffset};
pub use self::sink::{
    AnswerSink, Delivery, KeptAnswers, NoAnswers, Recovered, RecoveredAnswers, SinkPosition, Syncing,
};
pub use self::turns::{Arrived, SourcedTurn, TurnOutput, TurnSource};
use crate::component::ComponentError;
use crate::panics::Panicked;

/// Whether a source ends when it has read what is there, or goes on with what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read what is there now, then end (`--once`).
    Once,
    /// Follow changes until told to stop.
    Follow,
}

/// Why a source stopped early: the engine is shutting down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the engine is stopping")]
pub struct Stopped;

/// Tells sources that the engine is stopping; cheap to clone and to ask.
#[derive(Clone, Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    // Nothing is ever sent: dropping the only sender wakes every waiting receiver.
    wake: Receiver<()>,
}

/// The end of [`Stop`] that the engine holds; dropping it stops the sources as well.
#[derive(Debug)]
pub struct StopHandle {
    flag: Arc<AtomicBool>,
    _wake: Sender<()>,
}

impl Drop for StopHandle {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Release);
    }
}

impl Stop {
    /// A pair of ends.
    pub fn new() -> (StopHandle, Stop) {
        let (sender, wake) = crossbeam_channel::bounded(0);
        let flag = Arc::new(AtomicBool::new(false));
        (StopHandle { flag: flag.clone(), _wake: sender }, Stop { flag, wake })
    }

    /// Whether the source is to end.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// A receiver that becomes ready (disconnected) when the source is to end; for `select!`.
    pub fn receiver(&self) -> &Receiver<()> {
        &self.wake
    }

    /// Waits for at most `duration`; true if the source is to end.
    pub fn wait(&self, duration: Duration) -> bool {
        self.wake.recv_timeout(duration) != Err(RecvTimeoutError::Timeout) || self.is_set()
    }
}

/// A connector that cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// A file or directory could not be used.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// What was tried, as a verb: `read`, `watch`, `append to`.
        action: &'static str,
        /// The file or directory.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The operating system's file watcher failed.
    #[error("cannot watch `{path}`: {reason}")]
    Watch {
        /// The file or directory.
        path: String,
        /// What the watcher said.
        reason: String,
    },
    /// Another process writes the same file.
    #[error(
        "`{path}` is written by another run of turnflow: stop that one, or give this one a file of its own \
         (answers of two runs in one file could not be told apart after a restart)"
    )]
    InUse {
        /// The file.
        path: String,
    },
    /// The receiver will never take this record: trying again is of no use.
    #[error("refused: {reason}")]
    Refused {
        /// What the receiver said.
        reason: String,
    },
    /// An error of the connector's own.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// The engine is shutting down.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The connector's own code failed.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}
