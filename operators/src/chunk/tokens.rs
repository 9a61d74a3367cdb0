//! Overlapping chunks of a fixed number of tokens, counted by a model's own tokenizer.
//!
//! ```ron
//! Tokens(size: 150, overlap: 50)
//! ```
//!
//! Sizes in published systems: 512 tokens with a stride of 100 (MTRAG, section 4.2), 150 with an overlap of 50 (PolyU
//! group 15). Cuts fall between words: a chunk that would start or end inside a word contains the whole word, if that
//! has at most 16 tokens and 128 bytes. In text without such words (Chinese, Japanese, Thai, base64), cuts fall between
//! tokens, but never between a letter and its combining marks. Text that no token covers, and a token of more than 128
//! bytes, count as one token for each 128 bytes.

use std::sync::Arc;

use turnflow_engine::component::{Check, Chunker, ChunkerConfig, ChunkerKind, config};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;
use unicode_segmentation::UnicodeSegmentation;

use super::cut::cut;
use super::{numbered, squeezed, title, windows};

/// Entry in the chunker table.
pub const KIND: ChunkerKind =
    ChunkerKind::of::<TokensConfig>("Tokens", "overlapping passages of a fixed number of tokens");

/// Fields of `Tokens`.
#[config]
pub struct TokensConfig {
    /// Maximum number of tokens in a passage.
    #[field(range = 8..=100_000)]
    pub size: usize,
    /// Number of tokens that a passage shares with the previous one; less than `size`.
    #[field(default)]
    pub overlap: usize,
    /// The model whose tokenizer counts the tokens. Default: the first model that has a tokenizer.
    #[field(hidden)]
    pub model: Option<String>,
}

impl ChunkerConfig for TokensConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.overlap >= self.size {
            let message = format!("`overlap` ({}) must be less than `size` ({})", self.overlap, self.size);
            check.error("out-of-range", "overlap", message);
        }
    }

    fn tokenizer(&self) -> Option<Option<&str>> {
        Some(self.model.as_deref())
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

/// Maximum number of tokens in a word that is never cut.
const WORD_TOKENS: usize = 16;
/// Maximum number of bytes in one call of the tokenizer.
const PART_BYTES: usize = 64 << 10;
/// Maximum number of bytes in a word that is never cut, and in a token.
const WORD_BYTES: usize = 128;

impl Chunker for Tokens {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let text = &document.text;
        let units = units(text, &self.tokens(text));
        let spans = spans(text, &units);
        let title = title(document);
        let pieces = windows(units.len(), self.size, self.overlap).into_iter().filter_map(|(first, last)| {
            let piece = text.get(spans[first].0..spans[last - 1].1)?.trim();
            (!piece.is_empty()).then(|| (title.clone(), squeezed(piece)))
        });
        numbered(document, pieces)
    }
}

impl Tokens {
    /// The tokens of a text, as byte ranges. A tokenizer needs some hundred bytes of memory for each input byte, so a
    /// long text is tokenized part by part.
    fn tokens(&self, text: &str) -> Vec<(usize, usize)> {
        let mut tokens = Vec::new();
        for (start, end) in parts(text, PART_BYTES) {
            let part = &text[start..end];
            let offsets = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.offsets(part).ok());
            // If the tokenizer rejects the text, its words count as tokens.
            let offsets = offsets.unwrap_or_else(|| words(part));
            tokens.extend(offsets.into_iter().map(|(from, to)| (start + from, start + to)));
        }
        tokens
    }
}

/// Parts of at most `most` bytes, cut before the last line break that leaves at least half of them, else before the
/// last blank, else between characters.
fn parts(text: &str, most: usize) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let mut start = 0;
    while text.len() - start > most {
        let end = text.floor_char_boundary(start + most);
        let middle = text.ceil_char_boundary(start + most / 2);
        let later = &text[middle..end];
        let cut = later.rfind('\n').or_else(|| later.rfind(char::is_whitespace)).map_or(end, |at| middle + at);
        parts.push((start, cut));
        start = cut;
    }
    parts.push((start, text.len()));
    parts
}

