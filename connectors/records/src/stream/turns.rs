//! The turns of messages that are due: those of one conversation, or of a part of it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use jaq_json::Val;

use super::Stream;
use crate::assemble::{
    LeftOut, before_hand_over, bursts, further, has_text, merged, sort, taken_back, turn_of, versions,
};
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
        let mut found = Vec::new();
        let deleted = self.deleted(&messages, memory, left_out, &mut found);
        let mut messages = versions(messages, left_out);
        sort(&mut messages);
        let mut left = Vec::new();
        if self.options.branch {
            // What is known tells the branches of what is new.
            let (of_branch, others) = branch(messages);
            let (taken_up, still_left) = taken_up(of_branch, memory);
            (messages, left) = (taken_up, others);
            left.extend(still_left);
            if !left.is_empty() {
                *left_out.entry("another branch").or_default() += left.len() as u64;
            }
        }
        let mut part: Vec<Message> = Vec::new();
        for mut message in self.unknown(messages, memory, left_out, &mut found) {
            if !message.starts {
                part.push(message);
                continue;
            }
            self.part(name, conversation, std::mem::take(&mut part), memory, left_out, &mut found);
            // A mark that comes again is the same mark.
            if let Some(id) = &message.id {
                known::set(memory, id, &Said::alone(name, conversation));
            }
            if conversation.has_begun {
                (conversation.part, conversation.last, conversation.spoke) = (conversation.part + 1, 0, None);
            }
            (conversation.has_begun, conversation.is_handed_over) = (true, false);
            // It may be the first message, too.
            message.starts = false;
            part.extend(Some(message).filter(has_text));
        }
        self.part(name, conversation, part, memory, left_out, &mut found);
        leave(name, conversation, &left, memory);
        // What is deleted before it comes is no turn then.
        for id in deleted {
            known::set(memory, &id, &Said { is_deleted: true, ..Said::alone(name, conversation) });
        }
        found
    }

    /// The ids of messages that are deleted and were not known. If it is wanted, the turns of those that are known are taken
    /// back.
    fn deleted(
        &self,
        messages: &[Message],
        memory: &mut dyn Memory,
        left_out: &mut LeftOut,
        found: &mut Vec<(u64, Turn, bool)>,
    ) -> BTreeSet<String> {
        let (mut deleted, mut unknown) = (HashSet::new(), BTreeSet::new());
        for message in messages.iter().filter(|message| message.removed) {
            let Some(id) = message.id.as_deref().filter(|id| deleted.insert(*id)) else { continue };
            let Some(mut said) = known::get::<Said>(memory, id) else {
                unknown.insert(id.to_owned());
                continue;
            };
            match said.turned.take().filter(|_| self.options.revise) {
                // It comes again.
                _ if said.is_deleted => {}
                Some(turned) => found.push((message.at, taken_back_later(&said, &turned, message.time), true)),
                None if said.so_far.is_some() || said.is_left => *left_out.entry("deleted").or_default() += 1,
                None => *left_out.entry("deleted after it was a turn").or_default() += 1,
            }
            known::set(memory, id, &Said { so_far: None, is_deleted: true, ..said });
        }
        unknown
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
            let known = message.id.as_ref().and_then(|id| known::get::<Said>(memory, id));
            let Some(said) = known.filter(|said| !said.is_left) else {
                kept.push(message);
                continue;
            };
            if let Some(so_far) = &said.so_far {
                message.complete(so_far);
                message.time = message.time.or(so_far.time);
                message.to_agent |= so_far.to_agent;
                if says_too_little(&message) {
                    // It is not between others a second time.
                    *left_out.entry("again after it was left out").or_default() += 1;
                    let said = Said { so_far: Some(Box::new(self::so_far(&message))), ..said };
                    known::set(memory, message.id.as_deref().unwrap_or_default(), &said);
                } else {
                    kept.push(message);
                }
                continue;
            }
            let is_deleted = said.is_deleted;
            match if self.options.revise { revised(&message, said, memory) } else { None } {
                Some(turn) => found.push((message.at, turn, true)),
                None if is_deleted => *left_out.entry("deleted").or_default() += 1,
                None => *left_out.entry("again after it was a turn").or_default() += 1,
            }
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
        let mut left: BTreeSet<String> = messages.iter().filter_map(|message| message.id.clone()).collect();
        let glue = self.options.glue.as_deref().unwrap_or(" ");
        let earlier = |mark: &Message| self.options.revise && take_back(conversation, mark, memory, found);
        let messages = merged(taken_back(messages, left_out, earlier), glue, &mut joined);
        let messages = before_hand_over(messages, &mut conversation.is_handed_over, &self.options, left_out);
        let messages = bursts(messages, self.options.burst_s, &mut joined);
        // Those that follow nothing of an earlier time.
        let mut new: HashSet<String> = HashSet::new();
        for message in messages {
            let (at, own) = (message.at, message.id.clone());
            // On another branch, the numbers go on from the parent's.
            let follows = message.parent.clone().filter(|_| self.options.branch);
            let parent = follows.as_ref().filter(|id| !new.contains(*id));
            let parent = parent.and_then(|id| known::get::<Said>(memory, id));
            let parent = parent.filter(|said| said.conversation == name && said.part == conversation.part);
            if self.options.branch && parent.is_none() {
                new.extend(own.iter().chain(parts.get(&at).into_iter().flatten()).cloned());
            }
            let mut last = parent.map_or(conversation.last, |said| said.turn);
            let (version, rank) = (message.version.clone(), message.rank);
            let order = message.order.clone().filter(|_| self.options.revise);
            let so_far = says_too_little(&message).then(|| Box::new(so_far(&message)));
            let fields = message.fields.clone().filter(|_| self.options.revise);
            let mut turn = turn_of(&id, message, &mut last, left_out);
            let before = conversation.spoke.as_ref().filter(|_| self.options.revise).and_then(|spoke| spoke.id.clone());
            if let Some(turn) = &mut turn {
                let is_whole = self.is_whole && conversation.has_agent;
                Spoke::mark(&mut conversation.spoke, turn, own.clone(), follows.as_deref(), is_whole);
            }
            let may_change = turn.as_ref().filter(|_| self.options.revise && own.is_some() && !parts.contains_key(&at));
            let turned = may_change.map(|turn| Turned {
                id: id.clone(),
                is_agent: turn.speaker == "agent",
                said: known::hash(&turn.text),
                order: order.clone(),
                rank,
                fields_version: version.clone().filter(|_| fields.is_some()),
                version,
                time: turn.timestamp,
                fields,
            });
            found.extend(turn.map(|turn| (at, turn, false)));
            conversation.last = last;
            for part in parts.remove(&at).into_iter().flatten() {
                known::set(memory, &part, &Said::alone(name, conversation));
                left.remove(&part);
            }
            if let Some(own) = own {
                left.remove(&own);
                known::set(memory, &own, &Said { turned, so_far, before, ..Said::alone(name, conversation) });
            }
        }
        // What is left out is known, too, so that it is left out when it comes again.
        for id in left {
            known::set(memory, &id, &Said::alone(name, conversation));
        }
    }
}

