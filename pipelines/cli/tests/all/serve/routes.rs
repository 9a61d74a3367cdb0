//! The routes, over plain HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PIPELINE, Server, text};
use crate::support::PATIENCE;

#[tokio::test]
async fn documents_are_put_found_and_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let answer = server.chat("When does the ferry leave?").await;
    assert!(text(&answer).contains("leaves at nine"), "{answer}");
    let citation = &answer["choices"][0]["message"]["annotations"][0]["url_citation"];
    assert!(citation["url"].as_str().unwrap().contains("/v1/documents/ferry.md"), "{answer}");
    assert_eq!(citation["title"], "Island");

    let list = server.ok("GET", "/v1/documents", None).await;
    assert_eq!(list["data"].as_array().unwrap().len(), 2, "{list}");
    let one = server.ok("GET", "/v1/documents/notes/fees.md", None).await;
    assert_eq!(one["title"], "Island");
    let found = server.ok("GET", "/v1/search?query=ticket&top=1", None).await;
    assert_eq!(found["hits"][0]["document"], "notes/fees.md", "{found}");

    // What was acknowledged is there after a kill.
    server.ok("PUT", "/v1/documents/late.md", Some(json!({ "text": "The harbour closes at ten." }))).await;
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(server);
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    until(async || server.send("GET", "/readyz", None).await.0 == 200).await;
    server.until_found("harbour", 1).await;
    let answer = server.chat("When does the harbour close?").await;
    assert!(text(&answer).contains("closes at ten"), "{answer}");
    server.ok("DELETE", "/v1/documents/late.md?wait=true", None).await;
    server.until_found("harbour", 0).await;
    assert!(!text(&server.chat("When does the harbour close?").await).contains("closes at ten"));
    assert_eq!(server.send("GET", "/v1/documents/late.md", None).await.0, 404);

    // The indexes are those of a cold rebuild.
    drop(server);
    let verified = std::process::Command::new(env!("CARGO_BIN_EXE_turnflow"))
        .current_dir(directory.path())
        .args(["verify", "pipeline.ron", "--state", "state"])
        .output()
        .unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "the condition never held");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn turns_are_answered_one_many_and_as_events() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let turn =
        |number: u32, text: &str| json!({ "conversation_id": "c", "turn": number, "speaker": "user", "text": text });
    let one = server.ok("POST", "/v1/turns", Some(turn(1, "When does the ferry leave?"))).await;
    assert_eq!((&one["conversation_id"], &one["status"]), (&json!("c"), &json!("answered")), "{one}");
    let two = json!([turn(1, "When does the ferry leave?"), turn(2, "And what does a ticket cost?")]);
    let both = server.ok("POST", "/v1/turns", Some(two)).await;
    assert!(both[1]["answer"].as_str().unwrap().contains("four euros"), "{both}");
    // The second turn was searched with the first.
    assert!(both[1]["query"].as_str().unwrap().contains("ferry"), "{both}");

    let lines = format!("{}\n{}\n", turn(1, "ferry"), turn(2, "ticket"));
    let request = server.client.post(format!("{}/v1/turns?trace=true", server.url));
    let request = request.header("Content-Type", "application/x-ndjson").header("Accept", "text/event-stream");
    let events = request.body(lines).send().await.unwrap().text().await.unwrap();
    let names: Vec<&str> = events.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names.iter().filter(|name| **name == "answer").count(), 2, "{events}");
    assert!(names.contains(&"started") && names.contains(&"node"), "{events}");
}

#[tokio::test]
async fn what_is_wrong_is_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let chat = |body: Value| server.send("POST", "/v1/chat/completions", Some(body));
    let ask = json!([{ "role": "user", "content": "ferry" }]);
    for (body, status, word) in [
        (json!({ "messages": ask, "model": "none" }), 404, "none"),
        (json!({ "messages": ask, "n": 2 }), 400, "`n`"),
        (json!({ "messages": [] }), 400, "last message"),
        (json!({ "messages": "x" }), 400, "expected a sequence"),
        (json!([1]), 400, ""),
    ] {
        let (found, error) = chat(body.clone()).await;
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert!(found == status && message.contains(word), "{body}: {found} {error}");
    }
    for (method, path, status) in [
        ("GET", "/v1/none", 404),
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/documents/%00", 400),
        ("GET", "/v1/documents/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/v1/documents/../../etc/passwd", 404),
        ("GET", "/v1/documents?limit=x", 400),
        ("GET", "/v1/search", 400),
        ("POST", "/v1/embeddings", 415),
    ] {
        let body = (method == "PUT").then(|| json!({ "text": "x" }));
        let (found, error) = server.send(method, path, body).await;
        assert_eq!(found, status, "{method} {path}: {error}");
    }
    // Bytes that are no HTTP, and a client that says nothing, leave the others served.
    let address = server.url.trim_start_matches("http://").to_owned();
    // A body that is too large is refused by its length, before it is sent.
    let mut big = TcpStream::connect(&address).unwrap();
    big.set_read_timeout(Some(PATIENCE)).unwrap();
    big.write_all(
        b"PUT /v1/documents/big HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9437184\r\n\r\n",
    )
    .unwrap();
    let mut status = [0; 12];
    big.read_exact(&mut status).unwrap();
    assert_eq!(String::from_utf8_lossy(&status), "HTTP/1.1 413");
    let mut garbage = TcpStream::connect(&address).unwrap();
    garbage.write_all(b"\x16\x03\x01\0\xffgarbage\r\n\r\n").unwrap();
    let _silent = TcpStream::connect(&address).unwrap();
    let mut answer = Vec::new();
    let _ = garbage.read_to_end(&mut answer);
    assert!(text(&server.chat("ferry").await).contains("ferry"));
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models"] {
        server.ok("GET", path, None).await;
    }
    let metrics = server.ok("GET", "/metrics", None).await;
    assert!(metrics.as_str().unwrap().ends_with("# EOF\n"), "{metrics}");
}

#[tokio::test]
async fn only_those_with_a_token_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[("TURNFLOW_TOKENS", "web=secret-1,other=secret-2")]);
    let request = |token: Option<&str>| {
        let request = server.client.get(format!("{}/v1/models", server.url));
        let request = match token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        };
        async { request.send().await.unwrap().status().as_u16() }
    };
    assert_eq!(request(None).await, 401);
    assert_eq!(request(Some("secret-3")).await, 401);
    assert_eq!(request(Some("secret-1")).await, 200);
    assert_eq!(request(Some("secret-2")).await, 200);
    assert_eq!(server.send("GET", "/healthz", None).await.0, 200);

    // Another address needs tokens.
    let open = std::process::Command::new(env!("CARGO_BIN_EXE_turnflow"))
        .current_dir(&server.directory)
        .args(["serve", "pipeline.ron", "--state", "other", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&open.stderr);
    assert!(open.status.code() == Some(1) && told.contains("TURNFLOW_TOKENS"), "{told}");
}

/// More than may run at once is refused with 429, and the server recovers.
#[tokio::test]
async fn overload_is_refused_and_passes() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("serve.ron");
    std::fs::write(&config, "Serve(limits: (rate: 5, burst: 5))").unwrap();
    let server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &[]);
    let asked = (0..40).map(|_| server.send("GET", "/v1/models", None));
    let statuses: Vec<u16> = futures::future::join_all(asked).await.into_iter().map(|(status, _)| status).collect();
    assert!(statuses.contains(&429) && statuses.contains(&200), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    until(async || server.send("GET", "/v1/models", None).await.0 == 200).await;
}