fn words(text: &str) -> Vec<(usize, usize)> {
    let start_of = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    text.split_whitespace().map(|word| (start_of(word), start_of(word) + word.len())).collect()
}

/// The tokens in text order, each of at least one character and at most [`WORD_BYTES`] bytes. Text that no token covers
/// is split into further units.
fn units(text: &str, tokens: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut units: Vec<(usize, usize)> = Vec::with_capacity(tokens.len());
    let add = |units: &mut Vec<(usize, usize)>, start: usize, end: usize| match text.get(start..end) {
        Some(part) if part.len() > WORD_BYTES => {
            units.extend(cut(part, WORD_BYTES).into_iter().map(|(from, to)| (start + from, start + to)));
        }
        Some(part) if !part.trim().is_empty() => {
            let start = start + (part.len() - part.trim_start().len());
            units.push((start, start + part.trim().len()));
        }
        _ => {}
    };
    let mut done = 0;
    for &(start, end) in tokens {
        let (start, end) = (text.floor_char_boundary(start), text.ceil_char_boundary(end));
        if start > done {
            add(&mut units, done, start);
        }
        // Tokens that share a character are counted as one unit each.
        if start < end {
            match start.max(done) < end {
                true => add(&mut units, start.max(done), end),
                false => units.push((start, end)),
            }
        }
        done = done.max(end);
    }
    add(&mut units, done, text.len());
    units
}

/// For each unit, the range that a chunk includes if it starts or ends with the unit: the whole word, or, in a long
/// word, the whole letters of the unit.
fn spans(text: &str, units: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut spans = Vec::with_capacity(units.len());
    let mut words = words(text).into_iter().peekable();
    let mut at = 0;
    while at < units.len() {
        // Skips words that have no unit.
        while words.next_if(|(_, end)| *end <= units[at].0).is_some() {}
        let Some(&(from, to)) = words.peek() else {
            spans.extend_from_slice(&units[at..]);
            break;
        };
        let count = units[at..].iter().take_while(|(start, _)| *start < to).count().max(1);
        let word = &units[at..at + count];
        at += count;
        if from <= word[0].0 && count <= WORD_TOKENS && to - from <= WORD_BYTES {
            spans.extend(word.iter().map(|(_, end)| (from, to.max(*end))));
        } else {
            whole_letters(text, (from, to), word, &mut spans);
        }
    }
    spans
}

