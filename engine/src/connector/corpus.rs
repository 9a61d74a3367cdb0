//! Sources of documents.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Sender, TrySendError};
use parking_lot::Mutex;

use super::{ConnectorError, DocumentStore, Mode, Stop, Stopped, Unreadable};
use crate::dead_letter::DeadLetters;
use crate::document::Document;

/// Maximum size of the documents in the channel, in bytes. A larger document goes through alone.
const CHANNEL_BYTES: usize = 32 << 20;
/// The interval between checks whether the channel has room.
const LOOK: Duration = Duration::from_millis(2);

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
    sent: Arc<Mutex<Sent>>,
    unreadable: Arc<Unreadable>,
}

/// The sizes of the messages that may still be in the channel, the oldest first.
#[derive(Default)]
struct Sent {
    sizes: VecDeque<usize>,
    bytes: usize,
}

impl Sent {
    /// Forgets the received messages: `left` are still in the channel. Returns the bytes of those.
    fn bytes(&mut self, left: usize) -> usize {
        while self.sizes.len() > left {
            self.bytes -= self.sizes.pop_front().unwrap_or_default();
        }
        self.bytes
    }

    fn add(&mut self, size: usize) {
        self.sizes.push_back(size);
        self.bytes += size;
    }
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
        let (commits, sent, unreadable) = Default::default();
        Self { sender, wake, dead, name, stop, commits, sent, unreadable }
    }

    /// Tells here what cannot be read.
    pub(crate) fn telling(self, unreadable: Arc<Unreadable>) -> Self {
        Self { unreadable, ..self }
    }

    /// Upserts a document, or deletes it (`None`). Sending an unchanged document is harmless: the
    /// engine drops it.
    pub fn change(&self, id: impl Into<Arc<str>>, document: Option<Document>) -> Result<(), Stopped> {
        let bytes = document.as_ref().map_or(0, |document| document.title.len() + document.text.len());
        while bytes > 0 && !self.has_room(bytes) {
            (self.wake)();
            if self.stop.wait(LOOK) {
                return Err(Stopped);
            }
        }
        let id = id.into();
        self.unreadable.remove(&id);
        self.send(CorpusEvent::Change(id, document))?;
        self.sent.lock().add(bytes);
        Ok(())
    }

    /// Whether a document of this size fits into the channel, next to those already in it.
    fn has_room(&self, bytes: usize) -> bool {
        let held = self.sent.lock().bytes(self.sender.len());
        held == 0 || held + bytes <= CHANNEL_BYTES
    }

    /// Ends a group of changes, which one epoch publishes together. Returns the number of the commit: 1 for the
    /// source's first.
    pub fn commit(&self) -> Result<u64, Stopped> {
        self.send(CorpusEvent::Commit)?;
        self.sent.lock().add(0);
        (self.wake)();
        Ok(self.commits.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Call this once, after the commit of all documents that existed at the start.
    pub fn ready(&self) -> Result<(), Stopped> {
        self.send(CorpusEvent::Ready)?;
        self.sent.lock().add(0);
        (self.wake)();
        Ok(())
    }

    /// Writes a dead letter for an unreadable record. `position` is the place in the source (`file`,
    /// `file:line`), `record` the bytes (cut to a mebibyte). The status counts it until a document with this id is sent, or
    /// [`settled`](Self::settled) is called.
    pub fn dead_letter(&self, position: &str, reason: &str, record: &[u8]) {
        self.unreadable.add(position, reason);
        self.dead.write(&self.name, position, reason, record);
    }

    /// Writes a dead letter for a record that is too long to read; `beginning` is its first part.
    pub fn dead_beginning(&self, position: &str, reason: &str, beginning: &[u8]) {
        self.unreadable.add(position, reason);
        self.dead.write_beginning(&self.name, position, reason, beginning);
    }

    /// What could not be read at this place is read now, or is gone.
    pub fn settled(&self, position: &str) {
        self.unreadable.remove(position);
    }

    /// Of the rows of a file, whose places are `file:line`, only these cannot be read, each with the reason.
    pub fn settled_rows<'a>(&self, file: &str, bad: impl IntoIterator<Item = &'a (String, String)>) {
        self.unreadable.replace(&format!("{file}:"), bad);
    }

    /// Something that cannot be read, which has a dead letter already.
    pub fn still_unreadable(&self, position: &str, reason: &str) {
        self.unreadable.add(position, reason);
    }

    /// Signals the source when to stop.
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

    /// What shows the pages of its files, if it has any. The engine asks once, before `run`, and
    /// [`Engine::page_views`](crate::run::Engine::page_views) returns it.
    fn page_views(&self) -> Option<Arc<dyn PageViews>> {
        None
    }
}

/// Shows pages of a source's files, as they are now.
pub trait PageViews: Send + Sync {
    /// A page of a document as a PNG file, with a passage marked where its text is found. Pages count from 1. `None` if the
    /// document has no pages, or its file is gone. May take seconds, and some memory: at most a few calls should run at
    /// once.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no such page.
    fn picture(&self, document: &str, page: u32, passage: &str) -> Result<Option<Vec<u8>>, ConnectorError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Markup;

    /// Why it exists: a channel that is bounded in number only held 2 GB of large documents.
    #[test]
    fn a_source_waits_while_large_documents_are_not_received() {
        let (sender, events) = crossbeam_channel::bounded(1024);
        let (stop, stopped) = Stop::new();
        let output = CorpusOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), "docs".into(), stopped);
        let text: Arc<str> = "x".repeat(CHANNEL_BYTES / 3).into();
        let document = |text: &Arc<str>| {
            Some(Document {
                id: "a".into(),
                title: "".into(),
                text: text.clone(),
                markup: Markup::Plain,
                metadata: Default::default(),
            })
        };
        let huge: Arc<str> = "x".repeat(2 * CHANNEL_BYTES).into();
        let all = [text.clone(), text.clone(), text.clone(), text, huge, "small".into()];
        let sent = std::thread::spawn(move || {
            all.iter().map(|text| output.change("a", document(text)).is_ok()).collect::<Vec<_>>()
        });
        for _ in 0..6 {
            let received = events.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(matches!(received, CorpusEvent::Change(..)));
            assert!(events.len() <= 3, "{} documents wait", events.len());
        }
        assert_eq!(sent.join().unwrap(), [true; 6]);
        drop(stop);
    }
}
