//! `Kafka`: a corpus from a compacted topic of Kafka.
//!
//! ```ron
//! Kafka(brokers: "kafka:9092", topic: "pages", format: Markdown)
//! ```
//!
//! The key of a record is the id of a document, and the value the document. A later value replaces it, and a record without
//! a value deletes it. The first epoch has everything up to the end that the topic had at the start. Changes that arrive
//! together are published together. A restart reads the topic again; the engine drops unchanged documents.
//!
//! Records that cannot be read, or have no key, become dead letters, again after each restart; their documents are deleted.
//! A topic that was created again is read, and then the documents that it does not have are deleted. So is a topic that was
//! out of reach for more than an hour, because compaction may have removed deletions meanwhile.
//!
//! A key must stay in its partition: if partitions are added to a topic, an old value may win over a newer one. A topic must
//! be compacted without other retention, since a restart does not find the documents of records that the brokers removed.
//!
//! ```
//! # use turnflow_connectors::kafka::corpus::KafkaConfig;
//! # use turnflow_connectors::keyed::ValueFormat;
//! # let ron = r#"
//! (brokers: "kafka:9092", topic: "pages", format: Markdown)
//! # "#;
//! # let config: KafkaConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!((config.format, config.max_bytes), (ValueFormat::Markdown, 16 << 20));
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::message::{BorrowedMessage, Message};
use turnflow_engine::cluster::Share;
use turnflow_engine::component::{
    Building, Check, ComponentContext, CorpusSourceConfig, CorpusSourceKind, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode};

use super::client::{Connection, Consumer};
use super::reader::{POLL, Reader, Records};
use super::topic::{Watermarks, is_same};
use crate::keyed::{self, ValueFormat};
use crate::mapped::{KeyMap, MapConfig, RowMap};
use crate::readers::jsonl::Fields;
use crate::secret::Secret;

/// A group of changes ends when no further one arrives within this time,
const GAP: Duration = Duration::from_millis(10);
/// or this time after its first change,
const LONGEST: Duration = Duration::from_millis(50);
/// or with this number of changes.
const MOST: usize = 256;

/// Fields of the corpus source `Kafka`.
#[config]
pub struct KafkaConfig {
    /// The brokers to connect to first, as `host:port`, separated by commas.
    pub brokers: String,
    /// The compacted topic: the key of a record is the document's id, the value is the document, and an empty value deletes
    /// it.
    pub topic: String,
    /// How a value is read: `Json`, `Text` or `Markdown`. Default: `Json`.
    #[field(default)]
    pub format: ValueFormat,
    /// The field of a JSON value with the title.
    #[field(default = Fields::default().title)]
    pub title: String,
    /// The field of a JSON value with the text.
    #[field(default = Fields::default().text)]
    pub text: String,
    /// Further properties of librdkafka, such as `"security.protocol": "SASL_SSL"`.
    #[field(default)]
    pub properties: BTreeMap<String, String>,
    /// Properties of librdkafka that are secret, such as `"sasl.password": Env("KAFKA_PASSWORD")`.
    #[field(default)]
    pub secrets: BTreeMap<String, Secret>,
    /// Maximum size of a record's value, in bytes. A larger one becomes a dead letter.
    #[field(default = 16 << 20, range = 1..=256 << 20)]
    pub max_bytes: usize,
    /// What makes documents of JSON values in another form: `Jq("PROGRAM")` or `JqFile("PATH")`. Default: a value is a
    /// document.
    pub map: Option<MapConfig>,
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<KafkaConfig>("Kafka", "a compacted topic of Kafka, one document for each key");

impl KafkaConfig {
    fn connection(&self) -> Connection {
        Connection {
            brokers: self.brokers.clone(),
            topic: self.topic.clone(),
            properties: self.properties.clone(),
            secrets: self.secrets.clone(),
        }
    }

    /// Builds the source. It connects when it runs.
    pub fn source(&self, context: &ComponentContext) -> KafkaCorpus {
        let reader = Reader {
            connection: self.connection(),
            group: None,
            context: context.clone(),
            share: Share::WHOLE,
            #[cfg(test)]
            visible: None,
        };
        let fields = Fields { title: self.title.clone(), text: self.text.clone(), ..Fields::default() };
        KafkaCorpus { reader, format: self.format, fields, max_bytes: self.max_bytes, map: self.map.clone() }
    }
}

impl CorpusSourceConfig for KafkaConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.connection().validate(check);
        if self.title == self.text {
            check.error("wrong-value", "text", "`title` and `text` are the same field");
        }
        RowMap::validate(self.map.as_ref(), check);
    }

    fn explain(&self) -> String {
        format!("{}, format: {:?}, max_bytes: {}", self.connection().explain(), self.format, self.max_bytes)
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.source(context))))
    }
}

/// Reads a compacted topic as documents.
pub struct KafkaCorpus {
    pub(super) reader: Reader,
    format: ValueFormat,
    fields: Fields,
    max_bytes: usize,
    map: Option<MapConfig>,
}

impl CorpusSource for KafkaCorpus {
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let keys = self.map.as_ref().map(|map| RowMap::of(map, &self.reader.connection.topic)).transpose();
        let keys = keys.map_err(|reason| ConnectorError::Refused { reason })?.map(KeyMap::new);
        let mut documents = Documents {
            keys,
            source: &self,
            output: &output,
            log: None,
            next: BTreeMap::new(),
            known: HashMap::new(),
            reading: 0,
            is_ready: false,
            is_whole: false,
            changes: 0,
            since: None,
        };
        self.reader.run(mode, output.stop(), &mut documents)
    }
}

