//! Letters that a server sends in two halves.
//!
//! Some servers escape letters beyond U+FFFF as two halves (`\ud83d\udea2`), and send one half in one event and the other
//! in the next. JSON parsers refuse a lone half. Here a lone half becomes a private character, and two of them a letter.

use std::borrow::Cow;

/// Private characters that stand for the halves U+D800 to U+DFFF.
const MARKS: u32 = 0x10_f000;
const HALVES: std::ops::RangeInclusive<u32> = 0xd800..=0xdfff;
/// The first of the second halves.
const SECOND: u32 = 0xdc00;

/// The half that a private character stands for.
fn half(c: char) -> Option<u32> {
    let half = (c as u32).checked_sub(MARKS)? + HALVES.start();
    HALVES.contains(&half).then_some(half)
}

/// The text of JSON with lone halves replaced by private characters.
pub(super) fn marked(json: &str) -> Cow<'_, str> {
    let has_half = |at: usize| json[at + 2..].starts_with(['d', 'D']);
    if !json.match_indices("\\u").any(|(at, _)| has_half(at)) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let escaped = |text: &str| {
            let digits = text.strip_prefix("\\u")?.get(..4)?;
            u32::from_str_radix(digits, 16).ok().filter(|code| HALVES.contains(code))
        };
        let length = match escaped(rest) {
            Some(first) if first < SECOND && rest.get(6..).and_then(escaped).is_some_and(|next| next >= SECOND) => 12,
            Some(lone) => {
                out.extend(char::from_u32(lone - HALVES.start() + MARKS));
                rest = &rest[6..];
                continue;
            }
            // An escape is two characters: the second one may be a backslash.
            None => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Appends a piece, and joins a half at the end of the text with one at the start of the piece.
pub(super) fn append(text: &mut String, piece: &str) {
    let first = text.chars().next_back().and_then(half).filter(|half| *half < SECOND);
    let second = piece.chars().next().and_then(half).filter(|half| *half >= SECOND);
    let joined = first
        .zip(second)
        .and_then(|(first, second)| char::from_u32(0x1_0000 + ((first - HALVES.start()) << 10) + (second - SECOND)));
    let is_half = |c: char| half(c).is_some();
    if text.ends_with(is_half) {
        text.pop();
        text.push(joined.unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    let rest = &piece[joined.and(piece.chars().next()).map_or(0, char::len_utf8)..];
    // Only a first half at the end may still become a letter.
    let end = rest.char_indices().next_back().filter(|(_, last)| half(*last).is_some_and(|half| half < SECOND));
    let end = end.map_or(rest.len(), |(at, _)| at);
    match rest[..end].contains(is_half) {
        true => text.push_str(&rest[..end].replace(is_half, "\u{fffd}")),
        false => text.push_str(&rest[..end]),
    }
    text.push_str(&rest[end..]);
}

/// The text without a half at its end.
pub(super) fn whole(text: &str) -> &str {
    match text.chars().next_back() {
        Some(last) if half(last).is_some() => &text[..text.len() - last.len_utf8()],
        _ => text,
    }
}

/// The text with a half that is left at its end replaced by U+FFFD.
pub(super) fn replaced(text: String) -> String {
    let is_half = |c| half(c).is_some();
    if text.contains(is_half) { text.replace(is_half, "\u{fffd}") } else { text }
}
