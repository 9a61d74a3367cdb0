//! Answers in the form of a schema: the schema goes to the language model, or the request is refused before the turn.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::support;
use crate::support::request_body;

/// A server of a language model that gives this text, and the requests that it gets.
fn model(text: &'static str, finish: &'static str) -> (String, Arc<Mutex<Vec<Value>>>) {
    serve(move |stream, body, got| answer(stream, body, text, finish, got))
}

/// A server of a language model that refuses each request like this, and the requests that it gets.
fn refusing(status: &'static str, said: &'static str) -> (String, Arc<Mutex<Vec<Value>>>) {
    serve(move |mut stream, body, got| {
        got.lock().unwrap().push(body);
        let body = json!({ "error": { "message": said, "type": "invalid_request_error" } }).to_string();
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).ok()
    })
}

fn serve(
    reply: impl Fn(TcpStream, Value, &Mutex<Vec<Value>>) -> Option<()> + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let got: Arc<Mutex<Vec<Value>>> = Arc::default();
    let (into, reply) = (got.clone(), Arc::new(reply));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (into, reply) = (into.clone(), reply.clone());
            // A connection that brings nothing holds up no other.
            std::thread::spawn(move || {
                let body = serde_json::from_slice(&request_body(&stream)?).ok()?;
                reply(stream, body, &into)
            });
        }
    });
    (url, got)
}

fn answer(mut stream: TcpStream, body: Value, text: &str, finish: &str, got: &Mutex<Vec<Value>>) -> Option<()> {
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

/// A request for an answer that keeps to a schema.
fn of_schema(schema: Value) -> Option<Value> {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    chat("When does the ferry leave?", json!({ "response_format": format }))
}

/// Asserts that a request is refused for its form, and that the error says this.
async fn refused(server: &Server, path: &str, body: Option<Value>, param: &str, told: &str) {
    let (status, error) = server.send("POST", path, body).await;
    let error = &error["error"];
    assert_eq!(
        (status, &error["param"], &error["type"]),
        (400, &json!(param), &json!("invalid_request_error")),
        "{error}"
    );
    assert!(error["message"].as_str().unwrap().contains(told), "{told}: {error}");
}

#[tokio::test]
async fn a_schema_that_is_none_is_refused_before_the_turn() {
    let (url, got) = model("{}", "stop");
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline(&url), &[], &[]);
    server.fill().await;
    for (schema, told) in [
        (json!({ "type": "foo" }), "`schema.type` must be one of null, boolean"),
        (json!({ "properties": [] }), "`schema.properties` must be an object"),
        (json!({ "properties": { "a": { "$ref": "#/$defs/A" } } }), "`schema.properties.a.$ref`"),
    ] {
        refused(&server, "/v1/chat/completions", of_schema(schema.clone()), "response_format", told).await;
        let format = json!({ "type": "json_schema", "name": "a", "schema": schema });
        let asked = json!({ "input": "When?", "text": { "format": format }, "stream": true });
        refused(&server, "/v1/responses", Some(asked), "text.format", told).await;
    }
    // A search ends with its hits, but the model may have been asked by then.
    let got = got.lock().unwrap();
    assert!(got.iter().all(|asked| asked.get("response_format").is_none()), "{got:?}");
}

#[tokio::test]
async fn what_the_server_of_the_model_refuses_is_told() {
    const SAID: &str = "Invalid schema for response_format 'a': uniqueItems is not permitted";
    let (url, _) = refusing("400 Bad Request", SAID);
    let directory = tempfile::tempdir().unwrap();
    let config = "Serve(tokens: [(name: \"web\", token: Env(\"WEB\"), documents: Write)])";
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    // Callers with tokens do not read where the model's server is.
    let server = Server::start(directory.path(), &pipeline(&url), &["--config", "serve.ron"], &[("WEB", "web-secret")]);
    let put = json!({ "text": "The ferry to the island leaves at nine." });
    groups::send(&server, "web", "PUT", "/v1/documents/ferry.md?wait=true", Some(put)).await;
    let schema = json!({ "type": "object", "properties": { "a": { "uniqueItems": true } } });
    for stream in [false, true] {
        let mut asked = of_schema(schema.clone()).unwrap();
        asked["stream"] = json!(stream);
        let (status, error) = groups::send(&server, "web", "POST", "/v1/chat/completions", Some(asked)).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("response_format")), "{error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(SAID) && !message.contains(&url), "{message}");
    }
    drop(server);

    // What is not about the form remains a failure of the turn.
    let (url, _) = refusing("400 Bad Request", "the prompt is too long");
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline(&url), &[], &[]);
    server.fill().await;
    let (status, error) = server.send("POST", "/v1/chat/completions", of_schema(schema)).await;
    assert_eq!((status, &error["error"]["code"]), (500, &json!("turn_failed")), "{error}");
}

