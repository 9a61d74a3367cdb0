//! ROUGE-L: the longest common subsequence of response and reference (Lin 2004).
//!
//! Equal to Google's `rouge_score` with its default tokenizer: text is lower-cased, all characters
//! except `a`–`z` and `0`–`9` separate words, and with `stemmer`, words of more than three letters
//! are stemmed. MTRAG (Katsis et al. 2025, section 6.3) uses the F-measure without the stemmer.
//!
//! Extractiveness is ROUGE-L of a response against a passage, as in MTRAG's scripts.

use super::porter;

/// ROUGE-L values, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rouge {
    /// Share of the response's words in the common subsequence.
    pub precision: f64,
    /// Share of the reference's words in the common subsequence.
    pub recall: f64,
    /// The harmonic mean of both.
    pub f_measure: f64,
}

/// ROUGE-L of a response against a reference; all values are 0 if either has no words.
pub fn rouge_l(response: &str, reference: &str, stemmer: bool) -> Rouge {
    let (response, reference) = (tokens(response, stemmer), tokens(reference, stemmer));
    if response.is_empty() || reference.is_empty() {
        return Rouge::default();
    }
    let common = longest_common(&reference, &response) as f64;
    let (precision, recall) = (common / response.len() as f64, common / reference.len() as f64);
    let sum = precision + recall;
    let f_measure = if sum > 0.0 { 2.0 * precision * recall / sum } else { 0.0 };
    Rouge { precision, recall, f_measure }
}

/// How much of a response is taken from one of the passages: the highest F-measure of ROUGE-L with a passage, without
/// punctuation; 1 if it has the whole passage. 0 without passages.
pub fn extractiveness(response: &str, passages: &[String]) -> f64 {
    let only_words = |text: &str| -> String {
        let kept = text.chars().filter(|c| c.is_alphanumeric() || c.is_whitespace() || *c == '_');
        kept.collect::<String>().to_lowercase()
    };
    let squeezed = |text: &str| text.replace([' ', '\n'], "");
    let response = only_words(response);
    let whole = squeezed(&response);
    let of = |passage: &String| {
        let passage = only_words(passage);
        if whole.contains(&squeezed(&passage)) { 1.0 } else { rouge_l(&response, &passage, false).f_measure }
    };
    passages.iter().map(of).fold(0.0, f64::max)
}

fn tokens(text: &str, stemmer: bool) -> Vec<String> {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit()).filter(|word| !word.is_empty());
    let token = |word: &str| if stemmer && word.len() > 3 { porter::stem(word) } else { word.to_owned() };
    words.map(token).collect()
}

/// The length of the longest common subsequence.
fn longest_common(a: &[String], b: &[String]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for one in a {
        let mut diagonal = 0;
        for (at, other) in b.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = if one == other { diagonal + 1 } else { above.max(row[at]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Golden {
        rouge: Vec<Case>,
        stems: Vec<(String, String)>,
    }

    #[derive(Deserialize)]
    struct Case {
        response: String,
        reference: String,
        stemmer: bool,
        /// Precision, recall, F-measure.
        expected: [f64; 3],
    }

    fn golden() -> Golden {
        let text = include_str!("../../tests/data/generation/rouge.json");
        serde_json::from_str(text).expect("rouge.json")
    }

    #[test]
    fn equals_rouge_score() {
        let cases = golden().rouge;
        assert!(cases.len() >= 40, "{}", cases.len());
        for Case { response, reference, stemmer, expected } in cases {
            let Rouge { precision, recall, f_measure } = rouge_l(&response, &reference, stemmer);
            for (ours, theirs) in [precision, recall, f_measure].into_iter().zip(expected) {
                assert!((ours - theirs).abs() < 1e-6, "{response:?} {reference:?} {stemmer}: {ours}, not {theirs}");
            }
        }
    }

    #[test]
    fn what_is_extracted_is_the_best_passage() {
        let passages = ["The ferry leaves at noon.", "It is blue."].map(str::to_owned);
        for (response, want) in
            [("Well: the ferry\nleaves at NOON, so hurry!", 1.0), ("The ferry leaves.", 0.75), ("Hm.", 0.0), ("", 0.0)]
        {
            let got = extractiveness(response, &passages);
            assert!((got - want).abs() < 1e-12, "{response:?}: {got}");
        }
        assert_eq!(extractiveness("It is blue.", &[]), 0.0);
    }

    #[test]
    fn stems_equal_nltks() {
        let stems = golden().stems;
        assert!(stems.len() > 300, "{}", stems.len());
        for (word, stem) in stems {
            assert_eq!(porter::stem(&word), stem, "{word}");
        }
    }
}
