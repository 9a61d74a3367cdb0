//! Questions back to the user, told from offers of further help.

use std::sync::LazyLock;

use regex::Regex;

use super::clauses::pattern;
use super::patterns::named;

/// Maximum number of words of a question that names nothing of the user.
const SHORT: usize = 12;

/// Offers of further help, and courtesies.
static OFFER: LazyLock<Regex> = LazyLock::new(|| named("offer"));
/// Questions and requests for what the user's question lacks: which one is meant, or a detail about it.
static WHICH: LazyLock<Regex> = LazyLock::new(|| named("which"));
/// Requests for more, whatever it is.
static MORE: LazyLock<Regex> = LazyLock::new(|| named("more"));
/// The speaker did not understand the question.
static PUZZLED: LazyLock<Regex> = LazyLock::new(|| named("puzzled"));
/// Requests without a question mark.
static REQUEST: LazyLock<Regex> = LazyLock::new(|| named("request"));
/// What ends a question, in several scripts.
static MARK: LazyLock<Regex> = LazyLock::new(|| pattern(r#"[?？؟][)"'”’»\s*_]*$"#));

/// What a sentence asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// Nothing.
    Not,
    /// Whether the user wants further help.
    Offer,
    /// Something that may belong to the answer.
    Something,
    /// Which one, without a word on the user.
    Shortly,
    /// More about what is meant, whatever it is.
    More,
    /// What the user's question lacks.
    Which,
}

/// What a sentence asks. `plain` is the sentence in the plain spelling.
pub(super) fn asking(sentence: &str, plain: &str) -> Asking {
    let is_question = MARK.is_match(sentence);
    let is_request = REQUEST.is_match(plain);
    if !is_question && !is_request {
        return Asking::Not;
    }
    if OFFER.is_match(plain) {
        return Asking::Offer;
    }
    let is_short = plain.split(' ').count() <= SHORT && !is_request;
    match () {
        () if MORE.is_match(plain) => Asking::More,
        () if WHICH.is_match(plain) || is_request => Asking::Which,
        () if is_short && plain.starts_with(" which ") => Asking::Shortly,
        () => Asking::Something,
    }
}

/// Whether a clause says that the speaker did not understand the question.
pub(super) fn is_puzzled(clause: &str) -> bool {
    PUZZLED.is_match(clause)
}
