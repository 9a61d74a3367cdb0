//! NATS JetStream, killed with SIGKILL.

use std::time::Duration;

use anyhow::Context as _;
use async_nats::HeaderMap;
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::Broker;
use crate::servers::{NATS, Server};

struct Nats {
    server: Server,
    runtime: Runtime,
    context: Context,
}

pub(super) fn start() -> anyhow::Result<Option<Box<dyn Broker>>> {
    let Some(server) = Server::start(NATS) else { return Ok(None) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let context = runtime.block_on(async {
        let context = connected(server.port).await?;
        context.create_stream(stream("TURNS", "turns.>")).await?;
        context.create_stream(stream("ANSWERS", "answers")).await?;
        anyhow::Ok(context)
    })?;
    Ok(Some(Box::new(Nats { server, runtime, context })))
}

fn stream(name: &str, subject: &str) -> Config {
    Config { name: name.to_owned(), subjects: vec![subject.to_owned()], ..Config::default() }
}

async fn connected(port: u16) -> anyhow::Result<Context> {
    let client = async_nats::connect(format!("127.0.0.1:{port}")).await?;
    let mut context = jetstream::new(client);
    context.set_timeout(Duration::from_secs(2));
    Ok(context)
}

impl Broker for Nats {
    fn source(&self) -> String {
        format!(r#"Nats(url: "nats://127.0.0.1:{}", stream: "TURNS")"#, self.server.port)
    }

    fn sink(&self) -> String {
        format!(r#"NatsSink(input: "hits", url: "nats://127.0.0.1:{}", subject: "answers")"#, self.server.port)
    }

    fn publish(&mut self, turn: &Value) -> anyhow::Result<()> {
        // The stream drops what it has already stored under this id.
        let id = format!("{}-{}", turn["conversation_id"], turn["turn"]);
        let mut last = None;
        for _ in 0..50 {
            let sent = self.runtime.block_on(async {
                let mut headers = HeaderMap::new();
                headers.insert("Nats-Msg-Id", id.as_str());
                let body = turn.to_string().into();
                self.context.publish_with_headers("turns.web", headers, body).await?.await
            });
            match sent {
                Ok(_) => return Ok(()),
                Err(error) => last = Some(error),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(last.map_or_else(|| anyhow::anyhow!("not sent"), anyhow::Error::from).context("cannot publish a turn"))
    }

    fn down(&mut self) -> anyhow::Result<()> {
        self.server.down();
        Ok(())
    }

    fn up(&mut self) -> anyhow::Result<()> {
        self.server.up();
        self.context = self.runtime.block_on(connected(self.server.port))?;
        Ok(())
    }

    fn answers(&mut self) -> anyhow::Result<Vec<(String, Value)>> {
        self.runtime.block_on(async {
            let stream = self.context.get_stream("ANSWERS").await?;
            let state = stream.get_info().await?.state;
            let mut answers = Vec::new();
            for sequence in state.first_sequence..=state.last_sequence {
                let message = stream.get_raw_message(sequence).await?;
                let key = message.headers.get("turnflow-key").context("an answer has no key")?;
                answers.push((key.as_str().to_owned(), serde_json::from_slice(&message.payload)?));
            }
            Ok(answers)
        })
    }

    fn make_again(&mut self) -> anyhow::Result<bool> {
        self.runtime.block_on(async {
            self.context.delete_stream("TURNS").await?;
            self.context.create_stream(stream("TURNS", "turns.>")).await?;
            Ok(true)
        })
    }
}
