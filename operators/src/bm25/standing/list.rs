//! A question and its list of hits, and what a change has to do to reach it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use turnflow_engine::component::{IndexError, Weights};
use turnflow_engine::record::Hit;

use super::key;
use crate::bm25::reader::{Bm25Reader, Counts, Parameters};
use crate::bm25::score::Formula;

/// Sums of 32-bit floats differ from exact ones by this part at most.
pub(super) const ROUNDING: f64 = 1e-5;
/// Passages behind the list that are known, too.
pub(in crate::bm25) const BEHIND: usize = 8;
/// Spreads in the join are multiples of this.
const SPREAD: f64 = 1.0 / 256.0;

/// What moves all scores: the logarithms of the number of passages and of their average length.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(in crate::bm25) struct Moment {
    passages: f64,
    average: f64,
}

impl Moment {
    pub fn of(reader: &Bm25Reader) -> Self {
        let (passages, average) = (reader.statistics.passages as f64, f64::from(reader.statistics.average()));
        Self { passages: (passages + 1.0).ln(), average: average.max(1e-9).ln() }
    }
}

/// A question and its list of hits, as of a moment.
#[derive(Serialize, Deserialize)]
pub(in crate::bm25) struct Asked {
    /// The terms' keys, how often each occurs, and its spread.
    terms: Box<[(u64, u16, u16)]>,
    moment: Moment,
    /// The last score of a full list, else 0.
    floor: f32,
    /// The first score.
    best: f32,
    /// The least difference between neighbours, and to the passages behind the list that are known.
    near: f32,
    /// How much a change of all idf by 1, and of the logarithm of the average length by 1, moves such a difference.
    of_all: f32,
    of_average: f32,
    /// The least difference between the last one of the list and a passage that is not known.
    far: f32,
    /// How far terms' weights have moved since: those of the spreads, and in all.
    spread: f32,
    drift: f32,
}

/// A hit's parts of a score without idf, by term: f, and its derivative by the logarithm of the average length.
struct Parts(Vec<(f64, f64)>);

impl Parts {
    fn of(counts: &Counts, average: f32, Parameters { k1, b, .. }: Parameters, formula: &Formula) -> Self {
        let part = |tf: &u32| {
            let of_length = f64::from(k1) * f64::from(b) * f64::from(counts.length) / f64::from(average);
            let norm = f64::from(k1) * (1.0 - f64::from(b)) + of_length;
            let f = f64::from(formula.score(1.0, *tf, counts.length));
            (f, f * of_length / (f64::from(*tf) + norm).max(1e-9))
        };
        Self(counts.of_terms.iter().map(part).collect())
    }
}

