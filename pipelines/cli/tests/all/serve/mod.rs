//! `turnflow serve`: the real binary, its routes, OpenAI's own client, and what it refuses.

mod alerts;
mod as_test;
mod backup;
mod client;
mod corpora;
mod dead_letters;
mod durable;
mod faults;
mod feedback;
mod files;
mod filter;
mod first;
mod format;
mod gaps;
mod groups;
mod libraries;
mod live;
mod load;
mod mcp;
mod models;
mod node;
mod observed;
mod openai;
mod otlp;
mod page;
mod page_pictures;
mod provider;
pub mod python;
mod responses;
mod resume;
mod review;
mod routes;
mod schemathesis;
mod shares;
mod sign_in;
mod stop;
mod tls;
mod usage;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{PATIENCE, ocr, pdfium};

/// A pipeline whose documents are put over HTTP.
const PIPELINE: &str = r#"Pipeline(
    name: "demo",
    corpora: { "docs": Corpus(source: Documents(), chunk: Sentences(size: 2, overlap: 0)) },
    nodes: {
        "turns": Stdin(),
        "query": UserTurns(input: "turns", last: 2),
        "found": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "found"),
        "final": IdkNormalize(input: "answer"),
    },
)"#;

/// A running server, which ends with the value.
struct Server {
    child: Child,
    url: String,
    client: reqwest::Client,
    directory: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server of a pipeline in this directory, with these further arguments and variables.
    fn start(directory: &Path, pipeline: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        std::fs::write(directory.join("pipeline.ron"), pipeline).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
        command.current_dir(directory).args(["serve", "pipeline.ron", "--state", "state"]);
        if !arguments.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command
            .args(arguments)
            .envs(pdfium())
            .envs(ocr())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut told = Vec::new();
        let url = loop {
            let Some(line) = lines.next() else { panic!("the server ended: {told:?}") };
            let line = line.unwrap();
            match line.split_once(" on http") {
                Some((what, url)) if what.starts_with("serving ") => break format!("http{url}"),
                _ => told.push(line),
            }
        };
        // The rest must be read, or the server blocks.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("server: {line}")));
        Self { child, url, client: reqwest::Client::new(), directory: directory.to_owned() }
    }

    /// Sends a request with a JSON body; returns the status and the body.
    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let request = self.client.request(method.parse().unwrap(), format!("{}{path}", self.url));
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
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

    /// Puts the documents of these tests.
    async fn fill(&self) {
        self.put().await;
        for word in ["noon", "children"] {
            let found = self.ok("GET", &format!("/v1/search?query={word}"), None).await;
            assert_eq!(found["hits"].as_array().map(Vec::len), Some(1), "{word}: {found}");
        }
    }

    /// Puts two documents, without a search for them.
    async fn put(&self) {
        for (id, text) in [
            ("ferry.md", "The ferry to the island leaves at nine. It returns at noon."),
            ("notes/fees.md", "A ticket costs four euros. Children travel free."),
        ] {
            let body = json!({ "title": "Island", "text": text });
            self.ok("PUT", &format!("/v1/documents/{id}?wait=true"), Some(body)).await;
        }
    }

    /// Replaces the pipeline, and waits until the server runs it: until a request succeeds.
    async fn reload(&self, pipeline: &str, mut holds: impl AsyncFnMut() -> bool) {
        std::fs::write(self.directory.join("pipeline.ron"), pipeline).unwrap();
        self.signal(libc::SIGHUP);
        until(async || holds().await).await;
    }

    /// Sends a signal to the process.
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(libc::pid_t::try_from(self.child.id()).unwrap(), signal) }, 0);
    }

    /// Waits until the process has ended.
    async fn ended(&mut self) -> std::process::ExitStatus {
        let mut ended = None;
        until(async || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        ended.unwrap()
    }

    /// Waits until a search for a word has so many hits.
    async fn until_found(&self, word: &str, hits: usize) {
        let path = format!("/v1/search?query={word}");
        until(async || self.ok("GET", &path, None).await["hits"].as_array().map(Vec::len) == Some(hits)).await;
    }

    /// The answer to one question.
    async fn chat(&self, question: &str) -> Value {
        let body = json!({ "model": "demo", "messages": [{ "role": "user", "content": question }] });
        self.ok("POST", "/v1/chat/completions", Some(body)).await
    }
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "the condition never held");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
