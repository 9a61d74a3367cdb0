//! Chunks of a number of tokens, overlapping, counted by a model's own tokenizer.
//!
//! ```ron
//! Tokens(size: 150, overlap: 50)
//! ```
//!
//! Sizes in published systems: 512 tokens with a stride of 100 (MTRAG, section 4.2), 150 with
//! an overlap of 50 (PolyU group 15). Cuts fall between words where the tokenizer allows:
//! a chunk never begins or ends within a word.

use std::sync::Arc;

use serde::Deserialize;
use turnflow_engine::component::{Check, Chunker, ChunkerConfig, ChunkerKind};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;
use turnflow_engine::spec::from_tree;

use super::{numbered, windows};

/// The table's entry.
pub const KIND: ChunkerKind = ChunkerKind {
    name: "Tokens",
    summary: "passages of so many tokens of a model's tokenizer, overlapping",
    parse: |tree, sources| Ok(Box::new(from_tree::<TokensConfig>(tree, sources)?)),
};

/// Fields of `Tokens`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokensConfig {
    /// Most tokens in a passage.
    pub size: usize,
    /// Tokens that a passage shares with the one before. Default 0.
    #[serde(default)]
    pub overlap: usize,
    /// Whose tokenizer counts. Default: the first model that has one.
    #[serde(default)]
    pub model: Option<String>,
}

impl ChunkerConfig for TokensConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("size", self.size, 8, 100_000);
        if self.overlap >= self.size {
            let message = format!("`overlap` is {}, and must be less than `size`, {}", self.overlap, self.size);
            check.error("out-of-range", "overlap", message);
        }
    }

    fn tokenizer(&self) -> Option<Option<&str>> {
        Some(self.model.as_deref())
    }

    fn explain(&self) -> String {
        format!("size: {}, overlap: {}", self.size, self.overlap)
    }

    fn build(&self, tokenizer: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        Arc::new(Tokens { size: self.size, overlap: self.overlap, tokenizer })
    }
}

struct Tokens {
    size: usize,
    overlap: usize,
    tokenizer: Option<Arc<dyn Tokenize>>,
}

impl Chunker for Tokens {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let text = &document.text;
        let offsets = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.offsets(text).ok());
        // Without tokens (the tokenizer refused the text), words stand in for them.
        let offsets = offsets.unwrap_or_else(|| words(text));
        let words = whole_words(text, &offsets);
        let pieces = windows(offsets.len(), self.size, self.overlap).into_iter().filter_map(|(first, last)| {
            let start = words[first].0;
            let end = words[last - 1].1;
            let piece = text.get(start..end)?.trim();
            (!piece.is_empty()).then(|| (document.title.clone(), Arc::from(piece)))
        });
        numbered(document, pieces)
    }
}

fn words(text: &str) -> Vec<(usize, usize)> {
    let start_of = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    text.split_whitespace().map(|word| (start_of(word), start_of(word) + word.len())).collect()
}

/// For each token, the range of the blank-separated word that it is part of.
fn whole_words(text: &str, tokens: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let words = words(text);
    let mut at = 0;
    tokens
        .iter()
        .map(|&(start, end)| {
            while at + 1 < words.len() && words[at].1 <= start {
                at += 1;
            }
            match words.get(at) {
                Some(&(from, to)) if from <= start => (from, to.max(end)),
                _ => (start, end),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnflow_engine::document::Markup;
    use turnflow_engine::inference::InferenceError;

    /// Every two characters of a word are a token.
    struct Pairs;
    impl Tokenize for Pairs {
        fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError> {
            let halves = |(start, end): (usize, usize)| (start..end).step_by(2).map(move |at| (at, (at + 2).min(end)));
            Ok(words(text).into_iter().flat_map(halves).collect())
        }
    }

    #[test]
    fn cuts_fall_between_words() {
        let chunker = TokensConfig { size: 3, overlap: 1, model: None }.build(Some(Arc::new(Pairs)));
        let document =
            Document { id: "d".into(), title: "t".into(), text: "abcd efgh  ij".into(), markup: Markup::Plain };
        let texts: Vec<_> = chunker.chunk(&document).into_iter().map(|chunk| (chunk.id, chunk.text)).collect();
        assert_eq!(texts, [("d#0".into(), "abcd efgh".into()), ("d#1".into(), "efgh  ij".into())]);
    }
}
