//! The tokens of requests: those that a model's server reports, else counted ones.

use serde_json::{Value, json};

use super::*;

/// A server of a language model that gives one text, with this usage.
fn model(usage: Option<Value>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = answer(stream, usage.as_ref());
        }
    });
    url
}

fn answer(mut stream: std::net::TcpStream, usage: Option<&Value>) -> std::io::Result<()> {
    use std::io::{Read as _, Write as _};
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let choice =
        |delta: Value, finish: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let mut events = vec![choice(json!({"content": "At nine [1]."}), Value::Null), choice(json!({}), json!("stop"))];
    events.extend(usage.map(|usage| json!({"choices": [], "usage": usage})));
    let mut text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    text.push_str("data: [DONE]\n\n");
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n";
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes())
}

/// A collector of OpenTelemetry, and what it gets.
pub fn collector() -> (String, std::sync::Arc<std::sync::Mutex<Vec<u8>>>) {
    use std::io::{Read as _, Write as _};
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let got = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let into = got.clone();
    std::thread::spawn(move || {
        for stream in collector.incoming() {
            let (mut stream, into) = (stream.unwrap(), into.clone());
            std::thread::spawn(move || {
                let mut read = [0; 4096];
                let mut request = Vec::new();
                while let Ok(count @ 1..) = stream.read(&mut read) {
                    request.extend_from_slice(&read[..count]);
                    into.lock().unwrap().extend_from_slice(&read[..count]);
                    let text = String::from_utf8_lossy(&request).to_lowercase();
                    let head = text.find("\r\n\r\n");
                    let length: Option<usize> =
                        text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
                    if let (Some(_), Some(length)) = (head, length) {
                        let head = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
                        if request.len() >= head + length {
                            request.clear();
                            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                        }
                    }
                }
            });
        }
    });
    (endpoint, got)
}

/// A rewriter and a writer ask the model.
fn pipeline(url: &str) -> String {
    format!(
        r#"Pipeline(
    name: "demo",
    models: {{ "llm": OpenAi(url: {url:?}, model: "m", retries: 0) }},
    corpora: {{ "docs": Corpus(source: Documents(), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": Rewrite(input: "turns", model: "llm"),
        "found": Bm25(input: "query", corpus: "docs"),
        "answer": Generate(input: "found", model: "llm"),
        "final": IdkNormalize(input: "answer"),
    }},
)"#
    )
}

/// A question that the rewriter passes to the model, because another one came before it.
fn messages(question: &str) -> Value {
    json!([
        {"role": "user", "content": "Is there a ferry?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": question},
    ])
}

fn asked(question: &str, more: Value) -> Value {
    let mut body = json!({"model": "demo", "messages": messages(question)});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn the_usage_is_what_the_models_report() {
    let url = model(Some(json!({"prompt_tokens": 120, "completion_tokens": 7, "total_tokens": 127})));
    let directory = tempfile::tempdir().unwrap();
    let (endpoint, got) = collector();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ];
    let server = Server::start(directory.path(), &pipeline(&url), &[], &variables);
    server.fill().await;
    let chat = "/v1/chat/completions";
    let usage = |prompt: u64, completion: u64, cached: u64| {
        let details = json!({"cached_tokens": cached});
        let total = prompt + completion;
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, "prompt_tokens_details": details})
    };
    // Two calls: of the rewriter, and of the writer.
    let whole = server.ok("POST", chat, Some(asked("When does the ferry leave?", json!({})))).await;
    assert_eq!((text(&whole), &whole["usage"]), ("At nine [1].", &usage(240, 14, 0)));
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let stream = server.ok("POST", chat, Some(asked("When does the ferry return?", options))).await;
    let events: Vec<Value> = stream
        .as_str()
        .unwrap()
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    // The question is rewritten to the same one, so the text of the writer is in the inference cache.
    assert_eq!(events.last().unwrap()["usage"], usage(240, 14, 120), "{stream}");
    assert!(events[..events.len() - 1].iter().all(|event| event["usage"].is_null()), "{stream}");
    // Both texts are there now.
    let again = json!({"model": "demo", "input": messages("When does the ferry leave?")});
    let again = server.ok("POST", "/v1/responses", Some(again)).await;
    let expected = json!({
        "input_tokens": 240, "input_tokens_details": {"cached_tokens": 240},
        "output_tokens": 14, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 254,
    });
    assert_eq!(again["usage"], expected);
    // What was cached has cost nothing.
    let metrics = server.ok("GET", "/metrics", None).await;
    for line in [
        "turnflow_prompt_tokens_total{pipeline=\"demo\",component=\"llm\"} 360",
        "turnflow_completion_tokens_total{pipeline=\"demo\",component=\"llm\"} 21",
    ] {
        assert!(metrics.as_str().unwrap().lines().any(|found| found == line), "{line}: {metrics}");
    }
    let sent = || String::from_utf8_lossy(&got.lock().unwrap()).into_owned();
    let names = ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.client.token.usage"];
    until(async || names.iter().all(|name| sent().contains(name))).await;
}

#[tokio::test]
async fn without_a_report_messages_and_answers_are_counted() {
    let url = model(None);
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline(&url), &[], &[]);
    server.fill().await;
    let usage = server.chat("When does the ferry leave?").await["usage"].clone();
    let (prompt, completion) = (usage["prompt_tokens"].as_u64().unwrap(), usage["completion_tokens"].as_u64().unwrap());
    assert!((5..20).contains(&prompt) && (2..10).contains(&completion), "{usage}");
}

#[tokio::test]
async fn a_search_calls_no_language_model_for_an_answer() {
    let url = model(Some(json!({"prompt_tokens": 120, "completion_tokens": 7, "total_tokens": 127})));
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline(&url), &[], &[]);
    server.fill().await;
    let search = async |number: usize| {
        let found = server.ok("GET", &format!("/v1/search?query=ferry%20{number}"), None).await;
        assert_eq!(found["hits"].as_array().map(Vec::len), Some(1), "{found}");
    };
    for first in (0..80).step_by(8) {
        futures::future::join_all((first..first + 8).map(search)).await;
    }
    // An answer comes after them, and is all that is counted.
    server.chat("When does the ferry leave?").await;
    let metrics = server.ok("GET", "/metrics", None).await;
    let metrics = metrics.as_str().unwrap();
    let of = |name: &str| metrics.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        of("turnflow_prompt_tokens_total"),
        ["turnflow_prompt_tokens_total{pipeline=\"demo\",component=\"llm\"} 120"]
    );
}
