//! Writes checkpoints: one transaction, after the sinks and the dead letters are on disk.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::store::Store;
use super::{
    ConversationChange, Durable, Kept, Key, OffsetTracker, SinkPositions, SourceCheckpoint, Standing, State,
    StoreError, UNWRITTEN,
};
use crate::connector::Offsets;

/// Interval between checkpoints.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of checkpoints between two expiries of conversations.
const EXPIRE_EVERY: u32 = 60;

impl State {
    /// Puts back the changes of a checkpoint that was not written.
    fn take_back(&mut self, pending: Arc<HashMap<Key, ConversationChange>>, standing: Arc<Standing>) {
        (self.writing, self.writing_standing) = (Arc::default(), Arc::default());
        self.put_back(Arc::unwrap_or_clone(pending));
        for (key, turn) in Arc::unwrap_or_clone(standing) {
            self.standing.entry(key).or_insert(turn);
        }
    }

    /// Puts back changes that were not written. Those put since then are newer.
    pub(super) fn put_back(&mut self, changes: HashMap<Key, ConversationChange>) {
        for (key, change) in changes {
            let change = match self.pending.remove(&key) {
                Some(newer) => change.then(newer),
                None => change,
            };
            self.pending.insert(key, change);
        }
    }
}

impl Durable {
    /// Acknowledges offsets without a state directory: answered turns are in every sink, and nothing else
    /// needs to be stored.
    fn acknowledge(&self) -> Result<(), StoreError> {
        let _one = self.committing.lock();
        let trackers: Vec<_> = self.state.lock().trackers.iter().filter_map(Weak::upgrade).collect();
        let lows: Vec<_> = trackers.iter().filter_map(|tracker| Some((tracker, tracker.low()?))).collect();
        self.dead.settle().map_err(StoreError::DeadLetters)?;
        self.sinks().iter().try_for_each(|sink| sink.sync()).map_err(StoreError::Sink)?;
        lows.iter().for_each(|(tracker, (offsets, _))| tracker.acknowledgements().acknowledge(offsets));
        Ok(())
    }

    /// Writes a checkpoint if anything has changed, and acknowledges the covered offsets to the sources.
    ///
    /// # Errors
    ///
    /// The checkpoint cannot be written, or a sink or the dead letters cannot be synced.
    pub fn commit(&self, epoch: u64) -> Result<(), StoreError> {
        let Some(kept) = self.store.get() else { return self.acknowledge() };
        let _one = self.committing.lock();
        let sinks = self.sinks();
        let trackers: Vec<_> = self.state.lock().trackers.iter().filter_map(Weak::upgrade).collect();
        if self.loading.load(Ordering::Acquire) == 0 && !self.is_replaying(&trackers) {
            sinks.iter().for_each(|sink| sink.replayed());
        }
        let now = self.marks();
        // Read before the conversations are taken: changes are put before records are ticked off.
        let low = |tracker: &Arc<OffsetTracker>| Some((tracker.clone(), tracker.low_since(&now)?));
        let lows: Vec<_> = trackers.iter().filter_map(low).collect();
        // Read after the offsets: the answers to applied records are written.
        let written: SinkPositions = sinks.iter().filter_map(|sink| Some((sink.id().clone(), sink.mark()?))).collect();
        let checkpoint = |(tracker, (offsets, mut marks)): (_, (_, SinkPositions))| {
            // A reload has switched a sink to another file: its old position is meaningless for the new one,
            // which is then searched as a whole.
            marks.retain(|sink, mark| now.get(sink).is_none_or(|now| now.log == mark.log));
            (tracker, SourceCheckpoint { offsets, marks, written: written.clone(), epoch })
        };
        let lows: Vec<(Arc<OffsetTracker>, SourceCheckpoint)> = lows.into_iter().map(checkpoint).collect();
        let (pending, standing, new) = {
            let mut state = self.state.lock();
            let is_new = |(source, low): &(Arc<str>, SourceCheckpoint)| {
                state.committed.get(source).is_none_or(|old| old.offsets != low.offsets || !old.names_files_of(low))
            };
            let of_source =
                |(tracker, low): &(Arc<OffsetTracker>, SourceCheckpoint)| (tracker.source().clone(), low.clone());
            let new: Vec<_> = lows.iter().map(of_source).filter(is_new).collect();
            let pending = Arc::new(std::mem::take(&mut state.pending));
            state.writing = pending.clone();
            let standing = Arc::new(std::mem::take(&mut state.standing));
            state.writing_standing = standing.clone();
            (pending, standing, new)
        };
        // Read after all of this was taken: none of it may depend on answers that a sink still lacks.
        // These sinks are kept, even if a reload has replaced them.
        let repairing: Vec<_> = sinks.iter().filter(|sink| sink.is_repairing()).cloned().collect();
        let is_repairing = !repairing.is_empty();
        let repaired = std::mem::replace(&mut self.state.lock().repairing, repairing);
        drop(repaired);
        if is_repairing {
            let mut state = self.state.lock();
            state.take_back(pending, standing);
            self.count_unwritten(&state);
            return Ok(());
        }
        if pending.is_empty() && standing.is_empty() && new.is_empty() {
            // A source rebuilt by a reload is notified too.
            lows.iter().for_each(|(tracker, low)| tracker.acknowledgements().acknowledge(&low.offsets));
            return self.forget_former(&trackers);
        }
        // Covered records became answers or dead letters. These are synced before the checkpoint is written.
        let written = self.dead.settle().map_err(StoreError::DeadLetters);
        let written = written.and_then(|()| sinks.iter().try_for_each(|sink| sink.sync()).map_err(StoreError::Sink));
        let written = written.and_then(|()| match kept {
            Kept::Here(store) => Ok(store.write(&new, &pending, &standing)?),
            Kept::First(first) => first.write(&new, &pending),
        });
        let written = match written {
            Ok(()) => Ok(self.forget_former(&trackers)),
            Err(error) => Err(error),
        };
        let mut state = self.state.lock();
        match &written {
            Ok(_) => {
                (state.writing, state.writing_standing) = (Arc::default(), Arc::default());
                let bytes = pending.values().map(ConversationChange::bytes).sum();
                self.unwritten.fetch_sub(bytes, Ordering::AcqRel);
                state.committed.extend(new);
                lows.iter().for_each(|(tracker, low)| tracker.acknowledgements().acknowledge(&low.offsets));
            }
            Err(_) => {
                state.take_back(pending, standing);
                self.count_unwritten(&state);
            }
        }
        drop(state);
        written?
    }

