//! Turns that callers ask, in addition to the turns of sources.
//!
//! [`crate::run::Engine::ask`] returns a stream of [`Event`]s. Such a turn runs through the current
//! plan on the newest snapshot, and takes one of the slots that all turns share; callers wait for a
//! slot in the order in which they asked. The turn is in no conversation, and no sink gets its
//! answer: the caller supplies the history. Dropping the stream cancels the turn: a waiting turn
//! does not start, and the model calls of a running turn are dropped, queued ones included.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::adjust::Adjustments;
use crate::filter::Filter;
use crate::language::TextStream;
use crate::record::{AnswerRecord, Item, Utterance, Value};
use crate::turns::{Alike, Slots, Waiter};

/// A question of a caller.
#[derive(Clone, Debug)]
pub struct AskRequest {
    /// The question.
    pub text: Arc<str>,
    /// The previous utterances, the oldest first.
    pub history: Vec<Utterance>,
    /// The conversation, for the record of the answer.
    pub conversation_id: Arc<str>,
    /// The turn's number in the conversation, for the record.
    pub turn: u32,
    /// The collection to search, for retrievers with `corpus: FromTurn`.
    pub collection: Option<Arc<str>>,
    /// Seconds since the Unix epoch.
    pub timestamp: Option<f64>,
    /// Further fields, as in a record of a log.
    pub extra: Map<String, Json>,
    /// The turn source in whose place the caller asks; by default the plan's first.
    pub source: Option<Arc<str>>,
    /// Whether the events include the value of every node.
    pub trace: bool,
    /// Whether the events include the texts that models generate, piece by piece. What was sent cannot be taken back, so a
    /// caller who reads only the whole answer gets a better one without: a draft that a model replaces is left out.
    pub stream: bool,
    /// Whether the caller follows the answer: after `Answer`, the stream goes on with a `Revised` whenever the documents
    /// change so that the answer is another one, until it is dropped.
    pub follow: bool,
    /// Whether sinks that take answers to callers get this one: a search is no question of a person.
    pub counts: bool,
    /// The node up to which the turn runs. Nodes that it does not need are not called, so that the turn has no answer; what
    /// it is for is the node's value among the events of `trace`. It is not counted as a turn.
    pub until: Option<Arc<str>>,
    /// Nodes to skip for this turn, and other weights.
    pub adjust: Adjustments,
    /// A condition on the metadata of passages. The turn finds only passages that meet it, in addition to the filters of
    /// the pipeline and the permissions of the principal.
    pub filter: Option<Arc<Filter>>,
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
            stream: true,
            follow: false,
            counts: true,
            until: None,
            adjust: Adjustments::default(),
            filter: None,
        }
    }
}

/// An event of a turn. The order is: at most one `Started`, any number of `Node` and `Delta`, and
/// finally one `Answer` or `Failed`. If the caller follows the answer, any number of `Revised` come after `Answer`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The turn has a slot and reads this epoch.
    Started {
        /// The epoch.
        epoch: u64,
    },
    /// The value of a node, if the request has `trace`.
    Node {
        /// The node.
        node: Arc<str>,
        /// Its value.
        value: Value,
        /// Duration of the operator's call; `None` for the source and for sinks.
        took: Option<Duration>,
        /// The warnings so far, of the form `node: text`.
        warnings: Arc<[String]>,
    },
    /// A piece of the text that a model generates. The answer's text may differ from the joined
    /// pieces: operators remove, for example, citations of passages that were not in the prompt.
    Delta {
        /// The node that generates it.
        node: Arc<str>,
        /// The piece.
        text: Arc<str>,
    },
    /// The turn is complete. If a node failed, the record has the status `failed`.
    Answer {
        /// The record, as a sink would get it.
        record: Box<AnswerRecord>,
    },
    /// The documents have changed, and the answer is another one now.
    Revised {
        /// The new record; its `revision` is greater than that of the last one.
        record: Box<AnswerRecord>,
    },
    /// The turn was not started.
    Failed {
        /// Why.
        reason: AskError,
    },
}

