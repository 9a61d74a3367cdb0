//! Faults around a running server: what it waits for, and what is taken away from it.

use super::*;

/// A change may be published with the group of an earlier one.
#[tokio::test]
async fn a_change_that_went_with_an_earlier_group_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    for round in 0..6 {
        let documents: Vec<Value> = (0..600)
            .map(|n| json!({ "id": format!("d{n}"), "text": format!("round {round}. {}", "word ".repeat(300)) }))
            .collect();
        server.ok("POST", "/v1/documents", Some(json!(documents))).await;
        let body = json!({ "text": format!("the last of round {round}") });
        let put = server.ok("PUT", "/v1/documents/d599?wait=true", Some(body)).await;
        assert_eq!(put["published"], true, "{put}");
    }
}

/// As a cleaner of old files may do.
#[tokio::test]
async fn a_server_whose_status_socket_is_gone_ends_when_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), PIPELINE, &[], &[]);
    std::fs::remove_file(directory.path().join("state/status.sock")).unwrap();
    server.signal(libc::SIGTERM);
    let status = server.ended().await;
    assert!(status.success(), "{status}");
}

/// A pipeline whose answers a language model at this address writes.
fn written_by(url: &str) -> String {
    let model = format!("models: {{ \"llm\": OpenAi(url: {url:?}, model: \"m\", retries: 0) }},\n    corpora:");
    PIPELINE
        .replace("corpora:", &model)
        .replace("ExtractiveAnswer(input: \"found\")", "Generate(input: \"found\", model: \"llm\")")
}

/// Callers with tokens do not learn where the model server is.
#[tokio::test]
async fn why_a_turn_failed_is_in_the_log_and_not_in_the_response() {
    for (tokens, is_told) in [(&[][..], true), (&[("TURNFLOW_TOKENS", "web=secret")], false)] {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(directory.path(), &written_by("http://127.0.0.1:9/v1"), &[], tokens);
        let send = async |method: &str, path: &str, body: Value| {
            let request = server.client.request(method.parse().unwrap(), format!("{}{path}", server.url));
            let response = request.bearer_auth("secret").json(&body).send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        send("PUT", "/v1/documents/ferry.md?wait=true", json!({ "text": "The ferry leaves at nine." })).await;
        let turn = json!({ "conversation_id": "a", "turn": 1, "speaker": "user", "text": "ferry?" });
        let chat = json!({ "messages": [{ "role": "user", "content": "ferry?" }] });
        for (path, body) in [
            ("/v1/chat/completions", chat),
            ("/v1/responses", json!({ "input": "ferry?" })),
            ("/v1/turns", turn.clone()),
            ("/v1/turns?stream=true&trace=true", turn),
        ] {
            let (_, told) = send("POST", path, body).await;
            assert_eq!(told.contains("127.0.0.1:9"), is_told, "{path}: {told}");
            assert!(is_told || told.contains("see the server's log"), "{path}: {told}");
        }
    }
}

/// The address of a model server that streams this text to everyone, with this reason for its end.
fn model_server(pieces: [&'static str; 2], finish: &'static str) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 1 << 16];
            let _ = stream.read(&mut request);
            let event = |text: &str, end: &str| {
                format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":{end}}}]}}\n\n")
            };
            let (first, last) = (event(pieces[0], "null"), event(pieces[1], &format!("\"{finish}\"")));
            let body = format!("{first}{last}data: [DONE]\n\n");
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    url
}

