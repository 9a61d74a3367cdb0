//! `Nats`: turns from a JetStream stream, one message each.
//!
//! ```ron
//! Nats(url: "nats://localhost:4222", stream: "TURNS", subject: Some("turns.>"))
//! ```
//!
//! A message is a turn record in JSON. Turns are read in the order of the stream. turnflow keeps in its own checkpoint how
//! far it has answered, so a restart resumes there, and an answer is in a file sink exactly once however often the process
//! is killed. The stream must exist.
//!
//! A stream with the retention policy `limits` is read and not changed. From a stream with the policy `workqueue`, a
//! message is removed when a checkpoint covers its answer: turnflow has a durable consumer of its own, and there must be no
//! other for these subjects. Streams with the policy `interest` are not supported.
//!
//! If the stream was deleted and made again, it is read from its beginning. Messages that the stream has removed before
//! they were read are lost, and a warning counts them. A message that is not a turn becomes a dead letter `STREAM@NUMBER`; so
//! does one of more than a mebibyte.
//!
//! ```
//! # use turnflow_connectors::nats::turns::NatsConfig;
//! # let ron = r#"
//! (url: "nats://localhost:4222", stream: "TURNS", auth: User("turnflow", Env("NATS_PASSWORD")))
//! # "#;
//! # let config: NatsConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.stream, "TURNS");
//! ```

use std::collections::BTreeMap;

use async_nats::Subject;
use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset, TurnOutput, TurnSource};

use super::reader::{First, Found, Opened, Read, Reader, open};
use super::{Connection, NatsAuth, check_name, check_url, shown};
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, fitting, mapped};
use crate::remote::{Retry, may_pass, passing, wait};

/// Maximum size of a message, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Fields of `Nats`, as a source of turns.
#[config]
pub struct NatsConfig {
    /// The server, as in `nats://localhost:4222` or `tls://nats.example.org:4222`; several servers of a cluster have commas
    /// between them.
    #[field(show = shown)]
    pub url: String,
    /// How turnflow proves who it is. Default: `None`.
    #[field(default)]
    pub auth: NatsAuth,
    /// Name of the stream.
    pub stream: String,
    /// The subjects to read, with the wildcards `*` and `>`. Default: all of the stream.
    pub subject: Option<String>,
    /// Name of the durable consumer, for a stream with the policy `workqueue`.
    #[field(default = "turnflow")]
    pub consumer: String,
    /// What makes messages of records in another form: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. Default:
    /// records are turn records.
    pub map: Option<MapConfig>,
    /// With `map`: how messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind = TurnSourceKind::of::<NatsConfig>("Nats", "messages of a NATS JetStream stream");

impl NatsConfig {
    fn map_fields(&self) -> MapFields<'_> {
        MapFields::of_queue(self.map.as_ref(), &self.conversations)
    }
}

impl TurnSourceConfig for NatsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check_url(check, &self.url);
        self.map_fields().validate(check);
        check_name(check, "stream", &self.stream);
        check_name(check, "consumer", &self.consumer);
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        mapped(&self.map_fields(), context, built(Ok(Box::new(self.source(context)))))
    }
}

impl NatsConfig {
    /// Builds the source. It connects when it runs.
    pub fn source(&self, context: &ComponentContext) -> NatsTurns {
        NatsTurns { config: self.clone(), context: context.clone() }
    }
}

/// Reads turns from a stream.
pub struct NatsTurns {
    config: NatsConfig,
    context: ComponentContext,
}

impl TurnSource for NatsTurns {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let output = output.hinting(fitting);
        let server = format!("stream `{}` of {}", self.config.stream, shown(&self.config.url));
        let retry = Retry::new(server, mode, &self.context);
        let at = output.resume().cloned();
        Following { source: *self, mode, output, retry, at, unacknowledged: BTreeMap::new(), covered: 0 }.run()
    }
}

/// A source that runs.
struct Following {
    source: NatsTurns,
    mode: Mode,
    output: TurnOutput,
    retry: Retry,
    /// The offset after which to go on.
    at: Option<SourceOffset>,
    /// Messages of a work queue that no checkpoint covers yet: where to acknowledge each, by its number.
    unacknowledged: BTreeMap<u64, Subject>,
    /// The messages up to this number are covered by a checkpoint.
    covered: u64,
}

