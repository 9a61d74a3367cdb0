//! Records: the input (turns), the values between operators (queries, hits, prompts, answers), and
//! the output. The JSON forms are the public contract. Unknown fields of a turn are kept and passed
//! through to its answer.

mod answer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

pub use self::answer::{AnswerRecord, Asked, Found, HitRecord, KnownCorpus, Provenance, text_mark};
use crate::document::{Chunk, Readers};
use crate::filter::Filter;
use crate::inference::tokens::TurnTokens;
use crate::language::Prompt;
use crate::odd_json;
use crate::wording::JsonError;

/// The speaker of an utterance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// The person who asks.
    User,
    /// The system that answers.
    Agent,
}

/// The field of a turn that has the reply of the log's own agent.
pub const REPLY: &str = "reply";

/// The field of a record that takes back what an earlier one has said: `true`, or the [hash](text_hash) of its text, in
/// hexadecimal digits, if its turn may have several.
pub const REMOVED: &str = "removed";

/// The field of a record that follows one of the same speaker, with nothing in between. What an agent says is in addition to
/// what it has said in its turn then, and no other version of it; before a question, our own answer is left out.
pub const IN_ROW: &str = "in_row";

/// The hash of what is said, by which [`REMOVED`] names it.
pub fn text_hash(text: &str) -> u64 {
    let hash = blake3::hash(text.trim().as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// An utterance in a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Utterance {
    /// The speaker.
    pub speaker: Speaker,
    /// The text.
    pub text: Arc<str>,
}

/// One line of a conversation log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// The id of the conversation. Turns keep their order within a conversation.
    pub conversation_id: Arc<str>,
    /// The number of the turn, from 1. An agent's reply has the number of its question.
    #[serde(deserialize_with = "whole")]
    pub turn: u32,
    /// The speaker.
    pub speaker: Speaker,
    /// The text; never parsed as a query language.
    pub text: Arc<str>,
    /// The corpus for retrievers with `corpus: FromTurn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection: Option<Arc<str>>,
    /// Seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<f64>,
    /// All other fields, passed through.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Why a line is not a turn.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// Not UTF-8.
    #[error("not UTF-8: invalid byte at offset {0}")]
    Utf8(usize),
    /// Not a JSON object with the fields of a turn.
    #[error("not a turn record: {0}")]
    Json(#[from] JsonError),
    /// A field has an invalid value.
    #[error("not a turn record: `{field}` {problem}")]
    Value {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl TurnRecord {
    /// Parses one line. Fields that turnflow does not know are kept.
    ///
    /// ```
    /// use turnflow_engine::record::{Speaker, TurnRecord};
    ///
    /// let line = br#"{"conversation_id": "c", "turn": 1, "speaker": "user", "text": "When?", "channel": "web"}"#;
    /// let record = TurnRecord::parse(line).unwrap();
    /// assert_eq!((record.turn, record.speaker), (1, Speaker::User));
    /// assert_eq!(record.extra["channel"], "web");
    /// assert!(TurnRecord::parse(b"{}").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// The line is not UTF-8 or not a valid turn record.
    pub fn parse(line: &[u8]) -> Result<Self, TurnError> {
        Self::read(line).map(|(record, _)| record)
    }

    /// The same. Also returns the names of the fields with values that were replaced, because JSON cannot hold them (see
    /// [`odd_json`]).
    ///
    /// # Errors
    ///
    /// As for [`TurnRecord::parse`].
    pub fn read(line: &[u8]) -> Result<(Self, Vec<String>), TurnError> {
        let text = std::str::from_utf8(line).map_err(|error| TurnError::Utf8(error.valid_up_to()))?;
        let (record, changed): (Self, _) = odd_json::read(text.trim()).map_err(JsonError::from)?;
        if record.turn == 0 {
            return Err(TurnError::Value { field: "turn", problem: "counts from 1" });
        }
        if record.conversation_id.is_empty() {
            return Err(TurnError::Value { field: "conversation_id", problem: "is empty" });
        }
        Ok((record, changed))
    }
}

/// A whole number, also one that is written as `1.0`, as languages with one kind of number do.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Whole;

    impl Visitor<'_> for Whole {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from 0 to {}", u32::MAX)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<u32, E> {
            number.try_into().map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<u32, E> {
            number.try_into().map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<u32, E> {
            // A cast stays within the bounds, so it is compared.
            let whole = number as u32;
            match f64::from(whole) == number {
                true => Ok(whole),
                false => Err(E::invalid_value(Unexpected::Float(number), &self)),
            }
        }
    }

    deserializer.deserialize_any(Whole)
}

/// The groups that `principal.groups` of a record's fields names, sorted.
pub(crate) fn groups(fields: &Map<String, Json>) -> Vec<Arc<str>> {
    let mut groups: Vec<Arc<str>> = match fields.get("principal").and_then(|principal| principal.get("groups")) {
        Some(Json::String(group)) => vec![group.as_str().into()],
        Some(Json::Array(groups)) => groups.iter().filter_map(Json::as_str).map(Into::into).collect(),
        _ => Vec::new(),
    };
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// A user's turn with everything that operators can read. It does not change after the turn starts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Turn {
    /// The id of the conversation.
    pub conversation_id: Arc<str>,
    /// The number of the turn, from 1.
    pub turn: u32,
    /// The user's text.
    pub text: Arc<str>,
    /// The earlier utterances, oldest first.
    pub history: Vec<Utterance>,
    /// The corpus for retrievers with `corpus: FromTurn`.
    pub collection: Option<Arc<str>>,
    /// The record's timestamp, in seconds since the Unix epoch.
    #[serde(default)]
    pub timestamp: Option<f64>,
    /// Fields of the record that turnflow does not know.
    pub extra: Map<String, Json>,
    /// The position of the record in its source.
    #[serde(default)]
    pub position: Arc<str>,
    /// The corpus epoch that the turn reads.
    pub epoch: u64,
    /// Time at which the turn was read, in microseconds since the engine's start.
    pub entered_us: u64,
    /// Distinguishes turns with the same conversation and number; increases within a worker.
    pub sequence: u64,
    /// The source node that read it.
    pub source: Arc<str>,
    /// If the turn is answered again: the answers that the sinks have, by node.
    pub standing: Option<Arc<BTreeMap<Arc<str>, AnswerRecord>>>,
    /// A key that is the same each time the source record is read.
    pub key: Arc<str>,
    /// A condition of the caller: the turn finds only passages that meet it, in addition to each operator's own filter.
    #[serde(skip)]
    pub filter: Option<Arc<Filter>>,
    /// The epoch at which its answer was computed, if that was in the answer cache.
    #[serde(skip)]
    pub computed_at: Option<u64>,
    /// The question whose answer it is, if that was in the answer cache and this one is nearly the same.
    #[serde(skip)]
    pub similar_to: Option<Arc<str>>,
    /// The tokens that language models have read and written for it.
    #[serde(skip)]
    pub tokens: TurnTokens,
}

impl Turn {
    /// What the user asked.
    pub fn asked(&self) -> Asked {
        Asked { text: self.text.clone(), collection: self.collection.clone() }
    }

    /// The groups of the person who asks: `principal.groups` of the record, a text or a list of texts.
    pub fn groups(&self) -> Vec<Arc<str>> {
        groups(&self.extra)
    }

    /// Which of these passages the turn may find: those that its principal may read and that meet the caller's condition.
    pub fn may_find<'a>(&self, chunks: impl IntoIterator<Item = &'a Chunk>) -> Vec<bool> {
        let mut groups = None;
        let mut is_readable = |chunk: &Chunk| {
            chunk.readers == Readers::All || chunk.readers.include(groups.get_or_insert_with(|| self.groups()))
        };
        let meets = |chunk: &Chunk| self.filter.as_ref().is_none_or(|filter| filter.holds(&chunk.metadata, self));
        chunks.into_iter().map(|chunk| is_readable(chunk) && meets(chunk)).collect()
    }

    /// The record that the turn was read from.
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

/// A query for retrievers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// The text to search for.
    pub text: Arc<str>,
    /// The question as a person would say it, if `text` has other words, such as those that only help the search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Arc<str>>,
    /// Its sub-questions, if it was decomposed. Retrievers then search for each of them instead of
    /// `text`.
    pub parts: Vec<Arc<str>>,
    /// Whether the user's question can be understood without the conversation, as the model that
    /// rewrote it says (MTRAG, appendix C.1); `None` if no model said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standalone: Option<bool>,
}

impl Query {
    /// A query that is not decomposed.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A query for the search, and the question as a person would say it.
    pub fn asked(search: impl Into<Arc<str>>, question: impl Into<Arc<str>>) -> Self {
        let (text, question) = (search.into(), question.into());
        let asked = (text != question).then_some(question);
        Self { text, asked, ..Self::default() }
    }

    /// What a model is asked and a user is shown.
    pub fn question(&self) -> &Arc<str> {
        self.asked.as_ref().unwrap_or(&self.text)
    }

    /// The texts to search for: the parts, or the text if there are none.
    pub fn searches(&self) -> &[Arc<str>] {
        if self.parts.is_empty() { std::slice::from_ref(&self.text) } else { &self.parts }
    }
}

/// A passage with its score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// The passage.
    pub chunk: Arc<Chunk>,
    /// The score; higher is better. The scale depends on the operator.
    pub score: f32,
}

