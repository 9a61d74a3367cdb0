use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use turnflow_engine::spec::from_str;

use super::*;
use crate::webhook::tests::{Arrived, receiver};

fn sink(url: &str, fields: &str) -> HttpSink {
    let url = url.replace("/hook?token=hidden", "/desk/{conversation_id}?token=hidden");
    let ron = format!("(input: \"final\", url: {url:?}{fields})");
    from_str::<HttpSinkConfig>(&ron).unwrap().sink().unwrap()
}

fn answers(conversations: &[&str]) -> Vec<AnswerRecord> {
    let answer = |(turn, conversation): (u32, &&str)| AnswerRecord {
        turn,
        conversation_id: (*conversation).into(),
        key: format!("k{turn}").into(),
        ..crate::testing::answer()
    };
    (1..).zip(conversations).map(answer).collect()
}

async fn deliver(sink: &mut HttpSink, answers: &[AnswerRecord]) -> (usize, Option<String>) {
    let taken = AtomicUsize::new(0);
    let delivered = sink.deliver(Delivery::new(answers, &taken)).await;
    let error = delivered.err().map(|error| match error {
        ConnectorError::Refused { reason } => format!("refused: {reason}"),
        other => format!("later: {other}"),
    });
    (taken.load(Ordering::Acquire), error)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_arrive_in_the_form_that_the_receiver_wants() {
    let (url, arrived) = receiver(vec!["200 OK"; 5]);
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("token");
    std::fs::write(&secret, "a token\n").unwrap();
    let fields = format!(
        r#", method: Put, auth: Bearer(File({secret:?})), headers: {{"X-Team": "support"}},
            body: Jq("{{text: .answer}}, (.hits[] | .document)")"#
    );
    let mut sink = sink(&url, &fields);
    assert_eq!(deliver(&mut sink, &answers(&["c 1", "c 1"])).await, (2, None));
    let (headers, body) = arrived.recv().unwrap();
    assert_eq!(headers["request"], "PUT /desk/c%201?token=hidden HTTP/1.1");
    assert_eq!((&*headers["authorization"], &*headers["x-team"]), ("Bearer a token", "support"));
    assert_eq!((&*headers["content-type"], &*headers["idempotency-key"]), ("application/json", "k1"));
    assert_eq!(body, br#"{"text":"Seven years."}"#);
    let (headers, body) = arrived.recv().unwrap();
    assert_eq!((&*headers["content-type"], &*headers["idempotency-key"]), ("text/plain; charset=utf-8", "k1#1"));
    assert_eq!(body, b"a.md");
    let further: Vec<String> = (0..2).map(|_| arrived.recv().unwrap().0["idempotency-key"].clone()).collect();
    assert_eq!(further, ["k2", "k2#1"]);
    // An answer without a value is not sent.
    let mut plain = self::sink(&url, ", method: Patch, body: Jq(\"select(.turn == 2)\")");
    assert_eq!(deliver(&mut plain, &answers(&["a", "b"])).await, (2, None));
    assert!(arrived.recv().unwrap().0["request"].starts_with("PATCH /desk/b?"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_or_a_program_says_whether_an_answer_was_accepted() {
    let accept = r#", accept: Jq("if .status == 503 then null elif .body.ok == null then error(\"odd: \\(.text)\") elif .body.error == \"ratelimited\" then false elif .body.ok then true else .body.error end")"#;
    for (fields, reply, taken, error) in [
        ("", "204 No Content || ", 1, None),
        ("", "404 Not Found || no such chat", 0, Some("refused: the receiver replied 404 Not Found no such chat")),
        ("", "401 Unauthorized", 0, Some("later: ")),
        ("", "302 Found\r\nLocation: http://127.0.0.1:1/", 0, Some("later: ")),
        (accept, "200 OK || {\"ok\": true}", 1, None),
        (accept, "500 Oops || {\"ok\": true}", 1, None),
        (accept, "200 OK || {\"ok\": false, \"error\": \"no_such_channel\"}", 0, Some("refused: no_such_channel")),
        (accept, "200 OK || {\"ok\": false, \"error\": \"ratelimited\"}", 0, Some("later: ")),
        (accept, "503 Busy || <p>", 0, Some("later: ")),
        (accept, "200 OK || <p>", 0, Some("refused: `accept`: odd: <p>")),
    ] {
        let (url, _arrived) = receiver(vec![reply]);
        let got = deliver(&mut sink(&url, fields), &answers(&["a"])).await;
        let is_right = match (&got.1, error) {
            (Some(got), Some(error)) => got.starts_with(error) && !got.contains("hidden"),
            (got, error) => got.as_deref() == error,
        };
        assert!(got.0 == taken && is_right, "{reply}: {got:?}");
    }
}

fn keys(arrived: &Receiver<Arrived>, count: usize) -> Vec<String> {
    (0..count).map(|_| arrived.recv().unwrap().0["idempotency-key"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_is_not_sent_again_while_others_fail() {
    let (url, arrived) =
        receiver(vec!["500 Oops", "500 Oops", "200 OK", "404 No", "200 OK", "500 Oops", "500 Oops", "200 OK"]);
    let mut sink = sink(&url, r#", concurrency: 1, when: Jq(".turn != 4")"#);
    let all = answers(&["a", "b", "c", "left out", "d", "c"]);
    let (taken, error) = deliver(&mut sink, &all).await;
    assert!(taken == 0 && error.unwrap().starts_with("later"));
    // First what did not fail before, then the one that was tried longest ago.
    let (taken, error) = deliver(&mut sink, &all).await;
    assert!(taken == 0 && error.unwrap().starts_with("later"));
    assert_eq!(keys(&arrived, 7), ["k1", "k2", "k3", "k6", "k5", "k1", "k2"]);
    // The engine takes the refused one alone.
    let (url, arrived) = receiver(vec!["200 OK", "200 OK"]);
    sink.target = Target::parse(&url.replace("/hook", "/{conversation_id}")).unwrap();
    assert!(matches!(deliver(&mut sink, &all).await, (5, Some(reason)) if reason.starts_with("refused: the receiver")));
    assert_eq!(keys(&arrived, 2), ["k1", "k2"]);
    assert!(
        matches!(deliver(&mut sink, &all[5..]).await, (0, Some(reason)) if reason.starts_with("refused: the receiver"))
    );
    assert_eq!(deliver(&mut sink, &[]).await, (0, None));
    assert!(sink.tries.is_empty(), "nothing is kept of what the engine has taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_value_is_not_sent_again_and_a_pause_holds_its_conversation_only() {
    let (url, arrived) = receiver(vec!["200 OK", "500 Oops", "200 OK"]);
    let mut sink = sink(&url, r#", body: Jq("1, 2")"#);
    let all = answers(&["a"]);
    assert_eq!(deliver(&mut sink, &all).await.0, 0);
    assert_eq!(deliver(&mut sink, &all).await, (1, None));
    assert_eq!(keys(&arrived, 3), ["k1", "k1#1", "k1#1"]);
    let (url, arrived) = receiver(vec!["429 Slow\r\nRetry-After: 60", "200 OK", "200 OK"]);
    let mut sink = self::sink(&url, ", concurrency: 1");
    let all = answers(&["a", "b", "a", "c"]);
    for _ in 0..3 {
        assert!(matches!(deliver(&mut sink, &all).await, (0, Some(reason)) if reason.contains("429")));
    }
    assert_eq!(keys(&arrived, 3), ["k1", "k2", "k4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_within_a_conversation_is_kept_and_an_error_loses_nothing() {
    // A conversation's second answer is not sent before its first one is accepted.
    let (url, arrived) = receiver(vec!["500 Oops", "200 OK", "200 OK", "200 OK"]);
    let mut sink = sink(&url, ", concurrency: 1");
    let all = answers(&["a", "a", "b"]);
    let (taken, error) = deliver(&mut sink, &all).await;
    assert!(taken == 0 && error.unwrap().starts_with("later"));
    assert_eq!(deliver(&mut sink, &all).await, (3, None));
    assert_eq!(keys(&arrived, 4), ["k1", "k3", "k1", "k2"]);
    // After a while, an answer that nobody takes is given up.
    let (url, _arrived) = receiver(vec!["500 Oops"; 2]);
    let mut sink = self::sink(&url, ", retry_s: 0");
    let (taken, error) = deliver(&mut sink, &answers(&["a"])).await;
    assert!(taken == 0 && error.unwrap().starts_with("refused: tried for 0 s"));
}

#[test]
fn requests_have_a_pace() {
    let mut pace = Pace { each: Some(Duration::from_secs(10)), next: None };
    let first = pace.take().unwrap();
    assert_eq!([pace.take().unwrap() - first, pace.take().unwrap() - first], [10, 20].map(Duration::from_secs));
    assert!(Pace { each: None, next: None }.take().is_none());
}
