//! The places of messages in their conversations, and what has to wait for what is not due yet.

use std::collections::{HashMap, HashSet};

use jaq_json::Val;

use super::Place;
use crate::assemble::{ROW, age, has_text, is_mark, is_shared_only};
use crate::message::Message;

/// Messages that wait, with their places, and whether each is due and whether it waits for its agent.
pub(super) struct Waiting {
    pub messages: Vec<Message>,
    pub flags: Vec<(bool, bool)>,
    /// Until when each waits, but for those that wait for their agent.
    dues: Vec<Option<u64>>,
    pub places: Vec<Place>,
    /// Whether each is deleted.
    pub gone: Vec<bool>,
}

/// Messages with one id are of one conversation: that of the first of them.
pub(super) fn at_home(messages: &mut [Message]) {
    let mut homes: HashMap<&str, (usize, bool)> = HashMap::new();
    for (at, message) in messages.iter().enumerate().filter(|(_, message)| message.conversation.is_some()) {
        let Some(id) = &message.id else { continue };
        let Some((home, is_one)) = homes.get_mut(&**id) else {
            homes.insert(id, (at, true));
            continue;
        };
        let is_older = |one: &Message, other: &Message| (one.removed, age(one)) < (other.removed, age(other));
        if is_older(message, &messages[*home]) {
            *home = at;
        }
        *is_one = false;
    }
    let found: Vec<(usize, Option<String>)> = messages
        .iter()
        .enumerate()
        .filter_map(|(at, message)| {
            let (home, is_one) = homes.get(message.id.as_deref()?)?;
            let is_changed = !is_one && messages[*home].conversation != message.conversation;
            (is_changed || message.conversation.is_none()).then(|| (at, messages[*home].conversation.clone()))
        })
        .collect();
    found.into_iter().for_each(|(at, home)| messages[at].conversation = home);
}

/// The places of messages. Versions of a message, and its deletion, have that of the first one. One without an order comes
/// after what it follows, or else after the one that came before it, if that has an order.
fn places(messages: &[Message]) -> Vec<Place> {
    let mut firsts: HashMap<&str, (Option<&Message>, u64)> = HashMap::new();
    for message in messages.iter().filter(|message| !message.removed) {
        let Some(id) = message.id.as_deref() else { continue };
        let (oldest, _) = firsts.entry(id).or_insert((None, message.at));
        if message.order.is_some() && oldest.is_none_or(|oldest| age(message) < age(oldest)) {
            *oldest = Some(message);
        }
    }
    let mut of_ids: HashMap<&str, Val> = HashMap::new();
    let mut lasts: HashMap<Option<&str>, Val> = HashMap::new();
    let mut found = Vec::new();
    for message in messages {
        let (id, conversation) = (message.id.as_deref(), message.conversation.as_deref());
        let first = id.and_then(|id| firsts.get(id));
        let (oldest, at) = first.map_or((Some(message), message.at), |(oldest, at)| (*oldest, *at));
        let own = oldest.and_then(|oldest| oldest.order.clone());
        let known = || id.and_then(|id| of_ids.get(id));
        let of_parent = || message.parent.as_deref().and_then(|parent| of_ids.get(parent));
        let order = own.or_else(|| known().or_else(of_parent).or_else(|| lasts.get(&conversation)).cloned());
        if let Some(order) = order.as_ref().filter(|_| message.at == at && !message.removed) {
            lasts.insert(conversation, order.clone());
            of_ids.extend(id.map(|id| (id, order.clone())));
        }
        found.push((order, at));
    }
    found
}

/// The ids of messages of which one version says who speaks, or is a mark.
pub(super) fn whole_ones(messages: &[Message]) -> HashSet<&str> {
    messages
        .iter()
        .filter(|message| !message.removed && !is_part(message))
        .filter_map(|one| one.id.as_deref())
        .collect()
}

/// Whether a user asks something. A mark may ask, too, if it has a text.
fn is_question(message: &Message) -> bool {
    message.speaker.as_deref() == Some("user") && (has_text(message) || !message.rewind && !message.starts)
}

/// Whether another version of a message, or what it shares with others, has to say who speaks.
pub(super) fn is_part(message: &Message) -> bool {
    let is_named = message.id.is_some() || !message.join.is_empty();
    is_named && message.speaker.is_none() && !is_mark(message) && message.hand_over.is_none()
}

