use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Receiver;

use turnflow_engine::connector::Ends;
use turnflow_engine::spec::from_str;

use super::*;
use crate::webhook::tests::{Arrived, receiver};

fn sink(url: &str, fields: &str) -> HttpSink {
    let url = url.replace("/hook?token=hidden", "/desk/{conversation_id}?token=hidden");
    let ron = format!("(input: \"final\", url: {url:?}{fields})");
    let mut sink = from_str::<HttpSinkConfig>(&ron).unwrap().sink().unwrap();
    sink.tries.rest = Duration::ZERO;
    sink
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

/// What has ended of a delivery: the turn, and why it is refused.
type Ended = Vec<(u32, Option<String>)>;

#[derive(Default)]
struct Heard(Mutex<Vec<(usize, Option<String>)>>);

impl Ends for Heard {
    fn ended(&self, number: usize, refused: Option<&str>) {
        self.0.lock().push((number, refused.map(str::to_owned)));
    }
}

/// Delivers answers, and takes out those that have ended.
async fn deliver(sink: &mut HttpSink, answers: &mut Vec<AnswerRecord>) -> (Ended, Option<String>) {
    let (taken, heard) = (AtomicUsize::new(0), Heard::default());
    let delivered = sink.deliver(Delivery::new(answers, &taken).with_ends(&heard)).await;
    let mut ended: Ended =
        heard.0.into_inner().into_iter().map(|(number, refused)| (answers[number].turn, refused)).collect();
    ended.sort_unstable();
    answers.retain(|answer| ended.iter().all(|(turn, _)| *turn != answer.turn));
    assert_eq!(delivered.is_ok(), answers.is_empty());
    (ended, delivered.err().map(|error| error.to_string()))
}

fn accepted(turns: &[u32]) -> Ended {
    turns.iter().map(|turn| (*turn, None)).collect()
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
    assert_eq!(deliver(&mut sink, &mut answers(&["c 1", "c 1"])).await, (accepted(&[1, 2]), None));
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
    assert_eq!(deliver(&mut plain, &mut answers(&["a", "b"])).await, (accepted(&[1, 2]), None));
    assert!(arrived.recv().unwrap().0["request"].starts_with("PATCH /desk/b?"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_or_a_program_says_whether_an_answer_was_accepted() {
    let accept = r#", accept: Jq("if .status == 503 then null elif .body.ok == null then error(\"odd: \\(.text)\") elif .body.error == \"ratelimited\" then false elif .body.ok then true else .body.error end")"#;
    let (refused, later) = (|reason: &'static str| Some(Some(reason)), None);
    for (fields, reply, ended) in [
        ("", "204 No Content || ", Some(None)),
        ("", "404 Not Found || no such chat", refused("the receiver replied 404 Not Found no such chat")),
        ("", "401 Unauthorized", later),
        ("", "302 Found\r\nLocation: http://127.0.0.1:1/", later),
        (accept, "200 OK || {\"ok\": true}", Some(None)),
        (accept, "500 Oops || {\"ok\": true}", Some(None)),
        (accept, "200 OK || {\"ok\": false, \"error\": \"no_such_channel\"}", refused("no_such_channel")),
        (accept, "200 OK || {\"ok\": false, \"error\": \"ratelimited\"}", later),
        (accept, "503 Busy || <p>", later),
        (accept, "200 OK || <p>", refused("`accept`: odd: <p> (the receiver replied 200 OK <p>)")),
    ] {
        let (url, _arrived) = receiver(vec![reply]);
        let (got, error) = deliver(&mut sink(&url, fields), &mut answers(&["a"])).await;
        let wanted: Ended = ended.map(|reason| (1, reason.map(str::to_owned))).into_iter().collect();
        assert_eq!((got, error.is_some()), (wanted, ended.is_none()), "{reply}");
        assert!(!error.unwrap_or_default().contains("hidden"));
    }
}

fn keys(arrived: &Receiver<Arrived>, count: usize) -> Vec<String> {
    (0..count).map(|_| arrived.recv().unwrap().0["idempotency-key"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_is_not_sent_again_while_others_fail() {
    let (url, arrived) =
        receiver(vec!["500 Oops", "500 Oops", "200 OK", "404 No", "200 OK", "200 OK", "500 Oops", "200 OK", "200 OK"]);
    let mut sink = sink(&url, r#", concurrency: 1, when: Jq(".turn != 4")"#);
    let mut all = answers(&["a", "b", "c", "left out", "d", "c"]);
    let (ended, error) = deliver(&mut sink, &mut all).await;
    assert_eq!(
        ended.iter().map(|(turn, refused)| (*turn, refused.is_some())).collect::<Vec<_>>(),
        [(3, false), (4, false), (5, false), (6, true)]
    );
    assert!(error.unwrap().contains("replied 500"));
    // First what did not fail before, then the one that was tried longest ago.
    all.extend(answers(&["", "", "", "", "", "", "e"]).pop());
    let (ended, error) = deliver(&mut sink, &mut all).await;
    assert_eq!((ended, error.is_some()), (accepted(&[2, 7]), true));
    assert_eq!(deliver(&mut sink, &mut all).await, (accepted(&[1]), None));
    assert_eq!(keys(&arrived, 9), ["k1", "k2", "k3", "k6", "k5", "k7", "k1", "k2", "k1"]);
    assert!(sink.tries.is_empty(), "nothing is kept of what the engine has taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_value_is_not_sent_again_and_a_pause_holds_its_conversation_only() {
    let (url, arrived) = receiver(vec!["200 OK", "500 Oops", "200 OK"]);
    let mut sink = sink(&url, r#", body: Jq("1, 2")"#);
    let mut all = answers(&["a"]);
    assert_eq!(deliver(&mut sink, &mut all).await.0, []);
    assert_eq!(deliver(&mut sink, &mut all).await, (accepted(&[1]), None));
    assert_eq!(keys(&arrived, 3), ["k1", "k1#1", "k1#1"]);
    let (url, arrived) = receiver(vec!["429 Slow\r\nRetry-After: 60", "200 OK", "200 OK"]);
    let mut sink = self::sink(&url, ", concurrency: 1");
    let mut all = answers(&["a", "b", "a", "c"]);
    let ended = [deliver(&mut sink, &mut all).await, deliver(&mut sink, &mut all).await];
    assert_eq!(ended.each_ref().map(|(ended, _)| ended.clone()), [accepted(&[2, 4]), Vec::new()]);
    assert!(ended.iter().all(|(_, error)| error.as_ref().unwrap().contains("429")));
    assert_eq!(keys(&arrived, 3), ["k1", "k2", "k4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_within_a_conversation_is_kept_and_an_error_loses_nothing() {
    // A conversation's second answer is not sent before its first one is accepted.
    let (url, arrived) = receiver(vec!["500 Oops", "200 OK", "200 OK", "200 OK"]);
    let mut sink = sink(&url, ", concurrency: 1");
    let mut all = answers(&["a", "a", "b"]);
    let (ended, error) = deliver(&mut sink, &mut all).await;
    assert_eq!((ended, error.is_some()), (accepted(&[3]), true));
    assert_eq!(deliver(&mut sink, &mut all).await, (accepted(&[1, 2]), None));
    assert_eq!(keys(&arrived, 4), ["k1", "k3", "k1", "k2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_takes_is_given_up_whatever_pause_is_asked_for() {
    let (url, _arrived) = receiver(vec!["500 Oops"; 2]);
    let mut sink = sink(&url, ", retry_s: 0");
    let (ended, error) = deliver(&mut sink, &mut answers(&["a"])).await;
    assert!(ended[0].1.as_ref().unwrap().starts_with("tried for 0 s: ") && error.is_none());
    let (url, arrived) = receiver(vec!["429 Slow\r\nRetry-After: 3600", "200 OK"]);
    let mut sink = self::sink(&url, ", retry_s: 0.2");
    let mut all = answers(&["a", "a"]);
    let mut ended = Vec::new();
    while !all.is_empty() {
        ended.extend(deliver(&mut sink, &mut all).await.0);
    }
    assert!(ended[0].1.as_ref().unwrap().starts_with("tried for 0.2 s: the receiver replied 429"), "{ended:?}");
    // The next one of its conversation is sent.
    assert_eq!((&ended[1], keys(&arrived, 2)), (&(2, None), vec!["k1".to_owned(), "k2".to_owned()]));
    assert!(sink.tries.is_empty());
}

#[test]
fn requests_have_a_pace() {
    let mut pace = Pace { each: Some(Duration::from_secs(10)), next: None };
    let first = pace.take().unwrap();
    assert_eq!([pace.take().unwrap() - first, pace.take().unwrap() - first], [10, 20].map(Duration::from_secs));
    assert!(Pace { each: None, next: None }.take().is_none());
}
