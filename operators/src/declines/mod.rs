//! Reads from an answer's text whether it declines, answers in part, answers, or asks back.
//!
//! The text is read sentence by sentence, and each sentence clause by clause. A clause declines if its grammar says so:
//! who speaks or what was read *does not* have, find, know or mention *what is asked*. Courtesies, referrals to
//! somebody else and remarks on what the sources are about belong to the refusal. So a text of refusals alone declines,
//! and one with anything else answers in part. English only; other languages by phrases and question marks.
//!
//! With a `Head`, a learned label corrects the rules.

mod asking;
mod clauses;
mod grammar;
mod head;
mod neutral;
mod patterns;
mod reader;
#[cfg(test)]
mod tests;

pub use head::Head;
pub use reader::Reader;

use crate::citations::without;
use crate::sentences::sentence_ranges;
use asking::{Asking, asking, is_puzzled};
use clauses::{clauses, plain, without_quotations};
use neutral::{is_before, is_neutral, is_remark, is_search};

/// Number of words of a sentence that are read. So what a longer beginning of a sentence does is certain, whatever
/// follows.
const MOST_WORDS: usize = 60;

/// What a text does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// It answers, or chats.
    Answers,
    /// It declines a part, and answers the rest.
    Partly,
    /// It declines, and nothing else.
    Declines,
    /// It asks the user what the question lacks.
    Asks,
}

/// What a part of a text does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It says something about the matter.
    Answers,
    /// It says that this is not known.
    Declines,
    /// It asks the user something.
    Asks(Asking),
    /// It belongs to what is around it: courtesies, referrals, remarks.
    Neutral,
}

/// Compiles the rules on a thread of its own, so that the first answer does not wait for them.
pub fn prepare() {
    let read = || stance("I do not know. Which one do you mean? Please ask the shop.");
    // Without the thread, the first answer compiles them.
    let _ = std::thread::Builder::new().name("rules".to_owned()).spawn(read);
}

/// What a text does, by its grammar.
pub fn stance(text: &str) -> Stance {
    if is_blank(text) { Stance::Declines } else { stance_of(&acts(text)) }
}

/// Whether a text has nothing but citations and punctuation.
pub(crate) fn is_blank(text: &str) -> bool {
    without(text).chars().all(|c| c.is_whitespace() || ".…,;:!?*#>-–—_()[]{}\"'“”‘’|•".contains(c))
}

/// Whether a text with this beginning answers something, whatever follows.
pub(crate) fn surely_answers(beginning: &str) -> bool {
    // A quotation that has not ended may be all of it.
    if beginning.matches('"').count() % 2 == 1 {
        return false;
    }
    let sentences = sentences(beginning);
    let last = sentences.len().saturating_sub(1);
    acts_of(&sentences).iter().enumerate().any(|(at, acts)| {
        let is_whole = at < last || count(&plain(&sentences[at])) > MOST_WORDS;
        is_whole && acts.iter().any(|(act, _)| matches!(act, Act::Answers | Act::Asks(Asking::Something)))
    })
}

/// The acts of a text, with the number of words of each.
pub(crate) fn acts(text: &str) -> Vec<(Act, usize)> {
    acts_of(&sentences(text)).into_iter().flatten().collect()
}

/// The acts of each sentence.
pub(crate) fn acts_of(sentences: &[String]) -> Vec<Vec<(Act, usize)>> {
    // Whether the sentence before was about the sources, which are *they* or *it* now.
    let mut on_sources = false;
    let mut acts = Vec::new();
    for sentence in sentences {
        acts.push(sentence_acts(sentence, on_sources));
        on_sources = grammar::names_sources(&plain(sentence));
    }
    acts
}

/// The sentences of a text, without citations and quotations.
pub(crate) fn sentences(text: &str) -> Vec<String> {
    let text = without_quotations(&without(text));
    sentence_ranges(&text).into_iter().map(|(start, end)| text[start..end].trim().to_owned()).collect()
}

/// The acts of a sentence's clauses.
fn sentence_acts(sentence: &str, after_sources: bool) -> Vec<(Act, usize)> {
    let words = plain(sentence);
    let whole = count(&words);
    let words = beginning(&words);
    match asking(sentence, words) {
        Asking::Offer => return vec![(Act::Neutral, whole)],
        Asking::Not => {}
        asking => return vec![(Act::Asks(asking), whole)],
    }
    let clauses = clauses(words);
    let mut acts: Vec<(Act, usize)> = Vec::new();
    let mut on_sources = false;
    for clause in &clauses {
        let they = on_sources || after_sources && is_pronoun(clause.text);
        let act = match () {
            () if is_puzzled(clause.text) => Act::Neutral,
            () if grammar::declines(clause) || they && grammar::they_lack(clause) => Act::Declines,
            () if is_neutral(clause.text) || is_search(clause.text) => Act::Neutral,
            () => Act::Answers,
        };
        on_sources |= act == Act::Declines || grammar::names_sources(clause.text) || is_search(clause.text);
        acts.push((act, count(clause.text)));
    }
    // "According to the passages, it is not known." "The passages name the members, but not their ages."
    for at in 1..acts.len() {
        let (before, here) = (&clauses[at - 1], &clauses[at]);
        let belongs = before.goes_on && is_before(before.text) || is_remark(before.text) && grammar::they_lack(here);
        if acts[at].0 == Act::Declines && acts[at - 1].0 == Act::Answers && belongs {
            acts[at - 1].0 = Act::Neutral;
        }
    }
    acts
}

/// Whether a clause begins with a word that stands for the sources or for who reads them.
fn is_pronoun(clause: &str) -> bool {
    [" they ", " it ", " neither ", " none ", " i ", " we "].iter().any(|word| clause.starts_with(word))
}

/// The first words of a sentence.
fn beginning(plain: &str) -> &str {
    plain.match_indices(' ').nth(MOST_WORDS).map_or(plain, |(at, _)| &plain[..at])
}

fn count(plain: &str) -> usize {
    plain.split(' ').filter(|word| word.starts_with(char::is_alphanumeric)).count()
}

/// What a text with these acts does.
pub(crate) fn stance_of(acts: &[(Act, usize)]) -> Stance {
    let has = |wanted: &dyn Fn(Act) -> bool| acts.iter().any(|(act, _)| wanted(*act));
    let declines = has(&|act| act == Act::Declines);
    let answers = has(&|act| matches!(act, Act::Answers | Act::Asks(Asking::Something)));
    let only_more = !has(&|act| matches!(act, Act::Asks(Asking::Which | Asking::Shortly)));
    match () {
        () if asks(acts) && !(declines && (answers || only_more)) => Stance::Asks,
        () if !declines => Stance::Answers,
        () if answers => Stance::Partly,
        () => Stance::Declines,
    }
}

/// Whether a text with these acts asks back: with its first or last sentence, or with at least half of its words.
pub(crate) fn asks(acts: &[(Act, usize)]) -> bool {
    let told: Vec<(Act, usize)> = acts.iter().copied().filter(|(act, _)| *act != Act::Neutral).collect();
    let asking = |(act, words): &(Act, usize)| if matches!(act, Act::Asks(_)) { *words } else { 0 };
    let (asking, all): (usize, usize) = (told.iter().map(asking).sum(), told.iter().map(|(_, words)| words).sum());
    let first = matches!(told.first(), Some((Act::Asks(Asking::Which | Asking::More | Asking::Shortly), _)));
    let last = matches!(told.last(), Some((Act::Asks(Asking::Which | Asking::More), _)));
    first || last || asking > 0 && 2 * asking >= all
}
