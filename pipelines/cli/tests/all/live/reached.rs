//! A change answers those standing turns again that it can reach, and their answers are those of a cold run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use turnflow_engine::connector::Mode;
use turnflow_engine::run::{Engine, Options};

use crate::support::{Numbers, answers, model, plan_of, until};

const ROWS: usize = 400;
const TURNS: usize = 120;
const EDITS: usize = 24;

/// The nodes between the query and the answer.
pub(super) fn pipeline(mode: &str, hits: &str, model: Option<&Path>) -> String {
    let models = model.map_or_else(String::new, |model| {
        let (file, tokenizer) = (model.join("model.onnx"), model.join("tokenizer.json"));
        format!("models: {{ \"minilm\": Onnx(path: {file:?}, tokenizer: {tokenizer:?}) }},")
    });
    format!(
        r#"Pipeline(
    mode: {mode},
    {models}
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        {hits}
        "answer": ExtractiveAnswer(input: "hits"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    }},
)"#
    )
}

pub(super) fn start(dir: &Path, text: &str, mode: Mode) -> Engine {
    let options =
        Options { workers: 2, state: Some(dir.join("state")), turns: mode, corpora: mode, ..Options::default() };
    Engine::start(plan_of(dir, text), options).unwrap()
}

pub(super) type Answers = BTreeMap<String, (String, Vec<String>)>;

/// The last answers: their texts and passages.
pub(super) fn last(dir: &Path) -> Answers {
    let kept = answers(&dir.join("answers.jsonl")).into_iter().filter(|record| !record.retracted);
    let said = kept.map(|record| {
        let hits = record.hits.iter().map(|hit| hit.passage.to_string()).collect();
        (record.conversation_id.to_string(), (record.answer.to_string(), hits))
    });
    said.collect()
}

pub(super) fn cold(dir: &Path, hits: &str, model: Option<&Path>) -> Answers {
    let other = tempfile::tempdir().unwrap();
    for file in ["docs.jsonl", "turns.jsonl"] {
        fs::copy(dir.join(file), other.path().join(file)).unwrap();
    }
    let engine = start(other.path(), &pipeline("Once", hits, model), Mode::Once);
    until("the cold run's end", || engine.has_ended());
    engine.join().unwrap();
    last(other.path())
}

/// Edits rows one by one, and now and then adds and removes some. Returns how many turns were answered again.
fn edited(hits: &str, model: Option<&Path>) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut numbers = Numbers::new(7);
    let mut rows: BTreeMap<usize, String> = (0..ROWS).map(|n| (n, numbers.text(30))).collect();
    let write = |rows: &BTreeMap<usize, String>| {
        let line =
            |(n, text): (&usize, &String)| serde_json::json!({"_id": format!("r{n}"), "text": text}).to_string() + "\n";
        fs::write(dir.join("docs.new"), rows.iter().map(line).collect::<String>()).unwrap();
        fs::rename(dir.join("docs.new"), dir.join("docs.jsonl")).unwrap();
    };
    write(&rows);
    let turn = |n: usize| {
        let text = numbers.text(4);
        serde_json::json!({"conversation_id": format!("c{n}"), "turn": 1, "speaker": "user", "text": text}).to_string()
    };
    let turns: Vec<String> = (0..TURNS).map(turn).collect();
    fs::write(dir.join("turns.jsonl"), turns.join("\n") + "\n").unwrap();
    let engine = start(dir, &pipeline("Live(standing: 1000)", hits, model), Mode::Follow);
    until("the first answers", || last(dir).len() == TURNS && engine.standing().behind == 0);
    let before = engine.answered_again();
    for edit in 0..EDITS {
        let row = numbers.below(ROWS);
        match edit % 6 {
            0 => drop(rows.remove(&row)),
            1 => drop(rows.insert(ROWS + edit, numbers.text(25))),
            2 => drop(rows.insert(row, numbers.text(30))),
            // A word more, as people edit.
            _ => rows.entry(row).or_default().push_str(&format!(" {}", numbers.word())),
        }
        let epoch = engine.epochs().current().epoch;
        write(&rows);
        until("the next epoch", || engine.epochs().current().epoch > epoch);
        if edit % 3 == 2 {
            let expected = cold(dir, hits, model);
            until("the answers to be those of a cold run", || last(dir) == expected);
        }
    }
    let again = engine.answered_again() - before;
    let standing = engine.standing();
    assert_eq!(standing.turns, TURNS);
    engine.stop();
    engine.join().unwrap();
    again
}

#[test]
fn an_edit_answers_again_what_it_can_reach_by_terms() {
    let again = edited(r#""hits": Bm25(input: "query", corpus: "docs", top: 5),"#, None);
    assert!(again > 0 && again < (EDITS * TURNS * 2 / 5) as u64, "{again}");
}

/// The scores of one list move the fused order.
#[test]
fn where_scores_matter_all_turns_are_answered_again() {
    let hits = r#""lexical": Bm25(input: "query", corpus: "docs", top: 5),
        "hits": Hybrid(inputs: ["lexical"], top: 5),"#;
    assert!(edited(hits, None) > (EDITS * TURNS / 2) as u64);
}

#[test]
fn an_edit_answers_again_what_it_can_reach_by_vectors() {
    let Some(model) = model("minilm-int8") else { return };
    let hits = r#""lexical": Bm25(input: "query", corpus: "docs", top: 5),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 5),
        "hits": Rrf(inputs: ["lexical", "dense"], top: 5),"#;
    let again = edited(hits, Some(&model));
    assert!(again > 0 && again < (EDITS * TURNS / 2) as u64, "{again}");
}
