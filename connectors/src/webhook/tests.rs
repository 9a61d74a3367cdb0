use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use turnflow_engine::spec::from_str;

use super::*;
fn answer(turn: u32) -> AnswerRecord {
    AnswerRecord { turn, key: format!("k{turn}").into(), ..crate::testing::answer() }
}

/// A request that arrived: its headers, by lower-case name, and its body.
pub(crate) type Arrived = (BTreeMap<String, String>, Vec<u8>);

/// A receiver that replies with these statuses and headers, one after the other, and then ends.
pub(crate) fn receiver(replies: Vec<&'static str>) -> (String, Receiver<Arrived>) {
    let (sender, arrived) = channel();
    // A receiver of the test that is gone does not matter.
    let url = listening(replies, move |request| drop(sender.send(request)));
    (url, arrived)
}

/// Listens, and hands each request over before the reply: a status, perhaps headers, and perhaps ` || ` and a body.
fn listening(replies: Vec<&'static str>, mut take: impl FnMut(Arrived) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook?token=hidden", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for reply in replies {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut headers = BTreeMap::new();
            loop {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                match line.trim_end().split_once(": ") {
                    Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.to_owned())),
                    None if line.trim_end().is_empty() => break,
                    None => drop(headers.insert("request".to_owned(), line.trim_end().to_owned())),
                }
            }
            let mut body = vec![0; headers["content-length"].parse().unwrap()];
            lines.read_exact(&mut body).unwrap();
            take((headers, body));
            let (head, body) = reply.split_once(" || ").unwrap_or((reply, "why?"));
            let length = body.len();
            let text = format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            stream.write_all(text.as_bytes()).unwrap();
        }
    });
    url
}

/// A receiver that accepts everything: its URL, and the bodies so far, one on each line.
pub(crate) fn collecting() -> (String, Arc<Mutex<Vec<u8>>>) {
    let bodies: Arc<Mutex<Vec<u8>>> = Arc::default();
    let lines = bodies.clone();
    let url = listening(vec!["200 OK"; 1000], move |(_, body)| {
        let mut lines = lines.lock().unwrap();
        lines.extend(body);
        lines.push(b'\n');
    });
    (url, bodies)
}

fn hook(url: &str, fields: &str) -> Webhook {
    from_str::<WebhookConfig>(&format!("(input: \"final\", url: {url:?}{fields})")).unwrap().sink().unwrap()
}

async fn deliver(hook: &mut Webhook, answers: &[AnswerRecord]) -> (usize, Result<(), ConnectorError>) {
    let taken = AtomicUsize::new(0);
    let delivered = hook.deliver(Delivery::new(answers, &taken)).await;
    (taken.load(Ordering::Acquire), delivered)
}

