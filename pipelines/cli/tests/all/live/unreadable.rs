//! Documents that cannot be read or cut: they are counted while they are there, with the reason, and nothing else is.

use std::fs;

use turnflow_engine::run::{EngineStatus, Options};

use crate::support::{Asked, plan_of, until};

const PIPELINE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Headings(), fields: { "floor": Integer }) },
    nodes: { "turns": Stdin(), "query": LastTurn(input: "turns"), "found": Bm25(input: "query", corpus: "docs") },
)"#;

/// The places of the documents that are missing, and how many.
fn unreadable(status: &EngineStatus) -> (u64, Vec<String>) {
    let corpus = &status.corpora[0];
    let place = |reason: &String| reason.split(": ").next().unwrap_or_default().to_owned();
    (corpus.unreadable, corpus.unreadable_because.iter().map(place).collect())
}

#[test]
fn what_cannot_be_read_is_counted_until_it_can_or_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    let write = |name: &str, text: &str| fs::write(docs.join(name), text).unwrap();
    write("good.md", "# Ferry\n\nIt leaves at ten.");
    write("bad.docx", "no archive");
    write("gone.docx", "no archive either");
    write("field.md", "---\nfloor: first\n---\nThe office.");
    write("rows.jsonl", "{\"_id\": \"a\", \"text\": \"A row.\"}\nno row\n{\"_id\": \"c\"}\n");
    let asked = Asked::start(plan_of(dir.path(), PIPELINE), Options::default());
    let told = || unreadable(&asked.engine.status());
    let places = |places: &[&str]| (places.len() as u64, places.iter().map(|place| (*place).to_owned()).collect());
    until("five are missing", || told().0 == 5);
    assert_eq!(told(), places(&["bad.docx", "gone.docx", "rows.jsonl:2", "rows.jsonl:3", "field.md"]));
    let reasons = asked.engine.status().corpora[0].unreadable_because.clone();
    assert!(reasons[0].contains("broken docx"), "{reasons:?}");
    assert!(reasons[4].contains("`floor` must be a whole number"), "{reasons:?}");
    write("rows.jsonl", "{\"_id\": \"a\", \"text\": \"A row.\"}\n{\"_id\": \"c\"}\n");
    until("a row is gone", || told() == places(&["bad.docx", "gone.docx", "rows.jsonl:2", "field.md"]));
    fs::remove_file(docs.join("gone.docx")).unwrap();
    until("a file is gone", || told() == places(&["bad.docx", "rows.jsonl:2", "field.md"]));
    write("field.md", "---\nfloor: 1\n---\nThe office.");
    until("the field is right", || told() == places(&["bad.docx", "rows.jsonl:2"]));
    fs::rename(docs.join("good.md"), docs.join("better.md")).unwrap();
    fs::remove_file(docs.join("rows.jsonl")).unwrap();
    until("the rows are gone", || told() == places(&["bad.docx"]));
    write("field.md", "---\nfloor: first\n---\nThe office.");
    until("the field is wrong again", || told() == places(&["bad.docx", "field.md"]));
    fs::remove_file(docs.join("field.md")).unwrap();
    fs::remove_file(docs.join("bad.docx")).unwrap();
    until("nothing is missing", || told() == places(&[]));
    asked.engine.stop();
    asked.engine.join().unwrap();
}
