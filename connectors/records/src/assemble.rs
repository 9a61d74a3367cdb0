//! Assembly: turns of messages.

use std::collections::{BTreeMap, HashMap, HashSet};

use jaq_json::Val;
use serde_json::{Map, Value as Json};

use crate::Turn;
use crate::calls;
use crate::chains::{branch, with_conversations};
use crate::known::{InMemory, Shared, Spoke};
use crate::message::{Call, Item, Message, Options};

/// Number of messages that became no turn, by the reason.
pub(crate) type LeftOut = BTreeMap<&'static str, u64>;

/// Makes turns of what a mapping gave, in the order of its records.
pub fn assemble(items: Vec<Item>, options: &Options) -> (Vec<Turn>, LeftOut) {
    let (mut messages, mut model_calls) = (Vec::new(), Vec::new());
    for (at, item) in (1..).zip(items) {
        match item {
            Item::Message(message) => {
                let mut message = Message { at, ..*message };
                if options.once_by_content {
                    message.identify();
                }
                messages.push(message);
            }
            // Calls without an id have a number.
            Item::Call(call) => model_calls.push(Call { at, ..*call }),
        }
    }
    let mut left_out = LeftOut::new();
    let has_both = !messages.is_empty() && !model_calls.is_empty();
    messages.extend(calls::messages(model_calls, &mut InMemory::default(), &mut left_out));
    if has_both {
        messages.sort_by_key(|message| message.at);
    }
    let messages = with_conversations(joined(versions(messages, &mut left_out)));
    // Conversations in the order in which they came.
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut conversations: Vec<(String, Vec<Message>)> = Vec::new();
    for message in messages {
        if is_shared_only(&message) {
            continue;
        }
        let Some(name) = message.conversation.clone() else {
            *left_out.entry("no conversation").or_default() += 1;
            continue;
        };
        let at = *places.entry(name.clone()).or_insert_with(|| {
            conversations.push((name, Vec::new()));
            conversations.len() - 1
        });
        conversations[at].1.push(message);
    }
    let mut turns = Vec::new();
    for (name, mut messages) in conversations {
        if options.with_agent && !messages.iter().any(|message| is_agent(message) || message.to_agent) {
            *left_out.entry("without the agent").or_default() += messages.len() as u64;
            continue;
        }
        sort(&mut messages);
        if options.branch {
            let (of_branch, others) = branch(messages);
            messages = of_branch;
            if !others.is_empty() {
                *left_out.entry("another branch").or_default() += others.len() as u64;
            }
        }
        for (part, messages) in (1..).zip(sessions(messages)) {
            let name = if part == 1 { name.clone() } else { format!("{name}#{part}") };
            let glue = options.glue.as_deref().unwrap_or(" ");
            let messages = merged(taken_back(messages, &mut left_out, |_| false), glue, |_, _| {});
            let messages =
                bursts(before_hand_over(messages, &mut false, options, &mut left_out), options.burst_s, |_, _| {});
            number(&name, messages, &mut turns, &mut left_out);
        }
    }
    (turns, left_out)
}

/// Puts messages of a conversation in their order. One that has none comes after its parent, or else after the one that
/// came before it.
pub(crate) fn sort(messages: &mut [Message]) {
    let with = messages.iter().filter(|message| message.order.is_some()).count();
    if with > 0 && with < messages.len() {
        let of_ids = messages.iter().filter_map(|message| Some((message.id.clone()?, message.order.clone()?)));
        let mut of_ids: HashMap<String, Val> = of_ids.collect();
        let mut last = None;
        for message in messages.iter_mut() {
            if message.order.is_none() {
                let of_parent = message.parent.as_ref().and_then(|parent| of_ids.get(parent));
                message.order = of_parent.cloned().or_else(|| last.clone());
                of_ids.extend(message.id.clone().zip(message.order.clone()));
            }
            last.clone_from(&message.order);
        }
    }
    messages.sort_by(|a, b| a.order.cmp(&b.order));
}

