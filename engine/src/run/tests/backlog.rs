//! Tests of a source that is faster than the preparation of its documents.

use std::sync::atomic::Ordering;

use super::catalog::{ASKED, GATE};
use super::*;
use crate::run::worker_pool::Command;

/// The same as in `engine/src/corpus/backlog.rs`.
const BOUND: usize = 4096;

#[test]
fn a_source_that_outruns_the_preparation_waits_and_loses_nothing() {
    let state = tempfile::tempdir().unwrap();
    // The first commit alone exceeds the bound.
    let (first, then) = (BOUND + 1000, 3 * BOUND);
    let plan = plan_of(&pipeline(&format!("Many(first: {first}, then: {then})")));
    let engine = Engine::start(plan, options(state.path())).unwrap();
    engine.wait_ready().unwrap();
    let progress = engine.corpora()[0].1.clone();
    let read = || CorpusProgress::get(&progress.documents) as usize;
    until("the source to be held back", || read() >= first + BOUND);
    // Wake the workers repeatedly: they would read more if they could.
    for _ in 0..200 {
        assert!(engine.inner.context.pool.tell(&Command::Close(u64::MAX)).wait());
        engine.inner.context.pool.wake();
    }
    assert_eq!(read(), first + BOUND, "the source reads ahead of the preparation");
    assert!(ASKED.load(Ordering::SeqCst) <= 8 * 256, "too many preparations run at once");
    GATE.add_permits(1);
    let epochs = engine.epochs().clone();
    engine.join().unwrap();
    assert_eq!((read(), epochs.current().corpora["docs"].documents), (first + then, first + then));
}

/// A stop does not wait until all documents are prepared. The gate of slow texts stays closed here.
#[test]
fn a_stop_does_not_wait_for_documents() {
    let state = tempfile::tempdir().unwrap();
    let engine = Engine::start(plan_of(&pipeline("Many(first: 10, then: 1000)")), options(state.path())).unwrap();
    until("the preparation of slow texts", || ASKED.load(Ordering::SeqCst) > 0);
    engine.stop();
    engine.join().unwrap();
}
