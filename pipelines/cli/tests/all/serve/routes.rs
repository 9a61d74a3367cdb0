//! The routes, over plain HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::{PIPELINE, Server, text, until};
use crate::support::PATIENCE;

#[tokio::test]
async fn documents_are_put_found_and_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    let answer = server.chat("When does the ferry leave?").await;
    assert!(text(&answer).contains("leaves at nine"), "{answer}");
    let citation = &answer["choices"][0]["message"]["annotations"][0]["url_citation"];
    let page = server.client.get(citation["url"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(
        (page.status().as_u16(), page.headers()["content-type"].to_str().unwrap()),
        (200, "text/html; charset=utf-8")
    );
    let page = page.text().await.unwrap();
    assert!(page.contains("id=\"passage\"") && page.contains("The ferry to the island leaves at nine."), "{page}");
    assert_eq!(citation["title"], "Island");

    let list = server.ok("GET", "/v1/documents", None).await;
    assert_eq!(list["data"].as_array().unwrap().len(), 2, "{list}");
    let one = server.ok("GET", "/v1/documents/notes/fees.md", None).await;
    assert_eq!(one["title"], "Island");
    let found = server.ok("GET", "/v1/search?query=ticket&top=1", None).await;
    assert_eq!(found["hits"][0]["document"], "notes/fees.md", "{found}");
    let page = server.client.get(found["hits"][0]["page"].as_str().unwrap()).send().await.unwrap();
    assert!(page.text().await.unwrap().contains("id=\"passage\""), "{found}");

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
        ("GET", "/v1/documents/..%2f..%2fetc%2fpasswd", 400),
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
        b"PUT /v1/documents/big HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9437184\r\n\r\n",
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
    assert!(metrics.as_str().unwrap().contains("# TYPE turnflow_http_requests_total counter\n"), "{metrics}");
}

#[tokio::test]
async fn documents_that_cannot_be_read_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let docs = directory.path().join("docs");
    std::fs::create_dir(&docs).unwrap();
    std::fs::write(docs.join("bad.docx"), "no archive").unwrap();
    let field = PIPELINE.replace("source: Documents()", "source: Documents(), fields: { \"floor\": Integer }");
    let pipeline =
        field.replace("corpora: {", "corpora: { \"files\": Corpus(source: Directory(path: \"docs\"), chunk: Whole()),");
    let pipeline = pipeline.replace("\"found\":", "\"other\": Bm25(input: \"query\", corpus: \"files\"), \"found\":");
    let server = Server::start(directory.path(), &pipeline, &[], &[]);
    let put = json!({ "text": "The office.", "metadata": { "floor": "first" } });
    server.ok("PUT", "/v1/documents/office?wait=true", Some(put)).await;
    server.ok("PUT", "/v1/documents/ferry?wait=true", Some(json!({ "text": "The ferry leaves at nine." }))).await;
    server.ok("PUT", "/v1/documents/blank?wait=true", Some(json!({ "text": " " }))).await;
    let list = server.ok("GET", "/v1/documents", None).await;
    assert_eq!(
        list["indexed"],
        json!({ "read": 3, "empty": 1, "unreadable": 1, "documents": 1, "passages": 1 }),
        "{list}"
    );
    let ready = server.ok("GET", "/readyz", None).await;
    assert_eq!((&ready["missing_documents"], &ready["empty_documents"]), (&json!(2), &json!(1)), "{ready}");
    let because = ready["missing_documents_because"].to_string();
    assert!(because.contains("bad.docx: broken docx") && because.contains("office: the field `floor`"), "{ready}");
    let status = server.ok("GET", "/v1/pipelines/demo/status", None).await;
    let counts: Vec<&Value> =
        status["corpora"].as_array().unwrap().iter().map(|corpus| &corpus["unreadable"]).collect();
    assert_eq!(counts, [1, 1], "{status}");
    assert!(status["corpora"][0]["unreadable_because"][0].as_str().unwrap().starts_with("office: "), "{status}");
    let state = server.ok("GET", "/debug/state", None).await.to_string();
    assert!(state.contains("\"unreadable\":1") && !state.contains("office: "), "{state}");
    let put = json!({ "text": "The office.", "metadata": { "floor": 1 } });
    server.ok("PUT", "/v1/documents/office?wait=true", Some(put)).await;
    std::fs::remove_file(docs.join("bad.docx")).unwrap();
    until(async || server.ok("GET", "/readyz", None).await["missing_documents"] == 0).await;
}

