//! The records that sinks get.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::{Hit, Status};

/// By what an answer can be made again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Hash of the pipeline as it runs, overrides included.
    pub pipeline: Arc<str>,
    /// The corpus epoch that was read.
    pub epoch: u64,
    /// Hash of each model's files and settings.
    pub models: Arc<BTreeMap<String, String>>,
    /// What was done without, `node: what` each: a fallback that was taken, a member of an
    /// ensemble that failed.
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
    /// The score by which it stands where it does.
    pub score: f32,
    /// The passage.
    pub text: Arc<str>,
}

impl From<&Hit> for HitRecord {
    fn from(hit: &Hit) -> Self {
        Self {
            passage: hit.chunk.id.clone(),
            document: hit.chunk.document.clone(),
            score: hit.score,
            text: hit.chunk.text.clone(),
        }
    }
}

/// One line of a sink's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnswerRecord {
    /// Which conversation.
    pub conversation_id: Arc<str>,
    /// Which turn.
    pub turn: u32,
    /// From 0; higher when a standing turn is answered again.
    pub revision: u32,
    /// The same for the same record of a source, whenever it is read: by (key, revision) a
    /// receiver knows what it has already.
    #[serde(default)]
    pub key: Arc<str>,
    /// The answer of this key and revision is withdrawn: another follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retracted: bool,
    /// What became of it.
    pub status: Status,
    /// What was asked of the retrievers.
    pub query: Arc<str>,
    /// The answer; empty when the turn failed.
    pub answer: Arc<str>,
    /// Why the turn failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The passages, best first.
    pub hits: Vec<HitRecord>,
    /// What operators found out about the answer, by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub checks: Map<String, Json>,
    /// By what the answer can be made again.
    pub stamp: Provenance,
    /// Milliseconds from reading the turn to delivering the answer.
    pub latency_ms: f64,
    /// Fields of the turn that turnflow does not know.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl AnswerRecord {
    /// What tells the deliveries of a turn apart: its first answer has the key alone.
    pub fn delivery_key(key: &str, revision: u64, retracted: bool) -> String {
        match (revision, retracted) {
            (0, false) => key.to_owned(),
            (revision, false) => format!("{key}/{revision}"),
            (revision, true) => format!("{key}/{revision}-"),
        }
    }

    /// Whether another record says the same, whatever it cost and by which scores.
    pub fn says_what(&self, other: &Self) -> bool {
        let hits = |record: &Self| -> Vec<(Arc<str>, Arc<str>)> {
            record.hits.iter().map(|hit| (hit.passage.clone(), hit.text.clone())).collect()
        };
        self.status == other.status
            && self.query == other.query
            && self.answer == other.answer
            && hits(self) == hits(other)
    }

    /// Whether the record has a field of this name, which one that a turn brings may not be.
    pub fn has(field: &str) -> bool {
        const FIELDS: [&str; 13] = [
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
        ];
        FIELDS.contains(&field)
    }
}