/// Moves the boundaries of a long word's units to those of grapheme clusters, or of parts of clusters that are longer
/// than [`WORD_BYTES`].
fn whole_letters(text: &str, (from, to): (usize, usize), units: &[(usize, usize)], spans: &mut Vec<(usize, usize)>) {
    let letters = text[from..to].grapheme_indices(true).flat_map(|(at, letter)| {
        let parts = if letter.len() > WORD_BYTES { cut(letter, WORD_BYTES) } else { vec![(0, letter.len())] };
        parts.into_iter().map(move |(start, end)| (from + at + start, from + at + end))
    });
    let mut letters = letters.peekable();
    let mut letter = (from, from);
    for &(start, end) in units {
        while letter.1 <= start {
            match letters.next() {
                Some(next) => letter = next,
                None => break,
            }
        }
        let first = letter.0.min(start);
        while letter.1 < end {
            match letters.next_if(|next| next.0 < end) {
                Some(next) => letter = next,
                None => break,
            }
        }
        spans.push((first, letter.1.max(end)));
    }
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

    /// Every letter is a token, as for Chinese in most tokenizers.
    struct Letters;
    impl Tokenize for Letters {
        fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError> {
            Ok(text.char_indices().filter(|(_, c)| !c.is_whitespace()).map(|(at, c)| (at, at + c.len_utf8())).collect())
        }
    }

    fn texts(tokenizer: Arc<dyn Tokenize>, text: &str) -> Vec<String> {
        let chunker = TokensConfig { size: 8, overlap: 2, model: None }.build(Some(tokenizer));
        let document = Document {
            id: "d".into(),
            title: "t".into(),
            text: text.into(),
            markup: Markup::Plain,
            metadata: Default::default(),
        };
        chunker.chunk(&document).into_iter().map(|chunk| chunk.text.to_string()).collect()
    }

    #[test]
    fn texts_without_blanks_are_cut_between_letters() {
        assert_eq!(
            texts(Arc::new(Letters), "山の中に川がある。魚もいる。空は青い。"),
            ["山の中に川がある", "ある。魚もいる。", "る。空は青い。"]
        );
        // Combining marks stay with their letters.
        let thai = texts(Arc::new(Letters), "ที่นี่มีแม่น้ำและภูเขาสูง");
        assert!(
            thai.len() > 2 && thai.iter().all(|text| !text.starts_with(['\u{e35}', '\u{e48}', '\u{e49}'])),
            "{thai:?}"
        );
        let family = texts(Arc::new(Letters), &"👨‍👩‍👧".repeat(20));
        assert!(family.iter().all(|text| text.starts_with('👨') && text.ends_with('👧')), "{family:?}");
    }

    #[test]
    fn base64_is_cut_whatever_its_tokens_are() {
        /// WordPiece turns a word of more than 100 letters into one unknown token.
        struct Unknown;
        impl Tokenize for Unknown {
            fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError> {
                Ok(words(text))
            }
        }
        let run = "QUJD".repeat(25_000);
        for (tokenizer, most) in [(Arc::new(Pairs) as Arc<dyn Tokenize>, 16), (Arc::new(Unknown), 8 * WORD_BYTES)] {
            let texts = texts(tokenizer, &format!("See {run} there"));
            assert!(texts.iter().all(|text| text.len() <= most + 8), "{:?}", texts.iter().map(String::len).max());
            let total: usize = texts.iter().map(String::len).sum();
            assert!(total > run.len() && total < 2 * run.len(), "{total}");
        }
    }

    #[test]
    fn a_long_text_is_tokenized_part_by_part() {
        let text = "one two\nthree 山の中 ".repeat(20_000);
        let all = parts(&text, 1000);
        assert_eq!((all[0].0, all.last().unwrap().1), (0, text.len()));
        assert!(all.windows(2).all(|two| two[0].1 == two[1].0 && text[two[1].0..].starts_with('\n')));
        assert!(all.iter().all(|(start, end)| start < end && end - start <= 1000));
        assert!(parts(&"山".repeat(1000), 100).iter().all(|(start, end)| end - start == 99 || *end == 3000));
        assert!(parts(&"one ".repeat(100), 10).iter().skip(1).all(|(start, _)| start % 4 == 3));
        // The result equals tokenizing the whole text at once.
        let tokens = Tokens { size: 8, overlap: 0, tokenizer: Some(Arc::new(Pairs)) }.tokens(&text);
        assert!(tokens.len() > 60_000 && tokens == Pairs.offsets(&text).unwrap());
    }

    #[test]
    fn what_has_no_tokens_is_kept() {
        struct Latin;
        impl Tokenize for Latin {
            fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError> {
                Ok(words(text).into_iter().filter(|(start, end)| text[*start..*end].is_ascii()).collect())
            }
        }
        assert_eq!(texts(Arc::new(Latin), "日本 one 語"), ["日本 one 語"]);
        assert_eq!(texts(Arc::new(Latin), &"日本".repeat(1000)).concat().len() / 6000, 1);
        let blanks = texts(Arc::new(Latin), &format!("one{}two", " ".repeat(100_000)));
        assert!(blanks.len() == 1 && blanks[0].len() < 200, "{}", blanks[0].len());
    }

    #[test]
    fn cuts_fall_between_words() {
        let chunker = TokensConfig { size: 3, overlap: 1, model: None }.build(Some(Arc::new(Pairs)));
        let document = Document {
            id: "d".into(),
            title: "t".into(),
            text: "abcd efgh  ij".into(),
            markup: Markup::Plain,
            metadata: Default::default(),
        };
        let texts: Vec<_> = chunker.chunk(&document).into_iter().map(|chunk| (chunk.id, chunk.text)).collect();
        assert_eq!(texts, [("d#0".into(), "abcd efgh".into()), ("d#1".into(), "efgh  ij".into())]);
    }
}
