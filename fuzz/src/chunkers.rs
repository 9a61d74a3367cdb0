//! Chunkers: for any text, the chunks cover it, respect the maximum length, and in total are no larger
//! than a multiple of it.
//!
//! `crate::chunk` is `operators/src/chunk`, both in the operators' tests and in the fuzz target. It
//! does not depend on the other operators.

use std::sync::Arc;

use turnflow_engine::component::{Chunker, ChunkerConfig};
use turnflow_engine::document::{Chunk, Document, Markup};
use turnflow_engine::inference::{InferenceError, Tokenize};

use crate::chunk::headings::HeadingsConfig;
use crate::chunk::sentences::SentencesConfig;
use crate::chunk::tokens::TokensConfig;
use crate::chunk::{TITLE, squeezed};

/// Tokenizers of several kinds.
#[derive(Clone, Copy, Debug)]
enum Tokens {
    /// Words of any length.
    Words,
    /// Every character that is not a blank.
    Characters,
    /// Every byte, with the range of its character.
    Bytes,
    /// Two characters each, including blanks.
    Pairs,
    /// ASCII characters only; other characters have no token.
    Ascii,
    /// Fails on every text.
    None,
}

impl Tokenize for Tokens {
    fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError> {
        let characters = text.char_indices().map(|(at, c)| (at, at + c.len_utf8(), c));
        Ok(match self {
            Tokens::Words => {
                let start_of = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
                text.split_whitespace().map(|word| (start_of(word), start_of(word) + word.len())).collect()
            }
            Tokens::Characters => {
                characters.filter(|(_, _, c)| !c.is_whitespace()).map(|(start, end, _)| (start, end)).collect()
            }
            Tokens::Bytes => {
                characters.flat_map(|(start, end, c)| std::iter::repeat_n((start, end), c.len_utf8())).collect()
            }
            Tokens::Pairs => {
                let all: Vec<_> = characters.collect();
                all.chunks(2).map(|pair| (pair[0].0, pair[pair.len() - 1].1)).collect()
            }
            Tokens::Ascii => characters.filter(|(_, _, c)| c.is_ascii()).map(|(start, end, _)| (start, end)).collect(),
            Tokens::None => return Err(InferenceError::Tokenizer("none".into())),
        })
    }
}

fn document(title: &str, text: &str, markup: Markup) -> Document {
    Document { id: "d".into(), title: title.into(), text: text.into(), markup, metadata: Default::default() }
}

/// The chunks, after checks that hold for every chunker.
fn chunks(chunker: &Arc<dyn Chunker>, document: &Document) -> Vec<Chunk> {
    let chunks = chunker.chunk(document);
    for (n, chunk) in chunks.iter().enumerate() {
        assert_eq!(*chunk.id, format!("d#{n}"));
        assert!(!chunk.text.trim().is_empty() && chunk.text.trim().len() == chunk.text.len(), "{:?}", chunk.text);
        assert!(chunk.title.chars().count() <= TITLE, "{:?}", chunk.title);
    }
    assert_eq!(chunker.chunk(document), chunks, "a chunker must be a function of the document");
    chunks
}

/// `Headings` of a Markdown text.
pub fn headings(title: &str, text: &str, max_words: usize) -> Vec<Chunk> {
    chunks(&HeadingsConfig { max_words }.build(None), &document(title, text, Markup::Markdown))
}

/// Checks that every chunk is in the text, and, except for blanks, starts at or before the end of the
/// previous one.
fn cover(chunks: &[Chunk], text: &str) {
    let text = squeezed(text);
    let mut covered = 0;
    for chunk in chunks {
        let limit = covered + (text[covered..].len() - text[covered..].trim_start().len());
        let end = text.ceil_char_boundary((limit + chunk.text.len()).min(text.len()));
        let start = text[..end].rfind(&*chunk.text);
        let start = start.unwrap_or_else(|| panic!("{:?} skips text at {limit} of {text:?}", chunk.text));
        covered = covered.max(start + chunk.text.len());
    }
    assert!(text[covered..].trim().is_empty(), "the end is missing: {:?}", &text[covered..]);
}

/// Runs all chunkers on a text.
pub fn check(title: &str, text: &str, size: usize, overlap: usize) {
    let plain = document(title, text, Markup::Plain);
    let times = size.div_ceil(size - overlap) + 1;
    let bounded = |chunks: &[Chunk], most: usize, extra: usize| {
        assert!(chunks.iter().all(|chunk| chunk.text.len() <= most), "a chunk has more than {most} bytes");
        let bytes: usize = chunks.iter().map(|chunk| chunk.text.len()).sum();
        assert!(bytes <= times * text.len() + extra * chunks.len(), "{bytes} bytes of {} in all", text.len());
    };
    let kinds = [Tokens::Words, Tokens::Characters, Tokens::Bytes, Tokens::Pairs, Tokens::Ascii, Tokens::None];
    for tokens in kinds {
        let chunker = TokensConfig { size, overlap, model: None }.build(Some(Arc::new(tokens)));
        let chunks = chunks(&chunker, &plain);
        cover(&chunks, text);
        // A token has at most 128 bytes; as many blanks may follow it, and a word or a letter of as
        // many bytes may be added at both ends.
        bounded(&chunks, 256 * (size + 2), 512);
    }
    let sentences = chunks(&SentencesConfig { size, overlap }.build(None), &plain);
    bounded(&sentences, 4300 * size, 512);

    let max_words = size;
    let chunker = HeadingsConfig { max_words }.build(None);
    for markup in [Markup::Plain, Markup::Markdown] {
        let chunks = chunks(&chunker, &document(title, text, markup));
        bounded(&chunks, 32 * max_words, 2);
        if markup == Markup::Plain {
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let all: String = chunks.iter().map(|chunk| letters(&chunk.text)).collect();
            assert_eq!(all, letters(text));
        }
    }
}

/// Two bytes of settings, then a title up to a zero byte, then a text.
pub fn chunkers(data: &[u8]) {
    let Some((settings, rest)) = data.split_at_checked(2) else { return };
    let size = 8 + usize::from(settings[0]);
    let overlap = size * usize::from(settings[1] % 8) / 8;
    let mut parts = rest.splitn(2, |byte| *byte == 0);
    let title = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    check(&title, &text, size, overlap);
}
