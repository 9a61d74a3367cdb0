//! What callers were answered of late: feedback that only names an answer is joined with it.
//!
//! A bounded table in memory, for each pipeline. Responses that are stored (`stored.rs`) are found after that, too; anything
//! else is forgotten with the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use turnflow_engine::ask::AskRequest;
use turnflow_engine::record::{Speaker, Utterance};

use crate::conversation::Conversation;
use crate::stored::StoredResponse;

/// Maximum number of answers that are remembered, and of their bytes.
const MOST: usize = 1000;
const BYTES: usize = 16 << 20;
/// The memory of an answer besides its texts, in bytes.
const OVERHEAD: usize = 500;

/// What was asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// The conversation.
    pub conversation: Arc<str>,
    /// The number of the turn in it.
    pub turn: u32,
    /// The question.
    pub question: Arc<str>,
    /// What was said before.
    pub history: Vec<Utterance>,
    /// The collection that was searched.
    pub collection: Option<Arc<str>>,
}

impl Asked {
    /// What a request asks.
    pub fn of(request: &AskRequest) -> Self {
        Self {
            conversation: request.conversation_id.clone(),
            turn: request.turn,
            question: request.text.clone(),
            history: request.history.clone(),
            collection: request.collection.clone(),
        }
    }
}

/// An answer with its question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answered {
    /// The question.
    pub asked: Asked,
    /// The answer.
    pub answer: String,
    /// The ids of the passages that it is based on.
    pub passages: Vec<Arc<str>>,
}

impl Answered {
    /// The last answer of a stored response; `None` if it has none.
    pub fn stored(stored: &StoredResponse) -> Option<Self> {
        let (answer, before) = stored.messages.split_last()?;
        let Conversation { history, question, .. } = Conversation::of(before, "messages").ok()?;
        let users = history.iter().filter(|utterance| utterance.speaker == Speaker::User).count();
        Some(Self {
            asked: Asked {
                conversation: stored.conversation_id.as_str().into(),
                turn: u32::try_from(users).unwrap_or(u32::MAX).saturating_add(1),
                question,
                history,
                collection: stored.collection.clone(),
            },
            answer: answer["content"].as_str()?.to_owned(),
            passages: stored.passages.clone(),
        })
    }

    fn bytes(&self) -> usize {
        let texts = self.asked.history.iter().map(|utterance| utterance.text.len() + OVERHEAD / 10);
        let passages = self.passages.iter().map(|id| id.len());
        OVERHEAD
            + self.asked.conversation.len()
            + self.asked.question.len()
            + self.answer.len()
            + texts.chain(passages).sum::<usize>()
    }
}

/// How feedback names an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// By its id.
    Id(String),
    /// By its conversation and its number.
    Turn(Arc<str>, u64),
}

/// The answers that a pipeline has given of late.
#[derive(Default)]
pub struct RecentAnswers(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// By its number, in the order in which they were given.
    answers: BTreeMap<u64, Entry>,
    /// The numbers by caller and name.
    names: HashMap<(Arc<str>, Named), u64>,
    next: u64,
    bytes: usize,
}

impl Table {
    fn remove(&mut self, number: u64) {
        let Some(Entry { caller, names, bytes, .. }) = self.answers.remove(&number) else { return };
        self.bytes -= bytes;
        for name in names {
            let key = (caller.clone(), name);
            // A newer answer may have the same name.
            if self.names.get(&key) == Some(&number) {
                self.names.remove(&key);
            }
        }
    }
}

struct Entry {
    caller: Arc<str>,
    names: Vec<Named>,
    answered: Arc<Answered>,
    bytes: usize,
}

