//! Significance of differences between two runs, and confidence intervals of means.
//!
//! - The p-value is that of a two-sided paired randomisation test (Smucker et al. 2007). If neither
//!   run were better, the two values of each query could be swapped. The p-value is the share of
//!   random swaps whose mean difference is at least as great as the observed one. The observed
//!   arrangement counts as one of them, so the p-value is never 0.
//! - Confidence intervals are 95 % percentile bootstrap intervals of the mean over queries (Sakai 2014).
//!
//! Both use a generator with a fixed seed, so the same input gives the same result.

use serde::Serialize;

/// Number of random samples per test.
const ROUNDS: usize = 10_000;

/// A mean with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Lower bound: 2.5 % of resampled means are below.
    pub low: f64,
    /// Upper bound: 2.5 % of resampled means are above.
    pub high: f64,
}

/// The difference between two runs on the same queries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The mean of the first minus the second, with its confidence interval.
    #[serde(flatten)]
    pub interval: Interval,
    /// The p-value: the probability of a difference at least this great by chance; above 0, at most 1.
    pub p: f64,
    /// Queries on which the first is better.
    pub better: usize,
    /// Queries on which it is worse.
    pub worse: usize,
}

/// SplitMix64 (Steele et al. 2014): small, fast, and good enough for sampling.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; the bias is that of 2^-32 for fewer than 2^32 values.
    fn below(&mut self, end: usize) -> usize {
        (((self.next() >> 32) * end as u64) >> 32) as usize
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The mean of the values, one per query, with its confidence interval.
pub fn bootstrap(values: &[f64]) -> Interval {
    let mean = mean(values);
    if values.is_empty() {
        return Interval { mean, low: mean, high: mean };
    }
    let mut draw = SplitMix(0);
    let mut means: Vec<f64> = (0..ROUNDS)
        .map(|_| (0..values.len()).map(|_| values[draw.below(values.len())]).sum::<f64>() / values.len() as f64)
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[((share * ROUNDS as f64) as usize).min(ROUNDS - 1)];
    Interval { mean, low: at(0.025), high: at(0.975) }
}

/// Compares two runs. Both slices have one value per query, in the same order.
pub fn compare(first: &[f64], second: &[f64]) -> Difference {
    let differences: Vec<f64> = first.iter().zip(second).map(|(a, b)| a - b).collect();
    let observed = differences.iter().sum::<f64>().abs();
    let mut draw = SplitMix(1);
    let mut as_great = 1;
    for _ in 1..ROUNDS {
        let (mut bits, mut sum) = (0, 0.0);
        for (at, difference) in differences.iter().enumerate() {
            if at % 64 == 0 {
                bits = draw.next();
            }
            sum += if bits & 1 == 1 { *difference } else { -difference };
            bits >>= 1;
        }
        // A difference within rounding error counts as equal.
        as_great += usize::from(sum.abs() >= observed - 1e-9);
    }
    Difference {
        interval: bootstrap(&differences),
        p: f64::from(as_great as u32) / ROUNDS as f64,
        better: differences.iter().filter(|difference| **difference > 1e-12).count(),
        worse: differences.iter().filter(|difference| **difference < -1e-12).count(),
    }
}

/// Adjusts the p-values of several comparisons by Holm's method (1979), so that the probability of any
/// false positive among them is bounded. The values stay in their order.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let (mut adjusted, mut least) = (vec![1.0; p.len()], 0.0_f64);
    for (rank, at) in order.into_iter().enumerate() {
        least = least.max(p[at] * (p.len() - rank) as f64).min(1.0);
        adjusted[at] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holm_multiplies_the_smallest_most() {
        let near = |found: Vec<f64>, want: &[f64]| {
            assert!(
                found.len() == want.len() && found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12),
                "{found:?}"
            );
        };
        // 0.01 · 4, 0.005 · 4 is less than 0.03 · 2 and 0.04.
        near(holm(&[0.01, 0.04, 0.03, 0.005]), &[0.03, 0.06, 0.06, 0.02]);
        near(holm(&[0.6, 0.7]), &[1.0, 1.0]);
        near(holm(&[0.2]), &[0.2]);
        near(holm(&[]), &[]);
    }

    #[test]
    fn p_is_that_of_all_exchanges() {
        // Ten queries, all better by the same amount: 2 of 1,024 arrangements are as great.
        let difference = compare(&[0.6; 10], &[0.5; 10]);
        assert!((difference.p - 2.0 / 1024.0).abs() < 0.001, "{difference:?}");
        assert_eq!((difference.better, difference.worse), (10, 0));
        // Differences of 3, 1 and -1: of 8 arrangements, those with sums of at least 3 or at most -3.
        let difference = compare(&[3.0, 1.0, 0.0], &[0.0, 0.0, 1.0]);
        assert!((difference.p - 6.0 / 8.0).abs() < 0.02, "{difference:?}");
        let same = compare(&[0.5, 0.25], &[0.5, 0.25]);
        assert_eq!((same.p, same.interval.mean, same.better), (1.0, 0.0, 0));
    }

    #[test]
    fn the_interval_is_the_normal_one_where_values_are_many() {
        let values: Vec<f64> = (0..400).map(|n| f64::from(n % 2)).collect();
        let Interval { mean, low, high } = bootstrap(&values);
        // 0.5 ± 1.96 · 0.5 / √400
        assert!(mean == 0.5 && (low - 0.451).abs() < 0.005 && (high - 0.549).abs() < 0.005, "{low} {high}");
        assert_eq!(bootstrap(&values), bootstrap(&values));
        assert_eq!(bootstrap(&[]).mean, 0.0);
    }
}
