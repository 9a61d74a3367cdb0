//! Spans that a program sends.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::Log;

/// How long a reply may take.
const REPLY: Duration = Duration::from_secs(5);

/// A program that sends spans until they are taken, as exporters do: a batch waits until it is.
pub(super) struct Sender {
    address: SocketAddr,
    /// Spans that were not taken yet.
    waiting: Vec<Value>,
}

impl Sender {
    pub fn new() -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Ok(Self { address, waiting: Vec::new() })
    }

    /// Whether all that waits was taken.
    fn send(&self) -> std::io::Result<bool> {
        let body = json!({"resourceSpans": [{"scopeSpans": [{"spans": self.waiting}]}]}).to_string();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(REPLY))?;
        let head = format!(
            "POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply)?;
        Ok(reply.starts_with(b"HTTP/1.1 200"))
    }
}

impl Log for Sender {
    fn source(&self) -> String {
        format!("Otlp(listen: \"{}\", conversations: (settle_s: 0.2))", self.address)
    }

    fn write(&mut self, records: &[Value]) -> anyhow::Result<()> {
        for record in records {
            let attribute = |key: &str, value: &Value| json!({"key": key, "value": {"stringValue": value}});
            let messages = match record["s"].as_str() {
                Some("user") => "gen_ai.prompt.0.content",
                _ => "gen_ai.completion.0.content",
            };
            let attributes = [
                attribute("gen_ai.conversation.id", &record["c"]),
                attribute("gen_ai.prompt.0.role", &json!("user")),
                attribute(messages, &record["t"]),
            ];
            let id = format!("{:016x}", record["id"].as_u64().unwrap_or_default());
            self.waiting.push(json!({
                "traceId": id, "spanId": id, "startTimeUnixNano": record["id"].to_string(), "attributes": attributes,
            }));
        }
        if !self.waiting.is_empty() && self.send().unwrap_or_default() {
            self.waiting.clear();
        }
        Ok(())
    }

    fn is_passive(&self) -> bool {
        false
    }
}
