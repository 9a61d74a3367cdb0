//! librdkafka's mock cluster: a broker in this process that speaks Kafka's protocol. It is not killed, but its
//! connections are closed and refused while it is down.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{
    BaseProducer, BaseRecord, DefaultProducerContext, DeliveryResult, Producer as _, ProducerContext,
};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::{ClientContext, error::KafkaError};
use serde_json::Value;

use super::Broker;

/// The partitions of the turns.
const PARTITIONS: i32 = 4;
/// The number of the only broker.
const BROKER: i32 = 1;
/// How long the broker may take to store a record or to answer.
const PATIENCE: Duration = Duration::from_secs(60);

struct Kafka {
    // The cluster belongs to it.
    producer: BaseProducer,
    /// Publishes the turns. It is made again if it gets stuck.
    publisher: Option<BaseProducer<Reports>>,
    /// The answers that were read, and the next offset of each partition. The cluster drops the oldest of many.
    answers: Vec<(String, Value)>,
    next: BTreeMap<i32, i64>,
}

/// The report of the last delivery.
#[derive(Default)]
struct Reports(Mutex<Option<Result<(), KafkaError>>>);

impl ClientContext for Reports {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}
}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let report = result.as_ref().map(drop).map_err(|(error, _)| error.clone());
        if let Ok(mut last) = self.0.lock() {
            *last = Some(report);
        }
    }
}

pub(super) fn start() -> anyhow::Result<Option<Box<dyn Broker>>> {
    let mut config = ClientConfig::new();
    config.set("test.mock.num.brokers", "1").set("log_level", "0");
    let (answers, next) = Default::default();
    let kafka = Kafka { producer: config.create()?, publisher: None, answers, next };
    kafka.cluster()?.create_topic("turns", PARTITIONS, 1)?;
    kafka.cluster()?.create_topic("answers", PARTITIONS, 1)?;
    Ok(Some(Box::new(kafka)))
}

impl Kafka {
    fn cluster(&self) -> anyhow::Result<MockCluster<'_, DefaultProducerContext>> {
        self.producer.client().mock_cluster().context("there is no cluster")
    }

    fn servers(&self) -> String {
        self.cluster().map(|cluster| cluster.bootstrap_servers()).unwrap_or_default()
    }
}

impl Broker for Kafka {
    fn source(&self) -> String {
        format!(r#"Kafka(brokers: "{}", topic: "turns", group: Some("stress"))"#, self.servers())
    }

    fn sink(&self) -> String {
        format!(r#"KafkaSink(input: "hits", brokers: "{}", topic: "answers")"#, self.servers())
    }

    fn publish(&mut self, turn: &Value) -> anyhow::Result<()> {
        let (key, value) = (turn["conversation_id"].as_str().unwrap_or_default(), turn.to_string());
        let mut last = None;
        for _ in 0..20 {
            let publisher = match &self.publisher {
                Some(publisher) => publisher,
                None => {
                    let mut config = ClientConfig::new();
                    config.set("bootstrap.servers", self.servers()).set("linger.ms", "0");
                    // A record is stored once, however often this producer sends it.
                    config.set("enable.idempotence", "true").set("message.timeout.ms", "5000");
                    config.set("reconnect.backoff.max.ms", "200");
                    self.publisher.insert(config.create_with_context(Reports::default())?)
                }
            };
            let record = BaseRecord::to("turns").key(key).payload(&value);
            publisher.send(record).map_err(|(error, _)| error)?;
            let until = Instant::now() + PATIENCE;
            let report = loop {
                publisher.poll(Duration::from_millis(50));
                let report = publisher.context().0.lock().ok().and_then(|mut last| last.take());
                if report.is_some() || Instant::now() > until {
                    break report;
                }
            };
            match report {
                Some(Ok(())) => return Ok(()),
                report => last = report,
            }
            self.publisher = None;
        }
        anyhow::bail!("cannot publish a turn: {last:?}")
    }

    fn down(&mut self) -> anyhow::Result<()> {
        Ok(self.cluster()?.broker_down(BROKER)?)
    }

    fn up(&mut self) -> anyhow::Result<()> {
        Ok(self.cluster()?.broker_up(BROKER)?)
    }

    fn answers(&mut self) -> anyhow::Result<Vec<(String, Value)>> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.servers()).set("group.id", "stress-read");
        config.set("enable.auto.commit", "false").set("log_level", "0");
        let consumer: BaseConsumer = config.create()?;
        let (mut all, mut ends) = (TopicPartitionList::new(), BTreeMap::new());
        for partition in 0..PARTITIONS {
            let next = self.next.entry(partition).or_insert(0);
            all.add_partition_offset("answers", partition, Offset::Offset(*next))?;
            let (low, end) = consumer.fetch_watermarks("answers", partition, PATIENCE)?;
            anyhow::ensure!(low <= *next, "the cluster has dropped answers that were not read");
            ends.insert(partition, end);
        }
        consumer.assign(&all)?;
        let until = Instant::now() + PATIENCE;
        while ends.iter().any(|(partition, end)| self.next[partition] < *end) {
            anyhow::ensure!(Instant::now() < until, "the answers cannot be read");
            let Some(message) = consumer.poll(Duration::from_millis(200)) else { continue };
            let message = message?;
            self.next.insert(message.partition(), message.offset() + 1);
            let headers = message.headers().context("an answer has no headers")?;
            let key = headers.iter().find(|header| header.key == "turnflow-key").and_then(|header| header.value);
            let key = String::from_utf8_lossy(key.context("an answer has no key")?).into_owned();
            self.answers.push((key, serde_json::from_slice(message.payload().unwrap_or_default())?));
        }
        Ok(self.answers.clone())
    }
}

/// A cluster with turns in a topic, for measurements.
pub(crate) struct Topics(Kafka);

/// The partitions of a measured topic.
const MEASURED: i32 = 8;

impl Topics {
    /// Starts it with these turns, each in the partition of its number, in the topic `turns`. The topic `none` is empty.
    pub(crate) fn start(turns: &str) -> anyhow::Result<Self> {
        let mut config = ClientConfig::new();
        config.set("test.mock.num.brokers", "1").set("log_level", "0").set("queue.buffering.max.messages", "1000000");
        let (answers, next) = Default::default();
        let kafka = Kafka { producer: config.create()?, publisher: None, answers, next };
        for topic in ["turns", "none", "answers"] {
            kafka.cluster()?.create_topic(topic, MEASURED, 1)?;
        }
        for (partition, turn) in (0..MEASURED).cycle().zip(turns.lines()) {
            let record = BaseRecord::<(), str>::to("turns").partition(partition).payload(turn);
            kafka.producer.send(record).map_err(|(error, _)| error)?;
        }
        kafka.producer.flush(PATIENCE)?;
        Ok(Self(kafka))
    }

    /// Where it is.
    pub(crate) fn servers(&self) -> String {
        self.0.servers()
    }

    /// Number of answers so far.
    pub(crate) fn answers(&self) -> anyhow::Result<i64> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.servers()).set("log_level", "0");
        let consumer: BaseConsumer = config.create()?;
        (0..MEASURED).map(|partition| Ok(consumer.fetch_watermarks("answers", partition, PATIENCE)?.1)).sum()
    }
}