/// A ranked list, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hits {
    /// The query.
    pub query: Query,
    /// The hits, best first; ties are ordered by passage id.
    pub hits: Vec<Hit>,
}

/// Sorts hits by descending score, then by passage id, and keeps the first `top`. Passages of several corpora with one id go by
/// their contents.
pub fn rank(hits: &mut Vec<Hit>, top: usize) {
    let by_text = |a: &Hit, b: &Hit| a.chunk.id.cmp(&b.chunk.id).then_with(|| a.chunk.hash.cmp(&b.chunk.hash));
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| by_text(a, b)));
    hits.truncate(top);
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The question is answered.
    Answered,
    /// The passages do not contain an answer, and the text says so.
    Idk,
    /// An operator failed. The answer is empty and the record has the error.
    Failed,
}

/// An answer with the passages that it is based on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The query passed to the retrievers.
    pub query: Query,
    /// The text of the answer.
    pub text: Arc<str>,
    /// The outcome of the turn.
    pub status: Status,
    /// The passages that it is based on, best first.
    pub hits: Vec<Hit>,
    /// How well the passages support the answer: a cosine in \[-1, 1\], if an operator has
    /// measured it.
    pub support: Option<f32>,
    /// Results of operators that check the answer, by name (`self_check`, `nli`).
    pub checks: Map<String, Json>,
}

