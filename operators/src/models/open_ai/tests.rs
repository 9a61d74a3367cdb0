//! Tests the client against a scripted server on this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{ChatRole, Finish, Generation, Generator, Message, Part, Prompt, Sampling};

use super::client::{Client, Limits};
use super::replies;
use super::request::{Counter, OpenAi};
use crate::chunk::tests::mutations;

const KEY: &str = "sk-test-0123456789";

#[derive(Clone)]
pub(in crate::models) enum Reply {
    /// Events, and a complete end of the answer.
    Stream(Vec<String>),
    /// Events, after which the connection breaks.
    Cut(Vec<String>),
    /// A status, additional headers, and a body.
    Whole(u16, &'static str, String),
    /// The bytes of an event stream as they are, in pieces of this size, and a complete end.
    Raw(Vec<u8>, usize),
    /// A content type, or none, and bytes in pieces with this pause between them.
    Typed(Option<&'static str>, Vec<Vec<u8>>, Duration),
    /// No answer until the client gives up.
    Hang,
}

/// The requests that the server received: headers and body.
pub(in crate::models) type Seen = Arc<Mutex<Vec<(String, Value)>>>;

fn read_request(stream: &TcpStream) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).ok()?))
}

fn respond(mut stream: TcpStream, reply: &Reply) -> std::io::Result<()> {
    let events = |stream: &mut TcpStream, events: &[String]| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\
                    Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes())?;
        events.iter().try_for_each(|event| {
            let event = format!("data: {event}\n\n");
            stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())
        })
    };
    match reply {
        Reply::Stream(pieces) => {
            events(&mut stream, pieces)?;
            stream.write_all(b"0\r\n\r\n")
        }
        Reply::Raw(bytes, size) => {
            events(&mut stream, &[])?;
            for piece in bytes.chunks(*size) {
                stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
                stream.write_all(piece)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")
        }
        Reply::Typed(kind, pieces, pause) => {
            let kind = kind.map(|kind| format!("Content-Type: {kind}\r\n")).unwrap_or_default();
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{kind}Connection: close\r\n\r\n").as_bytes())?;
            for piece in pieces {
                stream.write_all(piece)?;
                stream.flush()?;
                std::thread::sleep(*pause);
            }
            Ok(())
        }
        Reply::Cut(pieces) => events(&mut stream, pieces),
        Reply::Whole(status, headers, body) => {
            let length = body.len();
            let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
            stream.write_all(format!("{head}{body}").as_bytes())
        }
        Reply::Hang => stream.read_to_end(&mut Vec::new()).map(|_| ()),
    }
}

/// Starts a server that sends these replies, and repeats the last one for ever.
pub(in crate::models) fn server(script: Vec<Reply>, gate: impl Fn() + Send + Sync + 'static) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (seen, gate, count) = (Seen::default(), Arc::new(gate), Arc::new(AtomicUsize::new(0)));
    let for_thread = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (seen, gate, count, script) = (for_thread.clone(), gate.clone(), count.clone(), script.clone());
            std::thread::spawn(move || {
                let Some(request) = read_request(&stream) else { return };
                seen.lock().unwrap().push(request);
                let at = count.fetch_add(1, Ordering::SeqCst).min(script.len() - 1);
                gate();
                let _ = respond(stream, &script[at]);
            });
        }
    });
    (url, seen)
}

fn limits() -> Limits {
    let (whole, pause) = (Duration::from_secs(20), Duration::from_millis(1));
    Limits { whole, silence: whole, pause, retries: 3, concurrency: 4 }
}

fn model(url: &str, limits: Limits) -> OpenAi {
    let client = Client::new(url, "chat/completions", Some(("KEY", Some(KEY.to_owned()))), limits).unwrap();
    assert!(!format!("{client:?}").contains(KEY));
    OpenAi::new(client, "local".into(), 200, Counter { tokenizer: None }, Sampling::default())
}

pub(in crate::models) fn block<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn prompt() -> Prompt {
    Prompt { messages: vec![Message::fixed(ChatRole::User, "why?")] }
}

fn ask(model: &OpenAi) -> Result<Generation, InferenceError> {
    block(model.generate(prompt(), Sampling { max_tokens: 100, ..Sampling::default() }))
}

