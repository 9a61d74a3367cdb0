//! From passages and a question to a prompt; shared by the operators that make prompts.

use serde::Deserialize;
use turnflow_engine::component::BuildError;
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::Prompt;
use turnflow_engine::record::{Hit, Turn};
use turnflow_engine::spec::FilePath;

use crate::passages::{Length, conversation, numbered};
use crate::template::{Filling, Template};

/// What a prompt for an answer is filled with.
pub(crate) const PLACES: &[&str] = &["question", "passages", "history", "idk"];

/// The question that a prompt asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Question {
    /// What was searched for: the question as it was rewritten, if it was.
    #[default]
    Searched,
    /// What the user said.
    Asked,
}

/// How a model is told to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Style {
    /// Statements of the passages, each with the number of its passage.
    Grounded,
    /// From the sources alone, begun with "Based on the sources," (TechSSN, section 3.10).
    Anchor,
    /// A span of at most five words (PolyU, section 2.3).
    Span,
}

impl Style {
    /// The file's template, or else this style's.
    pub(crate) fn template(self, file: Option<&FilePath>) -> Result<Template, BuildError> {
        let built_in = match self {
            Style::Grounded => include_str!("../prompts/grounded.txt"),
            Style::Anchor => include_str!("../prompts/anchor.txt"),
            Style::Span => include_str!("../prompts/span.txt"),
        };
        Template::load(file, built_in, PLACES)
    }
}

pub(crate) fn default_passages() -> usize {
    5
}
pub(crate) fn default_history_characters() -> usize {
    600
}
pub(crate) fn default_idk() -> String {
    "I do not know.".into()
}

/// Makes prompts for answers.
#[derive(Clone)]
pub(crate) struct Builder {
    pub template: Template,
    pub passages: usize,
    pub length: Length,
    pub question: Question,
    pub history: usize,
    /// Characters of an utterance of the history.
    pub history_characters: usize,
    pub idk: String,
}

impl Builder {
    /// The prompt for a question with these passages; passages may be cut, the rest may not.
    pub fn prompt(&self, turn: &Turn, searched: &str, hits: &[Hit]) -> Result<Prompt, InferenceError> {
        let passages = numbered(&hits[..hits.len().min(self.passages)], &self.length, &self.template)?;
        let question = match self.question {
            Question::Searched => searched,
            Question::Asked => &turn.text,
        };
        let lines = conversation(turn, self.history, self.history_characters);
        let history =
            if lines.is_empty() { String::new() } else { format!("Conversation so far:\n{}", lines.join("\n")) };
        Ok(self.template.fill(&[
            ("question", self.template.question(question)),
            ("passages", Filling::MayBeCut(passages)),
            ("history", history.as_str().into()),
            ("idk", self.idk.as_str().into()),
        ]))
    }
}
