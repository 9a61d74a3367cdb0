//! Thoughts within a line of text. A tag there may also be what the text is about.

use super::code::CodeState;
use super::tags::{Match, Opening, STARTS, TAGS, is_item, matched, opening, opens_quotation};

/// Most words between two tags that a sentence names: the word for *and*, or an example.
const WORDS: usize = 3;

/// Words between two tags that a sentence names, in scripts that put no blanks between words.
const AND: &[&str] = &[
    "和",
    "与",
    "與",
    "及",
    "或",
    "跟",
    "至",
    "到",
    "、",
    "と",
    "や",
    "から",
    "または",
    "및",
    "와",
    "과",
    "และ",
    "ถึง",
];

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

/// Reads the first line of a text up to an opening tag outside code. `code`: where the text is in code. `from`: a tag before
/// this place is text. A tag with capitals is the name of a type.
pub(super) fn stop(text: &str, from: usize, mut code: CodeState) -> Stop {
    const MARKS: [char; 5] = ['`', '\n', STARTS[0], STARTS[1], STARTS[2]];
    let mut read = 0;
    for (at, mark) in text.match_indices(MARKS) {
        if mark == "\n" {
            return Stop::Line(at + 1);
        }
        code.read(&text[read..at]);
        read = at;
        if mark == "`" || at < from || code.is_in_code() {
            continue;
        }
        match opening(&text[at..]) {
            Opening::Tag(length, close) => {
                let tag = &text[at..at + length];
                if tag.starts_with("<|") || !tag.bytes().any(|byte| byte.is_ascii_uppercase()) {
                    return Stop::Tag(at, length, close);
                }
            }
            Opening::Undecided => return Stop::Undecided(at),
            Opening::None => {}
        }
    }
    Stop::None
}

/// Finds the tag that closes an opening one, with those in it. A text that grows is read once.
#[derive(Debug, Default)]
pub(super) struct Search {
    at: usize,
    /// Number of further tags that are open.
    depth: usize,
}

/// The end of a search so far.
pub(super) enum Found {
    /// The start of the closing tag, and its length.
    Close(usize, usize),
    /// More text is needed.
    More,
}

impl Search {
    /// Goes on in a text that begins behind the opening tag.
    pub fn next(&mut self, text: &str, close: &str) -> Found {
        let open = TAGS.iter().find(|(_, other)| *other == close).map_or("", |(open, _)| open);
        while let Some(found) = text[self.at..].find(STARTS) {
            let at = self.at + found;
            let rest = &text[at..];
            let (closes, opens) = (matched(rest, close), matched(rest, open));
            match (closes, opens) {
                (Match::Whole(length), _) if self.depth == 0 => return Found::Close(at, length),
                (Match::Whole(_), _) => self.depth -= 1,
                (_, Match::Whole(_)) => self.depth += 1,
                (Match::Begun, _) | (_, Match::Begun) => {
                    self.at = at;
                    return Found::More;
                }
                _ => {}
            }
            self.at = at + rest.chars().next().map_or(1, char::len_utf8);
        }
        self.at = text.len();
        Found::More
    }
}

/// Whether a tag that nothing closes begins thoughts: behind a sentence, and before a word or a line.
pub(super) fn begins_thoughts(before: &str, close: &str, inner: &str) -> bool {
    let is_usual = matches!(close, "</think>" | "</thinking>");
    let is_behind = before
        .trim_end_matches([' ', '\t'])
        .ends_with(['.', '!', '?', '…', ')', ']', '】', '。', '！', '？', '؟', '।']);
    is_usual && is_behind && inner.starts_with(|first: char| first.is_alphanumeric() || first == '\n')
}

/// Whether tags within a line are named by the text, and enclose no thoughts. `before` is the text that the opening one
/// follows, `inner` what is between them, and `after` what is known of the text that follows.
pub(super) fn is_named(before: &str, close: &str, inner: &str, after: &str) -> bool {
    let (last, next) = (before.chars().next_back(), after.chars().next());
    let is_in_markup = before.ends_with('>') && after.starts_with('<');
    if opens_quotation(before) || is_in_markup || is_item(before) && inner.contains('\n') && is_item(inner) {
        return true;
    }
    if is_indented(before) || is_in_sentence(before, inner, after) {
        return true;
    }
    // A parameter of a type.
    let is_noun = matches!(close, "</thought>" | "</thoughts>" | "</reasoning>");
    if is_noun && last.is_some_and(|last| last.is_ascii_alphanumeric()) && inner.starts_with([' ', '>', ',', ';', ':'])
    {
        return true;
    }
    let (shown, is_apart) = (inner.trim(), last.is_none_or(char::is_whitespace));
    if shown.is_empty() {
        return is_apart && !inner.contains('\n') && next.is_none_or(|next| !next.is_alphanumeric());
    }
    if !shown.contains(char::is_alphanumeric) {
        return true;
    }
    let words = shown.split_whitespace().count();
    if inner.ends_with([':', '=']) && words <= WORDS {
        return true;
    }
    if !is_apart {
        return AND.contains(&shown);
    }
    // The second one is a word before a sign, too.
    if inner.ends_with([' ', '\t']) && after.starts_with([',', '.', ';', ':', ')', '!', '?']) {
        return true;
    }
    if inner.contains('\n') {
        // A list that names them begins a line behind the first one only.
        return inner.starts_with('\n') && !inner.trim_end_matches([' ', '\t']).ends_with('\n');
    }
    let is_padded = inner.starts_with(' ') && inner.ends_with(' ');
    words == 1 && is_one_word(shown) || words <= WORDS && is_padded
}

/// Whether a text is only blanks since its last line, so many that they begin code.
pub(super) fn is_indented(before: &str) -> bool {
    let blanks = before.len() - before.trim_end_matches([' ', '\t']).len();
    (blanks >= 4 || before.ends_with('\t'))
        && (blanks == before.len() || before[..before.len() - blanks].ends_with('\n'))
}

/// Whether both tags are words of a sentence: behind a word and before another one, or before a sign.
fn is_in_sentence(before: &str, inner: &str, after: &str) -> bool {
    const SIGNS: [char; 7] = [',', '.', ';', ':', '!', '?', ')'];
    let is_behind_word = |text: &str| {
        let bare = text.trim_end_matches([' ', '\t']);
        bare.len() < text.len() && bare.ends_with(|last: char| last.is_alphanumeric() || last == ',')
    };
    let goes_on = |text: &str| {
        let mut next = text.chars();
        let first = next.next();
        first.is_some_and(|first| SIGNS.contains(&first))
            || first == Some(' ') && next.next().is_some_and(|next| next.is_lowercase() || next.is_numeric())
    };
    is_behind_word(before) && goes_on(inner) && is_behind_word(inner) && goes_on(after)
}

/// Whether a text goes on with a sentence: a blank and a small letter.
pub(super) fn begins_sentence(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next() == Some(' ') && letters.next().is_some_and(char::is_lowercase)
}

/// Whether a text is a word of a script that puts blanks between words.
fn is_one_word(text: &str) -> bool {
    text.chars().all(|c| !matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{3000}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'))
}
