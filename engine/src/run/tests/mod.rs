//! Tests of components that panic or are slow: the effects on other components, on the run, and on
//! the next start.

mod backlog;
mod backup;
mod catalog;
mod divided;
mod members;
mod outage;
mod panics;
mod passages;
mod sinks;
mod slots;
mod stored;
mod stored_parts;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::catalog::{CATALOG, Texts};
use super::*;
use crate::connector::Mode;
use crate::dead_letter::DeadLetter;
use crate::plan::{Plan, plan};
use crate::spec::load_str;

/// The limit of all waits; it allows for slow machines.
const PATIENCE: Duration = Duration::from_secs(120);

fn plan_of(text: &str) -> Plan {
    let planned = plan(load_str("test.ron", Path::new(""), text, &[]), &CATALOG);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

/// A pipeline with one corpus that has this source.
fn pipeline(source: &str) -> String {
    format!(
        r#"Pipeline(
    corpora: {{ "docs": Corpus(source: {source}, chunk: Lines()) }},
    nodes: {{ "turns": Spoken(), "found": Find(input: "turns", corpus: "docs") }},
)"#
    )
}

fn options(state: &Path) -> Options {
    Options { answer: false, corpora: Mode::Once, state: Some(state.to_owned()), workers: 2, ..Options::default() }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "timeout while waiting for {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// The ids of the served passages.
fn served(engine: &Engine) -> Vec<String> {
    let current = engine.epochs().current();
    let reader: Arc<Texts> = current.corpora["docs"].index("find").unwrap();
    reader.keys().map(|id| id.to_string()).collect()
}

/// The dead letters so far, as source, position and reason.
fn letters(state: &Path) -> Vec<[String; 3]> {
    let text = std::fs::read_to_string(state.join("dead-letters.jsonl")).unwrap_or_default();
    let letters = text.lines().map(|line| serde_json::from_str::<DeadLetter>(line).unwrap());
    let mut letters: Vec<_> = letters.map(|letter| [letter.source, letter.position, letter.reason]).collect();
    letters.sort();
    letters
}

#[test]
fn no_name_leads_out_of_the_directory_of_states() {
    assert_eq!(default_state("docs"), Path::new(".turnflow/docs"));
    assert_eq!(default_state("my docs.v2"), Path::new(".turnflow/my docs.v2"));
    let long = "x".repeat(300);
    let mut places = BTreeSet::new();
    for name in ["../../x", "..", ".", "", "/etc/x", "a/../../b", "a/b", "a/", "./a", "nul\0", &long] {
        let place = default_state(name);
        let parts: Vec<Component<'_>> = place.components().collect();
        assert!(matches!(parts[..], [_, Component::Normal(_)]), "{name:?}: {place:?}");
        assert!(place.starts_with(".turnflow") && places.insert(place), "{name:?}");
    }
}
