//! Switches to another feed, and adds indexes.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{AddedIndex, IndexWriter, committed, view};
use crate::component::{Delta, IndexError, Passages};
use crate::corpus::chunks::{Chunks, Numbers, difference};
use crate::corpus::slot::Slot;
use crate::corpus::{Parts, RETRY, Switched};

impl IndexWriter {
    pub(super) async fn switch(
        &mut self,
        feed: Option<u64>,
        added: Vec<AddedIndex>,
        reply: oneshot::Sender<Result<Switched, IndexError>>,
        published: oneshot::Receiver<bool>,
        version: Option<u64>,
    ) {
        let target = feed.unwrap_or(self.active);
        let mut joining = Vec::new();
        let view = self.prepare_switch(target, added, &mut joining).await;
        let good = view.is_ok();
        let passages = view.as_ref().map(|(view, _)| view.passages.clone()).unwrap_or_default();
        if good && target == self.active {
            // The indexes are up to date now, whether or not the switch takes effect.
            self.passages = passages.clone();
        }
        let others = view.as_ref().ok().and_then(|(view, _)| view.others.as_ref()).map(|others| others.lacking.clone());
        self.told = self.preparing.progress.lacking_here().missing;
        let heard = reply.send(view).is_ok();
        if good && heard && published.await.unwrap_or(false) {
            self.slots.append(&mut joining);
            if let Some(others) = others {
                *self.preparing.progress.elsewhere.lock() = others;
            }
            if target != self.active {
                if let (Some(keeper), Some(definition)) = (&mut self.keeper, self.definitions.get(&target)) {
                    keeper.define(definition);
                }
                self.stored.take().iter().for_each(|stored| stored.forget());
                self.forget(self.active);
                self.active = target;
                self.numbers = self.feeds.get(&target).map(Numbers::besides).unwrap_or_default();
            }
            self.passages = passages;
            self.kept_as.clear();
            self.kept_as.extend(version);
            self.forget_gone();
            self.settle(self.epochs.current().epoch);
        } else if target != self.active || !good {
            self.kept_as.clear();
            // The indexes were changed for the switch and must be reverted.
            if target != self.active {
                self.forget(target);
            }
            self.whole = true;
            match self.publish(Delta::default()).await {
                Ok(epoch) => self.settle(epoch),
                Err(error) => self.failed(None, RETRY.0, &error),
            }
        } else {
            // What waits for a retry is applied, but not published.
            self.whole |= self.retry.is_some();
        }
    }

    async fn prepare_switch(
        &mut self,
        target: u64,
        added: Vec<AddedIndex>,
        joining: &mut Vec<Slot>,
    ) -> Result<Switched, IndexError> {
        if target != self.active
            && let Some(mut chunks) = self.feeds.remove(&target)
        {
            let before = self.feeds.get(&self.active).ok_or(IndexError::Feed)?;
            chunks.number_like(before, &mut self.numbers);
            self.feeds.insert(target, chunks);
        }
        let (Some(chunks), Some(before)) = (self.feeds.get(&target), self.feeds.get(&self.active)) else {
            return Err(IndexError::Feed);
        };
        let passages = match target == self.active && !self.whole {
            true => self.passages.clone(),
            false => Arc::new(Passages::of(chunks.each())),
        };
        let delta = if self.whole { chunks.whole() } else { difference(before, chunks) };
        // What other processes change is not known here.
        let is_known = !self.whole && matches!(self.parts, Parts::Whole);
        let nothing = delta.is_empty();
        // The other processes switch their parts meanwhile.
        let others = match &mut self.parts {
            Parts::Leading(lead) => Some(tokio::spawn(lead.switch(committed(&self.commits, target)))),
            Parts::Whole | Parts::Served(_) => None,
        };
        self.whole = true;
        let applied: Result<(), IndexError> = async {
            for slot in &mut self.slots {
                if slot.reader.is_none() || !nothing {
                    slot.apply(&delta, chunks, &self.preparing).await?;
                }
            }
            self.whole = false;
            for AddedIndex { key, index, filled } in added {
                let joined = index.preparation();
                let mut slot = Slot::new(key, index, joined);
                let filled = Chunks::of(filled);
                let delta = if filled.is_empty() { chunks.whole() } else { difference(&filled, chunks) };
                slot.apply(&delta, chunks, &self.preparing).await?;
                joining.push(slot);
            }
            Ok(())
        }
        .await;
        // Awaited in any case: only what the others have finished can be undone.
        let others = match others {
            Some(others) => Some(others.await.unwrap_or_else(|_| Err(IndexError::Feed))),
            None => None,
        };
        applied?;
        // It is written anew after the switch, also for the definition of another feed.
        let is_replaced = !nothing || target != self.active;
        self.keeper.iter_mut().filter(|_| is_replaced).for_each(|keeper| keeper.clear());
        let stored = self.stored_version();
        let mut next = view(chunks, &self.preparing, passages, self.slots.iter().chain(&*joining), stored);
        if let Some(others) = others {
            let (others, _) = others?;
            next.add(others);
        }
        Ok((next, is_known.then(|| Arc::new(delta))))
    }
}
