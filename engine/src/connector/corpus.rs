//! Sources of documents.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Sender, TrySendError};

use super::{ConnectorError, DocumentStore, Mode, Stop, Stopped};
use crate::dead_letter::DeadLetters;
use crate::document::Document;

/// A message of a corpus source.
#[derive(Clone, Debug)]
pub enum CorpusEvent {
    /// An upsert of the document with this id, or a delete if `None`.
    Change(Arc<str>, Option<Document>),
    /// Ends a group: one epoch publishes all changes since the last commit.
    Commit,
    /// All documents that existed at the start are sent and committed.
    Ready,
    /// The source has ended.
    End,
}

/// Where a corpus source sends documents.
#[derive(Clone)]
pub struct CorpusOutput {
    sender: Sender<CorpusEvent>,
    wake: Arc<dyn Fn() + Send + Sync>,
    dead: DeadLetters,
    name: Arc<str>,
    stop: Stop,
    commits: Arc<AtomicU64>,
}

impl CorpusOutput {
    /// `wake` is called after each commit to unpark the waiting worker; `name` is the `source` of
    /// dead letters.
    pub fn new(
        sender: Sender<CorpusEvent>,
        wake: Arc<dyn Fn() + Send + Sync>,
        dead: DeadLetters,
        name: Arc<str>,
        stop: Stop,
    ) -> Self {
        Self { sender, wake, dead, name, stop, commits: Arc::default() }
    }

    /// Upserts a document, or deletes it (`None`). Sending an unchanged document is harmless: the
    /// engine drops it.
    pub fn change(&self, id: impl Into<Arc<str>>, document: Option<Document>) -> Result<(), Stopped> {
        self.send(CorpusEvent::Change(id.into(), document))
    }

    /// Ends a group of changes, which one epoch publishes together. Returns the number of the commit: 1 for the
    /// source's first.
    pub fn commit(&self) -> Result<u64, Stopped> {
        self.send(CorpusEvent::Commit)?;
        (self.wake)();
        Ok(self.commits.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Call this once, after the commit of all documents that existed at the start.
    pub fn ready(&self) -> Result<(), Stopped> {
        self.send(CorpusEvent::Ready)?;
        (self.wake)();
        Ok(())
    }

    /// Writes a dead letter for an unreadable record. `position` is the place in the source (`file`,
    /// `file:line`), `record` the bytes (cut to a mebibyte).
    pub fn dead_letter(&self, position: &str, reason: &str, record: &[u8]) {
        self.dead.write(&self.name, position, reason, record);
    }

    /// Writes a dead letter for a record that is too long to read; `beginning` is its beginning.
    pub fn dead_beginning(&self, position: &str, reason: &str, beginning: &[u8]) {
        self.dead.write_beginning(&self.name, position, reason, beginning);
    }

    /// Tells the source when to stop.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Signals that the source has ended; the engine calls it. If the channel is full while the
    /// engine stops, closing the channel is the signal.
    pub(crate) fn end(self) {
        let _ = self.send(CorpusEvent::End);
        let wake = self.wake.clone();
        drop(self);
        wake();
    }

    fn send(&self, event: CorpusEvent) -> Result<(), Stopped> {
        let event = match self.sender.try_send(event) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(_)) => return Err(Stopped),
            Err(TrySendError::Full(event)) => event,
        };
        // The worker that must make room may be parked: otherwise only commits wake it.
        (self.wake)();
        crossbeam_channel::select! {
            send(self.sender, event) -> sent => sent.map_err(|_| Stopped),
            recv(self.stop.receiver()) -> _ => Err(Stopped),
        }
    }
}

/// Reads a corpus and follows its changes.
pub trait CorpusSource: Send {
    /// Sends all documents, calls `commit` and `ready`, and with [`Mode::Follow`] sends changes until
    /// `output.stop()` is set. Unreadable records become dead letters.
    ///
    /// # Errors
    ///
    /// The source cannot work at all.
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError>;

    /// The store of its documents, if a program may change them. The engine asks once, before `run`, and
    /// [`Engine::documents`](crate::run::Engine::documents) returns it. `None` for a source that reads its
    /// documents elsewhere.
    fn documents(&self) -> Option<Arc<dyn DocumentStore>> {
        None
    }
}
