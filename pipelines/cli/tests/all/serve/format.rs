//! Answers in the form of a schema: the schema goes to the server of the language model, or the request is refused.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::support::request_body;

/// A server of a language model that gives this text, and the requests that it gets.
fn model(text: &'static str, finish: &'static str) -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let got: Arc<Mutex<Vec<Value>>> = Arc::default();
    let into = got.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let into = into.clone();
            // A connection that brings nothing holds up no other.
            std::thread::spawn(move || answer(stream, text, finish, &into));
        }
    });
    (url, got)
}

fn answer(mut stream: TcpStream, text: &str, finish: &str, got: &Mutex<Vec<Value>>) -> Option<()> {
    // Read before the lock is taken: other connections wait for it.
    let body = serde_json::from_slice(&request_body(&stream)?).ok()?;
    got.lock().unwrap().push(body);
    let chunk = |delta: Value, finish: Option<&str>| {
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
    };
    let (first, rest) = text.split_at(text.len() / 2);
    let body = chunk(json!({ "content": first }), None)
        + &chunk(json!({ "content": rest }), None)
        + &chunk(json!({}), Some(finish))
        + "data: [DONE]\n\n";
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n";
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).ok()
}

fn pipeline(url: &str) -> String {
    let pipeline = PIPELINE.replace("ExtractiveAnswer(input: \"found\")", "Generate(input: \"found\", model: \"llm\")");
    pipeline.replace(
        "corpora:",
        &format!("models: {{ \"llm\": OpenAi(url: {url:?}, model: \"m\", retries: 0) }},\n    corpora:"),
    )
}

fn schema() -> Value {
    let schema = json!({ "type": "object", "properties": { "hours": { "type": "array", "items": { "type": "integer" } } }, "required": ["hours"] });
    json!({ "name": "hours", "strict": true, "schema": schema })
}

fn chat(question: &str, more: Value) -> Option<Value> {
    let mut body = json!({ "messages": [{ "role": "user", "content": question }], "response_format": { "type": "json_schema", "json_schema": schema() } });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Some(body)
}

#[tokio::test]
async fn a_schema_goes_to_the_server_of_the_model() {
    // Numbers in brackets are no citations here.
    const REPLY: &str = "{\"hours\": [1]}";
    let (url, got) = model(REPLY, "stop");
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("serve.ron"), "Serve(citations: Markdown)").unwrap();
    let server = Server::start(directory.path(), &pipeline(&url), &["--config", "serve.ron"], &[]);
    server.fill().await;
    let answer = server.ok("POST", "/v1/chat/completions", chat("When does the ferry leave?", json!({}))).await;
    assert_eq!(text(&answer), REPLY, "{answer}");
    let annotations = answer["choices"][0]["message"]["annotations"].as_array().unwrap();
    assert!(
        !annotations.is_empty() && annotations.iter().all(|of| of["url_citation"]["start_index"] == REPLY.len()),
        "{answer}"
    );
    let sent = got.lock().unwrap().pop().unwrap();
    assert_eq!(sent["response_format"], json!({ "type": "json_schema", "json_schema": schema() }));
    // The model is asked without passages, too: a sentence would not have the form.
    let answer = server.ok("POST", "/v1/chat/completions", chat("Xylophone?", json!({}))).await;
    assert_eq!(text(&answer), REPLY, "{answer}");
    // Another schema is another question, also for the cache.
    let other = json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "b", "schema": { "type": "object" } } } });
    server.ok("POST", "/v1/chat/completions", chat("When does the ferry leave?", other)).await;
    assert_eq!(got.lock().unwrap().pop().unwrap()["response_format"]["json_schema"]["name"], "b");
    let streamed = server.client.post(format!("{}/v1/chat/completions", server.url));
    let streamed =
        streamed.json(&chat("Does it return?", json!({ "stream": true }))).send().await.unwrap().text().await.unwrap();
    let pieces = streamed.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let whole: String =
        pieces.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect();
    assert_eq!(whole, REPLY, "{streamed}");
    let mut format = schema();
    format["type"] = json!("json_schema");
    let response = json!({ "input": "When does it return?", "text": { "format": format } });
    let response = server.ok("POST", "/v1/responses", Some(response)).await;
    assert_eq!(response["text"]["format"], format, "{response}");
    assert_eq!(response["output"][0]["content"][0]["text"], REPLY, "{response}");
    assert_eq!(got.lock().unwrap().pop().unwrap()["response_format"]["json_schema"], schema());
    // Without a schema, nothing is sent and citations are what they were.
    let plain = server.chat("When does the ferry leave?").await;
    assert!(text(&plain).contains("Sources"), "{plain}");
    assert_eq!(got.lock().unwrap().pop().unwrap().get("response_format"), None);
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    // Extracted sentences, and a node that may give another text.
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let (status, error) = server.send("POST", "/v1/chat/completions", chat("When?", json!({}))).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("response_format")), "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("cannot keep to a schema"), "{error}");
    let object = json!({ "response_format": { "type": "json_object" } });
    assert_eq!(server.send("POST", "/v1/chat/completions", chat("When?", object)).await.0, 400);
    drop(server);

    // A server that does not keep to it.
    for (reply, finish, status) in [("At nine.", "stop", 500), ("{\"hours\": [", "length", 200)] {
        let (url, _) = model(reply, finish);
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(directory.path(), &pipeline(&url), &[], &[]);
        server.fill().await;
        let (got, body) =
            server.send("POST", "/v1/chat/completions", chat("When does the ferry leave?", json!({}))).await;
        assert_eq!(got, status, "{body}");
        match status {
            200 => assert_eq!(body["choices"][0]["finish_reason"], "length", "{body}"),
            _ => assert!(
                body["error"]["message"].as_str().unwrap().contains("does not keep to `response_format`"),
                "{body}"
            ),
        }
    }
}
