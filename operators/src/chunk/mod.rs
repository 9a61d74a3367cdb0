//! Chunkers, one file each: pure functions from a document to its chunks.
//!
//! Whatever a document is, the chunks of one that is cut are bounded, and so is what they come
//! to: titles, which every chunk repeats, are cut to [`TITLE`] characters, and what has no
//! blanks, no sentences or no paragraphs is cut as well (`cut.rs`). So time and memory are
//! linear in the document.

mod cut;
pub mod headings;
pub mod sentences;
pub mod tokens;
pub mod whole;

use std::sync::Arc;

use turnflow_engine::document::{Chunk, Document};

/// Characters of a chunk's title, at most: each chunk of a document has it, and each index
/// reads it with each of them.
pub const TITLE: usize = 480;

/// The beginning of a text, up to so many characters.
fn beginning(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| text[..end].trim_end())
}

/// A text of at most so many characters, with "…" in the place of what is left out.
fn shortened(text: &str, characters: usize) -> Arc<str> {
    let kept = beginning(text, characters);
    if kept.len() == text.len() { text.into() } else { format!("{} …", beginning(text, characters - 2)).into() }
}

/// A document's title, as its chunks have it.
fn title(document: &Document) -> Arc<str> {
    match document.title.len() {
        // Bytes are no fewer than characters.
        0..=TITLE => document.title.clone(),
        _ => shortened(&document.title, TITLE),
    }
}

/// Bytes of blanks in a row, at most, in a text that is put together of windows.
const BLANKS: usize = 128;

/// The text with long runs of blanks shortened to one.
pub(crate) fn squeezed(text: &str) -> Arc<str> {
    let mut out: Option<String> = None;
    let (mut copied, mut run) = (0, 0);
    for (at, c) in text.char_indices().chain([(text.len(), 'x')]) {
        if c.is_whitespace() {
            continue;
        }
        // `run` is where the last letter ended.
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

/// Chunks of a document from titles and texts, numbered from 0.
fn numbered(document: &Document, pieces: impl IntoIterator<Item = (Arc<str>, Arc<str>)>) -> Vec<Chunk> {
    pieces
        .into_iter()
        .enumerate()
        .map(|(n, (title, text))| Chunk::new(format!("{}#{n}", document.id).into(), document.id.clone(), title, text))
        .collect()
}

/// Groups neighbouring units (tokens, sentences) into windows of at most `size` units, each
/// beginning `size - overlap` after the last; gives ranges of units. The last window ends
/// with the last unit.
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
mod tests;
