//! What decides whether a change of a corpus can reach a value that an operator has given: standing turns whose values a
//! change cannot reach are not answered again.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{CorpusSnapshot, Delta};
use crate::record::Hit;

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
    /// What it knows of a turn as of now, for a later run of the same program; `None` if it knows nothing of it.
    fn save(&self, turn: u32) -> Option<Vec<u8>>;
    /// Adds a turn as an earlier run has saved it. Returns whether it can tell something of it.
    fn restore(&mut self, turn: u32, saved: &[u8]) -> bool;
}

/// A [`Watch`]: the call has read nothing of its corpus but passages of these documents, most of them those of its input.
pub struct OfDocuments(Vec<Arc<str>>);

impl OfDocuments {
    /// The documents of these ids of documents or passages, whether or not they are there.
    pub fn named<'a>(ids: impl Iterator<Item = &'a str>) -> Self {
        let both = |id: &'a str| [Some(id), id.rsplit_once('#').map(|(document, _)| document)];
        let mut documents: Vec<Arc<str>> = ids.flat_map(both).flatten().map(Arc::from).collect();
        documents.sort_unstable();
        documents.dedup();
        Self(documents)
    }

    /// The documents of these hits.
    pub fn of(hits: &[Hit]) -> Self {
        let mut documents: Vec<Arc<str>> = hits.iter().map(|hit| hit.chunk.document.clone()).collect();
        documents.sort_unstable();
        documents.dedup();
        Self(documents)
    }
}

/// The calls of an operator that says [`OfDocuments`]: a change reaches those that have read its documents.
#[derive(Default)]
pub struct StandingDocuments {
    by_document: HashMap<Arc<str>, BTreeSet<u32>>,
    by_turn: HashMap<u32, Vec<Arc<str>>>,
}

impl StandingDocuments {
    fn add(&mut self, turn: u32, documents: Vec<Arc<str>>) {
        self.remove(turn);
        for document in &documents {
            self.by_document.entry(document.clone()).or_default().insert(turn);
        }
        self.by_turn.insert(turn, documents);
    }
}

impl StandingQueries for StandingDocuments {
    fn put(&mut self, turn: u32, watch: Watch) -> bool {
        let Ok(documents) = watch.downcast::<OfDocuments>() else { return false };
        self.add(turn, documents.0);
        true
    }

    fn remove(&mut self, turn: u32) {
        for document in self.by_turn.remove(&turn).into_iter().flatten() {
            if let Some(turns) = self.by_document.get_mut(&document) {
                turns.remove(&turn);
                if turns.is_empty() {
                    self.by_document.remove(&document);
                }
            }
        }
    }

    fn reached(
        &mut self,
        changes: &[Arc<Delta>],
        _: &CorpusSnapshot,
        among: Option<&BTreeSet<u32>>,
    ) -> Option<Vec<u32>> {
        let changed = changes.iter().flat_map(|delta| delta.added.iter().chain(&delta.removed));
        let documents: BTreeSet<&Arc<str>> = changed.map(|chunk| &chunk.document).collect();
        let turns = documents.into_iter().filter_map(|document| self.by_document.get(document)).flatten();
        let turns: BTreeSet<u32> =
            turns.copied().filter(|turn| among.is_none_or(|among| among.contains(turn))).collect();
        Some(turns.into_iter().collect())
    }

    fn save(&self, turn: u32) -> Option<Vec<u8>> {
        bincode::serialize(self.by_turn.get(&turn)?).ok()
    }

    fn restore(&mut self, turn: u32, saved: &[u8]) -> bool {
        bincode::deserialize(saved).map(|documents| self.add(turn, documents)).is_ok()
    }
}