/// Sends the records of a topic as changes of documents.
struct Documents<'a> {
    /// With a mapping: what it has made.
    keys: Option<KeyMap>,
    source: &'a KafkaCorpus,
    output: &'a CorpusOutput,
    log: Option<Arc<str>>,
    /// The offset of the next record of each partition.
    next: BTreeMap<i32, i64>,
    /// The documents that were sent, and in which reading of the topic they were last found.
    known: HashMap<Arc<str>, u32>,
    reading: u32,
    is_ready: bool,
    /// Whether the topic is read to the end that it had when the reading began. Before that, nothing is committed.
    is_whole: bool,
    /// Changes since the last commit.
    changes: usize,
    /// When the first of them was sent.
    since: Option<Instant>,
}

impl Documents<'_> {
    /// Reads the topic again from its beginning. Documents that are not found again are deleted then.
    fn again(&mut self) {
        self.reading = self.reading.wrapping_add(1);
        self.next.clear();
        self.is_whole = false;
    }

    fn change(
        &mut self,
        id: &str,
        document: Option<turnflow_engine::document::Document>,
    ) -> Result<(), ConnectorError> {
        match document {
            Some(document) => {
                self.known.insert(id.into(), self.reading);
                self.output.change(id, Some(document))?;
            }
            None if self.known.remove(id).is_some() => self.output.change(id, None)?,
            None => return Ok(()),
        }
        self.changes += 1;
        self.since.get_or_insert_with(Instant::now);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), ConnectorError> {
        self.output.commit()?;
        (self.changes, self.since) = (0, None);
        Ok(())
    }
}

impl Records for Documents<'_> {
    fn begin(&mut self, log: &Arc<str>, found: &[Watermarks]) -> Result<Vec<i64>, ConnectorError> {
        let is_other = self.log.as_deref().is_some_and(|known| !is_same(known, log));
        let is_gone =
            |now: &Watermarks| self.next.get(&now.partition).is_some_and(|next| *next > now.high || *next < now.low);
        if is_other || found.iter().any(is_gone) {
            let what = "the topic was created again or truncated, or records were removed; reading it again";
            tracing::warn!(topic = self.source.reader.connection.topic, "{what}");
            self.again();
        }
        self.log = Some(log.clone());
        for now in found {
            self.next.entry(now.partition).or_insert(now.low);
        }
        Ok(found.iter().map(|now| self.next.get(&now.partition).copied().unwrap_or(now.low)).collect())
    }

    fn record(&mut self, record: &BorrowedMessage<'_>) -> Result<(), ConnectorError> {
        let (partition, offset) = (record.partition(), record.offset());
        self.next.insert(partition, offset + 1);
        let source = self.source;
        let position = || format!("{}[{partition}]@{offset}", source.reader.connection.topic);
        let value = record.payload().unwrap_or_default();
        let key = record.key().map(std::str::from_utf8);
        let key = match key {
            Some(Ok(key)) if !key.is_empty() => key,
            other => {
                let reason = match other {
                    Some(Err(_)) => "the key is not UTF-8",
                    _ => "the record has no key",
                };
                self.output.dead_letter(&position(), reason, value);
                return Ok(());
            }
        };
        let is_large = value.len() > source.max_bytes;
        if is_large {
            let reason = format!("the record has {} bytes, more than {}", value.len(), source.max_bytes);
            self.output.dead_beginning(&position(), &reason, &value[..source.max_bytes]);
        }
        let is_gone = value.is_empty() || is_large;
        if let Some(keys) = &mut self.keys {
            let (changes, wrong) = keys.change(key, Some(value).filter(|_| !is_gone));
            if let Some(reason) = wrong {
                self.output.dead_letter(&position(), &reason, value);
            }
            return changes.into_iter().try_for_each(|(id, document)| self.change(&id, document));
        }
        if is_gone {
            return self.change(key, None);
        }
        match keyed::document(key, value, source.format, &source.fields) {
            Ok((document, large)) => {
                if !large.is_empty() {
                    let fields = large.join(", ");
                    tracing::warn!(id = key, fields, "fields of the metadata are too large and left out");
                }
                self.change(key, Some(document))
            }
            Err(error) => {
                self.output.dead_letter(&position(), &error.to_string(), value);
                // As after a restart, which finds no document with this id.
                self.change(key, None)
            }
        }
    }

    fn polled(&mut self, _: &Consumer, is_quiet: bool) -> Result<Duration, ConnectorError> {
        let Some(since) = self.since.filter(|_| self.is_whole) else { return Ok(POLL) };
        if is_quiet || self.changes >= MOST || since.elapsed() >= LONGEST {
            self.commit()?;
            return Ok(POLL);
        }
        Ok(GAP)
    }

    fn caught_up(&mut self) -> Result<(), ConnectorError> {
        if !self.is_whole {
            let reading = self.reading;
            let gone: Vec<Arc<str>> =
                self.known.iter().filter(|(_, found)| **found != reading).map(|(id, _)| id.clone()).collect();
            for id in gone {
                self.change(&id, None)?;
            }
            self.is_whole = true;
        }
        if !self.is_ready || self.changes > 0 {
            self.commit()?;
        }
        if !self.is_ready {
            self.is_ready = true;
            self.output.ready()?;
        }
        Ok(())
    }

    fn was_away(&mut self) {
        let what = "the topic was out of reach for so long that deletions may be gone; reading it again";
        tracing::warn!(topic = self.source.reader.connection.topic, "{what}");
        self.again();
    }
}
