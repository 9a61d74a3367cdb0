//! The Model Context Protocol: its official Python package, and what is refused.

use serde_json::{Value, json};

use super::{PIPELINE, Server, python};

pub(super) const PACKAGE: &str = "mcp==2.3.0";

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

/// Not every client shows what is structured.
#[tokio::test]
async fn the_text_of_an_answer_ends_with_its_sources() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    for (question, is_answered) in [("When does the ferry leave?", true), ("Xylophone?", false)] {
        let (_, text) =
            call(&server, "tools/call", json!({ "name": "ask", "arguments": { "question": question } })).await;
        let event = text.lines().find_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
        let result = &event.or_else(|| serde_json::from_str(&text).ok()).unwrap()["result"];
        let (answer, shown) = (&result["structuredContent"]["answer"], result["content"][0]["text"].as_str().unwrap());
        let list = shown.strip_prefix(answer.as_str().unwrap()).unwrap();
        match result["structuredContent"]["sources"][0]["url"].as_str() {
            Some(url) => assert!(is_answered && list.contains("**Sources**") && list.contains(url), "{result}"),
            None => assert!(!is_answered && list.is_empty(), "{result}"),
        }
    }
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
