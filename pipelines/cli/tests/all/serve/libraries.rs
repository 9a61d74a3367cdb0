//! The libraries that people use talk to a server: answers with citations, forms, tools, vectors, refusals and failures.
//!
//! One script a library. The pipeline `demo` gives sentences of its documents, `written` has a language model.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};

use super::*;
use crate::documented::blocks;
use crate::support::{request_body, root};

/// Packages of Python. They share one installation: most of its time is theirs together.
const PYTHON: [&str; 5] = [
    "langchain-openai==1.7.4",
    "llama-index-llms-openai-like==0.8.1",
    "llama-index-embeddings-openai-like==0.4.0",
    "litellm==1.110.2",
    "openai==2.54.0",
];
/// Packages of Node.
const NODE: [&str; 7] = [
    "ai@7.0.173",
    "@ai-sdk/openai@4.0.118",
    "@ai-sdk/openai-compatible@3.0.92",
    "@ai-sdk/mcp@2.0.99",
    "@modelcontextprotocol/sdk@1.32.2",
    "openai@7.59.0",
    "zod@4.6.7",
];
const CONFIG: &str = r#"Serve(tokens: [
    (name: "web", token: Env("WEB"), rate: 0),
    (name: "slow", token: Env("SLOW"), rate: 0.001, burst: 1),
])"#;
/// The bytes of a reply that come through a connection that is cut: its head, and some of its body.
const CUT: usize = 900;

/// A server of a language model and of vectors. Words in the question make it fail; it waits like this before it breaks
/// down.
fn model(wait: impl Fn() + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let wait = Arc::new(wait);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let wait = wait.clone();
            std::thread::spawn(move || reply(stream, &*wait));
        }
    });
    url
}

fn reply(mut stream: TcpStream, wait: &dyn Fn()) -> Option<()> {
    let body: Value = serde_json::from_slice(&request_body(&stream)?).ok()?;
    if let Some(texts) = body["input"].as_array() {
        let vector =
            |(index, text): (usize, &Value)| json!({ "index": index, "embedding": [text.to_string().len(), 1, 2] });
        let data: Vec<Value> = texts.iter().enumerate().map(vector).collect();
        return send(&mut stream, "200 OK", "application/json", &json!({ "data": data }).to_string(), 0);
    }
    let asked = body["messages"].to_string();
    let text = match body.get("response_format") {
        Some(_) => "{\"hours\": [9, 12]}",
        None => "The ferry leaves at nine [1]. It is back at noon [1].",
    };
    let (first, rest) = text.split_at(text.len() / 2);
    let chunk = |delta: Value, finish: Option<&str>| {
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
    };
    let half = chunk(json!({ "content": first }), None);
    let end = chunk(json!({}), Some("stop")) + "data: [DONE]\n\n";
    let whole = half + &chunk(json!({ "content": rest }), None);
    if asked.contains("outage") {
        return send(&mut stream, "500 Internal Server Error", "text/plain", "down", 0);
    }
    if asked.contains("breakdown") {
        send(&mut stream, "200 OK", "text/event-stream", &whole, 100)?;
        wait();
        return Some(());
    }
    send(&mut stream, "200 OK", "text/event-stream", &(whole + &end), 0)
}

/// Sends a response. It promises more than comes by so many bytes.
fn send(stream: &mut TcpStream, status: &str, kind: &str, body: &str, missing: usize) -> Option<()> {
    let length = body.len() + missing;
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}

/// The same server through connections that are cut in the midst of each reply.
fn cutting(server: &Server) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let address = server.url.trim_start_matches("http://").to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let address = address.clone();
            std::thread::spawn(move || cut(&client, &TcpStream::connect(address).ok()?));
        }
    });
    url
}

fn cut(mut client: &TcpStream, server: &TcpStream) -> Option<()> {
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut server.take(CUT as u64), &mut client).ok()?;
    server.shutdown(Shutdown::Both).ok();
    client.shutdown(Shutdown::Both).ok()
}

/// The pause of a model that breaks down, so that its text is sent on before. If it is not, the failure comes in its place,
/// which the scripts take too.
fn pause() {
    std::thread::sleep(Duration::from_millis(200));
}

/// A server with both pipelines and their documents; with tokens, or without.
async fn start(directory: &Path, config: &str, wait: impl Fn() + Send + Sync + 'static) -> Server {
    let url = model(wait);
    let models = format!(
        "models: {{ \"llm\": OpenAi(url: {url:?}, model: \"m\", retries: 0), \
         \"vectors\": OpenAiEmbedder(url: {url:?}, model: \"m\", dimension: 3) }},\n    corpora:"
    );
    let written = PIPELINE
        .replace("\"demo\"", "\"written\"")
        .replace("ExtractiveAnswer(input: \"found\")", "Generate(input: \"found\", model: \"llm\")")
        .replace("corpora:", &models);
    std::fs::write(directory.join("written.ron"), written).unwrap();
    std::fs::write(directory.join("serve.ron"), config).unwrap();
    let variables = [("WEB", "web-secret"), ("SLOW", "slow-secret")];
    let server = Server::start(directory, PIPELINE, &["written.ron", "--config", "serve.ron"], &variables);
    for pipeline in ["demo", "written"] {
        for (id, text) in [
            ("ferry.md", "The ferry to the island leaves at nine. It returns at noon."),
            ("notes/fees.md", "A ticket for the ferry costs four euros. Children travel free."),
        ] {
            let body = json!({ "title": id, "text": text });
            let path = format!("/v1/documents/{id}?wait=true&pipeline={pipeline}");
            let (status, told) = groups::send(&server, "web", "PUT", &path, Some(body)).await;
            assert!((200..300).contains(&status), "{status} {told}");
        }
    }
    server
}

