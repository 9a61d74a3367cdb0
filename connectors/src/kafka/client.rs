//! What the Kafka connectors share: the settings of a connection, and where librdkafka's logs go.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;
use turnflow_engine::component::Check;
use turnflow_engine::connector::ConnectorError;

use crate::remote::{lasting, passing, refused};
use crate::secret::Secret;

/// Properties that the connectors set themselves, and why nobody else may.
const OWNED: &[(&str, &str)] = &[
    ("bootstrap.servers", "the field `brokers` sets it"),
    ("metadata.broker.list", "the field `brokers` sets it"),
    ("group.id", "the field `group` of the source sets it"),
    ("group.instance.id", "a source is no member of a group"),
    ("enable.auto.commit", "offsets are committed when their answers are safe"),
    ("enable.auto.offset.store", "offsets are committed when their answers are safe"),
    ("auto.commit.enable", "offsets are committed when their answers are safe"),
    ("auto.offset.reset", "the field `start` of the source sets it"),
    ("enable.partition.eof", "the source needs it"),
    ("isolation.level", "only committed records are read"),
    ("enable.idempotence", "the sink needs it"),
    ("acks", "the sink needs all acknowledgements"),
    ("request.required.acks", "the sink needs all acknowledgements"),
    ("message.timeout.ms", "the field `timeout_s` of the sink sets it"),
    ("delivery.timeout.ms", "the field `timeout_s` of the sink sets it"),
    ("transactional.id", "the sink uses no transactions"),
    ("plugin.library.paths", "no libraries are loaded"),
    ("log.queue", "logs go to turnflow's log"),
    ("log_level", "turnflow's log has its own levels"),
];

/// Properties whose values are secret.
const SECRET: &[&str] = &[
    "sasl.password",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
];

/// The group of a source without `group`. librdkafka needs a name; nothing is committed there.
const NO_GROUP: &str = "turnflow";

/// The names of properties: their values may be secret.
pub(super) fn names(properties: &BTreeMap<String, String>) -> Vec<String> {
    properties.keys().cloned().collect()
}

/// How to reach a topic.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) brokers: String,
    pub(super) topic: String,
    pub(super) properties: BTreeMap<String, String>,
    pub(super) secrets: BTreeMap<String, Secret>,
}

impl Connection {
    /// Reports invalid settings.
    pub(super) fn validate(&self, check: &mut Check<'_>) {
        for (field, problem) in self.problems() {
            check.error("wrong-value", field, problem);
        }
    }

    /// Invalid settings, with their fields.
    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if self.brokers.split(',').any(|broker| broker.trim().is_empty() || broker.contains(char::is_whitespace)) {
            let problem = "`brokers` must be `host:port`, separated by commas, without spaces";
            problems.push(("brokers", problem.to_owned()));
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let topic = &self.topic;
        if !(1..=249).contains(&topic.len()) || !topic.bytes().all(is_name) || topic == "." || topic == ".." {
            let problem = "`topic` must have 1 to 249 letters, digits, dots, underscores and hyphens";
            problems.push(("topic", problem.to_owned()));
        }
        let plain = self.properties.keys().map(|name| ("properties", name));
        for (field, name) in plain.chain(self.secrets.keys().map(|name| ("secrets", name))) {
            if let Err(problem) = self.property(name, field == "secrets") {
                problems.push((field, problem));
            }
        }
        problems
    }

    /// Checks one property without a server.
    fn property(&self, name: &str, is_secret: bool) -> Result<(), String> {
        if let Some((_, why)) = OWNED.iter().find(|(owned, _)| *owned == name) {
            return Err(format!("`{name}` cannot be set: {why}"));
        }
        if is_secret && self.properties.contains_key(name) {
            return Err(format!("`{name}` is in `properties` and in `secrets`"));
        }
        if !is_secret && SECRET.contains(&name) {
            return Err(format!("`{name}` is secret and belongs into `secrets`"));
        }
        // A secret is not read here. Secret properties are text, so that any text is valid for them.
        let value = if is_secret { "x" } else { self.properties.get(name).map_or("", String::as_str) };
        let mut config = ClientConfig::new();
        config.set(name, value);
        match config.create_native_config() {
            Ok(_) => Ok(()),
            Err(KafkaError::ClientConfig(_, problem, ..)) => Err(problem),
            Err(other) => Err(format!("`{name}`: {other}")),
        }
    }

