//! Rank correlation (Spearman), with weights.

/// Spearman's correlation of pairs with weights: the weighted correlation of their ranks, where equal values share the
/// mean of their ranks. `None` if all first or all second values are equal, or if there are none.
pub fn spearman(pairs: &[(f64, f64)], weights: &[f64]) -> Option<f64> {
    let (first, second): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (first, second) = (ranks(&first), ranks(&second));
    let total: f64 = weights.iter().sum();
    let mean = |values: &[f64]| values.iter().zip(weights).map(|(value, weight)| value * weight).sum::<f64>() / total;
    let (one, other) = (mean(&first), mean(&second));
    let product = |a: &[f64], a_mean: f64, b: &[f64], b_mean: f64| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| (a - a_mean) * (b - b_mean));
        products.zip(weights).map(|(product, weight)| product * weight).sum()
    };
    let spread = (product(&first, one, &first, one) * product(&second, other, &second, other)).sqrt();
    (spread > 0.0).then(|| product(&first, one, &second, other) / spread)
}

/// Weights by which each value of the first of the pairs counts as much as any other value, however often it occurs.
pub fn balanced(pairs: &[(f64, f64)]) -> Vec<f64> {
    let often = |value: f64| pairs.iter().filter(|(other, _)| *other == value).count();
    pairs.iter().map(|(value, _)| 1.0 / often(*value) as f64).collect()
}

/// The ranks of values, from 1; equal values have the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    for same in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let before = order.iter().position(|at| *at == same[0]).unwrap_or_default();
        let rank = before as f64 + (same.len() + 1) as f64 / 2.0;
        same.iter().for_each(|at| ranks[*at] = rank);
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of `scipy.stats.spearmanr`, and of NumPy's weighted covariance of SciPy's ranks.
    #[test]
    fn ranks_are_compared() {
        let pairs = [(1.0, 0.2), (2.0, 0.9), (2.0, 0.4), (4.0, 0.4), (4.0, 0.8), (4.0, 1.0)];
        let near = |weights: &[f64], want: f64| {
            let got = spearman(&pairs, weights).expect("a correlation");
            assert!((got - want).abs() < 1e-9, "{got}");
        };
        near(&[1.0; 6], 0.547_946_254_699_505_8);
        near(&balanced(&pairs), 0.673_487_320_612_244);
        assert_eq!(balanced(&pairs)[..2], [1.0, 0.5]);
        assert_eq!(spearman(&[(1.0, 2.0), (1.0, 3.0)], &[1.0, 1.0]), None);
        assert_eq!(spearman(&[], &[]), None);
        assert_eq!(spearman(&[(1.0, 2.0), (3.0, 9.0)], &[1.0, 1.0]), Some(1.0));
    }
}
