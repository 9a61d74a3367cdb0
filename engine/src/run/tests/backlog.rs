//! A source that outruns the preparation of what it reads.

use std::sync::atomic::Ordering;

use super::catalog::{ASKED, GATE};
use super::*;
use crate::run::worker_pool::Command;

/// As `engine/src/corpus/backlog.rs` says.
const BOUND: usize = 4096;

#[test]
fn a_source_that_outruns_the_preparation_waits_and_loses_nothing() {
    let state = tempfile::tempdir().unwrap();
    // The first commit is larger than the bound by itself.
    let (first, then) = (BOUND + 1000, 3 * BOUND);
    let plan = plan_of(&pipeline(&format!("Many(first: {first}, then: {then})")));
    let engine = Engine::start(plan, options(state.path())).unwrap();
    engine.wait_ready().unwrap();
    let progress = engine.corpora()[0].1.clone();
    let read = || CorpusProgress::get(&progress.documents) as usize;
    until("the source to be held back", || read() >= first + BOUND);
    // Workers that may go on would, as often as they are asked.
    for _ in 0..200 {
        assert!(engine.inner.context.pool.tell(&Command::Close(u64::MAX)).wait());
        engine.inner.context.pool.wake();
    }
    assert_eq!(read(), first + BOUND, "nothing is read ahead of the preparation");
    assert!(ASKED.load(Ordering::SeqCst) <= 8 * 256, "of these, not all are under way at a time");
    GATE.add_permits(1);
    let epochs = engine.epochs().clone();
    engine.join().unwrap();
    assert_eq!((read(), epochs.current().corpora["docs"].documents), (first + then, first + then));
}
