//! The answer cache: a question that was asked before gets its answer without a call, and never an old one.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value as Json, json};
use turnflow_engine::ask::AskRequest;
use turnflow_engine::connector::Mode;
use turnflow_engine::record::{AnswerRecord, Speaker, Utterance};
use turnflow_engine::run::{Engine, Options};

use crate::support::{Numbers, answers, plan_of, until};

const PIPELINE: &str = r#"Pipeline(
    cache: Answers(entries: 50),
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "hits"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)"#;

pub(super) fn write(dir: &Path, rows: &BTreeMap<usize, String>) {
    let line = |(n, text): (&usize, &String)| json!({"_id": format!("r{n}"), "text": text}).to_string() + "\n";
    fs::write(dir.join("docs.new"), rows.iter().map(line).collect::<String>()).unwrap();
    fs::rename(dir.join("docs.new"), dir.join("docs.jsonl")).unwrap();
}

pub(super) fn start(dir: &Path, text: &str) -> Engine {
    let options = Options { workers: 2, turns: Mode::Follow, corpora: Mode::Follow, ..Options::default() };
    let engine = Engine::start(plan_of(dir, text), options).unwrap();
    engine.wait_ready().unwrap();
    engine
}

/// Writes the rows and waits for their epoch.
pub(super) fn edit(dir: &Path, engine: &Engine, rows: &BTreeMap<usize, String>) {
    let (epoch, before) = (engine.epochs().current().epoch, fs::read(dir.join("docs.jsonl")).unwrap());
    write(dir, rows);
    if fs::read(dir.join("docs.jsonl")).unwrap() == before {
        return;
    }
    until("the next epoch", || engine.epochs().current().epoch > epoch);
    until("all workers to look at it", || engine.cached_answers().looked_at == engine.epochs().current().epoch);
}

fn ask(engine: &Engine, request: AskRequest) -> AnswerRecord {
    futures::executor::block_on(engine.ask(request).answer()).unwrap()
}

fn asked(engine: &Engine, text: &str) -> AnswerRecord {
    ask(engine, AskRequest::new(text))
}

/// The answer without the cache: who looks at every step gets every step.
pub(super) fn anew(engine: &Engine, text: &str) -> AnswerRecord {
    ask(engine, AskRequest { trace: true, ..AskRequest::new(text) })
}

#[test]
fn what_was_asked_before_is_answered_at_once_until_a_change_reaches_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rows = |tide: &str| {
        let rows = ["The ferry leaves at noon.", tide, "The lamp is lit by the keeper.", "Ropes lie on the pier."];
        rows.into_iter().map(str::to_owned).enumerate().collect::<BTreeMap<_, _>>()
    };
    write(dir, &rows("The tide turns at six."));
    fs::write(dir.join("turns.jsonl"), "").unwrap();
    let engine = start(dir, PIPELINE);
    let question = "When does the ferry leave?";
    let first = asked(&engine, question);
    assert_eq!((first.stamp.computed_at, first.hits.is_empty()), (None, false));
    let second = asked(&engine, question);
    assert_eq!((second.stamp.computed_at, second.stamp.epoch), (Some(first.stamp.epoch), first.stamp.epoch));
    assert!(second.says_what(&first) && second.key != first.key);

    // Another principal, history, filter or field is another question.
    let with = |name: &str, value: Json| {
        let mut request = AskRequest::new(question);
        request.extra.insert(name.into(), value);
        request
    };
    let said = Utterance { speaker: Speaker::User, text: "Which pier?".into() };
    for other in [
        with("principal", json!({"name": "ada", "groups": ["staff"]})),
        with("principal", json!({"name": "bob", "groups": ["staff"]})),
        with("lang", json!("en")),
        AskRequest { history: vec![said], ..AskRequest::new(question) },
        AskRequest { collection: Some("docs".into()), ..AskRequest::new(question) },
    ] {
        assert_eq!(ask(&engine, other.clone()).stamp.computed_at, None, "{other:?}");
        assert!(ask(&engine, other.clone()).stamp.computed_at.is_some(), "{other:?}");
    }

    // What the question does not ask for may change.
    edit(dir, &engine, &rows("High water is at seven."));
    let third = asked(&engine, question);
    assert_eq!(third.stamp.computed_at, Some(first.stamp.epoch));
    assert!(third.stamp.epoch > first.stamp.epoch);

    let mut changed = rows("High water is at seven.");
    changed.insert(0, "The ferry leaves at one.".to_owned());
    edit(dir, &engine, &changed);
    let fourth = asked(&engine, question);
    assert_eq!(fourth.stamp.computed_at, None);
    assert!(fourth.answer.contains("one"), "{}", fourth.answer);
    engine.stop();
    engine.join().unwrap();
}

