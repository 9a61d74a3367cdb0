//! Nothing is lost, and nothing is told twice, whenever the process ends.

use std::fs;
use std::path::Path;

use serde_json::json;
use turnflow_engine::record::AnswerRecord;

use super::{Bench, DECLINED, answer, state, take, tick, with};

/// Rules that are in every state during the scenario.
const RULES: &str = r#"rules: {
    "declined": (of: Declined, fire: Above(0.5), clear: Some(0.3), window_s: 20, at_least: 4, for_s: 3, keep_s: 3),
    "silent": (of: Failed, fire: Above(0.9), window_s: 10, at_least: 1, no_data: Alert),
    "lost": (of: Lost, fire: Above(0), window_s: 15),
}"#;

/// What comes at which second.
fn scenario() -> Vec<(f64, Vec<AnswerRecord>)> {
    let mut all = Vec::new();
    for second in 0..90 {
        let number = second * 2;
        let status = |is_bad: bool| if is_bad { "idk" } else { "answered" };
        let mut records = match second {
            40..=55 => Vec::new(),
            _ => {
                let is_bad = (10..25).contains(&second) || second > 70;
                vec![answer(number, status(is_bad)), answer(number + 1, status(is_bad && second % 3 > 0))]
            }
        };
        if second == 30 || second == 60 {
            records.push(with(1, json!({"revision": second / 30 * 2 - 2, "retracted": true})));
            records.push(with(1, json!({"revision": second / 30 * 2 - 1, "status": "idk"})));
        }
        if second == 33 {
            records.push(with(1, json!({"revision": 1, "retracted": true, "status": "idk"})));
            records.push(with(1, json!({"revision": 2})));
        }
        all.push((f64::from(second as u32), records));
    }
    all
}

/// The scenario, with an end of the process after each step for which `ends` says how it ends. What was not acknowledged,
/// and some that was, comes again.
fn run(ends: impl Fn(usize, &Path)) -> (String, Vec<String>) {
    let bench = Bench::new(RULES);
    let (mut member, mut before) = (bench.open(), Vec::new());
    let mut states = Vec::new();
    for (step, (at, records)) in scenario().into_iter().enumerate() {
        bench.at(at);
        take(&member, &records);
        tick(&member);
        states.push(state(&member));
        drop(member);
        ends(step, bench.directory.path());
        member = bench.open();
        take(&member, &before);
        take(&member, &records);
        before = records;
        tick(&member);
        assert_eq!(states.last(), Some(&state(&member)), "step {step}");
    }
    (bench.file(), states)
}

fn undisturbed() -> String {
    let bench = Bench::new(RULES);
    let member = bench.open();
    for (at, records) in scenario() {
        bench.at(at);
        take(&member, &records);
        tick(&member);
    }
    bench.file()
}

#[test]
fn a_restart_in_every_state_changes_nothing() {
    // A restart does not know whether it missed answers, so the silent rule is not compared here.
    let without = |file: String| file.lines().filter(|line| !line.contains("\"silent\"")).map(told).collect::<Vec<_>>();
    let (file, states) = run(|_, _| ());
    assert_eq!(without(file), without(undisturbed()));
    for wanted in ["declined ok", "declined pending", "declined firing", "lost firing"] {
        assert!(states.iter().any(|state| state.contains(wanted)), "{wanted}: {states:?}");
    }
    let undisturbed = undisturbed();
    assert!(undisturbed.contains("silent: no answers in 10 seconds"), "{undisturbed}");
    assert!(undisturbed.contains("silent: cleared"), "{undisturbed}");
}

/// What a line says, without its number.
fn told(line: &str) -> String {
    let record: crate::record::Record = serde_json::from_str(line).unwrap();
    format!("{} {:?} {} {:?}", record.text, record.timestamp, record.since, record.examples)
}

/// Two files have the same lines.
fn same(one: &str, other: &str, bytes: u64) {
    for (one, other) in one.lines().zip(other.lines()) {
        assert_eq!(one, other, "{bytes}");
    }
    assert_eq!(one.lines().count(), other.lines().count(), "{bytes}: {one}\n{other}");
}

/// Takes the last `bytes` off a file.
fn tear(path: &Path, bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len().saturating_sub(bytes)).unwrap();
}

#[test]
fn a_kill_within_a_write_loses_nothing_and_tells_nothing_twice() {
    let (whole, _) = run(|_, _| ());
    for bytes in [1, 2, 30] {
        // The record was written in part, or the note that it is there was not.
        let (torn, _) = run(|_, directory| {
            let (journal, file) = (directory.join("state/alerts.jsonl"), directory.join("told.jsonl"));
            let has_told = fs::read_to_string(&journal).unwrap().lines().next_back().unwrap().contains("\"told\"");
            if has_told {
                // No more than that note.
                tear(&journal, bytes.min(20));
                tear(&file, bytes);
            }
        });
        same(&torn, &whole, bytes);
        // The delivery was written in part, and comes again.
        let (again, _) = run(|_, directory| {
            let journal = directory.join("state/alerts.jsonl");
            let last = fs::read_to_string(&journal).unwrap();
            if last.lines().next_back().unwrap().contains("\"batch\"") && !last.contains("\"told\"") {
                tear(&journal, bytes);
            }
        });
        same(&again, &whole, bytes);
    }
}

#[test]
fn a_run_without_its_state_goes_on_after_the_file() {
    let bench = Bench::new(DECLINED);
    let mut member = bench.open();
    let bad: Vec<_> = (0..10).map(|number| answer(number, "idk")).collect();
    take(&member, &bad);
    drop(member);
    fs::remove_dir_all(bench.path("state")).unwrap();
    member = bench.open();
    // The log is read again.
    take(&member, &bad);
    assert_eq!((state(&member), bench.told()), ("declined firing".to_owned(), vec!["declined firing".to_owned()]));
    let good: Vec<_> = (10..100).map(|number| answer(number, "answered")).collect();
    take(&member, &good);
    let last = bench.records().pop().unwrap();
    assert_eq!((&*last.id, &*last.alert), ("alerts/2", "alerts/1"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_after_which_all_is_as_before() {
    let bench = Bench::new(DECLINED);
    let member = bench.open();
    let bad: Vec<_> = (0..20).map(|number| answer(number, "idk")).collect();
    take(&member, &bad[..5]);
    member.kept.lock().break_journal(Path::new("/dev/full"));
    member.kept.lock().take(&bad[5..]).unwrap_err();
    assert_eq!(bench.file(), "");
    // It is delivered again.
    take(&member, &bad[5..]);
    take(&member, &bad);
    assert_eq!(bench.told(), ["declined firing"]);
    assert_eq!(member.kept.lock().watch().status()[0].n, 20);
}

#[test]
fn the_journal_does_not_grow_for_ever() {
    let bench = Bench::new(DECLINED);
    let member = bench.open();
    for number in 0..600 {
        bench.at(number as f64);
        let records: Vec<_> = (0..50).map(|one| answer(number * 50 + one, "answered")).collect();
        take(&member, &records);
    }
    let length = fs::metadata(bench.path("state/alerts.jsonl")).unwrap().len();
    assert!(length < 8 << 20, "{length}");
    drop(member);
    let member = bench.open();
    assert_eq!(member.kept.lock().watch().status()[0].n, 60 * 50);
    // Those that no window has are known still.
    take(&member, &[answer(600 * 50 - 9000, "idk")]);
    assert_eq!(member.kept.lock().watch().status()[0].n, 60 * 50);
}
