//! PostgreSQL, killed with SIGKILL. Turns are rows of a table, which is read by a replication slot.

use anyhow::Context as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::Broker;
use crate::servers::{POSTGRES, Server};

struct Postgres {
    server: Server,
    runtime: Runtime,
    client: Client,
}

pub(super) fn start() -> anyhow::Result<Option<Box<dyn Broker>>> {
    let Some(server) = Server::start(POSTGRES) else { return Ok(None) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = runtime.block_on(connected(server.port))?;
    runtime.block_on(client.batch_execute(
        "CREATE TABLE turns (id bigserial PRIMARY KEY, conversation_id text, turn bigint, speaker text, text text, \
         UNIQUE (conversation_id, turn)); \
         CREATE PUBLICATION stress FOR TABLE turns WITH (publish = 'insert')",
    ))?;
    // Rows from before the slot are not read.
    runtime.block_on(client.batch_execute("SELECT pg_create_logical_replication_slot('stress', 'pgoutput')"))?;
    Ok(Some(Box::new(Postgres { server, runtime, client })))
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

async fn connected(port: u16) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(&url(port), NoTls).await?;
    tokio::spawn(async move {
        // The connection ends with the server.
        let _ = connection.await;
    });
    Ok(client)
}

impl Broker for Postgres {
    fn source(&self) -> String {
        let url = url(self.server.port);
        format!(r#"Postgres(url: "{url}", table: "public.turns", follow: Slot(name: "stress", every_s: 0.05))"#)
    }

    fn sink(&self) -> String {
        let url = url(self.server.port);
        format!(r#"PostgresSink(input: "hits", url: "{url}", table: "public.answers", create: true)"#)
    }

    fn publish(&mut self, turn: &Value) -> anyhow::Result<()> {
        let text = |name: &str| turn[name].as_str().unwrap_or_default().to_owned();
        let number = turn["turn"].as_i64().unwrap_or_default();
        let insert =
            "INSERT INTO turns (conversation_id, turn, speaker, text) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
        let (conversation, speaker, words) = (text("conversation_id"), text("speaker"), text("text"));
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&conversation, &number, &speaker, &words];
        let done = self.client.execute(insert, &values);
        self.runtime.block_on(done).map(drop).context("cannot insert a turn")
    }

    fn down(&mut self) -> anyhow::Result<()> {
        self.server.down();
        Ok(())
    }

    fn up(&mut self) -> anyhow::Result<()> {
        self.server.up();
        self.client = self.runtime.block_on(connected(self.server.port))?;
        Ok(())
    }

    fn answers(&mut self) -> anyhow::Result<Vec<(String, Value)>> {
        let read = self.client.query("SELECT key, record::text FROM answers ORDER BY delivered_at", &[]);
        let rows = match self.runtime.block_on(read) {
            // The sink makes the table, and may have been killed before that.
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => return Ok(Vec::new()),
            rows => rows?,
        };
        rows.iter().map(|row| Ok((row.get(0), serde_json::from_str(row.get(1))?))).collect()
    }
}
