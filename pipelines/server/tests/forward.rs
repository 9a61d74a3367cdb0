//! A pipeline whose server is asked through a process that forwards; both ends are in this process.

// A test's helpers fail as the test does.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use turnflow_engine::component::Catalog;
use turnflow_engine::plan::plan;
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::spec::load_str;
use turnflow_server::{Asker, Callers, Outline, ServeConfig, Served, Server, serve};

/// What is waited for comes within this, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A pipeline whose documents are put over HTTP.
const PIPELINE: &str = r#"Pipeline(
    name: "demo",
    corpora: { "docs": Corpus(source: Documents(), chunk: Sentences(size: 2, overlap: 0)) },
    nodes: {
        "turns": Stdin(),
        "query": UserTurns(input: "turns", last: 2),
        "found": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "found"),
    },
)"#;

/// The same with answers that a model writes.
fn written_by(model: &Model) -> String {
    let llm = format!(
        "models: {{ \"llm\": OpenAi(url: {:?}, model: \"m\", retries: 0, unmarked_thoughts: Some(false)) }},\n    corpora:",
        model.url
    );
    let generated = "Generate(input: \"found\", model: \"llm\")";
    PIPELINE.replace("corpora:", &llm).replace("ExtractiveAnswer(input: \"found\")", generated)
}

fn catalog() -> Catalog {
    Catalog {
        operators: turnflow_operators::OPERATORS.to_vec(),
        models: turnflow_operators::MODELS.to_vec(),
        chunkers: turnflow_operators::CHUNKERS.to_vec(),
        corpus_sources: turnflow_connectors::CORPUS_SOURCES.to_vec(),
        turn_sources: turnflow_connectors::TURN_SOURCES.to_vec(),
        sinks: turnflow_connectors::SINKS.to_vec(),
        passages: None,
        reference: String::new(),
    }
}

/// A running pipeline and its outline.
fn started(directory: &Path, pipeline: &str) -> Arc<Served> {
    let planned = plan(load_str("test.ron", directory, pipeline, &[]), &catalog());
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    let plan = planned.plan.unwrap();
    let (name, outline) = (plan.name.clone(), Outline::of(&plan));
    let options = Options {
        state: Some(directory.join("state")),
        sources: TurnSources::Queues,
        stays: true,
        ..Options::default()
    };
    Served::new(name, Arc::new(Engine::start(plan, options).unwrap()), outline)
}

/// Process 0, and another process that forwards to it.
struct Cluster {
    first: String,
    other: String,
    client: reqwest::Client,
    /// Stops process 0; the other process goes on.
    stop: CancellationToken,
    /// Ends the connection of the two.
    lose: CancellationToken,
    ended: tokio::task::JoinHandle<()>,
}

impl Cluster {
    async fn start(config: &str, served: &Arc<Served>) -> Self {
        let config = ServeConfig::parse(config, "serve.ron").unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let first =
            Server::bind(config.clone(), Some(local), vec![served.clone()], Callers::new(&config)).await.unwrap();
        let answerer = first.answerer(tokio::runtime::Handle::current());
        let (stop, lose) = (CancellationToken::new(), CancellationToken::new());
        let lost = lose.clone();
        let ask: Asker = Arc::new(move |question| {
            stream::unfold((Some(answerer(question)), lost.clone()), async |(answer, lost)| {
                let mut answer = answer?;
                match lost.run_until_cancelled(answer.next()).await {
                    Some(part) => Some((Ok(part?), (Some(answer), lost))),
                    None => Some((Err("the cluster is ending".to_owned()), (None, lost))),
                }
            })
            .boxed()
        });
        let other = Server::bind_forwarding(config, local, served.clone(), ask).await.unwrap();
        let (of_first, of_other) = (first.url(), other.url());
        let ended = tokio::spawn(serve(first, stop.clone()));
        tokio::spawn(serve(other, CancellationToken::new()));
        Self { first: of_first, other: of_other, client: reqwest::Client::new(), stop, lose, ended }
    }

