//! Calls of a model, which repeat what was said before: the messages that are new.

use std::collections::HashMap;

use crate::known::{self, Continued, History, Memory};
use crate::message::{Call, Message};

/// Number of messages of a conversation whose end is compared with the beginning of a call.
const COMPARED: usize = 512;

/// The messages of calls, in the order of the calls. What is known of conversations is in `memory`; `number` counts calls.
pub(crate) fn messages(calls: Vec<Call>, memory: &mut dyn Memory) -> Vec<Message> {
    let mut calls = joined(calls);
    calls.sort_by(|a, b| a.order.cmp(&b.order));
    let mut all = Vec::new();
    for call in calls {
        add(call, memory, &mut all);
    }
    all
}

fn add(call: Call, memory: &mut dyn Memory, all: &mut Vec<Message>) {
    let Call { at, id, conversation, guess, time, messages, answer, .. } = call;
    let messages: Vec<Message> = messages.into_iter().filter(is_turn).collect();
    let said: Vec<[u8; 32]> = messages.iter().map(hash).collect();
    // The hash of each beginning.
    let mut beginnings = vec![String::new()];
    for one in &said {
        let next = going_on(&beginnings[beginnings.len() - 1], one);
        beginnings.push(next);
    }
    let name = conversation.unwrap_or_else(|| id.map_or_else(|| format!("call {at}"), |id| format!("call {id}")));
    let mut history = known::get::<History>(memory, &name);
    let name = match guess && history.is_none() {
        true => {
            // Of several, the one that has said most. A question alone may be anybody's.
            let mut longest = (2..beginnings.len()).rev();
            let continued = longest.find_map(|count| known::get::<Continued>(memory, &beginnings[count]));
            continued.map_or(name, |Continued(name)| {
                history = known::get::<History>(memory, &name);
                name
            })
        }
        false => name,
    };
    let mut history = history.unwrap_or_default();
    let before = history.all.clone();
    let is_repeated = history.count <= said.len() && beginnings[history.count] == history.all;
    let short: Vec<u64> = said.iter().map(short).collect();
    let overlap = match is_repeated {
        true => history.count,
        false => {
            let most = history.last.len().min(short.len());
            let ends = |count: &usize| history.last[history.last.len() - count..] == short[..*count];
            (0..=most).rev().find(ends).unwrap_or(0)
        }
    };
    let mut say = |message: Message, at_time: Option<f64>| {
        let one = hash(&message);
        history.all = going_on(&history.all, &one);
        history.last.push(self::short(&one));
        history.count += 1;
        let time = message.time.or(at_time);
        all.push(Message { conversation: Some(name.clone()), time, at, to_agent: true, ..message });
    };
    for message in messages.into_iter().skip(overlap) {
        say(message, time);
    }
    if let Some(answer) = answer.filter(is_turn) {
        say(answer, None);
    }
    if history.last.len() > 2 * COMPARED {
        history.last.drain(..history.last.len() - COMPARED);
    }
    if known::get::<Continued>(memory, &before).is_some_and(|Continued(of)| of == name) {
        known::remove::<Continued>(memory, &before);
    }
    if history.count > 1 {
        known::set(memory, &history.all, &Continued(name.clone()));
    }
    known::set(memory, &name, &history);
}

/// The same calls; what has one id is one call, whose parts come from several records.
pub(crate) fn joined(calls: Vec<Call>) -> Vec<Call> {
    let mut by_id: HashMap<String, usize> = HashMap::new();
    let mut all: Vec<Call> = Vec::new();
    for call in calls {
        let place = call.id.clone().and_then(|id| match by_id.get(&id) {
            Some(at) => Some(*at),
            None => {
                by_id.insert(id, all.len());
                None
            }
        });
        let Some(at) = place else {
            all.push(call);
            continue;
        };
        let first = &mut all[at];
        first.conversation = first.conversation.take().or(call.conversation);
        first.order = first.order.take().or(call.order);
        first.time = first.time.or(call.time);
        first.answer = first.answer.take().or(call.answer);
        first.guess |= call.guess;
        if first.messages.is_empty() {
            first.messages = call.messages;
        }
    }
    all
}

fn is_turn(message: &Message) -> bool {
    let speaks = matches!(message.speaker.as_deref(), Some("user" | "agent"));
    speaks && message.text.as_ref().is_some_and(|text| !text.trim().is_empty())
}

/// The hash of what is said, and by whom.
fn hash(message: &Message) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(message.speaker.as_deref().unwrap_or_default().as_bytes());
    hasher.update(&[0]);
    hasher.update(message.text.as_deref().unwrap_or_default().trim().as_bytes());
    *hasher.finalize().as_bytes()
}

fn short(hash: &[u8; 32]) -> u64 {
    hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The hash of a history that goes on with a message.
fn going_on(before: &str, message: &[u8; 32]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before.as_bytes());
    hasher.update(message);
    hasher.finalize().to_hex()[..32].to_owned()
}
