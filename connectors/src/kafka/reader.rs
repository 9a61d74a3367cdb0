//! Reads the partitions of a topic: finds them, assigns them by hand, and reads on while brokers go away and return.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use turnflow_engine::cluster::Share;
use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::{ConnectorError, Mode, Stop, Stopped};

use super::client::{Connection, Consumer};
use super::topic::{Topic, Watermarks, is_same, look};
use crate::remote::{Retry, passing};

/// How often the topic is looked at: whether it has new partitions, and whether it is still the same.
#[cfg(not(test))]
const REFRESH: Duration = Duration::from_secs(5);
#[cfg(test)]
const REFRESH: Duration = Duration::from_millis(200);
/// The longest wait for a record.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// How long the topic may be out of reach until a source that cannot miss deletions reads it again.
const STALE: Duration = Duration::from_secs(60 * 60);

/// What a source does with records.
pub(super) trait Records {
    /// Where reading begins in these partitions, in their order: the offsets of the first records. They are all partitions
    /// when a connection begins, and new ones later, also those that another process reads. `log` identifies the topic.
    fn begin(&mut self, log: &Arc<str>, found: &[Watermarks]) -> Result<Vec<i64>, ConnectorError>;

    /// Takes a record.
    fn record(&mut self, record: &BorrowedMessage<'_>) -> Result<(), ConnectorError>;

    /// Called after each poll; `is_quiet` if it had no record. Returns how long the next one may wait.
    fn polled(&mut self, consumer: &Consumer, is_quiet: bool) -> Result<Duration, ConnectorError>;

    /// All records that existed when the connection began are taken.
    fn caught_up(&mut self) -> Result<(), ConnectorError>;

    /// The topic was out of reach for so long that deletions may be missed.
    fn was_away(&mut self) {}
}

/// Reads a topic.
pub(super) struct Reader {
    pub(super) connection: Connection,
    pub(super) group: Option<String>,
    pub(super) context: ComponentContext,
    /// The partitions that this process reads.
    pub(super) share: Share,
    /// Partitions from this number on are not seen, as if they did not exist yet.
    #[cfg(test)]
    pub(super) visible: Option<Arc<std::sync::atomic::AtomicI32>>,
}

/// Why a connection ended without an error.
enum Ended {
    /// Everything that existed is read.
    Read,
    /// The offsets are no longer valid, or the topic is another one.
    Changed(&'static str),
    /// The brokers were away for too long, or the source must end.
    GivenUp(ConnectorError),
}

impl Reader {
    /// Reads until the end of what exists, or without end.
    ///
    /// # Errors
    ///
    /// The source must end, or it reads what exists only and the brokers are away for too long.
    pub(super) fn run(&self, mode: Mode, stop: &Stop, records: &mut impl Records) -> Result<(), ConnectorError> {
        let mut retry = Retry::new(self.connection.server(), mode, &self.context);
        let mut seen = Instant::now();
        loop {
            let ended = self
                .connection
                .consumer(self.group.as_deref())
                .and_then(|consumer| Session::new(self, consumer).run(mode, stop, &mut retry, &mut seen, records));
            match ended {
                Ok(Ended::Read) => return Ok(()),
                Ok(Ended::GivenUp(error)) => return Err(error),
                Ok(Ended::Changed(what)) => {
                    tracing::info!(topic = self.connection.topic, "{what}; looking at the topic again");
                    if stop.wait(POLL) {
                        return Err(Stopped.into());
                    }
                }
                Err(stopped @ ConnectorError::Stopped(_)) => return Err(stopped),
                Err(error) => retry.failed(&error, stop)?,
            }
        }
    }
}

/// One connection: a client, and the partitions that are assigned to it.
struct Session<'a> {
    reader: &'a Reader,
    consumer: Arc<Consumer>,
    log: Option<Arc<str>>,
    /// The partitions that are known. This process's own are assigned.
    known: Vec<i32>,
    /// The ends that partitions had at the beginning, of those that are not read up to there.
    ends: BTreeMap<i32, i64>,
    scout: Scout,
}

impl<'a> Session<'a> {
    fn new(reader: &'a Reader, consumer: Consumer) -> Self {
        let scout = Scout { answer: None, next: Instant::now() };
        let consumer = Arc::new(consumer);
        Self { reader, consumer, log: None, known: Vec::new(), ends: BTreeMap::new(), scout }
    }