impl Waiting {
    /// What waits, in its conversations.
    pub fn of(messages: Vec<Message>, flags: Vec<(bool, bool)>, dues: Vec<Option<u64>>) -> Self {
        let removed: HashSet<&str> =
            messages.iter().filter(|message| message.removed).filter_map(|message| message.id.as_deref()).collect();
        let is_gone = |message: &Message| message.id.as_deref().is_some_and(|id| removed.contains(id));
        let gone = messages.iter().map(is_gone).collect();
        let places = places(&messages);
        Self { messages, flags, dues, places, gone }
    }

    /// These wait longer. Gives the numbers by which they are held, and until when each waits.
    pub fn wait(&mut self, longer: Vec<(usize, u64)>) -> Vec<(u64, u64)> {
        for (number, until) in &longer {
            (self.flags[*number].0, self.dues[*number]) = (false, Some(*until));
        }
        longer.into_iter().map(|(number, until)| (self.messages[number].at, until)).collect()
    }

    /// Until when a message that is not due may still be deleted.
    fn may_go_until(&self, number: usize) -> Option<u64> {
        let (is_due, waits) = self.flags[number];
        self.dues[number].filter(|_| !is_due && !waits)
    }

    /// Of messages that wait for others, those that are due, and until when they wait. What there is no room for waits for
    /// none.
    fn due_of<'a>(&'a self, members: &'a [usize], until: u64) -> impl Iterator<Item = (usize, u64)> + 'a {
        let has_room = members.iter().all(|number| self.dues[*number] != Some(0));
        members.iter().filter(move |number| has_room && self.flags[**number].0).map(move |number| (*number, until))
    }

    /// The numbers of the messages of each conversation, in their order, each one's versions beside it: first the one that
    /// says who speaks. What is no message is left out: a deletion whose message is not here, and what messages share.
    fn in_order(&self, is_wanted: impl Fn(&str) -> bool) -> HashMap<&str, Vec<usize>> {
        let whole = whole_ones(&self.messages);
        let mut conversations: HashMap<&str, Vec<usize>> = HashMap::new();
        for (number, message) in self.messages.iter().enumerate() {
            let is_alone = message.removed && message.id.as_deref().is_some_and(|id| !whole.contains(id));
            let is_none = is_alone || is_shared_only(message);
            if let Some(name) = message.conversation.as_deref().filter(|name| !is_none && is_wanted(name)) {
                conversations.entry(name).or_default().push(number);
            }
        }
        for numbers in conversations.values_mut() {
            numbers.sort_by(|one, other| {
                let key = |number: usize| {
                    let message = &self.messages[number];
                    (&self.places[number], message.removed || is_part(message))
                };
                key(*one).cmp(&key(*other))
            });
        }
        conversations
    }

    /// The questions that what is not due yet takes back, with what follows them: the first one of each conversation.
    pub fn cuts(&self) -> HashMap<String, Place> {
        // What waits for its agent was due.
        let was_due = |(is_due, waits): (bool, bool)| is_due || waits;
        let waits = |(message, flags): (&Message, &(bool, bool))| message.rewind && !was_due(*flags);
        let all = self.messages.iter().zip(&self.flags);
        let names: HashSet<&str> = all
            .filter(|(message, flags)| waits((message, flags)))
            .filter_map(|(message, _)| message.conversation.as_deref())
            .collect();
        let mut cuts: HashMap<String, Place> = HashMap::new();
        if names.is_empty() {
            return cuts;
        }
        for (name, numbers) in self.in_order(|name| names.contains(name)) {
            let (mut questions, mut seen): (Vec<(&Place, bool)>, HashSet<&str>) = Default::default();
            // Those that are due: what is not due may still be deleted.
            let mut due: Vec<&Place> = Vec::new();
            // The marks with what they take back, and whether they are due.
            let mut marks: Vec<(&Place, &Place, bool)> = Vec::new();
            for number in numbers {
                let (message, place) = (&self.messages[number], &self.places[number]);
                let is_due = was_due(self.flags[number]);
                if self.gone[number] || message.id.as_deref().is_some_and(|id| !seen.insert(id)) {
                    continue;
                }
                if message.starts {
                    questions.clear();
                    if is_due {
                        due.clear();
                    }
                } else if message.rewind {
                    let taken = questions.pop();
                    marks.extend(taken.map(|(question, _)| (place, question, is_due)));
                    let is_of_due = !is_due || taken.is_some_and(|(_, is_due)| is_due);
                    let before = due.pop_if(|_| is_of_due);
                    marks.extend(before.filter(|_| !is_due).map(|question| (place, question, false)));
                }
                if is_question(message) {
                    questions.push((place, is_due));
                    due.extend(Some(place).filter(|_| is_due));
                }
            }
            // What follows a question that waits does so, too, if it is a mark that is due.
            let mut cut: Option<&Place> = None;
            loop {
                let waits =
                    |(mark, _, is_due): &&(&Place, &Place, bool)| !is_due || cut.is_some_and(|cut| *mark >= cut);
                let next = marks.iter().filter(waits).map(|(_, question, _)| *question).min();
                if next == cut {
                    break;
                }
                cut = next;
            }
            cuts.extend(cut.map(|cut| (name.to_owned(), cut.clone())));
        }
        cuts
    }

