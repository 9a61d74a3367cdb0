//! Starts that serve what an earlier run has published until the source is read.

use std::path::PathBuf;

use super::*;
use crate::ask::{AskRequest, Event};
use crate::corpus::CorpusState;

/// A state directory, and a file of documents that the source reads when it may.
pub(super) struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    pub(super) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, documents: &[(&str, &str)]) {
        let all: BTreeMap<&str, &str> = documents.iter().copied().collect();
        std::fs::write(self.path("d.json"), serde_json::to_vec(&all).unwrap()).unwrap();
    }

    /// Lets the source be read, or not.
    pub(super) fn may_be_read(&self, may: bool) {
        let go = self.path("d.json.go");
        let _ = if may { std::fs::write(go, "") } else { std::fs::remove_file(go) };
    }

    pub(super) fn pipeline(&self) -> String {
        pipeline(&format!("Held(path: {:?})", self.path("d.json")))
    }

    fn start(&self, pipeline: &str, mode: Mode) -> Engine {
        let (answer, stays, sources) = (true, true, TurnSources::None);
        let options = Options { answer, stays, sources, sinks: false, corpora: mode, ..options(&self.path("state")) };
        Engine::start(plan_of(pipeline), options).unwrap()
    }

    /// Runs until the documents are published.
    fn publish(&self, documents: &[(&str, &str)]) {
        self.write(documents);
        self.may_be_read(true);
        let engine = self.start(&self.pipeline(), Mode::Follow);
        engine.wait_ready().unwrap();
        until("the passages are stored", || self.are_stored());
        stop(engine);
        self.may_be_read(false);
    }

    /// Whether `epoch.json` names a version of the passages.
    fn are_stored(&self) -> bool {
        let epoch = std::fs::read_to_string(self.path("state/epoch.json")).unwrap_or_default();
        epoch.contains("passages.lance") && self.file().exists()
    }

    fn file(&self) -> PathBuf {
        self.path("state/corpora/docs/passages.lance")
    }
}

fn stop(engine: Engine) {
    engine.stop();
    engine.join().unwrap();
}

/// The epoch in which a question of a caller is answered.
pub(super) fn asked(engine: &Engine) -> u64 {
    let mut events = engine.ask(AskRequest::new("anything"));
    futures::executor::block_on(async {
        let mut epoch = None;
        while let Some(event) = events.next().await {
            match event {
                Event::Started { epoch: started } => epoch = Some(started),
                Event::Answer { .. } => break,
                _ => {}
            }
        }
        epoch.unwrap()
    })
}

pub(super) fn state_of(engine: &Engine) -> CorpusState {
    engine.corpora().pop().unwrap().2.borrow().clone()
}

/// Whether stored passages are served; gives them some time.
fn is_stored(engine: &Engine) -> bool {
    let is_ready = engine.wait_ready_for(Duration::from_millis(200)).unwrap();
    assert!(!is_ready, "the source may not be read yet");
    matches!(state_of(engine), CorpusState::Stored { .. })
}

const FIRST: [(&str, &str); 3] = [("a", "one\ntwo"), ("b", "three"), ("c", "four\nfive")];

#[test]
fn callers_are_answered_before_the_source_is_read() {
    let place = Place::new();
    place.publish(&FIRST);
    place.write(&[("a", "one\nother"), ("c", "four\nfive"), ("d", "six")]);
    let engine = place.start(&place.pipeline(), Mode::Follow);
    let epoch = asked(&engine);
    assert_eq!(state_of(&engine), CorpusState::Stored { epoch });
    assert_eq!(served(&engine), ["a#0", "a#1", "b#0", "c#0", "c#1"]);
    assert!(!engine.wait_ready_for(Duration::from_millis(20)).unwrap(), "turns of sources wait");
    place.may_be_read(true);
    engine.wait_ready().unwrap();
    assert_eq!(served(&engine), ["a#0", "a#1", "c#0", "c#1", "d#0"]);
    assert_eq!(asked(&engine), epoch + 1);
    stop(engine);
    // The changes were appended: the next start serves them.
    place.may_be_read(false);
    let engine = place.start(&place.pipeline(), Mode::Follow);
    let epoch = asked(&engine);
    assert_eq!(served(&engine), ["a#0", "a#1", "c#0", "c#1", "d#0"]);
    place.may_be_read(true);
    engine.wait_ready().unwrap();
    assert_eq!(engine.epochs().current().epoch, epoch, "what is the same is no new epoch");
    assert_eq!(state_of(&engine), CorpusState::Ready { commits: u64::MAX, epoch });
    stop(engine);
}

#[test]
fn a_run_that_ends_after_the_documents_reads_them_first() {
    let place = Place::new();
    place.publish(&FIRST);
    let engine = place.start(&place.pipeline(), Mode::Once);
    assert!(!is_stored(&engine));
    place.may_be_read(true);
    engine.wait_ready().unwrap();
    until("the passages are stored", || place.are_stored());
    stop(engine);
    place.may_be_read(false);
    let engine = place.start(&place.pipeline(), Mode::Follow);
    asked(&engine);
    assert_eq!(served(&engine).len(), 5);
    stop(engine);
}

