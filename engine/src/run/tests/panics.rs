//! Tests of panics: a panic is an error of the component, of the document, or of the run, and is
//! never silent.

use std::sync::atomic::Ordering;

use super::catalog::{
    BAD_FOR_CHUNKER, BAD_FOR_INDEX, BAD_FOR_PREPARATION, BAD_FOR_WRITER, BAD_ONCE_FOR_WRITER, GOES_ON,
};
use super::*;

fn listed(documents: &[(&str, &str)]) -> String {
    let documents: Vec<String> = documents.iter().map(|(id, text)| format!("{id:?}: {text:?}")).collect();
    pipeline(&format!("Listed(documents: {{{}}})", documents.join(", ")))
}

/// Indexes the corpus; returns the served passages and the number of failed calls.
fn index(state: &Path, documents: &[(&str, &str)]) -> (Vec<String>, u64) {
    let engine = Engine::start(plan_of(&listed(documents)), options(state)).unwrap();
    engine.wait_ready().unwrap();
    let (served, failures) = (served(&engine), CorpusProgress::get(&engine.corpora()[0].1.failures));
    engine.join().unwrap();
    (served, failures)
}

#[test]
fn a_document_that_the_chunker_panics_on_is_left_out_and_told_of() {
    let state = tempfile::tempdir().unwrap();
    let bad = format!("one\n{BAD_FOR_CHUNKER}");
    let documents = [("a", "one\ntwo"), ("b", bad.as_str()), ("c", "three")];
    // Every start behaves like the first, and writes the dead letter once.
    for _ in 0..2 {
        assert_eq!(index(state.path(), &documents), (vec!["a#0".into(), "a#1".into(), "c#0".into()], 1));
        let letters = letters(state.path());
        assert_eq!(letters.len(), 1, "{letters:?}");
        let [source, position, reason] = &letters[0];
        assert_eq!((source.as_str(), position.as_str()), ("docs", "b"));
        assert_eq!(reason, "the chunker panicked: as a fault in the chunker would; the document is skipped");
    }
    // When the document is corrected, it is indexed.
    assert_eq!(index(state.path(), &[("b", "one")]).0, ["b#0"]);
}

#[test]
fn a_passage_that_its_preparation_panics_on_is_told_of_and_keeps_nothing_back() {
    let state = tempfile::tempdir().unwrap();
    let (served, failures) = index(state.path(), &[("a", "one"), ("b", &format!("{BAD_FOR_PREPARATION}\nthree"))]);
    // This index has the passage anyway; a vector index would not.
    assert_eq!(served, ["a#0", "b#0", "b#1"]);
    assert!(failures > 1, "{failures}");
    let letters = letters(state.path());
    let [source, position, reason] = &letters[0];
    assert_eq!((letters.len(), source.as_str(), position.as_str()), (1, "docs", "b#0"));
    assert_eq!(reason, "could not be prepared for indexing: panicked: as a fault in the model would");
}

#[test]
fn passages_that_the_index_panics_on_are_found_among_many_and_left_out() {
    let state = tempfile::tempdir().unwrap();
    let texts: Vec<(String, String)> = (0..300)
        .map(|n| match n {
            7 | 8 | 250 => (format!("d{n:03}"), format!("good\n{BAD_FOR_INDEX} {n}")),
            _ => (format!("d{n:03}"), format!("text {n}\nand more")),
        })
        .collect();
    let documents: Vec<(&str, &str)> = texts.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    for _ in 0..2 {
        let (served, failures) = index(state.path(), &documents);
        assert_eq!(served.len(), 597);
        assert!(!["d007#1", "d008#1", "d250#1"].iter().any(|bad| served.iter().any(|id| id == bad)));
        assert!(failures > 0);
        let letters = letters(state.path());
        assert_eq!(
            letters.iter().map(|[_, position, _]| position.as_str()).collect::<Vec<_>>(),
            ["d007#1", "d008#1", "d250#1"]
        );
        let reason = "index `find` panicked: as a fault in the index would; it skips the passage";
        assert!(letters.iter().all(|[source, _, told]| source == "docs" && told == reason), "{letters:?}");
    }
}

/// What has panicked is tried again, and later changes are published.
#[test]
fn an_index_writer_that_panics_goes_on() {
    let state = tempfile::tempdir().unwrap();
    let source = format!("OneByOne(texts: [\"one\", {BAD_ONCE_FOR_WRITER:?}, \"three\"])");
    let engine = Engine::start(plan_of(&pipeline(&source)), options(state.path())).unwrap();
    engine.wait_ready().unwrap();
    GOES_ON.store(true, Ordering::SeqCst);
    until("all documents to be published", || served(&engine) == ["0#0", "1#0", "2#0"]);
    assert_eq!(CorpusProgress::get(&engine.corpora()[0].1.failures), 1);
    engine.join().unwrap();
    assert_eq!(letters(state.path()), Vec::<[String; 3]>::new());
}

/// What was served before is served on, and the process ends when it is told to.
#[test]
fn an_index_writer_that_panics_for_ever_serves_what_it_had() {
    let state = tempfile::tempdir().unwrap();
    let source = format!("OneByOne(texts: [\"one\", {BAD_FOR_WRITER:?}, \"three\"])");
    let engine = Engine::start(plan_of(&pipeline(&source)), options(state.path())).unwrap();
    engine.wait_ready().unwrap();
    GOES_ON.store(true, Ordering::SeqCst);
    let failures = engine.corpora()[0].1.clone();
    until("two failures", || CorpusProgress::get(&failures.failures) > 1);
    assert_eq!(served(&engine), ["0#0"]);
    engine.stop();
    engine.join().unwrap();
    // As the first publication of a run, it ends the run with the reason.
    let engine = Engine::start(plan_of(&listed(&[("a", BAD_FOR_WRITER)])), options(state.path())).unwrap();
    let told = engine.wait_ready().and_then(|()| engine.join()).unwrap_err().to_string();
    assert!(told.contains("panicked: as a fault in the index writer would"), "{told}");
}

#[test]
fn a_source_of_documents_that_panics_ends_the_run_with_a_word() {
    let state = tempfile::tempdir().unwrap();
    let engine = Engine::start(plan_of(&listed(&[("a", "one"), ("panic", "")])), options(state.path())).unwrap();
    let told = engine.wait_ready().and_then(|()| engine.join()).unwrap_err().to_string();
    assert_eq!(told, "corpus docs: panicked: as a fault in the source would");
}

#[test]
fn a_source_of_turns_that_panics_ends_the_run_with_a_word() {
    let state = tempfile::tempdir().unwrap();
    let options = Options { answer: true, sinks: false, ..options(state.path()) };
    let engine = Engine::start(plan_of(&listed(&[("a", "one")])), options).unwrap();
    let told = engine.join().unwrap_err().to_string();
    assert_eq!(told, "node turns: panicked: as a fault in the source would");
}
