//! The Model Context Protocol: its official Python package, and what is refused.

use serde_json::{Value, json};

use super::{PIPELINE, Server, python};

const PACKAGE: &str = "mcp==2.3.0";

#[tokio::test]
async fn the_official_client_searches_asks_and_reads() {
    let Some(with) = python::with(PACKAGE) else { return };
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[("TURNFLOW_TOKENS", "web=secret")]);
    python::run(with, "mcp_client.py", &server, &["secret"]).await;
}

/// A request of the protocol before sessions went, as older clients send it.
async fn call(server: &Server, method: &str, params: Value) -> (u16, String) {
    let request = server.client.post(format!("{}/mcp", server.url));
    let request = request.header("Accept", "application/json, text/event-stream");
    let request = request.json(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn what_is_wrong_is_told_and_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    for (arguments, says) in [
        (json!({ "name": "search", "arguments": {} }), "missing field"),
        (json!({ "name": "search", "arguments": { "query": "" } }), "is empty"),
        (json!({ "name": "ask", "arguments": { "question": "q", "pipeline": "moon" } }), "does not exist"),
        (json!({ "name": "ask", "arguments": { "question": "q", "colour": 1 } }), "unknown field"),
        (json!({ "name": "delete", "arguments": {} }), "unknown tool"),
    ] {
        let (status, text) = call(&server, "tools/call", arguments.clone()).await;
        assert!(status == 200 && text.contains(says), "{arguments}: {status} {text}");
    }
    for uri in ["file:///etc/passwd", "turnflow://demo/docs/..%2F..%2Fetc", "turnflow://demo/docs/none"] {
        let (status, text) = call(&server, "resources/read", json!({ "uri": uri })).await;
        assert!(status == 200 && text.contains("unknown document"), "{uri}: {status} {text}");
    }
    let (status, text) =
        call(&server, "tools/call", json!({ "name": "search", "arguments": { "query": "noon" } })).await;
    assert!(status == 200 && text.contains("ferry.md"), "{text}");
}

/// The protocol's own reader would make them floating-point numbers, and take one for the other.
#[tokio::test]
async fn a_filter_by_a_whole_number_of_any_size_is_exact() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let numbers = ["123456789012345678901234567890", "123456789012345678901234567891"];
    for number in numbers {
        let body = format!("{{\"id\": {number}, \"text\": \"the ferry\", \"metadata\": {{\"n\": {number}}}}}");
        let request = server.client.post(format!("{}/v1/documents?wait=true", server.url));
        let response = request.header("Content-Type", "application/json").body(body).send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.text().await.unwrap());
    }
    for (number, other) in [(numbers[0], numbers[1]), (numbers[1], numbers[0])] {
        let body = format!(
            "{{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {{\"name\": \"search\", \
             \"arguments\": {{\"query\": \"ferry\", \"filter\": {{\"eq\": [\"n\", {number}]}}}}}}}}"
        );
        let request = server.client.post(format!("{}/mcp", server.url)).body(body);
        let request = request.header("Accept", "application/json, text/event-stream");
        let response = request.header("Content-Type", "application/json").send().await.unwrap();
        let text = response.text().await.unwrap();
        assert!(text.contains(number) && !text.contains(other), "{text}");
    }
}