    /// Of each message, which neighbours with one key it belongs to. Also those that wait longer, because what is between
    /// them and a further one with their key may still be deleted, and until when.
    pub fn merged(&self) -> (Vec<Option<usize>>, Vec<(usize, u64)>) {
        let (mut found, mut longer) = (vec![None; self.messages.len()], Vec::new());
        if self.messages.iter().all(|message| message.merge.is_none()) {
            return (found, longer);
        }
        let whole = whole_ones(&self.messages);
        for numbers in self.in_order(|_| true).into_values() {
            let taken = self.taken_back(&numbers);
            let (mut first, mut last): (Option<usize>, Option<&str>) = (None, None);
            let (mut members, mut between): (Vec<usize>, Option<u64>) = (Vec::new(), None);
            for number in numbers.into_iter().filter(|number| !self.gone[*number] && !taken.contains(number)) {
                let message = &self.messages[number];
                // An edit of what is not here is no neighbour.
                let is_here = message.id.as_deref().is_some_and(|id| whole.contains(id));
                if is_part(message) && message.merge.is_none() && !is_here {
                    continue;
                }
                let is_same = message.id.is_some() && message.id.as_deref() == last;
                let has_key = |first: usize| message.merge.is_some() && self.messages[first].merge == message.merge;
                if !is_same && (message.starts || !first.is_some_and(has_key)) {
                    first = Some(number);
                }
                last = message.id.as_deref();
                found[number] = first;
                let of = members.first().filter(|of| found[**of] != first);
                let is_further = of.is_some_and(|of| has_key(*of) && !message.starts);
                if is_further {
                    longer.extend(between.into_iter().flat_map(|until| self.due_of(&members, until)));
                }
                match self.may_go_until(number).filter(|_| of.is_some() && !is_further) {
                    Some(until) => between = between.max(Some(until)),
                    None if of.is_none() => members.push(number),
                    None => (members, between) = (vec![number], None),
                }
            }
        }
        (found, longer)
    }

    /// The numbers of the parts of each message, by the first one, in the order of these.
    pub fn parts(&self, merged: &[Option<usize>]) -> Vec<(usize, Vec<usize>)> {
        let mut parts: HashMap<usize, Vec<usize>> = HashMap::new();
        for (number, of) in merged.iter().enumerate() {
            if let Some(of) = of {
                parts.entry(*of).or_default().push(number);
            }
        }
        let mut parts: Vec<(usize, Vec<usize>)> = parts.into_iter().filter(|(_, of)| of.len() > 1).collect();
        parts.sort_by(|(one, _), (other, _)| self.places[*one].cmp(&self.places[*other]));
        parts
    }

    /// What belongs together waits together: the parts of a message, or the questions of a row, each with the first one.
    pub fn together(&self, cuts: &mut HashMap<String, Place>, firsts: &[Option<usize>]) {
        for (number, first) in firsts.iter().enumerate() {
            let Some(first) = first.map(|first| &self.places[first]) else { continue };
            let cut = self.messages[number].conversation.as_deref().and_then(|name| cuts.get_mut(name));
            if let Some(cut) = cut.filter(|cut| self.places[number] >= **cut && first < *cut) {
                cut.clone_from(first);
            }
        }
    }

