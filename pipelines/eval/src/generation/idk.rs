//! Labels whether a response says that it does not know (IDK), by rules or with a language model.
//!
//! The rules are those of the operator `IdkNormalize`, with its learned label if there is an encoder. A response that
//! asks back is no IDK response. The judge is MTRAG's (Katsis et al. 2025, appendix F.3): it gets the question and the
//! response, and replies yes, partial or no. It judges every response, except those without a word and those with the
//! status `idk` from the pipeline.

use std::sync::Arc;

use turnflow_engine::language::Generator;
use turnflow_operators::declines::{Reader, Stance};
use turnflow_operators::idk_normalize::{IdkRules, PLACES, PROMPT, label};

use super::conditioning::Idk;
use super::judge::{Trouble, ask, template};
use super::{Response, Status};

/// Labels responses.
pub struct IdkDetector {
    rules: IdkRules,
    reader: Reader,
    judge: Option<Arc<dyn Generator>>,
}

impl IdkDetector {
    /// Creates a detector with these phrases beside the grammar, a reader and an optional judge.
    pub fn new(phrases: &[String], reader: Reader, judge: Option<Arc<dyn Generator>>) -> Self {
        Self { rules: IdkRules::new(phrases), reader, judge }
    }

    /// Labels a response.
    ///
    /// # Errors
    ///
    /// The judge or the encoder failed, or the judge's reply has no label.
    pub async fn label(&self, question: &str, response: &Response) -> Result<Idk, Trouble> {
        let text = response.text.trim();
        if text.is_empty() || response.status == Status::Idk {
            return Ok(Idk::Yes);
        }
        let Some(judge) = &self.judge else {
            return Ok(match self.rules.read(&self.reader, text).await? {
                Stance::Declines => Idk::Yes,
                Stance::Partly => Idk::Partial,
                Stance::Answers | Stance::Asks => Idk::No,
            });
        };
        let template = template(PROMPT, PLACES)?;
        let places = [("question", template.question(question)), ("answer", (&*template.quoted(text)).into())];
        let reply = ask(judge, template.fill(&places)).await?;
        match label(&reply.text) {
            Some("yes") => Ok(Idk::Yes),
            Some("partial") => Ok(Idk::Partial),
            Some(_) => Ok(Idk::No),
            None => Err(Trouble::Unread),
        }
    }
}
