//! Which answers are taken.

use serde_json::json;
use turnflow_engine::record::AnswerRecord;

use super::{Bench, answer, list};
use crate::rule::drawn;

/// The rules that take each answer.
fn taken(rules: &str, records: Vec<AnswerRecord>) -> Vec<String> {
    let bench = Bench::new(&format!("rules: {{ {rules} }}"));
    let queue = bench.open();
    let numbers: Vec<String> = records.iter().map(|record| record.conversation_id.to_string()).collect();
    bench.take(&queue, &records);
    let items = list(&queue, false);
    let of = |name: &String| {
        let item = items.iter().find(|item| *item.conversation_id == **name);
        item.map(|item| item.rules.join(" ")).unwrap_or_default()
    };
    numbers.iter().map(of).collect()
}

#[test]
fn each_condition_takes_its_answers() {
    let rules = r#"
        "any": (of: Any),
        "declined": (of: Declined),
        "failed": (of: Failed),
        "high": (of: High("nli.contradiction", 0.5)),
        "low": (of: Low("confidence", 0.5)),
        "slow": (of: Slow(2)),
        "unsupported": (of: Unsupported),
    "#;
    let records = [
        json!({}),
        json!({"status": "idk", "checks": {"confidence": 0.4}}),
        json!({"status": "failed", "checks": {"confidence": 0.1}, "latency_ms": 5000.0, "error": "node `x`: no"}),
        json!({"checks": {"confidence": 0.5, "nli": {"contradiction": 0.6}}}),
        json!({"checks": {"confidence": "none", "self_check": {"failed": [1]}}, "latency_ms": 2001.0}),
        json!({"checks": {"nli": {"contradiction": 0.5}, "self_check": {"failed": []}}, "latency_ms": 2000.0}),
    ];
    let records = records.into_iter().enumerate().map(|(number, fields)| answer(number, fields)).collect();
    assert_eq!(
        taken(rules, records),
        ["any", "any declined low", "any failed", "any high", "any slow unsupported", "any"]
    );
}

#[test]
fn a_sample_has_its_share_and_is_always_the_same() {
    let keys: Vec<String> = (0..10_000).map(|number| format!("turns:log.jsonl:{number}")).collect();
    for share in [0.01, 0.05, 0.5] {
        let drawn = keys.iter().filter(|key| drawn(key) < share).count() as f64;
        // Five standard deviations of the binomial distribution: once in two million.
        let (mean, deviation) = (10_000.0 * share, (10_000.0 * share * (1.0 - share)).sqrt());
        assert!((drawn - mean).abs() < 5.0 * deviation, "{share}: {drawn}");
    }
    // The values are fixed for all versions, or an update would draw another sample of a log.
    assert_eq!(format!("{:.6} {:.6}", drawn("k0"), drawn("k1")), FIXED);

    let records: Vec<AnswerRecord> = (0..2000).map(|number| answer(number, json!({"status": "idk"}))).collect();
    let bench = Bench::new(r#"rules: { "sample": (share: 0.1), "declined": (of: Declined, share: 0.2) }"#);
    let mut queue = bench.open();
    let before = bench.take(&queue, &records);
    let file = bench.file();
    queue = bench.open();
    assert_eq!((bench.take(&queue, &records), bench.file()), (before, file));
    // In another order, in a new queue.
    let other = Bench::new(r#"rules: { "declined": (of: Declined, share: 0.2), "sample": (share: 0.1) }"#);
    let reversed: Vec<AnswerRecord> = records.into_iter().rev().collect();
    let again = other.open();
    for records in reversed.chunks(7) {
        other.take(&again, records);
    }
    let rules = |queue| {
        let mut all: Vec<_> = list(queue, false).into_iter().map(|item| (item.id, item.rules)).collect();
        all.sort();
        all
    };
    assert_eq!(rules(&queue), rules(&again));
    // A smaller sample is a part of a larger one.
    assert!(rules(&queue).iter().all(|(_, rules)| rules.contains(&"declined".into())));
}

const FIXED: &str = "0.303326 0.153628";
