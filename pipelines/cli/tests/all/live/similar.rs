//! The answer cache for questions that are nearly the same.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use turnflow_engine::ask::AskRequest;
use turnflow_engine::record::{AnswerRecord, Speaker, Utterance};
use turnflow_engine::run::Engine;

use super::kept::{edit, start, write};
use crate::support::model;

fn ask(engine: &Engine, request: AskRequest) -> AnswerRecord {
    futures::executor::block_on(engine.ask(request).answer()).unwrap()
}

fn similar_to(engine: &Engine, text: &str) -> Option<String> {
    let answer = ask(engine, AskRequest::new(text));
    assert_eq!(answer.stamp.computed_at.is_some(), answer.stamp.similar_to.is_some(), "{text}");
    answer.stamp.similar_to.map(|text| text.to_string())
}

fn pipeline(encoder: &std::path::Path, least: f32) -> String {
    let (path, tokenizer) = (encoder.join("model.onnx"), encoder.join("tokenizer.json"));
    format!(
        r#"Pipeline(
    cache: Answers(entries: 50, similar: {least:?}, model: "encoder"),
    models: {{ "encoder": Onnx(path: {path:?}, tokenizer: {tokenizer:?}, pooling: Mean, max_tokens: 256) }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "hits"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    }},
)"#
    )
}

#[test]
fn a_question_that_is_nearly_the_same_gets_the_answer() {
    let Some(encoder) = model("minilm") else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut rows = BTreeMap::from([
        (0, "The ferry to Bergen leaves at noon.".to_owned()),
        (1, "Ropes lie on the pier.".to_owned()),
        (2, "A pass for 2 people costs five euros.".to_owned()),
    ]);
    write(dir, &rows);
    fs::write(dir.join("turns.jsonl"), "").unwrap();
    let engine = start(dir, &pipeline(&encoder, 0.9));
    let question = "When does the ferry to Bergen leave?";
    let first = ask(&engine, AskRequest::new(question));
    assert_eq!((first.stamp.computed_at, first.stamp.similar_to.clone()), (None, None));
    let again = ask(&engine, AskRequest::new("when does the ferry to bergen leave"));
    assert_eq!(again.stamp.similar_to.as_deref(), Some(question));
    assert_eq!((again.stamp.computed_at, &again.answer), (Some(first.stamp.epoch), &first.answer));
    assert_eq!(similar_to(&engine, "Please, when does the ferry to Bergen leave?").as_deref(), Some(question));
    // The same question is no other one.
    let same = ask(&engine, AskRequest::new(question));
    assert_eq!((same.stamp.computed_at.is_some(), same.stamp.similar_to), (true, None));

    // Other words are another question, however near their vectors are.
    for other in [
        "When does the ferry to Oslo leave?",
        "When does the ferry to Bergen not leave?",
        "When did the ferry to Bergen leave?",
        "When does the ferry from Bergen leave?",
        "When does the ferry 2 to Bergen leave?",
    ] {
        assert_eq!(similar_to(&engine, other), None, "{other}");
    }
    // So is that of another principal, and one with a history.
    let alike = "when does the ferry to bergen leave?";
    let mut of_ada = AskRequest::new(alike);
    of_ada.extra.insert("principal".into(), json!({"name": "ada"}));
    assert_eq!(ask(&engine, of_ada).stamp.similar_to, None);
    let said = Utterance { speaker: Speaker::User, text: "Which pier?".into() };
    let later = AskRequest { history: vec![said], ..AskRequest::new(alike) };
    assert_eq!(ask(&engine, later).stamp.similar_to, None);
    // Who wants to see every step gets every step.
    assert_eq!(ask(&engine, AskRequest { trace: true, ..AskRequest::new(alike) }).stamp.similar_to, None);
    assert_eq!(engine.cached_answers().similar, 2);

    // It is never an old one.
    rows.insert(0, "The ferry to Bergen leaves at one.".to_owned());
    edit(dir, &engine, &rows);
    let after = ask(&engine, AskRequest::new("Hello, when does the ferry to Bergen leave?"));
    assert!(after.stamp.computed_at.is_none() && after.answer.contains("one"), "{after:?}");
    engine.stop();
    engine.join().unwrap();
}

#[test]
fn the_vectors_decide_among_questions_with_the_same_words() {
    let Some(encoder) = model("minilm") else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir, &BTreeMap::from([(0, "The ferry leaves at noon.".to_owned())]));
    fs::write(dir.join("turns.jsonl"), "").unwrap();
    // Nothing is so near but the same.
    let engine = start(dir, &pipeline(&encoder, 1.0));
    ask(&engine, AskRequest::new("When does the ferry leave?"));
    assert_eq!(similar_to(&engine, "Hello, can you please tell me: when does the ferry leave?"), None);
    assert_eq!(engine.cached_answers().similar, 0);
    engine.stop();
    engine.join().unwrap();
}
