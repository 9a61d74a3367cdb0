//! Chunks of a fixed number of whole sentences.
//!
//! ```ron
//! Sentences(size: 5, overlap: 1)
//! ```
//!
//! Text of more than 4,096 bytes without a sentence end (a table, a log, base64) is cut after a line, a blank or a
//! letter, and each part counts as a sentence.

use std::sync::Arc;

use turnflow_engine::component::{Check, Chunker, ChunkerConfig, ChunkerKind, config};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;

use super::cut::cut;
use super::{numbered, squeezed, title, windows};
use crate::sentences::sentence_ranges;

/// Entry in the chunker table.
pub const KIND: ChunkerKind =
    ChunkerKind::of::<SentencesConfig>("Sentences", "overlapping passages of a fixed number of sentences");

/// Fields of `Sentences`.
#[config]
pub struct SentencesConfig {
    /// Number of sentences in a passage.
    #[field(range = 1..=10_000)]
    pub size: usize,
    /// Number of sentences that a passage shares with the previous one; less than `size`.
    #[field(default)]
    pub overlap: usize,
}

impl ChunkerConfig for SentencesConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.overlap >= self.size {
            let message = format!("`overlap` ({}) must be less than `size` ({})", self.overlap, self.size);
            check.error("out-of-range", "overlap", message);
        }
    }

    fn build(&self, _: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        Arc::new(Sentences { size: self.size, overlap: self.overlap })
    }
}

/// Maximum length of a sentence, in bytes.
const LONGEST: usize = 4096;

struct Sentences {
    size: usize,
    overlap: usize,
}

impl Chunker for Sentences {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let sentences = sentence_ranges(&document.text);
        let parts = |(start, end): (usize, usize)| {
            let parts = cut(&document.text[start..end], LONGEST);
            parts.into_iter().map(move |(from, to)| (start + from, start + to))
        };
        let ranges: Vec<(usize, usize)> = sentences.into_iter().flat_map(parts).collect();
        let title = title(document);
        let pieces = windows(ranges.len(), self.size, self.overlap).into_iter().map(|(first, last)| {
            let piece = &document.text[ranges[first].0..ranges[last - 1].1];
            (title.clone(), squeezed(piece))
        });
        numbered(document, pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnflow_engine::document::Markup;

    #[test]
    fn sentences_are_never_cut() {
        let chunker = SentencesConfig { size: 2, overlap: 1 }.build(None);
        let document = Document {
            id: "d".into(),
            title: "".into(),
            text: "A b. C d. E f.".into(),
            markup: Markup::Plain,
            metadata: Default::default(),
        };
        let texts: Vec<_> = chunker.chunk(&document).into_iter().map(|chunk| chunk.text.to_string()).collect();
        assert_eq!(texts, ["A b. C d.", "C d. E f."]);
    }

    #[test]
    fn what_never_ends_is_cut() {
        let chunker = SentencesConfig { size: 2, overlap: 1 }.build(None);
        let text = "QUJD".repeat(10_000);
        let document = Document {
            id: "d".into(),
            title: "".into(),
            text: text.into(),
            markup: Markup::Plain,
            metadata: Default::default(),
        };
        let lengths: Vec<usize> = chunker.chunk(&document).iter().map(|chunk| chunk.text.len()).collect();
        assert!(lengths.len() == 9 && lengths.iter().all(|length| *length <= 2 * LONGEST), "{lengths:?}");
    }
}
