//! Questions back to the user, told from offers of further help.

use std::sync::LazyLock;

use regex::Regex;

use super::clauses::{pattern, plain_pattern};

/// Offers of further help, and courtesies.
static OFFER: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r" (?:anything else|something else(?: i| you| that)|more help|further help|further assistance|any (?:other|further|more) questions?|another question|how (?:can|may) i help|how (?:can|may) i assist|shall i|should i (?:go on|continue)|do you want me to|would you like (?:me to|to (?:hear|see|read|learn more|know more))|want me to|does (?:that|this) (?:help|answer|make sense)|did (?:that|this) (?:help|answer)|is there something)\b|^(?: and)? would you like (?:more|another|further|any)\b",
    )
});
/// Questions and requests for what the user's question lacks: which one is meant, or a detail about it.
static WHICH: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r"(?x)
        \ (?:which|what|who|whom|whose|where|when|how)\b .* \ you\b .*
            \ (?:mean\w*|refer\w*|talk\w*|ask\w*|interest\w*|have\ in\ mind|looking|think\w*|need\w*|want\w*|wish\w*|speak\w*|after|inquir\w*|wonder\w*)\b
        | \ (?:did|do|are|were|is|was|would|by)\b .* \ you\b (?:\ \w+)? \ (?:mean\w*|refer\w*|asking|talking|thinking|speaking|wondering|inquiring|interested|looking|want|have\ (?:in\ mind|another|a|any))\b
        | \ (?:do|did)\ you\ mean\b
        | \ (?:could|can|would|will|might|may|please|kindly|must|need\ you\ to|ask\ you\ to) (?:\ \w+){0,4}? \ (?:clarify|clarifying|specify|specifying|rephrase|rephrasing|reword|elaborate|narrow|be\ (?:a\ bit\ |a\ little\ )?(?:more\ )?(?:specific|precise|clearer|explicit))\b
        | \ (?:could|can|would|please|kindly|may|mind) (?:\ \w+){0,4}? \ (?:tell|give|let|say|provide|name|state|share|indicate|telling|giving|confirm|help\ me\ understand|know|ask) (?:\ \w+){0,3}? \ (?:which|what|who|whether|where|when|if|how|for\ which|the|your|its|more|some|further|additional|a\ bit|a\ little|me)\b
        | \ which\b [\x20-~]{0,40} \ (?:do|did|are|were|have)\ you\b | \ which(?:\ one|\ of\ \w+)?\ (?:is\ it|was\ it|are\ they|would\ that\ be)\b
        | \ i\ (?:would\ |will\ )?(?:need|have)\ to\ know\b | \ (?:is|was|are)\ (?:your|the)\ question\ about\b | \ are\ we\ (?:talking|speaking)\b
        | \ let\ me\ know\ (?:which|what|who|whether|if\ you\ mean)\b",
    )
});
/// Maximum number of words of a question that names nothing of the user.
const SHORT: usize = 12;
/// Requests for more, whatever it is.
static MORE: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r" (?:more|further|additional|some|any)(?: (?:specific|detailed|relevant|background|other))? (?:details?|information|context|specifics|background)(?: (?:about|on|regarding) (?:your|the|this) (?:question|request|query))?(?: so that .*| to help .*)?(?: [?!.])*$",
    )
});
/// The speaker did not understand the question.
static PUZZLED: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r" (?:not|never)(?: \w+){0,3} (?:understand|understood|follow|get|got|sure|certain|clear|know)(?: \w+){0,3}? (?:which|what|who|whom|the question|your question|quite|that|this)(?: \w+){0,8}? (?:you|your)\b| (?:did|do|could|can) not(?: \w+ly| quite| fully)* (?:understand|get|follow|catch)\b| your question is (?:unclear|ambiguous|not clear|a bit unclear|too (?:vague|broad|general))",
    )
});
static REQUEST: LazyLock<Regex> = LazyLock::new(|| {
    plain_pattern(
        r"^(?: (?:sorry|so|then|but|,|and))* (?:please|kindly) (?:\w+ ){0,1}?(?:provide|specify|clarify|tell|state|name|give|share|indicate|confirm|let me know|say|rephrase|describe)\b|^ (?:let me know|tell me) (?:which|what|who|whether)\b|^(?: (?:to|for) (?:\w+ ){1,6}?,?)? ?i (?:would |will )?need (?:to know|more (?:details|information|context)|a (?:little|bit) more|the|your)\b|(?:^| ,) i (?:would |will )?need to know\b|^ it would help (?:me )?(?:to know|if (?:you|i))\b",
    )
});
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
