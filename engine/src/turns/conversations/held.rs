//! Conversations in memory: bounds their number and the bytes of their utterances. The longest idle
//! conversation is evicted first; the store has its state.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use timely::dataflow::operators::Capability;

use super::InFlight;
use crate::connector::Applied;
use crate::durable::{ConversationChange, FormerTurn, Said, StoredConversation};
use crate::record::{Speaker, Utterance, text_hash};
use crate::turns::Read;

/// The overhead of a conversation in addition to its utterances.
const OVERHEAD: usize = 512;
/// Maximum number of turns that a conversation remembers beside its history.
const FORMER: usize = 64;
/// Maximum number of conversations to check per eviction.
const LOOKED_AT: usize = 1000;

#[derive(Default)]
pub(super) struct Conversation {
    /// Its state is not yet loaded from the store; until then its records wait.
    pub unread: bool,
    /// It is being loaded from the store of another process.
    pub is_coming: bool,
    /// The store has its state too.
    pub is_stored: bool,
    pub(super) history: VecDeque<Said>,
    /// The number of the first utterance in `history`.
    first: u64,
    /// Utterances before this number are in the store.
    kept: u64,
    /// Records that wait for the running turn.
    pub queue: VecDeque<(Read, Capability<u64>)>,
    pub running: Option<InFlight>,
    /// Its next turn waits for a slot or for sinks.
    pub waits: bool,
    /// Our answer to the last user turn, until the log has an agent turn or the next turn needs it.
    pub reply: Option<Arc<str>>,
    /// The groups of the principals whose turns the history has.
    groups: Vec<Arc<str>>,
    /// Turns that are not in the history any more and may be taken back.
    former: Vec<FormerTurn>,
    /// The last applied records.
    pub applied: Applied,
    /// When something was said last, in seconds since the Unix epoch. Records that come again do not count.
    pub said_s: u64,
    /// The last use: the key in `Held::order`, and the time.
    used: Option<(u64, Instant)>,
    /// Bytes of the utterances.
    bytes: usize,
    /// Its bytes as counted in `Held::bytes`.
    counted: usize,
}

impl Conversation {
    /// Restores its stored state; the history only if it was used within `idle_s` seconds.
    pub fn remember(&mut self, known: StoredConversation, idle_s: u64) {
        self.applied = known.applied.clone();
        (self.first, self.kept) = (known.next(), known.next());
        self.said_s = known.used;
        self.former = known.former;
        if known.used.saturating_add(idle_s) >= StoredConversation::now() {
            self.first = known.first;
            self.bytes = known.history.iter().map(|said| said.text.len()).sum();
            self.history = known.history;
            self.reply = known.reply;
            self.groups = known.groups;
        }
    }

    /// Continues for a principal of these groups, sorted. A history with turns of a principal who is in other groups is
    /// dropped, because its answers may say what this principal may not read.
    pub fn continue_for(&mut self, groups: Vec<Arc<str>>) {
        if !self.is_known_to(&groups) {
            self.first += self.history.len() as u64;
            self.leave_behind(0);
            self.bytes = 0;
            self.reply = None;
        }
        self.groups = groups;
    }

    /// Whether a principal of these groups, sorted, may read its history.
    pub fn is_known_to(&self, groups: &[Arc<str>]) -> bool {
        self.groups.iter().all(|group| groups.binary_search(group).is_ok())
    }

    /// Adds an utterance of this turn, of a log; (0, 0) for our own.
    pub fn say(&mut self, speaker: Speaker, (turn, log): (u32, u64), text: Arc<str>, limit: usize) {
        self.bytes += text.len();
        self.said_s = StoredConversation::now();
        self.history.push_back(Said { speaker, text, turn, log, key: None });
        while self.history.len() > limit
            && let Some(said) = self.history.pop_front()
        {
            self.bytes -= said.text.len();
            self.first += 1;
        }
    }

    /// Adds an utterance of the user, after our pending answer.
    pub fn ask(&mut self, turn: (u32, u64), text: Arc<str>, limit: usize) {
        if let Some(reply) = self.reply.take() {
            self.say(Speaker::Agent, (0, 0), reply, limit);
        }
        self.say(Speaker::User, turn, text, limit);
    }

    /// Ends the history before an utterance. The store only appends, so the rest is appended again.
    pub fn cut(&mut self, at: usize) {
        self.first += self.history.len() as u64;
        self.leave_behind(at);
        self.bytes = self.history.iter().map(|said| said.text.len()).sum();
        self.reply = None;
    }

