//! Splits texts into words and distinguishes content words from function words.

use std::collections::HashSet;
use std::sync::LazyLock;

/// A word and its position in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<'t> {
    /// The word as written.
    pub text: &'t str,
    /// Byte offset of its start.
    pub start: usize,
    /// Byte offset of its end (exclusive).
    pub end: usize,
}

/// Function words: grammar, politeness, and verbs and nouns of any conversation.
static FUNCTION: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    "a an and are as at be been being but by for from if in into is it its it's no not of on or such that the their \
     theirs them then there these they this those to was were will with would i me my mine myself you your yours \
     yourself we us our ours he him his she her hers who whom whose which what when where why how i'm i've i'd i'll \
     that's what's there's he's she's they're you're we're let's do does did done doing have has had having can could \
     should may might must shall am isn't aren't don't doesn't didn't can't won't wasn't weren't couldn't wouldn't \
     about above after again against all also although always any anybody anyone anything around away because before \
     below between both during each either else ever every few further here however just least less like lot lots \
     many maybe more most much neither nor nothing off often once one ones only other others out over own per please \
     quite rather really same so some somebody someone something sometimes still than though through thus too under \
     until up upon very via well while within without yes yet ok okay oh tell know want need think give get got go \
     going make made let say said says see look mean means meant explain describe show help find ask talk talking \
     speak speaking wonder wondering interested interesting understand thank thanks sorry sure great good nice fine \
     hello hi hey sounds wow true right correct way thing things kind kinds type sort bit little information info \
     details detail question questions example examples used use using work works happen happens happened called \
     call possible able provide based specific new different difference come came take takes took put try trying \
     seem seems means makes said itself themselves himself herself"
        .split_whitespace()
        .collect()
});

/// The words of a text: letters and digits, with some punctuation between them (`O'Neill`, `on-line`, `6.15`).
pub(crate) fn words(text: &str) -> Vec<Word<'_>> {
    let mut words: Vec<Word<'_>> = Vec::new();
    let mut start = None;
    let mut last = ' ';
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c.is_alphanumeric() {
            start.get_or_insert(at);
            last = c;
            continue;
        }
        let next = chars.peek().map(|&(_, next)| next).filter(|next| next.is_alphanumeric());
        let joins = match c {
            '\'' | '’' | '-' => next.is_some(),
            // Joins "6.15" and "U.S", but not two sentences without a space between them.
            '.' => next.is_some_and(|next| next.is_numeric() || next.is_uppercase() && last.is_uppercase()),
            _ => false,
        };
        last = c;
        if !joins && let Some(start) = start.take() {
            words.push(Word { text: &text[start..at], start, end: at });
        }
    }
    if let Some(start) = start {
        words.push(Word { text: &text[start..], start, end: text.len() });
    }
    words
}

/// The word in lower case, with one kind of apostrophe.
pub(crate) fn lower(word: &str) -> String {
    // Most words are ASCII; they are converted in one pass.
    if word.is_ascii() { word.to_ascii_lowercase() } else { word.to_lowercase().replace('’', "'") }
}

/// Whether a word is a function word.
pub(crate) fn is_function(word: &str) -> bool {
    let mut chars = word.chars();
    let is_letter = matches!((chars.next(), chars.next()), (Some(only), None) if !only.is_numeric());
    let is_lower = word.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
    is_letter || if is_lower { FUNCTION.contains(word) } else { FUNCTION.contains(lower(word).as_str()) }
}

/// Whether a list of words, separated by spaces, contains this word.
pub(crate) fn listed(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|other| other == word)
}

/// The content words of a text, each once: its key and the word as written first.
pub fn content_words(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for word in words(text).into_iter().filter(|word| !is_function(word.text)) {
        let key = key(word.text);
        if !found.iter().any(|(known, _)| *known == key) {
            found.push((key, word.text.to_owned()));
        }
    }
    found
}

/// A key that a word shares with its plural and its possessive.
pub(crate) fn key(word: &str) -> String {
    let word = lower(word);
    let word = word.strip_suffix("'s").or_else(|| word.strip_suffix('\'')).unwrap_or(&word);
    let stem = |suffix: &str, least: usize| word.strip_suffix(suffix).filter(|stem| stem.chars().count() >= least);
    if let Some(stem) = stem("ies", 3) {
        return format!("{stem}y");
    }
    let sibilant = |stem: &&str| ["s", "x", "z", "ch", "sh"].iter().any(|end| stem.ends_with(end));
    if let Some(stem) = stem("es", 2).filter(sibilant) {
        return stem.to_owned();
    }
    let is_plural = !["ss", "us", "is"].iter().any(|end| word.ends_with(end));
    stem("s", 3).filter(|_| is_plural).unwrap_or(word).to_owned()
}

/// Whether a noun is plural, by its ending.
pub(crate) fn is_plural(word: &str) -> bool {
    let word = lower(word);
    key(&word) != word && !word.ends_with("'s") || matches!(word.as_str(), "people" | "children" | "men" | "women")
}

/// Whether the first letter is a capital.
pub(crate) fn is_capital(word: &str) -> bool {
    word.chars().next().is_some_and(char::is_uppercase)
}

/// Whether the word is a year of four digits.
pub(crate) fn is_year(word: &str) -> bool {
    word.len() == 4 && word.bytes().all(|b| b.is_ascii_digit()) && (word.starts_with('1') || word.starts_with('2'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_marks() {
        let texts = |text| words(text).into_iter().map(|word| word.text).collect::<Vec<_>>();
        assert_eq!(texts("What's \"on-line\" in 6.15.0?"), ["What's", "on-line", "in", "6.15.0"]);
        assert_eq!(texts("…"), Vec::<&str>::new());
        assert_eq!(texts("é-"), ["é"]);
        assert_eq!(texts("Too bad.I am in the U.S."), ["Too", "bad", "I", "am", "in", "the", "U.S"]);
    }

    #[test]
    fn plurals_and_possessives_have_one_key() {
        for (a, b) in
            [("policies", "policy"), ("Law's", "laws"), ("taxes", "tax"), ("boxes", "box"), ("class", "class")]
        {
            assert_eq!(key(a), key(b));
        }
        assert!(is_plural("systems") && !is_plural("status") && !is_plural("Brianna's"));
    }
}
