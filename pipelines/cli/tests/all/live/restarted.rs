//! A restart answers no standing turn again that no change has reached, and after it their answers are those of a cold run.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use turnflow_engine::connector::Mode;
use turnflow_engine::run::Engine;

use super::kept::write;
use super::reached::{cold, last, pipeline, start};
use crate::support::{Numbers, model, plan_of, until};

const ROWS: usize = 300;
const TURNS: usize = 80;

const LEXICAL: &str = r#""hits": Bm25(input: "query", corpus: "docs", top: 5),"#;

/// Starts, and waits until every turn is answered at the newest epoch. Returns how many turns were answered again.
fn restarted(dir: &Path, text: &str) -> (Engine, u64) {
    let engine = start(dir, text, Mode::Follow);
    engine.wait_ready().unwrap();
    settled(&engine, TURNS);
    let again = engine.answered_again();
    (engine, again)
}

fn settled(engine: &Engine, turns: usize) {
    until("all turns to be answered at the newest epoch", || {
        let standing = engine.standing();
        standing.turns == turns && standing.behind == 0 && standing.epoch == engine.epochs().current().epoch
    });
}

fn stop(engine: Engine) {
    engine.stop();
    engine.join().unwrap();
}

/// Rows and questions of random words.
fn made(dir: &Path, numbers: &mut Numbers) -> BTreeMap<usize, String> {
    let rows: BTreeMap<usize, String> = (0..ROWS).map(|n| (n, numbers.text(30))).collect();
    write(dir, &rows);
    std::fs::write(dir.join("turns.jsonl"), turns(numbers, 0..TURNS)).unwrap();
    rows
}

/// Questions of random words, each in a conversation of its own.
fn turns(numbers: &mut Numbers, which: Range<usize>) -> String {
    let turn = |n: usize| {
        let text = numbers.text(4);
        serde_json::json!({"conversation_id": format!("c{n}"), "turn": 1, "speaker": "user", "text": text}).to_string()
            + "\n"
    };
    which.map(turn).collect()
}

fn edit(rows: &mut BTreeMap<usize, String>, numbers: &mut Numbers) {
    let row = numbers.below(ROWS);
    match numbers.below(5) {
        0 => drop(rows.remove(&row)),
        1 => drop(rows.insert(row, numbers.text(30))),
        _ => rows.entry(row).or_default().push_str(&format!(" {}", numbers.word())),
    }
}

/// Stops and starts again and again, with edits while it runs and while it does not.
fn history(hits: &str, model: Option<&Path>, rounds: usize) {
    let dir = tempfile::tempdir().unwrap();
    let (dir, mut numbers) = (dir.path(), Numbers::new(23));
    let mut rows = made(dir, &mut numbers);
    let text = pipeline("Live(standing: 1000)", hits, model);
    let (mut engine, _) = restarted(dir, &text);
    for round in 0..rounds {
        // Two starts without a change come one after the other now and then.
        if round % 4 != 0 {
            let epoch = engine.epochs().current().epoch;
            edit(&mut rows, &mut numbers);
            write(dir, &rows);
            until("the next epoch", || engine.epochs().current().epoch > epoch);
            settled(&engine, TURNS);
        }
        stop(engine);
        let changes = round % 3;
        (0..changes).for_each(|_| edit(&mut rows, &mut numbers));
        write(dir, &rows);
        let again;
        (engine, again) = restarted(dir, &text);
        match changes {
            0 => assert_eq!(again, 0, "round {round}"),
            _ => assert!(again < (TURNS * 2 / 3) as u64, "round {round}: {again}"),
        }
        assert_eq!(last(dir), cold(dir, hits, model), "round {round}");
    }
    stop(engine);
}

#[test]
fn a_restart_answers_again_what_has_changed_by_terms() {
    history(LEXICAL, None, 12);
}

#[test]
fn a_restart_answers_again_what_has_changed_by_vectors() {
    let Some(model) = model("minilm-int8") else { return };
    let hits = r#""lexical": Bm25(input: "query", corpus: "docs", top: 5),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 5),
        "hits": Rrf(inputs: ["lexical", "dense"], top: 5),"#;
    history(hits, Some(&model), 6);
}

/// A stop may come while edits are read and turns are answered: what was not done then is done after the start.
#[test]
fn a_stop_at_any_moment_leaves_no_answer_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, mut numbers) = (dir.path(), Numbers::new(41));
    let (mut rows, mut count) = (made(dir, &mut numbers), TURNS);
    let text = pipeline("Live(standing: 1000)", LEXICAL, None);
    let (mut engine, _) = restarted(dir, &text);
    for round in 0..20 {
        for _ in 0..1 + numbers.below(3) {
            if numbers.below(2) == 0 {
                edit(&mut rows, &mut numbers);
                write(dir, &rows);
            } else {
                let more = 1 + numbers.below(4);
                let mut log = std::fs::OpenOptions::new().append(true).open(dir.join("turns.jsonl")).unwrap();
                log.write_all(turns(&mut numbers, count..count + more).as_bytes()).unwrap();
                count += more;
            }
            std::thread::sleep(Duration::from_millis(numbers.below(60) as u64));
        }
        stop(engine);
        engine = start(dir, &text, Mode::Follow);
        if round % 2 == 0 {
            engine.wait_ready().unwrap();
            settled(&engine, count);
            assert_eq!(last(dir), cold(dir, LEXICAL, None), "round {round}");
        }
    }
    stop(engine);
}

/// After a crash, with another pipeline, and with a damaged file, nothing is known: all turns are answered again.
#[test]
fn what_is_not_known_to_hold_is_answered_again() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, mut numbers) = (dir.path(), Numbers::new(5));
    made(dir, &mut numbers);
    let text = pipeline("Live(standing: 1000)", LEXICAL, None);
    let (engine, _) = restarted(dir, &text);
    stop(engine);
    let (engine, again) = restarted(dir, &text);
    assert_eq!(again, 0);
    engine.abort();
    drop(engine);
    let all = TURNS as u64;
    let (engine, again) = restarted(dir, &text);
    assert_eq!(again, all, "after an abort");
    stop(engine);
    let (engine, again) = restarted(dir, &text.replace("top: 5", "top: 4"));
    assert_eq!(again, all, "with another list");
    stop(engine);
    let (engine, again) = restarted(dir, &text.replace("top: 5", "top: 4"));
    assert_eq!(again, 0);
    stop(engine);
    let file = dir.join("state/standing.bin");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (engine, again) = restarted(dir, &text.replace("top: 5", "top: 4"));
    assert_eq!(again, all, "with a damaged file");
    stop(engine);
}

/// Why it exists: a start knows by the plan's hash whether answers still hold, and the weights of the learned label were not
/// in it.
#[test]
fn the_weights_of_a_label_are_part_of_the_plan() {
    let Some(model) = model("minilm-int8") else { return };
    let dir = tempfile::tempdir().unwrap();
    for file in ["docs.jsonl", "turns.jsonl"] {
        std::fs::write(dir.path().join(file), "").unwrap();
    }
    let label = r#""final": IdkNormalize(input: "answer", encoder: "minilm", head: "head.ron"),
        "out": JsonLinesSink(input: "final","#;
    let text = pipeline("Live()", LEXICAL, Some(&model)).replace(r#""out": JsonLinesSink(input: "answer","#, label);
    let hash = |weights: &str| {
        std::fs::write(dir.path().join("head.ron"), weights).unwrap();
        plan_of(dir.path(), &text).hash
    };
    assert_ne!(hash("(weights: 1)"), hash("(weights: 2)"));
}