    /// Drops the history from an utterance on, but for the keys of its turns.
    fn leave_behind(&mut self, at: usize) {
        let former = self.history.drain(at.min(self.history.len())..).filter_map(|said| {
            let (speaker, turn, hash) = (said.speaker, said.turn, text_hash(&said.text));
            Some(FormerTurn { speaker, turn, hash, key: said.key? })
        });
        self.former.extend(former);
        self.former.drain(..self.former.len().saturating_sub(FORMER));
    }

    /// Takes turns that are not in the history any more.
    pub fn take_former(&mut self, is_taken: impl Fn(&FormerTurn) -> bool) -> Vec<FormerTurn> {
        self.former.extract_if(.., |former| is_taken(former)).collect()
    }

    /// The keys of turns of this number, in the history or not. `is_wanted` gets the hashes of their texts.
    pub fn keys(
        &self,
        speaker: Speaker,
        turn: u32,
        is_wanted: impl Fn(u64) -> bool + Copy,
    ) -> impl Iterator<Item = &Arc<str>> {
        let of_turn = move |said: &&Said| said.speaker == speaker && said.turn == turn;
        let said = self.history.iter().filter(of_turn).filter(move |said| is_wanted(text_hash(&said.text)));
        let former = self
            .former
            .iter()
            .filter(move |former| former.speaker == speaker && former.turn == turn && is_wanted(former.hash));
        said.filter_map(|said| said.key.as_ref()).chain(former.map(|former| &former.key))
    }

    /// Takes some utterances out of the history. The store only appends, so the rest is appended again.
    pub fn take_out(&mut self, mut is_taken: impl FnMut(&Said) -> bool) -> Vec<Said> {
        let (taken, rest): (Vec<Said>, Vec<Said>) = self.history.drain(..).partition(|said| is_taken(said));
        if !taken.is_empty() {
            self.first += (taken.len() + rest.len()) as u64;
        }
        self.history = rest.into();
        self.bytes = self.history.iter().map(|said| said.text.len()).sum();
        taken
    }

    /// The last utterance began the turn with this key.
    pub fn has_key(&mut self, key: &Arc<str>) {
        if let Some(said) = self.history.back_mut() {
            said.key = Some(key.clone());
        }
    }

    /// The history for the next turn: the last `limit` utterances.
    pub fn seen(&self, limit: usize) -> Vec<Utterance> {
        let reply = self.reply.clone().map(|text| Utterance { speaker: Speaker::Agent, text });
        let length = self.history.len() + usize::from(reply.is_some());
        self.history.iter().map(Said::utterance).chain(reply).skip(length.saturating_sub(limit)).collect()
    }

    /// The change since the last call, for the store.
    pub fn change(&mut self) -> ConversationChange {
        let next = self.first + self.history.len() as u64;
        let from = self.kept.max(self.first).min(next);
        self.kept = next;
        ConversationChange {
            from,
            said: self.history.iter().skip((from - self.first) as usize).cloned().collect(),
            first: self.first,
            reply: self.reply.clone(),
            groups: self.groups.clone(),
            former: self.former.clone(),
            applied: self.applied.clone(),
            // Nothing was said yet if its first record was no utterance.
            used: if self.said_s == 0 { StoredConversation::now() } else { self.said_s },
        }
    }

    fn is_idle(&self) -> bool {
        self.running.is_none() && self.queue.is_empty() && !self.waits && !self.unread
    }
}

/// The conversations of a source on one worker.
#[derive(Default)]
pub(super) struct Held {
    by_id: HashMap<Arc<str>, Conversation>,
    /// The least recently used comes first.
    order: BTreeMap<u64, Arc<str>>,
    ticks: u64,
    bytes: usize,
    /// The loss of conversations has been logged.
    told: bool,
}

impl Held {
    pub fn get(&mut self, id: &Arc<str>) -> Option<&mut Conversation> {
        self.by_id.get_mut(id)
    }

