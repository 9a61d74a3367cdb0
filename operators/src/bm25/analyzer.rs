//! Splits text into terms.

use serde::Deserialize;
use tantivy::tokenizer::{
    Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer,
};

/// Maximum length of a term, in bytes. Longer ones are not words (hashes, base64) and are left out.
const LONGEST: usize = 100;

/// How text is split into terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum Tokenizer {
    /// Letters and digits, lower-cased, without Lucene's English stop words, with Snowball stemming.
    #[default]
    English,
    /// The same without stemming.
    EnglishUnstemmed,
    /// Split at white space and lower-cased; punctuation stays attached to the words.
    Whitespace,
}

impl Tokenizer {
    /// The tokenizer's name in the index key.
    pub(super) fn name(self) -> &'static str {
        match self {
            Tokenizer::English => "english",
            Tokenizer::EnglishUnstemmed => "english-unstemmed",
            Tokenizer::Whitespace => "whitespace",
        }
    }

    /// The terms of a text, in order, with repetitions.
    pub fn terms(self, text: &str) -> Vec<String> {
        match self {
            Tokenizer::Whitespace => text
                .split_whitespace()
                .map(str::to_lowercase)
                .filter(|word| word.len() < tantivy::tokenizer::MAX_TOKEN_LEN)
                .collect(),
            Tokenizer::English | Tokenizer::EnglishUnstemmed => {
                let mut terms = Vec::new();
                let mut analyzer = english(self == Tokenizer::English);
                analyzer.token_stream(text).process(&mut |token| terms.push(token.text.clone()));
                terms
            }
        }
    }
}

fn english(stems: bool) -> TextAnalyzer {
    let words = TextAnalyzer::builder(SimpleTokenizer::default())
        .filter_dynamic(RemoveLongFilter::limit(LONGEST))
        .filter_dynamic(LowerCaser);
    let words = match StopWordFilter::new(Language::English) {
        Some(stop_words) => words.filter_dynamic(stop_words),
        None => words,
    };
    match stems {
        true => words.filter_dynamic(Stemmer::new(Language::English)).build(),
        false => words.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_terms() {
        for (tokenizer, text, want) in [
            (Tokenizer::English, "The Obligations of licensed firms!", vec!["oblig", "licens", "firm"]),
            (
                Tokenizer::EnglishUnstemmed,
                "The Obligations of licensed firms!",
                vec!["obligations", "licensed", "firms"],
            ),
            (Tokenizer::Whitespace, "The Firms, (licensed)", vec!["the", "firms,", "(licensed)"]),
            (Tokenizer::English, "AND OR NOT \"Legislation: \"", vec!["legisl"]),
            (Tokenizer::English, "\u{0}\u{202e}🙂", vec![]),
            (Tokenizer::Whitespace, "", vec![]),
        ] {
            assert_eq!(tokenizer.terms(text), want, "{tokenizer:?} {text:?}");
        }
    }
}
