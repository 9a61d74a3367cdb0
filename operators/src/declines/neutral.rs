//! Clauses that neither answer nor decline: courtesies, referrals to somebody else, remarks on the sources.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;

use super::clauses::pattern;
use super::patterns::named;

/// A clause of these words alone is a courtesy.
static COURTESY: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    "sorry apologies apology apologize apologise i am my we are me our unfortunately regrettably sadly alas no \
     nope well hmm oh hi hello thanks thank you for the inconvenience confusion any this that about very so \
     really afraid regret please luck your patience understanding question asking to say have must admit be \
     honest wish could can would help hope helps welcome here more as far see tell however but and or either \
     though yet it is a good great interesting truly sincerely deeply at moment now on end with all being yours \
     too again also still therefore because since of course indeed perhaps maybe answer response note final \
     assistant quite frankly honestly like love glad happy disappoint disappointed been able"
        .split_whitespace()
        .collect()
});
/// Referrals.
static REFERRAL: LazyLock<Regex> = LazyLock::new(|| named("referral"));
/// What a referral tells to do.
static TO: LazyLock<Regex> = LazyLock::new(|| named("refer"));
/// Remarks on what the sources are about.
static REMARK: LazyLock<Regex> = LazyLock::new(|| named("remark"));
/// What a remark does not have: a statement of the sources.
static STATES: LazyLock<Regex> = LazyLock::new(|| pattern(r" that\b"));

/// What the sources have.
static HAVE: LazyLock<Regex> = LazyLock::new(|| named("have"));
/// Where something was looked for, and what it is about: before the clause that says what was found.
static BEFORE: LazyLock<Regex> = LazyLock::new(|| named("before"));
/// Where somebody has looked.
static LOOKED: LazyLock<Regex> = LazyLock::new(|| named("looked"));
/// A longer referral or remark says something of its own.
const MOST_WORDS: usize = 30;

/// Whether a clause says what the sources have, without what they state.
pub(super) fn is_remark(clause: &str) -> bool {
    HAVE.is_match(clause) && !STATES.is_match(clause)
}

/// Whether a clause says where somebody has looked.
pub(super) fn is_search(clause: &str) -> bool {
    LOOKED.is_match(clause)
}

/// Whether a part before a comma belongs to the clause after it.
pub(super) fn is_before(part: &str) -> bool {
    BEFORE.is_match(part)
}

/// Whether a clause neither answers nor declines.
pub(super) fn is_neutral(clause: &str) -> bool {
    let words: Vec<&str> =
        clause.split(' ').filter(|word| word.starts_with(|c: char| c.is_ascii_alphanumeric())).collect();
    words.iter().all(|word| COURTESY.contains(word))
        || words.len() <= MOST_WORDS
            && (REFERRAL.is_match(clause) && TO.is_match(clause) || REMARK.is_match(clause) && !STATES.is_match(clause))
}
