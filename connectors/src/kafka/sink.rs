//! `KafkaSink`: answers to a topic of Kafka.
//!
//! ```ron
//! KafkaSink(input: "final", brokers: "kafka:9092", topic: "answers")
//! ```
//!
//! The value of a record is the answer as JSON, the key is the conversation's id, and the header `turnflow-key` is the key
//! of the delivery, the same each time it is sent. The producer is idempotent and waits for all replicas in sync. An answer
//! is there at least once, and the answers of a conversation are in order. After a kill or an error of the brokers, some may
//! come again with the same header.
//!
//! An answer that the brokers refuse, because it is too large for the topic, becomes a dead letter. Everything else is tried
//! again without end, with a new producer. A key has the partition that Java's clients choose for it, too.
//!
//! ```
//! # use turnflow_connectors::kafka::sink::KafkaSinkConfig;
//! # let ron = r#"
//! (input: "final", brokers: "kafka:9092", topic: "answers", timeout_s: 10)
//! # "#;
//! # let config: KafkaSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.timeout_s, 10.0);
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use tokio::sync::oneshot;
use turnflow_engine::component::{Building, Check, ComponentContext, Models, SinkConfig, SinkKind, SinkMode, config};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;

use super::client::{Connection, Logs, names, wrong_config};
use crate::remote::passing;
use crate::secret::Secret;
use crate::shape::{Bodies, BodyConfig, Shape, When};

/// The header with the key of a delivery.
pub(super) const KEY: &str = "turnflow-key";

/// Fields of `KafkaSink`.
#[config]
pub struct KafkaSinkConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// The brokers to connect to first, as `host:port`, separated by commas.
    pub brokers: String,
    /// The topic that gets the answers.
    pub topic: String,
    /// Further properties of librdkafka, such as `"security.protocol": "SASL_SSL"`.
    #[field(default, show = names)]
    pub properties: BTreeMap<String, String>,
    /// Properties of librdkafka that are secret, such as `"sasl.password": Env("KAFKA_PASSWORD")`.
    #[field(default)]
    pub secrets: BTreeMap<String, Secret>,
    /// Seconds to wait until the brokers acknowledge an answer; it is sent again then.
    #[field(default = 30.0, range = 1.0..=600.0)]
    pub timeout_s: f64,
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
pub const KIND: SinkKind = SinkKind::of::<KafkaSinkConfig>("KafkaSink", "answers sent to a topic of Kafka");

impl KafkaSinkConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: self.body.as_ref() }
    }

    fn connection(&self) -> Connection {
        Connection {
            brokers: self.brokers.clone(),
            topic: self.topic.clone(),
            properties: self.properties.clone(),
            secrets: self.secrets.clone(),
        }
    }

    /// Builds the sink. It connects with the first answer.
    ///
    /// # Errors
    ///
    /// The program of `body` cannot be read.
    pub fn sink(&self) -> Result<KafkaSink, ConnectorError> {
        let (timeout, bodies) = (Duration::from_secs_f64(self.timeout_s), self.shape().bodies()?);
        Ok(KafkaSink { connection: self.connection(), bodies, timeout, producer: None })
    }
}

impl SinkConfig for KafkaSinkConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.connection().validate(check);
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

/// Sends answers to a topic.
pub struct KafkaSink {
    connection: Connection,
    bodies: Bodies,
    timeout: Duration,
    /// Created for the first answer, and again after any error: after some of them, a producer does not work any more.
    producer: Option<ThreadedProducer<Reports>>,
}

/// Passes the brokers' acknowledgements on.
struct Reports(Logs);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.error(error, reason);
    }

    fn stats_raw(&self, _: &[u8]) {}
}

type Report = Result<(), KafkaError>;

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<oneshot::Sender<Report>>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Self::DeliveryOpaque) {
        let result = result.as_ref().map(|_| ()).map_err(|(error, _)| error.clone());
        // Nobody waits for the reports after an error.
        let _ = report.send(result);
    }
}