    /// The conversation; created if it is not in memory.
    pub fn enter(&mut self, id: &Arc<str>, is_stored: bool) -> &mut Conversation {
        let fresh = || Conversation { unread: is_stored, is_stored, ..Conversation::default() };
        self.by_id.entry(id.clone()).or_insert_with(fresh)
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut Conversation> {
        self.by_id.values_mut()
    }

    /// Marks a conversation as used now.
    pub fn touch(&mut self, id: &Arc<str>) {
        let Some(conversation) = self.by_id.get_mut(id) else { return };
        self.ticks += 1;
        if let Some((before, _)) = conversation.used.replace((self.ticks, Instant::now())) {
            self.order.remove(&before);
        }
        self.order.insert(self.ticks, id.clone());
        self.bytes = self.bytes - conversation.counted + conversation.bytes + OVERHEAD;
        conversation.counted = conversation.bytes + OVERHEAD;
    }

    /// Evicts conversations beyond the bounds, and those that were idle for longer than `idle`.
    pub fn bound(&mut self, most: usize, most_bytes: usize, idle: Duration) {
        let is_old = |conversation: &Conversation| conversation.used.is_some_and(|(_, at)| at.elapsed() >= idle);
        let (mut count, mut bytes) = (self.by_id.len(), self.bytes);
        let mut going = Vec::new();
        for (tick, id) in self.order.iter().take(LOOKED_AT) {
            let Some(conversation) = self.by_id.get(id) else { continue };
            let too_many = count > most || bytes > most_bytes;
            if !too_many && !is_old(conversation) {
                break;
            }
            if conversation.is_idle() {
                going.push((*tick, id.clone(), too_many && !conversation.is_stored));
                (count, bytes) = (count - 1, bytes - conversation.counted);
            }
        }
        for (tick, id, is_lost) in going {
            if is_lost && !std::mem::replace(&mut self.told, true) {
                tracing::warn!(conversation = %id, most, most_bytes,
                    "more conversations than `max_held` and `max_held_mb` allow, and no state directory to store \
                     them: the least recently used ones lose their history");
            }
            self.order.remove(&tick);
            self.bytes -= self.by_id.remove(&id).map_or(0, |conversation| conversation.counted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(known: &StoredConversation) -> Vec<&str> {
        known.history.iter().map(|said| &*said.text).collect()
    }

    #[test]
    fn the_oldest_idle_ones_go_and_what_is_put_aside_is_what_is_new() {
        let mut held = Held::default();
        let id = |number: usize| -> Arc<str> { format!("c{number}").into() };
        for number in 0..10 {
            held.enter(&id(number), false).ask((1, 0), "a question".into(), 5);
            held.touch(&id(number));
        }
        held.get(&id(0)).unwrap().waits = true;
        held.touch(&id(1));
        let hour = Duration::from_secs(3600);
        held.bound(4, usize::MAX, hour);
        let mut left: Vec<usize> = (0..10).filter(|number| held.get(&id(*number)).is_some()).collect();
        assert_eq!(left, [0, 1, 8, 9], "one waits for a slot, one was used again");
        held.bound(4, 2 * (OVERHEAD + 10), hour);
        left.retain(|number| held.get(&id(*number)).is_some());
        assert_eq!((left, held.bytes), (vec![0, 1], 2 * (OVERHEAD + 10)));
        held.bound(4, usize::MAX, Duration::ZERO);
        assert_eq!((held.by_id.len(), held.order.len()), (1, 1), "idle conversations are evicted");
    }

    #[test]
    fn a_history_is_not_shown_to_other_groups() {
        let mut conversation = Conversation::default();
        let mut stored: Option<StoredConversation> = None;
        let asked = [
            (&["a"][..], &[][..]),
            (&["a"], &["q0", "r0"]),
            // A further group does not take away what the first one was told.
            (&["a", "b"], &["q0", "r0", "q1", "r1"]),
            (&["a"], &[]),
            (&[], &[]),
            (&["b"], &["q4", "r4"]),
        ];
        for (round, (groups, expected)) in asked.into_iter().enumerate() {
            conversation.continue_for(groups.iter().map(|group| Arc::from(*group)).collect());
            let seen = conversation.seen(9);
            assert_eq!(seen.iter().map(|said| &*said.text).collect::<Vec<_>>(), expected, "{groups:?}");
            conversation.ask((1 + round as u32, 0), format!("q{round}").into(), 9);
            conversation.reply = Some(format!("r{round}").into());
            let change = conversation.change();
            match &mut stored {
                Some(stored) => stored.apply(&change),
                None => stored = Some(change.into()),
            }
            conversation = Conversation::default();
            conversation.remember(stored.clone().unwrap(), 60);
        }
    }

    #[test]
    fn a_conversation_that_went_and_came_again_knows_the_same() {
        let mut conversation = Conversation::default();
        let mut stored: Option<StoredConversation> = None;
        for round in 0..8 {
            conversation.ask((1 + round, 0), format!("q{round}").into(), 5);
            conversation.reply = Some(format!("a{round}").into());
            let change = conversation.change();
            assert!(change.said.len() <= 2);
            match &mut stored {
                Some(stored) => stored.apply(&change),
                None => stored = Some(change.into()),
            }
            if round % 3 == 2 {
                let seen = conversation.seen(9);
                conversation = Conversation::default();
                conversation.remember(stored.clone().unwrap(), 60);
                assert_eq!(conversation.seen(9), seen);
            }
        }
        assert_eq!(texts(&stored.unwrap()), ["q5", "a5", "q6", "a6", "q7"]);
        assert_eq!(conversation.seen(2).iter().map(|said| &*said.text).collect::<Vec<_>>(), ["q7", "a7"]);
    }
}