impl Asked {
    /// `hits` has as many as [`BEHIND`] more than `top`, if so many passages have a term of the question. `None`: nothing
    /// can be told.
    ///
    /// # Errors
    ///
    /// The index cannot be read.
    pub fn new(
        reader: &Bm25Reader,
        parameters: Parameters,
        terms: &BTreeMap<String, f32>,
        hits: &[Hit],
        top: usize,
    ) -> Result<Option<Self>, IndexError> {
        let Some(counts) = reader.counts_of(terms, hits)? else { return Ok(None) };
        let average = reader.statistics.average();
        let formula = Formula::new(average, parameters.k1, parameters.b);
        let names: Vec<String> = terms.keys().cloned().collect();
        let live = reader.counts(&names)?;
        let idf: Vec<f64> = live.iter().map(|df| f64::from(parameters.idf.of(reader.statistics, *df, 0.0))).collect();
        let times: Vec<f64> = terms.values().map(|count| f64::from(*count)).collect();
        let parts: Vec<Parts> = counts.iter().map(|counts| Parts::of(counts, average, parameters, &formula)).collect();
        let score = |at: usize| hits.get(at).map_or(0.0, |hit| f64::from(hit.score));
        let last = hits.len().min(top).saturating_sub(1);
        let neighbours = (1..=last).map(|at| (at - 1, at));
        let pairs = neighbours.chain((top..hits.len()).map(|at| (last, at)));
        let mut spreads = vec![0.0_f64; names.len()];
        let (mut near, mut of_all, mut of_average) = (f64::INFINITY, 0.0_f64, 0.0_f64);
        // Passages with the same counts have the same score for ever.
        for (one, other) in pairs.filter(|(one, other)| counts[*one] != counts[*other]) {
            near = near.min((score(one) - score(other) - ROUNDING * score(one)).max(0.0));
            let (mut all, mut by_average) = (0.0, 0.0);
            for (nth, ((f, d), (other_f, other_d))) in parts[one].0.iter().zip(&parts[other].0).enumerate() {
                let apart = times[nth] * (f - other_f);
                spreads[nth] = spreads[nth].max(apart.abs());
                all += apart;
                by_average += idf[nth] * times[nth] * (d - other_d);
            }
            (of_all, of_average) = (of_all.max(all.abs()), of_average.max(by_average.abs()));
        }
        let all_are_known = hits.len() < top + BEHIND;
        let far =
            if all_are_known { f64::INFINITY } else { score(last) - score(hits.len() - 1) - ROUNDING * score(last) };
        let number = |value: f64| (value / SPREAD).ceil().clamp(0.0, f64::from(u16::MAX)) as u16;
        let weights = names.iter().zip(&times).zip(&spreads);
        Ok(Some(Self {
            terms: weights.map(|((term, times), spread)| (key(term), *times as u16, number(*spread))).collect(),
            moment: Moment::of(reader),
            floor: if hits.len() < top { 0.0 } else { score(last) as f32 },
            best: score(0) as f32,
            near: near as f32,
            of_all: of_all as f32,
            of_average: of_average as f32,
            far: far.max(0.0) as f32,
            spread: 0.0,
            drift: 0.0,
        }))
    }

    /// Its terms, as the join has them.
    pub fn weights(&self) -> impl Iterator<Item = (u64, Weights)> {
        let weights = |count: u16, spread: u16| Weights { count: i32::from(count), spread: i32::from(spread) };
        self.terms.iter().map(move |(term, count, spread)| (*term, weights(*count, *spread)))
    }

    /// The weights of its terms have moved: the sum of |Δ ln df|, and the same times the spreads.
    pub fn drift(&mut self, by: f64, of_spreads: f64) {
        self.drift += by as f32;
        self.spread += (of_spreads * SPREAD) as f32;
    }

    /// How far the difference of two scores can have moved: of passages that are known, and of any two.
    fn moved(&self, now: Moment, k1: f64) -> (f64, f64) {
        let length: f64 = self.terms.iter().map(|(_, count, _)| f64::from(*count)).sum();
        let (all, average) = ((now.passages - self.moment.passages).abs(), (now.average - self.moment.average).abs());
        let (drift, best) = (f64::from(self.drift), f64::from(self.best));
        let of_terms = (k1 + 1.0) * (all * length + drift);
        let any = of_terms + average.exp_m1() * best;
        let second = average * of_terms + 2.0 * average * average * best;
        let known =
            all * f64::from(self.of_all) + f64::from(self.spread) + average * f64::from(self.of_average) + second;
        (known.min(any) * (1.0 + ROUNDING), any * (1.0 + ROUNDING))
    }

    /// Whether a passage with this score may be in the list.
    pub fn may_have(&self, score: f64, now: Moment, k1: f64) -> bool {
        score > 0.0 && score + self.moved(now, k1).1 >= f64::from(self.floor) * (1.0 - ROUNDING)
    }

    /// A new passage has this score and is not in the list.
    pub fn is_behind(&mut self, score: f64, now: Moment, k1: f64) {
        let far = f64::from(self.floor) * (1.0 - ROUNDING) - score - self.moved(now, k1).1;
        self.far = self.far.min(far.max(0.0) as f32);
    }

    /// Whether the order of the list, or its last passage, may be another one.
    pub fn may_turn(&self, now: Moment, k1: f64) -> bool {
        let (known, any) = self.moved(now, k1);
        known > 0.0 && known >= f64::from(self.near) || any > 0.0 && any >= f64::from(self.far)
    }
}
