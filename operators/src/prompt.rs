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
use turnflow_engine::component::{
    BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, ScoreUse, built_at_once, config,
};
use turnflow_engine::record::{PortType, PromptFor, Value};
use turnflow_engine::spec::FilePath;

use crate::models::tokenizer;
use crate::passages::Length;
use crate::prompting::{self, Builder, Question, Style};
use crate::template::Template;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<PromptConfig>(
    "Prompt",
    &[InputPort::one(PortType::Hits)],
    PortType::Prompts,
    "a prompt of numbered passages, an instruction and the question",
);

/// Fields of `Prompt`.
#[config]
pub struct PromptConfig {
    /// Input node that produces hits.
    _input: String,
    /// Instruction for the model: `Span` (five words at most), `Grounded` (cited statements) or `Anchor` (begins with "Based
    /// on the sources,").
    #[field(default = Style::Span)]
    pub style: Style,
    /// Prompt file to use instead of `style`. Default: none.
    pub prompt: Option<FilePath>,
    /// Maximum number of passages in the prompt, best first.
    #[field(default = 5, range = 1..=1000)]
    pub passages: usize,
    /// Maximum length of each passage, in characters. Default 500; `None` for unlimited.
    #[field(default = Some(500), range = 1..=1_000_000)]
    pub characters: Option<usize>,
    /// Maximum length of each passage in tokens, instead of characters. Default: unlimited.
    #[field(range = 1..=1_000_000)]
    pub tokens: Option<usize>,
    /// The model whose tokenizer counts the tokens. Required with `tokens`.
    pub model: Option<String>,
    /// Fields of the passages' metadata to show before their texts, such as `["date", "source"]`.
    #[field(default)]
    pub metadata: Vec<String>,
    /// The question in the prompt: `Searched` (default), the question as a rewriter says it, or
    /// `Asked`, the user's own words.
    #[field(default)]
    pub question: Question,
    /// Number of newest history utterances to include in the prompt.
    #[field(default)]
    pub history: usize,
    /// Maximum length of each history utterance, in characters.
    #[field(default = 600, range = 1..=1_000_000)]
    pub history_characters: usize,
    /// The reply that the model must give if the passages do not answer the question. Default `I do not know.`
    #[field(default = "I do not know.")]
    pub idk: String,
}

impl OperatorConfig for PromptConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.tokens.is_some() && self.model.is_none() {
            check.error("wrong-value", "tokens", "`tokens` needs a `model` whose tokenizer counts them");
        }
        Template::check(self.prompt.as_ref(), "prompt", prompting::PLACES, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let name = self.model.as_deref().filter(|_| self.tokens.is_some());
        name.map(|name| ModelUse { field: "model", name, capability: Capability::Tokenize }).into_iter().collect()
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
