//! `turnflow top`: the live status of a running pipeline.

mod numbers;
mod view;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::{Value, json};
use turnflow_engine::run::default_state;

use self::numbers::Numbers;
use super::{Fault, FormatArgs, Outcome, PipelineArgs};
use crate::status_socket;

/// The interval between checks for keys.
const TICK: Duration = Duration::from_millis(100);

/// Show rates, queues and latencies of a running pipeline.
///
/// Without a terminal, it prints the numbers once and exits.
#[derive(Args)]
pub struct TopArgs {
    /// The file of a pipeline running on this machine, or the address of a server, such as
    /// http://127.0.0.1:8100.
    #[arg(value_name = "FILE|URL")]
    target: String,
    /// The state directory of the running pipeline [default: .turnflow/NAME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The pipeline, if the server has several.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
    /// Refresh interval in seconds.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    every: f64,
    #[command(flatten)]
    format: FormatArgs,
    /// The environment variable that contains the server's token.
    #[arg(long, value_name = "VARIABLE", default_value = "TURNFLOW_TOKEN")]
    token_env: String,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be 0.1 to 3600 seconds".to_owned()),
    }
}

/// The source of the status.
enum Target {
    State(PathBuf),
    Server { runtime: tokio::runtime::Runtime, client: reqwest::Client, url: String, token: Option<String> },
}

impl Target {
    fn of(args: &TopArgs) -> Result<Self, Fault> {
        if args.target.starts_with("http://") || args.target.starts_with("https://") {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
            let (url, token) = (args.target.trim_end_matches('/').to_owned(), std::env::var(&args.token_env).ok());
            return Ok(Self::Server { runtime, client, url, token });
        }
        let state = match &args.state {
            Some(state) => state.clone(),
            None => {
                default_state(&PipelineArgs { file: args.target.clone().into(), set: Vec::new() }.described()?.name)
            }
        };
        Ok(Self::State(state))
    }

    /// The status, and the nodes in their order.
    fn read(&self, pipeline: Option<&str>) -> anyhow::Result<Value> {
        let Self::Server { runtime, client, url, token } = self else {
            let Self::State(state) = self else { return Ok(Value::Null) };
            return status_socket::read(state);
        };
        let get = async |path: String| -> anyhow::Result<Value> {
            let mut request = client.get(format!("{url}{path}"));
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.with_context(|| format!("cannot reach {url}"))?;
            let status = response.status();
            let body = response.json::<Value>().await.context("the server's response is not JSON")?;
            let reason = || body["error"]["message"].as_str().unwrap_or("no reason given").to_owned();
            anyhow::ensure!(status.is_success(), "the server responded with {status}: {}", reason());
            Ok(body)
        };
        runtime.block_on(async {
            let pipelines = get("/v1/pipelines".to_owned()).await?;
            let mut pipelines = pipelines["data"].as_array().cloned().unwrap_or_default().into_iter();
            let found = match pipeline {
                Some(name) => pipelines.find(|of| of["name"] == name),
                None => pipelines.next(),
            };
            let found = found.ok_or_else(|| anyhow!("the server has no such pipeline"))?;
            let mut path = reqwest::Url::parse(url)?;
            path.path_segments_mut().map_err(|()| anyhow!("the address has no path"))?.pop_if_empty().extend([
                "v1",
                "pipelines",
                found["name"].as_str().unwrap_or_default(),
                "status",
            ]);
            let status = get(path.path().to_owned()).await?;
            Ok(json!({ "pipeline": found, "status": status }))
        })
    }
}

pub(super) fn run(args: &TopArgs) -> Outcome {
    let target = Target::of(args)?;
    let read = || target.read(args.pipeline.as_deref());
    let first = read().map_err(Fault::Told)?;
    if args.format.is_json() {
        println!("{first}");
        return Ok(());
    }
    let mut numbers = Numbers::new(first);
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        print!("{}", view::text(&numbers));
        return Ok(());
    }
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let watched = watch(&mut terminal, &mut numbers, &read, Duration::from_secs_f64(args.every));
    ratatui::restore();
    Ok(watched?)
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    numbers: &mut Numbers,
    read: &dyn Fn() -> anyhow::Result<Value>,
    every: Duration,
) -> anyhow::Result<()> {
    let mut at = Instant::now();
    let mut problem: Option<String> = None;
    loop {
        terminal.draw(|frame| view::draw(frame, numbers, problem.as_deref()))?;
        while event::poll(TICK.min(every))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Release => {}
                Event::Key(key) => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    _ => {}
                },
                Event::Resize(..) => break,
                _ => {}
            }
        }
        if at.elapsed() >= every {
            at = Instant::now();
            // It may become reachable again.
            match read() {
                Ok(new) => {
                    numbers.update(new);
                    problem = None;
                }
                Err(error) => problem = Some(format!("{error:#}")),
            }
        }
    }
}
