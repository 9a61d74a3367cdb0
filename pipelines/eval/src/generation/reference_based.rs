//! RB_alg: a combination of three metrics that compare texts without a judge.
//!
//! From MTRAG (Katsis et al. 2025, section 6.3.1): the harmonic mean of Bert-Recall (of the
//! reference), Bert-K-Precision (against the passages) and ROUGE-L. BERTScore values that are
//! rescaled by a baseline may be negative; they are first mapped from −1…1 to 0…1, as in the
//! published evaluation.

/// RB_alg from its three parts; 0 if one of them is 0 or less.
pub fn rb_alg(bert_recall: f64, bert_k_precision: f64, rouge_l: f64, rescaled: bool) -> f64 {
    let shift = |value: f64| if rescaled { f64::midpoint(value, 1.0) } else { value };
    let parts = [shift(bert_recall), shift(bert_k_precision), rouge_l];
    if parts.iter().any(|part| *part <= 0.0) {
        return 0.0;
    }
    parts.len() as f64 / parts.iter().map(|part| 1.0 / part).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_harmonic_mean_is_0_where_a_part_is() {
        for (parts, rescaled, want) in [
            ([1.0, 1.0, 1.0], false, 1.0),
            ([0.5, 0.5, 0.5], false, 0.5),
            ([0.9, 0.6, 0.3], false, 3.0 / (1.0 / 0.9 + 1.0 / 0.6 + 1.0 / 0.3)),
            ([0.9, 0.6, 0.0], false, 0.0),
            ([-0.1, 0.6, 0.3], false, 0.0),
            ([-0.1, 0.6, 0.3], true, 3.0 / (1.0 / 0.45 + 1.0 / 0.8 + 1.0 / 0.3)),
        ] {
            let got = rb_alg(parts[0], parts[1], parts[2], rescaled);
            assert!((got - want).abs() < 1e-12, "{parts:?}: {got}, not {want}");
        }
    }
}
