//! Builds a prompt from passages without calling a model: Hits → Prompts.
//!
//! ```ron
//! Prompt(input: "hits", style: Span, passages: 5, characters: Some(500))
//! ```
//!
//! PolyU's deterministic prompt builder (section 2.3): the instruction, then the first passages, each cut at 500
//! characters, numbered from 1 and separated by empty lines, then the question. Answers can therefore be traced to
//! passages. Cuts are at the end of a word. `Generate` takes the result as input.
//!
//! Prompt placeholders: `{question}`, `{passages}`, `{history}`, `{idk}`. The same hits give the same prompt. Cost:
//! none, except tokenization with `tokens`.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, ScoreUse, built_at_once,
};
use turnflow_engine::record::{PortType, PromptFor, Value};
use turnflow_engine::spec::{FilePath, from_tree};

use crate::models::tokenizer;
use crate::passages::Length;
use crate::prompting::{self, Builder, Question, Style};
use crate::template::Template;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind {
    name: "Prompt",
    inputs: &[InputPort::one(PortType::Hits)],
    output: PortType::Prompts,
    summary: "a prompt of numbered passages, an instruction and the question",
    parse: |tree, sources| Ok(Box::new(from_tree::<PromptConfig>(tree, sources)?)),
};

/// Fields of `Prompt`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptConfig {
    /// Input node that produces hits.
    #[serde(rename = "input")]
    _input: String,
    /// Instruction for the model: `Span` (five words at most), `Grounded` (cited statements) or `Anchor` (begins with
    /// "Based on the sources,"). Default `Span`.
    #[serde(default = "default_style")]
    pub style: Style,
    /// Prompt file to use instead of `style`. Default: none.
    #[serde(default)]
    pub prompt: Option<FilePath>,
    /// Maximum number of passages in the prompt, best first. Default 5.
    #[serde(default = "prompting::default_passages")]
    pub passages: usize,
    /// Maximum length of each passage, in characters. Default 500; `None` for unlimited.
    #[serde(default = "default_characters")]
    pub characters: Option<usize>,
    /// Maximum length of each passage in tokens, instead of characters. Default: unlimited.
    #[serde(default)]
    pub tokens: Option<usize>,
    /// The model whose tokenizer counts the tokens. Required with `tokens`.
    #[serde(default)]
    pub model: Option<String>,
    /// Fields of the passages' metadata to show before their texts, such as `["date", "source"]`. Default: none.
    #[serde(default)]
    pub metadata: Vec<String>,
    /// The question in the prompt: `Searched` (default), the question as a rewriter says it, or
    /// `Asked`, the user's own words.
    #[serde(default)]
    pub question: Question,
    /// Number of newest history utterances to include in the prompt. Default 0.
    #[serde(default)]
    pub history: usize,
    /// Maximum length of each history utterance, in characters. Default 600.
    #[serde(default = "prompting::default_history_characters")]
    pub history_characters: usize,
    /// The reply that the model must give if the passages do not answer the question. Default `I do not know.`
    #[serde(default = "prompting::default_idk")]
    pub idk: String,
}

fn default_style() -> Style {
    Style::Span
}
fn default_characters() -> Option<usize> {
    Some(500)
}

impl OperatorConfig for PromptConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn validate(&self, check: &mut Check<'_>) {
        check.range("passages", self.passages, 1, 1000);
        if let Some(characters) = self.characters {
            check.range("characters", characters, 1, 1_000_000);
        }
        check.range("history_characters", self.history_characters, 1, 1_000_000);
        if let Some(tokens) = self.tokens {
            check.range("tokens", tokens, 1, 1_000_000);
            if self.model.is_none() {
                check.error("wrong-value", "tokens", "`tokens` needs a `model` whose tokenizer counts them");
            }
        }
        Template::check(self.prompt.as_ref(), "prompt", prompting::PLACES, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let name = self.model.as_deref().filter(|_| self.tokens.is_some());
        name.map(|name| ModelUse { field: "model", name, capability: Capability::Tokenize }).into_iter().collect()
    }

    fn explain(&self) -> String {
        let Self { style, passages, question, history, history_characters, .. } = self;
        let prompt = self.prompt.as_ref().map_or_else(|| format!("{style:?}"), |file| file.written.clone());
        let length = match (self.tokens, self.characters) {
            (Some(tokens), _) => format!("tokens: {tokens}"),
            (None, Some(characters)) => format!("characters: {characters}"),
            (None, None) => "uncut".to_owned(),
        };
        let metadata = prompting::explained(&self.metadata);
        format!(
            "prompt: {prompt}, passages: {passages}, {length}{metadata}, question: {question:?}, history: {history} of {history_characters} characters"
        )
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let length = match (self.tokens, &self.model, self.characters) {
                (Some(tokens), Some(model), _) => Length::Tokens(tokens, tokenizer(models, model, "Prompt")?),
                (_, _, Some(characters)) => Length::Characters(characters),
                (_, _, None) => Length::Whole,
            };
            Ok(Arc::new(MakePrompt(Builder {
                template: self.style.template(self.prompt.as_ref())?,
                passages: self.passages,
                length,
                metadata: self.metadata.clone(),
                question: self.question,
                history: self.history,
                history_characters: self.history_characters,
                idk: self.idk.clone(),
            })))
        })
    }
}

struct MakePrompt(Builder);

impl Operator for MakePrompt {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let hits = call.hits(0)?;
            let kept = hits.hits[..hits.hits.len().min(self.0.passages)].to_vec();
            let prompt = self.0.prompt(&call.turn, hits.query.question(), &kept)?;
            Ok(Value::Prompt(Arc::new(PromptFor { query: hits.query.clone(), hits: kept, prompt })))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + call.weight_of_passages(self.0.passages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{call, hits, operator};
    use crate::test_turn::turn;

    #[test]
    fn passages_are_numbered_cut_and_may_be_cut_further() {
        let operator = operator::<PromptConfig>(r#"(input: "hits", passages: 2, characters: Some(9))"#, &Models::new());
        let input = hits("Where?", &["In Paris, of course", "In Rome", "In Oslo"]);
        let (Value::Prompt(made), warnings) = call(&operator, turn(&["user: a"], "Where?"), input) else { panic!() };
        let text = made.prompt.plain();
        assert!(text.contains("[Evidence]\n[1] In Paris,\n\n[2] In Rome\n\nQuestion: Where?\nShort Answer:"), "{text}");
        assert_eq!((made.hits.len(), warnings.len()), (2, 0));
        let parts = &made.prompt.messages[0].parts;
        assert_eq!(parts.iter().map(|part| part.may_be_cut).collect::<Vec<_>>(), [false, true, true, false]);
    }
}
