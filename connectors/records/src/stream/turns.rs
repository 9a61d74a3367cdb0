//! The turns of messages that are due: those of one conversation, or of a part of it.

use std::collections::HashMap;

use super::Stream;
use crate::assemble::{LeftOut, before_hand_over, bursts, merged, sort, taken_back, turn_of, versions};
use crate::chains::branch;
use crate::known::{self, Conversation, Memory, Said, Spoke, Turned};
use crate::message::Message;
use crate::{REMOVED, Turn};

impl Stream {
    /// The turns of messages of a conversation, with the numbers of the messages.
    pub(super) fn turns(
        &self,
        name: &str,
        conversation: &mut Conversation,
        messages: Vec<Message>,
        memory: &mut dyn Memory,
        left_out: &mut LeftOut,
    ) -> Vec<(u64, Turn, bool)> {
        // What is deleted before it comes is no turn then.
        let of_deleted = messages.iter().filter(|message| message.removed).filter_map(|message| message.id.clone());
        let deleted: Vec<String> = of_deleted.collect();
        let mut found = Vec::new();
        let mut messages = versions(self.unknown(messages, memory, left_out, &mut found), left_out);
        for id in deleted {
            known::set(memory, &id, &Said::alone(name, conversation.last));
        }
        sort(&mut messages);
        if self.options.branch {
            let before = messages.len();
            messages = branch(messages);
            let left = (before - messages.len()) as u64;
            if left > 0 {
                *left_out.entry("another branch").or_default() += left;
            }
        }
        let mut part: Vec<Message> = Vec::new();
        for message in messages {
            if !message.starts {
                part.push(message);
                continue;
            }
            self.part(name, conversation, std::mem::take(&mut part), memory, left_out, &mut found);
            // A mark that comes again is the same mark.
            if let Some(id) = &message.id {
                known::set(memory, id, &Said::alone(name, conversation.last));
            }
            if conversation.has_begun {
                (conversation.part, conversation.last, conversation.spoke) = (conversation.part + 1, 0, None);
            }
            conversation.has_begun = true;
        }
        self.part(name, conversation, part, memory, left_out, &mut found);
        found
    }

    /// The messages without those that are known, whose turns were given. If it is wanted, what has changed since is a new
    /// version of a turn.
    fn unknown(
        &self,
        messages: Vec<Message>,
        memory: &mut dyn Memory,
        left_out: &mut LeftOut,
        found: &mut Vec<(u64, Turn, bool)>,
    ) -> Vec<Message> {
        let mut kept = Vec::new();
        for mut message in messages {
            if self.options.revise
                && let Some(turn) = revised(&message, memory, left_out)
            {
                found.push((message.at, turn, true));
                continue;
            }
            let known = message.id.as_ref().and_then(|id| known::get::<Said>(memory, id));
            if let Some(so_far) = known.as_ref().and_then(|said| said.so_far.as_ref()).filter(|_| !message.removed) {
                message.complete(so_far);
                message.time = message.time.or(so_far.time);
                message.to_agent |= so_far.to_agent;
                kept.push(message);
                continue;
            }
            let reason = match (known, message.removed) {
                (None, _) => {
                    kept.push(message);
                    continue;
                }
                (Some(_), true) => "deleted after it was a turn",
                (Some(_), false) => "again after it was a turn",
            };
            *left_out.entry(reason).or_default() += 1;
        }
        kept
    }

