//! Labels whether a response asks for clarification, by rules or with a language model.
//!
//! The scripts of MTRAG-UN (Rosenthal et al. 2026) let a judge decide whether a response mainly asks for what the
//! question lacks; that is the right response to an underspecified question. The judge's prompt is
//! `prompts/clarification.txt`. Without a judge, rules decide: the response asks if at least half of its words are in
//! sentences that ask, or if its first sentence asks. An offer of further help does not ask.

use std::sync::Arc;

use turnflow_engine::language::Generator;
use turnflow_operators::idk_normalize::label;
use turnflow_operators::sentences::sentence_ranges;

use super::judge::{Trouble, ask, template};

const PROMPT: &str = include_str!("../../../prompts/clarification.txt");
const PLACES: &[&str] = &["answer"];

/// Beginnings of sentences that ask without a question mark.
const REQUESTS: &[&str] = &[
    "please provide",
    "please specify",
    "please clarify",
    "please tell",
    "please state",
    "please name",
    "please give",
    "please share",
    "please indicate",
    "please confirm",
    "please let me know",
    "let me know which",
    "let me know what",
    "tell me which",
    "tell me what",
    "i need to know",
    "i need more details",
    "i need more information",
];
/// Parts of offers of further help.
const OFFERS: &[&str] = &[
    "anything else",
    "something else",
    "more help",
    "would you like",
    "do you want me to",
    "shall i",
    "any other question",
    "any further question",
    "how can i help",
    "how may i help",
];

/// Labels responses.
pub struct ClarificationDetector(pub Option<Arc<dyn Generator>>);

impl ClarificationDetector {
    /// Whether a response asks for clarification.
    ///
    /// # Errors
    ///
    /// The judge failed, or its reply has no label.
    pub async fn label(&self, text: &str) -> Result<bool, Trouble> {
        let text = text.trim();
        let Some(judge) = self.0.as_ref().filter(|_| !text.is_empty()) else { return Ok(asks(text)) };
        let template = template(PROMPT, PLACES)?;
        let reply = ask(judge, template.fill(&[("answer", (&*template.quoted(text)).into())])).await?;
        match label(&reply.text) {
            Some("yes") => Ok(true),
            Some("no") => Ok(false),
            _ => Err(Trouble::Unread),
        }
    }
}

/// The rules.
fn asks(text: &str) -> bool {
    let (mut asking, mut all, mut is_first) = (0, 0, false);
    for (at, (start, end)) in sentence_ranges(text).into_iter().enumerate() {
        let sentence = text[start..end].trim();
        let words = sentence.split_whitespace().count();
        all += words;
        if is_request(sentence) {
            asking += words;
            is_first |= at == 0;
        }
    }
    is_first || asking > 0 && 2 * asking >= all
}

fn is_request(sentence: &str) -> bool {
    let lower = sentence.to_lowercase();
    if OFFERS.iter().any(|offer| lower.contains(offer)) {
        return false;
    }
    let lower = ["could you ", "can you ", "would you ", "sorry, "]
        .iter()
        .fold(&*lower, |rest, start| rest.strip_prefix(start).unwrap_or(rest));
    sentence.trim_end_matches(['"', '\'', ')', '”', '’']).ends_with(['?', '？', '؟'])
        || REQUESTS.iter().any(|request| lower.starts_with(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_from_answers_and_offers() {
        for text in [
            "Which one do you mean?",
            "Please provide the name of the ferry.",
            "Could you please specify the year?",
            "There are two ferries. Which of them do you mean?",
            "Which ferry? There is one to the island, one across the bay, and one that leaves only in summer.",
            "どちらのフェリーですか？",
        ] {
            assert!(asks(text), "{text}");
        }
        for text in [
            "",
            "At noon.",
            "I cannot answer, because I do not know the year.",
            "The ferry to the island leaves at noon every day. Is there anything else?",
            "Would you like to hear more?",
            "The ferry leaves at noon, and the trip takes two hours in good weather. Which day?",
        ] {
            assert!(!asks(text), "{text}");
        }
    }
}
