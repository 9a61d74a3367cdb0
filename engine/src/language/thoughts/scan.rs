//! Finds closing tags without an opening one.

use super::code::CodeState;
use super::tags::{Match, STARTS, TAGS, is_item, matched, opens_quotation};

/// Finds the closing tags outside code that no opening one precedes, and that no sentence names. A text that grows is read
/// once.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// What is read.
    at: usize,
    /// Where the text is in code. The start of a line is read with the line before it.
    code: CodeState,
    has_begun: bool,
    /// The kinds of tags that were opened.
    opened: [bool; TAGS.len()],
}

impl Scan {
    /// The next closing tag: its start and its length. `has_ended`: no more text follows.
    pub fn next(&mut self, text: &str, has_ended: bool) -> Option<(usize, usize)> {
        const MARKS: [char; 5] = ['`', '\n', STARTS[0], STARTS[1], STARTS[2]];
        if !self.has_begun {
            if self.code.needs_more(text) && !has_ended {
                return None;
            }
            (self.has_begun, _) = (true, self.code.begin_line(text));
        }
        while let Some(found) = text[self.at..].find(MARKS) {
            let at = self.at + found;
            let rest = &text[at..];
            let behind = at + rest.chars().next().map_or(1, char::len_utf8);
            if rest.starts_with('\n') {
                if self.code.needs_more(&text[behind..]) && !has_ended {
                    self.read(text, at);
                    return None;
                }
                self.code.begin_line(&text[behind..]);
                self.at = behind;
                continue;
            }
            self.read(text, at);
            if rest.starts_with('`') {
                self.read(text, behind);
                continue;
            }
            let is_in_code = self.code.is_in_code();
            let mut is_begun = false;
            let mut closed = None;
            for (kind, (open, close)) in TAGS.iter().enumerate() {
                let (opens, closes) = (matched(rest, open), matched(rest, close));
                self.opened[kind] |= opens.whole().is_some() && !is_in_code;
                if let Match::Whole(length) = closes
                    && !self.opened[kind]
                    && !is_in_code
                {
                    closed = Some(length);
                }
                is_begun |= [opens, closes].contains(&Match::Begun);
            }
            if let Some(length) = closed {
                let after = &text[at + length..];
                if after.chars().nth(1).is_none() && !has_ended {
                    return None;
                }
                if !is_named_closing(&text[..at], after) {
                    self.at = at + length;
                    return Some((at, length));
                }
            } else if is_begun && !has_ended {
                // The rest of the tag may follow.
                return None;
            }
            self.read(text, behind);
        }
        self.read(text, text.len());
        None
    }

    /// Reads up to a place.
    fn read(&mut self, text: &str, to: usize) {
        self.code.read(&text[self.at..to]);
        self.at = to;
    }
}

/// Whether a sentence names a closing tag: between quotes, as an item, as a word before a sign, or between words.
fn is_named_closing(before: &str, after: &str) -> bool {
    const SIGNS: [char; 16] = [',', '.', ';', ':', '!', '?', ')', '"', '”', '’', '»', '。', '，', '、', '؟', '،'];
    let is_apart = before.ends_with([' ', '\t']);
    let mut next = after.chars();
    let goes_on = next.next() == Some(' ') && next.next().is_some_and(|next| next.is_lowercase() || next == '|');
    let is_word = before.trim_end().ends_with(char::is_alphanumeric);
    opens_quotation(before)
        || is_apart && (after.starts_with(SIGNS) || is_word && goes_on)
        || is_item(before) && after.starts_with(' ')
}

/// A closing tag that ends a draft: the first one that follows the draft at once or ends a line. Any other is part of a
/// sentence.
pub(super) fn second_closing(text: &str) -> Option<(usize, usize)> {
    let mut scan = Scan::default();
    std::iter::from_fn(|| scan.next(text, true)).find(|(at, length)| {
        let (before, after) = (&text[..*at], &text[at + length..]);
        // A letter that follows at once begins another text.
        let is_apart = before.ends_with(char::is_whitespace)
            && !before.ends_with('\n')
            && !after.starts_with(char::is_alphanumeric);
        let ends_line =
            after.trim_start_matches([' ', '\t']).chars().next().is_none_or(|next| next == '\n' || next == '\r');
        !is_apart && !opens_quotation(before) || ends_line
    })
}