/// Messages of a branch, and those of them that are of one that was left: as long as nothing new follows them, and no record
/// ends with them.
fn taken_up(messages: Vec<Message>, memory: &mut dyn Memory) -> (Vec<Message>, Vec<Message>) {
    let mut followed: HashSet<String> = HashSet::new();
    let (mut kept, mut left) = (Vec::new(), Vec::new());
    for message in messages.into_iter().rev() {
        let said = message.id.as_ref().and_then(|id| known::get::<Said>(memory, id));
        let is_new = said.is_none();
        let was_left = said.is_some_and(|said| said.is_left);
        let is_taken_up = was_left && (message.last || message.id.as_ref().is_some_and(|id| followed.contains(id)));
        if was_left && !is_taken_up {
            left.push(message);
            continue;
        }
        if is_new || is_taken_up {
            followed.extend(message.parent.clone());
        }
        kept.push(message);
    }
    kept.reverse();
    (kept, left)
}

/// Remembers messages on branches that are left, with the numbers that they would have.
fn leave(name: &str, conversation: &Conversation, left: &[Message], memory: &mut dyn Memory) {
    for message in left {
        let Some(id) = &message.id else { continue };
        if known::get::<Said>(memory, id).is_some_and(|said| !said.is_left) {
            continue;
        }
        let parent = message.parent.as_ref().and_then(|parent| known::get::<Said>(memory, parent));
        let before = parent.map_or(conversation.last, |said| said.turn);
        let own = if message.speaker.as_deref() == Some("user") { before + 1 } else { before.max(1) };
        let turn = message.turn.unwrap_or(own);
        known::set(memory, id, &Said { turn, is_left: true, ..Said::alone(name, conversation) });
    }
}