    fn run(
        mut self,
        mode: Mode,
        stop: &Stop,
        retry: &mut Retry,
        seen: &mut Instant,
        records: &mut impl Records,
    ) -> Result<Ended, ConnectorError> {
        let mut is_caught_up = false;
        let mut wait = POLL;
        loop {
            if stop.is_set() {
                return Err(Stopped.into());
            }
            match self.scout.look(self.reader, &self.consumer, &self.known) {
                Some(Ok(topic)) => {
                    retry.worked();
                    if seen.elapsed() > STALE {
                        records.was_away();
                        *seen = Instant::now();
                        return Ok(Ended::Changed("the topic was out of reach for a long time"));
                    }
                    *seen = Instant::now();
                    if let Some(ended) = self.found(topic, records)? {
                        return Ok(ended);
                    }
                }
                // librdkafka connects again by itself. Positions stay.
                Some(Err(error)) => {
                    if let Err(error) = retry.failed(&error, stop) {
                        return Ok(Ended::GivenUp(error));
                    }
                }
                None => {}
            }
            let is_quiet = match self.consumer.poll(wait.min(POLL)) {
                None => true,
                Some(Ok(record)) => {
                    records.record(&record)?;
                    self.reached(record.partition(), record.offset() + 1);
                    false
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    // Markers of transactions and removed records may be all that was left.
                    self.ends.remove(&partition);
                    false
                }
                Some(Err(error)) => {
                    if let Some(ended) = self.failed(error)? {
                        return Ok(ended);
                    }
                    false
                }
            };
            wait = records.polled(&self.consumer, is_quiet)?;
            if !is_caught_up && self.log.is_some() && self.ends.is_empty() {
                is_caught_up = true;
                records.caught_up()?;
                if mode == Mode::Once {
                    return Ok(Ended::Read);
                }
            }
        }
    }

    fn reached(&mut self, partition: i32, next: i64) {
        if self.ends.get(&partition).is_some_and(|end| next >= *end) {
            self.ends.remove(&partition);
        }
    }

    /// Assigns the partitions that are new.
    fn found(&mut self, topic: Topic, records: &mut impl Records) -> Result<Option<Ended>, ConnectorError> {
        let Topic { log, count, new } = topic;
        let is_first = self.log.is_none();
        if self.log.as_deref().is_some_and(|known| !is_same(known, &log)) || count < self.known.len() {
            return Ok(Some(Ended::Changed("the topic was created again")));
        }
        let log = self.log.get_or_insert(log).clone();
        if new.is_empty() {
            return Ok(None);
        }
        if !is_first {
            tracing::info!(
                topic = self.reader.connection.topic,
                partitions = new.len(),
                "the topic has new partitions"
            );
        }
        let mut list = TopicPartitionList::new();
        for (found, next) in new.iter().zip(records.begin(&log, &new)?) {
            self.known.push(found.partition);
            if !self.reader.share.has(&found.partition.to_string()) {
                continue;
            }
            let added = list.add_partition_offset(&self.reader.connection.topic, found.partition, Offset::Offset(next));
            added.map_err(passing)?;
            if is_first && next < found.high {
                self.ends.insert(found.partition, found.high);
            }
        }
        if list.count() > 0 {
            self.consumer.incremental_assign(&list).map_err(passing)?;
        }
        Ok(None)
    }

    /// Whether the connection must end after this error.
    fn failed(&self, error: KafkaError) -> Result<Option<Ended>, ConnectorError> {
        use RDKafkaErrorCode as Code;
        let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        match error.rdkafka_error_code() {
            Some(Code::AutoOffsetReset | Code::OffsetOutOfRange) => {
                Ok(Some(Ended::Changed("the next record of a partition does not exist")))
            }
            // Secrets are read again for the next client.
            Some(
                Code::Authentication
                | Code::SaslAuthenticationFailed
                | Code::TopicAuthorizationFailed
                | Code::UnknownTopicOrPartition
                | Code::UnknownTopic
                | Code::UnknownPartition,
            ) => Err(self.consumer.context().explained(&error)),
            _ if is_fatal => Err(self.consumer.context().explained(&error)),
            // librdkafka connects again by itself, and the scout finds that the brokers are away.
            _ => {
                tracing::debug!(topic = self.reader.connection.topic, %error, "Kafka reports an error");
                Ok(None)
            }
        }
    }
}

/// Looks at the topic now and then, on another thread, because the brokers' answers may take seconds.
struct Scout {
    answer: Option<Receiver<Result<Topic, ConnectorError>>>,
    next: Instant,
}

impl Scout {
    /// The answer to the last question, if one has come. Asks the next question if it is time.
    fn look(
        &mut self,
        reader: &Reader,
        consumer: &Arc<Consumer>,
        known: &[i32],
    ) -> Option<Result<Topic, ConnectorError>> {
        let Some(answer) = &self.answer else {
            if Instant::now() >= self.next {
                self.ask(reader, consumer, known);
            }
            return None;
        };
        let found = match answer.try_recv() {
            Ok(found) => found,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(passing("the engine's threads have ended")),
        };
        self.answer = None;
        // After a failure, the pause of the retry is the only one.
        self.next = Instant::now() + if found.is_ok() { REFRESH } else { Duration::ZERO };
        Some(found)
    }

    fn ask(&mut self, reader: &Reader, consumer: &Arc<Consumer>, known: &[i32]) {
        let (sender, answer) = crossbeam_channel::bounded(1);
        let (consumer, topic) = (consumer.clone(), reader.connection.topic.clone());
        let known = known.to_vec();
        #[cfg(test)]
        let visible = reader.visible.clone();
        reader.context.runtime().spawn_blocking(move || {
            let found = look(&consumer, &topic, &known);
            #[cfg(test)]
            let found = found.map(|topic| match visible {
                Some(visible) => topic.up_to(visible.load(std::sync::atomic::Ordering::Acquire)),
                None => topic,
            });
            // Nobody waits when the source has ended.
            let _ = sender.send(found);
        });
        self.answer = Some(answer);
    }
}
