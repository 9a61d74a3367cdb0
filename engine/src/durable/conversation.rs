//! The stored state of a conversation, and its changes: a checkpoint writes only the changes.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::now_s;
use crate::connector::Applied;
use crate::record::{Speaker, Utterance};

/// An utterance, as a conversation keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The speaker.
    pub speaker: Speaker,
    /// The text.
    pub text: Arc<str>,
    /// The number of its turn, if a record has said it. 0 for the pipeline's own answers.
    #[serde(default)]
    pub turn: u32,
    /// The log of this record, among those that its source has read: its [generation](crate::connector::SourceOffset).
    #[serde(default)]
    pub log: u64,
    /// The key of its turn, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
}

impl Said {
    /// The utterance, as a turn sees it.
    pub fn utterance(&self) -> Utterance {
        Utterance { speaker: self.speaker, text: self.text.clone() }
    }
}

/// A turn that is not in the history any more, because that was cut off before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerTurn {
    /// Who said its text.
    pub speaker: Speaker,
    /// Its number.
    pub turn: u32,
    /// The [hash](crate::record::text_hash) of the text.
    pub hash: u64,
    /// Its key.
    pub key: Arc<str>,
}

/// The stored state of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredConversation {
    /// The utterances, oldest first.
    pub history: VecDeque<Said>,
    /// The number of the first utterance in `history`. Utterances are counted from 0.
    pub first: u64,
    /// The pipeline's answer to the last turn, while the log may still have another reply.
    pub reply: Option<Arc<str>>,
    /// The groups of the principals whose turns the history has.
    pub groups: Vec<Arc<str>>,
    /// Turns that are not in the history any more and may be taken back, the latest ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerTurn>,
    /// The offsets of the last applied records.
    pub applied: Applied,
    /// Time of last use, in seconds since the Unix epoch.
    pub used: u64,
}

impl StoredConversation {
    /// The current time, in the unit of `used`.
    pub fn now() -> u64 {
        now_s()
    }

    /// The number of the next utterance.
    pub fn next(&self) -> u64 {
        self.first + self.history.len() as u64
    }

    /// Applies a change; skips utterances that it already has.
    pub fn apply(&mut self, change: &ConversationChange) {
        if change.from > self.next() {
            // The utterances in between were dropped.
            self.history.clear();
            self.first = change.from;
        }
        let known = (self.next() - change.from) as usize;
        self.history.extend(change.said.iter().skip(known).cloned());
        while self.first < change.first && self.history.pop_front().is_some() {
            self.first += 1;
        }
        self.first = self.first.max(change.first);
        (self.reply, self.groups) = (change.reply.clone(), change.groups.clone());
        self.former = change.former.clone();
        (self.applied, self.used) = (change.applied.clone(), change.used);
    }
}

/// The change of a conversation since it was last stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationChange {
    /// The number of the first utterance of `said`.
    pub from: u64,
    /// The new utterances.
    pub said: Vec<Said>,
    /// The number of the first utterance to keep; older ones are dropped.
    pub first: u64,
    /// As in [`StoredConversation::reply`].
    pub reply: Option<Arc<str>>,
    /// As in [`StoredConversation::groups`].
    pub groups: Vec<Arc<str>>,
    /// As in [`StoredConversation::former`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerTurn>,
    /// As in [`StoredConversation::applied`].
    pub applied: Applied,
    /// As in [`StoredConversation::used`].
    pub used: u64,
}

impl ConversationChange {
    /// Its approximate size in memory.
    pub(super) fn bytes(&self) -> u64 {
        const OVERHEAD: usize = 256;
        let said: usize = self.said.iter().map(|said| OVERHEAD / 4 + said.text.len()).sum();
        (OVERHEAD + said + self.reply.as_ref().map_or(0, |reply| reply.len())) as u64
    }

    /// The number of the next utterance.
    pub(super) fn next(&self) -> u64 {
        self.from + self.said.len() as u64
    }

    /// Combines this change with a later one.
    pub(super) fn then(mut self, later: Self) -> Self {
        if later.from != self.next() {
            return later;
        }
        self.said.extend(later.said);
        let dropped = (later.first.saturating_sub(self.from) as usize).min(self.said.len());
        self.said.drain(..dropped);
        Self { from: self.from + dropped as u64, said: self.said, ..later }
    }
}

impl From<ConversationChange> for StoredConversation {
    fn from(change: ConversationChange) -> Self {
        let ConversationChange { from, used, .. } = change;
        let applied = change.applied.clone();
        let (history, groups, former) = Default::default();
        let mut known = Self { history, first: from, reply: None, groups, former, applied, used };
        known.apply(&change);
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: u64, said: &[&str], first: u64) -> ConversationChange {
        let said = said
            .iter()
            .map(|text| Said { speaker: Speaker::User, text: (*text).into(), turn: 1, log: 0, key: None })
            .collect();
        let (groups, former, applied) = (Vec::new(), Vec::new(), (0, from).into());
        ConversationChange { from, said, first, reply: None, groups, former, applied, used: from }
    }

    fn texts(known: &StoredConversation) -> (u64, Vec<&str>) {
        (known.first, known.history.iter().map(|said| &*said.text).collect())
    }

    #[test]
    fn changes_come_one_after_another_and_twice_is_once() {
        let one = change(0, &["a", "b"], 0);
        let other = change(2, &["c", "d"], 1);
        let both = one.clone().then(other.clone());
        assert_eq!((both.from, both.said.len(), both.first, both.used), (1, 3, 1, 2));
        for changes in [vec![one.clone(), other.clone()], vec![one.clone(), other.clone(), one.clone(), other.clone()]]
        {
            let mut known = StoredConversation::from(changes[0].clone());
            changes.iter().for_each(|change| known.apply(change));
            assert_eq!(texts(&known), (1, vec!["b", "c", "d"]));
        }
        assert_eq!(texts(&both.clone().into()), (1, vec!["b", "c", "d"]));
        // The whole history is dropped.
        let mut known = StoredConversation::from(both);
        known.apply(&change(4, &[], 4));
        assert_eq!(texts(&known), (4, vec![]));
        known.apply(&change(9, &["x"], 9));
        assert_eq!(texts(&known), (9, vec!["x"]));
    }
}
