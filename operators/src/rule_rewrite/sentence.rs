//! Says a follow-up question as a person would: references are replaced only where their referent is certain.
//!
//! What is searched may be wrong in a word; what a model is asked and a user is shown may not. So, unlike the rewrite
//! for the search, a pronoun is replaced only by a name, only if that name is the only one that fits in the user's
//! newest question on the matter, and only if the name stands where the topic of a question does. If any reference of
//! the question stays, the user's own words are kept.

use std::collections::BTreeSet;

use super::entities::{Entity, Kind, entities};
use super::memory::Said;
use super::resolve::{REFERENCES, about, is_of_nothing, names_within};
use crate::words::{Word, is_capital, is_function, is_plural, is_year, key, listed, lower, words};

/// A name after one of these is a circumstance of its question, and not the topic.
const CIRCUMSTANCES: &str = "of in at on near from to into with by for between after before since during outside inside \
    within than as like over under through via against without";
/// Words after "it" that begin what it stands for.
const WHAT_FOLLOWS: &str = "to that if when whether";
/// Questions that are looked back through, while they only refer further back.
const BACK: usize = 3;
/// Words of a question that a person would say; a longer one is kept as it is.
const WORDS: usize = 40;
/// Utterances that are read, newest first, and bytes of the beginning of each. Every reference reads them anew.
const READ: (usize, usize) = (12, 600);

