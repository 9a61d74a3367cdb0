//! Reads the messages of a stream in the order of their sequence numbers, from a given one on, across reconnections.

use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::pull::{Batch, Config};
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy};
use async_nats::jetstream::stream::{ConsumerErrorKind, RetentionPolicy, Stream};
use futures::StreamExt;
use turnflow_engine::connector::ConnectorError;

use super::{Connection, REQUEST};
use crate::remote::{lasting, passing};

/// Messages in a request to the server.
const BATCH: usize = 128;
/// How long a request waits for messages.
const EXPIRES: Duration = Duration::from_secs(2);
/// The client drops a batch a few seconds after that time.
const SLACK: Duration = Duration::from_secs(3);
/// The server forgets a consumer that has not asked for so long. It is then made again.
const INACTIVE: Duration = Duration::from_secs(300);
/// A message of a work queue is sent again if it is not acknowledged for so long; the source has it then already.
const ACK_WAIT: Duration = Duration::from_secs(3600);

/// Which messages are read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// Those after this sequence number.
    After(u64),
    /// The last one of each subject, and all later ones.
    LastOfEach,
}

/// What a reader has found.
pub(super) enum Found {
    /// A message.
    Message(Box<Read>),
    /// No message came for a while.
    Nothing,
    /// The server cannot be reached at the moment.
    Away(String),
}

/// A message of a stream.
pub(super) struct Read {
    pub(super) message: jetstream::Message,
    /// Its number in the stream, from 1.
    pub(super) sequence: u64,
    /// Number of messages behind it at the moment.
    pub(super) pending: u64,
}

/// Reads a stream.
pub(super) struct Reader {
    connection: Connection,
    stream: Stream,
    subject: Option<String>,
    /// The durable consumer's name, for a work queue.
    durable: Option<String>,
    first: First,
    /// The number of the last message that was read.
    last: u64,
    asking: Option<Asking>,
    /// Messages behind the start, as the server told when the consumer was made.
    pub(super) pending: u64,
}

struct Asking {
    consumer: Consumer<Config>,
    /// The number of the connection.
    connection: u64,
    /// The consumer's own number of its last message. Numbers have no gaps, unless messages were lost on the way.
    delivered: u64,
    batch: Option<Batch>,
    /// Messages that are left of the batch.
    left: usize,
    /// When the batch was asked for.
    since: Instant,
    /// A request is being sent. If its future was dropped, its messages are lost.
    is_requesting: bool,
}

/// A stream as it was found.
pub(super) struct Opened {
    pub(super) stream: Stream,
    /// Identifies the stream: another one of the same name has another identity.
    pub(super) log: String,
    /// The numbers of the first and of the last message. The last is one less than the first if there is none.
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) is_work_queue: bool,
    /// The streams whose messages it has, if it is a mirror of one or collects those of several. Their messages keep their
    /// subjects.
    pub(super) origins: Vec<String>,
}

