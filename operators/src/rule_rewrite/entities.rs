//! Finds names with their kind, and phrases, by capitals, titles, endings and prepositions.

use crate::words::{Word, is_capital, is_function, is_plural, listed, lower, words};

/// The kind of an entity, as far as its form and position show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A person.
    Person,
    /// A location.
    Place,
    /// A company, an authority, a team.
    Organisation,
    /// None of the kinds above.
    Thing,
    /// A name that may be a person's or a thing's.
    Name,
}

/// Something mentioned in the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entity {
    /// The text as first written.
    pub text: String,
    /// Its kind.
    pub kind: Kind,
    /// Whether it is plural.
    pub plural: bool,
    /// Whether it is written as a name.
    pub name: bool,
}

const TITLES: &str = "mr mrs ms dr prof professor president king queen judge justice senator minister sir captain general \
    saint pope actor actress author singer director";
const ORGANISATIONS: &str = "inc corp corporation company co ltd llc university college school bank department agency association \
    committee court commission institute office ministry council group foundation party bureau board \
    authority administration service services league union";
const PLACES: &str = "city river island islands mountain mount county state states street park bridge lake sea ocean bay \
    stadium museum valley beach kingdom republic avenue";
const THINGS: &str = "act law assistant cloud discovery day award war plan form program project language engine database award \
    awards series show movie song book game";
/// Words that precede a place rather than a person.
const WHERE: &str = "in at near from to into";
/// Words that precede a noun.
const BEFORE_NOUNS: &str = "a an the my your our this that these those some any of in on about for with by from to at into between \
    and or is are";
/// Words that say nothing by themselves and can start a name.
const BEGIN_NAMES: &str = "new great right good";
/// Words that may occur inside a name.
const WITHIN: &str = "of the de la von van and for &";

/// Names and, if `phrases` is set, other runs of content words, in order.
pub fn entities(text: &str, phrases: bool) -> Vec<Entity> {
    let words = words(text);
    let asks_who = words.first().is_some_and(|word| lower(word.text) == "who" || lower(word.text) == "whose");
    let mut found: Vec<Entity> = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let end = run(text, &words, at);
        if end == at {
            at += 1;
            continue;
        }
        let slice = &words[at..end];
        let name = is_name(text, &words, at, end);
        // A run after a determiner or a preposition, or one that is the whole text, is a noun.
        let noun = at == 0 && end == words.len() || at > 0 && listed(BEFORE_NOUNS, lower(words[at - 1].text).as_str());
        if name || phrases && noun {
            let text = text[slice[0].start..slice[slice.len() - 1].end].trim_end_matches("'s").trim_end_matches("’s");
            let before = at.checked_sub(1).map(|at| lower(words[at].text));
            let kind = if name { kind(slice, before.as_deref(), asks_who) } else { Kind::Thing };
            let plural = is_plural(slice[slice.len() - 1].text) && kind != Kind::Person && kind != Kind::Place;
            found.push(Entity { text: text.to_owned(), kind, plural, name });
        }
        at = end;
    }
    found
}

/// The end of the run of capitalised words, or else of content words, that starts at `at`.
pub(super) fn run(text: &str, words: &[Word<'_>], at: usize) -> usize {
    let first = &words[at];
    let begins_name = |word: &Word<'_>| is_capital(word.text) && listed(BEGIN_NAMES, lower(word.text).as_str());
    let goes_on = words
        .get(at + 1)
        .is_some_and(|next| is_capital(next.text) && !is_function(next.text) && next.start == first.end + 1);
    if is_function(first.text) && !(begins_name(first) && goes_on) {
        return at;
    }
    let adjoins =
        |at: usize| words.get(at).is_some_and(|word| matches!(&text[words[at - 1].end..word.start], " " | " & "));
    let capital = is_capital(first.text);
    let fits = |word: &Word<'_>| {
        let numbers = word.text.starts_with(|c: char| c.is_ascii_digit());
        !is_function(word.text) && (is_capital(word.text) == capital || capital && numbers)
    };
    let mut end = at + 1;
    loop {
        if adjoins(end) && fits(&words[end]) {
            end += 1;
            continue;
        }
        // Joins "Bank of England", but not "England and the".
        let mut skip = end;
        while capital && skip < end + 2 && adjoins(skip) && listed(WITHIN, words[skip].text) {
            skip += 1;
        }
        let joins = skip > end && !matches!(words[end].text, "and" | "for") || skip == end + 1;
        if joins && skip > end && adjoins(skip) && is_capital(words[skip].text) && fits(&words[skip]) {
            end = skip + 1;
            continue;
        }
        return end;
    }
}

/// A capital at the start of a sentence makes a name only for an acronym, if a further capital follows in the run, or
/// if the text has at most two words.
fn is_name(text: &str, words: &[Word<'_>], at: usize, end: usize) -> bool {
    if !is_capital(words[at].text) {
        return false;
    }
    let before = &text[at.checked_sub(1).map_or(0, |at| words[at].end)..words[at].start];
    let begins = at == 0 || before.contains(['.', '?', '!', ':', '\n', '•', '*', '#']);
    let acronym = words[at].text.chars().filter(|c| c.is_uppercase()).count() > 1;
    !begins
        || acronym
        || end - at > 1 && words[at + 1..end].iter().any(|word| is_capital(word.text))
        || words.len() <= 2
}

fn kind(name: &[Word<'_>], before: Option<&str>, asks_who: bool) -> Kind {
    let has = |list: &str| name.iter().any(|word| listed(list, lower(word.text).trim_end_matches("'s")));
    let last = name.last().map(|word| lower(word.text)).unwrap_or_default();
    let acronym = name.iter().any(|word| word.text.len() > 1 && word.text.chars().all(|c| !c.is_lowercase()));
    let titled = before.is_some_and(|word| listed(TITLES, word)) || has(TITLES);
    if titled {
        Kind::Person
    } else if has(ORGANISATIONS) {
        Kind::Organisation
    } else if has(PLACES) {
        Kind::Place
    } else if has(THINGS) || before == Some("the") || is_plural(&last) && name.len() == 1 {
        Kind::Thing
    } else if acronym {
        Kind::Organisation
    } else if asks_who && name.len() > 1 {
        Kind::Person
    } else if before.is_some_and(|word| listed(WHERE, word)) {
        Kind::Place
    } else if name.len() > 1 && name.len() < 4 {
        Kind::Name
    } else {
        Kind::Thing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_kinds() {
        for (text, want) in [
            ("Who directed Inception?", vec![("Inception", Kind::Thing)]),
            ("It was Christopher Nolan.", vec![("Christopher Nolan", Kind::Name)]),
            ("Who was Andre Gunder Frank?", vec![("Andre Gunder Frank", Kind::Person)]),
            (
                "Dr. Ada Byron works at the Bank of England in London.",
                vec![("Ada Byron", Kind::Person), ("Bank of England", Kind::Organisation), ("London", Kind::Place)],
            ),
            ("Does IBM Cloud run in Brianna's Law?", vec![("IBM Cloud", Kind::Thing), ("Brianna's Law", Kind::Thing)]),
            ("I moved from New York. New rules?", vec![("New York", Kind::Place)]),
            ("Nothing here", vec![]),
        ] {
            let found = entities(text, false);
            let got: Vec<_> = found.iter().map(|one| (one.text.as_str(), one.kind)).collect();
            assert_eq!(got, want, "{text}");
        }
    }
}