impl Following {
    fn run(mut self) -> Result<(), ConnectorError> {
        loop {
            match self.connected() {
                Ok(()) => return Ok(()),
                Err(error) if may_pass(&error) => self.retry.failed(&error, self.output.stop())?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for a future on this thread.
    fn wait<T>(&self, future: impl Future<Output = Result<T, ConnectorError>>) -> Result<T, ConnectorError> {
        wait(self.source.context.runtime(), self.output.stop(), future)?
    }

    /// Reads over one client, until everything is read or something fails.
    fn connected(&mut self) -> Result<(), ConnectorError> {
        let (config, id) = (self.source.config.clone(), self.source.context.id().to_owned());
        let (connection, opened) = self.wait(async {
            let connection = Connection::open(&config.url, &config.auth, &id).await?;
            let opened = open(&connection, &config.stream).await?;
            Ok((connection, opened))
        })?;
        let mut at = self.begin(&opened);
        let opened_is_queue = opened.is_work_queue;
        let durable = opened.is_work_queue.then(|| config.consumer.clone());
        let Opened { stream, last: newest, .. } = opened;
        let first = First::After(at.end);
        let mut reader = Reader::new(connection.clone(), stream, config.subject.clone(), durable, first);
        self.wait(reader.begin())?;
        self.retry.worked();
        // A work queue sends also what a checkpoint covers, to be acknowledged.
        let mut is_behind = reader.pending > 0 && (opened_is_queue || at.end < newest);
        loop {
            self.acknowledge(&connection)?;
            if !is_behind {
                self.output.caught_up();
                if self.mode == Mode::Once {
                    return Ok(());
                }
            }
            match self.wait(reader.next())? {
                Found::Nothing => {
                    self.retry.worked();
                    // Removed messages leave gaps at the end, too.
                    is_behind = is_behind && !self.wait(reader.is_at_end())?;
                }
                Found::Away(reason) => self.retry.away(&reason, self.output.stop())?,
                Found::Message(read) => {
                    let sequence = read.sequence;
                    is_behind = is_behind && read.pending > 0 && (opened_is_queue || sequence < newest);
                    self.take(*read, &mut at)?;
                }
            }
        }
    }

    /// The offset after which to read this stream.
    fn begin(&mut self, opened: &Opened) -> SourceOffset {
        let fresh =
            |generation| SourceOffset { log: opened.log.as_str().into(), generation, ..SourceOffset::default() };
        let stream = self.source.config.stream.as_str();
        let at = match self.at.take() {
            // A server that has lost messages gives their numbers again.
            Some(at) if *at.log == *opened.log && at.end <= opened.last => {
                if at.end + 1 < opened.first {
                    let messages = opened.first - at.end - 1;
                    tracing::warn!(stream, messages, "the stream has removed messages that were not read");
                }
                at
            }
            Some(at) => {
                tracing::warn!(stream, "the stream was made again or has lost messages; reading it from its beginning");
                self.unacknowledged.clear();
                self.covered = 0;
                fresh(at.generation + 1)
            }
            None => {
                let at = fresh(0);
                self.output.begins(at.clone());
                at
            }
        };
        self.at = Some(at.clone());
        at
    }

    /// Passes a message on.
    fn take(&mut self, read: Read, at: &mut SourceOffset) -> Result<(), ConnectorError> {
        let Read { message, sequence, .. } = read;
        if let (true, Some(reply)) = (message.reply.is_some() && self.is_acknowledged(&message), &message.reply) {
            self.unacknowledged.insert(sequence, reply.clone());
        }
        // A work queue starts with what no checkpoint of the broker covers, which may be covered by ours.
        if sequence <= at.end {
            return Ok(());
        }
        let next = SourceOffset { end: sequence, line: sequence, ..at.clone() };
        let position = format!("{}@{sequence}", self.source.config.stream);
        let bytes = message.payload.len();
        if bytes > MAX_BYTES {
            let reason = format!("the message has {bytes} bytes, more than {MAX_BYTES}");
            self.output.dead_beginning(&position, &reason, &message.payload[..MAX_BYTES]);
        } else {
            self.output.line(&message.payload, &position, Some(next.clone()))?;
        }
        *at = next.clone();
        self.at = Some(next);
        self.retry.worked();
        Ok(())
    }

    /// Whether the broker waits for an acknowledgement of the message: its consumer is the durable one.
    fn is_acknowledged(&self, message: &async_nats::jetstream::Message) -> bool {
        message.info().is_ok_and(|info| info.consumer == self.source.config.consumer)
    }

    /// Acknowledges the messages that a checkpoint covers.
    fn acknowledge(&mut self, connection: &Connection) -> Result<(), ConnectorError> {
        if self.unacknowledged.is_empty() {
            return Ok(());
        }
        let (safe, at) = (self.output.acknowledgements().offsets(), &self.at);
        if let (Some(safe), Some(at)) = (safe.get(""), at)
            && safe.log == at.log
        {
            self.covered = self.covered.max(safe.end);
        }
        if let Some(resumed) = self.output.resume().filter(|offset| Some(&offset.log) == at.as_ref().map(|at| &at.log))
        {
            self.covered = self.covered.max(resumed.end);
        }
        let later = self.unacknowledged.split_off(&(self.covered + 1));
        let covered = std::mem::replace(&mut self.unacknowledged, later);
        if covered.is_empty() {
            return Ok(());
        }
        let client = &connection.client;
        self.wait(async {
            for reply in covered.values() {
                client.publish(reply.clone(), "+ACK".into()).await.map_err(passing)?;
            }
            client.flush().await.map_err(passing)
        })
    }
}
