//! Turns that an earlier process answered: their answers are taken from the sinks' files, and copied to sinks that
//! lack them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use timely::dataflow::operators::Capability;

use super::{Conversations, InFlight, RecordOffset};
use crate::plan::AnswerMode;
use crate::record::{AnswerRecord, Turn};
use crate::sinks::{Acknowledged, SinkHandle};
use crate::turns::{Earlier, Generation, Read};

/// A turn that an earlier process answered, while sinks that lack the answer get a copy.
pub(super) struct TakenOver {
    pub(super) id: Arc<str>,
    pub(super) sequence: u64,
    /// It was answered by an earlier process. Else its answer is taken back.
    pub(super) is_recovered: bool,
    /// In a live pipeline: the turn, and the records that the sinks have then.
    pub(super) stands: Option<(Turn, BTreeMap<Arc<str>, AnswerRecord>)>,
    /// The sinks that have not acknowledged their copy. A reload may replace a sink meanwhile; it
    /// continues until then.
    pub(super) copies: Vec<(Arc<SinkHandle>, Arc<Acknowledged>)>,
}

impl Conversations {
    /// The answer of an earlier process to the turn, if every sink has it or can get it.
    pub(super) fn answered(&self, read: &Read, key: &Arc<str>) -> Option<(Arc<Generation>, Earlier)> {
        read.place.as_ref()?;
        let plan = self.shared.epochs.current().plan;
        let by = self.shared.generations.read().get(&plan).cloned()?;
        let earlier = by.answered(&self.source.id, key)?;
        Some((by, earlier))
    }

    /// Applies the answer of an earlier process to the conversation, and copies it to the sinks that
    /// lack it. Returns whether the turn is done; else it runs until these sinks have it.
    pub(super) fn take_over(
        &mut self,
        id: &Arc<str>,
        (read, question): (Read, Option<Arc<str>>),
        capability: Capability<u64>,
        key: Arc<str>,
        by: &Generation,
        earlier: Earlier,
    ) -> bool {
        let Earlier { text, copies } = earlier;
        let limit = self.shared.limits.read().max_utterances;
        self.sequence += 1;
        let sequence = self.sequence;
        let Some(conversation) = self.held.get(id) else { return false };
        let (history, has_reply) = conversation.begin(&read, question.as_ref(), limit, usize::MAX);
        conversation.has_key(&key);
        conversation.reply = Some(text).filter(|reply| !reply.is_empty() && !has_reply);
        let running = InFlight { sequence, read: RecordOffset::of(&read), has_reply, _capability: capability };
        conversation.running = Some(running);
        self.left(&read);
        // It is counted with its turn.
        let turn = self.turn((&read, question), history, key.clone(), 0, 0);
        let (timestamp, asked) = (turn.timestamp, turn.asked());
        let stands = (by.mode != AnswerMode::Once).then(|| {
            let mut records = by.records(&self.source.id, &key);
            records.extend(copies.iter().map(|(sink, record)| (sink.id().clone(), record.clone())));
            (turn, records)
        });
        let copies = copies.into_iter().map(|(sink, record)| {
            let wake = self.wake.clone();
            let acknowledged = Acknowledged::new(move || wake.wake());
            // The sink that has the answer has not written when it was asked.
            let record = AnswerRecord { timestamp, question: Some(asked.clone()), ..record };
            sink.deliver(vec![record], &acknowledged);
            (sink, acknowledged)
        });
        let taken = TakenOver { id: id.clone(), sequence, is_recovered: true, stands, copies: copies.collect() };
        if taken.copies.is_empty() {
            self.taken_over(taken);
            return true;
        }
        self.taking_over.push(taken);
        false
    }

    /// Applies a turn whose earlier answer every sink has.
    fn taken_over(&mut self, taken: TakenOver) {
        let TakenOver { id, sequence, is_recovered, stands, .. } = taken;
        let running = self.held.get(&id).and_then(|of| of.running.take_if(|running| running.sequence == sequence));
        let Some(running) = running else { return };
        if !is_recovered {
            self.applied(&id, &running.read);
            return;
        }
        self.shared.recovered.fetch_add(1, Ordering::AcqRel);
        if let Some((turn, records)) = stands {
            self.local.standing.adopt(turn, records, &self.shared);
        }
        self.applied(&id, &running.read);
        self.shared.outstanding.fetch_sub(1, Ordering::AcqRel);
    }

    /// Applies the turns whose copies are acknowledged; returns their conversations.
    pub(super) fn copied(&mut self) -> Vec<Arc<str>> {
        let mut copied = Vec::new();
        for taken in &mut self.taking_over {
            taken.copies.retain(|(_, acknowledged)| acknowledged.take().is_empty());
        }
        for taken in self.taking_over.extract_if(.., |taken| taken.copies.is_empty()).collect::<Vec<_>>() {
            copied.push(taken.id.clone());
            self.taken_over(taken);
        }
        copied
    }
}
