//! Records that come again. A producer that sends each record at least once sends some twice; an editor or a regenerated
//! reply sends a turn with another text.
//!
//! A conversation recognises them among the utterances that it keeps, by speaker, turn and text. The same record in another
//! log is a new one, because a log may begin with the same record every day. The records of a queue are not looked at: the
//! program that fills it waits for an answer to each.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Conversations;
use super::held::Conversation;
use super::withdrawn::is_version;
use crate::durable::{Said, StoredConversation};
use crate::plan::AnswerMode;
use crate::record::{IN_ROW, Speaker};
use crate::turns::Read;

/// What a conversation knows of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing.
    New,
    /// It has the same record.
    Same,
    /// It has another text of the turn, at this place in its history.
    Other(usize),
}

/// Whether what a record says follows what its speaker has said before.
pub(super) fn is_in_row(read: &Read) -> bool {
    read.record.extra.get(IN_ROW).is_some_and(|is_in_row| is_in_row == true)
}

impl Conversation {
    fn known(&self, speaker: Speaker, (turn, log): (u32, u64), text: &str) -> Known {
        let of_turn = self.history.iter().enumerate().filter(|(_, said)| said.turn == turn && said.speaker == speaker);
        let (mut other, mut is_elsewhere) = (None, false);
        // What the agent said before the question of the turn, such as a greeting, is no earlier reply to it.
        let is_of_turn = |said: &Said| said.turn == turn && said.speaker == Speaker::User;
        let question = self.history.iter().rposition(is_of_turn).filter(|_| speaker == Speaker::Agent);
        for (at, said) in of_turn {
            match *said.text == *text {
                true if said.log == log => return Known::Same,
                true => is_elsewhere = true,
                false if question.is_some_and(|question| at < question) => {}
                false => other = other.or(Some(at)),
            }
        }
        other.filter(|_| !is_elsewhere).map_or(Known::New, Known::Other)
    }
}

impl Conversations {
    /// Whether answers stand.
    fn is_live(&self) -> bool {
        let plan = self.shared.epochs.current().plan;
        self.shared.generations.read().get(&plan).is_some_and(|generation| generation.mode != AnswerMode::Once)
    }