    /// The settings in one line, without secrets.
    pub(super) fn explain(&self) -> String {
        let mut line = format!("brokers: {:?}, topic: {:?}", self.brokers, self.topic);
        let names: Vec<&str> = self.properties.keys().chain(self.secrets.keys()).map(String::as_str).collect();
        if !names.is_empty() {
            line += &format!(", properties: {}", names.join(" "));
        }
        line
    }

    /// How messages name the server.
    pub(super) fn server(&self) -> String {
        format!("Kafka at {}", self.brokers)
    }

    /// The settings of a client, with these defaults; `properties` replaces them. Also returns where its logs go.
    ///
    /// # Errors
    ///
    /// A secret cannot be read.
    fn config(&self, defaults: &[(&str, &str)]) -> Result<(ClientConfig, Logs), ConnectorError> {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Info);
        config.set("client.id", "turnflow").set("socket.keepalive.enable", "true");
        config.set("reconnect.backoff.max.ms", "2000");
        for (name, value) in defaults {
            config.set(*name, *value);
        }
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        let mut secrets = Vec::new();
        for (name, secret) in &self.secrets {
            let value = secret.read()?;
            config.set(name, &value);
            secrets.push(value);
        }
        config.set("bootstrap.servers", &self.brokers);
        Ok((config, Logs { secrets, reason: Mutex::default() }))
    }

    /// A consumer, to which no partition is assigned yet.
    ///
    /// # Errors
    ///
    /// A secret cannot be read, or librdkafka refuses a setting.
    pub(super) fn consumer(&self, group: Option<&str>) -> Result<Consumer, ConnectorError> {
        let (mut config, logs) =
            self.config(&[("queued.max.messages.kbytes", "16384"), ("fetch.queue.backoff.ms", "50")])?;
        config
            .set("group.id", group.unwrap_or(NO_GROUP))
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed");
        let secrets = logs.secrets.clone();
        config.create_with_context(logs).map_err(|error| wrong_config(&error, &secrets))
    }

    /// The settings of a producer whose messages fail after this time.
    ///
    /// # Errors
    ///
    /// A secret cannot be read.
    pub(super) fn producer(&self, timeout_ms: u64) -> Result<(ClientConfig, Logs), ConnectorError> {
        // Java's clients choose the same partition for a key. The broker decides which records are too large.
        let (mut config, logs) =
            self.config(&[("partitioner", "murmur2_random"), ("message.max.bytes", "67108864"), ("linger.ms", "5")])?;
        config.set("enable.idempotence", "true").set("acks", "all").set("message.timeout.ms", timeout_ms.to_string());
        Ok((config, logs))
    }
}

/// A consumer of one topic.
pub(super) type Consumer = BaseConsumer<Logs>;

/// An error of librdkafka about settings, without the values of secrets.
pub(super) fn wrong_config(error: &KafkaError, secrets: &[String]) -> ConnectorError {
    // The error's own text has the value of the property, which may be a secret.
    let problem = match error {
        KafkaError::ClientConfig(_, problem, ..) => problem.clone(),
        other => other.to_string(),
    };
    lasting(redacted(&problem, secrets))
}

fn redacted(text: &str, secrets: &[String]) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
}

/// Sends librdkafka's logs to turnflow's, without secrets.
pub(super) struct Logs {
    pub(super) secrets: Vec<String>,
    /// The last error that librdkafka reported.
    reason: Mutex<Option<String>>,
}

impl Logs {
    /// The error, with the reason that librdkafka has reported since the last call.
    pub(super) fn explained(&self, error: &KafkaError) -> ConnectorError {
        let told = match self.reason.lock().take() {
            Some(reason) => format!("{error}: {reason}"),
            None => redacted(&error.to_string(), &self.secrets),
        };
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed) => refused(told),
            _ => passing(told),
        }
    }
}

impl ClientContext for Logs {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        use RDKafkaLogLevel::{Alert, Critical, Debug, Emerg, Error, Info};
        let message = redacted(message, &self.secrets);
        match level {
            Emerg | Alert | Critical => tracing::error!(target: "librdkafka", facility, "{message}"),
            Error => tracing::warn!(target: "librdkafka", facility, "{message}"),
            Debug | Info => tracing::debug!(target: "librdkafka", facility, "{message}"),
            _ => tracing::info!(target: "librdkafka", facility, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The end of a partition is an event, too.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            return;
        }
        let reason = redacted(reason, &self.secrets);
        tracing::debug!(target: "librdkafka", %error, "{reason}");
        *self.reason.lock() = Some(reason);
    }

    fn stats_raw(&self, _: &[u8]) {}
}

impl ConsumerContext for Logs {
    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::info!(target: "librdkafka", %error, "cannot commit the offsets of the group");
        }
    }
}
