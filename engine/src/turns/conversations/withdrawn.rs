//! Questions and replies that are taken back: their author deleted them, or wrote them anew.
//!
//! A record with [`REMOVED`] takes what its turn said out of the history. If that was answered, the sinks get the retraction
//! of the answer, and the turn stands no more. The record is applied when the sinks have acknowledged it. The answer to a
//! question that comes again with another text is retracted before the new one, in the order of each sink.

use std::sync::Arc;

use serde_json::Value as Json;
use timely::dataflow::operators::Capability;

use super::held::Conversation;
use super::taken_over::TakenOver;
use super::{Conversations, InFlight, RecordOffset};
use crate::durable::{FormerTurn, Said};
use crate::record::{AnswerRecord, Provenance, REMOVED, Speaker, Status, text_hash};
use crate::sinks::{Acknowledged, SinkHandle};
use crate::turns::Read;

/// A turn whose answer is taken back.
pub(super) struct Withdrawn {
    pub(super) key: Arc<str>,
    turn: u32,
    question: Arc<str>,
    answer: Arc<str>,
}

/// Which utterances of its turn a record takes back.
enum Removal {
    All,
    /// Those with this hash.
    Of(u64),
}

impl Removal {
    /// `None`: the record says something.
    fn of(read: &Read) -> Option<Self> {
        match read.record.extra.get(REMOVED)? {
            Json::Bool(true) if is_blank(read) => Some(Self::All),
            Json::Bool(true) => Some(Self::Of(text_hash(&read.record.text))),
            Json::String(hash) if is_blank(read) => u64::from_str_radix(hash, 16).ok().map(Self::Of),
            _ => None,
        }
    }

    fn names(&self, hash: u64) -> bool {
        match self {
            Self::All => true,
            Self::Of(of) => *of == hash,
        }
    }
}

fn is_blank(read: &Read) -> bool {
    read.record.text.trim().is_empty()
}

/// Whether the record says that it is another version of what its turn has said.
pub(super) fn is_version(read: &Read) -> bool {
    read.record.extra.get(REMOVED).is_some_and(Json::is_string) && !is_blank(read)
}

impl Conversation {
    /// The turns of the utterances that a record takes back.
    fn named(&self, read: &Read, removal: &Removal) -> Vec<Withdrawn> {
        let is_named = |at: &usize| is_named(read, removal, &self.history[*at]);
        (0..self.history.len()).filter(is_named).filter_map(|at| self.withdrawn(at)).collect()
    }

    /// Takes back what a turn has said, with the pipeline's own answer to it. Returns its turns; `None`: it is not known.
    fn take_back(&mut self, read: &Read, removal: &Removal) -> Option<Vec<Withdrawn>> {
        let mut withdrawn = self.named(read, removal);
        let (speaker, turn) = (read.record.speaker, read.record.turn);
        let is_former =
            |former: &FormerTurn| former.speaker == speaker && former.turn == turn && removal.names(former.hash);
        withdrawn.extend(self.take_former(is_former).into_iter().map(Withdrawn::from));
        if self.history.back().is_some_and(|last| is_named(read, removal, last)) {
            self.reply = None;
        }
        let mut is_answer_of_taken = false;
        let taken = self.take_out(|said| {
            let is_own = said.speaker == Speaker::Agent && said.turn == 0;
            is_answer_of_taken = is_named(read, removal, said) || is_answer_of_taken && is_own;
            is_answer_of_taken
        });
        (!taken.is_empty() || !withdrawn.is_empty()).then_some(withdrawn)
    }

    /// The turn that this utterance began, and the answer that the history has to it. What answers a question is that of the
    /// pipeline; what the log's agent said has a turn of its own if a plan judges it.
    pub(super) fn withdrawn(&self, at: usize) -> Option<Withdrawn> {
        let said = self.history.get(at)?;
        let own = |said: &Said| said.speaker == Speaker::Agent && said.turn == 0;
        let (question, answer) = match said.speaker {
            Speaker::User => {
                let next = self.history.get(at + 1).filter(|next| own(next)).map(|next| &next.text);
                let pending = self.reply.as_ref().filter(|_| at + 1 == self.history.len());
                (&said.text, next.or(pending))
            }
            Speaker::Agent => {
                let question = at.checked_sub(1).map(|before| &self.history[before].text);
                (question.unwrap_or(&said.text), Some(&said.text))
            }
        };
        Some(Withdrawn {
            key: said.key.clone()?,
            turn: said.turn,
            question: question.clone(),
            answer: answer.cloned().unwrap_or_else(|| "".into()),
        })
    }
}

