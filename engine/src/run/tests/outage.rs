//! Outages of a model's server in a cluster.

use super::catalog::{REMOTE, SERVER_IS_AWAY};
use super::members::Members;
use super::stored::Place;
use super::stored_parts::texts;
use super::*;

/// The corpus as each process counts it: its passages and those that are missing.
fn counts(cluster: &Members) -> Vec<(usize, u64)> {
    let count = |engine: &Engine| {
        let view = engine.epochs().current().corpora["docs"].clone();
        (view.chunks, view.missing.values().sum())
    };
    cluster.engines.iter().map(count).collect()
}

#[test]
fn a_cluster_publishes_while_a_server_is_away_and_adds_the_rest_later() {
    SERVER_IS_AWAY.store(true, Ordering::SeqCst);
    let place = Place::new();
    let write = |count: usize| {
        let document = |n: usize| (format!("d{n}"), format!("{REMOTE} {n}\n{REMOTE} here {n}"));
        let all: BTreeMap<String, String> = (0..count).map(document).collect();
        std::fs::write(place.path("d.json"), serde_json::to_vec(&all).unwrap()).unwrap();
    };
    let start = || {
        let (answer, stays, sources, corpora) = (true, true, TurnSources::None, Mode::Follow);
        Members::start(plan_of, &place.pipeline(), 3, |process| {
            let state = place.path(&process.to_string());
            Options { answer, stays, sources, sinks: false, corpora, ..options(&state) }
        })
    };
    write(30);
    place.may_be_read(true);
    let cluster = start();
    cluster.engines.iter().for_each(|engine| engine.wait_ready().unwrap());
    assert!(texts(&cluster).is_empty());
    assert_eq!(counts(&cluster), [(60, 60); 3]);
    let (corpus, missing, reason) = cluster.engines[0].missing().remove(0);
    assert_eq!((&*corpus, missing), ("docs", 60));
    assert!(reason.contains("connection refused"), "{reason}");
    // Without an edit.
    SERVER_IS_AWAY.store(false, Ordering::SeqCst);
    until("what was missing", || texts(&cluster).len() == 60);
    until("the counts", || counts(&cluster) == [(60, 0); 3] && cluster.engines[0].missing().is_empty());
    cluster.check();
    cluster.stop();
    // What is stored is served although the server is away.
    SERVER_IS_AWAY.store(true, Ordering::SeqCst);
    let cluster = start();
    cluster.engines.iter().for_each(|engine| engine.wait_ready().unwrap());
    SERVER_IS_AWAY.store(false, Ordering::SeqCst);
    until("all again", || texts(&cluster).len() == 60);
    cluster.stop();
}

/// A reload to another source leaves nothing of the former one missing, in any process, although the server is away.
#[test]
fn what_a_reload_drops_is_not_missing_any_more() {
    SERVER_IS_AWAY.store(true, Ordering::SeqCst);
    let (place, other) = (Place::new(), Place::new());
    let write = |place: &Place, text: &str| {
        let all: BTreeMap<String, String> = (0..30).map(|n| (format!("d{n}"), format!("{text} {n}"))).collect();
        std::fs::write(place.path("d.json"), serde_json::to_vec(&all).unwrap()).unwrap();
        place.may_be_read(true);
    };
    write(&place, REMOTE);
    write(&other, "here");
    let (answer, stays, sources, corpora) = (true, true, TurnSources::None, Mode::Follow);
    let cluster = Members::start(plan_of, &place.pipeline(), 3, |process| {
        let state = place.path(&process.to_string());
        Options { answer, stays, sources, sinks: false, corpora, ..options(&state) }
    });
    cluster.engines.iter().for_each(|engine| engine.wait_ready().unwrap());
    assert_eq!(counts(&cluster), [(30, 30); 3]);
    cluster.reload(&other.pipeline());
    until("nothing is missing", || cluster.engines.iter().all(|engine| engine.missing().is_empty()));
    until("the new passages", || texts(&cluster).len() == 30);
    assert!(counts(&cluster).iter().all(|(chunks, _)| *chunks == 30));
    cluster.check();
    cluster.stop();
    SERVER_IS_AWAY.store(false, Ordering::SeqCst);
}