/// Why a turn was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The queue of waiting turns is full. A later call may succeed.
    #[error("the queue of turns is full: the maximum is {queued}, set by `conversations.max_queued`")]
    Full {
        /// The maximum number of waiting turns.
        queued: usize,
    },
    /// The run has ended.
    #[error("the run has ended")]
    Ended,
    /// The pipeline has no turn source in whose place the caller could ask.
    #[error("the pipeline has no turn source")]
    NoSource,
    /// The pipeline has no source of this name.
    #[error("the pipeline has no turn source `{source_name}`")]
    UnknownSource {
        /// The source in the request.
        source_name: Arc<str>,
    },
    /// The changes of the plan do not fit it.
    #[error("`{node}` cannot be adjusted: {problem}")]
    Adjustment {
        /// The node.
        node: Arc<str>,
        /// What is wrong.
        problem: String,
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

    /// The same as [`AnswerStream::next`], for callers that are not async.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// The reason: the turn was not started, or the run ended before its answer.
    pub async fn answer(mut self) -> Result<AnswerRecord, String> {
        while let Some(event) = self.next().await {
            match event {
                Event::Answer { record } => return Ok(*record),
                Event::Failed { reason } => return Err(reason.to_string()),
                Event::Started { .. } | Event::Node { .. } | Event::Delta { .. } | Event::Revised { .. } => {}
            }
        }
        Err(AskError::Ended.to_string())
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

/// The engine's end of an [`AnswerStream`].
#[derive(Clone)]
pub(crate) struct Caller {
    events: mpsc::UnboundedSender<Event>,
    cancel: CancellationToken,
    trace: bool,
    stream: bool,
    follow: bool,
    counts: bool,
    adjust: Adjustments,
    /// By number, the nodes that run; `None` for all.
    runs: Option<Arc<[bool]>>,
}

impl Caller {
    /// The caller of a turn that runs only some nodes.
    pub fn of(self, runs: Option<Arc<[bool]>>) -> Self {
        Self { runs, ..self }
    }

    /// Whether the caller wants this node's value, or one that it is made from.
    pub fn wants(&self, node: usize) -> bool {
        self.runs.as_ref().is_none_or(|runs| runs.get(node).copied().unwrap_or_default())
    }

    /// Whether the turn ends without an answer that anybody waits for: it runs up to a node only, or the caller has left.
    pub fn wants_no_answer(&self) -> bool {
        self.runs.is_some() || self.cancel.is_cancelled()
    }

    /// Whether the caller follows the answer.
    pub fn follows(&self) -> bool {
        self.follow
    }

    /// Whether the caller gets the value of every node.
    pub fn traces(&self) -> bool {
        self.trace
    }

    /// The caller after the first answer: only whole answers are sent.
    pub fn follower(&self) -> Self {
        Self { trace: false, stream: false, ..self.clone() }
    }

    /// Sends an event. The caller may have dropped the stream.
    pub fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Sends the value of a node, if the request has `trace`.
    pub fn observe(&self, node: &str, item: &Item, took: Option<Duration>) {
        if self.trace {
            let (value, warnings) = (item.value.clone(), item.warnings.clone());
            self.tell(Event::Node { node: node.into(), value, took, warnings });
        }
    }

    /// Whether sinks that take answers to callers get this one.
    pub fn counts(&self) -> bool {
        self.counts && self.adjust.is_empty()
    }

    /// What the caller changes in the plan.
    pub fn adjust(&self) -> &Adjustments {
        &self.adjust
    }

    /// The stream for the text that a node generates, if the request has `stream`.
    pub fn stream(&self, node: &Arc<str>) -> TextStream {
        if !self.stream {
            return TextStream::default();
        }
        let (node, events) = (node.clone(), self.events.clone());
        TextStream::new(move |text| {
            let _ = events.send(Event::Delta { node: node.clone(), text: text.into() });
        })
    }

    /// This token is cancelled when the caller drops the stream.
    pub fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }
}

/// A turn that has not started.
pub(crate) struct Asked {
    pub request: AskRequest,
    pub caller: Caller,
    /// An answered question that is nearly this one.
    pub alike: Option<Alike>,
}

/// Asked turns that have not started.
pub struct AskQueue {
    state: Mutex<State>,
    waiter: Arc<Waiter>,
    sequence: AtomicU64,
    answered: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Turns with a slot.
    ready: VecDeque<Asked>,
    /// Turns that wait for a slot, the oldest first.
    waiting: VecDeque<Asked>,
    closed: bool,
}

impl AskQueue {
    /// `wake` makes a worker check the queue.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            state: Mutex::default(),
            waiter: Waiter::new(wake),
            sequence: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// Counts an answer.
    pub fn answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of answers delivered to callers.
    pub fn count(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// The two ends of a turn's events.
    pub(crate) fn open(request: &AskRequest) -> (Caller, AnswerStream) {
        let (sender, events) = mpsc::unbounded_channel();
        let cancel = CancellationToken::new();
        let (cancelled, adjust, counts) = (cancel.clone(), request.adjust.clone(), request.counts);
        let (trace, stream, follow) = (request.trace, request.stream, request.follow);
        let caller = Caller { events: sender, cancel: cancelled, trace, stream, follow, counts, adjust, runs: None };
        (caller, AnswerStream { events, cancel })
    }

    /// Adds a turn to the queue; at most `queued` turns wait for one of `places` slots.
    pub(crate) fn submit(&self, asked: Asked, slots: &Slots, places: usize, queued: usize) {
        let mut state = self.state.lock();
        if state.closed {
            asked.caller.tell(Event::Failed { reason: AskError::Ended });
            return;
        }
        if state.waiting.len() >= queued {
            let before = state.waiting.len();
            state.waiting.retain(|asked| !asked.caller.cancel.is_cancelled());
            slots.forget(&self.waiter, before - state.waiting.len());
        }
        if state.waiting.len() >= queued {
            asked.caller.tell(Event::Failed { reason: AskError::Full { queued } });
            return;
        }
        // The queue is locked: the next one to lock it sees a slot that is granted meanwhile.
        match slots.take_or_wait(places, &self.waiter) {
            true => state.ready.push_back(asked),
            false => state.waiting.push_back(asked),
        }
    }

    /// The next turn; it has a slot.
    pub(crate) fn next(&self, slots: &Slots, places: usize) -> Option<Asked> {
        let mut state = self.state.lock();
        for _ in 0..self.waiter.granted() {
            match state.waiting.pop_front() {
                Some(asked) => state.ready.push_back(asked),
                // The waiting turn was cancelled and removed.
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

    /// The next turn's number.
    pub(crate) fn number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Number of turns that have not started.
    pub fn len(&self) -> usize {
        let state = self.state.lock();
        state.ready.len() + state.waiting.len()
    }

    /// Whether no turn waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fails all waiting turns and refuses new ones. Their slots go to others.
    pub fn close(&self, slots: &Slots, places: usize) {
        let mut state = self.state.lock();
        state.closed = true;
        let State { ready, waiting, .. } = &mut *state;
        (0..ready.len()).for_each(|_| slots.give_back(places));
        slots.leave(places, &self.waiter);
        for asked in ready.drain(..).chain(waiting.drain(..)) {
            asked.caller.tell(Event::Failed { reason: AskError::Ended });
        }
    }
}