impl Conversations {
    /// Whether the record takes something back. Then it is applied, now or when the sinks have the retractions.
    pub(super) fn takes_back(&mut self, id: &Arc<str>, read: &Read, capability: &Capability<u64>) -> bool {
        let is_queued = self.source.is_queue || read.place.is_none() || read.history.is_some();
        let Some(removal) = Removal::of(read).filter(|_| !is_queued) else { return false };
        let Some(conversation) = self.held.get(id) else { return false };
        let (withdrawn, record) = (conversation.take_back(read, &removal), &read.record);
        if withdrawn.is_none() && !std::mem::replace(&mut self.told.2, true) {
            tracing::warn!(source = %self.source.id, conversation = %id, turn = record.turn, position = read.position,
                "a record takes back what the conversation does not have, or has forgotten; nothing is taken back");
        }
        let copies = self.retract(id, withdrawn.unwrap_or_default());
        self.uncount(read);
        self.left(read);
        if copies.is_empty() {
            self.applied(id, &RecordOffset::of(read));
            return true;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        if let Some(conversation) = self.held.get(id) {
            let place = RecordOffset::of(read);
            conversation.running =
                Some(InFlight { sequence, read: place, has_reply: true, _capability: capability.clone() });
        }
        self.taking_over.push(TakenOver { id: id.clone(), sequence, is_recovered: false, stands: None, copies });
        true
    }

    /// Whether a turn that the record takes back or replaces is being answered again: then the sinks get another record
    /// first, and that is retracted.
    pub(super) fn is_to_wait(&mut self, id: &Arc<str>, read: &Read) -> bool {
        let local = self.local.clone();
        let is_queued = self.source.is_queue || read.place.is_none() || read.history.is_some();
        let Some(conversation) = self.held.get(id).filter(|_| !is_queued) else { return false };
        let (speaker, turn, removal) = (read.record.speaker, read.record.turn, Removal::of(read));
        // Only what is taken back is not answered again any more.
        let is_named = |hash: u64| removal.as_ref().is_none_or(|removal| removal.names(hash));
        conversation.keys(speaker, turn, is_named).any(|key| local.standing.is_leaving(key, removal.is_some()))
    }

    /// Retracts answers for good: the sinks get the retraction of what they have, and the turns stand no more.
    pub(super) fn retract(
        &mut self,
        id: &Arc<str>,
        withdrawn: Vec<Withdrawn>,
    ) -> Vec<(Arc<SinkHandle>, Arc<Acknowledged>)> {
        if withdrawn.is_empty() {
            return Vec::new();
        }
        self.shared.activity.withdrawn(&self.source.id, withdrawn.len() as u64);
        let current = self.shared.epochs.current();
        let Some(by) = self.shared.generations.read().get(&current.plan).cloned() else { return Vec::new() };
        let sinks: Vec<Arc<SinkHandle>> =
            by.sinks_of(&self.source.id).into_iter().flatten().map(|(_, sink)| sink.clone()).collect();
        let mut records: Vec<Vec<AnswerRecord>> = sinks.iter().map(|_| Vec::new()).collect();
        for one in withdrawn {
            let mut known = by.records(&self.source.id, &one.key);
            known.extend(self.local.standing.withdraw(&one.key, &self.shared));
            for (sink, records) in sinks.iter().zip(&mut records) {
                let known = known.get(sink.id()).cloned();
                let record = known.unwrap_or_else(|| one.record(id, &by.stamp, current.epoch));
                records.push(AnswerRecord { retracted: true, withdrawn: true, ..record });
            }
        }
        let deliver = |(sink, records): (Arc<SinkHandle>, Vec<AnswerRecord>)| {
            let wake = self.wake.clone();
            let acknowledged = Acknowledged::new(move || wake.wake());
            sink.deliver(records, &acknowledged);
            (sink, acknowledged)
        };
        sinks.into_iter().zip(records).map(deliver).collect()
    }
}

fn is_named(read: &Read, removal: &Removal, said: &Said) -> bool {
    let record = &read.record;
    said.speaker == record.speaker
        && said.turn == record.turn
        && record.turn > 0
        && removal.names(text_hash(&said.text))
}

impl From<FormerTurn> for Withdrawn {
    fn from(FormerTurn { turn, key, .. }: FormerTurn) -> Self {
        Self { key, turn, question: "".into(), answer: "".into() }
    }
}

impl Withdrawn {
    /// The record of the answer, as far as the conversation knows it.
    fn record(&self, id: &Arc<str>, stamp: &Provenance, epoch: u64) -> AnswerRecord {
        AnswerRecord {
            conversation_id: id.clone(),
            turn: self.turn,
            revision: 0,
            key: self.key.clone(),
            retracted: true,
            withdrawn: true,
            status: Status::Answered,
            query: self.question.clone(),
            answer: self.answer.clone(),
            error: None,
            hits: Vec::new(),
            checks: Default::default(),
            stamp: Provenance { epoch, ..stamp.clone() },
            latency_ms: 0.0,
            tokens: Default::default(),
            timestamp: None,
            question: None,
            extra: Default::default(),
        }
    }
}
