//! Decomposes questions by their form.

use std::sync::LazyLock;

use regex::Regex;

use crate::rule_rewrite::{Rewritten, Rules, Said, rewrite};

/// A conjunction followed by another question.
static AND_ASKS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let asks = r"(?:who|whom|whose|what|when|where|why|how|which|is|are|was|were|do|does|did|can|could|should|will)";
    Regex::new(&format!(r"(?i)(?:,\s*|\s+)(?:and|but|or)\s+(?P<next>(?:also\s+)?{asks}\s)")).ok()
});
static COMPARES: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let side = |name: &str| format!(r"(?P<{name}>[^,;?]{{2,80}}?)");
    let (a, b) = (side("a"), side("b"));
    [
        format!(r"(?i)\b(?:differences?|similarities|relationship|comparison|connection) (?:is |are |there )*between {a} and {b}\s*[?.]*$"),
        format!(r"(?i)\bcompare {a} (?:and|with|to|against) {b}\s*[?.]*$"),
        format!(r"(?i)^(?:how do(?:es)? )?{a} differ(?:s|ent)? from {b}\s*[?.]*$"),
        format!(r"(?i)[,:]\s*{a},? or {b}\s*[?.]*$"),
        format!(r"(?i)^(?:(?:is|are|what about) )?{a} (?:vs\.?|versus) {b}\s*[?.]*$"),
    ]
    .iter()
    .filter_map(|pattern| Regex::new(pattern).ok())
    .collect()
});
/// "… of the actor who played Iron Man": something described by a relative clause.
static CLAUSE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let pattern = r"(?i)\b(?:of|by|in|from|to|for|did|does|was|is|has|with) (?P<what>(?:the|a|an) (?:\w+ ){1,3}?(?:who|that|which|whose) [^,;?]{4,})[?.]*$";
    Regex::new(pattern).ok()
});

/// The parts of a question, in order: one if it is simple, and at least `most` if it has that many. Reads only as many
/// sentences as are needed for `most` parts, because each sentence is resolved against all earlier ones.
pub(super) fn parts(question: &str, most: usize) -> Vec<String> {
    let question = question.trim();
    let mut parts: Vec<String> = Vec::new();
    for sentence in sentences(question, 2 * most) {
        // Earlier parts are the context that "it" refers to.
        let before: Vec<Said<'_>> = parts.iter().map(|part| Said { user: true, text: part }).collect();
        let rules = Rules { few: 0, many: 0, ..Rules::default() };
        let sentence = match rewrite(&before, &sentence, &rules) {
            Rewritten::Dependent { search, resolved: true, .. } => search,
            Rewritten::Standalone | Rewritten::Dependent { .. } => sentence,
        };
        parts.extend(simple(&sentence));
    }
    let mut once: Vec<String> = Vec::new();
    for part in parts {
        if !once.contains(&part) {
            once.push(part);
        }
    }
    once
}

/// Splits consecutive questions. If there are more than `most`, returns the first ones.
fn sentences(text: &str, most: usize) -> Vec<String> {
    let ends = text.match_indices('?').map(|(at, mark)| at + mark.len());
    let mut sentences = Vec::new();
    let mut start = 0;
    for end in ends.chain([text.len()]) {
        let sentence = text[start..end].trim();
        start = end;
        if sentences.len() >= most {
            break;
        }
        if !sentence.chars().any(char::is_alphanumeric) {
            continue;
        }
        let mut rest = sentence;
        while let Some(found) = AND_ASKS.as_ref().and_then(|pattern| pattern.captures(rest)) {
            let (Some(all), Some(next)) = (found.get(0), found.name("next")) else { break };
            // "What and where" has no complete question before the conjunction.
            if rest[..all.start()].split_whitespace().count() < 2 {
                break;
            }
            if sentences.len() >= most {
                break;
            }
            sentences.push(rest[..all.start()].to_owned());
            rest = &rest[next.start()..];
        }
        sentences.push(rest.to_owned());
    }
    sentences
}

/// Splits one question into what must be found first and the question itself, or returns it whole.
fn simple(question: &str) -> Vec<String> {
    for pattern in COMPARES.iter() {
        if let Some(found) = pattern.captures(question) {
            let side = |name| found.name(name).map(|side| side.as_str().trim().to_owned());
            return side("a").into_iter().chain(side("b")).chain([question.to_owned()]).collect();
        }
    }
    match CLAUSE.as_ref().and_then(|pattern| pattern.captures(question)).and_then(|found| found.name("what")) {
        Some(what) => vec![what.as_str().trim().to_owned(), question.to_owned()],
        None => vec![question.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_taken_apart() {
        for (question, want) in [
            ("How tall is K2?", vec!["How tall is K2?"]),
            ("Bread and butter?", vec!["Bread and butter?"]),
            ("", vec![]),
            ("Who wrote Dune and when was it filmed?", vec!["Who wrote Dune", "when was Dune filmed?"]),
            ("What is a CDN? How much does it cost?", vec!["What is a CDN?", "How much does CDN cost?"]),
            (
                "What is the difference between a minor and an adult?",
                vec!["a minor", "an adult", "What is the difference between a minor and an adult?"],
            ),
            (
                "Which is longer, the Rhine or the Danube?",
                vec!["the Rhine", "the Danube", "Which is longer, the Rhine or the Danube?"],
            ),
            ("Memphis versus Texas blues", vec!["Memphis", "Texas blues", "Memphis versus Texas blues"]),
            // PolyU, section 4.2.3.
            (
                "Who is the wife of the actor who played Iron Man?",
                vec!["the actor who played Iron Man", "Who is the wife of the actor who played Iron Man?"],
            ),
        ] {
            assert_eq!(parts(question, 8), want, "{question}");
        }
    }
}
