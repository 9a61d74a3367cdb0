//! Calls of a model, which repeat what was said before: the messages that are new.

use std::collections::BTreeMap;

use crate::message::{Call, Message};

/// What is known of a conversation.
#[derive(Default)]
struct Known {
    /// Speaker and text of its messages.
    said: Vec<(String, String)>,
}

/// The messages of calls, in the order of their conversations.
pub(crate) fn messages(calls: Vec<Call>) -> Vec<Message> {
    let mut calls = joined(calls);
    calls.sort_by(|a, b| a.order.cmp(&b.order));
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    let mut all = Vec::new();
    for (number, call) in calls.into_iter().enumerate() {
        let Call { conversation, guess, time, messages, answer, .. } = call;
        let messages: Vec<Message> = messages.into_iter().filter(is_turn).collect();
        let said: Vec<(String, String)> = messages.iter().map(key).collect();
        let name = conversation.unwrap_or_else(|| format!("call {}", number + 1));
        let name = match guess && !known.contains_key(&name) {
            true => continued(&known, &said).unwrap_or(name),
            false => name,
        };
        let of = known.entry(name.clone()).or_default();
        let overlap =
            (0..=of.said.len().min(said.len())).rev().find(|count| of.said[of.said.len() - count..] == said[..*count]);
        let overlap = overlap.unwrap_or(0);
        let mut add = |message: Message, at: Option<f64>, of: &mut Known| {
            of.said.push(key(&message));
            let time = message.time.or(at);
            all.push(Message { conversation: Some(name.clone()), time, ..message });
        };
        for message in messages.into_iter().skip(overlap) {
            add(message, time, of);
        }
        if let Some(answer) = answer.filter(is_turn) {
            add(answer, None, of);
        }
    }
    all
}

/// The same calls; what has one id is one call, whose parts come from several records.
fn joined(calls: Vec<Call>) -> Vec<Call> {
    let mut by_id: BTreeMap<String, usize> = BTreeMap::new();
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

fn key(message: &Message) -> (String, String) {
    let text = message.text.as_deref().unwrap_or_default().trim().to_owned();
    (message.speaker.clone().unwrap_or_default(), text)
}

/// The conversation that these messages begin with and go on: of several, the one with most messages.
fn continued(known: &BTreeMap<String, Known>, said: &[(String, String)]) -> Option<String> {
    let begins = known.iter().filter(|(_, of)| {
        // A question alone may be anybody's.
        of.said.len() > 1 && of.said.len() < said.len() && said.starts_with(&of.said)
            || !of.said.is_empty() && of.said.len() == said.len() && said == of.said && said.len() > 1
    });
    begins.max_by_key(|(_, of)| of.said.len()).map(|(name, _)| name.clone())
}