#[tokio::test]
async fn the_reasons_are_for_those_who_may_manage() {
    let directory = tempfile::tempdir().unwrap();
    let pipeline = PIPELINE.replace("source: Documents()", "source: Documents(), fields: { \"floor\": Integer }");
    let config = r#"Serve(tokens: [
        (name: "all", token: Env("ALL"), documents: Manage),
        (name: "some", token: Env("SOME"), documents: Write),
    ])"#;
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let variables = [("ALL", "all-secret"), ("SOME", "some-secret")];
    let server = Server::start(directory.path(), &pipeline, &["--config", "serve.ron"], &variables);
    let send = async |token: &str, method: &str, path: &str, body: Option<Value>| {
        let request =
            server.client.request(method.parse().unwrap(), format!("{}{path}", server.url)).bearer_auth(token);
        let request = if let Some(body) = &body { request.json(body) } else { request };
        request.send().await.unwrap().error_for_status().unwrap().json::<Value>().await.unwrap()
    };
    let put = json!({ "text": "The office.", "metadata": { "floor": "first" } });
    send("all-secret", "PUT", "/v1/documents/office?wait=true", Some(put)).await;
    for (token, is_told) in [("all-secret", true), ("some-secret", false)] {
        let status = send(token, "GET", "/v1/pipelines/demo/status", None).await;
        assert_eq!(status["corpora"][0]["unreadable"], 1, "{status}");
        assert_eq!(status.to_string().contains("office"), is_told, "{status}");
    }
    let ready = server.ok("GET", "/readyz", None).await;
    assert_eq!((&ready["missing_documents"], &ready["missing_documents_because"]), (&json!(1), &Value::Null));
}

#[tokio::test]
async fn silent_connections_keep_nobody_out() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("serve.ron"), "Serve(limits: (connections: 4))").unwrap();
    let server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &[]);
    server.fill().await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // A part of a request is not a request.
    for mut stream in &silent {
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n");
    }
    let asked = std::time::Instant::now();
    assert!(text(&server.chat("ferry").await).contains("ferry"));
    // Otherwise the answer would have to wait until the first silent connection is closed, after 30 seconds.
    assert!(asked.elapsed() < Duration::from_secs(30));
    drop(silent);
    // Nor do those that were answered and stay open; each gets its whole response.
    let ask = |_| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let (mut answer, mut part) = (Vec::new(), [0; 1 << 16]);
        let whole = loop {
            let read = stream.read(&mut part).unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..read]);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() >= length.parse().unwrap() {
                break body.ends_with('}');
            }
        };
        (stream, whole)
    };
    let open: Vec<(TcpStream, bool)> = (0..20).map(ask).collect();
    assert!(open.iter().all(|(_, whole)| *whole));
    assert!(asked.elapsed() < Duration::from_secs(30));
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