pub(crate) fn is_agent(message: &Message) -> bool {
    message.speaker.as_deref() == Some("agent")
}

/// Of the versions of a message the one that counts: of the lowest rank, the highest version, or the last one. It has the
/// place and the time of the first one, and what it does not say itself is as the next best version says it. Messages that
/// are removed are left out.
pub(crate) fn versions(messages: Vec<Message>, left_out: &mut LeftOut) -> Vec<Message> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut kept: Vec<Message> = Vec::new();
    // Further versions of what is at a place.
    let mut further: BTreeMap<usize, Vec<Message>> = BTreeMap::new();
    let mut removed: HashSet<String> = HashSet::new();
    for message in messages {
        let Some(id) = message.id.clone() else {
            kept.push(message);
            continue;
        };
        if message.removed {
            removed.insert(id);
            continue;
        }
        match places.get(&id) {
            Some(at) => further.entry(*at).or_default().push(message),
            None => {
                places.insert(id, kept.len());
                kept.push(message);
            }
        }
    }
    for (at, others) in further {
        *left_out.entry("another version").or_default() += others.len() as u64;
        kept[at] = as_one(std::mem::take(&mut kept[at]), others);
    }
    *left_out.entry("deleted").or_default() += removed.iter().filter(|id| places.contains_key(*id)).count() as u64;
    kept.retain(|message| message.id.as_ref().is_none_or(|id| !removed.contains(id)));
    left_out.retain(|_, count| *count > 0);
    kept
}

/// A message of its versions, as they came. Its rank and its version are those of what said its text.
fn as_one(first: Message, others: Vec<Message>) -> Message {
    let mut all = vec![first];
    all.extend(others);
    // An edit that says only what it changes does not know where its conversation ends.
    let is_whole = |message: &&Message| message.speaker.is_some() || message.last;
    let last = all.iter().rev().find(is_whole).or(all.last()).is_some_and(|message| message.last);
    let again = all.iter().skip(1).filter(is_whole).map(|message| message.at).max();
    let again = again.unwrap_or_default().max(all[0].again);
    let (at, to_agent) = (all[0].at, all.iter().any(|message| message.to_agent));
    let mut by_age: Vec<&Message> = all.iter().collect();
    by_age.sort_by(|one, other| age(one).cmp(&age(other)));
    let time = by_age.iter().find_map(|message| message.time);
    let order = by_age.iter().find_map(|message| message.order.clone());
    let conversation = by_age.iter().find_map(|message| message.conversation.clone());
    // What it shares its conversation with is that of the first one, too.
    let join = by_age.iter().find(|message| !message.join.is_empty()).map_or_else(Vec::new, |one| one.join.clone());
    all.sort_by(|one, other| other.rank.cmp(&one.rank).then_with(|| one.version.cmp(&other.version)));
    let text = all.iter().rev().find(|message| message.text.is_some()).or(all.last());
    let (rank, version) = text.map(|text| (text.rank, text.version.clone())).unwrap_or_default();
    let mut best = all.pop().unwrap_or_default();
    let best_is_part = best.speaker.is_none() && !is_mark(&best);
    all.iter().rev().for_each(|other| best.complete(other));
    let is_whole = |message: &&Message| message.speaker.is_some() || is_mark(message);
    if best_is_part && let Some(mark) = all.iter().rev().find(is_whole) {
        (best.starts, best.rewind, best.cut) = (mark.starts, mark.rewind, mark.cut);
    }
    Message { at, again, last, to_agent, time, order, conversation, rank, version, join, ..best }
}

/// Whether a message says something about those around it.
pub(crate) fn is_mark(message: &Message) -> bool {
    message.starts || message.rewind || message.cut
}