/// Runs a script. Returns the outcome and the number of requests.
fn outcome(script: Vec<Reply>, limits: Limits) -> (Result<Generation, InferenceError>, usize) {
    let (url, seen) = server(script, || ());
    let result = ask(&model(&url, limits));
    if let Err(error) = &result {
        assert!(!format!("{error} {error:?}").contains(KEY), "{error}");
    }
    let requests = seen.lock().unwrap().len();
    (result, requests)
}

const STREAMED: [&str; 5] = [
    r#"{"choices":[{"delta":{"role":"assistant"}}]}"#,
    r#"{"choices":[{"delta":{"content":"Because "}}]}"#,
    r#"{"choices":[{"delta":{"content":"it is."},"finish_reason":"stop"}]}"#,
    r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}"#,
    "[DONE]",
];

fn streamed() -> Vec<String> {
    STREAMED.map(str::to_owned).into()
}

fn whole(status: u16, body: &str) -> Reply {
    Reply::Whole(status, "Content-Type: application/json\r\n", body.to_owned())
}

fn is_the_answer(result: Result<Generation, InferenceError>) {
    let generation = result.unwrap();
    assert_eq!((generation.text.as_str(), generation.finish), ("Because it is.", Finish::Stop));
}

#[test]
fn a_streamed_answer_is_put_together() {
    let (url, seen) = server(vec![Reply::Stream(streamed())], || ());
    let client = Client::new(&url, "chat/completions", Some(("KEY", Some(KEY.to_owned()))), limits()).unwrap();
    let meter = client.meter.clone();
    let model = OpenAi::new(client, "local".into(), 200, Counter { tokenizer: None }, Sampling::default());
    let generation = ask(&model).unwrap();
    assert_eq!((generation.prompt_tokens, generation.tokens), (9, 4));
    is_the_answer(Ok(generation));
    let (head, body) = seen.lock().unwrap()[0].clone();
    assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
    assert!(head.contains(&format!("authorization: Bearer {KEY}")), "{head}");
    assert_eq!((&body["stream"], &body["model"]), (&true.into(), &"local".into()));
    let usage = meter.usage();
    assert_eq!((usage.inputs, usage.batches, usage.tokens), (1, 1, 13));
}

#[test]
fn an_answer_in_one_piece_is_understood() {
    let body = r#"{"choices":[{"message":{"role":"assistant","content":"Because it is."},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":9,"completion_tokens":4}}"#;
    let (result, requests) = outcome(vec![whole(200, body)], limits());
    is_the_answer(result);
    assert_eq!(requests, 1);
}

