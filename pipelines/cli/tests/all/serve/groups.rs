//! Who may read and write, as the caller is now: documents in every form, and answers that were made before.

use super::*;

/// A pipeline whose passages have readers.
fn pipeline() -> String {
    let pipeline = super::durable::pipeline("Live()");
    pipeline.replace("source: Documents(),", "source: Documents(), access: \"groups\",")
}

fn config(groups: &str) -> String {
    format!(
        r#"Serve(tokens: [
            (name: "admin", token: Env("ADMIN"), documents: Manage),
            (name: "ann", token: Env("ANN"), extra: {{"groups": {groups}}}),
            (name: "bob", token: Env("BOB"), extra: {{"groups": ["staff"]}}),
        ])"#
    )
}

const SECRETS: [(&str, &str); 3] = [("ADMIN", "admin-secret"), ("ANN", "ann-secret"), ("BOB", "bob-secret")];

pub(super) fn start(directory: &Path, groups: &str) -> Server {
    std::fs::write(directory.join("serve.ron"), config(groups)).unwrap();
    Server::start(directory, &pipeline(), &["--config", "serve.ron"], &SECRETS)
}

/// Sends a request of a caller; a body that is no object or list of JSON is a text.
pub(super) async fn send(server: &Server, name: &str, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let request = server.client.request(method.parse().unwrap(), format!("{}{path}", server.url));
    let request = request.bearer_auth(format!("{name}-secret"));
    let request = match body {
        Some(Value::String(text)) => request.header("Content-Type", "text/plain").body(text),
        Some(body) => request.json(&body),
        None => request,
    };
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or(Value::Null))
}

/// Why it exists: a document in JSON was not held to the caller's groups, as a text was.
#[tokio::test]
async fn nobody_writes_for_another_group_in_any_form() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), r#"["board"]"#);
    let text = "The account of the ferry is 666.";
    let with = |groups: Value| json!({ "text": text, "groups": groups });
    for (method, path, body) in [
        ("PUT", "/v1/documents/p", with(json!(["board"]))),
        ("PUT", "/v1/documents/p", with(json!("board"))),
        ("PUT", "/v1/documents/p", with(json!(["staff", "board"]))),
        ("PUT", "/v1/documents/p", with(json!("*"))),
        ("PUT", "/v1/documents/p", with(json!(["staff", "*"]))),
        ("PUT", "/v1/documents/p", json!({ "text": text, "metadata": { "groups": ["board"] } })),
        ("PUT", "/v1/documents/p", json!({ "text": text })),
        ("PUT", "/v1/documents/p", with(json!([]))),
        ("POST", "/v1/documents", json!({ "id": "p", "text": text, "groups": ["board"] })),
        (
            "POST",
            "/v1/documents",
            json!([{ "id": "q", "text": text, "groups": ["staff"] }, { "id": "p", "text": text, "groups": ["board"] }]),
        ),
        ("PUT", "/v1/documents/p?metadata=%7B%22groups%22:%22board%22%7D", json!(text)),
        ("PUT", "/v1/documents/p?metadata=%7B%22groups%22:%5B%22staff%22,%22board%22%5D%7D", json!(text)),
        ("PUT", "/v1/documents/p", json!(text)),
    ] {
        let (status, told) = send(&server, "bob", method, path, Some(body.clone())).await;
        assert_eq!((status, &told["error"]["param"]), (400, &json!("metadata")), "{path} {body}: {told}");
    }
    for id in ["p", "q"] {
        assert_eq!(send(&server, "admin", "GET", &format!("/v1/documents/{id}"), None).await.0, 404, "all or none");
    }
    // What names no group would have no reader, whoever writes it.
    for groups in [json!(5), json!([["staff"], 5]), json!({"staff": true}), json!([true]), json!(["staff", 5])] {
        let (status, told) = send(&server, "admin", "PUT", "/v1/documents/p", Some(with(groups.clone()))).await;
        assert_eq!((status, &told["error"]["param"]), (400, &json!("metadata")), "{groups}: {told}");
        assert!(told["error"]["message"].as_str().unwrap().contains("a text or a list of texts"), "{told}");
    }
    // For his own group, he may, in each form; and nobody else's documents may be replaced or deleted.
    for (path, body) in [
        ("/v1/documents/a", with(json!(["staff"]))),
        ("/v1/documents/b?metadata=%7B%22groups%22:%22staff%22%7D", json!(text)),
    ] {
        assert_eq!(send(&server, "bob", "PUT", path, Some(body)).await.0, 200, "{path}");
    }
    assert_eq!(send(&server, "ann", "PUT", "/v1/documents/a", Some(with(json!("board")))).await.0, 403);
    assert_eq!(send(&server, "ann", "DELETE", "/v1/documents/a", None).await.0, 404);
    // A document of both may be edited for both, but not by one for a third.
    send(&server, "admin", "PUT", "/v1/documents/c", Some(with(json!(["staff", "board"])))).await;
    assert_eq!(send(&server, "bob", "PUT", "/v1/documents/c", Some(with(json!(["board", "staff"])))).await.0, 200);
    assert_eq!(send(&server, "bob", "PUT", "/v1/documents/c", Some(with(json!(["staff", "crew"])))).await.0, 400);
    assert_eq!(send(&server, "bob", "DELETE", "/v1/documents/c", None).await.0, 200);
}

