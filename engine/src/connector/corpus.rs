//! Sources of documents.

use std::sync::Arc;

use crossbeam_channel::{Sender, TrySendError};

use super::{ConnectorError, Mode, Stop, Stopped};
use crate::dead_letter::DeadLetters;
use crate::document::Document;

/// A message of a corpus source.
#[derive(Clone, Debug)]
pub enum CorpusEvent {
    /// The document with this id is now this; `None`: it is gone.
    Change(Arc<str>, Option<Document>),
    /// Everything sent since the last commit belongs together: one epoch publishes all of it.
    Commit,
    /// What was there at the start has been sent (and committed).
    Ready,
    /// The source has ended and will send nothing more.
    End,
}

/// Where a corpus source puts what it reads.
#[derive(Clone)]
pub struct CorpusOutput {
    sender: Sender<CorpusEvent>,
    wake: Arc<dyn Fn() + Send + Sync>,
    dead: DeadLetters,
    name: Arc<str>,
    stop: Stop,
}

impl CorpusOutput {
    /// `wake` is called after each commit, so that the worker that waits is unparked;
    /// `name` is the dead letters' `source`.
    pub fn new(
        sender: Sender<CorpusEvent>,
        wake: Arc<dyn Fn() + Send + Sync>,
        dead: DeadLetters,
        name: Arc<str>,
        stop: Stop,
    ) -> Self {
        Self { sender, wake, dead, name, stop }
    }

    /// A document is now this, or gone (`None`). Sending the value it already has is
    /// harmless: the engine compares and drops it.
    pub fn change(&self, id: impl Into<Arc<str>>, document: Option<Document>) -> Result<(), Stopped> {
        self.send(CorpusEvent::Change(id.into(), document))
    }

    /// Ends a group of changes that one epoch is to publish together.
    pub fn commit(&self) -> Result<(), Stopped> {
        self.send(CorpusEvent::Commit)?;
        (self.wake)();
        Ok(())
    }

    /// To be called once, after the commit of what was there at the start.
    pub fn ready(&self) -> Result<(), Stopped> {
        self.send(CorpusEvent::Ready)?;
        (self.wake)();
        Ok(())
    }

    /// Records something that could not be read. `position` is where in the source
    /// (`file`, `file:line`), `record` the offending bytes (cut to a mebibyte).
    pub fn dead_letter(&self, position: &str, reason: &str, record: &[u8]) {
        self.dead.write(&self.name, position, reason, record);
    }

    /// Records something too long to be read, of which this is the beginning.
    pub fn dead_beginning(&self, position: &str, reason: &str, beginning: &[u8]) {
        self.dead.write_beginning(&self.name, position, reason, beginning);
    }

    /// The engine's wish that this source end.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Says that the source has ended; called by whoever runs the source. The closing of
    /// the channel says so too, for when the channel is full and the engine is stopping.
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
        // The worker that is to make room may be parked: it is otherwise woken by commits only.
        (self.wake)();
        crossbeam_channel::select! {
            send(self.sender, event) -> sent => sent.map_err(|_| Stopped),
            recv(self.stop.receiver()) -> _ => Err(Stopped),
        }
    }
}

/// Reads a corpus and goes on telling its changes.
pub trait CorpusSource: Send {
    /// Sends what is there, `commit`s, says `ready`, and (with [`Mode::Follow`], where it
    /// watches) goes on until `output.stop()` is set. Unreadable records become dead
    /// letters; only a source that cannot work at all returns an error.
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError>;
}