    /// Writes the first checkpoint of a source, which covers none of its records: after a restart the
    /// same log is found, even if it was rotated. It is written also while other checkpoints wait.
    ///
    /// # Errors
    ///
    /// The checkpoint cannot be written.
    pub fn begin(&self, source: &Arc<str>, offsets: Offsets, epoch: u64) -> Result<(), StoreError> {
        self.commit(epoch)?;
        let Some(kept) = self.store.get() else { return Ok(()) };
        let _one = self.committing.lock();
        match kept {
            Kept::Here(store) => self.begin_here(store, source, offsets, epoch),
            Kept::First(first) => first.begin(source, offsets, epoch),
        }
    }

    /// Writes the first offsets of the partitions that have none, while no other checkpoint is written.
    pub(super) fn begin_here(
        &self,
        store: &Store,
        source: &Arc<str>,
        offsets: Offsets,
        epoch: u64,
    ) -> Result<(), StoreError> {
        if let Some(known) = store.source(source)? {
            let absent = offsets.iter().filter(|offset| known.offsets.get(&offset.partition).is_none());
            let absent: Offsets = absent.cloned().collect();
            return Ok(store.write_parts(&[(source.clone(), absent, epoch)], &[])?);
        }
        let (sinks, marks) = (self.sinks(), self.marks());
        let written = sinks.iter().filter_map(|sink| Some((sink.id().clone(), sink.mark()?))).collect();
        sinks.iter().try_for_each(|sink| sink.sync()).map_err(StoreError::Sink)?;
        let first = (source.clone(), SourceCheckpoint { offsets, marks, written, epoch });
        store.write(std::slice::from_ref(&first), &HashMap::new(), &HashMap::new())?;
        self.state.lock().committed.extend([first]);
        Ok(())
    }

    /// Writes checkpoints periodically until [`Durable::end`] is called, then a last one.
    pub fn work(&self, epoch: impl Fn() -> u64, idle: impl Fn() -> u64, wake: impl Fn()) {
        let mut failing = false;
        for round in 1u32.. {
            let ended = {
                let mut state = self.state.lock();
                if !state.ended {
                    self.work.wait_for(&mut state, INTERVAL);
                }
                state.ended
            };
            let mut done = self.commit(epoch());
            if round.is_multiple_of(EXPIRE_EVERY) && done.is_ok() {
                done = self.expire(idle());
            }
            match done {
                Err(error) if !failing => {
                    failing = true;
                    tracing::error!(%error, "cannot write a checkpoint; will retry. Turns continue until 16 MB wait for it");
                }
                Err(error) => tracing::debug!(%error, "cannot write a checkpoint"),
                Ok(()) if failing => {
                    failing = false;
                    tracing::warn!("checkpoints can be written again");
                }
                Ok(()) => {}
            }
            if self.unwritten.load(Ordering::Acquire) < UNWRITTEN && self.is_waited_for.swap(false, Ordering::AcqRel) {
                wake();
            }
            if ended {
                return;
            }
        }
    }

    /// Whether a source is still to read records that existed at its start.
    fn is_replaying(&self, trackers: &[Arc<OffsetTracker>]) -> bool {
        let mut state = self.state.lock();
        // A reload that rebuilds a source ends its tracker first; until the new one exists, there is none.
        state.replaying.retain(|source| {
            let mut of = trackers.iter().filter(|tracker| tracker.source() == source).peekable();
            of.peek().is_none() || !of.all(|tracker| tracker.is_replayed())
        });
        !state.replaying.is_empty()
    }
}