/// The question with all references replaced; `None` if it has none, or if one of them is not certain.
pub(super) fn sentence<'a>(history: &[Said<'a>], question: &str) -> Option<String> {
    let asked = words(question);
    if asked.len() > WORDS {
        return None;
    }
    let (utterances, bytes) = READ;
    let newest = &history[history.len().saturating_sub(utterances)..];
    let beginning = |said: &Said<'a>| Said { text: &said.text[..said.text.floor_char_boundary(bytes)], ..*said };
    let history: &[Said<'_>] = &newest.iter().map(beginning).collect::<Vec<_>>();
    if let Some(about) = about(question, &asked) {
        return fill(history, about);
    }
    let mut out = String::with_capacity(question.len());
    let (mut copied, mut at) = (0, 0);
    let mut named: BTreeSet<String> = BTreeSet::new();
    while at < asked.len() {
        match reference(history, &asked, at)? {
            Reference::None => at += 1,
            // A name is said once: "How old was Ada when she died?"
            Reference::Name(_, name) if named.contains(&name) => at += 1,
            Reference::Name(taken, name) => {
                out.push_str(&question[copied..asked[at].start]);
                out.push_str(&name);
                copied = asked[at + taken - 1].end;
                named.insert(name.trim_end_matches("'s").trim_start_matches("in ").to_owned());
                at += taken;
            }
        }
    }
    out.push_str(&question[copied..]);
    (copied > 0).then_some(out)
}

/// What a word of a question refers to.
enum Reference {
    /// To nothing.
    None,
    /// To this name, which stands for so many words.
    Name(usize, String),
}

/// The reference at a word; `None` if it refers to something that is not certain.
fn reference(history: &[Said<'_>], asked: &[Word<'_>], at: usize) -> Option<Reference> {
    let word = lower(asked[at].text);
    let next = asked.get(at + 1);
    let says = |word: Option<&Word<'_>>| word.is_some_and(|word| !is_function(word.text));
    match word.as_str() {
        "this" | "that" | "these" | "those" | "the" | "such" if says(next) => {
            let is_the = word == "the";
            let (Some(head), false) = (next, is_the && says(asked.get(at + 2))) else { return Some(Reference::None) };
            match of_head(history, head.text) {
                Some(name) => Some(Reference::Name(2, name)),
                None if is_the => Some(Reference::None),
                None => None,
            }
        }
        "it" if is_of_nothing(asked, at) || what_follows(asked, at) => Some(Reference::None),
        "it" if names_within(asked, at, false) => Some(Reference::None),
        "his" | "her" | "its" if says(next) => {
            // "His wife" may have a name of her own, but this is also right.
            let owner =
                if names_within(asked, at, false) { return Some(Reference::None) } else { topic(history, &word)? };
            Some(Reference::Name(1, format!("{owner}'s")))
        }
        "it" | "he" | "him" | "she" | "her" => Some(Reference::Name(1, topic(history, &word)?)),
        "there" => {
            let is_verb = at > 0 && listed("is are was were", lower(asked[at - 1].text).as_str());
            if next.is_some() || is_verb {
                return Some(Reference::None);
            }
            Some(Reference::Name(1, format!("in {}", topic(history, "there")?)))
        }
        "that" | "the" => Some(Reference::None),
        other if listed(REFERENCES, other) => None,
        _ => Some(Reference::None),
    }
}

/// Whether what "it" stands for follows: "how long would it take to …".
fn what_follows(asked: &[Word<'_>], at: usize) -> bool {
    asked[at + 1..].iter().take(5).any(|word| listed(WHAT_FOLLOWS, lower(word.text).as_str()))
}

/// The user's questions, newest first.
fn questions<'h>(history: &'h [Said<'_>]) -> impl Iterator<Item = &'h str> {
    history.iter().rev().filter(|said| said.user).map(|said| said.text)
}

/// The name that a pronoun refers to: the only one that fits in the newest question that does not refer back itself.
fn topic(history: &[Said<'_>], pronoun: &str) -> Option<String> {
    if let Some(name) = answer_to_who(history, pronoun).or_else(|| subject_of_reply(history, pronoun)) {
        return Some(name);
    }
    for question in questions(history).take(BACK) {
        let asked = words(question);
        let names: Vec<Entity> = entities(question, false).into_iter().filter(|one| one.name).collect();
        if asked.iter().any(|word| is_pronoun(word, pronoun)) {
            // Its names are not what it is about.
            if names.is_empty() {
                continue;
            }
            return None;
        }
        let mut fitting = names.iter().filter(|one| fits(one, pronoun)).map(|one| one.text.as_str());
        return match (fitting.next(), fitting.next()) {
            (Some(name), None) if is_topic(question, &asked, name) => Some(name.to_owned()),
            _ => None,
        };
    }
    None
}

/// The person that the last reply names in answer to "who".
fn answer_to_who(history: &[Said<'_>], pronoun: &str) -> Option<String> {
    let [.., question, reply] = history else { return None };
    let asks = words(question.text).first().is_some_and(|word| lower(word.text) == "who");
    if !(asks && question.user && !reply.user && is_of_person(pronoun)) {
        return None;
    }
    let names: Vec<Entity> = entities(reply.text, false);
    let first = names.iter().find(|one| one.name && matches!(one.kind, Kind::Person | Kind::Name))?;
    // A reply that names others may be about them.
    (words(reply.text).len() <= 12 || names.len() == 1).then(|| first.text.clone())
}

/// The subject with which the last reply begins, if its question asked about the same pronoun: "How old is he?", "Ada
/// Byron was …".
fn subject_of_reply(history: &[Said<'_>], pronoun: &str) -> Option<String> {
    let [.., question, reply] = history else { return None };
    let (asked, said) = (words(question.text), words(reply.text));
    if pronoun == "there" || !question.user || reply.user || !asked.iter().any(|word| is_pronoun(word, pronoun)) {
        return None;
    }
    let first = entities(reply.text, false).into_iter().next().filter(|one| one.name && one.text.contains(' '))?;
    let fits = fits(&first, pronoun);
    let start = reply.text.find(&first.text)?;
    let article = match said.iter().take_while(|word| word.end <= start).collect::<Vec<_>>().as_slice() {
        [] => "",
        [only] if lower(only.text) == "the" => "the ",
        _ => return None,
    };
    let verb = said.iter().find(|word| word.start >= start + first.text.len())?;
    let is_verb = listed("is was has had does did can will", lower(verb.text).as_str()) || verb.text.ends_with("ed");
    (fits && is_verb && !(article.is_empty() && first.plural)).then(|| format!("{article}{}", first.text))
}

fn is_of_person(pronoun: &str) -> bool {
    matches!(pronoun, "he" | "him" | "his" | "she" | "her")
}

fn is_pronoun(word: &Word<'_>, like: &str) -> bool {
    let word = lower(word.text);
    match is_of_person(like) {
        true => is_of_person(&word),
        false => matches!(word.as_str(), "it" | "its" | "there"),
    }
}

fn fits(one: &Entity, pronoun: &str) -> bool {
    match pronoun {
        "there" => one.kind == Kind::Place,
        _ if is_of_person(pronoun) => matches!(one.kind, Kind::Person | Kind::Name),
        _ => !matches!(one.kind, Kind::Person | Kind::Place) && !one.plural,
    }
}

/// Whether a name stands where the topic of a question does: not behind a preposition of circumstances, not before
/// another noun ("AAA bonds"), and not as an adjective of nationality.
fn is_topic(question: &str, asked: &[Word<'_>], name: &str) -> bool {
    let Some(start) = question.find(name) else { return false };
    let end = start + name.len();
    let before = asked.iter().rev().find(|word| word.end <= start).map(|word| lower(word.text));
    let before = match before.as_deref() {
        Some("the" | "a" | "an") => {
            asked.iter().rev().filter(|word| word.end <= start).nth(1).map(|word| lower(word.text))
        }
        other => other.map(str::to_owned),
    };
    let after = asked.iter().find(|word| word.start >= end);
    let adjoins = after.is_some_and(|word| question[end..word.start].trim().is_empty());
    // A verb may follow a name, too.
    let is_verb = |word: &str| listed(VERBS, word) || word.ends_with("ed");
    let is_noun = after.is_some_and(|word| adjoins && !is_function(word.text) && !is_verb(&lower(word.text)));
    let is_adjective = !name.contains(' ') && listed(NATIONS, lower(name).as_str());
    !before.is_some_and(|word| listed(CIRCUMSTANCES, &word)) && !is_noun && !is_adjective
}

/// Verbs that often follow the name in a question.
const VERBS: &str =
    "make makes work works offer offers support supports cost costs mean means have has start end begin happen";
/// Adjectives of nations.
const NATIONS: &str = "american british english french german italian spanish chinese japanese korean indian russian \
    canadian mexican european african asian irish scottish welsh dutch greek roman turkish arabic jewish christian muslim catholic \
    western eastern northern southern federal";

/// The name with this head that the user used: "that law" for "Brianna's Law".
fn of_head(history: &[Said<'_>], head: &str) -> Option<String> {
    let names = questions(history).flat_map(|question| entities(question, false)).filter(|one| one.name);
    let ends = names.filter(|one| {
        let words = words(&one.text);
        words.len() > 1 && words.last().is_some_and(|last| key(last.text) == key(head) && is_capital(last.text))
    });
    let mut all: Vec<Entity> = ends.collect();
    all.dedup_by(|a, b| a.text == b.text);
    match all.as_slice() {
        [only] if is_plural(head) == only.plural => Some(only.text.clone()),
        _ => None,
    }
}

/// The user's last question with X in place of something of the same kind: "what about X?"
fn fill(history: &[Said<'_>], about: &str) -> Option<String> {
    let before = questions(history).next()?;
    let refers = words(before).iter().any(|word| listed(REFERENCES, lower(word.text).as_str()));
    if refers {
        return None;
    }
    let new = words(about);
    if let Some(year) = new.last().filter(|word| is_year(word.text)) {
        let years: Vec<_> = words(before).into_iter().filter(|word| is_year(word.text)).collect();
        return match years.as_slice() {
            [] => Some(format!("{} {about}?", before.trim_end().trim_end_matches(['?', '.', '!']))),
            [place] => Some(format!("{}{}{}", &before[..place.start], year.text, &before[place.end..])),
            _ => None,
        };
    }
    let one =
        entities(&format!("about {about}"), false).pop().filter(|one| one.name && one.text.len() == about.len())?;
    let same: Vec<Entity> = entities(before, false).into_iter().filter(|other| other.name).collect();
    match same.as_slice() {
        [other] if other.kind == one.kind || matches!(one.kind, Kind::Name | Kind::Thing) => {
            Some(before.replacen(&other.text, about, 1))
        }
        _ => None,
    }
}
