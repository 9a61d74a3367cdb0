//! Finds closing tags without an opening one.

use super::tags::{Match, STARTS, TAGS, matched};

/// Finds the closing tags outside code that no opening one precedes. A text that grows is read once.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// What is read.
    at: usize,
    /// The start of the line.
    line: usize,
    /// Number of backticks in the line.
    ticks: usize,
    is_in_fence: bool,
    /// The kinds of tags that were opened.
    opened: [bool; TAGS.len()],
}

impl Scan {
    /// The next closing tag: its start and its length.
    pub fn next(&mut self, text: &str) -> Option<(usize, usize)> {
        const MARKS: [char; 5] = ['`', '\n', STARTS[0], STARTS[1], STARTS[2]];
        while let Some(found) = text[self.at..].find(MARKS) {
            let at = self.at + found;
            let rest = &text[at..];
            self.at = at + rest.chars().next().map_or(1, char::len_utf8);
            if rest.starts_with('`') {
                self.ticks += 1;
                continue;
            }
            if rest.starts_with('\n') {
                self.is_in_fence ^= is_fence(&text[self.line..at]);
                (self.line, self.ticks) = (self.at, 0);
                continue;
            }
            let mut is_begun = false;
            for (kind, (open, close)) in TAGS.iter().enumerate() {
                let (opens, closes) = (matched(rest, open), matched(rest, close));
                self.opened[kind] |= opens.whole().is_some();
                let is_in_code = self.is_in_fence || self.ticks % 2 == 1;
                if let Match::Whole(length) = closes
                    && !self.opened[kind]
                    && !is_in_code
                {
                    self.at = at + length;
                    return Some((at, length));
                }
                is_begun |= [opens, closes].contains(&Match::Begun);
            }
            if is_begun {
                // The rest of the tag may follow.
                self.at = at;
                return None;
            }
        }
        self.at = text.len();
        None
    }
}

fn is_fence(line: &str) -> bool {
    ["```", "~~~"].iter().any(|fence| line.trim_start().starts_with(fence))
}

/// A closing tag that ends a draft: the first one that follows the draft at once or ends a line. Any other is part of a
/// sentence.
pub(super) fn second_closing(text: &str) -> Option<(usize, usize)> {
    let mut scan = Scan::default();
    std::iter::from_fn(|| scan.next(text)).find(|(at, length)| {
        let (before, after) = (&text[..*at], &text[at + length..]);
        // A letter that follows at once begins another text.
        let is_apart = before.ends_with(char::is_whitespace)
            && !before.ends_with('\n')
            && !after.starts_with(char::is_alphanumeric);
        let ends_line =
            after.trim_start_matches([' ', '\t']).chars().next().is_none_or(|next| next == '\n' || next == '\r');
        !is_apart && !before.ends_with(['"', '\'', '“', '«', '(']) || ends_line
    })
}
