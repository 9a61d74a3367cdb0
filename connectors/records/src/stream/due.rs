//! What is due, with what belongs before it or to it.

use std::collections::{HashMap, HashSet};

use jaq_json::Val;

use super::places::{Waiting, at_home, is_part, whole_ones};
use super::{Held, Place, Stream};
use crate::assemble::{is_agent, is_shared_only, joined};
use crate::chains::with_conversations;
use crate::known::{self, Memory, Said, Shared};
use crate::message::{Call, Item, Message};

/// The place of the last message, and the number of the one that came last.
type Last<'a> = ((&'a Option<Val>, u64), u64);

impl Stream {
    /// The calls that are due, and those that belong before them.
    pub(super) fn due_calls(&self, is_due: &dyn Fn(&Held) -> bool) -> Vec<Call> {
        let calls = self.held.iter().filter_map(|(number, held)| match &held.item {
            Item::Call(call) => Some((*number, &**call, is_due(held))),
            Item::Message(_) => None,
        });
        let calls: Vec<(u64, &Call, bool)> = calls.collect();
        let last = calls.iter().filter(|call| call.2).map(|(at, call, _)| (&call.order, *at)).max();
        let messages = if calls.is_empty() { HashMap::new() } else { self.last_due(is_due) };
        if last.is_none() && messages.is_empty() {
            return Vec::new();
        }
        let ids: HashSet<&str> =
            calls.iter().filter(|call| call.2).filter_map(|(_, call, _)| call.id.as_deref()).collect();
        // A call may be of any conversation, unless it says of which one.
        let last_of_all = messages.values().copied().reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)));
        let is_before_message = |place: (&Option<Val>, u64), call: &Call| {
            // A call without an order comes after what came before it.
            let is_before = |(last, number): &Last| match place {
                (None, at) => at <= *number,
                place => place <= *last,
            };
            match &call.conversation {
                Some(_) if !call.guess => {
                    let of = [None, call.conversation.as_deref()];
                    of.iter().filter_map(|name| messages.get(name)).any(is_before)
                }
                _ => last_of_all.as_ref().is_some_and(is_before),
            }
        };
        let belongs = |at: u64, call: &Call| {
            let place = (&call.order, at);
            last.is_some_and(|last| place <= last)
                || is_before_message(place, call)
                || call.id.as_deref().is_some_and(|id| ids.contains(id))
        };
        let due: Vec<u64> = calls.iter().filter(|(at, call, _)| belongs(*at, call)).map(|(at, ..)| *at).collect();
        let taken = due.iter().filter_map(|at| self.held.get(at)).filter_map(|held| match &held.item {
            Item::Call(call) => Some((**call).clone()),
            Item::Message(_) => None,
        });
        taken.collect()
    }

    /// The places of the last messages that are due, by the conversations that they name, and the number of the one that came
    /// last.
    fn last_due(&self, is_due: &dyn Fn(&Held) -> bool) -> HashMap<Option<&str>, Last<'_>> {
        let mut found: HashMap<Option<&str>, Last<'_>> = HashMap::new();
        for (number, held) in self.held.iter().filter(|(_, held)| is_due(held)) {
            if let Item::Message(message) = &held.item {
                let place = (&message.order, *number);
                let (last, came) = found.entry(message.conversation.as_deref()).or_insert((place, *number));
                (*last, *came) = (place.max(*last), *number);
            }
        }
        found
    }

    /// The messages that are due, and those that belong before them or to them, with their conversations. They may follow
    /// those of calls. Also the numbers of messages that wait longer, and until when each does.
    pub(super) fn due_messages(
        &self,
        is_due: &dyn Fn(&Held) -> bool,
        of_calls: &[Message],
        memory: &mut dyn Memory,
    ) -> (Vec<Message>, Vec<(u64, u64)>) {
        let mut waiting = self.waiting_messages(is_due, of_calls, memory);
        let (merged, longer) = waiting.merged();
        let mut later = waiting.wait(longer);
        let mut rows = Vec::new();
        if self.options.burst_s > 0.0 {
            let (longer, firsts) = waiting.rows(self.options.burst_s);
            later.extend(waiting.wait(longer));
            rows = firsts;
        }
        let mut cuts = waiting.cuts();
        waiting.together(&mut cuts, &rows);
        waiting.together(&mut cuts, &merged);
        let Waiting { messages, flags, places, .. } = &waiting;
        let whole = whole_ones(messages);
        let is_alone = |message: &Message| {
            (message.removed || is_part(message)) && message.id.as_deref().is_none_or(|id| !whole.contains(id))
        };
        let is_cut = |message: &Message, place: &Place| {
            let cut = message.conversation.as_deref().and_then(|conversation| cuts.get(conversation));
            cut.is_some_and(|cut| place >= cut)
        };
        let due: Vec<bool> = messages
            .iter()
            .zip(flags)
            .zip(places)
            .map(|((message, (is_due, _)), place)| *is_due && !is_cut(message, place) && !is_alone(message))
            .collect();
        let answers: Vec<(&str, Place)> = of_calls
            .iter()
            .filter_map(|message| Some((message.conversation.as_deref()?, (message.order.clone(), message.at))))
            .collect();
        let mut last: HashMap<&str, &Place> = HashMap::new();
        for (conversation, place) in &answers {
            let last = last.entry(conversation).or_insert(place);
            *last = (*last).max(place);
        }
        let (mut ids, mut agents) = (HashSet::new(), HashSet::new());
        for (number, (message, place)) in messages.iter().zip(places).enumerate() {
            let Some(conversation) = message.conversation.as_deref() else { continue };
            if is_agent(message) || message.to_agent {
                agents.insert(conversation);
            }
            if !due[number] || is_shared_only(message) {
                continue;
            }
            ids.extend(message.id.as_deref());
            let last = last.entry(conversation).or_insert(place);
            *last = (*last).max(place);
        }
        // With a part of a message, the others are due, also with one that is before what is due.
        for (first, of) in waiting.parts(&merged) {
            let conversation = messages[first].conversation.as_deref();
            let Some(last) = conversation.and_then(|name| last.get_mut(name)) else { continue };
            if places[first] <= **last && !is_cut(&messages[first], &places[first]) {
                ids.extend(of.iter().filter_map(|number| messages[*number].id.as_deref()));
                *last = of.iter().map(|number| &places[*number]).fold(*last, |one, other| one.max(other));
            }
        }
        let belongs = |message: &Message, is_due: bool, waits: bool, place: &Place| {
            let is_known = message.id.as_deref().is_some_and(|id| ids.contains(id));
            let Some(conversation) = message.conversation.as_deref() else { return is_due || is_known };
            let is_before = !is_alone(message) && last.get(conversation).is_some_and(|last| place <= *last);
            let is_asked = waits && agents.contains(conversation);
            !is_cut(message, place) && (is_due || is_before || is_known || is_asked)
        };
        let all = messages.iter().zip(flags).zip(places);
        let due = all.filter(|((message, (is_due, waits)), place)| belongs(message, *is_due, *waits, place));
        (due.map(|((message, _), _)| message.clone()).collect(), later)
    }

    /// The messages that wait, with their conversations and places.
    fn waiting_messages(
        &self,
        is_due: &dyn Fn(&Held) -> bool,
        of_calls: &[Message],
        memory: &mut dyn Memory,
    ) -> Waiting {
        let answers =
            of_calls.iter().filter_map(|message| Some((message.id.as_deref()?, message.conversation.clone()?)));
        let answers: HashMap<&str, String> = answers.collect();
        let waiting = self.held.values().filter_map(|held| match &held.item {
            Item::Message(message) => Some(((**message).clone(), ((is_due(held), held.due.is_none()), held.due))),
            Item::Call(_) => None,
        });
        let (mut messages, (flags, dues)): (Vec<Message>, (Vec<_>, Vec<_>)) = waiting.unzip();
        // A deletion or an edit may name the message only.
        at_home(&mut messages);
        let of_chains = linked(&messages);
        let (mut is_home, mut edits) = (true, Vec::new());
        for (number, message) in messages.iter_mut().enumerate() {
            let is_unknown = message.conversation.is_none();
            // An edit or a deletion of a turn is of the turn's conversation.
            let is_of_turn = is_unknown || message.removed || is_part(message);
            is_home &= !is_of_turn;
            if let Some(id) = message.id.as_ref().filter(|_| is_of_turn) {
                let known = known::get::<Said>(memory, id).map(|said| said.conversation);
                message.conversation = known.or_else(|| message.conversation.take());
                if let Some((parent, join)) = of_chains.get(id).filter(|_| is_unknown && is_bare(message)) {
                    (message.parent, message.join) = (parent.clone(), join.clone());
                    edits.extend(message.speaker.is_none().then_some(number));
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
        let mut messages = with_conversations(joined(messages));
        // The message itself says who speaks.
        edits.into_iter().for_each(|number| messages[number].speaker = None);
        if !is_home {
            at_home(&mut messages);
        }
        Waiting::of(messages, flags, dues)
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