/// The example of Standard Webhooks, computed with Python's `hmac`.
#[test]
fn signatures_are_those_of_standard_webhooks() {
    let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let signed = signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
    assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    assert!(super::key("whsec_?").is_err() && super::key("").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_arrive_signed_and_in_order() {
    let (url, arrived) = receiver(vec!["200 OK", "204 No Content"]);
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "a secret\n").unwrap();
    let mut hook = hook(&url, &format!(", secret: Some(File({secret:?})), headers: {{\"X-Team\": \"support\"}}"));
    let (mut first, second) = (answer(1), answer(2));
    first.revision = 3;
    let (taken, delivered) = deliver(&mut hook, &[first.clone(), second]).await;
    assert!(taken == 2 && delivered.is_ok(), "{delivered:?}");
    let (headers, body) = arrived.recv().unwrap();
    assert_eq!(serde_json::from_slice::<AnswerRecord>(&body).unwrap(), first);
    assert_eq!(headers["request"], "POST /hook?token=hidden HTTP/1.1");
    let id = format!("{}/3", first.key);
    assert_eq!((&headers["webhook-id"], &headers["idempotency-key"]), (&id, &id));
    assert_eq!((&*headers["x-team"], &*headers["content-type"]), ("support", "application/json"));
    let timestamp = headers["webhook-timestamp"].parse().unwrap();
    assert!(now_s() - timestamp < 60);
    assert_eq!(headers["webhook-signature"], signature(b"a secret", &id, timestamp, &body));
    assert_eq!(serde_json::from_slice::<AnswerRecord>(&arrived.recv().unwrap().1).unwrap().turn, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_fails_gets_the_answer_again_and_one_that_refuses_does_not() {
    let replies =
        vec!["503 Busy\r\nRetry-After: 1", "302 Found\r\nLocation: http://127.0.0.1:1/", "401 Who", "422 Wrong"];
    let (url, arrived) = receiver(replies);
    let mut hook = hook(&url, "");
    let answers = [answer(1)];
    let begun = Instant::now();
    let mut told = Vec::new();
    for _ in 0..4 {
        let (taken, delivered) = deliver(&mut hook, &answers).await;
        assert_eq!(taken, 0);
        told.push(delivered.unwrap_err());
        assert!(!arrived.recv().unwrap().0.contains_key("webhook-signature"));
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "Retry-After is observed");
    assert!(told[..3].iter().all(|error| !matches!(error, ConnectorError::Refused { .. })), "{told:?}");
    let ConnectorError::Refused { reason } = &told[3] else { panic!("{told:?}") };
    assert_eq!(reason, "the receiver replied 422 Unprocessable Entity why?");
    // Nobody listens any more.
    let (taken, delivered) = deliver(&mut hook, &answers).await;
    let reason = format!("{:?}", delivered.unwrap_err());
    assert!(taken == 0 && !reason.contains("hidden"), "{reason}");
}

/// Why it exists: a receiver that failed with a reply without end filled the memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_without_end_is_not_read() {
    for head in ["500 No\r\nContent-Length: 99999999999", "422 No\r\nTransfer-Encoding: chunked", "500 No", "200 OK"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (sender, sent) = channel();
        let is_chunked = head.ends_with("chunked");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                match line.trim_end().split_once(": ") {
                    Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                        length = value.parse().unwrap()
                    }
                    Some(_) => {}
                    None if line.trim_end().is_empty() => break,
                    None => {}
                }
            }
            lines.read_exact(&mut vec![0; length]).unwrap();
            stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).unwrap();
            let part = "x".repeat(1 << 16);
            let part = if is_chunked { format!("10000\r\n{part}\r\n") } else { part };
            let mut count = 0_u64;
            // Ends when the sink closes the connection.
            while stream.write_all(part.as_bytes()).is_ok() {
                count += part.len() as u64;
            }
            sender.send(count).unwrap();
        });
        let (taken, delivered) = deliver(&mut hook(&url, ", timeout_s: 60"), &[answer(1)]).await;
        match head {
            "200 OK" => assert!(taken == 1 && delivered.is_ok(), "{delivered:?}"),
            _ => {
                let error = format!("{:?}", delivered.unwrap_err());
                assert!(error.contains(&"x".repeat(200)), "{head}: {error}");
            }
        }
        let sent = sent.recv_timeout(crate::testing::PATIENCE).unwrap();
        assert!(sent < 64 << 20, "{head}: {sent} bytes were read");
    }
}

#[test]
fn mistakes_are_told() {
    let config = |text: &str| from_str::<WebhookConfig>(text).unwrap();
    assert!(config(r#"(input: "x", url: "ftp://a")"#).target().unwrap_err().contains("only http and https"));
    assert!(config(r#"(input: "x", url: "here")"#).target().unwrap_err().contains("not a URL"));
    let headers = config(r#"(input: "x", url: "http://a", headers: {"a b": "c"})"#);
    assert!(super::headers(&headers.headers).unwrap_err().contains("`a b`"));
    let secret = config(r#"(input: "x", url: "http://a", secret: Some(Env("TURNFLOW_NO_SUCH_SECRET")))"#);
    assert!(format!("{:?}", secret.sink().err()).contains("TURNFLOW_NO_SUCH_SECRET"));
    let shown = config(r#"(input: "x", url: "https://u:p@a.example/secret?token=t")"#).explain();
    assert!(shown.contains("a.example") && !shown.contains("token") && !shown.contains("secret"), "{shown}");
}