#[tokio::test]
async fn a_pipeline_is_described_watched_and_adjusted_for_a_turn() {
    let directory = tempfile::tempdir().unwrap();
    let pipeline = PIPELINE
        .replace("\"answer\": ", "\"both\": Rrf(inputs: [\"found\", \"again\"]),\n        \"answer\": ")
        .replace("(input: \"found\")", "(input: \"both\")")
        .replace(
            "\"both\": Rrf",
            "\"again\": Bm25(input: \"query\", corpus: \"docs\", tokenizer: Whitespace),\n        \"both\": Rrf",
        );
    let server = Server::start(directory.path(), &pipeline, &["--watch"], &[]);
    server.fill().await;
    // Each change that is waited for is found by the next request, whatever else is on its way.
    for round in 0..20 {
        let other = json!({ "id": "other", "text": format!("Boat {round}.") });
        server.ok("POST", "/v1/documents", Some(other)).await;
        let body = json!({ "text": format!("The word is lamp{round}.") });
        assert_eq!(server.ok("PUT", "/v1/documents/a?wait=true", Some(body)).await["published"], true);
        let found = server.ok("GET", &format!("/v1/search?query=lamp{round}"), None).await;
        assert_eq!(found["hits"].as_array().map(Vec::len), Some(1), "{round}");
    }
    // Documents without passages, and deletions.
    let told = server.ok("PUT", "/v1/documents/empty?wait=true", Some(json!({ "text": "" }))).await;
    assert_eq!(told["published"], true);
    for id in ["a", "other", "empty"] {
        let told = server.ok("DELETE", &format!("/v1/documents/{id}?wait=true"), None).await;
        assert_eq!(told["published"], true);
    }
    // What is as it was.
    let same = json!({ "title": "Island", "text": "A ticket costs four euros. Children travel free." });
    let told = server.ok("PUT", "/v1/documents/notes/fees.md?wait=true", Some(same)).await;
    assert_eq!(told["published"], true);

    let described = server.ok("GET", "/v1/pipelines", None).await;
    let nodes = described["data"][0]["nodes"].as_array().unwrap().clone();
    let node = |id: &str| nodes.iter().find(|node| node["id"] == id).unwrap().clone();
    assert_eq!((&node("both")["inputs"], &node("both")["weights"]), (&json!(["found", "again"]), &json!([1.0, 1.0])));
    assert_eq!((&node("found")["can_skip"], &node("answer")["can_skip"]), (&json!(true), &json!(false)));

    let turn = |adjust: Value| json!({ "conversation_id": "c", "turn": 1, "speaker": "user", "text": "What costs a ticket?", "adjust": adjust });
    let whole = server.ok("POST", "/v1/turns", Some(turn(json!(null)))).await;
    let without = server.ok("POST", "/v1/turns", Some(turn(json!({ "skip": ["found", "again"] })))).await;
    assert!(!whole["hits"].as_array().unwrap().is_empty());
    assert_eq!((&without["hits"], &without["status"]), (&json!([]), &json!("idk")));
    let warnings = without["stamp"]["warnings"].to_string();
    assert!(warnings.contains("found: skipped by the caller"), "{warnings}");
    let adjust = json!({ "weights": { "both": [2.0, 0.0] } });
    let weighed = server.ok("POST", "/v1/turns", Some(turn(adjust))).await;
    let score = |record: &Value| record["hits"][0]["score"].as_f64().unwrap();
    assert!((score(&weighed) - score(&whole)).abs() < 1e-6, "{weighed}");
    for (adjust, says) in [
        (json!({ "skip": ["answer"] }), "cannot be skipped"),
        (json!({ "skip": ["moon"] }), "no such operator"),
        (json!({ "weights": { "both": [1.0] } }), "it has 2 weights"),
        (json!({ "weights": { "both": [-1.0, 1.0] } }), "at least 0"),
        (json!({ "colour": 1 }), "unknown field"),
    ] {
        let (status, body) = server.send("POST", "/v1/turns", Some(turn(adjust.clone()))).await;
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(says), "{adjust}: {status} {body}");
    }

    let status = server.ok("GET", "/v1/pipelines/demo/status", None).await;
    assert_eq!((&status["corpora"][0]["documents"], &status["reload"]), (&json!(2), &json!(null)));
    let found = status["nodes"].as_array().unwrap().iter().find(|node| node["id"] == "found").unwrap().clone();
    assert!(found["durations"]["count"].as_u64().unwrap() >= 2, "{found}");
    assert_eq!(found["failures"], 0);
    assert!(server.ok("GET", "/debug/state", None).await["pipelines"]["demo"]["turns"]["answered"].as_u64() >= Some(3));
    let metrics = server.ok("GET", "/metrics", None).await;
    assert!(metrics.as_str().unwrap().contains("turnflow_node_seconds_count{pipeline=\"demo\",component=\"found\"}"));

    // The reason why a file is not taken over is told with its source.
    std::fs::write(server.directory.join("pipeline.ron"), pipeline.replace("Rrf(", "Rff(")).unwrap();
    let mut reload = Value::Null;
    until(async || {
        reload = server.ok("GET", "/v1/pipelines/demo/status", None).await["reload"].clone();
        !reload.is_null()
    })
    .await;
    let problems = reload["problems"].as_str().unwrap();
    assert!(
        reload["ok"] == false && problems.contains("unknown operator `Rff`") && problems.contains("^^^"),
        "{reload}"
    );
}

#[tokio::test]
async fn pages_of_other_sites_are_refused_where_there_are_no_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let get = async |name: &'static str, value: &str| {
        let request = server.client.get(format!("{}/v1/models", server.url)).header(name, value);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(get("Origin", &server.url).await, 200);
    assert_eq!(get("Origin", "https://evil.example").await, 403);
    assert_eq!(get("Origin", "null").await, 403);
    assert_eq!(get("Host", "evil.example").await, 403);
    assert_eq!(get("Host", "localhost").await, 200);
    // An image of another page, and a link on it.
    assert_eq!(get("Sec-Fetch-Site", "cross-site").await, 403);
    assert_eq!(get("Sec-Fetch-Site", "same-origin").await, 200);
    let link =
        server.client.get(&server.url).header("Sec-Fetch-Site", "cross-site").header("Sec-Fetch-Mode", "navigate");
    assert_eq!(link.send().await.unwrap().status().as_u16(), 200);
    // The code of the widget is loaded by pages of other sites; what it asks names their origin.
    let widget = server.client.get(format!("{}/widget.js", server.url)).header("Sec-Fetch-Site", "cross-site");
    assert_eq!(widget.send().await.unwrap().status().as_u16(), 200);
    let page = server.client.get(&server.url).send().await.unwrap();
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(server.send("GET", "/page/..%2Fsrc%2Fpage.rs", None).await.0, 404);
}

