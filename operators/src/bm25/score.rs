//! The BM25 formula.

use std::collections::BTreeMap;
use turnflow_engine::component::config;

use serde::{Deserialize, Serialize};

/// Corpus statistics that the formula needs.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Statistics {
    /// Number of live passages.
    pub passages: u64,
    /// Number of terms in all of them.
    pub terms: u64,
}

impl Statistics {
    /// The mean length of the passages, in terms.
    pub fn average(&self) -> f32 {
        self.terms as f32 / (self.passages.max(1)) as f32
    }
}

impl std::ops::Add for Statistics {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passages: self.passages + other.passages, terms: self.terms + other.terms }
    }
}

/// The weight of a term by its document frequency.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Idf {
    /// Lucene's, ln(1 + (N − df + ½) / (df + ½)), which is never negative.
    #[default]
    Lucene,
    /// That of Robertson and Zaragoza (2009, section 3), ln((N − df + ½) / (df + ½)), as in the library rank-bm25: a
    /// term in more than half of the passages gets a quarter of the mean over all terms of the corpus.
    Okapi,
}

impl Idf {
    /// The weight of a term with document frequency `df`. `mean` is the mean of [`okapi`] over all terms.
    pub(super) fn of(self, statistics: Statistics, df: u64, mean: f32) -> f32 {
        let (n, of) = (statistics.passages as f64, df as f64);
        match self {
            Self::Lucene => ((n - of + 0.5) / (of + 0.5)).ln_1p() as f32,
            Self::Okapi => match okapi(statistics, df) {
                negative if negative < 0.0 => EPSILON * mean,
                idf => idf as f32,
            },
        }
    }
}

/// The part of the mean that terms with a negative weight get in rank-bm25.
const EPSILON: f32 = 0.25;

/// The logarithm of the odds that a passage does not contain a term.
pub(super) fn okapi(statistics: Statistics, df: u64) -> f64 {
    let (n, df) = (statistics.passages as f64, df as f64);
    ((n - df + 0.5) / (df + 0.5)).ln()
}

/// The mean of [`okapi`] over all terms, by their document frequencies. It is summed in the order of the terms, so that it
/// does not depend on segments and parts.
pub(super) fn okapi_mean(statistics: Statistics, counts: &BTreeMap<Vec<u8>, u64>) -> f32 {
    let sum: f64 = counts.values().map(|df| okapi(statistics, *df)).sum();
    (sum / counts.len().max(1) as f64) as f32
}

/// Lengths whose normalisation is computed once for a question.
const LENGTHS: u32 = 1024;

/// The formula with all of its parameters.
#[derive(Debug)]
pub(super) struct Formula {
    average: f32,
    k1: f32,
    b: f32,
    norms: Vec<f32>,
}

impl Formula {
    /// `average` is the mean length of the passages, in terms.
    pub fn new(average: f32, k1: f32, b: f32) -> Self {
        let mut formula = Self { average, k1, b, norms: Vec::new() };
        formula.norms = (0..LENGTHS).map(|length| formula.norm_of(length)).collect();
        formula
    }

    fn norm_of(&self, length: u32) -> f32 {
        self.k1 * (1.0 - self.b + self.b * length as f32 / self.average)
    }

    /// Contribution of one term to the score of a passage of `length` terms that contains it `tf` times.
    #[inline]
    pub fn score(&self, weight: f32, tf: u32, length: u32) -> f32 {
        let norm = self.norms.get(length as usize).copied().unwrap_or_else(|| self.norm_of(length));
        let tf = tf as f32;
        weight * tf * (self.k1 + 1.0) / (tf + norm)
    }

    /// The greatest score of these pairs of a frequency and a length.
    pub fn bound(&self, weight: f32, pairs: &[(u32, u32)]) -> f32 {
        pairs.iter().map(|(tf, length)| self.score(weight, *tf, *length)).fold(0.0, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand: N = 10, df = 2 gives ln(1 + 8.5/2.5) = ln 4.4; tf = 3, length = average gives 3 · 2.2 / (3 +
    /// 1.2).
    #[test]
    fn agrees_with_the_formula_worked_by_hand() {
        let idf = Idf::Lucene.of(Statistics { passages: 10, terms: 100 }, 2, 0.0);
        assert!((idf - 4.4_f32.ln()).abs() < 1e-6);
        assert!((Formula::new(10.0, 1.2, 0.75).score(idf, 3, 10) - idf * 6.6 / 4.2).abs() < 1e-5);
        assert_eq!(Formula::new(10.0, 0.0, 0.75).score(1.0, 1, 99), 1.0);
    }
}
