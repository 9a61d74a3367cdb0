//! OTLP: programs that are instrumented with packages that people use send to the server, and to the source's own address.

use std::net::TcpListener;

use super::*;

/// Packages of Python, by what they instrument `openai` for.
const PYTHON: [&str; 8] = [
    "openai==3.57.0",
    "httpx==0.28.1",
    "wrapt==1.17.3",
    "opentelemetry-exporter-otlp-proto-http==1.45.2",
    "opentelemetry-exporter-otlp-proto-grpc==1.45.2",
    "opentelemetry-instrumentation-openai-v2==2.3b0",
    "openinference-instrumentation-openai==0.1.66",
    "opentelemetry-instrumentation-openai==0.62.4",
];
/// Packages of Node.
const NODE: [&str; 4] = [
    "ai@6.0.326",
    "@ai-sdk/openai-compatible@2.0.92",
    "@opentelemetry/sdk-trace-node@2.12.1",
    "@opentelemetry/exporter-trace-otlp-http@0.223.1",
];

/// A server whose pipeline takes OTLP at an address of its own, too, and that address.
fn start(directory: &Path) -> (Server, String) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let source = format!("Otlp(listen: {address:?}, conversations: (settle_s: 2))");
    let pipeline = durable::pipeline("Once").replace("Turns()", &source);
    (Server::start(directory, &pipeline, &[], &[]), address)
}

/// The questions that were answered, once there are so many, by conversation and turn.
async fn answered(server: &Server, number: usize) -> Vec<(String, u64, String)> {
    let mut found = Vec::new();
    until(async || {
        let answers = server.ok("GET", "/v1/answers?limit=100", None).await;
        found = answers["data"].as_array().unwrap().clone();
        found.len() >= number
    })
    .await;
    let text = |answer: &Value, field: &str| answer[field].as_str().unwrap().to_owned();
    let of =
        |answer: &Value| (text(answer, "conversation_id"), answer["turn"].as_u64().unwrap(), text(answer, "query"));
    found.iter().map(of).collect()
}

/// Asserts that two questions of a program are one conversation.
fn assert_asked(answers: &[(String, u64, String)], program: &str) {
    let of_it: Vec<_> = answers.iter().filter(|(.., query)| query.ends_with(&format!("{program}?"))).collect();
    let [first, second] = &of_it[..] else { panic!("{program}: {answers:?}") };
    assert_eq!((&first.0, first.1, second.1), (&second.0, 1, 2), "{program}: {answers:?}");
    assert!(first.2.contains("When does the ferry leave") && second.2.contains("And back"), "{answers:?}");
}

#[tokio::test]
async fn programs_that_are_instrumented_by_packages_of_python_are_understood() {
    let Some(with) = python::with_all("otlp", &PYTHON) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (server, address) = start(directory.path());
    python::run(with, "otlp_client.py", &server, &[&address]).await;
    let answers = answered(&server, 6).await;
    for program in ["openai-v2", "openinference", "openllmetry"] {
        assert_asked(&answers, program);
    }
}

#[tokio::test]
async fn programs_with_the_ai_sdk_are_understood() {
    let Some(packages) = node::with("otlp", &NODE) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (server, _) = start(directory.path());
    node::run(&packages, "otlp_client.mjs", &server, &[]).await;
    let answers = answered(&server, 2).await;
    assert_asked(&answers, "ai");
    assert_eq!(answers[0].0, "js");
}

#[tokio::test]
async fn requests_need_a_source_and_callers_have_conversations_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &durable::pipeline("Once"), &[], &[]);
    let (status, told) = server.send("POST", "/v1/traces", Some(json!({}))).await;
    assert!(status == 404 && told.to_string().contains("no pipeline has a source `Otlp`"), "{status} {told}");
    drop(server);

    let directory = tempfile::tempdir().unwrap();
    let source = "Otlp(conversations: (settle_s: 0))";
    let pipeline = durable::pipeline("Once").replace("Turns()", source);
    let config = r#"Serve(tokens: [(name: "ann", token: Env("ANN"), extra: {"groups": ["a"]}), (name: "bo", token: Env("BO"))])"#;
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let variables = [("ANN", "a-secret"), ("BO", "b-secret")];
    let server = Server::start(directory.path(), &pipeline, &["--config", "serve.ron"], &variables);
    let span = json!({"traceId": "t", "spanId": "s", "startTimeUnixNano": "5", "attributes": [
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "c"}},
        {"key": "gen_ai.prompt.0.role", "value": {"stringValue": "user"}},
        {"key": "gen_ai.prompt.0.content", "value": {"stringValue": "When does the ferry leave?"}}
    ]});
    let body = json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]});
    let post = |path: &str, token: &str| {
        let request = server.client.post(format!("{}{path}", server.url)).json(&body);
        if token.is_empty() { request } else { request.bearer_auth(token) }
    };
    assert_eq!(post("/v1/traces", "").send().await.unwrap().status().as_u16(), 401);
    for token in ["a-secret", "b-secret"] {
        let reply = post("/v1/traces", token).send().await.unwrap();
        assert_eq!((reply.status().as_u16(), reply.text().await.unwrap().as_str()), (200, "{}"), "{token}");
    }
    let mut seen = Vec::new();
    until(async || {
        let answers =
            server.client.get(format!("{}/v1/answers", server.url)).bearer_auth("b-secret").send().await.unwrap();
        let answers: Value = answers.json().await.unwrap();
        seen = answers["data"].as_array().unwrap().clone();
        !seen.is_empty()
    })
    .await;
    assert_eq!(seen.len(), 1, "the other caller's answer is not shown: {seen:?}");
}