/// What a collector of OpenTelemetry gets.
#[tokio::test]
async fn turns_become_spans_without_their_texts() {
    let (endpoint, got) = super::usage::collector();
    let directory = tempfile::tempdir().unwrap();
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "50")];
    let server = Server::start(directory.path(), PIPELINE, &[], &variables);
    server.fill().await;
    server.chat("When does the ferry leave?").await;
    let sent = || String::from_utf8_lossy(&got.lock().unwrap()).into_owned();
    until(async || sent().contains("turn demo") && sent().contains("retrieval docs")).await;
    for name in ["/v1/traces", "gen_ai.operation.name", "gen_ai.data_source.id", "turnflow.epoch", "turnflow"] {
        assert!(sent().contains(name), "{name}");
    }
    assert!(!sent().contains("ferry leave") && !sent().contains("nine"), "texts are not sent");
}

#[tokio::test]
async fn top_shows_what_runs() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    server.chat("When does the ferry leave?").await;
    let top = |target: &str, more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_turnflow"));
        let done = command.current_dir(&server.directory).args(["top", target]).args(more).output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    for (target, more) in [(server.url.as_str(), &[][..]), ("pipeline.ron", &["--state", "state"])] {
        let (code, out, error) = top(target, more);
        assert_eq!(code, Some(0), "{error}");
        assert!(out.starts_with("demo  epoch ") && out.contains("\nfound   Bm25 "), "{out}");
    }
    let (code, _, error) = top("pipeline.ron", &["--state", "elsewhere"]);
    assert!(code == Some(1) && error.contains("no running pipeline uses the state directory `elsewhere`"), "{error}");
}

/// Long documents are listed a few at a time; none is lost on the way.
#[tokio::test]
async fn a_list_of_long_documents_comes_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let long = "word ".repeat(600_000);
    for id in 0..9 {
        server.ok("PUT", &format!("/v1/documents/{id}"), Some(json!({ "text": long }))).await;
    }
    let (mut seen, mut parts, mut after) = (Vec::new(), 0, String::new());
    loop {
        let page = server.ok("GET", &format!("/v1/documents?limit=100{after}"), None).await;
        let ids = page["data"].as_array().unwrap().iter().map(|document| document["id"].as_str().unwrap().to_owned());
        seen.extend(ids);
        parts += 1;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, (0..9).map(|id| id.to_string()).collect::<Vec<_>>());
    assert!((2..=5).contains(&parts), "{parts}");
}

/// The errors of requests that are wrong before they reach a route.
#[tokio::test]
async fn bodies_and_paths_that_cannot_be_are_told_in_openais_form() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("serve.ron"), "Serve(limits: (body_mb: 1))").unwrap();
    let server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &[]);
    // The client sends all of it before it reads; with and without a length.
    for _ in 0..5 {
        let (status, body) = server.send("PUT", "/v1/documents/a", Some(json!({ "text": "x".repeat(5 << 20) }))).await;
        assert_eq!((status, &body["error"]["code"]), (413, &json!("body_too_large")));
    }
    let pieces = (0..50).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 100_000]));
    let request = server.client.put(format!("{}/v1/documents/a", server.url)).header("Content-Type", "text/plain");
    let response = request.body(reqwest::Body::wrap_stream(futures::stream::iter(pieces))).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 413);
    let many = json!({ "id": "a", "text": "x", "metadata": { "a": vec![0; 250_000] } });
    for (path, body) in [("/v1/documents", many.clone()), ("/v1/chat/completions", many.clone()), ("/mcp", many)] {
        let (status, body) = server.send("POST", path, Some(body)).await;
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains("JSON values"), "{path}: {status} {body}");
    }
    for id in ["a%FFb", "a%2F..%2Fb", "%2E%2E%2Fa"] {
        let (status, body) = server.send("GET", &format!("/v1/documents/{id}"), None).await;
        assert!(status == 400 && body["error"]["type"] == "invalid_request_error", "{id}: {status} {body}");
    }
}
