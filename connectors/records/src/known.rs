//! What is remembered of messages that became turns: numbers of conversations, ids, histories of calls.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::message::Message;
use crate::{IN_ROW, Turn};

/// Remembers texts by key. The implementor keeps errors of its store, and reports them when it stores.
pub trait Memory {
    /// What is under a key.
    fn get(&mut self, key: &str) -> Option<String>;
    /// Puts a text under a key, or removes it.
    fn set(&mut self, key: &str, value: Option<String>);
}

/// Remembers in memory.
#[derive(Debug, Default)]
pub struct InMemory(HashMap<String, String>);

impl Memory for InMemory {
    fn get(&mut self, key: &str) -> Option<String> {
        self.0.get(key).cloned()
    }

    fn set(&mut self, key: &str, value: Option<String>) {
        match value {
            Some(value) => self.0.insert(key.to_owned(), value),
            None => self.0.remove(key),
        };
    }
}

/// A conversation, so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Conversation {
    /// The number of the last question.
    pub last: u32,
    /// The number of the part, from 0: a mark begins another one.
    pub part: u32,
    /// Whether a mark or a message was there.
    pub has_begun: bool,
    /// Whether the agent spoke or was spoken to.
    pub has_agent: bool,
    /// Whether a person answers.
    #[serde(default)]
    pub is_handed_over: bool,
    /// Who spoke last, and the id of what was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoke: Option<Spoke>,
}

/// What was said last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spoke {
    pub is_agent: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Spoke {
    /// Marks a turn that follows one of the same speaker. `parent` is the id of what it follows, if that is known.
    /// `is_whole`: the log is read as a whole, and its agent speaks in it.
    pub fn mark(before: &mut Option<Self>, turn: &mut Turn, id: Option<String>, parent: Option<&str>, is_whole: bool) {
        let is_agent = turn.speaker == "agent";
        let follows = |before: &Self| parent.is_none_or(|parent| before.id.as_deref() == Some(parent));
        let is_in_row = before.as_ref().is_some_and(|before| before.is_agent == is_agent && follows(before));
        if is_in_row && (is_agent || is_whole) {
            turn.fields.insert(IN_ROW.to_owned(), true.into());
        }
        *before = Some(Self { is_agent, id });
    }
}

/// A message that became a turn, or was left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Said {
    /// Its conversation.
    pub conversation: String,
    /// The number of the question that it is or follows.
    pub turn: u32,
    /// The part of its conversation.
    #[serde(default, skip_serializing_if = "is_first")]
    pub part: u32,
    /// If it may be changed later: the conversation of its turn, a hash of what was said, and its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turned: Option<Turned>,
    /// What it said, but for the text, if it did not say who speaks or what: another version of it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub so_far: Option<Box<Message>>,
    /// Whether it is deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_deleted: bool,
    /// Whether it is on a branch that was left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_left: bool,
    /// If its turn may be taken back later: the id of what was said before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// The turn that a message became.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turned {
    pub id: String,
    /// Whether the agent said it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_agent: bool,
    pub said: u64,
    #[serde(with = "crate::message::value")]
    pub version: Option<jaq_json::Val>,
    /// Its place in the conversation.
    #[serde(default, with = "crate::message::value", skip_serializing_if = "Option::is_none")]
    pub order: Option<jaq_json::Val>,
    /// The rank of what was said.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rank: i64,
    /// The version of what said the further fields.
    #[serde(default, with = "crate::message::value", skip_serializing_if = "Option::is_none")]
    pub fields_version: Option<jaq_json::Val>,
    /// What an edit may leave out: when it was said, and further fields of the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Box<serde_json::Map<String, serde_json::Value>>>,
}

fn is_first(part: &u32) -> bool {
    *part == 0
}

fn is_zero(rank: &i64) -> bool {
    *rank == 0
}

impl Turned {
    /// The turn with this number and another text, without its further fields.
    pub fn turn(&self, number: u32, text: String) -> Turn {
        let speaker = if self.is_agent { "agent" } else { "user" };
        let (conversation_id, timestamp) = (self.id.clone(), self.time);
        Turn { conversation_id, turn: number, speaker, text, timestamp, fields: serde_json::Map::new() }
    }
}

/// A hash of what is said.
pub(crate) fn hash(text: &str) -> u64 {
    let hash = blake3::hash(text.trim().as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// What messages with one key share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Shared {
    pub conversation: Option<String>,
    pub speaker: Option<String>,
    pub time: Option<f64>,
}

impl Shared {
    /// Takes from a message what is not there.
    pub fn take(&mut self, message: &Message) {
        self.conversation = self.conversation.take().or_else(|| message.conversation.clone());
        self.speaker = self.speaker.take().or_else(|| message.speaker.clone());
        self.time = self.time.or(message.time);
    }

    /// Gives a message what it does not have.
    pub fn give(&self, message: &mut Message) {
        message.conversation = message.conversation.take().or_else(|| self.conversation.clone());
        message.speaker = message.speaker.take().or_else(|| self.speaker.clone());
        message.time = message.time.or(self.time);
    }
}

/// The messages of a conversation of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct History {
    /// Hashes of the last messages.
    pub last: Vec<u64>,
    /// Number of all messages.
    pub count: usize,
    /// The hash of all messages.
    pub all: String,
}

