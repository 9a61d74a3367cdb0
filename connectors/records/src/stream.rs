//! Assembly of records as they come: messages wait for what belongs before them, and then become turns for good.
//!
//! What [`assemble`](crate::assemble()) does with a whole log is done here with the messages of a conversation that are due:
//! those that have waited for the time that the form needs, and what belongs before them. A turn that was given stays,
//! and another version of its message, or its deletion, is counted when it comes later than that; with `revise`, it is
//! another version of the turn, or takes it back.

use std::collections::{BTreeMap, HashMap, HashSet};

use jaq_json::Val;
use serde::{Deserialize, Serialize};

use crate::assemble::{
    LeftOut, before_hand_over, bursts, is_agent, is_shared_only, joined, merged, sort, taken_back, turn_of, versions,
};
use crate::calls;
use crate::chains::{branch, with_conversations};
use crate::known::{self, Conversation, Memory, Said, Shared, Spoke, Turned};
use crate::message::{Call, Item, Message, Options};
use crate::{REMOVED, Turn};

/// A message or a call that waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Held {
    /// When it becomes a turn, in milliseconds; never, if it waits for its agent.
    pub due: Option<u64>,
    /// Where its record is.
    pub position: String,
    /// What waits.
    pub item: Item,
}

/// Messages that wait, and how they become turns.
#[derive(Debug)]
pub struct Stream {
    options: Options,
    held: BTreeMap<u64, Held>,
    /// No message is due before this.
    none_before: u64,
    next: u64,
    /// Of each conversation the questions in a row that wait, the last ones that came.
    rows: HashMap<String, Vec<u64>>,
    /// The log is read once, to its end.
    is_whole: bool,
    /// What waits for its agent at the end of the log goes on waiting.
    is_kept: bool,
}

/// Maximum number of questions in a row that wait for each other.
const ROW: usize = 100;

/// What became of messages that were due.
#[derive(Debug, Default)]
pub struct Released {
    /// The turns, with the places of their records.
    pub turns: Vec<(Turn, String)>,
    /// The numbers of those that do not wait any more.
    pub done: Vec<u64>,
    /// The numbers of those that wait for their agent now.
    pub waiting: Vec<u64>,
    /// Number of messages that became no turn, by the reason.
    pub left_out: LeftOut,
}

/// The order of messages and calls: by what the mapping says, and as they came.
type Place = (Option<Val>, u64);

impl Stream {
    /// Goes on with what waits, by its numbers. `next` is larger than all numbers before.
    pub fn new(options: Options, held: BTreeMap<u64, Held>, next: u64) -> Self {
        let mut stream =
            Self { options, held, none_before: 0, next, rows: HashMap::new(), is_whole: false, is_kept: false };
        stream.look();
        stream
    }

    /// The same, for a log that is read once, to its end.
    #[must_use]
    pub fn of_whole(self, is_whole: bool) -> Self {
        Self { is_whole, ..self }
    }

    /// The same, for a store that keeps what waits beyond the end of the log.
    #[must_use]
    pub fn of_kept(self) -> Self {
        Self { is_kept: true, ..self }
    }

    /// The number of the next message.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether a message before this number will be due.
    pub fn is_any_due_before(&self, number: u64) -> bool {
        self.held.range(..number).any(|(_, held)| held.due.is_some())
    }

    /// Number of messages and calls that wait.
    pub fn waiting(&self) -> usize {
        self.held.len()
    }

    /// Number of those that wait for an agent to come.
    pub fn waiting_for_agents(&self) -> usize {
        self.held.values().filter(|held| held.due.is_none()).count()
    }

    /// When the first one is due; earlier, if it waits for further questions since.
    pub fn due(&self) -> Option<u64> {
        (self.none_before < u64::MAX).then_some(self.none_before)
    }

    /// Looks when the first one is due.
    fn look(&mut self) {
        self.none_before = self.held.values().filter_map(|held| held.due).min().unwrap_or(u64::MAX);
    }

