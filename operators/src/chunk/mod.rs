//! Chunkers, one file each: pure functions from a document to its chunks.
//!
//! The chunks of a document that is cut are bounded in size, and so is their total. Titles, which every chunk repeats,
//! are cut to [`TITLE`] characters, and text without blanks, sentences or paragraphs is cut as well (`cut.rs`). Time
//! and memory are therefore linear in the length of the document.

mod cut;
pub mod headings;
pub mod sentences;
pub mod tokens;
pub mod whole;

use std::sync::Arc;

use turnflow_engine::document::{Chunk, Document};

/// Maximum length of a chunk's title, in characters. Every chunk of a document carries the title, and every index reads
/// it with every chunk.
pub const TITLE: usize = 480;

/// The start of a text, up to this number of characters.
fn beginning(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| text[..end].trim_end())
}

/// The text, shortened to this number of characters with "…" at the end.
fn shortened(text: &str, characters: usize) -> Arc<str> {
    let kept = beginning(text, characters);
    if kept.len() == text.len() { text.into() } else { format!("{} …", beginning(text, characters - 2)).into() }
}

/// The title that a document's chunks carry.
fn title(document: &Document) -> Arc<str> {
    match document.title.len() {
        // A string never has more characters than bytes.
        0..=TITLE => document.title.clone(),
        _ => shortened(&document.title, TITLE),
    }
}

/// Maximum number of bytes of consecutive blanks in a text that is joined from windows.
const BLANKS: usize = 128;

/// Replaces each long run of blanks with a single one.
pub(crate) fn squeezed(text: &str) -> Arc<str> {
    let mut out: Option<String> = None;
    let (mut copied, mut run) = (0, 0);
    for (at, c) in text.char_indices().chain([(text.len(), 'x')]) {
        if c.is_whitespace() {
            continue;
        }
        // `run` is the end of the last non-blank character.
        if at - run > BLANKS {
            let out = out.get_or_insert_with(String::new);
            out.push_str(&text[copied..run]);
            out.push(if text[run..at].contains('\n') { '\n' } else { ' ' });
            copied = at;
        }
        run = at + c.len_utf8();
    }
    match out {
        None => text.into(),
        Some(mut out) => {
            out.push_str(&text[copied..]);
            out.into()
        }
    }
}

/// Builds a document's chunks from titles and texts, numbered from 0.
fn numbered(document: &Document, pieces: impl IntoIterator<Item = (Arc<str>, Arc<str>)>) -> Vec<Chunk> {
    pieces
        .into_iter()
        .enumerate()
        .map(|(n, (title, text))| {
            Chunk::new(format!("{}#{n}", document.id).into(), document.id.clone(), title, text.into())
        })
        .collect()
}

/// Groups consecutive units (tokens, sentences) into windows of at most `size` units, each starting `size - overlap`
/// units after the previous one. Returns ranges of units. The last window ends with the last unit.
fn windows(units: usize, size: usize, overlap: usize) -> Vec<(usize, usize)> {
    let step = size.saturating_sub(overlap).max(1);
    let mut windows = Vec::new();
    let mut start = 0;
    while start < units {
        let end = (start + size).min(units);
        windows.push((start, end));
        if end == units {
            break;
        }
        start += step;
    }
    windows
}

#[cfg(test)]
pub(crate) mod tests;