    /// Sends a request to the process that forwards; returns the status and the body.
    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let request =
            self.client.request(method.parse().unwrap(), format!("{}{path}", self.other)).bearer_auth("secret");
        let request = body.iter().fold(request, |request, body| request.json(body));
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Sends a request that must succeed.
    async fn ok(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, body) = self.send(method, path, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {body}");
        body
    }

    /// Begins a streamed answer to a question, which process 0 answers because it stores it; its head comes with the first
    /// word.
    async fn stream(&self, question: &str) -> reqwest::Response {
        let body = json!({ "input": question, "stream": true });
        let request = self.client.post(format!("{}/v1/responses", self.other)).json(&body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        response
    }
}

/// Starts a pipeline and a cluster that serves it, for a test.
fn with_cluster(config: &str, pipeline: &str, test: impl AsyncFnOnce(Cluster)) {
    let directory = tempfile::tempdir().unwrap();
    let config = config.replace("SECRET", &directory.path().join("secret").display().to_string());
    std::fs::write(directory.path().join("secret"), "secret").unwrap();
    // Dropped last: an engine cannot end on a thread of a runtime.
    let served = started(directory.path(), pipeline);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::start(&config, &served).await;
        cluster
            .ok("PUT", "/v1/documents/ferry.md?wait=true", Some(json!({ "text": "The ferry leaves at nine." })))
            .await;
        test(cluster).await;
    });
    runtime.shutdown_timeout(PATIENCE);
}

#[test]
fn what_process_0_serves_every_process_serves() {
    let config = r#"Serve(tokens: [(name: "web", token: File("SECRET"))], limits: (body_mb: 0.1))"#;
    with_cluster(config, PIPELINE, async |cluster| {
        let question = json!({ "messages": [{ "role": "user", "content": "When does the ferry leave?" }] });
        let answer = cluster.ok("POST", "/v1/chat/completions", Some(question.clone())).await;
        assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().contains("at nine"), "{answer}");
        let document = cluster.ok("GET", "/v1/documents/ferry.md", None).await;
        assert_eq!(document["text"], "The ferry leaves at nine.");
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "search", "arguments": { "query": "ferry" },
        } });
        let mcp = cluster.client.post(format!("{}/mcp", cluster.other)).bearer_auth("secret").json(&call);
        let mcp = mcp.header("Accept", "application/json, text/event-stream").send().await.unwrap();
        assert_eq!(mcp.status().as_u16(), 200);
        assert!(mcp.text().await.unwrap().contains("leaves at nine"));
        let page = cluster.client.get(format!("{}/", cluster.other)).send().await.unwrap();
        assert!(page.headers()["content-security-policy"].to_str().unwrap().contains("'self'"));
        assert!(page.text().await.unwrap().contains("/page/main.js"));
        for path in ["/page/main.js", "/readyz", "/healthz"] {
            assert_eq!(
                cluster.client.get(format!("{}{path}", cluster.other)).send().await.unwrap().status().as_u16(),
                200
            );
        }
        let head =
            cluster.client.head(format!("{}/v1/models", cluster.other)).bearer_auth("secret").send().await.unwrap();
        assert!(head.status().is_success() && head.headers().contains_key("content-length"), "{head:?}");
        assert_eq!(head.bytes().await.unwrap().len(), 0);
        for path in ["/v1/pipelines/demo/status", "/process/v1/pipelines/demo/status"] {
            assert!(cluster.ok("GET", path, None).await["corpora"].to_string().contains("docs"), "{path}");
        }
        let wrong = cluster.client.post(format!("{}/v1/chat/completions", cluster.other)).bearer_auth("wrong");
        assert_eq!(wrong.json(&question).send().await.unwrap().status().as_u16(), 401);
        let long = json!({ "text": "word ".repeat(30_000) });
        for (method, path, body, status, code) in [
            ("GET", "/v1/documents/none.md", None, 404, "not_found"),
            ("GET", "/v1/none", None, 404, "not_found"),
            ("PATCH", "/v1/models", None, 405, "method_not_allowed"),
            ("PUT", "/v1/documents/long.md", Some(long), 413, "body_too_large"),
        ] {
            let (found, error) = cluster.send(method, path, body).await;
            assert_eq!((found, &error["error"]["code"]), (status, &json!(code)), "{method} {path}: {error}");
        }
        cluster.ok("POST", "/v1/responses", Some(json!({ "input": "When does the ferry leave?" }))).await;
        // Its metrics are its own, and those of process 0 count what it forwarded.
        let metrics = async |url: &str| {
            let request = cluster.client.get(format!("{url}/metrics")).bearer_auth("secret");
            request.send().await.unwrap().text().await.unwrap()
        };
        let counted =
            |route| format!("turnflow_http_requests_total{{method=\"POST\",route=\"{route}\",status=\"200\"}} 1");
        for (url, route, other) in [
            (&cluster.first, "/v1/responses", "/v1/chat/completions"),
            (&cluster.other, "/v1/chat/completions", "/v1/responses"),
        ] {
            let metrics = metrics(url).await;
            assert!(metrics.contains(&counted(route)) && !metrics.contains(&counted(other)), "{metrics}");
        }
    });
}