    /// Takes what a mapping gives for a record. Returns the numbers.
    pub fn take(&mut self, items: Vec<Item>, position: &str, due: u64) -> std::ops::Range<u64> {
        let first = self.next;
        for mut item in items {
            match &mut item {
                Item::Message(message) => {
                    message.at = self.next;
                    if self.options.once_by_content {
                        message.identify();
                    }
                }
                Item::Call(call) => call.at = self.next,
            }
            self.row(&item, due);
            self.none_before = self.none_before.min(due);
            self.held.insert(self.next, Held { due: Some(due), position: position.to_owned(), item });
            self.next += 1;
        }
        first..self.next
    }

    /// With `burst_s`, questions in a row wait for the last one of them.
    fn row(&mut self, item: &Item, due: u64) {
        let Item::Message(message) = item else { return };
        let Some(name) = message.conversation.as_ref().filter(|_| self.options.burst_s > 0.0) else { return };
        match message.speaker.as_deref() {
            Some("user") => {
                let row = self.rows.entry(name.clone()).or_default();
                if row.len() >= ROW {
                    row.clear();
                }
                for number in row.iter() {
                    if let Some(held) = self.held.get_mut(number) {
                        held.due = held.due.map(|before| if before == 0 { 0 } else { before.max(due) });
                    }
                }
                row.push(self.next);
            }
            Some("agent") => drop(self.rows.remove(name)),
            _ => {}
        }
    }

    /// What waits under a number.
    pub fn held(&self, number: u64) -> Option<&Held> {
        self.held.get(&number)
    }

    /// None is due later than this.
    pub fn no_later(&mut self, most: u64) {
        for held in self.held.values_mut() {
            held.due = held.due.map(|due| due.min(most));
        }
        self.look();
    }

    /// The first ones are due now.
    pub fn hurry(&mut self, number: usize) {
        self.held.values_mut().take(number).for_each(|held| held.due = Some(0));
        self.look();
    }

