//! Answers that are taken back, and revisions.

use serde_json::json;
use turnflow_engine::record::AnswerRecord;

use super::{Bench, answer, state, take, tick, with};

/// The answer is taken back, and this one follows.
fn revised(number: usize, revision: u32, before: &str, after: &str) -> [AnswerRecord; 2] {
    [
        with(number, json!({"status": before, "revision": revision - 1, "retracted": true})),
        with(number, json!({"status": after, "revision": revision})),
    ]
}

#[test]
fn an_answer_that_an_edit_takes_away_is_lost_until_another_edit_gives_it_back() {
    let bench = Bench::new(r#"rules: { "lost": (of: Lost, fire: Above(1), clear: Some(0), window_s: 60) }"#);
    let mut member = bench.open();
    // Turn 1 was answered long before the window.
    take(&member, &[answer(0, "answered")]);
    take(&member, &revised(0, 1, "answered", "idk"));
    take(&member, &revised(1, 1, "answered", "idk"));
    // The same once more, as after a kill.
    take(&member, &revised(0, 1, "answered", "idk"));
    take(&member, &revised(1, 1, "answered", "idk"));
    // These never had an answer that held, or have one still.
    take(&member, &revised(2, 1, "idk", "idk"));
    take(&member, &revised(3, 1, "answered", "answered"));
    let record = bench.records().pop().unwrap();
    assert_eq!(record.text, "lost: 2 answers do not hold any more in 1 minute; the alert fires above 1");
    assert_eq!(record.examples.len(), 2);
    assert_eq!(member.kept.lock().watch().status()[0].n, 2);
    // Between the two records of a revision, the process is killed.
    let [retracted, next] = revised(4, 1, "answered", "idk");
    take(&member, std::slice::from_ref(&retracted));
    drop(member);
    member = bench.open();
    take(&member, &[next]);
    assert_eq!(member.kept.lock().watch().status()[0].n, 3);
    for number in [0, 1, 4] {
        take(&member, &revised(number, 2, "idk", "answered"));
    }
    assert_eq!(
        (state(&member), bench.told()),
        ("lost ok".to_owned(), vec!["lost firing".into(), "lost cleared".into()])
    );
    // Later edits take it away again: the window forgets it.
    take(&member, &revised(0, 3, "answered", "idk"));
    take(&member, &revised(1, 3, "answered", "idk"));
    assert_eq!(state(&member), "lost firing");
    bench.at(61.0);
    tick(&member);
    assert_eq!(state(&member), "lost ok");
}

#[test]
fn a_turn_counts_once_with_its_newest_answer() {
    let bench = Bench::new(r#"rules: { "declined": (of: Declined, fire: Above(0.5), at_least: 2) }"#);
    let member = bench.open();
    take(&member, &[answer(0, "idk"), answer(1, "answered")]);
    let share = || {
        let status = member.kept.lock().watch().status().remove(0);
        (status.value.unwrap_or(-1.0), status.n)
    };
    assert_eq!(share(), (0.5, 2));
    take(&member, &[answer(0, "idk")]);
    assert_eq!(share(), (0.5, 2));
    take(&member, &revised(0, 1, "idk", "answered"));
    assert_eq!(share(), (0.0, 2));
    // What was delivered before the revision does not come back with it.
    take(&member, &[answer(0, "idk")]);
    assert_eq!(share(), (0.0, 2));
    take(&member, &revised(0, 2, "answered", "idk"));
    take(&member, &revised(1, 1, "answered", "idk"));
    assert_eq!(share(), (1.0, 2));
    assert_eq!(bench.told(), ["declined firing"]);
    // The question was deleted.
    take(&member, &[with(0, json!({"status": "idk", "revision": 2, "retracted": true, "withdrawn": true}))]);
    assert_eq!(share(), (-1.0, 1));
    assert_eq!(state(&member), "declined firing");
}
