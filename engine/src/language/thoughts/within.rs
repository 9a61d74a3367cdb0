//! Thoughts within a line of text. A tag there may also be what the text is about.

use super::tags::{Match, Opening, STARTS, TAGS, matched, opening};

/// Most characters of what stands between two tags that a sentence names: the word for *and*, or an example.
const NAMED: usize = 24;
/// Most words of it.
const WORDS: usize = 3;
/// Most characters of it in a script that puts no blanks between words.
const NAMED_CLOSE: usize = 4;

/// Where a line of a text is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Behind the end of the line.
    Line(usize),
    /// Before an opening tag of this length.
    Tag(usize, usize, &'static str),
    /// Where a tag may begin.
    Undecided(usize),
    /// Not at all.
    None,
}

/// Reads the first line of a text up to an opening tag outside code. `ticks`: the number of backticks before it in the
/// line, which is counted on. `from`: a tag before this place is text.
pub(super) fn stop(text: &str, from: usize, ticks: &mut usize) -> Stop {
    const MARKS: [char; 5] = ['`', '\n', STARTS[0], STARTS[1], STARTS[2]];
    for (at, mark) in text.match_indices(MARKS) {
        match mark {
            "\n" => return Stop::Line(at + 1),
            "`" => *ticks += 1,
            _ if *ticks % 2 == 1 || at < from => {}
            _ => match opening(&text[at..]) {
                Opening::Tag(length, close) => return Stop::Tag(at, length, close),
                Opening::Undecided => return Stop::Undecided(at),
                Opening::None => {}
            },
        }
    }
    Stop::None
}

/// Finds the tag that closes an opening one. A text that grows is read once.
#[derive(Debug, Default)]
pub(super) struct Search {
    at: usize,
}

/// The end of a search so far.
pub(super) enum Found {
    /// The start of the closing tag, and its length.
    Close(usize, usize),
    /// Another opening tag of its kind comes first.
    Again,
    /// More text is needed.
    More,
}

impl Search {
    /// Goes on in a text that begins behind the opening tag. `may_open`: another opening tag is a part of the thoughts.
    pub fn next(&mut self, text: &str, close: &str, may_open: bool) -> Found {
        let open = TAGS.iter().find(|(_, other)| *other == close).map_or("", |(open, _)| open);
        while let Some(found) = text[self.at..].find(STARTS) {
            let at = self.at + found;
            let rest = &text[at..];
            let (closes, opens) = (matched(rest, close), matched(rest, open));
            if let Match::Whole(length) = closes {
                return Found::Close(at, length);
            }
            if opens.whole().is_some() && !may_open {
                return Found::Again;
            }
            if closes == Match::Begun || opens == Match::Begun {
                self.at = at;
                return Found::More;
            }
            self.at = at + rest.chars().next().map_or(1, char::len_utf8);
        }
        self.at = text.len();
        Found::More
    }
}

/// Whether a tag that follows this text at once begins thoughts, if what it opens does not end.
pub(super) fn is_joined(before: &str) -> bool {
    let last = before.chars().next_back();
    last.is_some_and(|last| last.is_ascii_alphanumeric() || "!?.:;,*)]。！？：；，）".contains(last))
}

/// Whether tags within a line are named by the text, and enclose no thoughts. `before` is the text that the opening one
/// follows, `inner` what is between them, and `after` what is known of the text that follows.
pub(super) fn is_named(before: &str, inner: &str, after: &str) -> bool {
    const QUOTES: [char; 12] = ['"', '\'', '`', '“', '”', '«', '»', '‘', '’', '「', '(', '/'];
    let (last, next) = (before.chars().next_back(), after.chars().next());
    if last.is_some_and(|last| QUOTES.contains(&last)) {
        return true;
    }
    let (shown, is_apart) = (inner.trim(), last.is_none_or(char::is_whitespace));
    if shown.is_empty() {
        return is_apart && !inner.contains('\n') && next.is_none_or(|next| !next.is_alphanumeric());
    }
    let characters = shown.chars().count();
    if is_apart {
        return !inner.contains('\n') && characters <= NAMED && shown.split_whitespace().count() <= WORDS;
    }
    last.is_some_and(|last| last.is_alphabetic() && !last.is_ascii()) && characters <= NAMED_CLOSE
}
