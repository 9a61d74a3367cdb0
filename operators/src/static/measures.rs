//! The lengths of passages' weighted sums, from which their scores are known up to an error.
//!
//! A sum depends on the frequencies of its words, which change with every passage. So lengths are computed with earlier
//! frequencies, the base, and a search bounds how far they are off. With each change, some blocks of passages move on to a
//! later base, so that the base never lags far behind and no change measures all passages.

use std::sync::Arc;

use super::index::{BagBlock, BagReader};
use super::words::{Bag, Counts, Words};
use crate::cores::on_all_cores;

/// A new base is taken when one part in this many of the passages has changed.
const PART: usize = 64;
/// Changed passages for which one more block moves on to a new base. All blocks have done so before the next base.
const PASSAGES_A_BLOCK: usize = 4;
/// Changes after which a small corpus takes a new base.
const FEW: usize = 16;

/// Frequencies of words at an earlier time.
pub(super) struct Base {
    pub counts: Counts,
}

/// What is known of a passage's sum, with the frequencies of a base.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measure {
    /// Its length.
    pub length: f32,
    /// By how much rounding may change its score, at most.
    pub rounding: f32,
}

/// The measures of a block's passages, by row.
pub(super) struct BlockMeasures {
    pub base: Arc<Base>,
    pub rows: Vec<Measure>,
}

/// The measures of an index.
pub(super) struct Measures {
    /// By block.
    pub blocks: Vec<Arc<BlockMeasures>>,
    /// The newest base.
    base: Arc<Base>,
    /// Passages that have changed since it was taken.
    changed: usize,
}

impl Measures {
    pub fn new() -> Self {
        Self { blocks: Vec::new(), base: Arc::new(Base { counts: Counts::default() }), changed: 0 }
    }

    /// Follows a change of `changed` passages from one reader to the next.
    pub fn follow(&mut self, from: &[Arc<BagBlock>], to: &BagReader, changed: usize, counts: &Counts, words: &Words) {
        self.changed += changed;
        let mut to_move = changed.div_ceil(PASSAGES_A_BLOCK);
        let is_newest = |measures: &Arc<BlockMeasures>| Arc::ptr_eq(&measures.base, &self.base);
        // Never more than two bases: all blocks have the newest one, or will have it after this change.
        let may_be_new = to_move >= to.blocks.len() || self.blocks.iter().all(is_newest);
        if self.changed > counts.passages / PART + FEW && may_be_new {
            self.base = Arc::new(Base { counts: counts.clone() });
            self.changed = 0;
        }
        let mut works: Vec<(usize, &Arc<BagBlock>, bool)> = Vec::new();
        for (at, block) in to.blocks.iter().enumerate() {
            let has_old_base = self.blocks.get(at).is_some_and(|measures| !Arc::ptr_eq(&measures.base, &self.base));
            let moves = has_old_base && to_move > 0;
            to_move -= usize::from(moves);
            if moves || from.get(at).is_none_or(|before| !Arc::ptr_eq(before, block)) {
                works.push((at, block, moves));
            }
        }
        let measured = on_all_cores(&works, 2, |(at, block, moves)| {
            let before = from.get(*at).zip(self.blocks.get(*at)).filter(|_| !moves);
            let base = before.map_or(&self.base, |(_, measures)| &measures.base);
            let row = |(row, (bag, chunk)): (usize, &(Bag, _))| {
                let same = before.and_then(|(block, measures)| Some((block.rows.get(row)?, measures.rows.get(row)?)));
                match same {
                    Some(((_, before), measure)) if Arc::ptr_eq(before, chunk) => *measure,
                    _ => measure(bag, &base.counts, words),
                }
            };
            Arc::new(BlockMeasures { base: base.clone(), rows: block.rows.iter().enumerate().map(row).collect() })
        });
        let places: Vec<usize> = works.iter().map(|(at, ..)| *at).collect();
        self.blocks.truncate(to.blocks.len());
        for (at, measures) in places.into_iter().zip(measured) {
            match self.blocks.get_mut(at) {
                Some(before) => *before = measures,
                None => self.blocks.push(measures),
            }
        }
    }
}

fn measure(bag: &Bag, counts: &Counts, words: &Words) -> Measure {
    let known = words.known();
    let mut sum: Vec<f32> = Vec::new();
    let mut mass = 0.0;
    for (number, count) in bag.iter() {
        let (place, length) = known.places[*number as usize];
        let (weight, vector) = (counts.idf(*number) * count, words.vector(place));
        sum.resize(vector.len(), 0.0);
        sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * value);
        mass += weight * length;
    }
    let length = crate::content::dot(&sum, &sum).sqrt();
    // Each word is a rounded addition to each value, in the exact score and in the score by words.
    let roundings = 4.0 * (bag.len() + sum.len() + 64) as f32 * f32::EPSILON;
    Measure { length, rounding: roundings * (1.0 + mass / length) }
}
