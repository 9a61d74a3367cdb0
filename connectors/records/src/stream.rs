//! Assembly of records as they come: messages wait for what belongs before them, and then become turns for good.
//!
//! What [`assemble`](crate::assemble()) does with a whole log is done here with the messages of a conversation that are due:
//! those that have waited for the time that the form needs, and what belongs before them. A turn that was given stays,
//! and another version of its message, or its deletion, is counted when it comes later than that; with `revise`, it is
//! another version of the turn, or takes it back.

mod due;
mod places;
mod turns;

use std::collections::{BTreeMap, HashMap, HashSet};

use jaq_json::Val;
use serde::{Deserialize, Serialize};

use crate::assemble::{LeftOut, is_agent, is_shared_only, versions};
use crate::known::{self, Conversation, Memory, Shared};
use crate::message::{Item, Message, Options};
use crate::{Turn, calls};

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
    /// The log is read once, to its end.
    is_whole: bool,
    /// What waits for its agent at the end of the log goes on waiting.
    is_kept: bool,
}

/// What became of messages that were due.
#[derive(Debug, Default)]
pub struct Released {
    /// The turns, with the places of their records.
    pub turns: Vec<(Turn, String)>,
    /// The numbers of those that do not wait any more.
    pub done: Vec<u64>,
    /// The numbers of those that wait for their agent now, or longer than before.
    pub waiting: Vec<u64>,
    /// Number of messages that became no turn, by the reason.
    pub left_out: LeftOut,
}

/// The order of messages and calls: by what the mapping says, and as they came.
type Place = (Option<Val>, u64);

impl Stream {
    /// Goes on with what waits, by its numbers. `next` is larger than all numbers before.
    pub fn new(options: Options, held: BTreeMap<u64, Held>, next: u64) -> Self {
        let mut stream = Self { options, held, none_before: 0, next, is_whole: false, is_kept: false };
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
            self.none_before = self.none_before.min(due);
            self.held.insert(self.next, Held { due: Some(due), position: position.to_owned(), item });
            self.next += 1;
        }
        first..self.next
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
        let (mut messages, later) = self.due_messages(&is_due, &of_calls, memory);
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
            // What is deleted, or has another version, does not count.
            let is_of_agent = |message: &Message| is_agent(message) || message.to_agent;
            conversation.has_agent = conversation.has_agent
                || messages.iter().any(is_of_agent)
                    && versions(messages.clone(), &mut LeftOut::new()).iter().any(is_of_agent);
            if self.options.with_agent && !conversation.has_agent {
                // Those that there is no room for are left out.
                let is_at_end = all && !self.is_kept;
                let is_over =
                    |message: &Message| is_at_end || self.held.get(&message.at).is_some_and(|held| held.due == Some(0));
                let (over, waiting): (Vec<Message>, Vec<Message>) = messages.into_iter().partition(is_over);
                let over = versions(over, left_out).len() as u64;
                if over > 0 {
                    *left_out.entry("without the agent").or_default() += over;
                }
                released.waiting.extend(waiting.iter().map(|message| message.at));
                continue;
            }
            // A conversation's turns stay in their order, and conversations take turns as their records came.
            let mut last = 0;
            let mut turned = self.turns(&name, &mut conversation, messages, memory, left_out);
            turned.sort_by_key(|(at, _, is_revised)| (!is_revised, if *is_revised { *at } else { 0 }));
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
        for number in &released.waiting {
            if let Some(held) = self.held.get_mut(number) {
                held.due = None;
            }
        }
        let mut longer = Vec::new();
        for (number, due) in later {
            if let Some(held) = self.held.get_mut(&number).filter(|held| held.due.is_some_and(|before| before < due)) {
                held.due = Some(due);
                longer.push(number);
            }
        }
        released.waiting.extend(longer);
        self.look();
        turns.sort_by_key(|(at, ..)| *at);
        released.turns.extend(turns.into_iter().map(|(_, turn, position)| (turn, position)));
        released
    }
}

#[cfg(test)]
mod tests;
