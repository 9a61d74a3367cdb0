//! The first indexing: the server listens and says how far it is, and `turnflow top` sees an `index` that runs.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::support::request_body;

/// An embedding server that answers one request for each permit.
pub(super) fn embedder() -> (String, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (permits, held) = channel();
    std::thread::spawn(move || {
        listener.incoming().map_while(Result::ok).for_each(|stream| {
            let _ = answer(stream, &held);
        })
    });
    (url, permits)
}

fn answer(mut stream: TcpStream, held: &Receiver<()>) -> Option<()> {
    let body = request_body(&stream)?;
    held.recv().ok()?;
    let texts = serde_json::from_slice::<Value>(&body).ok()?["input"].as_array()?.len();
    let data: Vec<Value> = (0..texts).map(|at| json!({"index": at, "embedding": [1.0, 0.5]})).collect();
    let body = json!({ "data": data }).to_string();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).ok()
}

/// Two calls of the model's server: a call has 32 of so few passages.
pub(super) fn files(directory: &Path, url: &str) -> String {
    let line =
        |number: usize| json!({"_id": number.to_string(), "text": format!("Ferry {number}.")}).to_string() + "\n";
    std::fs::write(directory.join("d.jsonl"), (0..64).map(line).collect::<String>()).unwrap();
    let model = format!("OpenAiEmbedder(url: {url:?}, model: \"m\", dimension: 2, concurrency: 1, batch: 64)");
    format!(
        r#"Pipeline(
    name: "demo",
    models: {{ "m": {model} }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "d.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "found": Dense(input: "query", corpus: "docs", model: "m", top: 5),
        "answer": ExtractiveAnswer(input: "found"),
        "final": IdkNormalize(input: "answer"),
    }},
)"#
    )
}

#[tokio::test]
async fn a_server_that_indexes_says_how_far_it_is() {
    let (url, permits) = embedder();
    let directory = tempfile::tempdir().unwrap();
    let pipeline = files(directory.path(), &url);
    let server = Server::start(directory.path(), &pipeline, &[], &[]);
    server.ok("GET", "/healthz", None).await;
    let waits = async |embedded: u64| {
        let (status, ready) = server.send("GET", "/readyz", None).await;
        let progress = json!({"documents_read": 64, "passages_cut": 64, "embedded": embedded, "to_embed": 64});
        status == 503 && ready["progress"] == progress
    };
    until(async || waits(0).await).await;
    permits.send(()).unwrap();
    until(async || waits(32).await).await;
    let question = json!({"model": "demo", "messages": [{"role": "user", "content": "When?"}]});
    let turn = json!({"conversation_id": "c", "turn": 1, "speaker": "user", "text": "When?"});
    let response = json!({"model": "demo", "input": "When?"});
    for (path, body) in [
        ("/v1/search?query=ferry", None),
        ("/v1/chat/completions", Some(question)),
        ("/v1/turns", Some(turn)),
        ("/v1/responses", Some(response)),
    ] {
        let method = if body.is_some() { reqwest::Method::POST } else { reqwest::Method::GET };
        let request = server.client.request(method, format!("{}{path}", server.url));
        let request = body.iter().fold(request, |request, body| request.json(body));
        let refused = request.send().await.unwrap();
        assert!(refused.headers().contains_key("retry-after"), "{path}: {refused:?}");
        assert_eq!(refused.status().as_u16(), 503, "{path}");
        assert_eq!(refused.json::<Value>().await.unwrap()["error"]["code"], "loading", "{path}");
    }
    // The second half, and a question.
    (0..9).for_each(|_| permits.send(()).unwrap());
    until(async || server.send("GET", "/readyz", None).await.0 == 200).await;
    assert_eq!(server.ok("GET", "/readyz", None).await.get("progress"), None);
    server.ok("GET", "/v1/search?query=ferry", None).await;
}

#[tokio::test]
async fn top_sees_an_index_that_runs() {
    let (url, permits) = embedder();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("p.ron"), files(directory.path(), &url)).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
        command.current_dir(directory.path()).args(arguments).args(["p.ron", "--state", "state"]);
        command
    };
    let mut index = command(&["index"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    until(async || {
        let top = command(&["top"]).output().unwrap();
        let shown = String::from_utf8(top.stdout).unwrap();
        shown.contains("64 read") && shown.contains("64 cut") && shown.contains("loading")
    })
    .await;
    (0..2).for_each(|_| permits.send(()).unwrap());
    assert!(index.wait().unwrap().success());
    let mut told = String::new();
    index.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(told.starts_with("docs: 64 documents, 64 chunks, 64 chunks embedded"), "{told}");
    assert!(!command(&["top"]).output().unwrap().status.success());
}
