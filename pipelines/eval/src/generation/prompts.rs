//! The prompts of the judges: those in `pipelines/prompts/`, or files that a metrics file names.

use serde::Deserialize;
use turnflow_engine::component::Check;
use turnflow_engine::spec::FilePath;
use turnflow_operators::idk_normalize::{PLACES as IDK_PLACES, PROMPT as IDK};
use turnflow_operators::template::Template;

use super::judge::PromptError;

const RATING: &str = include_str!("../../../prompts/rating.txt");
const RATING_PLACES: &[&str] = &["response", "reference", "question", "conversation", "passages"];
const STATEMENTS: &str = include_str!("../../../prompts/statements.txt");
const STATEMENT_PLACES: &[&str] = &["response", "question"];
const VERDICTS: &str = include_str!("../../../prompts/verdicts.txt");
const VERDICT_PLACES: &[&str] = &["statements", "passages"];
const CLARIFICATION: &str = include_str!("../../../prompts/clarification.txt");
const CLARIFICATION_PLACES: &[&str] = &["answer"];

/// Fields of `prompts`: files of prompts, such as published ones.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptsConfig {
    /// The prompt for a rating (RB_llm), with `{response}`, `{reference}`, `{question}`, `{conversation}` (what was said
    /// before) and `{passages}`. Default: `pipelines/prompts/rating.txt`.
    pub rating: Option<FilePath>,
    /// The prompt that splits an answer into statements (RL_F), with `{response}` and `{question}`, which is the whole
    /// conversation. The reply is a list of lines, or JSON. Default: `pipelines/prompts/statements.txt`.
    pub statements: Option<FilePath>,
    /// The prompt for the verdicts on them, with `{statements}` and `{passages}`. The reply has a numbered line for each
    /// statement, or JSON with a `verdict` for each. Default: `pipelines/prompts/verdicts.txt`.
    pub verdicts: Option<FilePath>,
    /// The prompt for IDK labels, with `{answer}` and `{question}`, which is the whole conversation. Default:
    /// `operators/prompts/idk_judge.txt`.
    pub idk: Option<FilePath>,
    /// The prompt for requests for clarification, with `{answer}`. The reply begins with `yes` or `no`, or is JSON with
    /// a `decision`. Default: `pipelines/prompts/clarification.txt`.
    pub clarification: Option<FilePath>,
}

impl PromptsConfig {
    fn all(&self) -> [(&'static str, Option<&FilePath>, &'static str, &'static [&'static str]); 5] {
        [
            ("rating", self.rating.as_ref(), RATING, RATING_PLACES),
            ("statements", self.statements.as_ref(), STATEMENTS, STATEMENT_PLACES),
            ("verdicts", self.verdicts.as_ref(), VERDICTS, VERDICT_PLACES),
            ("idk", self.idk.as_ref(), IDK, IDK_PLACES),
            ("clarification", self.clarification.as_ref(), CLARIFICATION, CLARIFICATION_PLACES),
        ]
    }

    /// Reports files that are missing or no prompts.
    pub(super) fn check(&self, check: &mut Check<'_>) {
        for (_, file, _, places) in self.all() {
            Template::check(file, "prompts", places, check);
        }
    }
}

/// The prompts of the judges.
#[derive(Clone, Debug)]
pub struct Prompts {
    /// Asks for a rating.
    pub rating: Template,
    /// Splits an answer into statements.
    pub statements: Template,
    /// Asks for a verdict on each statement.
    pub verdicts: Template,
    /// Asks whether an answer says that it does not know.
    pub idk: Template,
    /// Asks whether an answer asks for clarification.
    pub clarification: Template,
}

impl Prompts {
    /// Reads the files, and the built-in prompts for those that are not given.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is not a prompt with the right placeholders.
    pub fn load(config: &PromptsConfig) -> Result<Self, PromptError> {
        let [rating, statements, verdicts, idk, clarification] = config.all().map(|(field, file, built_in, places)| {
            Template::load(file, built_in, places).map_err(|source| PromptError { field, source })
        });
        Ok(Self {
            rating: rating?,
            statements: statements?,
            verdicts: verdicts?,
            idk: idk?,
            clarification: clarification?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_prompts_are_templates() {
        Prompts::load(&PromptsConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    }
}
