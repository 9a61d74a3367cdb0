//! What verdicts make of answers.

use serde_json::{Value, json};
use turnflow_engine::connector::{Judgement, ReviewQueue, Verdict};

use super::{Bench, answer, list, says};
use crate::export::Export;

#[test]
fn tasks_have_ids_of_their_own_and_questions() {
    let bench = Bench::new(r#"rules: { "all": (of: Any) }"#);
    let queue = bench.open();
    let conversation = |name: &str, key: &str| json!({"conversation_id": name, "key": key});
    let hits = json!([{"passage": " a", "document": "a", "score": 1.0, "text": "x"}]);
    let records = [
        answer(0, conversation("c", "one")),
        answer(1, conversation("c", "two")),
        answer(2, conversation(" c\t", "three")),
        answer(3, json!({"query": " "})),
        answer(4, json!({"hits": hits})),
    ];
    bench.take(&queue, &records);
    for item in list(&queue, false) {
        queue.judge(&item.id, &says(Verdict::Good)).unwrap();
    }
    let export = Export::of(&queue.judged().unwrap());
    let ids: Vec<&str> = export.tasks.lines().map(|line| line.split('"').nth(3).unwrap()).collect();
    let names = ["c<::>1", "c-ID<::>1", "c-ID<::>1", "c4<::>1"];
    let items = queue.judged().unwrap();
    let expected: Vec<String> = (items[..].iter().filter(|item| &*item.conversation_id != "c3").zip(names))
        .map(|(item, name)| name.replace("ID", &item.id))
        .collect();
    assert_eq!(ids, expected);
    // Each of them has its judgements, other than the one whose passage no table would give back.
    let judged: Vec<&str> = export.qrels.lines().skip(1).map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(judged, expected[..3]);
}

#[test]
fn verdicts_become_tasks_judgements_and_tests() {
    let bench = Bench::new(r#"rules: { "all": (of: Any) }"#);
    let queue = bench.open();
    let good = says(Verdict::Good);
    let bad = says(Verdict::Bad);
    let correction = Some("At noon.".to_owned());
    let cases = [
        (json!({"checks": {"citations": [2]}}), good.clone()),
        (json!({}), good.clone()),
        (json!({"status": "idk"}), good.clone()),
        (json!({"status": "idk"}), bad.clone()),
        (
            json!({"conversation_id": "c\t4"}),
            Judgement { relevant: vec!["z".into()], irrelevant: vec!["a#0".into()], ..bad.clone() },
        ),
        (json!({}), Judgement { correction, ..bad.clone() }),
        (json!({}), Judgement { answerable: Some(false), ..bad }),
        (json!({}), says(Verdict::Unsure)),
        (json!({}), Judgement { irrelevant: vec!["a#0".into()], ..good }),
    ];
    let records: Vec<_> = cases.iter().enumerate().map(|(at, (fields, _))| answer(at, fields.clone())).collect();
    bench.take(&queue, &records);
    for (item, (_, judgement)) in list(&queue, false).iter().zip(&cases) {
        queue.judge(&item.id, judgement).unwrap();
    }
    let export = Export::of(&queue.judged().unwrap());
    let tasks: Vec<Value> = export.tasks.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<String> = tasks
        .iter()
        .map(|task| {
            let word = task["answerability"][0].as_str().unwrap_or("-");
            format!(
                "{} {word} {}",
                task["task_id"].as_str().unwrap(),
                task["targets"][0]["text"].as_str().unwrap_or("-")
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            "c0<::>1 ANSWERABLE x",
            "c1<::>1 ANSWERABLE x",
            "c2<::>1 UNANSWERABLE -",
            "c3<::>1 ANSWERABLE -",
            "c 4<::>1 - -",
            "c5<::>1 ANSWERABLE At noon.",
            "c6<::>1 UNANSWERABLE -",
            "c8<::>1 ANSWERABLE x",
        ]
    );
    assert_eq!(tasks[0]["input"], json!([{"speaker": "user", "text": "question 0?"}]));
    let qrels = "query-id\tcorpus-id\tscore\nc0<::>1\tb#0\t1\nc1<::>1\ta#0\t1\nc 4<::>1\tz\t1\nc 4<::>1\ta#0\t0\nc8<::>1\ta#0\t0\n";
    assert_eq!(export.qrels, qrels);
    assert_eq!((export.counts, export.unsure), ([8, 5, 7], 1));
    assert!(export.tests.contains("expect: [Expect(status: Answered, hits: [\"b#0\"])]"), "{}", export.tests);
    assert!(export.tests.contains("expect: [Expect(status: Idk)]"), "{}", export.tests);
}
