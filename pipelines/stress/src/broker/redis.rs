//! Redis that writes each entry to the disk before it replies, killed with SIGKILL.

use anyhow::Context as _;
use redis::streams::StreamRangeReply;
use redis::{Commands, Connection, cmd};
use serde_json::Value;

use super::Broker;
use crate::servers::{REDIS, Server};

/// Number of entries of a stream that is made again.
const LONG: u64 = 60;

struct Redis {
    server: Server,
    connection: Connection,
    /// The id of the newest entry, which begins at 1 in each stream.
    newest: u64,
}

pub(super) fn start() -> anyhow::Result<Option<Box<dyn Broker>>> {
    let Some(server) = Server::start(REDIS) else { return Ok(None) };
    let connection = connected(server.port)?;
    Ok(Some(Box::new(Redis { server, connection, newest: 0 })))
}

fn connected(port: u16) -> anyhow::Result<Connection> {
    Ok(redis::Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection()?)
}

impl Broker for Redis {
    fn source(&self) -> String {
        format!(r#"Redis(url: "redis://127.0.0.1:{}", stream: "turns", trim: true)"#, self.server.port)
    }

    fn sink(&self) -> String {
        format!(r#"RedisSink(input: "hits", url: "redis://127.0.0.1:{}", stream: "answers")"#, self.server.port)
    }

    fn publish(&mut self, turn: &Value) -> anyhow::Result<()> {
        // The server is up whenever this is called, so a reply is certain.
        self.newest += 1;
        let mut add = cmd("XADD");
        add.arg("turns").arg(format!("{}-0", self.newest)).arg("record").arg(turn.to_string());
        add.query::<String>(&mut self.connection).map(drop).context("cannot add a turn")
    }

    fn down(&mut self) -> anyhow::Result<()> {
        self.server.down();
        Ok(())
    }

    fn up(&mut self) -> anyhow::Result<()> {
        self.server.up();
        // Until the log is loaded, the server refuses commands.
        for _ in 0..6000 {
            if let Ok(mut connection) = connected(self.server.port)
                && cmd("PING").query::<String>(&mut connection).is_ok()
            {
                self.connection = connection;
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        anyhow::bail!("the server does not answer")
    }

    fn answers(&mut self) -> anyhow::Result<Vec<(String, Value)>> {
        let reply: StreamRangeReply = self.connection.xrange_all("answers")?;
        let mut answers = Vec::new();
        for entry in reply.ids {
            let key: String = entry.get("key").context("an answer has no key")?;
            let record: Vec<u8> = entry.get("record").context("an answer has no record")?;
            answers.push((key, serde_json::from_slice(&record)?));
        }
        Ok(answers)
    }

    fn make_again(&mut self) -> anyhow::Result<bool> {
        // In a stream that is already longer than what was read of the one before, the first entries are read late.
        if self.newest < LONG {
            return Ok(false);
        }
        self.connection.del::<_, ()>("turns")?;
        self.newest = 0;
        Ok(true)
    }
}
