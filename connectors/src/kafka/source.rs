//! `Kafka`: turns from a topic of Kafka.
//!
//! ```ron
//! Kafka(brokers: "kafka:9092", topic: "turns", group: Some("turnflow"))
//! ```
//!
//! The value of a record is a turn as JSON. The records of a conversation must be in one partition, as they are if its id
//! is the key. Each partition has its own offset in the checkpoint, and a restart resumes after it. Partitions that are
//! added later are read from their beginning. The source is no member of a consumer group, so neither a slow pipeline nor a
//! rebalance stops it, and two runs both read everything. The processes of a cluster read the partitions together, if the
//! answers go only to sinks that all of them may write: a partition belongs to the process that has the remainder of its
//! number. With `group`, the offsets whose answers are safe are committed
//! there, for Kafka's tools only; a run that ends may not have committed its last ones.
//!
//! A topic that was deleted and created again is read from its beginning, with a warning. It is known by its id, which
//! Kafka 2.8 and later give. With older brokers, it is only noticed if the cluster is another one, or if the topic has
//! fewer records than were read. Records of the new topic that arrive before it is noticed are read twice. Records that the
//! brokers removed before they were read are lost, with a warning that says how many offsets there were. Only committed
//! records of transactions are read.
//!
//! Records that are no turns become dead letters; their position is `topic[partition]@offset`. Records without a value are
//! skipped.
//!
//! ```
//! # use turnflow_connectors::kafka::source::{KafkaConfig, KafkaStart};
//! # let ron = r#"
//! (brokers: "kafka:9092", topic: "turns", start: End, properties: {"security.protocol": "SASL_SSL",
//!  "sasl.mechanisms": "PLAIN", "sasl.username": "turnflow"}, secrets: {"sasl.password": Env("KAFKA_PASSWORD")})
//! # "#;
//! # let config: KafkaConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!((config.start, config.max_bytes), (KafkaStart::End, 1 << 20));
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use turnflow_engine::cluster::Share;
use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, Offsets, SourceOffset, TurnOutput, TurnSource};

use super::client::{Connection, Consumer, names};
use super::reader::{POLL, Reader, Records};
use super::topic::{Watermarks, is_same};
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, fitting, mapped};
use crate::secret::Secret;

/// Fields of the turn source `Kafka`.
#[config]
pub struct KafkaConfig {
    /// The brokers to connect to first, as `host:port`, separated by commas.
    pub brokers: String,
    /// The topic. All records of a conversation must be in one partition, as when the conversation's id is the key.
    pub topic: String,
    /// A consumer group to which offsets are committed when their answers are safe, so that Kafka's tools show the lag.
    /// The source never reads these offsets. Default: nothing is committed.
    pub group: Option<String>,
    /// Where to begin when there is no checkpoint to resume from: `Beginning` or `End`. Default: `Beginning`.
    #[field(default)]
    pub start: KafkaStart,
    /// Further properties of librdkafka, such as `"security.protocol": "SASL_SSL"`.
    #[field(default, show = names)]
    pub properties: BTreeMap<String, String>,
    /// Properties of librdkafka that are secret, such as `"sasl.password": Env("KAFKA_PASSWORD")`.
    #[field(default)]
    pub secrets: BTreeMap<String, Secret>,
    /// Maximum size of a record's value, in bytes. A larger one becomes a dead letter.
    #[field(default = 1 << 20, range = 1..=64 << 20)]
    pub max_bytes: usize,
    /// What makes messages of records in another form: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. Default:
    /// records are turn records.
    pub map: Option<MapConfig>,
    /// With `map`: how messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

/// Where a source begins that has nothing to resume after.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum KafkaStart {
    /// With the oldest record of each partition.
    #[default]
    Beginning,
    /// After the newest record of each partition. Partitions that are added later are read from their beginning.
    End,
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind = TurnSourceKind::of::<KafkaConfig>("Kafka", "turns from a topic of Kafka");

impl KafkaConfig {
    pub(super) fn connection(&self) -> Connection {
        Connection {
            brokers: self.brokers.clone(),
            topic: self.topic.clone(),
            properties: self.properties.clone(),
            secrets: self.secrets.clone(),
        }
    }

    /// Builds the source. It connects when it runs.
    pub fn source(&self, context: &ComponentContext) -> KafkaTurns {
        let reader = Reader {
            connection: self.connection(),
            group: self.group.clone(),
            context: context.clone(),
            share: context.share(),
            #[cfg(test)]
            visible: None,
        };
        KafkaTurns { reader, start: self.start, max_bytes: self.max_bytes }
    }
}

impl KafkaConfig {
    fn map_fields(&self) -> MapFields<'_> {
        MapFields::of_queue(self.map.as_ref(), &self.conversations)
    }
}

impl TurnSourceConfig for KafkaConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.connection().validate(check);
        self.map_fields().validate(check);
        if self.group.as_ref().is_some_and(|group| group.trim().is_empty()) {
            check.error("wrong-value", "group", "`group` is empty");
        }
    }

    fn is_divisible(&self) -> bool {
        // A conversation's records may be in any partition.
        self.map.is_none()
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        mapped(&self.map_fields(), context, built(Ok(Box::new(self.source(context)))))
    }
}

