//! Records: what comes in (turns), what flows between operators (queries, hits, prompts, answers),
//! and what goes out. The JSON forms are the project's contract; unknown fields of a turn
//! are kept and passed through to its answer.

mod answer;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

pub use self::answer::{AnswerRecord, HitRecord, Provenance};
use crate::document::Chunk;
use crate::language::Prompt;

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// The person who asks.
    User,
    /// The system that answers.
    Agent,
}

/// One thing said in a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Utterance {
    /// Who said it.
    pub speaker: Speaker,
    /// What was said.
    pub text: Arc<str>,
}

/// One line of a conversation log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// Which conversation; order is kept within one.
    pub conversation_id: Arc<str>,
    /// From 1; an agent's reply has the number of the question it answers.
    pub turn: u32,
    /// Who speaks.
    pub speaker: Speaker,
    /// What is said; never parsed as a query language.
    pub text: Arc<str>,
    /// Names the corpus for retrievers that are routed `FromTurn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection: Option<Arc<str>>,
    /// Seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<f64>,
    /// Every other field, passed through.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Why a line is no turn.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// Not UTF-8.
    #[error("not UTF-8: invalid byte at offset {0}")]
    Utf8(usize),
    /// Not a JSON object with the fields of a turn.
    #[error("not a turn record: {0}")]
    Json(#[from] serde_json::Error),
    /// A value that no turn has.
    #[error("not a turn record: `{field}` {problem}")]
    Value {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl TurnRecord {
    /// Parses one line.
    pub fn parse(line: &[u8]) -> Result<Self, TurnError> {
        let text = std::str::from_utf8(line).map_err(|error| TurnError::Utf8(error.valid_up_to()))?;
        let record: Self = serde_json::from_str(text.trim())?;
        if record.turn == 0 {
            return Err(TurnError::Value { field: "turn", problem: "counts from 1" });
        }
        if record.conversation_id.is_empty() {
            return Err(TurnError::Value { field: "conversation_id", problem: "is empty" });
        }
        Ok(record)
    }
}

/// A user's turn with all an operator may look at; fixed when the turn enters.
#[derive(Debug, Serialize, Deserialize)]
pub struct Turn {
    /// Which conversation.
    pub conversation_id: Arc<str>,
    /// From 1.
    pub turn: u32,
    /// The user's words.
    pub text: Arc<str>,
    /// What was said before, oldest first.
    pub history: Vec<Utterance>,
    /// Names the corpus for retrievers that are routed `FromTurn`.
    pub collection: Option<Arc<str>>,
    /// Seconds since the Unix epoch, as the record says.
    #[serde(default)]
    pub timestamp: Option<f64>,
    /// Fields of the record that turnflow does not know.
    pub extra: Map<String, Json>,
    /// Where the record stood in its source.
    #[serde(default)]
    pub position: Arc<str>,
    /// The corpus epoch that the turn reads.
    pub epoch: u64,
    /// Microseconds since the engine's start when the turn was read.
    pub entered_us: u64,
    /// Distinguishes turns that share conversation and number; increases in a worker.
    pub sequence: u64,
    /// The node that it came in by.
    pub source: Arc<str>,
    /// What the sinks have of it, by node, if it is being answered again.
    pub standing: Option<Arc<BTreeMap<Arc<str>, AnswerRecord>>>,
    /// The same whenever this record of its source is read.
    pub key: Arc<str>,
}

impl Turn {
    /// The record that it was read of.
    pub fn record(&self) -> TurnRecord {
        TurnRecord {
            conversation_id: self.conversation_id.clone(),
            turn: self.turn,
            speaker: Speaker::User,
            text: self.text.clone(),
            collection: self.collection.clone(),
            timestamp: self.timestamp,
            extra: self.extra.clone(),
        }
    }
}

/// A question put to retrievers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// The words to look for.
    pub text: Arc<str>,
    /// The simpler questions it was taken apart into; where there are any, retrievers look
    /// for each of them.
    pub parts: Vec<Arc<str>>,
}

impl Query {
    /// A question that was not taken apart.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), parts: Vec::new() }
    }

    /// What to look for: the parts, or else the text.
    pub fn searches(&self) -> &[Arc<str>] {
        if self.parts.is_empty() { std::slice::from_ref(&self.text) } else { &self.parts }
    }
}

