//! Dead letters over HTTP and on the page: a turn is queued again, and a document says why it is not.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::page::browser;
use super::*;
use crate::support::request_body;

/// A server of a language model that refuses requests until it works.
fn model() -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let works = Arc::new(AtomicBool::new(false));
    let of = works.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = answer(stream, of.load(Ordering::SeqCst));
        }
    });
    (url, works)
}

fn answer(mut stream: TcpStream, works: bool) -> Option<()> {
    request_body(&stream)?;
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": "At nine [1]."}, "finish_reason": "stop"}]});
    let (status, kind, body) = match works {
        true => ("200 OK", "text/event-stream", format!("data: {chunk}\n\ndata: [DONE]\n\n")),
        false => ("400 Bad Request", "application/json", json!({"error": {"message": "no"}}).to_string()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()
}

fn start(directory: &Path, url: &str) -> Server {
    let docs = directory.join("docs");
    std::fs::create_dir_all(&docs).unwrap();
    std::fs::write(docs.join("ferry.md"), "The ferry to the island leaves at nine.").unwrap();
    std::fs::write(docs.join("broken.md"), b"The lamp \xff\xfe").unwrap();
    let config = r#"Serve(tokens: [
        (name: "admin", token: Env("ADMIN"), documents: Manage),
        (name: "ann", token: Env("ANN")),
    ])"#;
    std::fs::write(directory.join("serve.ron"), config).unwrap();
    let pipeline = format!(
        r#"Pipeline(
    name: "demo",
    failed_turns: DeadLetter,
    models: {{ "llm": OpenAi(url: {url:?}, model: "m", retries: 0) }},
    corpora: {{ "docs": Corpus(source: Directory(path: "docs", pattern: "*.md", watch: true), chunk: Whole()) }},
    nodes: {{
        "turns": Turns(),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs"),
        "answer": Generate(input: "found", model: "llm"),
        "out": Answers(input: "answer"),
    }},
)"#
    );
    Server::start(directory, &pipeline, &["--config", "serve.ron"], &[("ADMIN", "admin-secret"), ("ANN", "ann-secret")])
}

/// Asks a turn that fails, and waits until there are two letters.
async fn failed(server: &Server) -> Vec<Value> {
    let turn = json!({ "conversation_id": "c", "turn": 1, "speaker": "user", "text": "When does the ferry leave?" });
    let (status, told) = send(server, "ann", "POST", "/v1/turns?durable=true&wait=true", Some(turn)).await;
    assert_eq!((status, &told["status"]), (200, &json!("failed")), "{told}");
    let mut letters = Vec::new();
    until(async || {
        let (_, told) = send(server, "admin", "GET", "/v1/dead-letters", None).await;
        letters = told["data"].as_array().cloned().unwrap_or_default();
        letters.len() == 2
    })
    .await;
    letters
}

use super::groups::send;

#[tokio::test]
async fn a_turn_is_queued_again_and_a_document_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (url, works) = model();
    let server = start(directory.path(), &url);
    let letters = failed(&server).await;
    let of = |kind: &str| letters.iter().find(|letter| letter["kind"] == kind).unwrap_or_else(|| panic!("{letters:?}"));
    let (document, turn) = (of("document"), of("turn"));
    assert_eq!((&document["position"], &document["missing"]), (&json!("broken.md"), &json!(true)), "{document}");
    assert!(turn["reason"].as_str().unwrap().starts_with("node `answer`: "), "{turn}");
    assert!(turn.get("not_retried").is_none() && document["not_retried"].as_str().unwrap().contains("when it changes"));

    // Only those who may manage see them.
    let path = |letter: &Value, what: &str| format!("/v1/dead-letters/{}{what}", letter["id"].as_str().unwrap());
    for (method, path) in
        [("GET", "/v1/dead-letters".to_owned()), ("POST", path(turn, "/retry")), ("DELETE", path(turn, ""))]
    {
        assert_eq!(send(&server, "ann", method, &path, None).await.0, 403, "{method} {path}");
    }
    let (status, told) = send(&server, "admin", "POST", &path(document, "/retry"), None).await;
    assert_eq!((status, &told["error"]["code"]), (409, &json!("conflict")), "{told}");
    assert_eq!(send(&server, "admin", "POST", "/v1/dead-letters/00/retry", None).await.0, 404);

    // While the model refuses, the turn fails again and has a letter again.
    let (status, told) = send(&server, "admin", "POST", &path(turn, "/retry"), None).await;
    assert_eq!((status, &told["queued"]), (202, &json!(1)), "{told}");
    until(async || {
        let (_, told) = send(&server, "admin", "GET", "/v1/dead-letters", None).await;
        told["data"].as_array().unwrap().iter().any(|letter| letter["kind"] == "turn")
    })
    .await;
    works.store(true, Ordering::SeqCst);
    let (_, told) = send(&server, "admin", "GET", "/v1/dead-letters?limit=1", None).await;
    let again = &told["data"][0];
    // Of two who ask at once, one finds it gone.
    let retry = path(again, "/retry");
    let both = tokio::join!(send(&server, "admin", "POST", &retry, None), send(&server, "admin", "POST", &retry, None));
    let mut statuses = [both.0.0, both.1.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 404], "{told}");
    // Its answer is the caller's, as if it had not failed.
    until(async || {
        let (_, answers) = send(&server, "ann", "GET", "/v1/answers?conversation_id=c", None).await;
        answers["data"]
            .as_array()
            .unwrap()
            .iter()
            .any(|answer| answer["status"] == "answered" && answer["answer"] == "At nine [1].")
    })
    .await;

    // A document that was corrected is not missing any more; its letter can be removed.
    std::fs::write(directory.path().join("docs/broken.md"), "The lamp is lit at dusk.").unwrap();
    until(async || {
        let (_, told) = send(&server, "admin", "GET", "/v1/dead-letters", None).await;
        told["data"].as_array().unwrap().iter().any(|letter| letter["missing"] == false)
    })
    .await;
    assert_eq!(send(&server, "admin", "DELETE", &path(document, ""), None).await.0, 200);
    let (_, told) = send(&server, "admin", "GET", "/v1/dead-letters", None).await;
    assert_eq!((&told["data"], &told["total"]), (&json!([]), &json!(0)), "{told}");
}

#[tokio::test]
async fn the_page_shows_retries_and_removes_dead_letters() {
    let Some(with) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (url, works) = model();
    let server = start(directory.path(), &url);
    failed(&server).await;
    works.store(true, Ordering::SeqCst);
    python::run(with, "page_letters.py", &server, &["admin-secret"]).await;
}