    /// Whether the conversation has the same record. If it has another text of the turn, its history ends before it.
    pub(super) fn came_again(&mut self, id: &Arc<str>, read: &Read) -> bool {
        if read.record.speaker == Speaker::Agent && is_in_row(read) {
            return false;
        }
        let is_queued = self.source.is_queue || read.place.is_none() || read.history.is_some();
        let (idle_s, is_live) = (self.shared.limits.read().idle_s, self.is_live());
        let Some(conversation) = self.held.get(id).filter(|_| !is_queued) else { return false };
        // A question that a monitor asks each day is asked again.
        if conversation.said_s.saturating_add(idle_s) < StoredConversation::now() {
            return false;
        }
        let record = &read.record;
        let (source, position) = (&self.source.clone().id, &read.position);
        match conversation.known(record.speaker, read.turn(), &record.text) {
            Known::New => {
                // The history was cut off before an earlier version.
                let former = match is_version(read) || is_live {
                    true => conversation
                        .take_former(|former| former.speaker == record.speaker && former.turn == record.turn),
                    false => Vec::new(),
                };
                self.retract(id, former.into_iter().map(Into::into).collect());
                false
            }
            Known::Same => {
                self.shared.activity.repeated(source);
                self.shared.repeated.fetch_add(1, Ordering::AcqRel);
                if !std::mem::replace(&mut self.told.0, true) {
                    tracing::warn!(%source, conversation = %id, turn = record.turn, position,
                        "a record came again with the same conversation, turn and text; such records are counted and not \
                         answered a second time");
                }
                true
            }
            Known::Other(at) => {
                let former = conversation.withdrawn(at);
                conversation.cut(at);
                if is_version(read) || is_live {
                    // It is taken back now.
                    conversation.take_former(|left| former.as_ref().is_some_and(|former| former.key == left.key));
                }
                self.shared.activity.replaced(source);
                // The retraction comes before the new answer in the queue of each sink.
                if is_version(read) || is_live {
                    self.retract(id, former.into_iter().collect());
                }
                if !std::mem::replace(&mut self.told.1, true) {
                    tracing::warn!(%source, conversation = %id, turn = record.turn, position,
                        "a turn came again with another text; it is taken as its new version, and the history before it \
                         is that of the earlier one");
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_by_speaker_turn_and_text() {
        let mut conversation = Conversation::default();
        for turn in 1..=3 {
            conversation.ask((turn, 7), format!("q{turn}").into(), 9);
            match turn {
                2 => conversation.say(Speaker::Agent, (2, 7), "r2".into(), 9),
                _ => conversation.reply = Some(format!("own {turn}").into()),
            }
        }
        let known = |speaker, turn, text| conversation.known(speaker, (turn, 7), text);
        assert_eq!(known(Speaker::User, 2, "q2"), Known::Same);
        assert_eq!(known(Speaker::Agent, 2, "r2"), Known::Same);
        assert_eq!(known(Speaker::User, 2, "other"), Known::Other(2));
        assert_eq!(known(Speaker::Agent, 2, "other"), Known::Other(3));
        for (speaker, turn, text) in [
            (Speaker::User, 4, "q3"),
            (Speaker::Agent, 1, "own 1"),
            (Speaker::Agent, 3, "own 3"),
            (Speaker::User, 0, "q1"),
        ] {
            assert_eq!(known(speaker, turn, text), Known::New, "{speaker:?} {turn} {text}");
        }
        // A greeting has the number of the question behind it.
        let mut greeted = Conversation::default();
        greeted.say(Speaker::Agent, (1, 7), "welcome".into(), 9);
        greeted.ask((1, 7), "q1".into(), 9);
        assert_eq!(greeted.known(Speaker::Agent, (1, 7), "r1"), Known::New);
        assert_eq!(greeted.known(Speaker::Agent, (1, 7), "welcome"), Known::Same);
        assert_eq!(greeted.known(Speaker::User, (1, 7), "other"), Known::Other(1));
        // Another log may begin with the same record, or have a new version of it.
        assert_eq!(conversation.known(Speaker::User, (2, 8), "q2"), Known::New);
        assert_eq!(conversation.known(Speaker::User, (2, 8), "other"), Known::Other(2));
    }

    #[test]
    fn a_new_version_ends_the_history_and_the_store_has_the_same() {
        let mut conversation = Conversation::default();
        let mut stored: Option<crate::durable::StoredConversation> = None;
        for (turn, text, expected) in [
            (1, "a", &["a"][..]),
            (2, "b", &["a", "own a", "b"]),
            (3, "c", &["a", "own a", "b", "own b", "c"]),
            (2, "b again", &["a", "own a", "b again"]),
            (3, "c", &["a", "own a", "b again", "own b again", "c"]),
            (1, "another", &["another"]),
        ] {
            if let Known::Other(at) = conversation.known(Speaker::User, (turn, 0), text) {
                conversation.cut(at);
            }
            conversation.ask((turn, 0), text.into(), 99);
            let texts =
                |said: Vec<crate::record::Utterance>| said.iter().map(|said| said.text.to_string()).collect::<Vec<_>>();
            assert_eq!(texts(conversation.seen(99)), expected);
            conversation.reply = Some(format!("own {text}").into());
            let change = conversation.change();
            match &mut stored {
                Some(stored) => stored.apply(&change),
                None => stored = Some(change.into()),
            }
            let mut again = Conversation::default();
            again.remember(stored.clone().unwrap(), 60);
            assert_eq!(again.seen(99), conversation.seen(99));
            assert_eq!(again.known(Speaker::User, (turn, 0), text), Known::Same);
        }
    }
}