impl RecentAnswers {
    /// Remembers what a caller was answered. `id` names it, if it has one; so do its conversation and its turn.
    pub fn add(&self, caller: &Arc<str>, id: Option<String>, answered: Answered) {
        let bytes = answered.bytes();
        if bytes > BYTES {
            return;
        }
        let turn = Named::Turn(answered.asked.conversation.clone(), answered.asked.turn.into());
        let names: Vec<Named> = id.map(Named::Id).into_iter().chain([turn]).collect();
        let mut table = self.0.lock();
        let number = table.next;
        table.next += 1;
        table.bytes += bytes;
        for name in &names {
            table.names.insert((caller.clone(), name.clone()), number);
        }
        let entry = Entry { caller: caller.clone(), names, answered: Arc::new(answered), bytes };
        table.answers.insert(number, entry);
        while table.answers.len() > MOST || table.bytes > BYTES {
            let Some((&oldest, _)) = table.answers.first_key_value() else { break };
            table.remove(oldest);
        }
    }

    /// Forgets an answer: its caller has deleted it.
    pub fn forget(&self, caller: &Arc<str>, id: &str) {
        let mut table = self.0.lock();
        if let Some(&number) = table.names.get(&(caller.clone(), Named::Id(id.to_owned()))) {
            table.remove(number);
        }
    }

    /// What a caller was answered; `None` if it is not known, or not any more.
    pub fn find(&self, caller: &Arc<str>, name: &Named) -> Option<Arc<Answered>> {
        let table = self.0.lock();
        let number = table.names.get(&(caller.clone(), name.clone()))?;
        table.answers.get(number).map(|entry| entry.answered.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(turn: u32, answer: &str) -> Answered {
        let asked = Asked { conversation: "c".into(), turn, question: "why?".into(), ..Asked::default() };
        Answered { asked, answer: answer.to_owned(), passages: vec!["a#0".into()] }
    }

    #[test]
    fn the_newest_answers_of_a_caller_are_known() {
        let (recent, ann, bob): (_, Arc<str>, Arc<str>) = (RecentAnswers::default(), "ann".into(), "bob".into());
        for turn in 1..=MOST as u32 + 1 {
            recent.add(&ann, Some(format!("id-{turn}")), answered(turn, "because"));
        }
        let find = |caller, name| recent.find(caller, &name).map(|found| found.answer.clone());
        assert_eq!(find(&ann, Named::Id("id-1".to_owned())), None, "it is the oldest");
        assert_eq!(find(&ann, Named::Id("id-2".to_owned())).as_deref(), Some("because"));
        assert_eq!(find(&bob, Named::Id("id-2".to_owned())), None, "it is another caller's");
        // A turn that is answered again has a new answer, which outlives the first.
        recent.add(&ann, None, answered(2, "again"));
        recent.add(&ann, None, answered(5000, "other"));
        assert_eq!(find(&ann, Named::Id("id-2".to_owned())), None);
        assert_eq!(find(&ann, Named::Turn("c".into(), 2)).as_deref(), Some("again"));
        // The names of conversations count, which callers choose.
        let mut named = answered(7000, "because");
        named.asked.conversation = "x".repeat(BYTES).into();
        recent.add(&ann, None, named);
        assert_eq!(find(&ann, Named::Turn("x".repeat(BYTES).into(), 7000)), None);
        // One that is deleted is forgotten, and no other.
        recent.add(&ann, Some("gone".to_owned()), answered(6000, "gone"));
        recent.forget(&bob, "gone");
        assert!(find(&ann, Named::Id("gone".to_owned())).is_some(), "it is another caller's");
        recent.forget(&ann, "gone");
        assert_eq!((find(&ann, Named::Id("gone".to_owned())), find(&ann, Named::Turn("c".into(), 6000))), (None, None));
        assert!(find(&ann, Named::Turn("c".into(), 5000)).is_some());
        // Long answers are bounded by their bytes, and one that is too long is not kept.
        recent.add(&bob, None, answered(1, &"x".repeat(BYTES + 1)));
        assert_eq!(find(&bob, Named::Turn("c".into(), 1)), None);
        recent.add(&bob, None, answered(2, &"x".repeat(BYTES - 2 * OVERHEAD)));
        assert!(find(&bob, Named::Turn("c".into(), 2)).is_some());
        assert_eq!(find(&ann, Named::Turn("c".into(), 2)), None);
        let table = recent.0.lock();
        assert!(table.names.len() == 1 && table.bytes <= BYTES, "{}", table.names.len());
    }
}
