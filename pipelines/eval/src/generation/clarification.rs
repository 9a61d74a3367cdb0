//! Labels whether a response asks for clarification, by rules or with a language model.
//!
//! The scripts of MTRAG-UN (Rosenthal et al. 2026) let a judge decide whether a response mainly asks for what the
//! question lacks; that is the right response to an underspecified question. The judge's prompt is
//! `prompts/clarification.txt`. Without a judge, the rules that recognise IDK responses decide: the response asks if at
//! least half of its words are in sentences that ask, or if its first or last sentence asks what the user means. An
//! offer of further help does not ask.

use std::sync::Arc;

use turnflow_engine::language::Generator;
use turnflow_operators::declines::Reader;
use turnflow_operators::reply::object;
use turnflow_operators::template::Template;

use super::idk::first_word;
use super::judge::{Trouble, ask};

/// Labels responses.
pub struct ClarificationDetector {
    /// The rules, with the learned label if there is an encoder.
    pub reader: Reader,
    /// The judge and its prompt.
    pub judge: Option<(Arc<dyn Generator>, Template)>,
}

impl ClarificationDetector {
    /// Whether a response asks for clarification.
    ///
    /// # Errors
    ///
    /// The judge or the encoder failed, or the judge's reply has no label.
    pub async fn label(&self, text: &str) -> Result<bool, Trouble> {
        let text = text.trim();
        let Some((judge, template)) = self.judge.as_ref().filter(|_| !text.is_empty()) else {
            return Ok(self.reader.asks(text).await?);
        };
        let reply = ask(judge, template.fill(&[("answer", (&*template.quoted(text)).into())]), ["yes", "no"]).await?;
        decision(&reply.text).ok_or(Trouble::Unread)
    }
}

/// What a judge decided: the `decision` of its JSON, or else its first word.
fn decision(reply: &str) -> Option<bool> {
    let decided = object(reply).and_then(|object| Some(object.get("decision")?.as_str()?.to_lowercase()));
    match decided.unwrap_or_else(|| first_word(reply)).trim() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn asks(text: &str) -> bool {
        let detector = ClarificationDetector { reader: Reader::default(), judge: None };
        detector.label(text).now_or_never().expect("ready").expect("a label")
    }

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

    #[test]
    fn decisions_are_words_or_json() {
        for (reply, want) in [
            ("Yes, it does.", Some(true)),
            ("no", Some(false)),
            ("```json\n{\"decision\": \"Yes\", \"explanation\": \"no\"}\n```", Some(true)),
            ("{\"decision\": \"perhaps\"}", None),
            ("Perhaps yes", None),
        ] {
            assert_eq!(decision(reply), want, "{reply:?}");
        }
    }
}
