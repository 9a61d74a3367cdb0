//! Waking a worker from another thread.

use std::sync::Arc;

use parking_lot::Mutex;
use timely::scheduling::SyncActivator;

/// A place for an operator's activator, which exists only once its dataflow is built, while
/// the threads that are to wake it may be made before. Cheap to clone.
#[derive(Clone, Default)]
pub struct WakeSlot(Arc<Mutex<Option<SyncActivator>>>);

impl WakeSlot {
    /// Puts the operator's activator in place, and wakes it: something may be waiting.
    pub fn set(&self, activator: SyncActivator) {
        let mut slot = self.0.lock();
        let _ = activator.activate();
        *slot = Some(activator);
    }

    /// Schedules the operator and unparks its worker.
    pub fn wake(&self) {
        if let Some(activator) = &*self.0.lock() {
            // Fails only when the worker has ended, and then there is nobody to wake.
            let _ = activator.activate();
        }
    }
}