    /// The turns of messages between marks.
    fn part(
        &self,
        name: &str,
        conversation: &mut Conversation,
        messages: Vec<Message>,
        memory: &mut dyn Memory,
        left_out: &mut LeftOut,
        found: &mut Vec<(u64, Turn, bool)>,
    ) {
        conversation.has_begun |= !messages.is_empty();
        let id = match conversation.part {
            0 => name.to_owned(),
            part => format!("{name}#{}", part + 1),
        };
        // What is a part of another message has its turn.
        let mut parts: HashMap<u64, Vec<String>> = HashMap::new();
        let mut joined = |part: &Message, whole: &Message| {
            let of_part = parts.remove(&part.at).unwrap_or_default();
            parts.entry(whole.at).or_default().extend(part.id.clone().into_iter().chain(of_part));
        };
        for id in messages.iter().filter(|message| message.rewind).filter_map(|message| message.id.as_ref()) {
            known::set(memory, id, &Said::alone(name, conversation.last));
        }
        let glue = self.options.glue.as_deref().unwrap_or(" ");
        let messages = merged(taken_back(messages, left_out), glue, &mut joined);
        let messages = before_hand_over(messages, &mut conversation.is_handed_over, &self.options, left_out);
        let messages = bursts(messages, self.options.burst_s, &mut joined);
        for message in messages {
            let (at, own, parent) = (message.at, message.id.clone(), message.parent.clone());
            // On another branch, the numbers go on from the parent's.
            let follows = parent.clone();
            let parent = parent.filter(|_| self.options.branch).and_then(|id| known::get::<Said>(memory, &id));
            let mut last = parent.map_or(conversation.last, |said| said.turn);
            let version = message.version.clone();
            let is_part = message.speaker.is_none() || message.text.as_ref().is_none_or(|text| text.trim().is_empty());
            let so_far = is_part.then(|| Box::new(so_far(&message)));
            let fields = message.fields.clone().filter(|_| self.options.revise);
            let mut turn = turn_of(&id, message, &mut last, left_out);
            if let Some(turn) = &mut turn {
                let follows = follows.filter(|_| self.options.branch);
                let is_whole = self.is_whole && conversation.has_agent;
                Spoke::mark(&mut conversation.spoke, turn, own.clone(), follows.as_deref(), is_whole);
            }
            let may_change = turn.as_ref().filter(|_| self.options.revise && own.is_some() && !parts.contains_key(&at));
            let turned = may_change.map(|turn| Turned {
                id: id.clone(),
                is_agent: turn.speaker == "agent",
                said: known::hash(&turn.text),
                version,
                time: turn.timestamp,
                fields,
            });
            found.extend(turn.map(|turn| (at, turn, false)));
            conversation.last = last;
            for part in parts.remove(&at).into_iter().flatten() {
                known::set(memory, &part, &Said::alone(name, last));
            }
            if let Some(own) = own {
                known::set(memory, &own, &Said { turned, so_far, ..Said::alone(name, last) });
            }
        }
    }
}

/// What a later version of a message may leave out. Its id and its conversation are known, and its text was not there.
fn so_far(message: &Message) -> Message {
    Message { id: None, conversation: None, at: 0, text: None, fields: None, ..message.clone() }
}

/// The new version of a turn, if a message that became one has another text now, or what takes it back, if it is deleted.
fn revised(message: &Message, memory: &mut dyn Memory, left_out: &mut LeftOut) -> Option<Turn> {
    let own = message.id.as_ref()?;
    let mut said = known::get::<Said>(memory, own)?;
    if message.removed {
        let taken = taken_back_later(&said, said.turned.as_ref()?, message.time);
        known::set(memory, own, &Said { turned: None, ..said });
        return Some(taken);
    }
    let turned = said.turned.as_mut()?;
    let is_older = message.version.is_some() && message.version < turned.version;
    let Some(text) = &message.text else {
        // The next version has what this one says.
        if !is_older && (message.time.is_some() || message.fields.is_some()) {
            turned.time = message.time.or(turned.time);
            turned.fields = message.fields.clone().or_else(|| turned.fields.take());
            known::set(memory, own, &said);
        }
        return None;
    };
    if is_older || known::hash(text) == turned.said {
        return None;
    }
    let id = turned.id.clone();
    let mut last = said.turn;
    let speaker = if turned.is_agent { "agent" } else { "user" };
    let speaker = message.speaker.clone().or_else(|| Some(speaker.to_owned()));
    let (time, fields) = (message.time.or(turned.time), message.fields.clone().or_else(|| turned.fields.clone()));
    (turned.time, turned.fields) = (time, fields.clone());
    let message = Message { turn: Some(said.turn), speaker, time, fields, ..message.clone() };
    let version = message.version.clone();
    let mut turn = turn_of(&id, message, &mut last, left_out)?;
    turn.turn = said.turn;
    turn.fields.insert(REMOVED.to_owned(), format!("{:x}", turned.said).into());
    (turned.said, turned.version) = (known::hash(text), version);
    known::set(memory, own, &said);
    Some(turn)
}

/// The record that takes back a turn whose message is deleted.
fn taken_back_later(said: &Said, turned: &Turned, timestamp: Option<f64>) -> Turn {
    let mut fields = serde_json::Map::new();
    fields.insert(REMOVED.to_owned(), format!("{:x}", turned.said).into());
    let speaker = if turned.is_agent { "agent" } else { "user" };
    Turn { conversation_id: turned.id.clone(), turn: said.turn, speaker, text: String::new(), timestamp, fields }
}
