//! Pseudo-relevance feedback: terms of the first passages join the question (RM3: Lavrenko and Croft 2001; Abdul-Jaleel
//! et al. 2004).

use std::collections::BTreeMap;

use turnflow_engine::component::{Check, config};
use turnflow_engine::record::Hit;

use super::Tokenizer;

/// How a question is expanded by terms of the passages that it finds.
#[config]
#[derive(Copy)]
pub struct TermFeedback {
    /// Number of passages to read, best first.
    #[field(default = 10)]
    pub passages: usize,
    /// Number of terms to add, those with the greatest probability in the passages.
    #[field(default = 10)]
    pub terms: usize,
    /// Share of the added terms, 0 to 1; the question's own terms have the rest.
    #[field(default = 0.5)]
    pub weight: f32,
}

/// Maximum number of passages and of terms.
const MOST: usize = 10_000;

impl TermFeedback {
    pub(super) fn validate(&self, check: &mut Check<'_>) {
        if !(1..=MOST).contains(&self.passages) || !(1..=MOST).contains(&self.terms) {
            check.error("out-of-range", "feedback", format!("`passages` and `terms` must be from 1 to {MOST}"));
        }
        if !(0.0..=1.0).contains(&self.weight) {
            check.error("out-of-range", "feedback", "`weight` must be between 0 and 1");
        }
    }

    /// The question's terms with those of the passages that it found. With the weight 0, the terms stay as they are.
    ///
    /// A term's probability is the sum, over the passages, of its share of the passage's terms times the passage's share
    /// of the scores.
    pub(super) fn expand(&self, terms: &BTreeMap<String, f32>, found: &[Hit], by: &Tokenizer) -> BTreeMap<String, f32> {
        let found = &found[..found.len().min(self.passages)];
        let all: f32 = found.iter().map(|hit| hit.score).sum();
        let mut probabilities: BTreeMap<String, f32> = BTreeMap::new();
        for hit in found {
            let words = by.passage_terms(&hit.chunk);
            let share = hit.score / all / words.len() as f32;
            words.into_iter().for_each(|word| *probabilities.entry(word).or_default() += share);
        }
        let mut best: Vec<(String, f32)> = probabilities.into_iter().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        best.truncate(self.terms);
        let (count, total): (f32, f32) = (terms.values().sum(), best.iter().map(|(_, probability)| probability).sum());
        if total <= 0.0 {
            return terms.clone();
        }
        let mut expanded: BTreeMap<String, f32> =
            terms.iter().map(|(term, weight)| (term.clone(), (1.0 - self.weight) * weight)).collect();
        for (term, probability) in best {
            *expanded.entry(term).or_default() += self.weight * count * probability / total;
        }
        expanded.retain(|_, weight| *weight > 0.0);
        expanded
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use turnflow_engine::document::Chunk;

    use super::*;

    fn hit(text: &str, score: f32) -> Hit {
        Hit { chunk: Arc::new(Chunk::new(text.into(), "d".into(), "".into(), text.into())), score }
    }

    #[test]
    fn expansion_agrees_with_the_model_worked_by_hand() {
        let terms = BTreeMap::from([("ferry".to_owned(), 2.0)]);
        let found = [hit("ferry harbour", 3.0), hit("ferry noon noon noon", 1.0), hit("never read", 0.5)];
        let feedback = TermFeedback { passages: 2, terms: 2, weight: 0.5 };
        // ferry: 3/4 · 1/2 + 1/4 · 1/4 = 7/16; harbour: 6/16; noon: 3/16, which is third.
        let expanded = feedback.expand(&terms, &found, &Tokenizer::Whitespace);
        let expected = [("ferry", 1.0 + 7.0 / 13.0), ("harbour", 6.0 / 13.0)];
        assert_eq!(expanded.len(), expected.len(), "{expanded:?}");
        for (term, weight) in expected {
            assert!((expanded[term] - weight).abs() < 1e-6, "{expanded:?}");
        }
        let none = TermFeedback { weight: 0.0, ..feedback };
        assert_eq!(none.expand(&terms, &found, &Tokenizer::Whitespace), terms);
        assert_eq!(feedback.expand(&terms, &[], &Tokenizer::Whitespace), terms);
    }
}
