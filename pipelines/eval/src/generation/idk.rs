//! Labels whether a response says that it does not know (IDK), by rules or with a language model.
//!
//! The rules are those of the operator `IdkNormalize`, with its learned label if there is an encoder. A response that
//! asks back is no IDK response. The judge is MTRAG's (Katsis et al. 2025, appendix F.3): it gets the whole conversation
//! and the response, and replies yes, partial or no. As in the published scripts, the first word of the reply counts. It
//! judges every response, except those without a word and those with the status `idk` from the pipeline.

use std::sync::Arc;

use turnflow_engine::language::Generator;
use turnflow_operators::declines::{Reader, Stance};
use turnflow_operators::idk_normalize::{IdkRules, LABELS};
use turnflow_operators::reply::strip;
use turnflow_operators::template::Template;

use super::conditioning::Idk;
use super::judge::{Trouble, ask, inquiry};
use super::{Response, Status};
use crate::tasks::Utterance;

/// Labels responses.
pub struct IdkDetector {
    rules: IdkRules,
    reader: Reader,
    judge: Option<(Arc<dyn Generator>, Template)>,
}

/// The first word of a judge's reply, in lower case, without the label of the prompt before it.
pub(super) fn first_word(reply: &str) -> String {
    let reply = strip(reply, &["label:", "[output]", "output:"]);
    let letters = reply.trim_start_matches(|c: char| !c.is_alphabetic()).chars().take_while(|c| c.is_alphabetic());
    letters.collect::<String>().to_lowercase()
}

impl IdkDetector {
    /// Creates a detector with these phrases beside the grammar, a reader, and an optional judge with its prompt.
    pub fn new(phrases: &[String], reader: Reader, judge: Option<(Arc<dyn Generator>, Template)>) -> Self {
        Self { rules: IdkRules::new(phrases), reader, judge }
    }

    /// Labels a response to a conversation.
    ///
    /// # Errors
    ///
    /// The judge or the encoder failed, or the judge's reply has no label.
    pub async fn label(&self, input: &[Utterance], response: &Response) -> Result<Idk, Trouble> {
        let text = response.text.trim();
        if text.is_empty() || response.status == Status::Idk {
            return Ok(Idk::Yes);
        }
        let Some((judge, template)) = &self.judge else {
            return Ok(match self.rules.read(&self.reader, text).await? {
                Stance::Declines => Idk::Yes,
                Stance::Partly => Idk::Partial,
                Stance::Answers | Stance::Asks => Idk::No,
            });
        };
        let places = [("question", inquiry(template, input)), ("answer", (&*template.quoted(text)).into())];
        let reply = ask(judge, template.fill(&places), LABELS).await?;
        match first_word(&reply.text).as_str() {
            "yes" => Ok(Idk::Yes),
            "partial" => Ok(Idk::Partial),
            "no" => Ok(Idk::No),
            _ => Err(Trouble::Unread),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::first_word;

    #[test]
    fn the_first_word_of_a_reply_counts() {
        for (reply, want) in [
            ("yes", "yes"),
            (" **No.** It answers.", "no"),
            ("Label: partial", "partial"),
            ("[Output]\nyes", "yes"),
            ("I would say yes", "i"),
            ("yesterday", "yesterday"),
            ("1", ""),
        ] {
            assert_eq!(first_word(reply), want, "{reply:?}");
        }
    }
}