/// Which of the versions of a message was the first one, whatever the order in which they came: one that says who speaks, and
/// of these the one with the lowest version.
pub(crate) fn age(message: &Message) -> impl Ord + use<'_> {
    (message.speaker.is_none(), message.rank, &message.version)
}

/// Gives messages that share a key what one of them has: conversation, speaker, time and order. A message with several
/// keys gives nothing.
pub(crate) fn joined(mut messages: Vec<Message>) -> Vec<Message> {
    let mut all: HashMap<String, (Shared, Option<Val>)> = HashMap::new();
    for message in &messages {
        let [key] = &message.join[..] else { continue };
        let (shared, order) = all.entry(key.clone()).or_default();
        shared.take(message);
        *order = order.take().or_else(|| message.order.clone());
    }
    if all.is_empty() {
        return messages;
    }
    for message in &mut messages {
        for key in std::mem::take(&mut message.join) {
            if let Some((shared, order)) = all.get(&key) {
                shared.give(message);
                message.order = message.order.take().or_else(|| order.clone());
            }
            message.join.push(key);
        }
    }
    messages
}

/// Whether it only says what messages with its key share.
pub(crate) fn is_shared_only(message: &Message) -> bool {
    !message.join.is_empty() && message.text.is_none() && message.id.is_none() && !message.starts && !message.rewind
}

/// The messages between marks at which another conversation starts.
fn sessions(messages: Vec<Message>) -> Vec<Vec<Message>> {
    let mut parts = vec![Vec::new()];
    let mut has_started = false;
    for message in messages {
        if message.starts {
            let is_empty = parts.last().is_none_or(Vec::is_empty);
            if has_started || !is_empty {
                parts.push(Vec::new());
            }
            has_started = true;
        }
        // A mark may be the first message, too.
        if let Some(part) = parts.last_mut().filter(|_| !message.starts || has_text(&message)) {
            part.push(Message { starts: false, ..message });
        }
    }
    parts
}

/// The messages without those that are taken back. `earlier` takes back a question that is not among them, if it can.
pub(crate) fn taken_back(
    messages: Vec<Message>,
    left_out: &mut LeftOut,
    mut earlier: impl FnMut(&Message) -> bool,
) -> Vec<Message> {
    let (mut kept, mut questions): (Vec<Message>, Vec<usize>) = Default::default();
    let mut number = 0;
    let mut take = |from: usize, kept: &mut Vec<Message>| {
        number += (kept.len() - from) as u64;
        kept.truncate(from);
    };
    for message in messages {
        if message.rewind {
            match questions.pop() {
                Some(at) => take(at, &mut kept),
                None if earlier(&message) => take(0, &mut kept),
                None => *left_out.entry("without a question that it takes back").or_default() += 1,
            }
            // It may say something in its place.
            if !has_text(&message) {
                continue;
            }
        }
        if message.speaker.as_deref() == Some("user") {
            questions.push(kept.len());
        }
        kept.push(message);
    }
    if number > 0 {
        *left_out.entry("taken back").or_default() += number;
    }
    kept
}

/// The messages; neighbours with one key are one. `joined` is told of a message that became a part of another one.
pub(crate) fn merged(messages: Vec<Message>, glue: &str, mut joined: impl FnMut(&Message, &Message)) -> Vec<Message> {
    let mut kept: Vec<Message> = Vec::new();
    for message in messages {
        match kept.last_mut().filter(|last| message.merge.is_some() && last.merge == message.merge) {
            Some(last) => {
                joined(&message, last);
                let text = last.text.get_or_insert_default();
                text.extend([glue, message.text.as_deref().unwrap_or_default()]);
            }
            None => kept.push(message),
        }
    }
    kept
}

