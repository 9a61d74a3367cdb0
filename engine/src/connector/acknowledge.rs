//! Acknowledgements, from checkpoints back to sources.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::Offsets;

/// Reports to a source which of its records are safe: every record up to these offsets is answered, every
/// sink has the answer, and a checkpoint records it. A restart does not need the record again, so a
/// broker may delete it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Acknowledgements {
    offsets: Arc<Mutex<Offsets>>,
    // Holds at most one signal: reading the offsets once covers all changes.
    changed: (Sender<()>, Receiver<()>),
}

impl Default for Acknowledgements {
    fn default() -> Self {
        Self { offsets: Arc::default(), changed: crossbeam_channel::bounded(1) }
    }
}

impl Acknowledgements {
    /// The last safe offset of each partition. A partition without an offset has no safe records.
    pub fn offsets(&self) -> Offsets {
        self.offsets.lock().clone()
    }

    /// Receives a signal when the offsets have changed; for `select!`.
    pub fn changed(&self) -> &Receiver<()> {
        &self.changed.1
    }

    /// Records that these offsets are safe.
    pub fn acknowledge(&self, offsets: &Offsets) {
        {
            let mut known = self.offsets.lock();
            if *known == *offsets {
                return;
            }
            known.clone_from(offsets);
        }
        let _ = self.changed.0.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::SourceOffset;

    #[test]
    fn one_signal_stands_for_all_changes() {
        let acknowledgements = Acknowledgements::default();
        let source = acknowledgements.clone();
        assert!(source.offsets().is_empty() && source.changed().is_empty());
        for end in [1, 2, 2] {
            acknowledgements.acknowledge(&SourceOffset { end, ..SourceOffset::default() }.into());
        }
        assert_eq!((source.changed().len(), source.offsets().get("").unwrap().end), (1, 2));
        source.changed().recv().unwrap();
        acknowledgements.acknowledge(&source.offsets());
        assert!(source.changed().is_empty(), "nothing has changed");
    }
}
