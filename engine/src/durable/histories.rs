//! What was said in the conversations of a state directory that no process uses. Turns that are answered later, such as
//! those of dead letters, see what was said before them, and what they say gets its place.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::conversation::{ConversationChange, Said, StoredConversation};
use super::store::Store;
use super::{Key, STORE, StoreError};
use crate::record::{Speaker, TurnRecord, Utterance, groups};

/// The conversations of one source.
pub struct Histories {
    source: Arc<str>,
    idle_s: u64,
    /// Maximum number of utterances of a conversation.
    most: usize,
    conversations: HashMap<Arc<str>, History>,
}

#[derive(Clone)]
struct History {
    stored: StoredConversation,
    is_changed: bool,
}

impl Histories {
    /// Of these conversations. Those that were idle for longer than `idle_s` seconds begin anew.
    ///
    /// # Errors
    ///
    /// The database is in use, or cannot be read.
    pub fn read<'a>(
        state: Option<&Path>,
        source: &str,
        conversations: impl Iterator<Item = &'a Arc<str>>,
        (idle_s, most): (u64, usize),
    ) -> Result<Self, StoreError> {
        let path = state.map(|state| state.join(STORE)).filter(|path| path.exists());
        let store = path.as_deref().map(Store::open).transpose()?;
        let mut histories = Self { source: source.into(), idle_s, most, conversations: HashMap::new() };
        for id in conversations {
            let stored = store.as_ref().map(|store| store.conversation(source, id)).transpose()?.flatten();
            let history = History::of(stored, histories.idle_s);
            histories.conversations.entry(id.clone()).or_insert(history);
        }
        Ok(histories)
    }

    /// What was said before a turn; nothing of what its principal may not read.
    pub fn before(&self, record: &TurnRecord) -> Vec<Utterance> {
        let Some(History { stored, .. }) = self.conversations.get(&record.conversation_id) else { return Vec::new() };
        let groups = groups(&record.extra);
        if !stored.groups.iter().all(|group| groups.binary_search(group).is_ok()) {
            return Vec::new();
        }
        let said = all_said(stored);
        let end = place(&said, record).at;
        said[end.saturating_sub(self.most)..end].iter().map(Said::utterance).collect()
    }

    /// Adds what a turn says, and the answer to it. A principal of other groups than the conversation's changes nothing.
    pub fn add(&mut self, record: &TurnRecord, answer: Option<Arc<str>>) {
        let Some(history) = self.conversations.get_mut(&record.conversation_id) else { return };
        let stored = &mut history.stored;
        let groups = groups(&record.extra);
        let mut said = all_said(stored);
        if !said.is_empty() && stored.groups != groups && record.speaker == Speaker::User {
            return;
        }
        let Place { at, is_known } = place(&said, record);
        let mut after = at + 1;
        if !is_known {
            let (speaker, text) = (record.speaker, record.text.clone());
            let new = Said { speaker, text, turn: record.turn, log: 0, key: None };
            // The agent's own text comes instead of our answer.
            match said.get_mut(at.wrapping_sub(1)).filter(|last| speaker == Speaker::Agent && is_ours(last)) {
                Some(ours) => {
                    *ours = new;
                    after = at;
                }
                None => said.insert(at, new),
            }
        }
        if record.speaker == Speaker::User {
            stored.groups = groups;
            if let Some(text) = answer.filter(|text| !text.is_empty())
                && said.get(after).is_none_or(|next| next.speaker == Speaker::User)
            {
                said.insert(after, Said { speaker: Speaker::Agent, text, turn: 0, log: 0, key: None });
            }
        }
        // Our last answer waits for the log's own.
        stored.reply = said.pop_if(|last| is_ours(last)).map(|ours| ours.text);
        said.drain(..said.len().saturating_sub(self.most));
        stored.first = stored.next();
        stored.history = said.into();
        history.is_changed = true;
    }

    /// Writes the changed conversations.
    ///
    /// # Errors
    ///
    /// The database is in use, or cannot be written.
    pub fn keep(self, state: &Path) -> Result<(), StoreError> {
        let changed = self.conversations.into_iter().filter(|(_, history)| history.is_changed);
        let changes: HashMap<Key, ConversationChange> =
            changed.map(|(id, history)| ((self.source.clone(), id), history.change())).collect();
        if changes.is_empty() {
            return Ok(());
        }
        Ok(Store::open(&state.join(STORE))?.write(&[], &changes, &HashMap::new())?)
    }
}

impl History {
    fn of(stored: Option<StoredConversation>, idle_s: u64) -> Self {
        let now = StoredConversation::now();
        let fresh = |stored: Option<&StoredConversation>| StoredConversation {
            history: Default::default(),
            first: stored.map_or(0, StoredConversation::next),
            reply: None,
            groups: Vec::new(),
            former: stored.map(|stored| stored.former.clone()).unwrap_or_default(),
            applied: stored.map(|stored| stored.applied.clone()).unwrap_or_default(),
            used: now,
        };
        let stored = match stored {
            Some(stored) if stored.used.saturating_add(idle_s) >= now => stored,
            stored => fresh(stored.as_ref()),
        };
        Self { stored, is_changed: false }
    }

