//! Builds a prompt from passages and a question. Shared by the operators that make prompts.

use turnflow_engine::component::{BuildError, config};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::Prompt;
use turnflow_engine::record::{Hit, Turn};
use turnflow_engine::spec::FilePath;

use crate::passages::{Length, conversation, numbered};
use crate::template::{Filling, Template};

/// The placeholders of an answer prompt.
pub(crate) const PLACES: &[&str] = &["question", "passages", "history", "idk"];

/// Which form of the question the prompt contains.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Question {
    /// The query as searched, after any rewriting.
    #[default]
    Searched,
    /// The user's own words.
    Asked,
}

/// Instruction for the form of the answer.
#[config]
#[derive(Copy, PartialEq, Eq)]
pub enum Style {
    /// Statements from the passages, each with the number of its passage.
    Grounded,
    /// An answer from the sources alone that begins with "Based on the sources," (TechSSN, section 3.10).
    Anchor,
    /// A span of at most five words (PolyU, section 2.3).
    Span,
}

impl Style {
    /// The template in the file, or else this style's built-in one.
    pub(crate) fn template(self, file: Option<&FilePath>) -> Result<Template, BuildError> {
        let built_in = match self {
            Style::Grounded => include_str!("../prompts/grounded.txt"),
            Style::Anchor => include_str!("../prompts/anchor.txt"),
            Style::Span => include_str!("../prompts/span.txt"),
        };
        Template::load(file, built_in, PLACES)
    }
}

/// Builds prompts for answers.
#[derive(Clone)]
pub(crate) struct Builder {
    pub template: Template,
    pub passages: usize,
    pub length: Length,
    /// Fields of the passages' metadata to show before their texts.
    pub metadata: Vec<String>,
    pub question: Question,
    pub history: usize,
    /// Maximum length of each history utterance, in characters.
    pub history_characters: usize,
    pub idk: String,
}

impl Builder {
    /// The prompt for a question with these passages. Only passages may be cut to fit a model.
    pub fn prompt(&self, turn: &Turn, searched: &str, hits: &[Hit]) -> Result<Prompt, InferenceError> {
        let passages = numbered(&hits[..hits.len().min(self.passages)], &self.length, &self.template, &self.metadata)?;
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