/// A turn of a log that asks the same is answered from the cache, too, and its sink gets a record of its own.
#[test]
fn turns_of_a_log_share_answers() {
    for mode in ["", "mode: Live(),"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, &BTreeMap::from([(0, "The ferry leaves at noon.".to_owned())]));
        fs::write(dir.join("turns.jsonl"), "").unwrap();
        let engine = start(dir, &PIPELINE.replace("Pipeline(", &format!("Pipeline({mode}")));
        let turn = |n: usize| json!({"conversation_id": format!("c{n}{mode}"), "turn": 1, "speaker": "user", "text": "When does the ferry leave?"});
        for n in 0..3 {
            let mut log = fs::OpenOptions::new().append(true).open(dir.join("turns.jsonl")).unwrap();
            writeln!(log, "{}", turn(n)).unwrap();
            until("the answer", || answers(&dir.join("answers.jsonl")).len() == n + 1);
        }
        let records = answers(&dir.join("answers.jsonl"));
        assert!(records.iter().all(|record| record.says_what(&records[0])));
        let cached = records.iter().filter(|record| record.stamp.computed_at.is_some()).count();
        assert_eq!(cached, 2, "{mode}");
        let hits = engine.cached_answers().hits;
        assert_eq!(hits, 2, "{mode}");
        engine.stop();
        engine.join().unwrap();
    }
}

/// Whatever the edits, an answer from the cache is the one that the pipeline gives now.
#[test]
fn no_answer_is_stale() {
    const ROWS: usize = 120;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut numbers = Numbers::new(11);
    let mut rows: BTreeMap<usize, String> = (0..ROWS).map(|n| (n, numbers.text(20))).collect();
    write(dir, &rows);
    fs::write(dir.join("turns.jsonl"), "").unwrap();
    let engine = start(dir, PIPELINE);
    let questions: Vec<String> = (0..60).map(|_| numbers.text(3)).collect();
    let mut cached = 0;
    for round in 0..40 {
        for _ in 0..30 {
            let question = &questions[numbers.below(questions.len())];
            let answer = asked(&engine, question);
            cached += usize::from(answer.stamp.computed_at.is_some());
            let expected = anew(&engine, question);
            let shown = |record: &AnswerRecord| {
                let hits = record.hits.iter().map(|hit| format!("{} {}", hit.passage, hit.score)).collect::<Vec<_>>();
                format!("{:?} {:?} {hits:?}", record.stamp.epoch, record.stamp.computed_at)
            };
            let (is, should) = (shown(&answer), shown(&expected));
            assert!(answer.says_what(&expected), "round {round}, `{question}`:\n{is}\n{should}");
        }
        let row = numbers.below(ROWS);
        match round % 4 {
            0 => drop(rows.remove(&row)),
            1 => drop(rows.insert(ROWS + round, numbers.text(25))),
            _ => rows.entry(row).or_default().push_str(&format!(" {}", numbers.word())),
        }
        edit(dir, &engine, &rows);
    }
    let counts = engine.cached_answers();
    assert!(cached > 200, "{cached} of 1,200 from the cache");
    assert!(counts.answers <= 50, "{} answers are kept", counts.answers);
    engine.stop();
    engine.join().unwrap();
}
