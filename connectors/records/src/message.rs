//! What a mapping makes of a record: messages, or calls of a model that repeat what was said before.

mod read;

use jaq_json::Val;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

pub(crate) use self::read::{fields, flag, id, is_blank, number, short, text_of, wrong};

/// How a form is read and assembled: the line `#: {…}` at the top of a mapping, in JSON.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How records are made of a file: `jsonl`, `json` (documents; the elements of a list are records), `csv`, `mbox`,
    /// `vtt`, `xml`, `lines` (with `start`), `sqlite` (with `query`), `sse` or `text` (a file is a record). By default,
    /// the name of the file tells, or its first bytes. There are also `forms` (a line is a form, as webhooks send them) and
    /// `container` (lines of a container runtime, which splits long ones).
    pub decode: Option<String>,
    /// Of folders and archives, only files with such a name are read, as in `message_*.json`.
    pub files: Option<String>,
    /// For `lines`: a regular expression for the beginning of a message, or several, with names for its parts. What
    /// follows up to the next beginning belongs to the message. For `vtt`: how a line of a cue names its speaker.
    #[serde(deserialize_with = "one_or_more")]
    pub start: Vec<String>,
    /// For `lines`: parts that later messages have, too, until they come again, such as the day or the name of a chat. For
    /// `vtt`: `voice`, which cues without a name take from the one before.
    pub carry: Vec<String>,
    /// For `lines`: the parts `date` and `clock` are a date in numbers and a time of day, as people write them; `time` is
    /// both, as in `2026-03-07T21:22:39`. The name of a zone, such as `Europe/Berlin`, says in which one times without a
    /// zone are; else, it is UTC.
    pub dates: Dates,
    /// For `csv`: the names of the columns, if the first line does not have them.
    pub columns: Vec<String>,
    /// For `csv`: number of lines before the table.
    pub skip: u64,
    /// For `csv`: what is between the fields. By default, what the first line has most of `,`, `;`, tab and `|`.
    pub separator: Option<String>,
    /// For `csv`: what is before a quote within quotes, if that is not another quote.
    pub escape: Option<String>,
    /// The environment variables that the program sees, as in `$ENV.NAME`.
    pub env: Vec<String>,
    /// For `sqlite`: the query whose rows are records.
    pub query: Option<String>,
    /// For `sqlite`: the column of the query with whole numbers that increase, by which a source reads what is new.
    pub cursor: Option<String>,
    /// Of messages with parents: only the branch with the latest message counts.
    pub branch: bool,
    /// Leave out conversations in which no agent speaks or is spoken to.
    pub with_agent: bool,
    /// Text between messages that are joined.
    pub glue: Option<String>,
    /// While the log is followed: how long a message waits for others that belong before it, or change it, in seconds.
    pub settle_s: f64,
    /// Questions in a row of which each came at most so long after the one before are one question, in seconds.
    pub burst_s: f64,
    /// A message that was changed after it became a turn is a new version of that turn.
    pub revise: bool,
    /// After a hand-over to a person, what users say is no turn.
    pub until_hand_over: bool,
    /// A message without an id that has conversation, speaker, text and time of an earlier one is that one again.
    pub once_by_content: bool,
}

/// Whether parts of lines are dates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WrittenDates")]
pub enum Dates {
    /// They are not.
    #[default]
    No,
    /// They are.
    Yes,
    /// They are, in the zone of this name if no other is written.
    In(String),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`dates` is true, false or the name of a zone, such as \"Europe/Berlin\"")]
enum WrittenDates {
    Is(bool),
    In(String),
}

impl From<WrittenDates> for Dates {
    fn from(written: WrittenDates) -> Self {
        match written {
            WrittenDates::Is(false) => Self::No,
            WrittenDates::Is(true) => Self::Yes,
            WrittenDates::In(zone) => Self::In(zone),
        }
    }
}

impl Dates {
    /// The name of the zone.
    pub(crate) fn zone(&self) -> Option<&str> {
        match self {
            Self::In(zone) => Some(zone),
            Self::No | Self::Yes => None,
        }
    }
}

impl Options {
    /// The form of the files that the mapping reads, if it says so.
    #[must_use]
    pub fn form(&self) -> Option<&str> {
        match &self.decode {
            Some(form) => Some(form),
            None if !self.start.is_empty() => Some("lines"),
            None => self.query.as_ref().map(|_| "sqlite"),
        }
    }
}

