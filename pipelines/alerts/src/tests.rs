//! The rules with their journal and their file, by a clock that the tests set.

mod kills;
mod revisions;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use turnflow_engine::record::AnswerRecord;

use crate::kept::Member;
use crate::record::Record;
use crate::sink::AlertsConfig;

/// A node `alerts` in a directory of its own.
struct Bench {
    directory: TempDir,
    now: Arc<Mutex<f64>>,
    rules: String,
}

impl Bench {
    fn new(rules: &str) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), now: Arc::new(Mutex::new(1000.0)), rules: rules.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a process.
    fn open(&self) -> Member {
        self.with(&self.rules)
    }

    fn with(&self, rules: &str) -> Member {
        let (file, gaps) = (self.path("told.jsonl"), self.path("gaps.jsonl"));
        let ron = format!("(input: \"x\", path: {file:?}, gaps: Some({gaps:?}), {rules})");
        let config: AlertsConfig = turnflow_engine::spec::from_str(&ron).unwrap();
        let (state, now) = (self.path("state"), self.now.clone());
        fs::create_dir_all(&state).unwrap();
        Member::open("alerts", Arc::new(config), Some(state), Arc::new(move || *now.lock())).unwrap()
    }

    fn at(&self, seconds: f64) {
        *self.now.lock() = 1000.0 + seconds;
    }

    fn file(&self) -> String {
        fs::read_to_string(self.path("told.jsonl")).unwrap_or_default()
    }

    fn records(&self) -> Vec<Record> {
        self.file().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What the file tells: `RULE firing`, `RULE cleared`.
    fn told(&self) -> Vec<String> {
        let record = |record: Record| format!("{} {}", record.rule, json!(record.state).as_str().unwrap());
        self.records().into_iter().map(record).collect()
    }
}

/// An answer to a turn of its own.
fn answer(number: usize, status: &str) -> AnswerRecord {
    with(number, json!({ "status": status }))
}

fn with(number: usize, fields: Value) -> AnswerRecord {
    let mut record = json!({
        "conversation_id": format!("c{number}"), "turn": 1, "revision": 0, "key": format!("k{number}"),
        "status": "answered", "query": format!("question {number}?"), "answer": "x", "hits": [],
        "stamp": {"pipeline": "p", "epoch": 1, "models": {}}, "latency_ms": 100.0,
    });
    record.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let timestamp = fields["timestamp"].as_f64();
    AnswerRecord { timestamp, ..serde_json::from_value(record).unwrap() }
}

fn take(member: &Member, records: &[AnswerRecord]) {
    member.kept.lock().take(records).unwrap();
}

fn tick(member: &Member) {
    member.kept.lock().tick().unwrap();
}

fn state(member: &Member) -> String {
    use turnflow_engine::connector::AlertStates;
    let states = crate::kept::States(Arc::downgrade(&member.kept)).alerts();
    states.iter().map(|one| format!("{} {}", one.rule, one.state)).collect::<Vec<_>>().join(", ")
}

const DECLINED: &str =
    r#"rules: { "declined": (of: Declined, fire: Above(0.3), clear: Some(0.2), window_s: 60, at_least: 10) }"#;

#[test]
fn an_alert_says_what_was_measured_and_which_turns_made_it() {
    let bench = Bench::new(DECLINED);
    let member = bench.open();
    for number in 0..20 {
        bench.at(number as f64);
        take(&member, &[answer(number, if number % 5 < 2 { "idk" } else { "answered" })]);
    }
    let records = bench.records();
    assert_eq!(records.len(), 1, "{records:?}");
    let told = serde_json::to_value(&records[0]).unwrap();
    assert_eq!(told["text"], "declined: 40 % of 10 answers declined in 1 minute; the alert fires above 30 %");
    assert_eq!(
        (&told["conversation_id"], &told["turn"], &told["speaker"]),
        (&json!("alerts"), &json!(1), &json!("user"))
    );
    assert_eq!(
        (&told["id"], &told["alert"], &told["state"]),
        (&json!("alerts/1"), &json!("alerts/1"), &json!("firing"))
    );
    assert_eq!((&told["value"], &told["threshold"], &told["clear"]), (&json!(0.4), &json!(0.3), &json!(0.2)));
    assert_eq!((&told["n"], &told["window_s"], &told["since"]), (&json!(10), &json!(60.0), &json!(1009.0)));
    let examples: Vec<&Value> = told["examples"].as_array().unwrap().iter().map(|one| &one["question"]).collect();
    assert_eq!(examples, ["question 6?", "question 5?", "question 1?", "question 0?"]);
    // A turn of a log, too.
    turnflow_engine::record::TurnRecord::parse(bench.file().trim().as_bytes()).unwrap();

    // The window moves on; nobody asks.
    assert_eq!(state(&member), "declined firing");
    bench.at(66.0);
    tick(&member);
    assert_eq!(state(&member), "declined firing");
    for number in 20..60 {
        take(&member, &[answer(number, "answered")]);
    }
    assert_eq!(state(&member), "declined ok");
    let cleared = bench.records().pop().unwrap();
    assert_eq!((&*cleared.id, &*cleared.alert, cleared.since), ("alerts/2", "alerts/1", 1009.0));
    assert!(cleared.text.starts_with("declined: cleared: 20 % of "), "{}", cleared.text);
    assert_eq!(bench.told(), ["declined firing", "declined cleared"]);
}