/// The messages without what users say while a person answers, if that is wanted, and without the marks of that.
pub(crate) fn before_hand_over(
    messages: Vec<Message>,
    is_handed_over: &mut bool,
    options: &Options,
    left_out: &mut LeftOut,
) -> Vec<Message> {
    let mut kept = Vec::new();
    for message in messages {
        if let Some(now) = message.hand_over {
            *is_handed_over = now;
            if message.text.is_none() {
                continue;
            }
        }
        let is_asked = message.speaker.as_deref() == Some("user");
        if options.until_hand_over && *is_handed_over && is_asked {
            *left_out.entry("said after a hand-over").or_default() += 1;
            continue;
        }
        kept.push(message);
    }
    kept
}

/// Maximum number of questions in a row that are one.
pub(crate) const ROW: usize = 100;

/// The messages; questions in a row that came in a burst are one. `joined` is told of a message that became a part of
/// another one.
pub(crate) fn bursts(messages: Vec<Message>, burst_s: f64, mut joined: impl FnMut(&Message, &Message)) -> Vec<Message> {
    if burst_s <= 0.0 {
        return messages;
    }
    let mut kept: Vec<Message> = Vec::new();
    // The time of the last part, and the number of parts.
    let (mut last_time, mut number) = (None, 0);
    for message in messages {
        let is_question = |message: &Message| {
            message.speaker.as_deref() == Some("user") && has_text(message) && message.turn.is_none()
        };
        let is_soon = |last: &Message| {
            let gap = message.time.zip(last_time.or(last.time)).map(|(now, before)| (now - before).abs());
            gap.is_none_or(|gap| gap <= burst_s)
        };
        let time = message.time;
        let is_further = |last: &&mut Message| is_question(last) && is_question(&message) && is_soon(last);
        match kept.last_mut().filter(|last| number < ROW && is_further(last)) {
            Some(last) => {
                number += 1;
                joined(&message, last);
                let text = last.text.get_or_insert_default();
                text.extend(["\n", message.text.as_deref().unwrap_or_default()]);
            }
            None => {
                number = 1;
                kept.push(message);
            }
        }
        last_time = time;
    }
    kept
}

pub(crate) fn has_text(message: &Message) -> bool {
    message.text.as_ref().is_some_and(|text| !text.trim().is_empty())
}

/// Numbers the turns of a conversation.
fn number(name: &str, messages: Vec<Message>, turns: &mut Vec<Turn>, left_out: &mut LeftOut) {
    let (mut last, mut spoke) = (0, None);
    let has_agent = messages.iter().any(is_agent);
    turns.extend(messages.into_iter().filter_map(|message| {
        let mut turn = turn_of(name, message, &mut last, left_out)?;
        Spoke::mark(&mut spoke, &mut turn, None, None, has_agent);
        Some(turn)
    }));
}

/// The turn that a message is, if it is one. `last` is the number of the last question.
pub(crate) fn turn_of(name: &str, message: Message, last: &mut u32, left_out: &mut LeftOut) -> Option<Turn> {
    let speaker = match message.speaker.as_deref() {
        Some("user") => "user",
        Some("agent") => "agent",
        _ => {
            *left_out.entry("neither user nor agent").or_default() += 1;
            return None;
        }
    };
    let Some(text) = message.text.filter(|text| !text.trim().is_empty()) else {
        *left_out.entry("without text").or_default() += 1;
        return None;
    };
    let turn = match (message.turn, speaker) {
        (Some(turn), _) => turn,
        (None, "user") => *last + 1,
        (None, _) => (*last).max(1),
    };
    *last = turn.max(*last);
    let fields = further(message.fields, message.time);
    Some(Turn { conversation_id: name.to_owned(), turn, speaker, text, timestamp: message.time, fields })
}

/// The further fields of a turn. Its time is that of its message, if that is known, and is not said twice.
pub(crate) fn further(fields: Option<Box<Map<String, Json>>>, time: Option<f64>) -> Map<String, Json> {
    let mut fields = fields.map(|fields| *fields).unwrap_or_default();
    if time.is_some() {
        fields.remove("timestamp");
    }
    fields
}
