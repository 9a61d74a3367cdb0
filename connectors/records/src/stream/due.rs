//! What is due, with what belongs before it or to it.

use std::collections::{HashMap, HashSet};

use super::{Held, Place, Stream};
use crate::assemble::{is_agent, joined};
use crate::chains::with_conversations;
use crate::known::{self, Memory, Said, Shared};
use crate::message::{Call, Item, Message};

impl Stream {
    /// The calls that are due, and those that belong before them.
    pub(super) fn due_calls(&self, is_due: &dyn Fn(&Held) -> bool) -> Vec<Call> {
        let calls = self.held.iter().filter_map(|(number, held)| match &held.item {
            Item::Call(call) => Some((*number, &**call, is_due(held))),
            Item::Message(_) => None,
        });
        let calls: Vec<(u64, &Call, bool)> = calls.collect();
        let Some(last) = calls.iter().filter(|call| call.2).map(|(at, call, _)| (&call.order, *at)).max() else {
            return Vec::new();
        };
        let ids: HashSet<&str> =
            calls.iter().filter(|call| call.2).filter_map(|(_, call, _)| call.id.as_deref()).collect();
        let belongs =
            |at: u64, call: &Call| (&call.order, at) <= last || call.id.as_deref().is_some_and(|id| ids.contains(id));
        let due: Vec<u64> = calls.iter().filter(|(at, call, _)| belongs(*at, call)).map(|(at, ..)| *at).collect();
        let taken = due.iter().filter_map(|at| self.held.get(at)).filter_map(|held| match &held.item {
            Item::Call(call) => Some((**call).clone()),
            Item::Message(_) => None,
        });
        taken.collect()
    }

    /// The messages that are due, and those that belong before them or to them, with their conversations. They may follow
    /// those of calls.
    pub(super) fn due_messages(
        &self,
        is_due: &dyn Fn(&Held) -> bool,
        of_calls: &[Message],
        memory: &mut dyn Memory,
    ) -> Vec<Message> {
        let answers =
            of_calls.iter().filter_map(|message| Some((message.id.as_deref()?, message.conversation.clone()?)));
        let answers: HashMap<&str, String> = answers.collect();
        let waiting = self.held.values().filter_map(|held| match &held.item {
            Item::Message(message) => Some(((**message).clone(), is_due(held), held.due.is_none())),
            Item::Call(_) => None,
        });
        let (mut messages, flags): (Vec<Message>, Vec<(bool, bool)>) =
            waiting.map(|(message, is_due, waits)| (message, (is_due, waits))).unzip();
        // A deletion or an edit may name the message only.
        let of_ids = messages.iter().filter_map(|message| Some((message.id.clone()?, message.conversation.clone()?)));
        let of_ids: HashMap<String, String> = of_ids.collect();
        let of_chains = linked(&messages);
        for message in &mut messages {
            if let (None, Some(id)) = (&message.conversation, &message.id) {
                let known = || known::get::<Said>(memory, id).map(|said| said.conversation);
                message.conversation = of_ids.get(id).cloned().or_else(known);
                if let Some((parent, join)) = of_chains.get(id).filter(|_| is_bare(message)) {
                    (message.parent, message.join) = (parent.clone(), join.clone());
                }
            }
            for key in message.join.clone() {
                if let Some(shared) = known::get::<Shared>(memory, &key) {
                    shared.give(message);
                }
            }
            // A parent that is not here may be known.
            if let (None, Some(parent)) = (&message.conversation, &message.parent) {
                let known = || known::get::<Said>(memory, parent).map(|said| said.conversation);
                message.conversation = answers.get(&**parent).cloned().or_else(known);
            }
        }
        let messages = with_conversations(joined(messages));
        // Versions of a message, and its deletion, have the place of the first one.
        let mut firsts: HashMap<&str, Place> = HashMap::new();
        for message in messages.iter().filter(|message| !message.removed) {
            let Some(id) = message.id.as_deref() else { continue };
            let first = firsts.entry(id).or_insert_with(|| (None, message.at));
            first.0 = first.0.take().or_else(|| message.order.clone());
        }
        let place = |message: &Message| -> Place {
            let first = message.id.as_deref().and_then(|id| firsts.get(id));
            first.cloned().unwrap_or_else(|| (message.order.clone(), message.at))
        };
        let is_alone =
            |message: &Message| message.removed && message.id.as_deref().is_some_and(|id| !firsts.contains_key(id));
        let cuts = cuts(&messages, &flags);
        let is_cut = |message: &Message| {
            let cut = message.conversation.as_deref().and_then(|conversation| cuts.get(conversation));
            cut.is_some_and(|cut| place(message) >= *cut)
        };
        let mut last: HashMap<&str, Place> = HashMap::new();
        let (mut ids, mut merges, mut agents) = (HashSet::new(), HashSet::new(), HashSet::new());
        for (message, (is_due, _)) in messages.iter().zip(&flags) {
            let Some(conversation) = message.conversation.as_deref() else { continue };
            if is_agent(message) || message.to_agent {
                agents.insert(conversation);
            }
            if !is_due || is_cut(message) || is_alone(message) {
                continue;
            }
            ids.extend(message.id.as_deref());
            merges.extend(message.merge.as_deref().map(|merge| (conversation, merge)));
            let place = place(message);
            let last = last.entry(conversation).or_insert_with(|| place.clone());
            *last = (&*last).max(&place).clone();
        }
        let belongs = |message: &Message, is_due: bool, waits: bool| {
            let is_known = message.id.as_deref().is_some_and(|id| ids.contains(id));
            let Some(conversation) = message.conversation.as_deref() else { return is_due || is_known };
            let is_before = !is_alone(message) && last.get(conversation).is_some_and(|last| place(message) <= *last);
            let is_joined = message.merge.as_deref().is_some_and(|merge| merges.contains(&(conversation, merge)));
            let is_asked = waits && agents.contains(conversation);
            !is_cut(message) && (is_due || is_before || is_known || is_joined || is_asked)
        };
        let all = messages.iter().zip(&flags).filter(|(message, (is_due, waits))| belongs(message, *is_due, *waits));
        all.map(|(message, _)| message.clone()).collect()
    }
}