/// Reads turns from a topic.
pub struct KafkaTurns {
    pub(super) reader: Reader,
    start: KafkaStart,
    max_bytes: usize,
}

impl TurnSource for KafkaTurns {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let output = output.hinting(fitting);
        let places = output.resume_partitions().iter().filter_map(|offset| {
            let place = Place { log: offset.log.clone(), generation: offset.generation, next: offset.end };
            Some((offset.partition.parse().ok()?, place))
        });
        let mut turns = Turns {
            topic: &self.reader.connection.topic,
            commits: self.reader.group.is_some(),
            max_bytes: self.max_bytes,
            share: self.reader.share,
            places: places.collect(),
            committed: BTreeMap::new(),
            // Partitions are new if others are known.
            start: output.resume_partitions().is_empty().then_some(self.start),
            output: &output,
        };
        self.reader.run(mode, output.stop(), &mut turns)
    }
}

/// How far a partition is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The topic.
    pub(super) log: Arc<str>,
    /// Counts the topics that had this partition.
    pub(super) generation: u64,
    /// The offset of the next record.
    pub(super) next: u64,
}

/// Why a partition is not read where it was left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The topic was created again, or truncated.
    Replaced,
    /// This number of offsets no longer exists.
    Lost(u64),
}

impl Place {
    /// Where reading goes on in the partition as it is now.
    pub(super) fn resumed(&self, log: &Arc<str>, found: &Watermarks) -> (Self, Option<Problem>) {
        let (low, high) = (unsigned(found.low), unsigned(found.high));
        if !is_same(&self.log, log) || self.next > high {
            let generation = self.generation + 1;
            return (Self { log: log.clone(), generation, next: low }, Some(Problem::Replaced));
        }
        let lost = low.saturating_sub(self.next);
        let place = Self { log: log.clone(), generation: self.generation, next: self.next.max(low) };
        (place, (lost > 0).then_some(Problem::Lost(lost)))
    }
}

fn unsigned(offset: i64) -> u64 {
    u64::try_from(offset).unwrap_or(0)
}

/// Sends the records of a topic as turns.
struct Turns<'a> {
    output: &'a TurnOutput,
    topic: &'a str,
    commits: bool,
    max_bytes: usize,
    /// The partitions that this process reads.
    share: Share,
    /// Where to begin, until the first partitions are found, if there is nothing to resume after.
    start: Option<KafkaStart>,
    places: BTreeMap<i32, Place>,
    /// What the group has.
    committed: BTreeMap<i32, u64>,
}

impl Turns<'_> {
    fn offset(&self, partition: i32, place: &Place) -> SourceOffset {
        SourceOffset {
            partition: partition.to_string().into(),
            log: place.log.clone(),
            generation: place.generation,
            end: place.next,
            line: place.next,
        }
    }

    /// Commits what is safe to the group. Kafka's tools show it; nothing depends on it.
    fn commit(&mut self, consumer: &Consumer, safe: &Offsets) {
        let mut list = TopicPartitionList::new();
        for offset in safe.iter() {
            let Ok(partition) = offset.partition.parse::<i32>() else { continue };
            let is_now = |place: &Place| (&place.log, place.generation) == (&offset.log, offset.generation);
            if self.places.get(&partition).is_some_and(is_now)
                && self.committed.insert(partition, offset.end) != Some(offset.end)
                && let Ok(end) = i64::try_from(offset.end)
            {
                // Only an offset that is out of range is refused.
                let _ = list.add_partition_offset(self.topic, partition, Offset::Offset(end));
            }
        }
        if list.count() > 0
            && let Err(error) = consumer.commit(&list, CommitMode::Async)
        {
            tracing::info!(topic = self.topic, %error, "cannot commit the offsets of the group");
        }
    }
}