/// One passage with its score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// The passage.
    pub chunk: Arc<Chunk>,
    /// Higher is better; the scale is the operator's.
    pub score: f32,
}

/// A ranked list, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hits {
    /// What was looked for.
    pub query: Query,
    /// Best first; ties are ordered by passage id.
    pub hits: Vec<Hit>,
}

/// Orders hits by score, descending, and then by passage id, and keeps the first `top`.
pub fn rank(hits: &mut Vec<Hit>, top: usize) {
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.chunk.id.cmp(&b.chunk.id)));
    hits.truncate(top);
}

/// What became of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// There is an answer.
    Answered,
    /// The passages do not answer it, and the answer says so.
    Idk,
    /// An operator failed; the answer is empty and the reason is told.
    Failed,
}

/// An answer with what it stands on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// What was asked of the retrievers.
    pub query: Query,
    /// The answer's text.
    pub text: Arc<str>,
    /// What became of the turn.
    pub status: Status,
    /// The passages it stands on, best first.
    pub hits: Vec<Hit>,
    /// How well the passages support the answer, in \[-1, 1\] (a cosine), where an
    /// operator has measured it.
    pub support: Option<f32>,
    /// What operators found out about the answer, by name (`self_check`, `nli`).
    pub checks: Map<String, Json>,
}

/// A prompt with what it was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptFor {
    /// The question.
    pub query: Query,
    /// The passages that the prompt numbers from 1, best first.
    pub hits: Vec<Hit>,
    /// What a language model is given.
    pub prompt: Prompt,
}

/// Why an operator gave nothing for a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The node.
    pub node: Arc<str>,
    /// What happened.
    pub reason: Arc<str>,
}

/// What a port carries: exactly one value a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// The turn itself.
    Turn,
    /// A query.
    Query(Query),
    /// A ranked list.
    Hits(Arc<Hits>),
    /// A prompt for a language model.
    Prompt(Arc<PromptFor>),
    /// An answer.
    Answer(Arc<Answer>),
    /// Nothing, because an operator failed; goes on to the sinks, which tell of it.
    Failed(Failure),
}

/// The type of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PortType {
    /// Turns of conversations.
    Turns,
    /// Queries.
    Queries,
    /// Ranked lists.
    Hits,
    /// Prompts for language models.
    Prompts,
    /// Answers.
    Answers,
}

impl std::fmt::Display for PortType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

/// A turn's value on its way between operators.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Item {
    /// The turn.
    pub turn: Arc<Turn>,
    /// What the last operator made of it.
    pub value: Value,
    /// What was done without on the way here, `node: what` each, sorted and once.
    pub warnings: Arc<[String]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_kept() {
        let line = br#"{"conversation_id":"c","turn":1,"speaker":"user","text":"hi","tenant":{"a":1}}"#;
        let record = TurnRecord::parse(line).unwrap();
        assert_eq!(record.extra["tenant"]["a"], 1);
        assert_eq!(serde_json::to_vec(&record).unwrap(), line);
    }

    #[test]
    fn what_is_no_turn_says_why() {
        for (line, reason) in [
            (&b"{"[..], "not a turn record: EOF"),
            (b"[1]", "invalid type"),
            (b"{\"conversation_id\":\"c\",\"turn\":1,\"speaker\":\"bot\",\"text\":\"x\"}", "unknown variant `bot`"),
            (b"{\"conversation_id\":\"c\",\"turn\":0,\"speaker\":\"user\",\"text\":\"x\"}", "`turn` counts from 1"),
            (
                b"{\"conversation_id\":\"\",\"turn\":1,\"speaker\":\"user\",\"text\":\"x\"}",
                "`conversation_id` is empty",
            ),
            (b"{\"conversation_id\":\"c\",\"turn\":1,\"speaker\":\"user\"}", "missing field `text`"),
            (b"\xff", "not UTF-8: invalid byte at offset 0"),
        ] {
            let error = TurnRecord::parse(line).unwrap_err().to_string();
            assert!(error.contains(reason), "{error} should contain {reason}");
        }
    }
}