#[test]
fn what_is_not_what_was_published_is_not_served() {
    let place = Place::new();
    place.publish(&FIRST);
    let file = std::fs::read(place.file()).unwrap();
    let with_access = place.pipeline().replace("chunk: Lines()", "chunk: Lines(), access: \"groups\"");
    let other = place.pipeline().replace("chunk: Lines()", "chunk: Lines(), fields: {\"length\": Integer}");
    assert!(with_access != place.pipeline() && other != place.pipeline());
    let mut damaged = file.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let same = place.pipeline();
    for (pipeline, bytes) in [(&with_access, &file[..]), (&other, &file), (&same, &damaged), (&same, &file[..100])] {
        std::fs::write(place.file(), bytes).unwrap();
        let engine = place.start(pipeline, Mode::Follow);
        assert!(!is_stored(&engine), "{pipeline}");
        place.may_be_read(true);
        engine.wait_ready().unwrap();
        assert_eq!(served(&engine).len(), 5);
        stop(engine);
        place.may_be_read(false);
    }
    // It is written anew, and served again.
    place.publish(&FIRST);
    let engine = place.start(&place.pipeline(), Mode::Follow);
    asked(&engine);
    stop(engine);
}

#[test]
fn a_reload_before_the_source_is_read_is_as_one_after_it() {
    for cuts in [false, true] {
        let place = Place::new();
        place.publish(&FIRST);
        let engine = place.start(&place.pipeline(), Mode::Follow);
        asked(&engine);
        let mut other = place.pipeline();
        if cuts {
            other = other.replace("chunk: Lines()", "chunk: Lines(), fields: {\"length\": Integer}");
        } else {
            other = other.replace("\"found\"", "\"hits\"");
        }
        place.write(&[("a", "one\nother"), ("d", "six")]);
        std::thread::scope(|scope| {
            let reload = scope.spawn(|| engine.reload(plan_of(&other), &|| false).map(drop));
            if !cuts {
                // It does not wait for the source.
                reload.join().unwrap().unwrap();
                assert_eq!(served(&engine).len(), 5);
                place.may_be_read(true);
            } else {
                place.may_be_read(true);
                reload.join().unwrap().unwrap();
            }
        });
        engine.wait_ready().unwrap();
        assert_eq!(served(&engine), ["a#0", "a#1", "d#0"]);
        until("the passages are stored", || place.are_stored());
        engine.maintain();
        stop(engine);
        place.may_be_read(false);
        let engine = place.start(&other, Mode::Follow);
        asked(&engine);
        assert_eq!(served(&engine), ["a#0", "a#1", "d#0"]);
        stop(engine);
    }
}

/// Nothing waits for a source that a reload has replaced or removed.
#[test]
fn a_source_that_a_reload_removes_is_not_waited_for() {
    let place = Place::new();
    place.publish(&FIRST);
    let engine = place.start(&place.pipeline(), Mode::Follow);
    asked(&engine);
    let other = pipeline(r#"Listed(documents: {"e": "seven"})"#);
    engine.reload(plan_of(&other), &|| false).unwrap();
    assert_eq!(served(&engine), ["e#0"]);
    engine.wait_ready().unwrap();
    assert!(matches!(state_of(&engine), CorpusState::Ready { .. }));
    // Removed, and added again.
    let none = r#"Pipeline(nodes: { "turns": Spoken() })"#;
    engine.reload(plan_of(none), &|| false).unwrap();
    place.may_be_read(true);
    engine.reload(plan_of(&place.pipeline()), &|| false).unwrap();
    assert_eq!(served(&engine).len(), 5);
    stop(engine);

    let place = Place::new();
    place.publish(&FIRST);
    let engine = place.start(&place.pipeline(), Mode::Follow);
    asked(&engine);
    engine.reload(plan_of(none), &|| false).unwrap();
    engine.wait_ready().unwrap();
    stop(engine);
}

#[test]
fn a_panic_while_stored_passages_are_published_costs_the_start_and_nothing_else() {
    let place = Place::new();
    let documents = [("a", "one\ntwo"), ("b", super::catalog::BAD_ONCE_FOR_WRITER)];
    super::catalog::HAS_PANICKED.store(true, std::sync::atomic::Ordering::SeqCst);
    place.publish(&documents);
    super::catalog::HAS_PANICKED.store(false, std::sync::atomic::Ordering::SeqCst);
    place.write(&documents[..1]);
    let engine = place.start(&place.pipeline(), Mode::Follow);
    assert!(!is_stored(&engine));
    place.may_be_read(true);
    engine.wait_ready().unwrap();
    assert_eq!(served(&engine), ["a#0", "a#1"]);
    assert_eq!(engine.epochs().current().corpora["docs"].documents, 1);
    stop(engine);
}
