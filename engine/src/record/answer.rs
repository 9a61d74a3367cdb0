//! The records that sinks write.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::{Hit, Status};
use crate::document::{Corpus, Readers, Text};
use crate::inference::tokens::Tokens;
use crate::metadata::Metadata;

/// The provenance of an answer: everything needed to reproduce it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Hash of the running pipeline, with overrides.
    pub pipeline: Arc<str>,
    /// The corpus epoch that was read.
    pub epoch: u64,
    /// Hash of each model's files and settings.
    pub models: Arc<BTreeMap<String, String>>,
    /// The answer comes from the answer cache: it was computed at this epoch, and holds at `epoch`, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed_at: Option<u64>,
    /// The answer is that of this question, which is nearly the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub similar_to: Option<Arc<str>>,
    /// Warnings of the form `node: text`: for example, a fallback was used, or a member of an
    /// ensemble failed.
    #[serde(default, alias = "notes", skip_serializing_if = "<[String]>::is_empty")]
    pub warnings: Arc<[String]>,
}

/// A passage in an answer's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HitRecord {
    /// The passage's id.
    pub passage: Arc<str>,
    /// Its document's id.
    pub document: Arc<str>,
    /// The score that determines its rank. JSON has no number for one that is infinite or not a number: it is `null`
    /// there, and not a number when it is read back.
    #[serde(deserialize_with = "number_or_null")]
    pub score: f32,
    /// The text of the passage.
    pub text: Text,
    /// Its document's fields.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The corpus in which it was found, or the first one with the same source, if the pipeline has several sources: their
    /// documents may have the same ids.
    #[serde(default, skip_serializing_if = "KnownCorpus::is_unknown")]
    pub corpus: KnownCorpus,
    /// What the process knows of it that has found it. Not written.
    #[serde(skip)]
    pub found: Found,
}

/// What a process knows of a passage that it has found. Nothing is known in a record that was read. Not compared.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Who may read it.
    pub readers: Option<Readers>,
    /// Tells the passage's text from others, if the record has it as its corpus does.
    pub text: Option<u32>,
}

impl PartialEq for Found {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The name of a passage's corpus, if it is known. What is not known is equal to each.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KnownCorpus(pub Option<Arc<str>>);

impl KnownCorpus {
    fn is_unknown(&self) -> bool {
        self.0.is_none()
    }
}

impl PartialEq for KnownCorpus {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_none() || other.0.is_none() || self.0 == other.0
    }
}

fn number_or_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Ok(Option::<f32>::deserialize(from)?.unwrap_or(f32::NAN))
}

/// A number that tells a text from others: the first bytes of its hash.
pub fn text_mark(text: &str) -> u32 {
    let [a, b, c, d, ..] = *blake3::hash(text.as_bytes()).as_bytes();
    u32::from_be_bytes([a, b, c, d])
}

impl From<&Hit> for HitRecord {
    fn from(hit: &Hit) -> Self {
        Self {
            passage: hit.chunk.id.clone(),
            document: hit.chunk.document.clone(),
            score: hit.score,
            text: hit.chunk.text.on_heap(),
            metadata: hit.chunk.metadata.clone(),
            corpus: KnownCorpus(hit.chunk.place.corpus().map(Corpus::name)),
            found: Found {
                readers: Some(hit.chunk.readers.clone()),
                text: (!hit.chunk.place.is_derived()).then(|| text_mark(&hit.chunk.text)),
            },
        }
    }
}

/// What the user asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// What the user said.
    pub text: Arc<str>,
    /// The corpus that the turn names.
    pub collection: Option<Arc<str>>,
}

/// One line of a sink's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnswerRecord {
    /// The id of the conversation.
    pub conversation_id: Arc<str>,
    /// The number of the turn.
    pub turn: u32,
    /// 0 for the first answer; increases when a standing turn is answered again.
    pub revision: u32,
    /// A key that is the same each time the source record is read. A receiver removes duplicates by
    /// (key, revision).
    #[serde(default)]
    pub key: Arc<str>,
    /// The answer with this key and revision is retracted; another one follows, unless it is `withdrawn`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retracted: bool,
    /// The answer is retracted for good: its question was deleted, or replaced by another version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withdrawn: bool,
    /// The outcome of the turn.
    pub status: Status,
    /// The query passed to the retrievers.
    pub query: Arc<str>,
    /// The answer; empty if the turn failed.
    pub answer: Arc<str>,
    /// Why the turn failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The passages, best first.
    pub hits: Vec<HitRecord>,
    /// Results of operators that check the answer, by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub checks: Map<String, Json>,
    /// The provenance of the answer.
    pub stamp: Provenance,
    /// Milliseconds from reading the turn to delivering the answer.
    pub latency_ms: f64,
    /// The tokens that language models have read and written for it. No sink gets them, since a replay needs none.
    #[serde(skip)]
    pub tokens: Tokens,
    /// When the turn was asked, in seconds since the Unix epoch, if its record says so. It is for sinks that measure time:
    /// none writes it.
    #[serde(skip)]
    pub timestamp: Option<f64>,
    /// What the user asked, if it is known. It is for sinks that show a turn to people: none that can be read back writes it.
    #[serde(skip)]
    pub question: Option<Asked>,
    /// Fields of the turn that turnflow does not know.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl AnswerRecord {
    /// A key that distinguishes the deliveries of a turn. For the first answer, it is the turn's key.
    ///
    /// ```
    /// use turnflow_engine::record::AnswerRecord;
    ///
    /// assert_eq!(AnswerRecord::delivery_key("k", 0, false), "k");
    /// assert_eq!(AnswerRecord::delivery_key("k", 0, true), "k/0-");
    /// assert_eq!(AnswerRecord::delivery_key("k", 1, false), "k/1");
    /// ```
    pub fn delivery_key(key: &str, revision: u64, retracted: bool) -> String {
        match (revision, retracted) {
            (0, false) => key.to_owned(),
            (revision, false) => format!("{key}/{revision}"),
            (revision, true) => format!("{key}/{revision}-"),
        }
    }

    /// Whether another record has the same status, query, answer and passages, ignoring latency and scores.
    pub fn says_what(&self, other: &Self) -> bool {
        // A record of an earlier version has no metadata.
        let is_same = |(a, b): (&HitRecord, &HitRecord)| {
            let same_fields = a.metadata.is_empty() || b.metadata.is_empty() || a.metadata == b.metadata;
            a.passage == b.passage && a.text == b.text && same_fields
        };
        let same_hits = self.hits.len() == other.hits.len() && self.hits.iter().zip(&other.hits).all(is_same);
        self.status == other.status && self.query == other.query && self.answer == other.answer && same_hits
    }

    /// Whether this is the name of a field of the record. An extra field of a turn must not have such a name.
    pub fn has(field: &str) -> bool {
        const FIELDS: [&str; 14] = [
            "conversation_id",
            "turn",
            "revision",
            "key",
            "status",
            "query",
            "answer",
            "error",
            "hits",
            "checks",
            "stamp",
            "latency_ms",
            "retracted",
            "withdrawn",
        ];
        FIELDS.contains(&field)
    }
}
