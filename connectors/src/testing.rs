//! Shared test helpers: running sources, sample records, and small PDFs.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crossbeam_channel::Receiver;
use turnflow_engine::connector::{
    Arrived, ConnectorError, CorpusEvent, CorpusOutput, CorpusSource, Mode, Offsets, SourceOffset, SourcedTurn, Stop,
    StopHandle, TurnOutput, TurnSource,
};
use turnflow_engine::dead_letter::DeadLetters;
use turnflow_engine::document::Document;
use turnflow_engine::record::{AnswerRecord, HitRecord, Provenance, Status};

/// Long enough for any machine; only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The runtime of all tests of the process.
pub(crate) fn runtime() -> &'static tokio::runtime::Handle {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> =
        LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());
    RUNTIME.handle()
}

/// A component's context.
#[cfg(feature = "remote")]
pub(crate) fn context(id: &str) -> turnflow_engine::component::ComponentContext {
    turnflow_engine::component::ComponentContext::alone(id, runtime().clone())
}

/// A component's context with a state directory.
#[cfg(feature = "remote")]
pub(crate) fn context_in(state: &std::path::Path, id: &str) -> turnflow_engine::component::ComponentContext {
    let state = Some(state.join("components"));
    let (cancelled, metrics) = (Default::default(), Default::default());
    turnflow_engine::component::ComponentContext::new(id, runtime().clone(), cancelled, metrics, state)
}

/// A running corpus source.
pub(crate) struct Corpus {
    events: Receiver<CorpusEvent>,
    stop: Option<StopHandle>,
    thread: Option<std::thread::JoinHandle<Result<(), ConnectorError>>>,
    dead: tempfile::NamedTempFile,
}

/// One change: the id, and the document, or `None` for a delete.
pub(crate) type Change = (String, Option<Document>);

impl Corpus {
    pub(crate) fn run(source: impl CorpusSource + 'static, mode: Mode) -> Self {
        let (sender, events) = crossbeam_channel::unbounded();
        let (handle, stop) = Stop::new();
        let dead = tempfile::NamedTempFile::new().unwrap();
        let letters = DeadLetters::open(dead.path()).unwrap();
        let output = CorpusOutput::new(sender, Arc::new(|| {}), letters, "corpus".into(), stop);
        let thread = std::thread::spawn(move || Box::new(source).run(mode, output));
        Self { events, stop: Some(handle), thread: Some(thread), dead }
    }

