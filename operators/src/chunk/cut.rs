//! Cuts texts without blanks or paragraphs: an overlong text ends where a reader would end it, if there is such a
//! position.

use unicode_segmentation::UnicodeSegmentation;

/// Byte ranges of pieces of at most `most` bytes (or of one character, if that is longer). A piece ends after a line,
/// else after a blank, else between two grapheme clusters, else between two characters. White space around pieces is
/// left out. Each piece reads `most` bytes and takes at least half of them, or the next one takes all of them, so the
/// function is linear.
pub(super) fn cut(text: &str, most: usize) -> Vec<(usize, usize)> {
    let mut pieces = Vec::new();
    let mut push = |start: usize, end: usize| {
        let piece = &text[start..end];
        let start = start + (piece.len() - piece.trim_start().len());
        let end = start + piece.trim().len();
        if start < end {
            pieces.push((start, end));
        }
    };
    let mut start = 0;
    while text.len() - start > most {
        let end = text.floor_char_boundary(start + most);
        let end = if end > start { end } else { text.ceil_char_boundary(start + 1) };
        let window = &text[start..end];
        let blank = |wanted: fn(char) -> bool| {
            let (at, blank) = window.char_indices().rev().find(|(_, c)| wanted(*c))?;
            Some(at + blank.len_utf8()).filter(|end| *end > most / 2)
        };
        let end = blank(|c| c == '\n')
            .or_else(|| blank(char::is_whitespace))
            .or_else(|| between_clusters(&text[start..], window.len()));
        let end = start + end.unwrap_or(window.len());
        push(start, end);
        start = end;
    }
    push(start, text.len());
    pieces
}

/// The last position up to `end` that is not inside a grapheme cluster. `None` if one cluster extends that far.
fn between_clusters(text: &str, end: usize) -> Option<usize> {
    // Whether a position is a boundary depends on the text before it and on the next character.
    let window = &text[..text.ceil_char_boundary(end + 1)];
    window.grapheme_indices(true).map(|(at, _)| at).rfind(|at| (1..=end).contains(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str, most: usize) -> Vec<&str> {
        cut(text, most).into_iter().map(|(start, end)| &text[start..end]).collect()
    }

    #[test]
    fn pieces_end_at_the_best_place_there_is() {
        assert_eq!(pieces("one two three", 99), ["one two three"]);
        assert_eq!(pieces("one two three", 9), ["one two", "three"]);
        assert_eq!(pieces("one two\nthree four", 12), ["one two", "three four"]);
        assert_eq!(pieces("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(pieces("日本語の文", 6), ["日本", "語の", "文"]);
        // A family emoji is one cluster of 18 bytes, and is not split if it fits.
        assert_eq!(pieces("ab👨‍👩‍👧", 19), ["ab", "👨‍👩‍👧"]);
        assert_eq!(pieces("é", 1), ["é"]);
        assert_eq!(pieces(" \n ", 1), Vec::<&str>::new());
    }

    #[test]
    fn clusters_without_end_are_cut_between_characters() {
        let text = format!("a{}", "\u{301}".repeat(1000));
        let got = pieces(&text, 64);
        assert_eq!(got.concat(), text);
        assert!(got.iter().all(|piece| piece.len() <= 64) && got.len() <= 2 * text.len() / 64 + 2, "{}", got.len());
    }
}