impl Records for Turns<'_> {
    fn begin(&mut self, log: &Arc<str>, found: &[Watermarks]) -> Result<Vec<i64>, ConnectorError> {
        let mut begun = Offsets::default();
        for now in found {
            let (topic, partition) = (self.topic, now.partition);
            let place = match self.places.get(&partition) {
                Some(place) => {
                    let (place, problem) = place.resumed(log, now);
                    match problem.filter(|_| self.share.has(&partition.to_string())) {
                        Some(Problem::Replaced) => {
                            let what =
                                "the topic was created again or truncated; reading the partition from its beginning";
                            tracing::warn!(topic, partition, "{what}");
                        }
                        Some(Problem::Lost(lost)) => {
                            let what = "the brokers have removed records that were not read";
                            tracing::warn!(topic, partition, lost, "{what}");
                        }
                        None => {}
                    }
                    place
                }
                None => {
                    let next = unsigned(if self.start == Some(KafkaStart::End) { now.high } else { now.low });
                    let place = Place { log: log.clone(), generation: 0, next };
                    if self.start.is_some() {
                        begun.set(self.offset(partition, &place));
                    }
                    place
                }
            };
            self.places.insert(partition, place);
        }
        self.start = None;
        // All at once: a partition that is not known after a kill would count as a later one, and be read from its
        // beginning.
        if !begun.is_empty() {
            self.output.begin_partitions(begun);
        }
        let next = |now: &Watermarks| self.places.get(&now.partition).map_or(now.low, |place| place.next as i64);
        Ok(found.iter().map(next).collect())
    }

    fn record(&mut self, record: &BorrowedMessage<'_>) -> Result<(), ConnectorError> {
        let (partition, number) = (record.partition(), unsigned(record.offset()));
        let Some(place) = self.places.get_mut(&partition) else { return Ok(()) };
        place.next = number + 1;
        // A record without a value is a tombstone.
        let Some(value) = record.payload().filter(|value| !value.is_empty()) else { return Ok(()) };
        let position = format!("{}[{partition}]@{number}", self.topic);
        if value.len() > self.max_bytes {
            let reason = format!("the record has {} bytes, more than {}", value.len(), self.max_bytes);
            self.output.dead_beginning(&position, &reason, &value[..self.max_bytes]);
            return Ok(());
        }
        let place = place.clone();
        Ok(self.output.line(value, &position, Some(self.offset(partition, &place)))?)
    }

    fn polled(&mut self, consumer: &Consumer, _: bool) -> Result<Duration, ConnectorError> {
        if self.commits && self.output.acknowledgements().changed().try_recv().is_ok() {
            self.commit(consumer, &self.output.acknowledgements().offsets());
        }
        Ok(POLL)
    }

    fn caught_up(&mut self) -> Result<(), ConnectorError> {
        self.output.caught_up();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use turnflow_engine::connector::Stop;
    use turnflow_engine::dead_letter::DeadLetters;

    use super::super::tests::{Cluster, context, until};
    use super::*;

    /// Why it exists: after a kill in the first second, partitions that began at their end were read from their beginning.
    #[test]
    fn all_partitions_begin_together() {
        let begun = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let (of_output, (sender, _turns), (_handle, stop)) =
            (begun.clone(), crossbeam_channel::unbounded(), Stop::new());
        let output = TurnOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), "turns".into(), stop)
            .beginning(Arc::new(move |offsets| of_output.lock().push(offsets)));
        let mut turns = Turns {
            output: &output,
            topic: "t",
            commits: false,
            max_bytes: 1000,
            share: Share::WHOLE,
            start: Some(KafkaStart::End),
            places: BTreeMap::new(),
            committed: BTreeMap::new(),
        };
        let found = |partition| Watermarks { partition, low: 0, high: 10 };
        assert_eq!(turns.begin(&"id/a".into(), &[found(0), found(1), found(2)]).unwrap(), [10, 10, 10]);
        // A partition that is added later has no records that the start could leave out.
        assert_eq!(turns.begin(&"id/a".into(), &[found(3)]).unwrap(), [0]);
        let begun = begun.lock();
        let ends = begun[0].iter().map(|offset| (&*offset.partition, offset.end)).collect::<Vec<_>>();
        assert_eq!((begun.len(), ends), (1, vec![("0", 10), ("1", 10), ("2", 10)]));
    }

    #[test]
    fn what_is_safe_is_committed_to_the_group() {
        let cluster = Cluster::start(&[("t", 2)]);
        (0..3).for_each(|number| cluster.turn("t", 0, &number.to_string()));
        let config = format!("(brokers: {:?}, topic: \"t\", group: Some(\"g\"))", cluster.brokers());
        let source = turnflow_engine::spec::from_str::<KafkaConfig>(&config).unwrap().source(&context());
        let (sender, _turns) = crossbeam_channel::unbounded();
        let (_handle, stop) = Stop::new();
        let output = TurnOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), "turns".into(), stop);
        let place = |log: &str| Place { log: log.into(), generation: 1, next: 3 };
        let mut turns = Turns {
            output: &output,
            topic: "t",
            commits: true,
            max_bytes: 1000,
            share: Share::WHOLE,
            start: None,
            places: BTreeMap::from([(0, place("id/a")), (1, place("id/a"))]),
            committed: BTreeMap::new(),
        };
        let consumer = source.reader.connection.consumer(Some("g")).unwrap();
        // The offset of partition 1 is that of an earlier topic.
        let (now, earlier) = (turns.offset(0, &place("id/a")), turns.offset(1, &place("id/b")));
        turns.commit(&consumer, &[SourceOffset { end: 2, ..now }, earlier].into_iter().collect());
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range("t", 0, 1);
        let committed = |partition| {
            consumer.poll(Duration::from_millis(10));
            let found = consumer.committed_offsets(asked.clone(), Duration::from_secs(5)).ok()?;
            found.find_partition("t", partition).map(|found| found.offset())
        };
        until("the offset is not committed", || committed(0) == Some(Offset::Offset(2)));
        assert_eq!(committed(1), Some(Offset::Invalid));
    }
}