    /// The store only appends: all is appended again, and what was there is dropped.
    fn change(self) -> ConversationChange {
        let StoredConversation { history, first, reply, groups, former, applied, used } = self.stored;
        ConversationChange { from: first, said: history.into(), first, reply, groups, former, applied, used }
    }
}

/// All that was said, our last answer included.
fn all_said(stored: &StoredConversation) -> Vec<Said> {
    let ours = stored.reply.clone().map(|text| Said { speaker: Speaker::Agent, text, turn: 0, log: 0, key: None });
    stored.history.iter().cloned().chain(ours).collect()
}

/// Whether the pipeline has said it.
fn is_ours(said: &Said) -> bool {
    said.speaker == Speaker::Agent && said.turn == 0
}

/// Where a turn is, or belongs.
struct Place {
    at: usize,
    /// What it says is there.
    is_known: bool,
}

/// A question comes before what the agent says to it, and our answers stay behind their questions.
fn place(said: &[Said], record: &TurnRecord) -> Place {
    let is_same = |said: &Said| said.speaker == record.speaker && said.turn == record.turn && said.text == record.text;
    if let Some(at) = said.iter().rposition(is_same) {
        return Place { at, is_known: true };
    }
    let is_later = |said: &Said| match record.speaker {
        Speaker::User => said.turn >= record.turn && said.turn > 0,
        Speaker::Agent => said.turn > record.turn,
    };
    Place { at: said.iter().position(is_later).unwrap_or(said.len()), is_known: false }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(turn: u32, speaker: &str, text: &str) -> TurnRecord {
        let record = json!({ "conversation_id": "c", "turn": turn, "speaker": speaker, "text": text });
        TurnRecord::parse(record.to_string().as_bytes()).unwrap()
    }

    fn texts(said: Vec<Utterance>) -> Vec<String> {
        said.iter().map(|said| said.text.to_string()).collect()
    }

    #[test]
    fn turns_that_are_answered_later_get_their_places() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let id = Arc::<str>::from("c");
        let read = || Histories::read(Some(path), "turns", [&id].into_iter(), (60, 20)).unwrap();
        let all = |histories: &Histories| texts(histories.before(&record(99, "user", "later")));
        let mut first = Histories::read(None, "turns", [&id].into_iter(), (60, 20)).unwrap();
        for (turn, answer) in [(1, "a1"), (2, ""), (4, "a4")] {
            first.add(&record(turn, "user", &format!("q{turn}")), Some(answer.into()));
        }
        first.keep(path).unwrap();
        let mut histories = read();
        assert_eq!(all(&histories), ["q1", "a1", "q2", "q4", "a4"]);
        // The question is known, and its answer is not; another one was never taken.
        assert_eq!(texts(histories.before(&record(2, "user", "q2"))), ["q1", "a1"]);
        histories.add(&record(2, "user", "q2"), Some("a2".into()));
        assert_eq!(texts(histories.before(&record(3, "user", "q3"))), ["q1", "a1", "q2", "a2"]);
        histories.add(&record(3, "user", "q3"), Some("a3".into()));
        histories.keep(path).unwrap();
        let mut histories = read();
        assert_eq!(all(&histories), ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]);
        // The log's own agent is heard instead of our answers, once.
        for _ in 0..2 {
            histories.add(&record(2, "agent", "said"), None);
            histories.add(&record(4, "agent", "at last"), None);
        }
        histories.add(&record(5, "agent", "and on"), None);
        histories.keep(path).unwrap();
        assert_eq!(all(&read()), ["q1", "a1", "q2", "said", "q3", "a3", "q4", "at last", "and on"]);
        let short = Histories::read(Some(path), "turns", [&id].into_iter(), (60, 2)).unwrap();
        assert_eq!(all(&short), ["at last", "and on"]);
    }

    #[test]
    fn an_idle_conversation_begins_anew_and_others_do_not_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let id = Arc::<str>::from("c");
        let of = |groups: &str, turn: u32| {
            let mut record = record(turn, "user", &format!("q{turn}"));
            record.extra.insert("principal".into(), json!({ "groups": [groups] }));
            record
        };
        let mut histories = Histories::read(Some(path), "turns", [&id].into_iter(), (60, 20)).unwrap();
        histories.add(&of("staff", 1), Some("secret".into()));
        assert_eq!(texts(histories.before(&of("staff", 2))), ["q1", "secret"]);
        assert!(histories.before(&of("guests", 2)).is_empty());
        histories.add(&of("guests", 2), Some("open".into()));
        assert_eq!(texts(histories.before(&of("staff", 3))), ["q1", "secret"]);
        let History { mut stored, .. } = histories.conversations.remove(&id).unwrap();
        stored.used -= 61;
        let anew = History::of(Some(stored), 60);
        assert!(anew.stored.history.is_empty() && anew.stored.reply.is_none() && anew.stored.first == 1);
    }
}