/// Runs a script of Python, if there is one with its packages, with the arguments that `served.py` reads.
async fn run(with: Option<PathBuf>, script: &str) {
    let Some(with) = with else { return };
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), CONFIG, pause).await;
    python::run(with, script, &server, &["web-secret", "slow-secret", &cutting(&server)]).await;
}

/// The same with Node.
async fn node(script: &str) {
    let Some(packages) = node::with("libraries", &NODE) else { return };
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), CONFIG, pause).await;
    node::run(&packages, script, &server, &["web-secret", "slow-secret", &cutting(&server)]).await;
}

#[tokio::test]
async fn a_client_with_a_wrong_address_gets_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    for (path, hint) in [
        ("/chat/completions", "ends with one `/v1`"),
        ("/v1/v1/chat/completions", "ends with one `/v1`"),
        ("/v1/completions", "send messages to `/v1/chat/completions`"),
        ("/v1/none", "no such route"),
    ] {
        let (status, error) = server.send("POST", path, Some(json!({}))).await;
        assert!(status == 404 && error["error"]["message"].as_str().unwrap().ends_with(hint), "{path}: {error}");
    }
}

/// OpenAI's packages raise an error for the event `error`, and only for that.
#[tokio::test]
async fn a_response_that_fails_after_it_has_begun_says_so_in_an_event() {
    let directory = tempfile::tempdir().unwrap();
    let (hold, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let server = start(directory.path(), "Serve()", move || {
        let _ = held.lock().unwrap().recv();
    })
    .await;
    let ask = |question: &str| Some(json!({ "model": "written", "input": question, "stream": true }));
    // The first reply of a model is not streamed: it may have thoughts.
    server.ok("POST", "/v1/responses", ask("When does the ferry leave?")).await;
    let request = server.client.post(format!("{}/v1/responses", server.url)).json(&ask("Has the ferry a breakdown?"));
    let (mut reply, mut stream, mut hold) = (request.send().await.unwrap(), String::new(), Some(hold));
    while let Some(bytes) = reply.chunk().await.unwrap() {
        stream.push_str(&String::from_utf8_lossy(&bytes));
        if stream.contains("leaves at nine") {
            // The text has come: now the model may break down.
            hold.take();
        }
    }
    let events: Vec<Value> =
        stream.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    assert!(hold.is_none(), "{stream}");
    let [.., error, failed] = &events[..] else { panic!("{stream}") };
    assert_eq!((&error["type"], &failed["type"]), (&json!("error"), &json!("response.failed")), "{stream}");
    assert_eq!(error["error"]["message"], failed["response"]["error"]["message"], "{stream}");
    assert_eq!((&error["code"], &error["message"]), (&json!("turn_failed"), &error["error"]["message"]), "{stream}");
}

#[tokio::test]
async fn langchain_shows_citations_forms_and_errors() {
    run(python::with_all("libraries", &PYTHON), "langchain_client.py").await;
}

#[tokio::test]
async fn llama_index_shows_citations_forms_and_errors() {
    run(python::with_all("libraries", &PYTHON), "llama_index_client.py").await;
}

#[tokio::test]
async fn litellm_shows_citations_forms_and_errors() {
    run(python::with_all("libraries", &PYTHON), "litellm_client.py").await;
}

#[tokio::test]
async fn openais_package_of_python_shows_citations_forms_and_errors() {
    run(python::with(openai::PACKAGE), "openai_library.py").await;
}

#[tokio::test]
async fn the_ai_sdk_shows_citations_forms_and_errors() {
    node("ai_sdk_client.mjs").await;
}

#[tokio::test]
async fn openais_package_of_node_shows_citations_forms_and_errors() {
    node("openai_client.mjs").await;
}

#[tokio::test]
async fn clients_of_the_model_context_protocol_in_node_search_and_ask() {
    node("mcp_client.mjs").await;
}

/// The handbook's examples run, and the links that they print lead to the passage.
#[tokio::test]
async fn the_examples_of_the_handbook_run() {
    let page = std::fs::read_to_string(root().join("examples/handbook/libraries.md")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), "Serve()", pause).await;
    let (pythons, nodes) = (blocks(&page, "python"), blocks(&page, "js"));
    assert_eq!((pythons.len(), nodes.len()), (5, 2));
    for (index, block) in pythons.iter().chain(&nodes).enumerate() {
        let program = block.replace("http://127.0.0.1:8100", &server.url).replace("support", "demo");
        let is_node = index >= pythons.len();
        let mut command = if is_node {
            let Some(packages) = node::with("libraries", &NODE) else { continue };
            // Packages are found from the directory of the program.
            let file = packages.join(format!("handbook-{index}.mjs"));
            std::fs::write(&file, program).unwrap();
            let mut command = Command::new("node");
            command.arg(file);
            command
        } else {
            let of_protocol = block.contains("from mcp");
            let with = if of_protocol { python::with(mcp::PACKAGE) } else { python::with_all("libraries", &PYTHON) };
            let Some(with) = with else { continue };
            let mut command = Command::new(with);
            command.args(["-c", &program]).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
            command
        };
        let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let (out, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success() && out.contains("leaves at nine"), "{block}\n{out}\n{error}");
        let link =
            out.split_whitespace().find(|word| word.starts_with("http")).unwrap_or_else(|| panic!("{block}\n{out}"));
        let shown = server.client.get(link).send().await.unwrap().error_for_status().unwrap().text().await.unwrap();
        assert!(shown.contains("id=\"passage\"") && shown.contains("leaves at nine"), "{shown}");
    }
}