#[test]
fn what_is_forwarded_counts_for_the_rate_of_process_0() {
    let config = r#"Serve(tokens: [(name: "web", token: File("SECRET"), rate: 0.01, burst: 4)])"#;
    with_cluster(config, PIPELINE, async |cluster| {
        // The first of the four was a document.
        let mut seen = Vec::new();
        for url in [&cluster.other, &cluster.first, &cluster.other, &cluster.other, &cluster.first] {
            let request = cluster.client.get(format!("{url}/v1/documents")).bearer_auth("secret");
            let response = request.send().await.unwrap();
            seen.push(response.status().as_u16());
        }
        assert_eq!(seen, [200, 200, 200, 429, 429]);
    });
}

/// The server of a language model. A text comes piece by piece from the test; `None` ends it.
struct Model {
    url: String,
    pieces: UnboundedSender<Option<&'static str>>,
    /// Told when a caller has left before the end.
    left: Arc<Notify>,
}

impl Model {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (pieces, mut said) = unbounded_channel();
        let left = Arc::new(Notify::new());
        let told = left.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    if say(stream, &mut said).await.is_err() {
                        told.notify_one();
                    }
                }
            });
        });
        Self { url, pieces, left }
    }
}

/// Streams a text to one caller.
///
/// # Errors
///
/// The caller has left.
async fn say(stream: TcpStream, said: &mut UnboundedReceiver<Option<&'static str>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    // The whole request: if some of it were not read, the end of the connection could lose what was said.
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some((_, value)) = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
            length = value.trim().parse().unwrap();
        }
    }
    stream.read_exact(&mut vec![0; length]).await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n").await?;
    loop {
        tokio::select! {
            piece = said.recv() => match piece.flatten() {
                Some(piece) => {
                    let event = json!({ "choices": [{ "delta": { "content": piece } }] });
                    stream.write_all(format!("data: {event}\n\n").as_bytes()).await?;
                }
                None => return stream.write_all(b"data: [DONE]\n\n").await,
            },
            _ = stream.fill_buf() => return Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Reads a stream until it has a text.
async fn until_said(response: &mut reqwest::Response, text: &str) {
    let mut said = String::new();
    let read = async {
        while !said.contains(text) {
            let chunk = response.chunk().await.unwrap().unwrap_or_else(|| panic!("the end: {said}"));
            said += std::str::from_utf8(&chunk).unwrap();
        }
    };
    assert!(tokio::time::timeout(PATIENCE, read).await.is_ok(), "no `{text}`: {said}");
}

#[test]
fn a_streamed_answer_comes_word_by_word() {
    let model = Model::start();
    with_cluster("Serve()", &written_by(&model), async |cluster| {
        // The model writes each word when the one before it has arrived.
        model.pieces.send(Some("Ferries ")).unwrap();
        let mut response = cluster.stream("When does the ferry leave?").await;
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        until_said(&mut response, "\"Ferries\"").await;
        for word in ["leave ", "soon."] {
            model.pieces.send(Some(word)).unwrap();
            // A blank comes with the word behind it.
            until_said(&mut response, &format!("\" {}\"", word.trim())).await;
        }
        model.pieces.send(None).unwrap();
        until_said(&mut response, "response.completed").await;
        while response.chunk().await.unwrap().is_some() {}
        assert_eq!(response.chunk().await.unwrap(), None);

        // A client that leaves cancels its turn, and with it the call of the model.
        model.pieces.send(Some("Ferries ")).unwrap();
        let mut response = cluster.stream("Does a ferry leave?").await;
        until_said(&mut response, "\"Ferries\"").await;
        drop(response);
        tokio::time::timeout(PATIENCE, model.left.notified()).await.unwrap();
    });
}

#[test]
fn a_turn_that_goes_on_without_its_client_is_read_and_stopped_through_every_process() {
    let model = Model::start();
    with_cluster("Serve()", &written_by(&model), async |cluster| {
        let ask = async |id: &str, question: &str| {
            let body = json!({ "conversation_id": id, "turn": 1, "speaker": "user", "text": question });
            let url = format!("{}/v1/turns?stream=true&resume={id}", cluster.other);
            cluster.client.post(url).json(&body).send().await.unwrap()
        };
        model.pieces.send(Some("Ferries ")).unwrap();
        let mut response = ask("conversation-1", "When does the ferry leave?").await;
        until_said(&mut response, "Ferries").await;
        drop(response);
        model.pieces.send(Some("leave soon.")).unwrap();
        model.pieces.send(None).unwrap();
        for process in [&cluster.first, &cluster.other] {
            let response = cluster.client.get(format!("{process}/v1/turns/conversation-1")).send();
            until_said(&mut response.await.unwrap(), "Ferries leave soon.").await;
        }

        model.pieces.send(Some("Ferries ")).unwrap();
        let mut response = ask("conversation-2", "Does a ferry leave?").await;
        until_said(&mut response, "Ferries").await;
        assert_eq!(cluster.ok("DELETE", "/v1/turns/conversation-2", None).await["stopped"], json!(true));
        tokio::time::timeout(PATIENCE, model.left.notified()).await.unwrap();
        assert_eq!(cluster.send("GET", "/v1/turns/conversation-2", None).await.0, 404);
    });
}

#[test]
fn a_cluster_that_ends_in_the_middle_of_an_answer_cuts_it_off() {
    for is_lost in [true, false] {
        let model = Model::start();
        with_cluster("Serve(drain_s: 0.2)", &written_by(&model), async |cluster| {
            model.pieces.send(Some("Ferries ")).unwrap();
            let mut response = cluster.stream("When does the ferry leave?").await;
            until_said(&mut response, "\"Ferries\"").await;
            match is_lost {
                true => cluster.lose.cancel(),
                false => cluster.stop.cancel(),
            }
            let rest = async {
                loop {
                    match response.chunk().await {
                        Ok(Some(_)) => {}
                        end => break end,
                    }
                }
            };
            let end = tokio::time::timeout(PATIENCE, rest).await.unwrap();
            assert!(end.is_err(), "{end:?}");
            tokio::time::timeout(PATIENCE, model.left.notified()).await.unwrap();
            if !is_lost {
                tokio::time::timeout(PATIENCE, cluster.ended).await.unwrap().unwrap();
            }
            for path in ["/v1/answers", "/v1/documents"] {
                let response = cluster.client.get(format!("{}{path}", cluster.other)).send().await.unwrap();
                assert_eq!(response.status().as_u16(), 503, "{path}");
            }
        });
    }
}

/// Process 0 lets the requests of other processes finish, as it does with its own.
#[test]
fn a_server_that_stops_finishes_what_other_processes_asked() {
    let model = Model::start();
    with_cluster("Serve()", &written_by(&model), async |cluster| {
        model.pieces.send(Some("Ferries ")).unwrap();
        let mut response = cluster.stream("When does the ferry leave?").await;
        until_said(&mut response, "\"Ferries\"").await;
        cluster.stop.cancel();
        let begun = Instant::now();
        while cluster.send("GET", "/v1/documents", None).await.0 != 503 {
            assert!(begun.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!cluster.ended.is_finished());
        model.pieces.send(Some("end.")).unwrap();
        model.pieces.send(None).unwrap();
        until_said(&mut response, "response.completed").await;
        tokio::time::timeout(PATIENCE, cluster.ended).await.unwrap().unwrap();
    });
}