/// What a mapping gives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Item {
    /// A message, or something about messages.
    Message(Box<Message>),
    /// A call of a model.
    Call(Box<Call>),
}

/// A message. All fields may be missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Message {
    /// Identifies it: a message that comes again with its id is a newer version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The message that it follows or answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The conversation; by default that of its parents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Who speaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
    /// What is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// When, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    /// Its place in the conversation; by default that of its record.
    #[serde(with = "value", skip_serializing_if = "Option::is_none")]
    pub order: Option<Val>,
    /// The number of its turn, if the form has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Of messages with one id, those of the lowest rank count.
    pub rank: i64,
    /// Of messages with one id and rank, the highest version counts; by default, the last one that came.
    #[serde(with = "value", skip_serializing_if = "Option::is_none")]
    pub version: Option<Val>,
    /// Messages with one key share conversation, speaker, time and order. With several keys, it takes what it does not
    /// have itself from those of each key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub join: Vec<String>,
    /// Its conversation ends with it, as far as its record knows. Of branches, that of the last such message counts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
    /// It is deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// It takes back the last question before it, and what followed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rewind: bool,
    /// From here on, it is another conversation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub starts: bool,
    /// Neighbours with one key are one message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<String>,
    /// It is said to the agent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub to_agent: bool,
    /// It is of a list of messages that was cut off.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// From here on, a person answers, or no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hand_over: Option<bool>,
    /// Further fields of the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Box<Map<String, Json>>>,
    /// Counts what has come.
    pub at: u64,
    /// The same of its last version, if it has come again.
    #[serde(skip_serializing_if = "is_zero")]
    pub again: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A call of a model: the messages that it was sent, and its answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Call {
    /// A call that comes again with its id is the same.
    pub id: Option<String>,
    /// The conversation, if the caller names one.
    pub conversation: Option<String>,
    /// The id of the answer that it goes on with, if no conversation is named.
    pub parent: Option<String>,
    /// Whether the conversation is found by its messages if it is not known.
    pub guess: bool,
    /// With `guess`: calls of one group, such as a trace, are one conversation, if each goes on with what was said before.
    pub group: Option<String>,
    /// Its place among the calls.
    #[serde(with = "value", skip_serializing_if = "Option::is_none")]
    pub order: Option<Val>,
    /// When it began: the time of its question.
    pub time: Option<f64>,
    /// What was said before, and the question. If records have parts of it, each message has an id, and an order.
    pub messages: Vec<Message>,
    /// The answer.
    pub answer: Option<Message>,
    /// Counts what has come.
    pub at: u64,
}

/// A value as JSON in a text: it keeps all digits of a number.
pub(crate) mod value {
    use jaq_json::Val;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use crate::decode::{Odd, json};

    pub fn serialize<S: Serializer>(value: &Option<Val>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Val>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        Ok(text.and_then(|text| json(text.as_bytes(), &mut Odd::default()).ok()))
    }
}

impl Message {
    /// What it does not say is as another version of it says.
    pub(crate) fn complete(&mut self, other: &Self) {
        let take = |one: &mut Option<String>, other: &Option<String>| {
            if one.is_none() {
                one.clone_from(other);
            }
        };
        take(&mut self.parent, &other.parent);
        take(&mut self.speaker, &other.speaker);
        take(&mut self.text, &other.text);
        take(&mut self.merge, &other.merge);
        self.hand_over = self.hand_over.or(other.hand_over);
        self.turn = self.turn.or(other.turn);
        if self.fields.is_none() {
            self.fields.clone_from(&other.fields);
        }
        if self.join.is_empty() {
            self.join.clone_from(&other.join);
        }
    }

    /// Gives a message without an id one that is made of what it says, when and where.
    pub(crate) fn identify(&mut self) {
        let (None, Some(conversation), Some(text)) = (&self.id, &self.conversation, &self.text) else { return };
        let content = (conversation, text.trim(), &self.speaker, self.time.map(f64::to_bits), &self.join);
        let content = serde_json::to_vec(&content).unwrap_or_default();
        self.id = Some(format!("content {}", &blake3::hash(&content).to_hex()[..32]));
    }
}

/// A text, or a list of texts.
fn one_or_more<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "`start` is a regular expression or a list of them")]
    enum Written {
        One(String),
        More(Vec<String>),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::One(one) => vec![one],
        Written::More(more) => more,
    })
}