    /// The changes up to the next commit.
    pub(crate) fn commit(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        loop {
            match self.events.recv_timeout(PATIENCE).expect("a commit") {
                CorpusEvent::Change(id, document) => changes.push((id.to_string(), document)),
                CorpusEvent::Commit => return changes,
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// The changes up to the next commit, as `id=text` and `-id`, sorted.
    pub(crate) fn changes(&self) -> Vec<String> {
        told(self.commit())
    }

    /// Collects commits until all of `wanted` have arrived, for changes that the system may split.
    pub(crate) fn until(&self, wanted: &[&str]) {
        let (mut seen, mut changes) = (Vec::new(), Vec::new());
        while !wanted.iter().all(|wanted| seen.iter().any(|seen| seen == wanted)) {
            match self.events.recv_timeout(PATIENCE) {
                Ok(CorpusEvent::Change(id, document)) => changes.push((id.to_string(), document)),
                Ok(CorpusEvent::Commit) => seen.extend(told(std::mem::take(&mut changes))),
                other => panic!("{other:?} after {seen:?}, of {wanted:?}; not committed: {changes:?}"),
            }
        }
    }

    /// The initial changes.
    pub(crate) fn start(&self) -> Vec<String> {
        let changes = self.changes();
        self.started();
        changes
    }

    /// Waits until the source is ready.
    pub(crate) fn started(&self) {
        assert!(matches!(self.events.recv_timeout(PATIENCE), Ok(CorpusEvent::Ready)));
    }

    /// Asserts that no event is left.
    pub(crate) fn nothing_more(&self) {
        assert!(self.events.is_empty(), "{:?}", self.events.try_iter().collect::<Vec<_>>());
    }

    /// Waits for the source to end, or stops it.
    pub(crate) fn end(mut self, stop: bool) -> Result<(), ConnectorError> {
        if stop {
            self.stop = None;
        }
        self.thread.take().unwrap().join().unwrap()
    }

    /// The dead letters so far, as `position: reason`.
    pub(crate) fn dead(&self) -> Vec<String> {
        dead_letters(self.dead.path())
    }

    /// The file with the dead letters.
    pub(crate) fn dead_path(&self) -> &std::path::Path {
        self.dead.path()
    }
}

/// A running turn source.
pub(crate) struct Turns {
    turns: Receiver<Arrived>,
    stop: Option<StopHandle>,
    thread: Option<std::thread::JoinHandle<Result<(), ConnectorError>>>,
    dead: tempfile::NamedTempFile,
}

impl Turns {
    pub(crate) fn run(source: impl TurnSource + 'static, mode: Mode) -> Self {
        Self::resume(source, mode, None)
    }

    /// Starts a source that resumes after the offset of an earlier process.
    pub(crate) fn resume(source: impl TurnSource + 'static, mode: Mode, place: Option<SourceOffset>) -> Self {
        Self::resuming(source, mode, place.map(Into::into).unwrap_or_default())
    }

    /// The same for a source with partitions.
    pub(crate) fn resuming(source: impl TurnSource + 'static, mode: Mode, offsets: Offsets) -> Self {
        let (sender, turns) = crossbeam_channel::unbounded();
        let (handle, stop) = Stop::new();
        let dead = tempfile::NamedTempFile::new().unwrap();
        let letters = DeadLetters::open(dead.path()).unwrap();
        let output = TurnOutput::new(sender, Arc::new(|| {}), letters, "turns".into(), stop).resuming(offsets);
        let thread = std::thread::spawn(move || Box::new(source).run(mode, output));
        Self { turns, stop: Some(handle), thread: Some(thread), dead }
    }

    pub(crate) fn take(&self) -> SourcedTurn {
        self.turns.recv_timeout(PATIENCE).expect("a turn").turn
    }

    /// The next turn's text and position.
    pub(crate) fn next(&self) -> (String, String) {
        let turn = self.take();
        (turn.record.text.to_string(), turn.position)
    }

    pub(crate) fn text(&self) -> String {
        self.next().0
    }

    /// Number of turns that were sent and not taken.
    #[cfg(feature = "kafka")]
    pub(crate) fn waiting(&self) -> usize {
        self.turns.len()
    }

    /// Asserts that no turn is left.
    #[cfg(feature = "postgres")]
    pub(crate) fn nothing(&self) {
        assert!(self.turns.is_empty(), "{:?}", self.turns.try_iter().collect::<Vec<_>>());
    }

    pub(crate) fn dead(&self) -> Vec<String> {
        dead_letters(self.dead.path())
    }

    /// Waits for the source to end. Returns all turns and the dead letters.
    pub(crate) fn all(mut self) -> (Vec<SourcedTurn>, Vec<String>) {
        self.thread.take().unwrap().join().unwrap().unwrap();
        (self.turns.try_iter().map(|arrived| arrived.turn).collect(), self.dead())
    }

    /// Waits for the source to end. Returns the dead letters.
    pub(crate) fn wait(mut self) -> Vec<String> {
        self.thread.take().unwrap().join().unwrap().unwrap();
        self.dead()
    }

    /// Waits for the source to end, or stops it.
    pub(crate) fn end(mut self, stop: bool) -> Result<(), ConnectorError> {
        if stop {
            self.stop = None;
        }
        self.thread.take().unwrap().join().unwrap()
    }
}

/// A turn source whose turns are taken one by one: its channel has room for one.
#[cfg(feature = "nats")]
pub(crate) fn narrow(
    source: impl TurnSource + 'static,
) -> (Receiver<Arrived>, StopHandle, std::thread::JoinHandle<Result<(), ConnectorError>>) {
    let (sender, turns) = crossbeam_channel::bounded(1);
    let (handle, stop) = Stop::new();
    let output = TurnOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), "turns".into(), stop);
    let thread = std::thread::spawn(move || Box::new(source).run(Mode::Follow, output));
    (turns, handle, thread)
}

/// A line with a turn of this text.
pub(crate) fn turn(text: &str) -> String {
    format!(r#"{{"conversation_id": "c", "turn": 1, "speaker": "user", "text": "{text}"}}"#)
}

/// An answer with one passage.
pub(crate) fn answer() -> AnswerRecord {
    AnswerRecord {
        conversation_id: "c".into(),
        turn: 2,
        revision: 0,
        key: "k".into(),
        retracted: false,
        withdrawn: false,
        status: Status::Answered,
        query: "how long".into(),
        answer: "Seven years.".into(),
        error: None,
        hits: vec![HitRecord {
            passage: "a.md#0".into(),
            document: "a.md".into(),
            score: 0.5,
            text: "Records are kept.\nFor seven years.".into(),
            metadata: Default::default(),
            corpus: Default::default(),
            found: Default::default(),
        }],
        stamp: Provenance {
            pipeline: "p".into(),
            epoch: 1,
            computed_at: None,
            similar_to: None,
            models: Arc::default(),
            warnings: Arc::default(),
        },
        checks: serde_json::Map::new(),
        latency_ms: 1.5,
        tokens: Default::default(),
        timestamp: None,
        question: None,
        extra: serde_json::Map::new(),
    }
}

pub(crate) fn dead_letters(path: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let letters = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    letters
        .map(|letter| format!("{}: {}", letter["position"].as_str().unwrap(), letter["reason"].as_str().unwrap()))
        .collect()
}

pub(crate) fn told(changes: Vec<Change>) -> Vec<String> {
    let mut told: Vec<String> = changes
        .into_iter()
        .map(|(id, document)| match document {
            Some(document) => {
                assert_eq!(*document.id, *id);
                format!("{id}={}", document.text)
            }
            None => format!("-{id}"),
        })
        .collect();
    told.sort();
    told
}