#[test]
fn measures_read_what_operators_have_put_on_answers() {
    let bench = Bench::new(
        r#"rules: {
            "a mean": (of: Mean("nli.entailment"), fire: Below(0.5), clear: Some(0.6), at_least: 4),
            "b low": (of: Low("confidence", 0.5), fire: Above(0.4), at_least: 4),
            "c flagged": (of: Unsupported, fire: Above(0.15), at_least: 4),
            "d slow": (of: Latency(0.5), fire: Above(2), at_least: 4),
            "e failed": (of: Failed, fire: Above(0.1), at_least: 4),
        }"#,
    );
    let member = bench.open();
    let checks = |mean: f64, confidence: f64, failed: Value| {
        json!({"latency_ms": 3000.0, "checks": {"nli": {"entailment": mean}, "confidence": confidence,
            "self_check": {"failed": failed}}})
    };
    let records = [
        with(0, checks(0.4, 0.4, json!([]))),
        with(1, checks(0.4, 0.9, json!(["overlap"]))),
        with(2, checks(0.4, 0.4, json!([]))),
        // Without a measure, it does not count for that.
        with(3, json!({"latency_ms": 3000.0})),
        with(4, checks(0.4, 0.9, json!([]))),
        answer(5, "failed"),
    ];
    take(&member, &records);
    let texts: Vec<String> = bench.records().into_iter().map(|record| record.text).collect();
    let expected = [
        "c flagged: 25 % of 4 answers not borne out by their passages in 1 hour; the alert fires above 15 %",
        "d slow: the 50 % quantile of the latency of 4 answers is 2.99 s in 1 hour; the alert fires above 2 s",
        "a mean: the mean of `nli.entailment` of 4 answers is 0.4 in 1 hour; the alert fires below 0.5",
        "b low: 50 % of 4 answers with `confidence` below 0.5 in 1 hour; the alert fires above 40 %",
        "e failed: 17 % of 6 turns failed in 1 hour; the alert fires above 10 %",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn silence_is_told_when_a_whole_window_had_no_answer() {
    let bench = Bench::new(
        r#"rules: { "silent": (of: Declined, fire: Above(0.5), window_s: 60, at_least: 2, for_s: 10, no_data: Alert) }"#,
    );
    let mut member = bench.open();
    bench.at(59.0);
    tick(&member);
    assert_eq!(state(&member), "silent ok");
    bench.at(60.0);
    tick(&member);
    assert_eq!(state(&member), "silent pending");
    bench.at(70.0);
    tick(&member);
    let record = bench.records().pop().unwrap();
    assert_eq!((&*record.text, record.value, record.since), ("silent: no answers in 1 minute", None, 1060.0));
    // One answer is too few to say that all is well.
    take(&member, &[answer(0, "answered")]);
    assert_eq!(state(&member), "silent firing");
    take(&member, &[answer(1, "answered")]);
    assert_eq!(bench.records().pop().unwrap().text, "silent: cleared: there are answers again");
    // A process that was away for a day does not know what it missed.
    drop(member);
    bench.at(90_000.0);
    member = bench.open();
    tick(&member);
    bench.at(90_059.0);
    tick(&member);
    assert_eq!(state(&member), "silent ok");
    bench.at(90_061.0);
    tick(&member);
    assert_eq!(state(&member), "silent pending");
}

/// Why it exists: with a present that never goes back, no answer would leave its window until the wrong time has come.
#[test]
fn a_clock_that_was_wrong_and_is_put_right_does_not_stop_the_windows() {
    let bench = Bench::new(DECLINED);
    let mut member = bench.open();
    bench.at(1_000_000.0);
    let bad: Vec<_> = (0..10).map(|number| answer(number, "idk")).collect();
    take(&member, &bad);
    assert_eq!(state(&member), "declined firing");
    drop(member);
    bench.at(100.0);
    member = bench.open();
    take(&member, &[answer(10, "answered")]);
    // A small step back is nothing.
    bench.at(90.0);
    tick(&member);
    assert_eq!(member.kept.lock().watch().now(), 1100.0);
    bench.at(161.0);
    let good: Vec<_> = (11..21).map(|number| answer(number, "answered")).collect();
    take(&member, &good);
    assert_eq!((state(&member), bench.told().len()), ("declined ok".to_owned(), 2));
    drop(member);
    assert_eq!(bench.open().kept.lock().watch().status()[0].n, 10);
}

/// The same log gives the same alerts, however its answers come to the sink.
#[test]
fn by_the_time_of_the_turns_a_log_gives_the_same_alerts_always() {
    let rules = DECLINED.to_owned() + ", time: Asked";
    let records: Vec<AnswerRecord> = (0..300)
        .map(|number| {
            let status = if (100..160).contains(&number) && number % 2 == 0 { "idk" } else { "answered" };
            // Conversations do not come in order.
            let asked = 100.0 + number as f64 + f64::from((number * 7 % 5) as u32);
            with(number, json!({"status": status, "timestamp": asked}))
        })
        .collect();
    let files = [1, 7, 300].map(|size| {
        let bench = Bench::new(&rules);
        let member = bench.open();
        for batch in records.chunks(size) {
            take(&member, batch);
            tick(&member);
        }
        assert_eq!(bench.told(), ["declined firing", "declined cleared"]);
        // What is older than the window does not count, and a time to come is now.
        let late: Vec<_> =
            (0..50).map(|number| with(1000 + number, json!({"status": "idk", "timestamp": 1.0}))).collect();
        take(&member, &late);
        take(&member, &[with(2000, json!({"timestamp": 1e12}))]);
        assert_eq!(member.kept.lock().watch().now(), 1000.0);
        bench.file()
    });
    assert!(files.iter().all(|file| *file == files[0]), "{files:#?}");
}

#[test]
fn a_rule_that_is_taken_away_clears_and_one_of_a_failed_reload_never_was() {
    let bench = Bench::new(DECLINED);
    let member = bench.open();
    let bad: Vec<_> = (0..10).map(|number| answer(number, "idk")).collect();
    take(&member, &bad);
    assert_eq!(bench.told(), ["declined firing"]);
    let other = r#"rules: { "slow": (of: Latency(0.5), fire: Above(50), at_least: 5) }"#;
    // The reload fails after the sink is built.
    let failed = bench.with(other);
    tick(&failed);
    assert_eq!(state(&member), "slow ok");
    drop(failed);
    tick(&member);
    assert_eq!((state(&member), bench.told().len()), ("declined firing".to_owned(), 1));
    // The next one succeeds, and both get answers for a while.
    let next = bench.with(other);
    take(&member, &[answer(10, "idk")]);
    take(&next, &[answer(10, "idk"), answer(11, "idk")]);
    assert_eq!(next.kept.lock().watch().status()[0].n, 12);
    drop(member);
    tick(&next);
    assert_eq!(bench.told(), ["declined firing", "declined cleared"]);
    let last = bench.records().pop().unwrap();
    assert_eq!(
        (&*last.text, &*last.alert),
        ("declined: cleared: the pipeline file does not have this rule any more", "alerts/1")
    );
}

#[test]
fn a_gap_that_grows_is_told_by_its_questions() {
    use turnflow_gaps::journal::{Asked, Journal, Line, Outcome};
    use turnflow_gaps::vector::Codes;

    let bench = Bench::new(r#"rules: { "growing": (of: Gap, fire: Above(2), clear: Some(1), window_s: 60) }"#);
    let asked = |number: usize, group: u64, at: f64| {
        Line::Asked(Box::new(Asked {
            key: format!("k{number}").into(),
            revision: 0,
            conversation: format!("c{number}").into(),
            turn: 1,
            person: None,
            at,
            text: format!("question {number}?").into(),
            outcome: Outcome::Declined,
            answer: "".into(),
            epoch: 1,
            near: Vec::new(),
            documents: Vec::new(),
            before: None,
            group,
            vector: Codes::of(&[1.0, 0.0]),
        }))
    };
    let mut journal = Journal::open(&bench.path("gaps.jsonl"), |_| ()).unwrap();
    let first = Line::Journal { form: 1, model: "m".into() };
    journal.append(&[first, asked(0, 1, 1000.0), asked(1, 2, 1001.0), asked(2, 2, 1002.0)]).unwrap();
    let member = bench.open();
    bench.at(3.0);
    tick(&member);
    assert_eq!((state(&member), bench.told().len()), ("growing ok".to_owned(), 0));
    journal.append(&[asked(3, 3, 1003.0), Line::Merged { from: 3, into: 2 }]).unwrap();
    tick(&member);
    tick(&member);
    let record = bench.records().pop().unwrap();
    assert_eq!(record.text, "growing: 3 new questions in the gap g2 in 1 minute; the alert fires above 2");
    assert_eq!((record.gap.as_deref(), record.examples.len()), (Some("g2"), 3));
    // A restart reads the journal from its beginning, and says nothing again.
    drop(member);
    let member = bench.open();
    tick(&member);
    assert_eq!(bench.told(), ["growing firing"]);
    bench.at(62.5);
    tick(&member);
    assert_eq!(bench.told(), ["growing firing", "growing cleared"]);
}
