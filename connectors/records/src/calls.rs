//! Calls of a model, which repeat what was said before: the messages that are new.

use std::collections::{HashMap, HashSet};

use crate::assemble::LeftOut;
use crate::known::{self, Answered, Called, Ends, Grouped, History, Memory};
use crate::message::{Call, Message};

/// Number of messages of a conversation whose end is compared with the beginning of a call.
const COMPARED: usize = 512;

/// The messages of calls, in the order of the calls. What is known of conversations and calls is in `memory`; `number`
/// counts calls.
pub(crate) fn messages(calls: Vec<Call>, memory: &mut dyn Memory, left_out: &mut LeftOut) -> Vec<Message> {
    let mut calls = joined(calls);
    // One without an order comes after the one that came before it.
    if calls.iter().any(|call| call.order.is_some()) {
        let mut last = None;
        for call in &mut calls {
            call.order = call.order.take().or_else(|| last.clone());
            last.clone_from(&call.order);
        }
    }
    calls.sort_by(|a, b| a.order.cmp(&b.order));
    let mut all = Vec::new();
    for call in calls {
        if let Some(reason) = add(call, memory, &mut all) {
            *left_out.entry(reason).or_default() += 1;
        }
    }
    all
}

/// Adds what a call brings; why it brings nothing.
fn add(call: Call, memory: &mut dyn Memory, all: &mut Vec<Message>) -> Option<&'static str> {
    let Call { at, id, conversation, parent, guess, group, order, time, mut messages, answer } = call;
    let called = id.as_ref().and_then(|id| known::get::<Called>(memory, id));
    let mut now = called.clone().unwrap_or_default();
    let parts: Vec<u64> = messages.iter().filter_map(|message| message.id.as_deref().map(known::hash)).collect();
    match parts.len() == messages.len() {
        // What came before is not said again.
        true => messages.retain(|message| message.id.as_deref().is_none_or(|id| !now.parts.contains(&known::hash(id)))),
        false if now.is_asked => messages.clear(),
        false => {}
    }
    let messages: Vec<Message> = messages.into_iter().filter(is_turn).collect();
    let is_cut = messages.iter().any(|message| message.cut);
    let answer = answer.filter(|answer| is_turn(answer) && !now.is_answered);
    if messages.is_empty() && answer.is_none() {
        return Some(match called {
            Some(_) => "a call that came again",
            None => "a call without texts",
        });
    }
    now.parts.extend(parts);
    (now.is_asked, now.is_answered) = (now.is_asked || !messages.is_empty(), now.is_answered || answer.is_some());
    let said: Vec<[u8; 32]> = messages.iter().map(hash).collect();
    // The hash of each beginning.
    let mut beginnings = vec![String::new()];
    for one in &said {
        let next = going_on(&beginnings[beginnings.len() - 1], one);
        beginnings.push(next);
    }
    let short: Vec<u64> = said.iter().map(short).collect();
    let goes_on = |history: &History| history.count <= said.len() && beginnings[history.count] == history.all;
    let own = || match &id {
        Some(id) => format!("call {id}"),
        None => format!("call {at}"),
    };
    // What the answer before is not known of has its id, as messages have.
    let followed = |memory: &mut dyn Memory, parent: String| match known::get::<Answered>(memory, &parent) {
        Some(Answered(name)) => name,
        None => parent,
    };
    let conversation = conversation.or_else(|| parent.map(|parent| followed(memory, parent)));
    let name = match (called, conversation) {
        (Some(called), _) => called.name,
        (None, Some(name)) => name,
        (None, None) => group.clone().filter(|_| guess).unwrap_or_else(own),
    };
    let mut history = known::get::<History>(memory, &name);
    let is_grouped = group.as_ref() == Some(&name);
    let mut name = name;
    if guess && now.name.is_empty() && (history.is_none() || is_grouped) {
        // Of several, the one that has said most. A question alone may be anybody's.
        let mut longest = (2..beginnings.len()).rev();
        let continued = longest.find_map(|count| known::take_continued(memory, &beginnings[count]));
        let of_group = |memory: &mut dyn Memory| {
            let Grouped(last) = known::get::<Grouped>(memory, group.as_deref()?)?;
            let history = known::get::<History>(memory, &last)?;
            let same: Vec<u64> =
                short.iter().copied().chain(answer.as_ref().map(|one| self::short(&hash(one)))).collect();
            // Two programs may have recorded the same call.
            let is_same = history.count == history.last.len() && history.last == same;
            (is_same || goes_on(&history)).then_some((last, is_same))
        };
        // A history whose beginning was cut off is the end of a conversation.
        let of_end = |memory: &mut dyn Memory| {
            let (_, said) = short.split_last()?;
            let ends = known::get::<Ends>(memory, &known::end_of(said)?)?;
            let goes_on = |name: &String| known::get::<History>(memory, name).is_some_and(|of| of.last.ends_with(said));
            ends.0.into_iter().rev().find(goes_on).map(|name| (name, false))
        };
        let found = match continued {
            Some(name) => Some((name, false)),
            None => of_group(memory).or_else(|| of_end(memory)),
        };
        match found {
            Some((of, true)) => {
                known::set(memory, id.as_deref().unwrap_or_default(), &Called { name: of, ..now });
                return Some("a call that came again");
            }
            Some((of, false)) => {
                history = known::get::<History>(memory, &of);
                name = of;
            }
            // Another conversation has the name of the group.
            None if history.is_some() => (name, history) = (own(), None),
            None => {}
        }
    }
    let mut history = history.unwrap_or_default();
    let (before, end_before) = (history.all.clone(), known::end_of(&history.last));
    let overlap = match goes_on(&history) {
        true => history.count,
        // Of a history that was cut off, the text of the last message may be, too.
        false if is_cut && is_known(&history, &short) => short.len(),
        false => {
            let most = history.last.len().min(short.len());
            let ends = |count: &usize| history.last[history.last.len() - count..] == short[..*count];
            (0..=most).rev().find(ends).unwrap_or(0)
        }
    };
    let mut say = |message: Message, own_id: Option<String>| {
        let one = hash(&message);
        history.all = going_on(&history.all, &one);
        history.last.push(self::short(&one));
        history.count += 1;
        let time = message.time.or(time);
        all.push(Message {
            id: own_id,
            order: order.clone(),
            conversation: Some(name.clone()),
            time,
            at,
            to_agent: true,
            ..message
        });
    };
    // Ids of parts are those of records. Other messages may follow the answer.
    for message in messages.into_iter().skip(overlap) {
        say(message, None);
    }
    if let Some(answer) = answer {
        let own_id = answer.id.clone();
        say(answer, own_id.clone());
        if let Some(own_id) = own_id {
            known::set(memory, &own_id, &Answered(name.clone()));
        }
    }
    if history.last.len() > 2 * COMPARED {
        history.last.drain(..history.last.len() - COMPARED);
    }
    known::forget_continued(memory, &before, &name);
    if history.count > 1 {
        known::push_continued(memory, &history.all, &name);
    }
    if guess {
        known::move_end(memory, end_before.as_deref(), known::end_of(&history.last).as_deref(), &name);
    }
    known::set(memory, &name, &history);
    if let Some(group) = group {
        known::set(memory, &group, &Grouped(name.clone()));
    }
    if let Some(id) = id {
        known::set(memory, &id, &Called { name, ..now });
    }
    None
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
        // A record that names the conversation for certain knows better than one that does not know it.
        let is_certain = |conversation: &Option<String>, guess: bool| conversation.is_some() && !guess;
        let is_known = is_certain(&first.conversation, first.guess) || is_certain(&call.conversation, call.guess);
        first.guess = (first.guess || call.guess) && !is_known;
        first.conversation = first.conversation.take().or(call.conversation);
        first.parent = first.parent.take().or(call.parent);
        first.order = first.order.take().or(call.order);
        first.time = first.time.or(call.time);
        first.answer = first.answer.take().filter(is_turn).or(call.answer);
        first.group = first.group.take().or(call.group);
        let is_parts = |messages: &[Message]| messages.iter().all(|message| message.id.is_some());
        match (is_parts(&first.messages), is_parts(&call.messages)) {
            (true, true) => first.messages.extend(call.messages),
            (true, false) => first.messages = call.messages,
            (false, _) => {}
        }
    }
    for call in &mut all {
        if call.messages.iter().all(|message| message.id.is_some()) {
            let mut seen = HashSet::new();
            call.messages.retain(|message| seen.insert(message.id.clone()));
            call.messages.sort_by(|a, b| a.order.cmp(&b.order));
        }
    }
    all
}

/// Whether all of these messages were said at the beginning of a history, but perhaps for the end of the last one.
fn is_known(history: &History, said: &[u64]) -> bool {
    let same = history.last.iter().zip(said).take_while(|(one, other)| one == other).count();
    history.count == history.last.len() && history.count >= said.len() && same + 1 >= said.len()
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
