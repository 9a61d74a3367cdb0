//! Which standing queries can a change of the corpus reach? Those with which a changed passage's vector has a product as
//! great as the last score of their list. No other score moves.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnflow_engine::component::{CorpusSnapshot, Delta, QueryJoin, StandingQueries, Watch, Weights};
use turnflow_engine::document::Chunk;
use turnflow_engine::inference::SparseVector;
use turnflow_engine::record::Hit;

use super::index::SparseReader;

/// Weights in the join are multiples of this.
const STEP: f64 = 1.0 / (1 << 14) as f64;
/// Sums of 32-bit floats differ from exact ones by this part at most.
const ROUNDING: f64 = 1e-5;
/// After a change of more passages, answering all turns again costs less.
const MOST: usize = 512;

/// A query and the last score of its list.
#[derive(Serialize, Deserialize)]
pub(super) struct Asked {
    terms: Box<[(u32, i32)]>,
    /// The last score of a full list, else 0.
    floor: f64,
}

impl Asked {
    /// `None`: a weight is negative, so nothing bounds the sums.
    pub fn new(query: &SparseVector, hits: &[Hit], top: usize) -> Option<Self> {
        let terms = query.iter().map(|(term, weight)| Some((*term, i32::try_from(whole(*weight)?).ok()?)));
        let floor = hits.get(top.wrapping_sub(1)).map_or(0.0, |hit| f64::from(hit.score));
        Some(Self { terms: terms.collect::<Option<_>>()?, floor })
    }
}

/// A weight as a whole number, not below it.
fn whole(weight: f32) -> Option<i64> {
    (0.0..1e5).contains(&weight).then(|| (f64::from(weight) / STEP).ceil() as i64)
}

fn counted(count: i32) -> Weights {
    Weights { count, spread: 0 }
}

/// The standing queries of a node on one worker.
pub(super) struct Standing {
    /// The index in its corpus.
    index: String,
    join: QueryJoin,
    asked: HashMap<u32, Asked>,
}

impl Standing {
    pub fn new(index: String) -> Self {
        Self { index, join: QueryJoin::default(), asked: HashMap::new() }
    }

    fn add(&mut self, turn: u32, asked: Asked) {
        self.remove(turn);
        asked.terms.iter().for_each(|(term, weight)| self.join.update(u64::from(*term), turn, counted(*weight)));
        self.asked.insert(turn, asked);
    }
}

impl StandingQueries for Standing {
    fn put(&mut self, turn: u32, watch: Watch) -> bool {
        let Ok(asked) = watch.downcast::<Asked>() else { return false };
        self.add(turn, *asked);
        true
    }

    fn remove(&mut self, turn: u32) {
        if let Some(asked) = self.asked.remove(&turn) {
            asked.terms.iter().for_each(|(term, weight)| self.join.update(u64::from(*term), turn, -counted(*weight)));
        }
    }

    fn reached(
        &mut self,
        changes: &[Arc<Delta>],
        corpus: &CorpusSnapshot,
        among: Option<&BTreeSet<u32>>,
    ) -> Option<Vec<u32>> {
        let counts = |turn: &u32| among.is_none_or(|among| among.contains(turn));
        if self.asked.is_empty() {
            return Some(Vec::new());
        }
        let reader = corpus.index::<SparseReader>(&self.index).ok()?;
        let changed = changes.iter().flat_map(|delta| delta.added.iter().chain(&delta.removed));
        let changed: Vec<Arc<Chunk>> = changed.cloned().collect();
        if changed.len() > MOST {
            return None;
        }
        let vectors: Vec<SparseVector> = reader.encodings_of(&changed).into_iter().collect::<Option<_>>()?;
        let mut reached = Vec::new();
        for vector in &vectors {
            let row = |(term, weight): &(u32, f32)| Some((u64::from(*term), 0, whole(*weight)?));
            let rows: Vec<(u64, u32, i64)> = vector.iter().map(row).collect::<Option<_>>()?;
            for ((turn, _), product) in self.join.joined(&rows) {
                let score = product.count as f64 * STEP * STEP;
                let floor = self.asked.get(&turn).map_or(0.0, |asked| asked.floor);
                if counts(&turn) && score >= floor * (1.0 - ROUNDING) {
                    reached.push(turn);
                }
            }
        }
        reached.sort_unstable();
        reached.dedup();
        Some(reached)
    }

    fn save(&self, turn: u32) -> Option<Vec<u8>> {
        bincode::serialize(self.asked.get(&turn)?).ok()
    }

    fn restore(&mut self, turn: u32, saved: &[u8]) -> bool {
        bincode::deserialize(saved).map(|asked| self.add(turn, asked)).is_ok()
    }
}
