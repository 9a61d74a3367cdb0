//! `NatsSink`: publishes each answer to a subject that a JetStream stream stores.
//!
//! ```ron
//! NatsSink(input: "final", url: "nats://localhost:4222", subject: "answers")
//! ```
//!
//! A message is the answer's record in JSON. Its header `Nats-Msg-Id` is made of the key of the delivery, so a stream
//! drops a second message of this sink with the same key within its duplicate window (two minutes, unless the stream says otherwise); the header
//! `turnflow-key` has the same key for readers. An answer is acknowledged when the stream has stored it: it is there at
//! least once, in the order of the answers. While no stream stores the subject, or the server is away, the answers wait.
//!
//! ```
//! # use turnflow_connectors::nats::sink::NatsSinkConfig;
//! # let ron = r#"
//! (input: "final", url: "nats://localhost:4222", subject: "answers.support", auth: Token(Env("NATS_TOKEN")))
//! # "#;
//! # let config: NatsSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.subject, "answers.support");
//! ```

use std::collections::HashSet;

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Building, Check, ComponentContext, Models, SinkConfig, SinkKind, SinkMode, config};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;

use super::{Connection, NatsAuth, REQUEST, check_url, shown};
use crate::remote::{header_key, passing};
use crate::shape::{Bodies, BodyConfig, Shape, When};

/// The server's number of the error that a message is larger than the stream allows.
const TOO_LARGE: &str = "10054";

/// Fields of `NatsSink`.
#[config]
pub struct NatsSinkConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// The server, as in `nats://localhost:4222` or `tls://nats.example.org:4222`; several servers of a cluster have commas
    /// between them.
    #[field(show = shown)]
    pub url: String,
    /// How turnflow proves who it is. Default: `None`.
    #[field(default)]
    pub auth: NatsAuth,
    /// The subject to publish to. A stream must store it.
    pub subject: String,
    /// Which answers the sink gets: `Answered`, `Idk`, `Failed`, `Any([…])` of these, or `Jq("…")`, a program over the
    /// answer's record whose value is true. Default: all.
    pub when: Option<When>,
    /// What is sent in place of the answer's record: the value of a program over it, `Jq("…")` or `JqFile("path")`. A
    /// text is sent without quotes. Default: the record.
    pub body: Option<BodyConfig>,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    pub mode: Option<SinkMode>,
}

/// Entry in the connector table.
pub const KIND: SinkKind = SinkKind::of::<NatsSinkConfig>("NatsSink", "answers published to a NATS JetStream subject");

impl SinkConfig for NatsSinkConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check_url(check, &self.url);
        let is_fine =
            |token: &str| !token.is_empty() && !token.contains(['*', '>']) && !token.contains(char::is_whitespace);
        if !self.subject.split('.').all(is_fine) {
            check.error("wrong-value", "subject", format!("`{}` is not a subject to publish to", self.subject));
        }
        self.shape().validate(check);
    }

    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        self.shape().chosen(self.sink(context.id()))
    }
}

impl NatsSinkConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: self.body.as_ref() }
    }

    /// Builds the sink. It connects at the first delivery; `id` is its node.
    ///
    /// # Errors
    ///
    /// The program of `body` cannot be read.
    pub fn sink(&self, id: &str) -> Result<NatsSink, ConnectorError> {
        let bodies = self.shape().bodies()?;
        Ok(NatsSink { config: self.clone(), bodies, id: id.to_owned(), connection: None })
    }
}

/// Publishes answers.
pub struct NatsSink {
    config: NatsSinkConfig,
    bodies: Bodies,
    id: String,
    connection: Option<Connection>,
}

impl AnswerSink for NatsSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            let connection = match &self.connection {
                Some(connection) => connection.clone(),
                None => {
                    let NatsSinkConfig { url, auth, .. } = &self.config;
                    let connection = Connection::open(url, auth, &self.id).await;
                    self.connection.insert(connection.map_err(|error| passing(error.to_string()))?).clone()
                }
            };
            self.publish(&connection, delivery).await
        }
        .boxed()
    }

    fn batch(&self) -> usize {
        64
    }
}

impl NatsSink {
    /// Publishes all answers, then waits for the acknowledgements in order.
    async fn publish(&self, connection: &Connection, delivery: Delivery<'_>) -> Result<(), ConnectorError> {
        let mut context = jetstream::new(connection.client.clone());
        context.set_timeout(REQUEST);
        // Messages would wait in the client, and each further try would add to them.
        if connection.client.connection_state() != State::Connected {
            return Err(passing(format!("{}: the connection is lost", shown(&self.config.url))));
        }
        let mut sent = Vec::new();
        let mut failure = None;
        let mut conversations = HashSet::new();
        for answer in delivery.answers() {
            let body = match self.bodies.message(answer) {
                Ok(Some(body)) => body,
                Ok(None) => {
                    // Acknowledgements are in the order of the answers.
                    self.stored(std::mem::take(&mut sent), delivery).await?;
                    delivery.took(1);
                    continue;
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            // What is lost on the way must not come after a later answer of its conversation.
            if !conversations.insert(&answer.conversation_id) {
                self.stored(std::mem::take(&mut sent), delivery).await?;
                conversations = HashSet::from([&answer.conversation_id]);
            }
            let key = header_key(AnswerRecord::delivery_key(&answer.key, answer.revision.into(), answer.retracted));
            // Two sinks may publish answers to one turn into one stream.
            let id = blake3::hash(format!("{}\0{}\0{key}", self.id, self.config.subject).as_bytes());
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", id.to_hex().as_str());
            headers.insert("turnflow-key", key.as_str());
            let publish = context.publish_with_headers(self.config.subject.clone(), headers, body.into());
            let published = match tokio::time::timeout(REQUEST, publish).await {
                Err(_) => Err(passing("the server does not take the message")),
                Ok(published) => published.map_err(|error| self.failed(&error)),
            };
            match published {
                Ok(published) => sent.push(published),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        self.stored(sent, delivery).await?;
        failure.map_or(Ok(()), Err)
    }

    /// Waits until the stream has stored these messages.
    async fn stored(&self, sent: Vec<PublishAckFuture>, delivery: Delivery<'_>) -> Result<(), ConnectorError> {
        for published in sent {
            published.await.map_err(|error| self.failed(&error))?;
            delivery.took(1);
        }
        Ok(())
    }

    fn failed(&self, error: &PublishError) -> ConnectorError {
        match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => refused(error),
            // The client has no name for this error: larger than the stream's messages may be.
            _ if error.to_string().contains(TOO_LARGE) => refused(error),
            PublishErrorKind::StreamNotFound => passing(format!(
                "no stream stores the subject `{}` of {}",
                self.config.subject,
                shown(&self.config.url)
            )),
            _ => passing(format!("{}: {error}", shown(&self.config.url))),
        }
    }
}

fn refused(error: &dyn std::fmt::Display) -> ConnectorError {
    ConnectorError::Refused { reason: error.to_string() }
}
