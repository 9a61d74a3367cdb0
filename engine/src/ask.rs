//! Turns that a caller asks and waits for, beside those that sources bring.
//!
//! [`crate::run::Engine::ask`] gives a stream of [`Event`]s. Such a turn goes through the plan that
//! serves, on the newest snapshot, and takes one of the places that all turns share; callers wait
//! for a place in the order in which they asked. It is in no conversation, and no sink gets its
//! answer: the caller brings the history. Dropping the stream cancels the turn: it leaves the queue
//! if it still waits, and otherwise its calls of models are dropped, also those that are queued.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::Stream;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::language::TextStream;
use crate::record::{AnswerRecord, Item, Utterance, Value};
use crate::turns::{Slots, Waiter};

/// A turn that is asked.
#[derive(Clone, Debug)]
pub struct AskRequest {
    /// What is asked.
    pub text: Arc<str>,
    /// What was said before, the oldest first.
    pub history: Vec<Utterance>,
    /// The conversation, for the record of the answer.
    pub conversation_id: Arc<str>,
    /// The turn's number in it, for the record.
    pub turn: u32,
    /// The collection that the question is put to, for retrievers routed `FromTurn`.
    pub collection: Option<Arc<str>>,
    /// Seconds since the Unix epoch.
    pub timestamp: Option<f64>,
    /// Further fields, as a log's record may have them.
    pub extra: Map<String, Json>,
    /// The turn source in whose place the caller stands; the plan's first, if none is named.
    pub source: Option<Arc<str>>,
    /// Whether what every node gives is told.
    pub trace: bool,
}

impl AskRequest {
    /// One question without a history.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self {
            text: text.into(),
            history: Vec::new(),
            conversation_id: "ask".into(),
            turn: 1,
            collection: None,
            timestamp: None,
            extra: Map::new(),
            source: None,
            trace: false,
        }
    }
}

/// What a caller is told of a turn, in this order: at most one `Started`, any number of `Node` and
/// `Delta`, and one `Answer` or `Failed`, which is the last.
#[derive(Clone, Debug)]
pub enum Event {
    /// The turn has its place, and reads this epoch.
    Started {
        /// The epoch.
        epoch: u64,
    },
    /// What a node gave, if a trace is wanted.
    Node {
        /// The node.
        node: Arc<str>,
        /// What it gave.
        value: Value,
    },
    /// A piece of the text that a model writes. The answer's text may differ from all of them
    /// together: operators remove, for example, citations of passages that were not given.
    Delta {
        /// The node that writes.
        node: Arc<str>,
        /// The piece.
        text: Arc<str>,
    },
    /// The turn has come to its end; a turn on which a node failed has a record too, with the
    /// status `failed`.
    Answer {
        /// As a sink would get it.
        record: Box<AnswerRecord>,
    },
    /// The turn was not begun.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The events of a turn. Dropping it cancels the turn.
pub struct AnswerStream {
    events: mpsc::UnboundedReceiver<Event>,
    cancel: CancellationToken,
}

impl AnswerStream {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// As [`AnswerStream::next`], for callers that are no async functions.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// The turn was not begun, or the run ended before its answer: the reason.
    pub async fn answer(mut self) -> Result<AnswerRecord, String> {
        while let Some(event) = self.next().await {
            match event {
                Event::Answer { record } => return Ok(*record),
                Event::Failed { reason } => return Err(reason),
                Event::Started { .. } | Event::Node { .. } | Event::Delta { .. } => {}
            }
        }
        Err(ENDED.to_owned())
    }
}

impl Stream for AnswerStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context)
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

const ENDED: &str = "the run has ended";

/// The engine's end of an [`AnswerStream`].
pub(crate) struct Caller {
    events: mpsc::UnboundedSender<Event>,
    cancel: CancellationToken,
    trace: bool,
}

impl Caller {
    /// Tells the caller, who may have gone.
    pub fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// What a node gave.
    pub fn observe(&self, node: &str, item: &Item) {
        if self.trace {
            self.tell(Event::Node { node: node.into(), value: item.value.clone() });
        }
    }

    /// Where a node's text goes while it is written.
    pub fn stream(&self, node: &Arc<str>) -> TextStream {
        let (node, events) = (node.clone(), self.events.clone());
        TextStream::new(move |text| {
            let _ = events.send(Event::Delta { node: node.clone(), text: text.into() });
        })
    }

    /// Is cancelled when the caller has gone.
    pub fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }
}

/// A turn that waits to be begun.
pub(crate) struct Asked {
    pub request: AskRequest,
    pub caller: Caller,
}

/// Turns that are asked and not begun.
pub struct AskQueue {
    state: Mutex<State>,
    waiter: Arc<Waiter>,
    sequence: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Those that have a place.
    ready: VecDeque<Asked>,
    /// Those that wait for one, the oldest first.
    waiting: VecDeque<Asked>,
    closed: bool,
}

impl AskQueue {
    /// `wake` has a worker look at the queue.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), waiter: Waiter::new(wake), sequence: AtomicU64::new(0) }
    }

    /// Puts a turn into the queue, of which at most `queued` wait for one of `places`.
    pub fn submit(&self, request: AskRequest, slots: &Slots, places: usize, queued: usize) -> AnswerStream {
        let (sender, events) = mpsc::unbounded_channel();
        let cancel = CancellationToken::new();
        let caller = Caller { events: sender, cancel: cancel.clone(), trace: request.trace };
        let stream = AnswerStream { events, cancel };
        let mut state = self.state.lock();
        if state.closed {
            caller.tell(Event::Failed { reason: ENDED.to_owned() });
            return stream;
        }
        if state.waiting.len() >= queued {
            state.waiting.retain(|asked| !asked.caller.cancel.is_cancelled());
        }
        if state.waiting.len() >= queued {
            let reason = format!("{queued} turns wait already, as many as `conversations.max_queued` admits");
            caller.tell(Event::Failed { reason });
            return stream;
        }
        // With the queue locked: a place that is given is looked for by whoever locks it next.
        match slots.take_or_wait(places, &self.waiter) {
            true => state.ready.push_back(Asked { request, caller }),
            false => state.waiting.push_back(Asked { request, caller }),
        }
        stream
    }

    /// The next turn, which has a place.
    pub(crate) fn next(&self, slots: &Slots, places: usize) -> Option<Asked> {
        let mut state = self.state.lock();
        for _ in 0..self.waiter.granted() {
            match state.waiting.pop_front() {
                Some(asked) => state.ready.push_back(asked),
                // It was let go of while it waited.
                None => slots.give_back(places),
            }
        }
        while let Some(asked) = state.ready.pop_front() {
            if !asked.caller.cancel.is_cancelled() {
                return Some(asked);
            }
            slots.give_back(places);
        }
        None
    }

    /// Numbers turns.
    pub(crate) fn number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Turns that are not begun.
    pub fn len(&self) -> usize {
        let state = self.state.lock();
        state.ready.len() + state.waiting.len()
    }

    /// Whether no turn waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// No turn will be begun any more.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let State { ready, waiting, .. } = &mut *state;
        for asked in ready.drain(..).chain(waiting.drain(..)) {
            asked.caller.tell(Event::Failed { reason: ENDED.to_owned() });
        }
    }
}