/// Maximum number of turns that a mark takes back later.
const TAKEN_BACK: usize = 100;

/// Takes back the last question of a conversation, and what followed it, if these are turns that may change.
fn take_back(
    conversation: &Conversation,
    mark: &Message,
    memory: &mut dyn Memory,
    found: &mut Vec<(u64, Turn, bool)>,
) -> bool {
    let mut taken: Vec<(String, Said, Turned)> = Vec::new();
    let mut next = conversation.spoke.as_ref().and_then(|spoke| spoke.id.clone());
    let is_there = (0..TAKEN_BACK).any(|_| {
        let Some(id) = next.take() else { return false };
        let said = known::get::<Said>(memory, &id).filter(|said| said.part == conversation.part);
        let Some(mut said) = said.filter(|said| said.turned.is_some() || said.is_deleted) else { return false };
        next.clone_from(&said.before);
        // What comes after the mark stays.
        let is_before = |turned: &mut Turned| mark.order.is_none() || turned.order <= mark.order;
        let Some(turned) = said.turned.take_if(is_before) else { return false };
        let is_question = !turned.is_agent;
        taken.push((id, said, turned));
        is_question
    });
    for (id, said, turned) in taken.into_iter().filter(|_| is_there) {
        found.push((mark.at, taken_back_later(&said, &turned, mark.time), true));
        known::set(memory, &id, &Said { is_deleted: true, ..said });
    }
    is_there
}

/// Whether another version of a message has to say who speaks, or what.
fn says_too_little(message: &Message) -> bool {
    message.speaker.is_none() || !has_text(message)
}

/// What a later version of a message may leave out. Its id and its conversation are known, and its text was not there.
fn so_far(message: &Message) -> Message {
    Message { id: None, conversation: None, at: 0, text: None, fields: None, ..message.clone() }
}

/// The new version of a turn, if the message that became it has another text now.
fn revised(message: &Message, mut said: Said, memory: &mut dyn Memory) -> Option<Turn> {
    let (own, number) = (message.id.as_ref()?, said.turn);
    let turned = said.turned.as_mut()?;
    // The highest version of the lowest rank counts, whichever comes last.
    let rank = turned.rank;
    let is_newer = |version: &Option<Val>| (Reverse(message.rank), &message.version) >= (Reverse(rank), version);
    let has_newer_fields = is_newer(&turned.fields_version);
    let text = message.text.as_ref().filter(|text| !text.trim().is_empty() && is_newer(&turned.version));
    // What this version says is kept for the next one, also if its text is the same.
    if is_newer(&turned.version) {
        turned.time = message.time.or(turned.time);
    }
    if has_newer_fields && message.fields.is_some() {
        turned.fields.clone_from(&message.fields);
        turned.fields_version.clone_from(&message.version);
    }
    let before = turned.said;
    if let Some(text) = text {
        (turned.said, turned.version, turned.rank) = (known::hash(text), message.version.clone(), message.rank);
    }
    let turn = text.filter(|_| turned.said != before).map(|text| {
        let mut turn = turned.turn(number, text.clone());
        turn.fields = further(turned.fields.clone(), turned.time);
        turn.fields.insert(REMOVED.to_owned(), format!("{before:x}").into());
        turn
    });
    known::set(memory, own, &said);
    turn
}

/// The record that takes back a turn whose message is deleted.
fn taken_back_later(said: &Said, turned: &Turned, timestamp: Option<f64>) -> Turn {
    let mut turn = turned.turn(said.turn, String::new());
    turn.fields.insert(REMOVED.to_owned(), format!("{:x}", turned.said).into());
    Turn { timestamp, ..turn }
}
