//! Waking a worker from another thread.

use std::sync::Arc;

use parking_lot::Mutex;
use timely::scheduling::SyncActivator;

/// A slot for an operator's activator, which exists only after its dataflow is built. The threads
/// that wake it may be started before. Cheap to clone.
#[derive(Clone, Default)]
pub struct WakeSlot(Arc<Mutex<Option<SyncActivator>>>);

impl WakeSlot {
    /// Sets the operator's activator and wakes the operator, since work may be waiting.
    pub fn set(&self, activator: SyncActivator) {
        let mut slot = self.0.lock();
        let _ = activator.activate();
        *slot = Some(activator);
    }

    /// Schedules the operator and unparks its worker.
    pub fn wake(&self) {
        if let Some(activator) = &*self.0.lock() {
            // Fails only if the worker has ended; then there is nothing to wake.
            let _ = activator.activate();
        }
    }
}