    /// Of the numbers of messages in their order, those that are taken back, and the marks that do so.
    fn taken_back(&self, numbers: &[usize]) -> HashSet<usize> {
        let (mut questions, mut taken, mut seen): (Vec<usize>, HashSet<usize>, HashSet<&str>) = Default::default();
        // From where to where: what a mark takes back may hold what others do, and each is looked at once.
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for (at, number) in numbers.iter().enumerate().filter(|(_, number)| !self.gone[**number]) {
            let message = &self.messages[*number];
            if message.id.as_deref().is_some_and(|id| !seen.insert(id)) {
                // It is taken back if the first one is.
                if at > 0 && taken.contains(&numbers[at - 1]) {
                    taken.insert(*number);
                }
                continue;
            }
            if message.starts {
                questions.clear();
            }
            if message.rewind {
                if let Some(from) = questions.pop() {
                    while ranges.pop_if(|range| range.0 >= from).is_some() {}
                    ranges.push((from, at));
                }
                // It may say something in their place.
                taken.extend(Some(*number).filter(|_| !has_text(message)));
            }
            if is_question(message) {
                questions.push(at);
            }
        }
        taken.extend(ranges.into_iter().flat_map(|(from, to)| &numbers[from..to]));
        taken
    }

    /// Of questions in a row, each at most so many seconds after the one before, all wait for the last one. Gives the numbers
    /// of messages of those of which some are not due yet, and until when they wait. Also the first one of each one's row.
    pub fn rows(&self, burst_s: f64) -> (Vec<(usize, u64)>, Vec<Option<usize>>) {
        let mut found = (Vec::new(), vec![None; self.messages.len()]);
        for numbers in self.in_order(|_| true).into_values() {
            let (taken, mut row) = (self.taken_back(&numbers), Row::default());
            for number in numbers {
                let message = &self.messages[number];
                let is_same = message.id.is_some() && message.id == row.last;
                // What is no message between others, as far as is known.
                let is_nothing = self.gone[number]
                    || taken.contains(&number)
                    || is_part(message)
                    || message.hand_over.is_some() && message.text.is_none();
                if is_same || is_nothing {
                    if !row.members.is_empty() {
                        row.members.push(number);
                    }
                    continue;
                }
                // What is between others may still be deleted.
                let until = self.may_go_until(number).filter(|_| !row.members.is_empty() && !is_question(message));
                if let Some(until) = until.filter(|_| message.merge.is_none() || message.merge != row.merge) {
                    row.between = row.between.max(Some(until));
                    continue;
                }
                // A part of the message before has its time, whoever says it.
                let is_joined = message.merge.is_some() && message.merge == row.merge && !message.starts;
                let is_question = is_question(message) || is_joined;
                let gap = message.time.zip(row.time).map(|(now, before)| (now - before).abs());
                let gap = gap.filter(|_| !is_joined);
                let is_other = !is_question || message.starts || gap.is_some_and(|gap| gap > burst_s);
                let is_full = row.questions >= ROW && !is_joined;
                if is_other || is_full || row.between.is_some() {
                    let between = row.between.filter(|_| !is_other && !is_full);
                    found.0.extend(between.into_iter().flat_map(|until| self.due_of(&row.members, until)));
                    self.end(&mut row, &mut found);
                }
                if is_question {
                    row.members.push(number);
                    row.questions += usize::from(!is_joined);
                    row.last.clone_from(&message.id);
                    row.merge.clone_from(&message.merge);
                    row.time = if is_joined { row.time } else { message.time };
                }
            }
            self.end(&mut row, &mut found);
        }
        found
    }

    fn end(&self, row: &mut Row, (found, firsts): &mut (Vec<(usize, u64)>, Vec<Option<usize>>)) {
        let Row { members, .. } = std::mem::take(row);
        let due = |number: &usize| self.dues[*number];
        let is_any = |is_so: &dyn Fn(&(bool, bool)) -> bool| members.iter().any(|number| is_so(&self.flags[*number]));
        // What there is no room for is due at once.
        if members.iter().any(|number| due(number) == Some(0)) {
            return;
        }
        members.iter().for_each(|number| firsts[*number] = members.first().copied());
        let is_partly_due = is_any(&|(is_due, _)| *is_due) && is_any(&|(is_due, waits)| !is_due && !waits);
        if let Some(last) = members.iter().filter_map(due).max().filter(|_| is_partly_due) {
            found.extend(members.iter().filter(|number| due(number).is_some()).map(|number| (*number, last)));
        }
    }
}

/// Questions in a row.
#[derive(Default)]
struct Row {
    /// Their numbers, and those of their versions.
    members: Vec<usize>,
    /// Until when what comes after them may still be deleted.
    between: Option<u64>,
    questions: usize,
    /// The id, the key and the time of the last one.
    last: Option<String>,
    merge: Option<String>,
    time: Option<f64>,
}