/// Why an answer was not sent.
enum Failed {
    /// The record itself is at fault, or another record that was sent in the same batch.
    Record(KafkaError),
    Other(ConnectorError),
}

impl AnswerSink for KafkaSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            let mut answers = delivery.answers();
            // Brokers refuse whole batches, so after a refusal each answer is sent alone.
            let mut together = answers.len().max(1);
            while !answers.is_empty() {
                let group = &answers[..together.min(answers.len())];
                let (took, failed) = self.send(group).await;
                delivery.took(took);
                answers = &answers[took..];
                let Some(failed) = failed else { continue };
                // Its messages that are not acknowledged are given up.
                self.producer = None;
                match failed {
                    Failed::Record(_) if together > 1 => together = 1,
                    Failed::Record(error) => return Err(ConnectorError::Refused { reason: error.to_string() }),
                    Failed::Other(error) => return Err(error),
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn batch(&self) -> usize {
        256
    }
}

impl KafkaSink {
    fn producer(&mut self) -> Result<&ThreadedProducer<Reports>, ConnectorError> {
        let producer = match self.producer.take() {
            Some(producer) if producer.client().fatal_error().is_none() => producer,
            _ => {
                let timeout = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
                let (config, logs) = self.connection.producer(timeout)?;
                let secrets = logs.secrets.clone();
                let created = config.create_with_context(Reports(logs));
                created.map_err(|error| wrong_config(&error, &secrets))?
            }
        };
        Ok(self.producer.insert(producer))
    }

    /// Sends answers. Returns how many of the first are acknowledged, and why the next one is not.
    async fn send(&mut self, answers: &[AnswerRecord]) -> (usize, Option<Failed>) {
        let (topic, timeout, bodies) = (self.connection.topic.clone(), self.timeout, self.bodies.clone());
        let producer = match self.producer() {
            Ok(producer) => producer,
            Err(error) => return (0, Some(Failed::Other(may_pass(error)))),
        };
        let failed = |error: KafkaError| match error.rdkafka_error_code() {
            Some(
                RDKafkaErrorCode::MessageSizeTooLarge
                | RDKafkaErrorCode::MessageBatchTooLarge
                | RDKafkaErrorCode::InvalidRecord,
            ) => Failed::Record(error),
            _ => Failed::Other(producer.context().0.explained(&error)),
        };
        let mut reports = Vec::with_capacity(answers.len());
        let mut unsent = None;
        for answer in answers {
            let value = match bodies.message(answer) {
                Ok(Some(value)) => value,
                Ok(None) => {
                    reports.push(None);
                    continue;
                }
                Err(error) => {
                    unsent = Some(Failed::Other(error));
                    break;
                }
            };
            let key = AnswerRecord::delivery_key(&answer.key, answer.revision.into(), answer.retracted);
            let headers = OwnedHeaders::new().insert(Header { key: KEY, value: Some(&key) });
            let (report, reported) = oneshot::channel();
            let record = BaseRecord::<str, [u8], _>::with_opaque_to(&topic, Box::new(report))
                .key(&*answer.conversation_id)
                .payload(&value)
                .headers(headers);
            match producer.send(record) {
                Ok(()) => reports.push(Some(reported)),
                Err((error, _)) => {
                    unsent = Some(failed(error));
                    break;
                }
            }
        }
        // The reports come within the timeout of the messages; the limit is for a client that hangs.
        let limit = tokio::time::Instant::now() + timeout + Duration::from_secs(5);
        let sent = reports.len();
        for (number, reported) in reports.into_iter().enumerate() {
            // An answer without a message.
            let Some(reported) = reported else { continue };
            let problem = match tokio::time::timeout_at(limit, reported).await {
                Ok(Ok(Ok(()))) => continue,
                Ok(Ok(Err(error))) => failed(error),
                Ok(Err(_)) | Err(_) => Failed::Other(passing("the brokers did not acknowledge an answer")),
            };
            return (number, Some(problem));
        }
        (sent, unsent)
    }
}

/// A missing secret or a wrong setting may be mended.
fn may_pass(error: ConnectorError) -> ConnectorError {
    passing(error.to_string())
}
