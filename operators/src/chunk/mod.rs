//! Chunkers, one file each: pure functions from a document to its chunks.

pub mod headings;
pub mod sentences;
pub mod tokens;
pub mod whole;

use std::sync::Arc;

use turnflow_engine::document::{Chunk, Document};

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
mod tests {
    use super::*;

    #[test]
    fn windows_cover_everything_and_overlap_as_told() {
        assert_eq!(windows(0, 3, 1), []);
        assert_eq!(windows(2, 3, 1), [(0, 2)]);
        assert_eq!(windows(5, 3, 1), [(0, 3), (2, 5)]);
        assert_eq!(windows(6, 3, 0), [(0, 3), (3, 6)]);
        assert_eq!(windows(7, 3, 1), [(0, 3), (2, 5), (4, 7)]);
    }
}