/// Why it exists: who had left a group still read its answers, and after an edit a revision with the new passage.
#[tokio::test]
async fn who_has_left_a_group_gets_none_of_its_answers() {
    let directory = tempfile::tempdir().unwrap();
    let turn = |turn: u32| json!({ "conversation_id": "c", "turn": turn, "speaker": "user", "text": "What is the plan for the ferry?" });
    let plan = |text: &str| Some(json!({ "text": text, "groups": ["board"] }));
    let server = start(directory.path(), r#"["board", "staff"]"#);
    let put = "/v1/documents/plan?wait=true";
    send(&server, "admin", "PUT", put, plan("The plan for the ferry is to sell it.")).await;
    let post = "/v1/turns?durable=true&wait=true";
    let (_, answer) = send(&server, "ann", "POST", post, Some(turn(1))).await;
    assert!(answer["answer"].as_str().unwrap().contains("sell"), "{answer}");
    let input = json!({ "input": "What is the plan for the ferry?" });
    let (_, stored) = send(&server, "ann", "POST", "/v1/responses", Some(input)).await;
    let stored = format!("/v1/responses/{}", stored["id"].as_str().unwrap());
    assert_eq!(send(&server, "ann", "GET", &stored, None).await.0, 200);
    drop(server);

    let server = start(directory.path(), r#"["staff"]"#);
    let put_again = send(&server, "admin", "PUT", put, plan("The plan for the ferry is to buy two more.")).await;
    assert_eq!(put_again.1["published"], true);
    // A revision has come when the log has more answers than the first one.
    until(async || send(&server, "ann", "GET", "/v1/answers", None).await.1["last"].as_u64() > Some(1)).await;
    for path in ["/v1/answers", "/v1/answers?conversation_id=c", "/v1/answers?after=0&limit=1"] {
        let (_, list) = send(&server, "ann", "GET", path, None).await;
        assert!(list["withheld"].as_u64() > Some(0), "{path}: {list}");
        assert!(!list.to_string().contains("sell") && !list.to_string().contains("buy"), "{list}");
    }
    assert_eq!(send(&server, "ann", "GET", &stored, None).await.0, 404);
    let request = server.client.get(format!("{}/v1/answers?after=0&stream=true", server.url));
    let mut stream = request.bearer_auth("ann-secret").send().await.unwrap();
    let (_, own) = send(&server, "ann", "POST", post, Some(turn(2))).await;
    assert!(!own.to_string().contains("buy") && !own.to_string().contains("sell"), "{own}");
    let mut events = String::new();
    while !events.contains("event: answer") {
        events += std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert!(events.contains("event: withheld") && !events.contains("sell") && !events.contains("buy"), "{events}");
    drop(server);

    // Who is in the group again reads them again.
    let server = start(directory.path(), r#"["crew", "staff", "board"]"#);
    let (_, list) = send(&server, "ann", "GET", "/v1/answers", None).await;
    assert!(list.to_string().contains("sell") && list.get("withheld").is_none(), "{list}");
    assert_eq!(send(&server, "ann", "GET", &stored, None).await.0, 200);
    assert_eq!(send(&server, "bob", "GET", "/v1/answers", None).await.1["data"], json!([]), "they are ann's");
}

/// Why it exists: a revision was made for the caller as he had been, and sinks other than `Answers` got it.
#[tokio::test]
async fn standing_answers_are_made_for_the_caller_as_he_is_now() {
    let directory = tempfile::tempdir().unwrap();
    let sinks = r#""out": Answers(input: "final"), "file": JsonLinesSink(input: "final", path: "answers.jsonl"),"#;
    let pipeline = pipeline().replace(r#""out": Answers(input: "final"),"#, sinks);
    let start = |callers: &str| {
        let admin = r#"(name: "admin", token: Env("ADMIN"), documents: Manage)"#;
        let config = format!("Serve(tokens: [{admin}, {callers}])");
        std::fs::write(directory.path().join("serve.ron"), config).unwrap();
        Server::start(directory.path(), &pipeline, &["--config", "serve.ron"], &SECRETS)
    };
    let ann = |groups: &str| format!(r#"(name: "ann", token: Env("ANN"), extra: {{"groups": {groups}}})"#);
    let plan = |text: &str, groups: Value| Some(json!({ "text": text, "groups": groups }));
    let records = || -> Vec<Value> {
        let text = std::fs::read_to_string(directory.path().join("answers.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let put = "/v1/documents/plan?wait=true";
    let server = start(&ann(r#"["board", "staff"]"#));
    send(&server, "admin", "PUT", put, plan("The plan for the ferry is to sell it.", json!(["board"]))).await;
    send(&server, "admin", "PUT", "/v1/documents/open?wait=true", plan("The bus is red.", json!(["*"]))).await;
    for (conversation, text) in [("c", "What is the plan for the ferry?"), ("d", "Which colour has the bus?")] {
        let turn = json!({ "conversation_id": conversation, "turn": 1, "speaker": "user", "text": text });
        assert_eq!(send(&server, "ann", "POST", "/v1/turns?durable=true&wait=true", Some(turn)).await.0, 200);
    }
    drop(server);

    // Without the group, the old answer is taken back at once, and no edit comes through.
    let server = start(&ann(r#"["staff"]"#));
    let made_again = || records().into_iter().filter(|record| record["revision"] == 1).collect::<Vec<_>>();
    until(async || made_again().len() >= 2).await;
    send(&server, "admin", "PUT", put, plan("The plan for the ferry is to buy two more.", json!(["board"]))).await;
    send(&server, "admin", "PUT", "/v1/documents/open?wait=true", plan("The bus is green.", json!(["*"]))).await;
    until(async || records().iter().any(|record| record["answer"].to_string().contains("green"))).await;
    for record in records().iter().filter(|record| record["revision"] != 0) {
        assert_eq!(record["principal"], json!({ "name": "ann", "groups": ["staff"] }), "{record}");
        assert!(!record.to_string().contains("buy") && !record.to_string().contains("sell"), "{record}");
    }
    assert!(
        records().iter().any(|record| record["retracted"] == true && record["answer"].to_string().contains("sell"))
    );
    // The answer that says the same was made again too, so the caller may read it.
    // Each sink gets it for itself.
    let list = async || send(&server, "ann", "GET", "/v1/answers?conversation_id=d", None).await.1.to_string();
    until(async || list().await.contains("green")).await;
    assert!(list().await.contains("red"), "{}", list().await);
    drop(server);

    // Back in the group, and then without a token: nobody is in no group.
    let server = start(&ann(r#"["board", "staff"]"#));
    until(async || records().iter().any(|record| record["answer"].to_string().contains("buy"))).await;
    drop(server);
    let server = start(r#"(name: "bob", token: Env("BOB"), extra: {"groups": ["board"]})"#);
    let last = || records().into_iter().rfind(|record| record["conversation_id"] == "ann:c").unwrap();
    until(async || last()["principal"] == json!({ "name": "ann" })).await;
    assert!(!last().to_string().contains("buy"), "{}", last());
    drop(server);
}

/// Why it exists: a turn that was queued before its caller left a group was answered with the group after a restart.
#[tokio::test]
async fn a_queued_turn_is_answered_for_the_caller_as_he_is_when_it_starts() {
    let directory = tempfile::tempdir().unwrap();
    let start = |groups: &str, pipeline: &str| {
        std::fs::write(directory.path().join("serve.ron"), config(groups)).unwrap();
        Server::start(directory.path(), pipeline, &["--config", "serve.ron"], &SECRETS)
    };
    // Turns wait until every corpus is read, and nothing listens there.
    let far = r#"corpora: { "far": Corpus(source: Web(urls: ["http://127.0.0.1:1/"]), chunk: Whole()), "#;
    let server = start(r#"["board"]"#, &pipeline().replace("corpora: {", far));
    let plan = json!({ "text": "The plan for the ferry is to sell it.", "groups": ["board"] });
    assert_eq!(send(&server, "admin", "PUT", "/v1/documents/plan", Some(plan)).await.0, 200);
    let turn =
        json!({ "conversation_id": "c", "turn": 1, "speaker": "user", "text": "What is the plan for the ferry?" });
    assert_eq!(send(&server, "ann", "POST", "/v1/turns?durable=true", Some(turn)).await.0, 202);
    assert_eq!(send(&server, "ann", "GET", "/v1/answers", None).await.1["last"], 0);
    drop(server);
    let server = start(r#"["staff"]"#, &pipeline());
    until(async || send(&server, "ann", "GET", "/v1/answers", None).await.1["last"].as_u64() > Some(0)).await;
    let (_, list) = send(&server, "ann", "GET", "/v1/answers", None).await;
    assert_eq!(
        (list["data"][0]["status"].as_str(), list["data"][0]["hits"].clone()),
        (Some("idk"), json!([])),
        "{list}"
    );
}

/// Limits are those of a token: what one has under way keeps no other out.
#[tokio::test]
async fn limits_count_turns_streams_and_bytes_of_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let config = r#"Serve(
        tokens: [
            (name: "ann", token: Env("ANN"), rate: 1, burst: 5, documents: Manage),
            (name: "bob", token: Env("BOB"), concurrency: 1, documents: Manage),
        ],
        limits: (token_streams: 1, token_mb: 20),
    )"#;
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let server = Server::start(directory.path(), &pipeline(), &["--config", "serve.ron"], &SECRETS[1..]);
    let turns: Vec<Value> = (1..=40)
        .map(|turn| json!({ "conversation_id": "c", "turn": turn, "speaker": "user", "text": "ferry?" }))
        .collect();
    let open = async |name: &str| {
        let request = server.client.get(format!("{}/v1/answers?stream=true", server.url));
        request.bearer_auth(format!("{name}-secret")).send().await.unwrap()
    };
    let (first, second, of_bob) = (open("ann").await, open("ann").await, open("bob").await);
    assert_eq!([&first, &second, &of_bob].map(|of| of.status().as_u16()), [200, 429, 200]);
    assert_eq!(send(&server, "ann", "POST", "/v1/turns?durable=true", Some(json!(turns))).await.0, 202);
    for path in ["/v1/models", "/v1/answers", "/v1/pipelines", "/metrics", "/debug/state", "/openapi.json"] {
        assert_eq!(send(&server, "ann", "GET", path, None).await.0, 429, "{path}");
        assert_eq!(send(&server, "bob", "GET", path, None).await.0, 200, "{path}");
    }
    // A list that nobody reads keeps its place and its bytes until the connection is closed.
    let long = json!({ "text": "word ".repeat(3 << 19), "groups": ["staff"] });
    assert_eq!(send(&server, "bob", "PUT", "/v1/documents/long", Some(long)).await.0, 200);
    let address = server.url.strip_prefix("http://").unwrap();
    let mut unread = std::net::TcpStream::connect(address).unwrap();
    let request = "GET /v1/documents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer bob-secret\r\n\r\n";
    std::io::Write::write_all(&mut unread, request.as_bytes()).unwrap();
    until(async || send(&server, "bob", "GET", "/v1/models", None).await.0 == 429).await;
    drop(unread);
    until(async || send(&server, "bob", "GET", "/v1/models", None).await.0 == 200).await;
}

#[tokio::test]
async fn a_header_that_says_who_or_where_is_there_once() {
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let address = server.url.strip_prefix("http://").unwrap();
    for headers in [
        "Host: localhost\r\nHost: localhost",
        "Host: localhost\r\nHost: evil.example",
        "Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b",
    ] {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let request = format!("GET /v1/models HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 400 "), "{headers}: {response}");
    }
}

/// A collector that accepts and never answers does not hold up the end.
#[tokio::test]
async fn a_silent_collector_does_not_hold_up_the_end() {
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/under/a/path", collector.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")];
    let mut server = Server::start(directory.path(), PIPELINE, &[], &variables);
    server.fill().await;
    server.chat("When does the ferry leave?").await;
    server.signal(libc::SIGTERM);
    // The limit of this test is less than that of a request to the collector.
    assert!(server.ended().await.success());
}
