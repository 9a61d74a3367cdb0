//! Exact match and token F1 of short answers, as SQuAD and HotpotQA define them.
//!
//! Rajpurkar et al. 2016, section 6.1: both texts are normalised (lower case, without ASCII punctuation
//! and the articles `a`, `an` and `the`, white space collapsed); then they are compared as a whole, and as
//! bags of words. Of several reference answers, the best one counts. PolyU's answers are such spans of one
//! to five words (COMP5423, section 2.3.1).
//!
//! Equal to SQuAD's `evaluate-v2.0.py`. HotpotQA's script (Yang et al. 2018) has one more rule: a `yes`, a `no` or a
//! `noanswer` has the F1 0 with any other text, such as `yes` with `yes, it is`. Both figures are computed.

use std::collections::BTreeMap;

/// The agreement of an answer with its references.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// 1 if the answer equals a reference, otherwise 0.
    pub exact_match: f64,
    /// The highest harmonic mean of precision and recall of the answer's words, from 0 to 1.
    pub f1: f64,
    /// The highest share of a reference's words that the answer has, from 0 to 1, as in MTRAG's scripts.
    pub recall: f64,
    /// The F1 with HotpotQA's rule for `yes`, `no` and `noanswer`.
    pub hotpot_f1: f64,
}

/// Compares an answer with its reference answers.
///
/// References that are empty after normalisation are ignored; if all are, only an empty answer is right.
/// Without references, the only right answer is an empty one, too.
pub fn span<'a>(answer: &str, references: impl IntoIterator<Item = &'a str>) -> Span {
    let answer = words(answer);
    let mut references: Vec<Vec<String>> =
        references.into_iter().map(words).filter(|words| !words.is_empty()).collect();
    if references.is_empty() {
        references.push(Vec::new());
    }
    let best = |best: Span, reference: &Vec<String>| Span {
        exact_match: best.exact_match.max(if answer == *reference { 1.0 } else { 0.0 }),
        f1: best.f1.max(f1(&answer, reference)),
        recall: best.recall.max(recall(&answer, reference)),
        hotpot_f1: best.hotpot_f1.max(if are_closed(&answer, reference) { 0.0 } else { f1(&answer, reference) }),
    };
    references.iter().fold(Span::default(), best)
}

/// Whether the texts differ and one of them is a closed answer of HotpotQA.
fn are_closed(answer: &[String], reference: &[String]) -> bool {
    let is_closed = |words: &[String]| matches!(words, [only] if matches!(only.as_str(), "yes" | "no" | "noanswer"));
    answer != reference && (is_closed(answer) || is_closed(reference))
}

/// The normalised words of a text.
fn words(text: &str) -> Vec<String> {
    let text: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    // An article ends at any character that is not part of a word, such as a dash.
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let is_word = first.is_alphanumeric();
        let end = rest.find(|c: char| c.is_alphanumeric() != is_word).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        kept.push_str(if matches!(run, "a" | "an" | "the") { " " } else { run });
        rest = after;
    }
    kept.split_whitespace().map(str::to_owned).collect()
}

/// The harmonic mean of precision and recall of bags of words; if one is empty, whether both are.
fn f1(answer: &[String], reference: &[String]) -> f64 {
    if answer.is_empty() || reference.is_empty() {
        return if answer.is_empty() && reference.is_empty() { 1.0 } else { 0.0 };
    }
    2.0 * common(answer, reference) / (answer.len() + reference.len()) as f64
}

/// The share of the reference's words that the answer has; 0 if it has none.
fn recall(answer: &[String], reference: &[String]) -> f64 {
    if reference.is_empty() { 0.0 } else { common(answer, reference) / reference.len() as f64 }
}

/// The number of words that two bags share.
fn common(answer: &[String], reference: &[String]) -> f64 {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for word in reference {
        *left.entry(word).or_default() += 1;
    }
    let is_common = |word: &&String| match left.get_mut(word.as_str()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    };
    answer.iter().filter(is_common).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Case {
        prediction: String,
        golds: Vec<String>,
        exact: f64,
        f1: f64,
    }

    #[test]
    fn equals_squads_script() {
        let text = include_str!("../../tests/data/generation/spans.json");
        let cases: Vec<Case> = serde_json::from_str(text).expect("spans.json");
        assert!(cases.len() >= 400, "{}", cases.len());
        for Case { prediction, golds, exact, f1 } in cases {
            let got = span(&prediction, golds.iter().map(String::as_str));
            let agree = got.exact_match == exact && (got.f1 - f1).abs() < 1e-12;
            assert!(agree, "{prediction:?} {golds:?}: {got:?}, not {exact} and {f1}");
        }
    }

    #[test]
    fn the_best_reference_counts() {
        let got = span("the Eiffel tower.", ["Eiffel Tower", "tower"]);
        assert_eq!(got, Span { exact_match: 1.0, f1: 1.0, recall: 1.0, hotpot_f1: 1.0 });
        assert_eq!(
            span("tower in Paris", ["Eiffel Tower", "Paris"]),
            Span { exact_match: 0.0, f1: 0.5, recall: 1.0, hotpot_f1: 0.5 }
        );
        assert_eq!(span("", []), Span { exact_match: 1.0, f1: 1.0, recall: 0.0, hotpot_f1: 1.0 });
    }

    #[test]
    fn a_closed_answer_of_hotpotqa_agrees_only_with_itself() {
        assert_eq!(span("Yes.", ["yes"]).hotpot_f1, 1.0);
        for (answer, reference) in [("yes", "yes, it is"), ("yes, it is", "yes"), ("no", "yes"), ("noanswer", "Paris")]
        {
            assert_eq!(span(answer, [reference]).hotpot_f1, 0.0, "{answer}");
        }
        assert!(span("yes", ["yes, it is"]).f1 > 0.0);
    }
}
