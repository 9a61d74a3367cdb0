//! The replies of the log's own agent, where a plan judges them: the turn of a question begins when its reply has come.
//!
//! Until then the question is an utterance of the history, which outlives the process. The agent's record is applied when
//! its turn is delivered, so that a restart reads it again until then.

use std::sync::Arc;

use super::Conversations;
use super::again::is_in_row;
use super::held::Conversation;
use crate::record::{REPLY, Speaker, Utterance, groups};
use crate::turns::Read;

/// What a record is to its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Something said, which has no turn.
    Said,
    /// The user's text, whose turn begins.
    Asked,
    /// The agent's reply to this question, whose turn begins.
    Replied(Arc<str>),
}

impl Conversations {
    /// What a record is to its conversation, as the current plan takes it.
    pub(super) fn part(&mut self, id: &Arc<str>, read: &Read) -> Part {
        let is_user = read.record.speaker == Speaker::User;
        let plan = self.shared.epochs.current().plan;
        let generation = self.shared.generations.read().get(&plan).cloned();
        let takes_replies = generation.is_some_and(|generation| generation.takes_replies(&self.source.id));
        // The program that fills a queue waits for an answer to each.
        if !takes_replies || self.source.is_queue || read.history.is_some() {
            return if is_user { Part::Asked } else { Part::Said };
        }
        if is_user {
            return if has_reply(read) { Part::Asked } else { Part::Said };
        }
        let last = self.held.get(id).and_then(|conversation| conversation.history.back());
        match last.filter(|last| last.speaker == Speaker::User) {
            Some(question) => Part::Replied(question.text.clone()),
            None => Part::Said,
        }
    }
}

fn has_reply(read: &Read) -> bool {
    read.record.extra.get(REPLY).is_some_and(serde_json::Value::is_string)
}

impl Conversation {
    /// In a log with its agent's replies, nothing of ours stands between two questions.
    fn without_own(&mut self, read: &Read) {
        if is_in_row(read) {
            self.reply = None;
        }
    }

    /// Adds what a record says without a turn.
    pub fn hear(&mut self, read: &Read, limit: usize) {
        let text = read.record.text.clone();
        if read.record.speaker == Speaker::User {
            self.without_own(read);
            self.continue_for(groups(&read.record.extra));
            self.ask(read.turn(), text, limit);
        } else {
            self.reply = None;
            self.say(Speaker::Agent, read.turn(), text, limit);
        }
    }

    /// Adds what the record of a turn says. Returns the history of the turn, of at most `seen` utterances, and whether it
    /// has the agent's own reply, which is then in the history of the next one. `question`: what the record replies to.
    pub fn begin(
        &mut self,
        read: &Read,
        question: Option<&Arc<str>>,
        limit: usize,
        seen: usize,
    ) -> (Vec<Utterance>, bool) {
        let text = read.record.text.clone();
        if question.is_some() {
            let mut history = self.seen(seen.saturating_add(1));
            history.pop();
            // The history may say what this principal may not read.
            if !self.is_known_to(&groups(&read.record.extra)) {
                history.clear();
            }
            self.reply = None;
            self.say(Speaker::Agent, read.turn(), text, limit);
            return (history, true);
        }
        self.without_own(read);
        self.continue_for(groups(&read.record.extra));
        let history = read.history.clone().unwrap_or_else(|| self.seen(seen));
        self.ask(read.turn(), text, limit);
        (history, false)
    }
}
