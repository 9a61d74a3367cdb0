//! Decides from an answer's text alone whether it is IDK.

use regex::Regex;

use turnflow_engine::inference::InferenceError;

use crate::declines::{Reader, Stance, stance, surely_answers};
use crate::reply::{clean, strip};

/// An answer that contains one of these may not know.
const HINTS: &[&str] = &[
    "not mention",
    "no information",
    "not specif",
    "unable to",
    "cannot",
    "can't",
    "not provide",
    "not contain",
    "not state",
    "not say",
    "not enough",
    "insufficient",
    "do not have",
    "don't have",
    "not sure",
    "not clear",
    "not know",
    "don't know",
    "unclear",
    "unknown",
];

/// Maximum number of characters of a prefix that a regular expression matches, where a text is streamed.
const LONGEST_PREFIX: usize = 120;

pub(super) fn default_prefixes() -> Vec<String> {
    [
        "answer:",
        "**answer:**",
        "**answer**:",
        "the answer is:",
        "response:",
        "agent:",
        "assistant:",
        "a:",
        "final answer:",
        "**final answer:**",
    ]
    .map(String::from)
    .into()
}

pub(super) fn default_patterns() -> Vec<String> {
    vec![r"(?i)based on the (provided |given |above )?(sources|passages|documents|context|information)( provided| given)?[,:]".into()]
}

/// The rules of `IdkNormalize`.
pub struct IdkRules {
    prefixes: Vec<String>,
    patterns: Vec<Regex>,
    /// Whether the pattern is the default one, which begins with known words.
    is_usual_pattern: bool,
    phrases: Vec<String>,
}

impl IdkRules {
    /// Rules with the operator's default prefixes, and with these phrases.
    pub fn new(phrases: &[String]) -> Self {
        Self::of(default_prefixes(), &default_patterns(), phrases)
    }

    /// Rules from the operator's fields. `check` has already rejected invalid regular expressions.
    pub(super) fn of(prefixes: Vec<String>, patterns: &[String], phrases: &[String]) -> Self {
        let phrases = phrases.iter().map(|phrase| words(phrase)).filter(|phrase| !phrase.is_empty()).collect();
        let is_usual_pattern = patterns == default_patterns();
        let patterns = patterns.iter().filter_map(|pattern| Regex::new(&format!("^(?:{pattern})")).ok()).collect();
        Self { prefixes, patterns, is_usual_pattern, phrases }
    }

    /// What an answer's text does, by its grammar and the phrases.
    pub fn stance(&self, text: &str) -> Stance {
        let text = self.plain(text);
        self.with_phrases(text, stance(text))
    }

    /// What an answer's text does, by the reader's learned label too.
    ///
    /// # Errors
    ///
    /// The reader's encoder failed.
    pub async fn read(&self, reader: &Reader, text: &str) -> Result<Stance, InferenceError> {
        let text = self.plain(text);
        Ok(self.with_phrases(text, reader.stance(text).await?))
    }

    /// What the phrases add to what a text without prefixes does.
    fn with_phrases(&self, text: &str, stance: Stance) -> Stance {
        if self.gives_up(text) {
            return Stance::Declines;
        }
        let said = words(text);
        // A single word ("unknown") inside a sentence says nothing about the question.
        let mut phrases = self.phrases.iter().filter(|phrase| phrase.contains(' '));
        match stance {
            Stance::Answers if phrases.any(|phrase| said.contains(phrase.as_str())) => Stance::Partly,
            stance => stance,
        }
    }

    /// Whether a text mentions something missing, so that rules alone cannot decide.
    pub(super) fn is_undecided(&self, text: &str) -> bool {
        let said = words(text);
        HINTS.iter().any(|hint| said.contains(hint)) || self.phrases.iter().any(|phrase| said.contains(phrase.as_str()))
    }

    /// The text without prefixes.
    pub(super) fn plain<'t>(&self, text: &'t str) -> &'t str {
        let mut text = strip(text, &self.prefixes);
        while let Some(found) = self.patterns.iter().find_map(|pattern| pattern.find(text)).filter(|m| !m.is_empty()) {
            text = strip(&text[found.end()..], &self.prefixes);
        }
        text
    }

    /// The part of a text without prefixes that is certain, whatever follows: none while a prefix or a phrase may begin
    /// the text, and until a sentence that answers has ended.
    pub(super) fn certain<'t>(&self, text: &'t str) -> &'t str {
        let plain = self.plain(text);
        let shown = plain.trim_start().to_lowercase();
        let may_be_prefix = self.prefixes.iter().any(|prefix| prefix.to_lowercase().starts_with(&shown));
        // A regular expression may match more than is there.
        let may_match = !self.patterns.is_empty() && {
            let is_usual = self.is_usual_pattern;
            let first: String = shown.chars().take("based on".len()).collect();
            let begins = !is_usual || "based on".starts_with(&first) || first.starts_with("based on");
            begins && plain.chars().count() < LONGEST_PREFIX
        };
        let said = words(plain);
        // The last word may go on.
        let may_give_up = self
            .phrases
            .iter()
            .any(|phrase| phrase.starts_with(said.as_str()) || said.strip_prefix(phrase.as_str()).is_some());
        if may_be_prefix || may_match || may_give_up || !surely_answers(plain) { "" } else { plain }
    }

    /// Whether the text gives up. A text that starts by giving up but continues with an answer ("I do not have specific
    /// information on X. However, …") does not.
    pub(super) fn gives_up(&self, text: &str) -> bool {
        let said = words(text);
        let goes_on = |rest: &str| [" however ", " but "].iter().any(|turn| rest.contains(turn));
        self.phrases.iter().any(|phrase| {
            let rest = said.strip_prefix(phrase.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' ') && !goes_on(rest))
        })
    }
}

/// Phrases that may occur anywhere in a text, as whole words.
pub(super) struct Phrases(Vec<String>);

impl Phrases {
    pub(super) fn new(phrases: &[String]) -> Self {
        Self(phrases.iter().map(|phrase| format!(" {} ", words(phrase))).collect())
    }

    /// Whether the text has one of the phrases.
    pub(super) fn occur_in(&self, text: &str) -> bool {
        let said = format!(" {} ", words(text));
        self.0.iter().any(|phrase| said.contains(phrase.as_str()))
    }
}

/// Parses the label in a judge's reply: `yes`, `partial` or `no`.
pub fn label(reply: &str) -> Option<&'static str> {
    let reply = clean(reply).to_lowercase();
    let mut words = reply.split(|c: char| !c.is_alphanumeric());
    words.find_map(|word| ["yes", "partial", "no"].into_iter().find(|label| *label == word))
}

/// Lower-cased words joined by spaces. Apostrophes are kept and normalised to one character.
fn words(text: &str) -> String {
    let text = text.to_lowercase().replace('’', "'");
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}
