//! Splits a sentence into clauses, in a plain spelling that the patterns read.

use std::sync::LazyLock;

use regex::Regex;

use super::patterns::named;
use crate::reply::unquote;

/// A pattern of this module. All of them are constants, which a test compiles.
pub(super) fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a constant pattern")
}

/// Words in quotation marks and code: they are cited, and do not speak for the answer.
static QUOTED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#""[^"\n]{1,400}"|“[^”\n]{1,400}”|«[^»\n]{1,400}»|```[^`]*```|`[^`\n]*`"#));
/// Addresses, whose question mark asks nothing.
static LINK: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"\b(?:https?://|www\.)[^\s()\[\]<>]+|\b[\w.-]+\.(?:com|org|net|io|gov|edu)/[^\s()\[\]<>]*")
});
/// Words in brackets.
static BESIDE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\([^()]{0,80}\)"));
/// Short forms, and the words that they stand for.
static SHORT: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"\b(?:cannot|can't|cant)\b", "can not"),
        (r"\bwon't\b", "will not"),
        (r"\b(do|does|did|is|are|was|were|has|have|had|could|would|should|need|must|might)n'?t\b", "$1 not"),
        (r"\b(i)'m\b", "$1 am"),
        (r"\b(\w+)'ve\b", "$1 have"),
        (r"\b(\w+)'re\b", "$1 are"),
        (r"\b(\w+)'ll\b", "$1 will"),
        (r"\b(\w+)'d\b", "$1 would"),
        (r"\b(that|there|it|nothing|here|what|which|who|where|he|she)'s\b", "$1 is"),
    ]
    .map(|(from, to)| (pattern(from), to))
    .into()
});
static TOKEN: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"[\p{L}\p{N}][\p{L}\p{N}'.-]*[\p{L}\p{N}]|[\p{L}\p{N}]|[,;:()?!–—]"));

/// The text with one word in place of each quotation. A text that is a quotation as a whole is none.
pub(super) fn without_quotations(text: &str) -> String {
    LINK.replace_all(&QUOTED.replace_all(unquote(text), " Quoted "), "Link").into_owned()
}

/// Lower-cased words with their short forms written out, and punctuation, each after a space. A word with other letters
/// than English has becomes `foreign`: no pattern reads it.
pub(super) fn plain(sentence: &str) -> String {
    let lower = sentence.to_lowercase().replace(['’', 'ʼ'], "'").replace(['*', '_'], "");
    let mut text = BESIDE.replace_all(&lower, " ").into_owned();
    if !text.contains(char::is_alphabetic) {
        text = lower;
    }
    for (from, to) in SHORT.iter() {
        text = from.replace_all(&text, *to).into_owned();
    }
    TOKEN.find_iter(&text).flat_map(|token| [" ", spelled(token.as_str())]).collect()
}

fn spelled(token: &str) -> &str {
    match token {
        "–" | "—" => ";",
        _ if token.is_ascii() => token,
        _ => "foreign",
    }
}

/// Where a clause ends: before a word of contrast or consequence, and at strong punctuation.
static ENDS: LazyLock<Regex> = LazyLock::new(|| named("ends"));
/// A part after a comma that begins like this has a subject of its own.
static SUBJECT: LazyLock<Regex> = LazyLock::new(|| named("subject"));
/// A part before a comma that begins like this is beside the main clause.
static ASIDE: LazyLock<Regex> = LazyLock::new(|| named("aside"));

/// A clause.
#[derive(Debug, PartialEq)]
pub(super) struct Clause<'t> {
    /// Its words, each after a space.
    pub text: &'t str,
    /// Whether its sentence goes on after a comma.
    pub goes_on: bool,
}

/// The clauses of a sentence in the plain spelling.
pub(super) fn clauses(plain: &str) -> Vec<Clause<'_>> {
    let plain = plain.trim_end_matches([' ', '?', '!', ',']);
    let mut found = Vec::new();
    let mut start = 0;
    let mut is_aside = false;
    for (end, next) in ENDS.find_iter(plain).map(|end| (end.start(), end.end())).chain([(plain.len(), plain.len())]) {
        parts(&plain[start..end], is_aside, &mut found);
        // "Although the passages do not say it, …"
        is_aside = end == 0 || plain[end..next].contains("though ");
        start = next;
    }
    found
}

/// Splits at commas between parts that have a subject each, and after a part that is beside the main clause.
fn parts<'t>(text: &'t str, is_aside: bool, found: &mut Vec<Clause<'t>>) {
    let mut start = 0;
    for (at, _) in text.match_indices(" ,") {
        let (before, after) = (&text[start..at], &text[at + 2..]);
        let ends_aside = start == 0 && is_aside || ASIDE.is_match(before);
        if !after.is_empty() && (SUBJECT.is_match(after) || ends_aside) {
            found.push(Clause { text: before, goes_on: true });
            start = at + 2;
        }
    }
    found.push(Clause { text: &text[start..], goes_on: false });
    found.retain(|clause| !clause.text.trim_matches([' ', ',']).is_empty());
}
