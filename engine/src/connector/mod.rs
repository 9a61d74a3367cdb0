//! Connectors: sources of documents and turns, and sinks of answers.
//!
//! A source runs on its own thread, may block, and sends records through a bounded channel. When the
//! engine is behind, `send` blocks: this is the back-pressure. A sink has its own thread too, and
//! acknowledges answers.

mod acknowledge;
mod alerts;
mod answer_log;
mod corpus;
mod documents;
mod offsets;
mod requests;
mod review;
mod sink;
mod turn_queue;
mod turns;
mod unreadable;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use tokio_util::sync::CancellationToken;

pub use self::acknowledge::Acknowledgements;
pub use self::alerts::{AlertStates, AlertStatus};
pub use self::answer_log::{AnswerLog, AnswersOf, LoggedAnswer};
pub use self::corpus::{CorpusEvent, CorpusOutput, CorpusSource, PageViews};
pub use self::documents::{Deleted, DocumentStore, StoredDocument};
pub use self::offsets::{Applied, Offsets, SourceOffset};
pub use self::requests::{SentReply, SentRequest, TakesRequests};
pub use self::review::{
    Judgement, ReviewDocument, ReviewError, ReviewHit, ReviewItem, ReviewList, ReviewPage, ReviewQueue, Verdict,
};
pub use self::sink::{
    AnswerSink, Delivery, Ends, KeptAnswers, NoAnswers, Recovered, RecoveredAnswers, Search, SinkPosition, Syncing,
};
pub use self::turn_queue::{QueueError, TurnQueue};
pub use self::turns::{Arrived, Hint, SourcedTurn, TakesRecords, TurnOutput, TurnSource};
pub use self::unreadable::Unreadable;
use crate::component::ComponentError;
use crate::panics::Panicked;

/// Whether a source ends after the existing records or follows changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read the existing records, then end (`--once`).
    Once,
    /// Follow changes until [`Stop`] is set.
    Follow,
}

/// Why a source stopped early: the engine is shutting down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the engine is stopping")]
pub struct Stopped;

/// Signals sources that the engine is stopping; cheap to clone and to check.
#[derive(Clone, Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    // Nothing is ever sent: dropping the only sender wakes every waiting receiver.
    wake: Receiver<()>,
    token: CancellationToken,
}

/// The engine's end of [`Stop`]; dropping it stops the sources.
#[derive(Debug)]
pub struct StopHandle {
    flag: Arc<AtomicBool>,
    _wake: Sender<()>,
    token: CancellationToken,
}

impl Drop for StopHandle {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Release);
        self.token.cancel();
    }
}

impl Stop {
    /// A connected pair.
    pub fn new() -> (StopHandle, Stop) {
        let (sender, wake) = crossbeam_channel::bounded(0);
        let (flag, token) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        (StopHandle { flag: flag.clone(), _wake: sender, token: token.clone() }, Stop { flag, wake, token })
    }

    /// Whether the source must end.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// A receiver that becomes ready (disconnected) when the source must end; for `select!`.
    pub fn receiver(&self) -> &Receiver<()> {
        &self.wake
    }

    /// Ends when the source must end, for a source that waits in futures.
    pub async fn stopped(&self) {
        self.token.cancelled().await;
    }

    /// Waits for at most `duration`; true if the source must end.
    pub fn wait(&self, duration: Duration) -> bool {
        self.wake.recv_timeout(duration) != Err(RecvTimeoutError::Timeout) || self.is_set()
    }
}

/// Why a connector failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// A file or directory could not be used.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// The action that failed, as a verb: `read`, `watch`, `append to`.
        action: &'static str,
        /// The file or directory.
        path: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The operating system's file watcher failed.
    #[error("cannot watch `{path}`: {reason}")]
    Watch {
        /// The file or directory.
        path: String,
        /// The watcher's error.
        reason: String,
    },
    /// Another process writes to the same file.
    #[error(
        "`{path}` is written by another run of turnflow: stop that one, or give this one a separate file \
         (answers of two runs in one file could not be told apart after a restart)"
    )]
    InUse {
        /// The file.
        path: String,
    },
    /// A sink's former file belongs to another sink, and has answers that no checkpoint covers.
    #[error(
        "`{path}` has answers of this sink that no checkpoint covers, and belongs to another sink now: they could not be \
         told apart; start once with the sinks' former files, and change them after that"
    )]
    OfAnother {
        /// The file.
        path: String,
    },
    /// Nothing reads the output any more, as when a pipe is closed. The run ends; a restart delivers the rest.
    #[error("nothing reads {output} any more")]
    Unread {
        /// The output, as in `the standard output`.
        output: &'static str,
    },
    /// The receiver refuses this record for good: a retry does not help.
    #[error("refused: {reason}")]
    Refused {
        /// The receiver's reason.
        reason: String,
    },
    /// A file is broken, or its reader has met a limit.
    #[error("{reason}")]
    Unreadable {
        /// What is wrong with it.
        reason: String,
    },
    /// An error specific to the connector.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// The engine is shutting down.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The connector's code panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}
