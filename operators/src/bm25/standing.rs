//! Which standing questions can a change of the corpus reach? Those for which a changed passage scores as high as the last
//! one of their list, and those whose list may be in another order, because the change moves the scores of all passages a
//! little: with the number of passages, their average length, and the number of passages that have a term.
//!
//! The part of a term in a score is idf · f, with f from 0 to k1 + 1. The difference of two scores moves by
//! Σ Δidf (f − f′), and by what the average length changes in f. It is compared with the difference: exactly for the
//! passages that are known, and with the greatest f for those that are not.

mod list;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use turnflow_engine::component::{CorpusSnapshot, Delta, QueryJoin, StandingQueries, Watch};
use turnflow_engine::document::Chunk;

pub(super) use self::list::{Asked, BEHIND};
use self::list::{Moment, ROUNDING};
use super::analyzer::Tokenizer;
use super::reader::{Bm25Reader, Parameters};
use super::score::Formula;

/// Parts of scores in the join are multiples of this.
const STEP: f64 = 1.0 / (1 << 20) as f64;
/// In place of a passage: how far a term's weight has moved.
const DRIFT: u32 = u32::MAX;
/// Changed passages in one join.
const PORTION: usize = 32;
/// After a change of more passages, answering all turns again costs less.
const MOST: usize = 512;

fn key(term: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    term.hash(&mut hasher);
    hasher.finish()
}

/// A part of a score as a whole number, not below it. It is never 0, which the join would leave out.
fn whole(part: f64) -> i64 {
    ((part * (1.0 + ROUNDING) / STEP).ceil() as i64).max(1)
}

/// Terms, and passages or [`DRIFT`], with their weights.
type Rows = Vec<(u64, u32, i64)>;

/// The standing questions of a node on one worker.
pub(super) struct Standing {
    /// The index in its corpus.
    index: String,
    tokenizer: Tokenizer,
    parameters: Parameters,
    join: QueryJoin,
    asked: HashMap<u32, Asked>,
}

impl Standing {
    pub fn new(index: String, tokenizer: Tokenizer, parameters: Parameters) -> Self {
        Self { index, tokenizer, parameters, join: QueryJoin::default(), asked: HashMap::new() }
    }

    fn add(&mut self, turn: u32, asked: Asked) {
        self.remove(turn);
        asked.weights().for_each(|(term, weights)| self.join.update(term, turn, weights));
        self.asked.insert(turn, asked);
    }

    /// The terms of the changed passages, with their parts of a score as of now; and the terms whose number of passages has
    /// changed, with how far their weights have moved.
    fn rows(&self, reader: &Bm25Reader, changed: &[(&Arc<Chunk>, bool)]) -> Option<(Rows, Rows)> {
        let Parameters { idf, k1, b } = self.parameters;
        let mut passages = Vec::with_capacity(changed.len());
        let mut terms: BTreeMap<String, i64> = BTreeMap::new();
        for (chunk, is_added) in changed {
            let words = self.tokenizer.passage_terms(chunk);
            let length = words.len() as u32;
            let mut counts: BTreeMap<String, u32> = BTreeMap::new();
            words.into_iter().for_each(|word| *counts.entry(word).or_default() += 1);
            let sign = if *is_added { 1 } else { -1 };
            counts.keys().for_each(|term| *terms.entry(term.clone()).or_default() += sign);
            passages.push((counts, length));
        }
        let names: Vec<String> = terms.keys().cloned().collect();
        let counts = reader.counts(&names).ok()?;
        let weight = |(term, df): (&String, &u64)| (key(term), idf.of(reader.statistics, *df, 0.0));
        let weights: HashMap<u64, f32> = names.iter().zip(&counts).map(weight).collect();
        let formula = Formula::new(reader.statistics.average(), k1, b);
        let mut rows = Vec::new();
        for (number, (counts, length)) in (0..).zip(&passages) {
            rows.extend(counts.iter().map(|(term, tf)| {
                let weight = weights.get(&key(term)).copied().unwrap_or_default();
                (key(term), number, whole(f64::from(formula.score(weight, *tf, *length))))
            }));
        }
        let moved = terms.iter().zip(&counts).filter(|((_, change), _)| **change != 0).map(|((term, change), df)| {
            let before = (*df as i64 - change).max(0) as f64;
            (key(term), DRIFT, whole(((*df as f64 + 0.5).ln() - (before + 0.5).ln()).abs()))
        });
        Some((rows, moved.collect()))
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
            asked.weights().for_each(|(term, weights)| self.join.update(term, turn, -weights));
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
        let reader = corpus.index::<Bm25Reader>(&self.index).ok()?;
        let added = changes.iter().flat_map(|delta| delta.added.iter().map(|chunk| (chunk, true)));
        let removed = changes.iter().flat_map(|delta| delta.removed.iter().map(|chunk| (chunk, false)));
        let changed: Vec<(&Arc<Chunk>, bool)> = added.chain(removed).collect();
        if changed.len() > MOST {
            return None;
        }
        let (rows, moved) = self.rows(&reader, &changed)?;
        for ((turn, _), by) in self.join.joined(&moved) {
            if let Some(asked) = self.asked.get_mut(&turn).filter(|_| counts(&turn)) {
                asked.drift(by.count as f64 * STEP, by.spread as f64 * STEP);
            }
        }
        let (now, k1) = (Moment::of(&reader), f64::from(self.parameters.k1));
        let mut reached: Vec<u32> = Vec::new();
        for portion in rows.chunk_by(|one, other| one.1 as usize / PORTION == other.1 as usize / PORTION) {
            for ((turn, number), score) in self.join.joined(portion) {
                let Some(asked) = self.asked.get_mut(&turn).filter(|_| counts(&turn)) else { continue };
                let score = score.count as f64 * STEP;
                if asked.may_have(score, now, k1) {
                    reached.push(turn);
                } else if changed[number as usize].1 {
                    asked.is_behind(score, now, k1);
                }
            }
        }
        let may_turn = |(turn, asked): &(&u32, &Asked)| counts(turn) && asked.may_turn(now, k1);
        reached.extend(self.asked.iter().filter(may_turn).map(|(turn, _)| *turn));
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