/// A call whose messages were said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Called {
    /// Its conversation.
    pub name: String,
    /// Whether it brought the messages that the model was sent, and the answer.
    pub is_asked: bool,
    pub is_answered: bool,
    /// If they came as parts: hashes of their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<u64>,
}

/// The last conversation of a group of calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Grouped(pub String);

/// The conversation of an answer of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answered(pub String);

/// A kind of what is remembered, with its prefix.
pub(crate) trait Kind: Serialize + DeserializeOwned {
    const PREFIX: char;
}

impl Kind for Conversation {
    const PREFIX: char = 'c';
}
impl Said {
    /// What became no turn that another version of the message could change.
    pub fn alone(name: &str, conversation: &Conversation) -> Self {
        let Conversation { last, part, .. } = *conversation;
        Self { conversation: name.to_owned(), turn: last, part, ..Self::default() }
    }
}

impl Kind for Said {
    const PREFIX: char = 'i';
}
impl Kind for Shared {
    const PREFIX: char = 'j';
}
impl Kind for History {
    const PREFIX: char = 'h';
}
impl Kind for Called {
    const PREFIX: char = 'k';
}
impl Kind for Grouped {
    const PREFIX: char = 'g';
}
impl Kind for Answered {
    const PREFIX: char = 'a';
}

/// A conversation that has just said a history. Many may say the same: those that said it before are below it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Continued {
    name: String,
    /// How many are below it.
    below: u32,
}

impl Kind for Continued {
    const PREFIX: char = 'p';
}

/// A conversation that has said a history before another one did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Below(String);

impl Kind for Below {
    const PREFIX: char = 'q';
}

/// A conversation has said a history.
pub(crate) fn push_continued(memory: &mut dyn Memory, history: &str, name: &str) {
    let last = get::<Continued>(memory, history);
    let below = last.map_or(0, |last| {
        set(memory, &format!("{history}#{}", last.below + 1), &Below(last.name));
        last.below + 1
    });
    set(memory, history, &Continued { name: name.to_owned(), below });
}

/// The last conversation that has said a history, which is not known as that any more.
fn pop_continued(memory: &mut dyn Memory, history: &str) -> Option<String> {
    let last = get::<Continued>(memory, history)?;
    let key = format!("{history}#{}", last.below);
    match get::<Below>(memory, &key).filter(|_| last.below > 0) {
        Some(Below(name)) => {
            remove::<Below>(memory, &key);
            set(memory, history, &Continued { name, below: last.below - 1 });
        }
        None => remove::<Continued>(memory, history),
    }
    Some(last.name)
}

/// The last conversation that has said this history and nothing after it. The next one gets another one.
pub(crate) fn take_continued(memory: &mut dyn Memory, history: &str) -> Option<String> {
    loop {
        let name = pop_continued(memory, history)?;
        if get::<History>(memory, &name).is_some_and(|of| of.all == history) {
            return Some(name);
        }
    }
}

/// A conversation that has said a history goes on.
pub(crate) fn forget_continued(memory: &mut dyn Memory, history: &str, name: &str) {
    if get::<Continued>(memory, history).is_some_and(|last| last.name == name) {
        pop_continued(memory, history);
    }
}

/// Maximum number of conversations that are known by one end.
const ENDS: usize = 64;

/// The conversations whose last two messages are these, the last one at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ends(pub Vec<String>);

impl Kind for Ends {
    const PREFIX: char = 'e';
}

/// The key of the last two of these messages, if there are two.
pub(crate) fn end_of(said: &[u64]) -> Option<String> {
    let [.., one, last] = said else { return None };
    Some(format!("{one:016x}{last:016x}"))
}

/// A conversation that ended in one way ends in another one.
pub(crate) fn move_end(memory: &mut dyn Memory, before: Option<&str>, now: Option<&str>, name: &str) {
    if let Some(before) = before
        && let Some(mut ends) = get::<Ends>(memory, before)
    {
        ends.0.retain(|of| of != name);
        match ends.0.is_empty() {
            true => remove::<Ends>(memory, before),
            false => set(memory, before, &ends),
        }
    }
    if let Some(now) = now {
        let mut ends = get::<Ends>(memory, now).unwrap_or_default();
        ends.0.push(name.to_owned());
        ends.0.drain(..ends.0.len().saturating_sub(ENDS));
        set(memory, now, &ends);
    }
}

fn key<T: Kind>(name: &str) -> String {
    format!("{}:{name}", T::PREFIX)
}

pub(crate) fn get<T: Kind>(memory: &mut dyn Memory, name: &str) -> Option<T> {
    serde_json::from_str(&memory.get(&key::<T>(name))?).ok()
}

pub(crate) fn set<T: Kind>(memory: &mut dyn Memory, name: &str, value: &T) {
    memory.set(&key::<T>(name), serde_json::to_string(value).ok());
}

pub(crate) fn remove<T: Kind>(memory: &mut dyn Memory, name: &str) {
    memory.set(&key::<T>(name), None);
}
