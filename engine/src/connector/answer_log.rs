//! Answers that a program reads.

use tokio::sync::watch;

use super::ConnectorError;
use crate::record::AnswerRecord;

/// An answer in an [`AnswerLog`].
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedAnswer {
    /// Counts up from 1, in the order of delivery.
    pub number: u64,
    /// The answer, a revision, or a retraction.
    pub record: AnswerRecord,
    /// Its size in the log, in bytes.
    pub bytes: usize,
}

/// Which answers of a log are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswersOf<'a> {
    /// All.
    All,
    /// Those of a conversation.
    Conversation(&'a str),
    /// Those to a caller: to turns whose `principal` has this name.
    Caller(&'a str),
}

/// The answers of a sink such as `Answers`, in the order of their delivery, revisions and retractions
/// included. Old answers are removed when there are too many. All calls block, and any number of threads
/// may call at the same time.
pub trait AnswerLog: Send + Sync {
    /// At most `limit` answers with numbers above `after`, the oldest first. May return fewer, to stay within a few
    /// megabytes, but returns none only if no more of these exist. Others cost nothing.
    ///
    /// # Errors
    ///
    /// The store or one of the answers cannot be read.
    fn read(&self, of: AnswersOf<'_>, after: u64, limit: usize) -> Result<Vec<LoggedAnswer>, ConnectorError>;

    /// The number of the last answer, 0 if there is none. The receiver is notified when it changes, and when the
    /// sink no longer exists.
    fn last(&self) -> watch::Receiver<u64>;
}
