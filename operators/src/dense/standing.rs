//! Which standing queries can a change of the corpus reach? Those with which a changed passage's vector has a product as
//! great as the last score of their list. No other score moves.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use turnflow_engine::component::{CorpusSnapshot, Delta, StandingQueries, Watch};
use turnflow_engine::document::Chunk;
use turnflow_engine::inference::Vector;
use turnflow_engine::record::Hit;

use super::index::DenseReader;
use crate::content::dot;

/// Products of 32-bit floats differ from exact ones by this part of the vectors' lengths at most.
const ROUNDING: f32 = 1e-5;
/// After a change of more passages, answering all turns again costs less.
const MOST: usize = 4096;

/// The queries of a call and the last scores of their lists.
pub(super) struct Asked(Vec<Query>);

/// A query in 8-bit numbers.
#[derive(Serialize, Deserialize)]
struct Query {
    values: Box<[i8]>,
    step: f32,
    /// The length of what the numbers leave out.
    rest: f32,
    /// The last score of a full list, else the least number.
    floor: f32,
}

impl Asked {
    pub fn new(vectors: &[Vector], lists: &[Vec<Hit>], top: usize) -> Self {
        let query = |(vector, hits): (&Vector, &Vec<Hit>)| {
            let step = vector.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0;
            let value = |value: &f32| if step > 0.0 { (value / step).round() as i8 } else { 0 };
            let values: Box<[i8]> = vector.iter().map(value).collect();
            let rest: Vec<f32> =
                vector.iter().zip(&values).map(|(value, code)| value - f32::from(*code) * step).collect();
            let floor = hits.get(top.wrapping_sub(1)).map_or(f32::NEG_INFINITY, |hit| hit.score);
            Query { values, step, rest: dot(&rest, &rest).sqrt(), floor }
        };
        Self(vectors.iter().zip(lists).map(query).collect())
    }
}

impl Query {
    /// Whether a passage's vector, of this length, may be in the list.
    fn may_have(&self, vector: &[f32], length: f32) -> bool {
        let product: f32 = self.values.iter().zip(vector).map(|(code, value)| f32::from(*code) * value).sum();
        let product = product * self.step;
        let most = product + (self.rest + ROUNDING) * length + ROUNDING;
        // Nothing is known of a number that is none.
        most.is_nan() || most >= self.floor
    }
}

/// The standing queries of a node on one worker.
pub(super) struct Standing {
    /// The index in its corpus.
    index: String,
    asked: HashMap<u32, Vec<Query>>,
}

impl Standing {
    pub fn new(index: String) -> Self {
        Self { index, asked: HashMap::new() }
    }
}

impl StandingQueries for Standing {
    fn put(&mut self, turn: u32, watch: Watch) -> bool {
        let Ok(asked) = watch.downcast::<Asked>() else { return false };
        self.asked.insert(turn, asked.0);
        true
    }

    fn remove(&mut self, turn: u32) {
        self.asked.remove(&turn);
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
        let reader = corpus.index::<DenseReader>(&self.index).ok()?;
        let changed = changes.iter().flat_map(|delta| delta.added.iter().chain(&delta.removed));
        let changed: Vec<Arc<Chunk>> = changed.cloned().collect();
        if changed.len() > MOST {
            return None;
        }
        let vectors: Vec<Vector> = reader.encodings_of(&changed).into_iter().collect::<Option<_>>()?;
        let vectors: Vec<(Vector, f32)> =
            vectors.into_iter().map(|vector| (vector.clone(), dot(&vector, &vector).sqrt())).collect();
        let is_reached = |queries: &Vec<Query>| {
            vectors.iter().any(|(vector, length)| queries.iter().any(|query| query.may_have(vector, *length)))
        };
        let is_reached = |(turn, queries): &(&u32, &Vec<Query>)| counts(turn) && is_reached(queries);
        Some(self.asked.iter().filter(is_reached).map(|(turn, _)| *turn).collect())
    }

    fn save(&self, turn: u32) -> Option<Vec<u8>> {
        bincode::serialize(self.asked.get(&turn)?).ok()
    }

    fn restore(&mut self, turn: u32, saved: &[u8]) -> bool {
        bincode::deserialize(saved).map(|asked| self.asked.insert(turn, asked)).is_ok()
    }
}
