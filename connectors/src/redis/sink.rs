//! `RedisSink`: adds each answer to a Redis stream.
//!
//! ```ron
//! RedisSink(input: "final", url: "redis://localhost:6379", stream: "answers")
//! ```
//!
//! An entry has the fields `key`, the key of the delivery, and `record`, the answer's record in JSON. An answer is
//! acknowledged when the server has added it. It is there at least once, in the order of the answers; after a kill or a lost
//! connection, it may be there again with the same key. While the server is away, the answers wait.
//!
//! ```
//! # use turnflow_connectors::redis::sink::RedisSinkConfig;
//! # let ron = r#"
//! (input: "final", url: "redis://localhost:6379", stream: "answers", max_entries: Some(100000))
//! # "#;
//! # let config: RedisSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_entries, Some(100000));
//! ```

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::{Connection, ErrorKind, RedisError, cmd};
use turnflow_engine::component::{Building, Check, ComponentContext, Models, SinkConfig, SinkKind, SinkMode, config};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;

use super::{Server, check_url, shown, told};
use crate::remote::passing;
use crate::secret::Secret;
use crate::shape::{Bodies, BodyConfig, Shape, When};

/// Fields of `RedisSink`.
#[config]
pub struct RedisSinkConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// The server, as in `redis://localhost:6379` or `rediss://host:6379/1` (TLS, database 1).
    #[field(show = shown)]
    pub url: String,
    /// The user. Default: the server's default user.
    pub user: Option<String>,
    /// Where the password is: `Env("NAME")` or `File("path")`. Default: none.
    pub password: Option<Secret>,
    /// The key of the stream. The server makes it with the first answer.
    pub stream: String,
    /// The number of entries to keep, about: the server removes older ones. Default: all.
    #[field(range = 1..)]
    pub max_entries: Option<u64>,
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
pub const KIND: SinkKind = SinkKind::of::<RedisSinkConfig>("RedisSink", "answers added to a Redis stream");

impl SinkConfig for RedisSinkConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check_url(check, &self.url);
        if self.stream.is_empty() {
            check.error("wrong-value", "stream", "`stream` is empty".to_owned());
        }
        self.shape().validate(check);
    }

    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        self.shape().chosen(self.sink())
    }
}

impl RedisSinkConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: self.body.as_ref() }
    }

    /// Builds the sink. It connects at the first delivery.
    ///
    /// # Errors
    ///
    /// The program of `body` cannot be read.
    pub fn sink(&self) -> Result<RedisSink, ConnectorError> {
        Ok(RedisSink { config: self.clone(), bodies: self.shape().bodies()?, connection: None })
    }
}

/// Adds answers to a stream.
pub struct RedisSink {
    config: RedisSinkConfig,
    bodies: Bodies,
    connection: Option<Connection>,
}

impl AnswerSink for RedisSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            for answer in delivery.answers() {
                if let Err(error) = self.add(answer) {
                    // After a timeout, a reply could belong to an earlier command.
                    if !matches!(error, ConnectorError::Refused { .. }) {
                        self.connection = None;
                    }
                    return Err(error);
                }
                delivery.took(1);
            }
            Ok(())
        }
        .boxed()
    }

    fn batch(&self) -> usize {
        64
    }
}

impl RedisSink {
    fn add(&mut self, answer: &AnswerRecord) -> Result<(), ConnectorError> {
        let key = AnswerRecord::delivery_key(&answer.key, answer.revision.into(), answer.retracted);
        let Some(record) = self.bodies.message(answer)? else { return Ok(()) };
        let RedisSinkConfig { url, user, password, stream, max_entries, .. } = &self.config;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let server = Server { url: url.clone(), user: user.clone(), password: password.clone() };
                none.insert(server.connect().map_err(|error| passing(error.to_string()))?)
            }
        };
        let mut add = cmd("XADD");
        add.arg(stream);
        if let Some(entries) = max_entries {
            add.arg("MAXLEN").arg("~").arg(entries);
        }
        add.arg("*").arg("key").arg(key).arg("record").arg(record);
        let failed = |error: RedisError| match error.kind() {
            // Another kind of value is under this key: that is not this answer's fault.
            ErrorKind::UnexpectedReturnType => passing(format!("`{stream}`: {error}")),
            _ => passing(format!("{}: {}", shown(url), told(error))),
        };
        add.query::<String>(connection).map_err(failed).map(drop)
    }
}
