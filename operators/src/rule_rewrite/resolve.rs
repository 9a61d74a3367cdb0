//! Makes a question stand on its own: replaces references, fills ellipses, and adds salient words of the conversation.

use std::cell::OnceCell;
use std::collections::HashSet;

use super::entities::{Entity, Kind, entities};
use super::memory::{Memory, Said, Weights};
use super::sentence::sentence;
use crate::words::{Word, is_capital, is_function, is_plural, is_year, key, listed, lower, words};

/// Which rules apply, and their limits.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether references and ellipses are replaced.
    pub resolve: bool,
    /// Maximum number of content words in a short question, which depends on the conversation.
    pub short: usize,
    /// Maximum number of words added to a longer question.
    pub few: usize,
    /// Maximum number of words added to a short question.
    pub many: usize,
    /// Whether words are added even if every reference was replaced.
    pub expand_resolved: bool,
    /// Weights that determine salience.
    pub weights: Weights,
}

/// Result of rewriting a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// The question stands on its own and is unchanged.
    Standalone,
    /// It depends on the conversation.
    Dependent {
        /// What is searched: with references replaced where they can be, and with salient words.
        search: String,
        /// Whether every reference was replaced there.
        resolved: bool,
        /// The question as a person would say it, if every reference has a certain referent.
        sentence: Option<String>,
    },
}

/// Words that may refer to something said before.
pub(super) const REFERENCES: &str = "it its they them their theirs he him his she her hers this that these those one ones \
    there such itself themselves";
/// A question that starts with one of these continues the conversation.
const GOES_ON: &str = "and or but so also then why any anything other another no yes sorry";
const DETERMINERS: &str = "a an the my your our this that some any every each";
/// After "it is … to" and "is it … that", what follows is what "it" means.
const OF_NOTHING: &str = "possible true better safe safer easier harder cheaper legal illegal important necessary worth easy hard \
    difficult good bad best okay ok common normal seems seem takes take looks matter matters rains rain make \
    makes sounds appears means mean";

/// Bytes of the newest history that are read. A mebibyte takes half a second.
const MOST_READ: usize = 1 << 20;

/// The newest utterances, `most` bytes in total. Of an utterance that is too long, its start.
fn newest<'t>(history: &[Said<'t>], most: usize) -> Vec<Said<'t>> {
    let mut left = most;
    let mut newest = Vec::new();
    for said in history.iter().rev() {
        let text = &said.text[..said.text.floor_char_boundary(left)];
        left -= text.len();
        newest.push(Said { text, ..*said });
        if left == 0 || text.len() < said.text.len() {
            break;
        }
    }
    newest.reverse();
    newest
}

