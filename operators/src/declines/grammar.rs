//! The grammar of refusals: who lacks what, and where it is not said.
//!
//! The patterns are in `grammar.txt`. They are built of classes of words: who speaks, what the sources are called, what
//! verbs of having, finding and telling there are, and what can be lacking. Words of the subject match anything.

use std::sync::LazyLock;

use regex::Regex;

use super::clauses::Clause;
use super::patterns::{named, refusals};

static REFUSALS: LazyLock<Vec<Regex>> = LazyLock::new(refusals);
static THEY: LazyLock<Regex> = LazyLock::new(|| named("they"));
static SOURCES: LazyLock<Regex> = LazyLock::new(|| named("names_sources"));
static CONDITION: LazyLock<Regex> = LazyLock::new(|| named("condition"));
static WHEN: LazyLock<Regex> = LazyLock::new(|| named("when"));
static REPORTED: LazyLock<Regex> = LazyLock::new(|| named("reported"));
static CERTAIN: LazyLock<Regex> = LazyLock::new(|| named("certain"));

/// Whether a clause names the sources.
pub(super) fn names_sources(clause: &str) -> bool {
    SOURCES.is_match(clause)
}

/// Whether a clause says of the sources, which the clause before has named, that they lack something.
pub(super) fn they_lack(clause: &Clause<'_>) -> bool {
    THEY.find(clause.text).is_some_and(|found| holds(clause, found.start(), found.end()))
}

/// Whether a clause declines: its speaker or its sources lack what is asked.
pub(super) fn declines(clause: &Clause<'_>) -> bool {
    let text = clause.text;
    if CERTAIN.is_match(text) {
        return false;
    }
    REFUSALS.iter().any(|refusal| refusal.find(text).is_some_and(|found| holds(clause, found.start(), found.end())))
}

/// Whether what is matched is said to be so: neither under a condition nor by somebody else.
fn holds(clause: &Clause<'_>, start: usize, end: usize) -> bool {
    let (before, after) = (&clause.text[..start], &clause.text[end..]);
    let goes_on = clause.goes_on || after.split(" ,").skip(1).any(|part| part.split(' ').count() > 3);
    let is_condition = CONDITION.is_match(&clause.text[..end]) || goes_on && WHEN.is_match(&clause.text[..end]);
    !is_condition && !REPORTED.is_match(before)
}