/// Whether a message says neither what it follows nor with what it shares its conversation.
fn is_bare(message: &Message) -> bool {
    message.parent.is_none() && message.join.is_empty()
}

/// By the id of a message, what it follows and with what it shares its conversation, as one of its versions says.
fn linked(messages: &[Message]) -> HashMap<String, (Option<String>, Vec<String>)> {
    let bare: HashSet<&str> = messages.iter().filter(|one| is_bare(one)).filter_map(|one| one.id.as_deref()).collect();
    let linked = messages.iter().filter(|message| !is_bare(message)).filter_map(|message| {
        let id = message.id.clone().filter(|id| bare.contains(&**id))?;
        Some((id, (message.parent.clone(), message.join.clone())))
    });
    linked.collect()
}

/// The questions that what is not due yet takes back, with what follows them: the first one of each conversation.
fn cuts(messages: &[Message], flags: &[(bool, bool)]) -> HashMap<String, Place> {
    let mut cuts: HashMap<String, Place> = HashMap::new();
    let waits = |(message, (is_due, _)): &(&Message, &(bool, bool))| message.rewind && !is_due;
    let names: HashSet<&str> =
        messages.iter().zip(flags).filter(waits).filter_map(|(message, _)| message.conversation.as_deref()).collect();
    if names.is_empty() {
        return cuts;
    }
    let mut of_these: Vec<(&Message, &(bool, bool))> = messages.iter().zip(flags).collect();
    of_these.retain(|(message, _)| message.conversation.as_deref().is_some_and(|name| names.contains(name)));
    of_these.sort_by(|(a, _), (b, _)| a.order.cmp(&b.order).then(a.at.cmp(&b.at)));
    let mut questions: HashMap<&str, Vec<Place>> = HashMap::new();
    for (message, (is_due, _)) in of_these {
        let name = message.conversation.as_deref().unwrap_or_default();
        let questions = questions.entry(name).or_default();
        if message.speaker.as_deref() == Some("user") {
            questions.push((message.order.clone(), message.at));
        } else if let Some(question) = message.rewind.then(|| questions.pop()).flatten().filter(|_| !is_due) {
            let cut = cuts.entry(name.to_owned()).or_insert_with(|| question.clone());
            *cut = (&*cut).min(&question).clone();
        }
    }
    cuts
}