/// Rewrites a question after a history (oldest first).
pub fn rewrite(history: &[Said<'_>], question: &str, rules: &Rules) -> Rewritten {
    let asked = words(question);
    let saying = saying_keys(&asked);
    let refers = asked.iter().any(|word| listed(REFERENCES, lower(word.text).as_str()));
    let first = asked.first().map(|word| lower(word.text)).unwrap_or_default();
    let about = about(question, &asked);
    let goes_on = about.is_some() || listed(GOES_ON, first.as_str());
    let is_short = saying.len() <= rules.short;
    if history.is_empty() || asked.is_empty() || !(refers || goes_on || is_short) {
        return Rewritten::Standalone;
    }
    let history = &newest(history, MOST_READ)[..];
    let memory = Memory::of(history, rules.weights);
    let (text, resolved) = match rules.resolve {
        true => match about.and_then(|about| fill(history, about)) {
            Some(filled) => (filled, true),
            None => replace(question, &asked, &memory),
        },
        false => (question.to_owned(), false),
    };
    let most = match is_short {
        _ if resolved && !rules.expand_resolved => 0,
        true => rules.many,
        false => rules.few,
    };
    let present = saying_keys(&words(&text));
    let added = memory.salient(&saying, most).into_iter().map(|term| term.text.as_str());
    let added: Vec<&str> = added.filter(|word| present.binary_search(&key(word)).is_err()).collect();
    let search = if added.is_empty() { text } else { format!("{} {}", text.trim_end(), added.join(" ")) };
    let sentence = if rules.resolve { sentence(history, question) } else { None };
    Rewritten::Dependent { search, resolved, sentence }
}

fn saying_keys(words: &[Word<'_>]) -> Vec<String> {
    let mut keys: Vec<String> =
        words.iter().filter(|word| !is_function(word.text)).map(|word| key(word.text)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The X of "What about X?", "how about X", "and X?".
pub(super) fn about<'q>(question: &'q str, asked: &[Word<'q>]) -> Option<&'q str> {
    let heads: &[&[&str]] = &[&["what", "about"], &["how", "about"], &["and"], &["or"]];
    let mut from = 0;
    while asked.get(from).is_some_and(|word| matches!(lower(word.text).as_str(), "then" | "so" | "ok" | "okay" | "yes"))
    {
        from += 1;
    }
    let begins = |head: &&&[&str]| {
        head.iter().enumerate().all(|(at, word)| asked.get(from + at).is_some_and(|asked| lower(asked.text) == *word))
    };
    let rest = &asked[from + heads.iter().find(begins)?.len()..];
    // A complete question, such as "and who wrote it?", is not an ellipsis.
    let (first, last) = (rest.first()?, rest.last()?);
    let asks = matches!(
        lower(first.text).as_str(),
        "who" | "what" | "when" | "where" | "why" | "how" | "which" | "is" | "are" | "do" | "does" | "did" | "can"
    );
    (rest.len() <= 6 && !asks).then(|| &question[first.start..last.end])
}

/// The user's last question with X in place of something of the same kind.
fn fill(history: &[Said<'_>], about: &str) -> Option<String> {
    let before = history.iter().rev().find(|said| said.user)?.text;
    let old = words(before);
    let new = words(about);
    if let Some(year) = new.last().filter(|word| is_year(word.text)) {
        return Some(match old.iter().find(|word| is_year(word.text)) {
            Some(place) => format!("{}{}{}", &before[..place.start], year.text, &before[place.end..]),
            None => format!("{} {about}?", before.trim_end().trim_end_matches('?')),
        });
    }
    // Matches two names of one kind. If a kind is unknown, any name matches.
    let one = entities(&format!("about {about}"), false).pop().filter(|one| one.text.len() == about.len())?;
    let similar = |kind: Kind| matches!(kind, Kind::Name | Kind::Thing);
    let place = entities(before, false)
        .into_iter()
        .find(|other| other.kind == one.kind || similar(one.kind) || similar(other.kind))?;
    before.contains(&place.text).then(|| before.replacen(&place.text, about, 1))
}

/// The question with references replaced, and whether all of them were.
fn replace(question: &str, asked: &[Word<'_>], memory: &Memory) -> (String, bool) {
    let mut out = String::with_capacity(question.len());
    let (mut copied, mut replaced, mut left) = (0, 0, 0);
    let mut named: HashSet<String> = HashSet::new();
    let resolver = Resolver { asked, memory, named: first_named(asked), antecedents: Default::default() };
    let mut at = 0;
    while at < asked.len() {
        let (taken, with) = resolver.reference(at);
        match with {
            // An entity that this question already names is not repeated.
            Some(with) if named.contains(&with) => {}
            Some(with) => {
                out.push_str(&question[copied..asked[at].start]);
                out.push_str(&with);
                copied = asked[at + taken - 1].end;
                replaced += 1;
                named.insert(with);
            }
            None => left += usize::from(taken > 0),
        }
        at += taken.max(1);
    }
    out.push_str(&question[copied..]);
    (out, replaced > 0 && left == 0)
}

/// What a pronoun can refer to.
#[derive(Clone, Copy)]
enum Pronoun {
    Person,
    There,
    Several,
    It,
}

impl Pronoun {
    fn of(word: &str) -> Self {
        match word {
            "he" | "him" | "his" | "she" | "her" => Self::Person,
            "there" => Self::There,
            "they" | "them" | "their" => Self::Several,
            _ => Self::It,
        }
    }

    fn fits(self, one: &Entity) -> bool {
        match self {
            Self::Person => one.name && matches!(one.kind, Kind::Person | Kind::Name),
            Self::There => one.kind == Kind::Place,
            Self::Several => one.plural || matches!(one.kind, Kind::Person | Kind::Organisation | Kind::Name),
            Self::It => one.kind != Kind::Person && !one.plural,
        }
    }
}

/// Resolves the references of a question. The referent of each kind of pronoun is computed once, because a question can
/// have as many references as words.
struct Resolver<'a> {
    asked: &'a [Word<'a>],
    memory: &'a Memory,
    named: [usize; 2],
    antecedents: [OnceCell<Option<&'a Entity>>; 4],
}

impl<'a> Resolver<'a> {
    /// Number of words at `at` that form a reference (0 for none), and its replacement.
    fn reference(&self, at: usize) -> (usize, Option<String>) {
        let (asked, memory) = (self.asked, self.memory);
        let word = lower(asked[at].text);
        let next = asked.get(at + 1);
        let says = |word: Option<&Word<'_>>| word.is_some_and(|word| !is_function(word.text));
        match word.as_str() {
            "this" | "that" | "these" | "those" | "the" | "such" => {
                // "that law" refers to a longer entity with the same head.
                let Some(head) = next.filter(|next| says(Some(next)) && !is_capital(next.text)) else {
                    return (0, None);
                };
                if word == "the" && says(asked.get(at + 2)) {
                    return (0, None);
                }
                match memory.fuller(&key(head.text)).filter(|entity| word != "the" || entity.name) {
                    Some(entity) => (2, Some(entity.text.clone())),
                    None => (usize::from(word != "the" && word != "that"), None),
                }
            }
            "his" | "her" | "its" | "their" if says(next) => {
                let relation = next.map(|next| lower(next.text)).unwrap_or_default();
                if let Some(name) = memory.relations.get(&relation) {
                    return (2, Some(name.clone()));
                }
                let owner = if self.within(at, word == "their") { None } else { self.antecedent(&word) };
                (1, owner.map(|one| format!("{}'s", one.text)))
            }
            "it" if is_of_nothing(asked, at) => (0, None),
            "there"
                if next.is_some() || at > 0 && matches!(lower(asked[at - 1].text).as_str(), "is" | "are" | "was") =>
            {
                (0, None)
            }
            "it" | "they" | "them" | "he" | "him" | "she" | "her" | "there" => {
                // An earlier noun in the question itself is the referent.
                if self.within(at, matches!(word.as_str(), "they" | "them")) {
                    return (0, None);
                }
                let place = if word == "there" { "in " } else { "" };
                (1, self.antecedent(&word).map(|one| format!("{place}{}", one.text)))
            }
            _ => (0, None),
        }
    }

    /// Whether the question itself names something of this number before `at`.
    fn within(&self, at: usize, plural: bool) -> bool {
        self.named[usize::from(plural)] < at
    }

    /// The most salient entity that a pronoun can refer to; of equals, the newest.
    fn antecedent(&self, pronoun: &str) -> Option<&'a Entity> {
        let memory = self.memory;
        let kind = Pronoun::of(pronoun);
        *self.antecedents[kind as usize].get_or_init(|| {
            // A known person ranks above a name that may be one, and a name above a phrase.
            let rank = |one: &Entity| {
                let sure = f32::from(u8::from(one.kind == Kind::Person && !matches!(kind, Pronoun::It)));
                memory.weight(one) * if one.name { 1.5 } else { 1.0 } + sure
            };
            let ranked = memory.entities.iter().filter(|one| kind.fits(one)).map(|one| (rank(one), one));
            ranked.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, one)| one)
        })
    }
}

/// Whether "it" refers to nothing: "is it possible to …".
pub(super) fn is_of_nothing(asked: &[Word<'_>], at: usize) -> bool {
    let next = asked[at + 1..].iter().take(3).map(|word| lower(word.text));
    next.into_iter().any(|word| listed(OF_NOTHING, word.as_str()))
}

/// Whether the question itself names something of this number before `at`.
pub(super) fn names_within(asked: &[Word<'_>], at: usize, plural: bool) -> bool {
    first_named(asked)[usize::from(plural)] < at
}

/// Word positions where a question first names something, and first something plural; its length if it does not.
fn first_named(asked: &[Word<'_>]) -> [usize; 2] {
    [false, true].map(|plural| {
        let names = |place: usize| {
            let word = &asked[place];
            let named =
                place > 0 && (is_capital(word.text) || listed(DETERMINERS, lower(asked[place - 1].text).as_str()));
            !is_function(word.text) && (named || plural) && is_plural(word.text) == plural
        };
        (0..asked.len()).find(|place| names(*place)).unwrap_or(asked.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_history_the_newest_is_read() {
        let texts = ["one", "twö", "three"];
        let history = texts.map(|text| Said { user: true, text });
        let read = |most| newest(&history, most).iter().map(|said| said.text).collect::<Vec<_>>();
        assert_eq!(read(100), texts);
        assert_eq!(read(12), texts);
        assert_eq!(read(8), ["tw", "three"]);
        assert_eq!(read(4), ["thre"]);
    }
}