/// A text that the model's limit cut says so.
#[tokio::test]
async fn a_text_that_was_cut_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let pipeline = written_by(&model_server(["The ferry leaves ", "at"], "length"));
    let server = Server::start(directory.path(), &pipeline, &[], &[]);
    server.fill().await;
    let mut ask = json!({ "messages": [{ "role": "user", "content": "When does the ferry leave?" }] });
    let whole = server.ok("POST", "/v1/chat/completions", Some(ask.clone())).await;
    assert_eq!((text(&whole), &whole["choices"][0]["finish_reason"]), ("The ferry leaves at", &json!("length")));
    ask["stream"] = json!(true);
    let events = server.ok("POST", "/v1/chat/completions", Some(ask)).await;
    assert_eq!(events.as_str().unwrap().matches("\"finish_reason\":\"length\"").count(), 1, "{events}");
    let mut ask = json!({ "input": "When does the ferry leave?" });
    let response = server.ok("POST", "/v1/responses", Some(ask.clone())).await;
    assert_eq!((&response["status"], &response["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    ask["stream"] = json!(true);
    let events = server.ok("POST", "/v1/responses", Some(ask)).await;
    let events = events.as_str().unwrap();
    assert!(events.contains("event: response.incomplete\n") && !events.contains("response.completed"), "{events}");
}

/// A draft between two closing tags is no part of an answer that is not streamed. Nothing of it was sent.
#[tokio::test]
async fn an_answer_that_is_not_streamed_has_no_draft() {
    let chat = json!({ "messages": [{ "role": "user", "content": "When does the ferry leave?" }] });
    let turn = json!({ "conversation_id": "a", "turn": 1, "speaker": "user", "text": "When does the ferry leave?" });
    for (path, body, at) in [
        ("/v1/chat/completions", chat, "/choices/0/message/content"),
        ("/v1/responses", json!({ "input": "When does the ferry leave?" }), "/output/0/content/0/text"),
        ("/v1/turns", turn, "/answer"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let pipeline = written_by(&model_server(["<think>hm</think>At nine?</think>", "At ten."], "stop"));
        let server = Server::start(directory.path(), &pipeline, &[], &[]);
        server.fill().await;
        // The first reply of this model: its habit is not known yet.
        let whole = server.ok("POST", path, Some(body)).await;
        assert_eq!(whole.pointer(at), Some(&json!("At ten.")), "{path}: {whole}");
    }
}

/// A later operator replaces what a language model has written: nobody reads what it had written.
#[tokio::test]
async fn a_text_that_is_replaced_is_not_streamed() {
    let directory = tempfile::tempdir().unwrap();
    let pipeline = written_by(&model_server(["Bananas are ", "yellow."], "stop"));
    let checked = "IdkNormalize(input: \"checked\"),\n        \"checked\": SelfCheck(input: \"answer\")";
    let pipeline = pipeline.replace("IdkNormalize(input: \"answer\")", checked);
    let server = Server::start(directory.path(), &pipeline, &[], &[]);
    server.fill().await;
    let ask = json!({ "messages": [{ "role": "user", "content": "When does the ferry leave?" }] });
    let whole = server.ok("POST", "/v1/chat/completions", Some(ask.clone())).await;
    let answer = text(&whole).to_owned();
    assert!(!answer.contains("yellow"), "{answer}");
    let mut streamed = ask;
    streamed["stream"] = json!(true);
    let events = server.ok("POST", "/v1/chat/completions", Some(streamed)).await;
    let mut said = String::new();
    for line in events.as_str().unwrap().lines().filter_map(|line| line.strip_prefix("data: {")) {
        let event: Value = serde_json::from_str(&format!("{{{line}")).unwrap();
        said += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(said, answer);
}

/// A question that waits for a corpus gets another status than one that takes too long.
#[tokio::test]
async fn a_question_during_the_first_indexing_is_to_come_again() {
    let directory = tempfile::tempdir().unwrap();
    // It accepts connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let model = format!(
        "models: {{ \"slow\": OpenAiEmbedder(url: \"http://{}/v1\", model: \"m\", dimension: 4) }},\n    corpora:",
        silent.local_addr().unwrap()
    );
    let pipeline = PIPELINE.replace("corpora:", &model).replace("Documents()", "JsonLines(path: \"d.jsonl\")").replace(
        "Bm25(input: \"query\", corpus: \"docs\",",
        "Dense(input: \"query\", corpus: \"docs\", model: \"slow\",",
    );
    let row = "{\"_id\": \"a\", \"text\": \"The ferry leaves at nine.\"}\n";
    std::fs::write(directory.path().join("d.jsonl"), row).unwrap();
    std::fs::write(directory.path().join("serve.ron"), "Serve(limits: (request_s: 0.5))").unwrap();
    let server = Server::start(directory.path(), &pipeline, &["--config", "serve.ron"], &[]);
    for (path, body) in [
        ("/v1/search", json!({ "query": "ferry" })),
        ("/v1/responses", json!({ "input": "When does the ferry leave?" })),
    ] {
        let request = server.client.post(format!("{}{path}", server.url)).json(&body);
        let response = request.send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (503, "10"));
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["code"], "loading", "{error}");
    }
}