/// Whether the server says that there is no such consumer.
fn is_unknown(kind: &ConsumerErrorKind) -> bool {
    matches!(kind, ConsumerErrorKind::JetStream(error) if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
}

/// Opens a stream.
pub(super) async fn open(connection: &Connection, name: &str) -> Result<Opened, ConnectorError> {
    let mut context = jetstream::new(connection.client.clone());
    context.set_timeout(REQUEST);
    let stream = context.get_stream(name).await.map_err(|error| passing(format!("stream `{name}`: {error}")))?;
    let info = stream.get_info().await.map_err(|error| passing(format!("stream `{name}`: {error}")))?;
    if info.config.retention == RetentionPolicy::Interest {
        let problem = "has the retention policy `interest`, and only `limits` and `workqueue` are supported";
        return Err(lasting(format!("stream `{name}` {problem}")));
    }
    Ok(Opened {
        log: format!("{name}@{}", info.created.unix_timestamp_nanos()),
        first: info.state.first_sequence,
        last: info.state.last_sequence,
        is_work_queue: info.config.retention == RetentionPolicy::WorkQueue,
        origins: {
            let sources = info.config.sources.iter().flatten();
            info.config.mirror.iter().chain(sources).map(|origin| origin.name.clone()).collect()
        },
        stream,
    })
}

impl Reader {
    /// Reads `stream` from `first` on, of one subject or of all. A work queue needs a durable consumer.
    pub(super) fn new(
        connection: Connection,
        stream: Stream,
        subject: Option<String>,
        durable: Option<String>,
        first: First,
    ) -> Self {
        let last = if let First::After(last) = first { last } else { 0 };
        Self { connection, stream, subject, durable, first, last, asking: None, pending: 0 }
    }

    /// Makes the consumer, which tells how many messages are behind the start.
    pub(super) async fn begin(&mut self) -> Result<(), ConnectorError> {
        if self.asking.is_none() {
            let connection = self.connection.number();
            let consumer = self.consumer().await?;
            self.pending = consumer.cached_info().num_pending;
            self.asking = Some(Asking {
                consumer,
                connection,
                delivered: 0,
                batch: None,
                left: 0,
                since: Instant::now(),
                is_requesting: false,
            });
        }
        Ok(())
    }

    async fn consumer(&self) -> Result<Consumer<Config>, ConnectorError> {
        let failed = |error: &dyn std::fmt::Display| passing(format!("cannot make a consumer: {error}"));
        let mut config = Config { filter_subject: self.subject.clone().unwrap_or_default(), ..Config::default() };
        match &self.durable {
            // A work queue sends all messages that are not acknowledged, in their order, to a new consumer only.
            Some(name) => {
                match self.stream.delete_consumer(name).await {
                    Ok(_) => {}
                    Err(error) if is_unknown(&error.kind()) => {}
                    Err(error) => return Err(failed(&error)),
                }
                config.durable_name = Some(name.clone());
                config.deliver_policy = DeliverPolicy::All;
                config.ack_policy = AckPolicy::Explicit;
                config.ack_wait = ACK_WAIT;
                config.max_ack_pending = -1;
            }
            None => {
                config.ack_policy = AckPolicy::None;
                config.inactive_threshold = INACTIVE;
                config.deliver_policy = match self.first {
                    First::LastOfEach if self.last == 0 => DeliverPolicy::LastPerSubject,
                    _ => DeliverPolicy::ByStartSequence { start_sequence: self.last + 1 },
                };
            }
        }
        self.stream.create_consumer(config).await.map_err(|error| failed(&error))
    }

    /// The next message. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Found, ConnectorError> {
        loop {
            if self.connection.client.connection_state() != State::Connected {
                // A pause, since the caller may ask again at once.
                tokio::time::sleep(Duration::from_millis(50)).await;
                return Ok(Found::Away("the connection is lost".to_owned()));
            }
            let number = self.connection.number();
            if self.asking.as_ref().is_some_and(|asking| asking.connection != number || asking.is_requesting) {
                self.asking = None;
            }
            self.begin().await?;
            let Some(asking) = &mut self.asking else { continue };
            let batch = match &mut asking.batch {
                Some(batch) => batch,
                none => {
                    asking.is_requesting = true;
                    let asked = asking.consumer.batch().max_messages(BATCH).expires(EXPIRES).messages().await;
                    let asked = asked.map_err(passing)?;
                    asking.is_requesting = false;
                    (asking.left, asking.since) = (BATCH, Instant::now());
                    none.insert(asked)
                }
            };
            let message = match batch.next().await {
                None => {
                    asking.batch = None;
                    // The batch is complete, and there may be more.
                    if asking.left == 0 {
                        continue;
                    }
                    // The client drops a batch that was not read in time, with the messages that have arrived.
                    if asking.since.elapsed() > EXPIRES + SLACK {
                        self.asking = None;
                    }
                    return Ok(Found::Nothing);
                }
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    // The consumer may be gone, as after a restart of the server: the next call makes another.
                    self.asking = None;
                    return Err(passing(error.to_string()));
                }
            };
            let (sequence, delivered, pending) = {
                let info = message.info().map_err(|error| passing(error.to_string()))?;
                (info.stream_sequence, info.consumer_sequence, info.pending)
            };
            if delivered != asking.delivered + 1 {
                tracing::debug!(sequence, "messages were lost on the way; asking for them again");
                self.asking = None;
                continue;
            }
            asking.delivered = delivered;
            asking.left = asking.left.saturating_sub(1);
            self.last = self.last.max(sequence);
            return Ok(Found::Message(Box::new(Read { message, sequence, pending })));
        }
    }

    /// Whether the server has no more messages for now, and all that it has sent have arrived.
    pub(super) async fn is_at_end(&mut self) -> Result<bool, ConnectorError> {
        let Some(asking) = &mut self.asking else { return Ok(false) };
        let info = asking.consumer.get_info().await.map_err(passing)?;
        if info.delivered.consumer_sequence != asking.delivered {
            // Messages were lost on the way, such as with a connection. They are asked for again.
            self.asking = None;
            return Ok(false);
        }
        Ok(info.num_pending == 0)
    }
}