/// A prompt with the query and passages that it contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptFor {
    /// The question.
    pub query: Query,
    /// The passages that the prompt numbers from 1, best first.
    pub hits: Vec<Hit>,
    /// The input of the language model.
    pub prompt: Prompt,
}

/// The failure of an operator on a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The node.
    pub node: Arc<str>,
    /// The error.
    pub reason: Arc<str>,
    /// Whether its language model cannot give the form that the caller asks for: the caller's error, and not the node's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_form: bool,
}

impl Failure {
    /// A node's own error.
    pub fn new(node: impl Into<Arc<str>>, reason: impl Into<Arc<str>>) -> Self {
        Self { node: node.into(), reason: reason.into(), of_form: false }
    }
}

/// The value on a port: exactly one per turn.
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
    /// An operator failed. The failure is passed on to the sinks, which report it.
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

/// A turn with its current value, passed between operators.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Item {
    /// The turn.
    pub turn: Arc<Turn>,
    /// The output of the last operator.
    pub value: Value,
    /// The warnings so far, of the form `node: text`, sorted and without duplicates.
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

    /// Why it exists: one odd value in a field that nobody reads cost the whole turn.
    #[test]
    fn an_odd_value_costs_its_field_and_not_the_turn() {
        let line = |further: &str| format!(r#"{{"conversation_id":"c","speaker":"user",{further}}}"#);
        for (further, turn, text, changed) in [
            (r#""turn":1.0,"text":"hi""#, 1, "hi", None),
            (r#""turn":2e0,"text":"hi""#, 2, "hi", None),
            (r#""turn":1,"text":"hi","name":"Ann \ud83d""#, 1, "hi", Some("name")),
            (r#""turn":1,"text":"hi \ud83d""#, 1, "hi \u{fffd}", Some("text")),
            (r#""turn":1,"text":"hi","cost":1e999"#, 1, "hi", Some("cost")),
            (r#""turn":1,"text":"hi","timestamp":NaN"#, 1, "hi", Some("timestamp")),
        ] {
            let (record, told) = TurnRecord::read(line(further).as_bytes()).unwrap();
            assert_eq!((record.turn, &*record.text), (turn, text));
            assert_eq!(told, changed.map(str::to_owned).into_iter().collect::<Vec<_>>());
        }
        for turn in ["1.5", "-1", "-1.0", "4294967296", "4294967296.0", "1e400", "NaN", "null", "\"1\""] {
            let line = line(&format!("\"turn\":{turn},\"text\":\"hi\""));
            let error = TurnRecord::parse(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("expected a whole number from 0 to 4294967295"), "{error}");
        }
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
