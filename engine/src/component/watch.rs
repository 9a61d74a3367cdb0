//! What decides whether a change of a corpus can reach a value that an operator has given: standing turns whose values a
//! change cannot reach are not answered again.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{CorpusSnapshot, Delta};

/// Where the call of an operator says what decides whether a change of its corpus can reach its value: a [`Watch`].
/// Without one, every change can.
#[derive(Clone, Default)]
pub struct WatchSlot(Option<Arc<Mutex<Option<Watch>>>>);

/// What an operator needs to know of a call later, for its [`StandingQueries`].
pub type Watch = Box<dyn Any + Send>;

impl WatchSlot {
    /// A slot of a turn that stands when it is answered.
    pub fn wanted() -> Self {
        Self(Some(Arc::default()))
    }

    /// Whether the turn stands, so that somebody asks.
    pub fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Says it.
    pub fn put(&self, watch: impl Any + Send) {
        if let Some(slot) = &self.0 {
            *slot.lock() = Some(Box::new(watch));
        }
    }

    /// What was said.
    pub fn take(&self) -> Option<Watch> {
        self.0.as_ref()?.lock().take()
    }
}

/// The calls of one operator for standing turns: which of their values can a change of the corpus reach? Each worker has
/// one for its own turns.
///
/// A value counts as reached if its passages or their order may differ. Scores may move a little without it; an operator
/// is asked by [`Operator::standing`](super::Operator::standing) whether that matters.
pub trait StandingQueries {
    /// Adds the call of a turn. Returns whether it can tell something of it.
    fn put(&mut self, turn: u32, watch: Watch) -> bool;
    /// Removes a turn.
    fn remove(&mut self, turn: u32);
    /// The turns whose values these changes of the corpus may reach; `corpus` has all of them. `among`: only these turns
    /// count, for which the changes are told later than for the others. `None`: any.
    fn reached(
        &mut self,
        changes: &[Arc<Delta>],
        corpus: &CorpusSnapshot,
        among: Option<&BTreeSet<u32>>,
    ) -> Option<Vec<u32>>;
}