#[test]
fn what_passes_is_tried_again() {
    let busy = Reply::Whole(429, "Retry-After: 0\r\n", r#"{"error":{"message":"busy"}}"#.to_owned());
    let cut = Reply::Cut(streamed()[..2].to_vec());
    for failing in [busy, cut, whole(503, ""), whole(408, ""), whole(500, "oops")] {
        let (result, requests) = outcome(vec![failing, Reply::Stream(streamed())], limits());
        is_the_answer(result);
        assert_eq!(requests, 2);
    }
}

#[test]
fn retry_after_is_heeded_and_not_for_longer_than_a_try() {
    let after = |seconds| Reply::Whole(429, seconds, "{}".to_owned());
    // The configured pause would be too long for a test.
    let patient = Limits { pause: Duration::from_secs(3600), ..limits() };
    let (result, _) = outcome(vec![after("Retry-After: 0\r\n"), Reply::Stream(streamed())], patient);
    is_the_answer(result);
    let (result, requests) = outcome(vec![after("Retry-After: 86400\r\n")], limits());
    assert!(matches!(result, Err(InferenceError::Server { status: Some(429), .. })));
    assert_eq!(requests, 1);
}

#[test]
fn tries_are_used_up() {
    let (result, requests) = outcome(vec![whole(500, r#"{"error":{"message":"no memory"}}"#)], limits());
    let error = result.unwrap_err();
    assert!(matches!(&error, InferenceError::Server { status: Some(500), .. }), "{error}");
    assert!(error.to_string().contains("no memory") && !error.is_transient(), "{error}");
    assert_eq!(requests, 4);
}

#[test]
fn silence_ends_a_try() {
    let short = Limits { silence: Duration::from_millis(50), retries: 1, ..limits() };
    let (result, requests) = outcome(vec![Reply::Hang], short);
    assert!(matches!(result, Err(InferenceError::TimedOut { seconds, .. }) if seconds < 0.1));
    assert_eq!(requests, 2);
    let short = Limits { whole: Duration::from_millis(50), retries: 0, ..limits() };
    assert!(matches!(outcome(vec![Reply::Hang], short).0, Err(InferenceError::TimedOut { transient: true, .. })));
}

#[test]
fn what_cannot_pass_fails_at_once_and_says_why() {
    let key = format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}"}}}}"#);
    let error = r#"{"error":{"message":"context overflow"}}"#.to_owned();
    let elsewhere = Reply::Whole(307, "Location: http://elsewhere.example/v1\r\n", String::new());
    let cases = [
        (whole(401, &key), "Incorrect API key provided: [key]"),
        (whole(404, r#"{"error":{"message":"no such model"}}"#), "no such model"),
        (whole(200, "<html>hello</html>"), "the response is not JSON"),
        (whole(200, r#"{"choices":[]}"#), "no choices"),
        (elsewhere, "the server redirects to http://elsewhere.example/v1"),
        (
            Reply::Typed(None, vec![b"error: {\"code\":400,\"message\":\"too long\"}\n\n".to_vec()], Duration::ZERO),
            "error: too long",
        ),
        (whole(422, r#"{"detail":"`stop` is not supported"}"#), "`stop` is not supported"),
        (Reply::Stream(vec![error]), "the server reported an error: context overflow"),
        (Reply::Stream(vec!["{half".to_owned()]), "the response is not JSON"),
        (Reply::Stream(vec!["[DONE]".to_owned()]), "no choices"),
    ];
    for (reply, said) in cases {
        let (result, requests) = outcome(vec![reply], limits());
        let error = result.unwrap_err().to_string();
        assert!(error.contains(said), "{error} should say {said}");
        assert_eq!(requests, 1, "{error}");
    }
}

#[test]
fn a_server_that_is_not_there() {
    // The port is bound and released, so nothing listens on it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = ask(&model(&format!("http://{address}/v1"), limits())).unwrap_err();
    assert!(matches!(&error, InferenceError::Server { status: None, .. }), "{error}");
    assert!(error.to_string().contains("cannot connect"), "{error}");
}

#[test]
fn no_more_run_at_once_than_may() {
    let (barrier, running, most) = (Barrier::new(2), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let for_gate = most.clone();
    // Requests wait for each other in pairs, so fewer than two at once would block for ever.
    let gate = move || {
        for_gate.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        barrier.wait();
        running.fetch_sub(1, Ordering::SeqCst);
    };
    let (url, seen) = server(vec![Reply::Stream(streamed())], gate);
    let model = model(&url, Limits { concurrency: 2, ..limits() });
    let calls = (0..6).map(|_| model.generate(prompt(), Sampling { max_tokens: 100, ..Sampling::default() }));
    let results = block(futures::future::join_all(calls));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!((most.load(Ordering::SeqCst), seen.lock().unwrap().len()), (2, 6));
}

#[test]
fn passages_are_cut_to_the_context_and_questions_are_not() {
    let (url, seen) = server(vec![Reply::Stream(streamed())], || ());
    let model = model(&url, limits());
    let long = |text: &str, may_be_cut| {
        let parts =
            vec![Part { text: text.repeat(100), may_be_cut }, Part { text: "why now?".into(), may_be_cut: false }];
        Prompt { messages: vec![Message { role: ChatRole::User, parts }] }
    };
    let sampling = Sampling { max_tokens: 150, ..Sampling::default() };
    block(model.generate(long("a passage ", true), sampling.clone())).unwrap();
    let content = seen.lock().unwrap()[0].1["messages"][0]["content"].as_str().unwrap().to_owned();
    assert!(content.starts_with("a passage a passage") && content.ends_with("why now?"), "{content}");
    assert!(content.len() < 200, "{content}");
    let error = block(model.generate(long("a question ", false), sampling)).unwrap_err();
    assert!(matches!(error, InferenceError::TooLong { limit: 50, .. }), "{error}");
}

#[test]
fn what_the_protocol_lacks_is_refused_and_so_is_a_key_that_is_not_set() {
    let model = model("http://127.0.0.1:9/v1", limits());
    let error =
        block(model.generate(prompt(), Sampling { beams: 3, max_tokens: 9, ..Sampling::default() })).unwrap_err();
    assert!(error.to_string().contains("`beams` is not supported"), "{error}");
    for value in [None, Some(" ".to_owned())] {
        let error = Client::new("http://127.0.0.1:9/v1", "x", Some(("MY_KEY", value)), limits()).unwrap_err();
        assert!(error.to_string().contains("`MY_KEY`, which `key_env` names, is not set"), "{error}");
    }
    let error = Client::new("http://a/v1", "x", Some(("MY_KEY", Some(format!("{KEY}\n\u{1}")))), limits()).unwrap_err();
    assert!(!error.to_string().contains(KEY), "{error}");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let text: String = streamed().iter().map(|event| format!("data: {event}\n\n")).collect();
    for size in [1, 2, 7, 1000] {
        let bytes = [b"\xef\xbb\xbf", text.as_bytes()].concat();
        let (result, _) = outcome(vec![Reply::Raw(bytes, size)], limits());
        assert_eq!(result.unwrap().text, "Because it is.");
    }
}

/// A server that never ends its line, or its response, is an error, and no memory.
#[test]
fn responses_are_bounded() {
    let line = [b"data: ", vec![b'y'; 3 << 20].as_slice()].concat();
    let (result, requests) = outcome(vec![Reply::Raw(line, 8192)], limits());
    assert!(result.unwrap_err().to_string().contains("a line of the event stream is longer than 1024 KiB"));
    assert_eq!(requests, 1, "it is not tried again");
    let whole = Reply::Whole(200, "Content-Type: application/json\r\n", " ".repeat(65 << 20));
    assert!(outcome(vec![whole], limits()).0.unwrap_err().to_string().contains("longer than 64 MiB"));
    let failed = Reply::Whole(500, "", "z".repeat(1 << 20));
    assert!(outcome(vec![failed], Limits { retries: 0, ..limits() }).0.unwrap_err().to_string().contains("status 500"));
}

/// A server that is interrupted by another request ends the stream without a reason.
#[test]
fn an_interrupted_text_is_requested_again() {
    let half =
        vec![r#"{"choices":[{"delta":{"content":"Bec"},"finish_reason":null}]}"#.to_owned(), "[DONE]".to_owned()];
    let (result, requests) = outcome(vec![Reply::Stream(half), Reply::Stream(streamed())], limits());
    assert_eq!((result.unwrap().text.as_str(), requests), ("Because it is.", 2));
}

fn events(pieces: &[&str]) -> Vec<u8> {
    pieces.iter().map(|piece| format!("data: {piece}\n\n")).collect::<String>().into_bytes()
}

#[test]
fn the_bytes_decide_what_a_response_is() {
    let stream: Vec<&str> = STREAMED.to_vec();
    let whole = br#"{"choices":[{"message":{"content":"Because it is."},"finish_reason":"stop"}]}"#.to_vec();
    for kind in [Some("text/event-stream"), Some("text/plain; charset=utf-8"), Some("application/json"), None] {
        for bytes in [events(&stream), whole.clone(), [b"\xef\xbb\xbf\r\n".as_slice(), &whole].concat()] {
            for size in [1, 5, 4096] {
                let pieces = bytes.chunks(size).map(<[u8]>::to_vec).collect();
                let (result, requests) = outcome(vec![Reply::Typed(kind, pieces, Duration::ZERO)], limits());
                is_the_answer(result);
                assert_eq!(requests, 1, "{kind:?} {size}");
            }
        }
    }
    // The last event has no empty line behind it.
    let cut = Reply::Typed(None, vec![events(&stream[..3]), b"data: [DONE]".to_vec()], Duration::ZERO);
    is_the_answer(outcome(vec![cut], limits()).0);
}

#[test]
fn comments_keep_a_stream_alive() {
    let waits = Limits { silence: Duration::from_millis(400), retries: 0, ..limits() };
    let mut pieces = vec![b": PROCESSING\n\n".to_vec(); 12];
    pieces.push(events(&STREAMED));
    is_the_answer(outcome(vec![Reply::Typed(None, pieces, Duration::from_millis(50))], waits).0);
}

#[test]
fn a_fault_within_a_response_is_retried_like_one_before_it() {
    let busy = r#"{"error":{"code":503,"message":"overloaded"}}"#;
    let half = r#"{"choices":[{"delta":{"content":"Bec"}}]}"#;
    let aborted = r#"{"choices":[{"delta":{"content":"Bec"},"finish_reason":"abort"}]}"#;
    let named = b"event: error\ndata: {\"message\":\"x\",\"type\":\"server_error\"}\n\n".to_vec();
    for first in [
        Reply::Stream(vec![half.to_owned(), busy.to_owned()]),
        Reply::Stream(vec![aborted.to_owned(), "[DONE]".to_owned()]),
        Reply::Typed(None, vec![events(&[half]), named], Duration::ZERO),
        whole(200, busy),
        Reply::Whole(429, "retry-after-ms: 1\r\n", "{}".to_owned()),
    ] {
        let (result, requests) = outcome(vec![first, Reply::Stream(streamed())], limits());
        is_the_answer(result);
        assert_eq!(requests, 2);
    }
}

#[test]
fn fields_that_a_server_refuses_are_not_sent_again() {
    let max_tokens = r#"{"error":{"message":"Unsupported parameter: use 'max_completion_tokens' instead of 'max_tokens'","param":"max_tokens"}}"#;
    let temperature =
        r#"{"error":{"message":"'temperature' does not support 0 with this model","param":"temperature"}}"#;
    let script = vec![whole(400, max_tokens), whole(400, temperature), Reply::Stream(streamed())];
    let (url, seen) = server(script, || ());
    let model = model(&url, Limits { retries: 0, ..limits() });
    is_the_answer(ask(&model));
    is_the_answer(ask(&model));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 4, "the second question needs one request");
    for (_, body) in &seen[2..] {
        assert_eq!((body.get("max_tokens"), body.get("temperature")), (None, None));
        assert_eq!(body["max_completion_tokens"], 100);
    }
}

/// Groq, for one, streams no reply that has a form.
#[test]
fn a_form_that_a_server_does_not_stream_is_asked_for_whole() {
    let refusal =
        r#"{"error":{"message":"`response_format` does not support streaming","type":"invalid_request_error"}}"#;
    let reply = r#"{"choices":[{"message":{"content":"{}"},"finish_reason":"stop"}]}"#;
    let script = vec![whole(400, refusal), whole(200, reply), whole(200, reply), Reply::Stream(streamed())];
    let (url, seen) = server(script, || ());
    let model = model(&url, Limits { retries: 0, ..limits() });
    let formed = Sampling { format: Some(json!({ "type": "json_object" })), max_tokens: 100, ..Sampling::default() };
    for _ in 0..2 {
        assert_eq!(block(model.generate(prompt(), formed.clone())).unwrap().text, "{}");
    }
    is_the_answer(ask(&model));
    let seen = seen.lock().unwrap();
    let is_streamed: Vec<bool> = seen.iter().map(|(_, body)| body.get("stream").is_some()).collect();
    assert_eq!(is_streamed, [true, false, false, true], "what has no form is streamed still");
}

/// The body of the fuzz target, and the client itself, on the target's seeds and on mutations of them.
#[test]
fn random_streams_are_a_text_or_an_error() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/replies");
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(seeds.len() >= 10);
    seeds.iter().for_each(|seed| replies::replies(seed));
    let mutations = std::env::var("TURNFLOW_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(3000);
    let mut mutator = mutations::Mutator::new(48);
    let mutated: Vec<Vec<u8>> = (0..mutations).map(|_| mutator.mutate(&seeds)).collect();
    mutated.iter().for_each(|bytes| replies::replies(bytes));
    let script = mutated.iter().take(60).map(|bytes| Reply::Raw(bytes.clone(), 7)).collect();
    let (url, _) = server(script, || ());
    let model = model(&url, Limits { retries: 0, ..limits() });
    for _ in 0..60 {
        drop(ask(&model));
    }
}