    /// Makes turns of what is due, or of all.
    pub fn release(&mut self, now: u64, all: bool, memory: &mut dyn Memory) -> Released {
        let mut released = Released::default();
        let is_due = |held: &Held| all || held.due.is_some_and(|due| due <= now);
        if !all && now < self.none_before {
            return released;
        }
        if !self.held.values().any(is_due) {
            self.look();
            return released;
        }
        let calls = self.due_calls(&is_due);
        released.done.extend(calls.iter().map(|call| call.at));
        let of_calls = calls::messages(calls, memory, &mut released.left_out);
        let mut messages = self.due_messages(&is_due, &of_calls, memory);
        let has_both = !messages.is_empty() && !of_calls.is_empty();
        messages.extend(of_calls);
        if has_both {
            messages.sort_by_key(|message| message.at);
        }
        let positions: HashMap<u64, String> = messages
            .iter()
            .filter_map(|message| Some((message.at, self.held.get(&message.at)?.position.clone())))
            .collect();
        let left_out = &mut released.left_out;
        let mut conversations: Vec<(String, Vec<Message>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for message in messages {
            released.done.push(message.at);
            if let [key] = &message.join[..] {
                let mut shared = known::get::<Shared>(memory, key).unwrap_or_default();
                shared.take(&message);
                known::set(memory, key, &shared);
            }
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
        let mut turns: Vec<(u64, Turn, String)> = Vec::new();
        for (name, messages) in conversations {
            let mut conversation = known::get::<Conversation>(memory, &name).unwrap_or_default();
            conversation.has_agent |= messages.iter().any(|message| is_agent(message) || message.to_agent);
            if self.options.with_agent && !conversation.has_agent {
                // Those that there is no room for are left out.
                let is_at_end = all && !self.is_kept;
                let is_over =
                    |message: &Message| is_at_end || self.held.get(&message.at).is_some_and(|held| held.due == Some(0));
                let over = messages.iter().filter(|message| is_over(message)).count() as u64;
                if over > 0 {
                    *left_out.entry("without the agent").or_default() += over;
                }
                released.waiting.extend(messages.iter().filter(|message| !is_over(message)).map(|message| message.at));
                continue;
            }
            // A conversation's turns stay in their order, and conversations take turns as their records came.
            let mut last = 0;
            let mut turned = self.turns(&name, &mut conversation, messages, memory, left_out);
            turned.sort_by_key(|(_, _, is_revised)| !is_revised);
            for (at, turn, _) in turned {
                last = last.max(at);
                let position = positions.get(&at).cloned().unwrap_or_default();
                turns.push((last, turn, position));
            }
            known::set(memory, &name, &conversation);
        }
        let waiting: HashSet<u64> = released.waiting.iter().copied().collect();
        released.done.retain(|number| !waiting.contains(number));
        released.done.sort_unstable();
        released.done.dedup();
        for number in &released.done {
            self.held.remove(number);
        }
        let held = &self.held;
        self.rows.retain(|_, row| row.iter().any(|number| held.contains_key(number)));
        for number in &released.waiting {
            if let Some(held) = self.held.get_mut(number) {
                held.due = None;
            }
        }
        self.look();
        turns.sort_by_key(|(at, ..)| *at);
        released.turns.extend(turns.into_iter().map(|(_, turn, position)| (turn, position)));
        released
    }

    /// The calls that are due, and those that belong before them.
    fn due_calls(&self, is_due: &dyn Fn(&Held) -> bool) -> Vec<Call> {
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
    fn due_messages(
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
        // A deletion may name the message only.
        let of_ids = messages.iter().filter_map(|message| Some((message.id.clone()?, message.conversation.clone()?)));
        let of_ids: HashMap<String, String> = of_ids.collect();
        for message in &mut messages {
            if let (None, Some(id)) = (&message.conversation, &message.id) {
                let known = || known::get::<Said>(memory, id).map(|said| said.conversation);
                message.conversation = of_ids.get(id).cloned().or_else(known);
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

    /// The turns of messages of a conversation, with the numbers of the messages.
    fn turns(
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
            known::set(memory, &id, &Said { conversation: name.to_owned(), turn: conversation.last, turned: None });
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
        for message in messages {
            if self.options.revise
                && let Some(turn) = revised(&message, memory, left_out)
            {
                found.push((message.at, turn, true));
                continue;
            }
            let known = message.id.as_ref().and_then(|id| known::get::<Said>(memory, id));
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
        let messages = merged(taken_back(messages, left_out), self.options.glue.as_deref().unwrap_or(" "));
        let messages = before_hand_over(messages, &mut conversation.is_handed_over, &self.options, left_out);
        // What is a part of another question has its turn.
        let mut parts: HashMap<u64, Vec<String>> = HashMap::new();
        let messages = bursts(messages, self.options.burst_s, |part, whole| {
            parts.entry(whole.at).or_default().extend(part.id.clone());
        });
        for message in messages {
            let (at, own, parent) = (message.at, message.id.clone(), message.parent.clone());
            // On another branch, the numbers go on from the parent's.
            let follows = parent.clone();
            let parent = parent.filter(|_| self.options.branch).and_then(|id| known::get::<Said>(memory, &id));
            let mut last = parent.map_or(conversation.last, |said| said.turn);
            let version = message.version.clone();
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
            });
            found.extend(turn.map(|turn| (at, turn, false)));
            conversation.last = last;
            for part in parts.remove(&at).into_iter().flatten() {
                known::set(memory, &part, &Said { conversation: name.to_owned(), turn: last, turned: None });
            }
            if let Some(own) = own {
                known::set(memory, &own, &Said { conversation: name.to_owned(), turn: last, turned });
            }
        }
    }
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
    let text = message.text.as_ref()?;
    let is_older = message.version.is_some() && message.version < turned.version;
    if is_older || known::hash(text) == turned.said {
        return None;
    }
    let id = turned.id.clone();
    let mut last = said.turn;
    let mut turn = turn_of(&id, Message { turn: Some(said.turn), ..message.clone() }, &mut last, left_out)?;
    turn.turn = said.turn;
    turn.fields.insert(REMOVED.to_owned(), format!("{:x}", turned.said).into());
    (turned.said, turned.version) = (known::hash(text), message.version.clone());
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

#[cfg(test)]
mod tests;
