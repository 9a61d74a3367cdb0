//! The backend of a chat: pipelines in this process, or a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, anyhow, bail};
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use turnflow_engine::ask::{AskRequest, Event};
use turnflow_engine::run::{Engine, Options, TurnSources, default_state};
use turnflow_engine::spec::Override;
use turnflow_server::{Outline, describe};

use super::state::Question;
use crate::commands::{Fault, PipelineArgs, progress};

/// A pipeline that can be asked.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PipelineInfo {
    pub name: String,
    pub nodes: Vec<NodeInfo>,
    pub corpora: Vec<Named>,
    pub answering: Vec<String>,
    pub needs_collection: bool,
}

/// A node of the pipeline.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct NodeInfo {
    pub id: String,
    pub kind: String,
    pub role: String,
    pub corpora: Vec<String>,
    pub can_skip: bool,
    pub weights: Option<Vec<f32>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Named {
    pub name: String,
}

/// An event of a question: its name in `/v1/turns`, and its fields.
pub(super) type Told = (String, Value);

/// A question being answered; dropping it cancels the turn.
pub(super) struct Asked {
    events: Receiver<Told>,
    task: tokio::task::AbortHandle,
}

impl Asked {
    /// The next event, if one has arrived.
    pub fn next(&self) -> Option<Told> {
        self.events.try_recv().ok()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Kind {
    Local(Vec<(Arc<str>, Value, Arc<Engine>)>),
    Remote { client: reqwest::Client, url: String, token: Option<String> },
}

pub(super) struct Backend {
    kind: Kind,
    runtime: tokio::runtime::Runtime,
}

impl Backend {
    /// Starts pipelines in this process.
    pub fn local(files: &[PathBuf], set: &[Override], state: Option<&Path>) -> Result<Self, Fault> {
        if files.len() > 1 && !set.is_empty() {
            return Err(Fault::Told(anyhow!("`--set` needs exactly one pipeline file, and {} are given", files.len())));
        }
        let mut plans = Vec::new();
        for file in files {
            let pipeline = PipelineArgs { file: file.clone(), set: set.to_vec() };
            plans.push(pipeline.plan()?.running());
        }
        let mut engines: Vec<(Arc<str>, Value, Arc<Engine>)> = Vec::new();
        for plan in plans {
            let name: Arc<str> = plan.name.as_str().into();
            if engines.iter().any(|(other, ..)| *other == name) {
                return Err(Fault::Told(anyhow!("two pipelines have the name `{name}`")));
            }
            let state = match state {
                Some(state) if files.len() > 1 => state.join(turnflow_engine::state::file_name(&name)),
                Some(state) => state.to_owned(),
                None => default_state(&name),
            };
            let options =
                Options { state: Some(state), sources: TurnSources::None, sinks: false, ..Options::default() };
            let description = describe(&name, &Outline::of(&plan));
            let engine = Engine::start(plan, options)?;
            progress::wait_serving(&engine)?;
            engines.push((name, description, Arc::new(engine)));
        }
        Ok(Self { kind: Kind::Local(engines), runtime: runtime()? })
    }

    /// Connects to a server.
    pub fn remote(url: &str, token: Option<String>) -> Result<Self, Fault> {
        let kind = Kind::Remote { client: reqwest::Client::new(), url: url.trim_end_matches('/').to_owned(), token };
        Ok(Self { kind, runtime: runtime()? })
    }

    /// The pipelines that can be asked.
    pub fn pipelines(&self) -> anyhow::Result<Vec<PipelineInfo>> {
        let found: Vec<PipelineInfo> = match &self.kind {
            Kind::Local(engines) => {
                let infos = engines.iter().map(|(_, description, _)| serde_json::from_value(description.clone()));
                infos.collect::<Result<_, _>>()?
            }
            Kind::Remote { client, url, token } => self.runtime.block_on(async {
                let response = authorized(client.get(format!("{url}/v1/pipelines")), token).send().await;
                let response = response.with_context(|| format!("cannot reach {url}"))?;
                let body =
                    checked(response).await?.json::<Value>().await.context("the server's response is not JSON")?;
                serde_json::from_value(body["data"].clone())
                    .context("the server's list of pipelines has an unexpected format")
            })?,
        };
        if found.is_empty() {
            bail!("this token may not use any pipeline of the server");
        }
        Ok(found)
    }

    /// Asks a question.
    pub fn ask(&self, question: Question) -> Asked {
        let (sender, events) = channel();
        let task = match &self.kind {
            Kind::Local(engines) => {
                let engine = engines.iter().find(|(name, ..)| **name == *question.pipeline).map(|(.., of)| of.clone());
                self.runtime.spawn(async move {
                    match engine {
                        Some(engine) => answer(&engine, question, &sender).await,
                        None => tell(&sender, "failed", json!({ "error": { "message": "no such pipeline" } })),
                    }
                })
            }
            Kind::Remote { client, url, token } => {
                let query = [("pipeline", question.pipeline.as_str()), ("stream", "true"), ("trace", "true")];
                let request = client.post(format!("{url}/v1/turns")).query(&query).json(&question.to_json());
                let request = authorized(request, token);
                self.runtime.spawn(async move {
                    if let Err(error) = stream(request, &sender).await {
                        tell(&sender, "failed", json!({ "error": { "message": format!("{error:#}") } }));
                    }
                })
            }
        };
        Asked { events, task: task.abort_handle() }
    }

    /// Stops the pipelines of this process.
    pub fn end(self) {
        self.runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        if let Kind::Local(engines) = self.kind {
            for (.., engine) in engines {
                engine.stop();
                if let Ok(engine) = Arc::try_unwrap(engine) {
                    let _ = engine.join();
                }
            }
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().context("cannot start a thread")
}

fn authorized(request: reqwest::RequestBuilder, token: &Option<String>) -> reqwest::RequestBuilder {
    match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    }
}

/// The response, or the server's error.
async fn checked(response: reqwest::Response) -> anyhow::Result<reqwest::Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let text = response.text().await.unwrap_or_default();
    let told = serde_json::from_str::<Value>(&text)
        .ok()
        .and_then(|body| Some(body.get("error")?.get("message")?.as_str()?.to_owned()));
    bail!("the server responded with {status}: {}", told.unwrap_or(text))
}

fn tell(sender: &Sender<Told>, name: &str, fields: Value) {
    // A stopped question has no receiver.
    let _ = sender.send((name.to_owned(), fields));
}

async fn answer(engine: &Engine, question: Question, sender: &Sender<Told>) {
    let mut request = AskRequest::new(question.text);
    request.history = question.history;
    request.conversation_id = "chat".into();
    request.turn = question.turn;
    request.collection = question.collection.map(Into::into);
    request.adjust = question.adjust;
    request.trace = true;
    let mut events = engine.ask(request);
    while let Some(event) = events.next().await {
        match event {
            Event::Started { epoch } => tell(sender, "started", json!({ "epoch": epoch })),
            Event::Node { node, value, took, warnings } => {
                let took_ms = took.map(|took| took.as_secs_f64() * 1000.0);
                let fields = json!({ "node": node, "value": value, "took_ms": took_ms, "warnings": warnings });
                tell(sender, "node", fields);
            }
            Event::Delta { node, text } => tell(sender, "delta", json!({ "node": node, "text": text })),
            Event::Answer { record } => tell(sender, "answer", serde_json::to_value(&*record).unwrap_or_default()),
            Event::Revised { .. } => {}
            Event::Failed { reason } => {
                tell(sender, "failed", json!({ "error": { "message": reason.to_string() } }));
            }
        }
    }
}

/// Reads the events of a server.
async fn stream(request: reqwest::RequestBuilder, sender: &Sender<Told>) -> anyhow::Result<()> {
    let response = checked(request.send().await.context("cannot reach the server")?).await?;
    let mut body = response.bytes_stream();
    let mut read = Vec::new();
    let mut is_over = false;
    while let Some(bytes) = body.next().await {
        read.extend_from_slice(&bytes.context("the connection broke")?);
        while let Some(end) = read.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = read.drain(..end + 2).collect();
            let event = String::from_utf8_lossy(&event);
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            let (Some(name), Some(data)) = (field("event: "), field("data: ")) else { continue };
            is_over |= matches!(name, "answer" | "failed");
            tell(sender, name, serde_json::from_str(data).unwrap_or_default());
        }
    }
    anyhow::ensure!(is_over, "the server ended the stream before the answer");
    Ok(())
}