#[tokio::test]
async fn any_object_is_asked_for() {
    const REPLY: &str = "{\"hours\": [9, 12]}";
    let object = json!({ "type": "json_object" });
    let (url, got) = model(REPLY, "stop");
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline(&url), &[], &[]);
    server.fill().await;
    let asked = chat("When does the ferry leave?", json!({ "response_format": object }));
    let answer = server.ok("POST", "/v1/chat/completions", asked).await;
    assert_eq!(text(&answer), REPLY, "{answer}");
    let sent = got.lock().unwrap().pop().unwrap();
    // OpenAI refuses the type if no message has the word.
    assert!(sent["response_format"] == object && sent["messages"].to_string().contains("JSON"), "{sent}");
    // Instructions may be the only place that names the fields.
    let asked = json!({ "response_format": object, "messages": [
        { "role": "system", "content": "Reply in JSON with the key hours." }, { "role": "user", "content": "When?" },
    ] });
    server.ok("POST", "/v1/chat/completions", Some(asked)).await;
    let sent = got.lock().unwrap().pop().unwrap();
    let last = sent["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
    assert!(last.ends_with("Reply in JSON with the key hours."), "{last}");
    let asked = json!({ "input": "When does it return?", "text": { "format": object } });
    let response = server.ok("POST", "/v1/responses", Some(asked)).await;
    assert_eq!((&response["text"]["format"], &response["output"][0]["content"][0]["text"]), (&object, &json!(REPLY)));
    drop(server);

    // It has no words, and would be taken for an answer that does not know.
    let (url, _) = model("{}", "stop");
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline(&url), &[], &[]);
    server.fill().await;
    let asked = chat("When does the ferry leave?", json!({ "response_format": object }));
    assert_eq!(text(&server.ok("POST", "/v1/chat/completions", asked).await), "{}");
    drop(server);

    let (url, _) = model("[9, 12]", "stop");
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline(&url), &[], &[]);
    server.fill().await;
    let asked = chat("When does the ferry leave?", json!({ "response_format": object }));
    let (status, error) = server.send("POST", "/v1/chat/completions", asked).await;
    let message = error["error"]["message"].as_str().unwrap();
    assert!(status == 500 && message.contains("the reply is no JSON object"), "{status} {error}");
}

#[tokio::test]
async fn a_model_of_this_process_says_what_it_cannot_be_held_to() {
    let Some(path) = support::model("smollm2") else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| path.join(name).display().to_string();
    let kind = format!(
        "OnnxDecoder(path: {:?}, tokenizer: {:?}, template: File({:?}), sampling: (max_tokens: 40))",
        file("model.onnx"),
        file("tokenizer.json"),
        file("chat_template.jinja")
    );
    let written = pipeline("URL").replace("OpenAi(url: \"URL\", model: \"m\", retries: 0)", &kind);
    let server = Server::start(directory.path(), &written, &[], &[]);
    server.fill().await;
    let many: serde_json::Map<String, Value> = (0..20_000)
        .map(|n| (format!("p{n}"), json!({ "type": "string", "pattern": format!("^{n}[a-z]+$") })))
        .collect();
    // A stack that overflows would end the server.
    let link = |n: usize| json!({ "properties": { "next": { "$ref": format!("#/$defs/{}", (n + 1).min(1500)) } } });
    let chain: serde_json::Map<String, Value> = (0..=1500).map(|n| (n.to_string(), link(n))).collect();
    for (schema, told) in [
        (json!({ "$defs": chain, "$ref": "#/$defs/0" }), "too many levels"),
        (json!({ "type": "object", "properties": { "a": { "type": "array", "uniqueItems": true } } }), "uniqueItems"),
        (json!({ "type": "string", "pattern": "(" }), "("),
        (json!({ "type": "integer", "minimum": 3, "maximum": 1 }), "minimum"),
        (json!({ "type": "object", "properties": many }), "large"),
        (json!({ "$ref": "#" }), "nothing keeps to it"),
    ] {
        refused(&server, "/v1/chat/completions", of_schema(schema), "response_format", told).await;
    }
    let asked = chat("When does the ferry leave?", json!({ "response_format": { "type": "json_object" } }));
    let answer = server.ok("POST", "/v1/chat/completions", asked).await;
    let is_cut = answer["choices"][0]["finish_reason"] == "length";
    assert!(text(&answer).starts_with('{'), "{answer}");
    assert!(is_cut || serde_json::from_str::<Value>(text(&answer)).unwrap().is_object(), "{answer}");
}
