//! The files of sinks before reloads or restarts switched them to others: after a crash, answers that no
//! checkpoint covers may be in them.

use std::sync::{Arc, Weak};

use super::{Durable, OffsetTracker, SourceCheckpoint, StoreError};
use crate::connector::SinkPosition;
use crate::sinks::SinkHandle;

impl Durable {
    /// Called before a reload switches a sink to another file: after a crash, answers that no checkpoint
    /// covers are searched in the old file too.
    ///
    /// # Errors
    ///
    /// The checkpoint database cannot be read or written.
    pub fn leaves(&self, sink: &SinkHandle) -> Result<(), StoreError> {
        let (Some(store), Some(mark)) = (self.here(), sink.mark()) else { return Ok(()) };
        // A commit in progress may replace the checkpoints that are read here.
        let _one = self.committing.lock();
        let mut positions = store.former(sink.id())?;
        let whole = SinkPosition { length: 0, ..mark };
        let checkpoints = store.sources()?;
        let known = checkpoints.iter().map(|checkpoint| checkpoint.marks.get(sink.id()).unwrap_or(&whole));
        let of_running: Vec<Arc<str>> = {
            let state = self.state.lock();
            state.trackers.iter().filter_map(Weak::upgrade).map(|tracker| tracker.source().clone()).collect()
        };
        let mut lacks = false;
        for source in of_running {
            lacks |= store.source(&source)?.is_none();
        }
        for position in known.chain(lacks.then_some(&whole)) {
            match positions.iter_mut().find(|there| there.log == position.log) {
                Some(there) if there.length > position.length => there.clone_from(position),
                Some(_) => {}
                None => positions.push(position.clone()),
            }
        }
        store.set_former(sink.id(), &positions)?;
        let mut state = self.state.lock();
        state.former.insert(sink.id().clone());
        state.leaving.insert(sink.id().clone());
        Ok(())
    }

    /// Called at a start, before a sink gets its first answer: if no checkpoint names its file, as after a restart with
    /// another path, the file is remembered. A later restart may have yet another path, before a checkpoint is written.
    ///
    /// # Errors
    ///
    /// The checkpoint database cannot be read or written.
    pub fn enters(&self, sink: &SinkHandle) -> Result<(), StoreError> {
        let (Some(store), Some(mark)) = (self.here(), sink.mark()) else { return Ok(()) };
        let _one = self.committing.lock();
        let checkpoints = store.sources()?;
        let knows = |checkpoint: &SourceCheckpoint| {
            checkpoint.written.get(sink.id()).is_some_and(|written| written.log == mark.log)
        };
        let mut positions = store.former(sink.id())?;
        if checkpoints.iter().all(knows) || positions.iter().any(|position| position.log == mark.log) {
            return Ok(());
        }
        positions.push(SinkPosition { length: 0, ..mark });
        store.set_former(sink.id(), &positions)?;
        self.state.lock().former.insert(sink.id().clone());
        Ok(())
    }

    /// The positions in files that a sink had before.
    ///
    /// # Errors
    ///
    /// The checkpoint database cannot be read.
    pub fn former(&self, sink: &Arc<str>) -> Result<Vec<SinkPosition>, StoreError> {
        let Some(store) = self.here() else { return Ok(Vec::new()) };
        let former = store.former(sink)?;
        if !former.is_empty() {
            self.state.lock().former.insert(sink.clone());
        }
        Ok(former)
    }

    /// Forgets the former files of sinks that no checkpoint needs any more. Called after a checkpoint
    /// is written.
    pub(super) fn forget_former(&self, trackers: &[Arc<OffsetTracker>]) -> Result<(), StoreError> {
        let Some(store) = self.here() else { return Ok(()) };
        let former: Vec<Arc<str>> = {
            let state = self.state.lock();
            // The checkpoint was taken before the sinks that are still to come.
            state.former.difference(&state.leaving).cloned().collect()
        };
        for id in former {
            let handles: Vec<_> = self.sinks().into_iter().filter(|sink| *sink.id() == id).collect();
            // An old handle may still write answers to its file.
            let [handle] = &handles[..] else { continue };
            let Some(mark) = handle.mark().filter(|_| !handle.is_replaying()) else { continue };
            if !trackers.iter().any(|tracker| tracker.names_other(&id, &mark.log)) {
                store.set_former(&id, &[])?;
                self.state.lock().former.remove(&id);
            }
        }
        Ok(())
    }
}
