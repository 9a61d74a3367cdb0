//! Clauses that neither answer nor decline: courtesies, referrals to somebody else, remarks on the sources.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;

use super::clauses::plain_pattern;

/// A clause of these words alone is a courtesy.
static COURTESY: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    "sorry apologies apology apologize apologise i am my we are me our unfortunately regrettably sadly alas no nope well \
     hmm oh hi hello thanks thank you for the inconvenience confusion any this that about very so really afraid regret \
     please luck your patience understanding question asking to say have must admit be honest wish could can would help \
     hope helps welcome here more as far see tell however but and or either though yet it is a good great interesting \
     truly sincerely deeply at moment now on end with all being yours too again it also still therefore because since \
     of course indeed perhaps maybe answer response note final assistant quite frankly honestly"
        .split_whitespace()
        .collect()
});
/// Referrals.
static REFERRAL: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r"(?x)
        ^(?:\ (?:so|and|but|or|then|instead|otherwise|perhaps|maybe|,|also|alternatively|in\ that\ case|if\ so|therefore))*
        (?:\ (?:for|to|if|in\ order\ to)\ [a-z0-9'.\ -]{1,120}?\ ,)?
        (?:
            \ (?:please|kindly|consider|try|check|contact|consult|ask|see|visit|refer|feel\ free|let\ me\ know)\b
            | \ you\ (?:may|might|could|can|should|would|will|had\ better)\b
            | \ (?:i|we)\ (?:would|can|could|might|may|will)?\ ?(?:recommend|suggest|advise|encourage|urge|refer|point)\b
            | \ it\ (?:may|might|would|is|will)\ (?:be\ )?(?:best|better|worth|advisable|helpful|useful|a\ good\ idea|wise|recommended|necessary)\b
            | \ (?:the|your)\ (?:\w+\ ){1,4}?(?:may|might|can|could|should|will|would)\ (?:be\ able\ to\ )?(?:help|know|tell|have|assist|answer)\b
            | \ (?:for|if)\ (?:you|more|further|this|that|details|the\ latest|accurate|specific|such|additional)\b
            | \ (?:is|are)\ there\ | \ (?:do|would)\ you\ (?:want|like)\b | \ (?:i|we)\ (?:hope|am\ happy|would\ be\ happy|will\ be\ happy|am\ glad)\b
        )",
    )
});
/// What a referral tells to do.
static TO: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r" (?:contact|contacting|check|checking|consult|consulting|visit|visiting|ask|asking|refer|referring|reach|reaching|see|look|looking|search|searching|try|trying|call|calling|speak|speaking|talk|talking|turn|turning|verify|verifying|help|assist|know|rephrase|provide|share|questions?|read|reading|get in touch|inquire|enquire|browse|seek|seeking|confirm|request|write to|email|have)\b",
    )
});
/// Remarks on what the sources are about.
static REMARK: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r"(?x)
        ^(?:\ (?:and|as|since|because|although|though|while|even|also|instead|rather|here|,))*
        \ (?:(?:the|these|those|all|my|both|this|any|other|provided|given|available|retrieved|supplied|of|most)\ )*
        (?:they|it|documents?|passages?|context|sources?|texts?|materials?|excerpts?|snippets?|articles?|pages?|documentation|information|results?|what\ (?:i|we)\ (?:have|was\ given|found))
        (?:\ (?:i|we|that|have|were|was|given|found|provided|retrieved|here|available|me|to|above|in|the))*
        (?:
            (?:\ (?:do|does|did|only|just|merely|mainly|mostly|primarily|solely|all|rather|exclusively|largely|instead|seem\ to|seems\ to|appear\ to|appears\ to))+\ (?:talk|discuss|cover|deal|describ|focus|concern|are|is|mention|relat|refer|address|contain|speak|treat|list|explain|provid|giv|go)\w*
            | \ (?:discuss\w*|cover\w*|deal\w*\ with|focus\w*|talk\w*\ about|concern\w*|relat\w*\ to|touch\w*\ on|revolve\w*)\b
            | \ (?:are|is)\ (?:(?:only|all|mainly|mostly|just|rather|solely|primarily)\ )*about\b
        )",
    )
});
/// What a remark does not have: a statement of the sources.
static STATES: LazyLock<Regex> = LazyLock::new(|| plain_pattern(r" that\b"));

/// Whether a clause says what the sources have, without what they state.
pub(super) fn is_remark(clause: &str) -> bool {
    HAVE.is_match(clause) && !STATES.is_match(clause)
}

/// What the sources have.
static HAVE: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r" (?:documents?|passages?|contexts?|sources?|texts?|materials?|excerpts?|snippets?|articles?|pages?|they|it) (?:only )?(?:list|name|mention|describe|give|show|contain|cover|discus|explain|have|raise|provide|tell)\w*\b",
    )
});
/// Where something was looked for, and what it is about: before the clause that says what was found.
static BEFORE: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r"^(?: (?:and|so|but|unfortunately|sadly))*(?: (?:based|according|judging|going|given|having|after|from|looking|regarding|concerning|about|as for|as to|with regard|with respect|in terms|on|for|to|due|because of|despite|as an?|in|as far as|when it comes|who|what|when|where|whether|how|which|why|whatever|beyond|apart from|besides|other than|aside from|beside)\b)",
    )
});

/// Whether a part before a comma belongs to the clause after it.
pub(super) fn is_before(part: &str) -> bool {
    BEFORE.is_match(part)
}

/// A longer referral or remark says something of its own.
const MOST_WORDS: usize = 30;

/// Whether a clause neither answers nor declines.
pub(super) fn is_neutral(clause: &str) -> bool {
    let words: Vec<&str> =
        clause.split(' ').filter(|word| word.starts_with(|c: char| c.is_ascii_alphanumeric())).collect();
    words.iter().all(|word| COURTESY.contains(word))
        || words.len() <= MOST_WORDS
            && (REFERRAL.is_match(clause) && TO.is_match(clause) || REMARK.is_match(clause) && !STATES.is_match(clause))
}
