//! Callers who follow an answer are told when it changes, and only then.

use std::collections::BTreeMap;
use std::fs;

use turnflow_engine::ask::{AnswerStream, AskRequest, Event};
use turnflow_engine::record::AnswerRecord;

use super::kept::{anew, edit, start, write};
use crate::support::{Numbers, until};

const PIPELINE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "hits"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)"#;

fn next(events: &mut AnswerStream) -> AnswerRecord {
    loop {
        match events.blocking_next().expect("the stream goes on") {
            Event::Answer { record } | Event::Revised { record } => return *record,
            Event::Failed { reason } => panic!("{reason}"),
            Event::Started { .. } | Event::Node { .. } | Event::Delta { .. } => {}
        }
    }
}

#[test]
fn followers_have_the_answers_of_now() {
    const ROWS: usize = 150;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut numbers = Numbers::new(5);
    let mut rows: BTreeMap<usize, String> = (0..ROWS).map(|n| (n, numbers.text(20))).collect();
    write(dir, &rows);
    fs::write(dir.join("turns.jsonl"), "").unwrap();
    let engine = start(dir, PIPELINE);
    let questions: Vec<String> = (0..40).map(|_| numbers.text(3)).collect();
    let follow = |text: &String| engine.ask(AskRequest { follow: true, ..AskRequest::new(text.as_str()) });
    let mut streams: Vec<AnswerStream> = questions.iter().map(follow).collect();
    let mut last: Vec<AnswerRecord> = streams.iter_mut().map(next).collect();
    assert!(last.iter().all(|record| record.revision == 0));
    until("all followers", || engine.standing().turns == questions.len());
    let mut revised = 0;
    for round in 0..30 {
        let row = numbers.below(ROWS);
        match round % 3 {
            0 => drop(rows.remove(&row)),
            1 => drop(rows.insert(row, numbers.text(25))),
            _ => rows.entry(row).or_default().push_str(&format!(" {}", numbers.word())),
        }
        edit(dir, &engine, &rows);
        for (at, question) in questions.iter().enumerate() {
            let expected = anew(&engine, question);
            // There is a revision exactly if the answer is another one.
            if !last[at].says_what(&expected) {
                let before = last[at].revision;
                last[at] = next(&mut streams[at]);
                assert!(last[at].says_what(&expected), "round {round}, `{question}`");
                assert_eq!(last[at].revision, before + 1);
                revised += 1;
            }
        }
    }
    assert!(revised > 10, "{revised} revisions");
    assert_eq!(engine.revised(), revised);
    assert!(engine.answered_again() < (30 * questions.len() / 2) as u64, "{}", engine.answered_again());
    // Who leaves is forgotten.
    streams.truncate(3);
    until("the others to be forgotten", || engine.standing().turns == 3);
    engine.stop();
    engine.join().unwrap();
    assert!(streams.iter_mut().all(|stream| stream.blocking_next().is_none()), "the streams end with the run");
}
