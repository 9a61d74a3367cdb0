//! Rewrites a question to be standalone with a language model: Turns → Queries.
//!
//! ```ron
//! Rewrite(input: "turns", model: "llm", form: Plain, history: 10)
//! ```
//!
//! With `Plain` the model replies with the query alone, after two examples (RAGTUM, section 4.1 and appendix A.1;
//! TechSSN, section 3.1). With `Json` it replies with an object that holds the question's class and its rewording; a
//! question classified as standalone stays as asked (MTRAG, appendix C.1). The query keeps the class
//! (`Query::standalone`), by which `turnflow eval` breaks its figures down. The first turn passes unchanged, without a
//! model call and without a class.
//!
//! An unusable reply (not JSON, empty, too long, a refusal) or a failed model call never fails the turn: the question
//! is searched as asked, with a warning. With `rules: true`, the rules of `RuleRewrite` run first, the model is called
//! only if they leave a reference unresolved (PolyU, section 2.3.2), and the fallback is the rules' rewrite.
//!
//! Prompt placeholders: `{question}`, `{history}`, `{examples}`. The same conversation gives the same query if the
//! model returns the same text. Cost: at most one model call per turn.

mod reply;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind, built_at_once, config,
};
use turnflow_engine::language::{Finish, Generation, Generator, Prompt, SamplingFields};
use turnflow_engine::record::{PortType, Query, Turn, Value};
use turnflow_engine::spec::FilePath;

use self::reply::Reply;
use crate::models::generator;
use crate::passages::conversation;
use crate::rule_rewrite::{Rewritten, Rules, newest, rewrite, said};
use crate::template::Template;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<RewriteConfig>(
    "Rewrite",
    &[InputPort::one(PortType::Turns)],
    PortType::Queries,
    "a standalone question, rewritten by a language model",
);

const PLACES: &[&str] = &["question", "history", "examples"];
const PLAIN: &str = include_str!("../../prompts/rewrite.txt");
const JSON: &str = include_str!("../../prompts/rewrite_json.txt");
const EXAMPLES: &str = include_str!("../../prompts/rewrite_examples.txt");

/// The form of the model's reply.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// The query alone.
    #[default]
    Plain,
    /// A JSON object with `class` and `reworded version`.
    Json,
}

/// Fields of `Rewrite`.
#[config]
pub struct RewriteConfig {
    /// Input node that produces turns.
    _input: String,
    /// The model that rewrites the question.
    pub model: String,
    /// Form of the model's reply: `Plain` or `Json`. Default `Plain`.
    #[field(default)]
    pub form: Form,
    /// Prompt file. Default: `operators/prompts/rewrite.txt` or `rewrite_json.txt`, depending on `form`.
    #[field(unset = "built-in")]
    pub prompt: Option<FilePath>,
    /// File whose text fills the placeholder `{examples}`. Default: two examples for `Plain`, none for `Json`.
    pub examples: Option<FilePath>,
    /// Number of newest history utterances in the prompt.
    #[field(default = 10, range = 1..=1000)]
    pub history: usize,
    /// Number of newest turns that the rules and the prompt may use, each a question with its reply. Default: all for the
    /// rules, and `history` utterances for the prompt.
    #[field(range = 1..=10_000, unset = "all")]
    pub turns: Option<usize>,
    /// Maximum length of each history utterance, in characters.
    #[field(default = 600, range = 1..=1_000_000)]
    pub characters: usize,
    /// Maximum number of words in a rewritten question; a longer one is discarded.
    #[field(default = 80, range = 1..=10_000)]
    pub words: usize,
    /// Whether rules run first and the model is called only for references that they leave unresolved.
    #[field(default)]
    pub rules: bool,
    /// Sampling settings. Omitted fields use the model's own settings.
    #[field(default)]
    pub sampling: SamplingFields,
}

impl OperatorConfig for RewriteConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.sampling("sampling", &self.sampling);
        Template::check(self.prompt.as_ref(), "prompt", PLACES, check);
        if let Some(examples) = &self.examples {
            check.text("examples", examples);
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::Generate }]
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let generator = generator(models, &self.model, "Rewrite")?;
            let built_in = match self.form {
                Form::Plain => PLAIN,
                Form::Json => JSON,
            };
            let template = Template::load(self.prompt.as_ref(), built_in, PLACES)?;
            let examples = match &self.examples {
                Some(file) => std::fs::read_to_string(&file.path)
                    .map_err(|error| BuildError::File { path: file.path.clone(), reason: error.to_string() })?,
                None if self.form == Form::Plain => EXAMPLES.to_owned(),
                None => String::new(),
            };
            Ok(Arc::new(Rewrite { config: self.clone(), generator, template, examples: examples.trim().to_owned() }))
        })
    }
}

struct Rewrite {
    config: RewriteConfig,
    generator: Arc<dyn Generator>,
    template: Template,
    examples: String,
}

impl Operator for Rewrite {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let turn = &call.turn;
            if turn.history.is_empty() {
                return Ok(Value::Query(Query::new(turn.text.clone())));
            }
            let mut fallback = Query::new(turn.text.clone());
            if self.config.rules {
                match rewrite(&said(newest(turn, self.config.turns)), &turn.text, &Rules::default()) {
                    Rewritten::Standalone => return Ok(Value::Query(fallback)),
                    // A question that the rules surely resolved is complete.
                    Rewritten::Dependent { sentence: Some(sentence), .. } => {
                        return Ok(Value::Query(Query::new(sentence)));
                    }
                    Rewritten::Dependent { search, .. } => fallback = Query::asked(search, turn.text.clone()),
                }
            }
            let sampling = self.config.sampling.over(self.generator.sampling());
            let most = sampling.max_tokens;
            let reply = self.generator.generate(self.prompt(turn), sampling).await;
            let instead = if self.config.rules { "as rewritten by rules" } else { "as asked" };
            let query = match reply {
                // Of several lines, the first one is whole.
                Ok(Generation { finish: Finish::Length, text, .. })
                    if self.config.form == Form::Plain && text.trim().lines().count() < 2 =>
                {
                    call.warnings
                        .add(format!("the rewrite was cut at {most} tokens; the question is searched {instead}"));
                    fallback
                }
                Ok(generation) => {
                    match reply::read(&generation.text, self.config.form, &turn.text, self.config.words) {
                        Ok(Reply { text, standalone }) => Query { standalone, ..Query::new(text) },
                        Err(problem) => {
                            call.warnings.add(format!("{problem}; the question is searched {instead}"));
                            fallback
                        }
                    }
                }
                Err(error) => {
                    call.warnings.add(format!("no rewrite ({error}); the question is searched {instead}"));
                    fallback
                }
            };
            Ok(Value::Query(query))
        }
        .boxed()
    }
}

impl Rewrite {
    fn prompt(&self, turn: &Turn) -> Prompt {
        let utterances = self.config.history.min(newest(turn, self.config.turns).len());
        let history = conversation(turn, utterances, self.config.characters).join("\n");
        self.template.fill(&[
            ("question", self.template.question(&turn.text)),
            ("history", history.as_str().into()),
            ("examples", self.examples.as_str().into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{Scripted, call, operator};
    use crate::test_turn::turn;

    const PLAIN: &str = r#"(input: "turns", model: "llm")"#;
    const CUT: &str = r#"(input: "turns", model: "llm", sampling: (max_tokens: 1))"#;

    fn run(config: &str, model: &Arc<Scripted>, history: &[&str], text: &str) -> (String, Vec<String>) {
        let operator = operator::<RewriteConfig>(config, &model.models());
        match call(&operator, turn(history, text), Value::Turn) {
            (Value::Query(query), warnings) => (query.text.to_string(), warnings),
            (other, _) => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_model_sees_the_conversation_and_its_reply_is_the_query() {
        let model = Scripted::says("Rewritten query: \"When was Frank Herbert born?\"\n");
        let history = ["user: Who wrote Dune?", "agent: Frank Herbert."];
        assert_eq!(run(PLAIN, &model, &history, "When was he born?"), ("When was Frank Herbert born?".into(), vec![]));
        let asked = model.asked.lock()[0].0.plain();
        assert!(
            asked.contains("Example 2")
                && asked.contains("User: Who wrote Dune?\nAssistant: Frank Herbert.\nUser: When")
        );
    }

    #[test]
    fn the_query_keeps_the_class_of_a_reply() {
        let class = |config: &str, reply: &str, history: &[&str]| {
            let operator = operator::<RewriteConfig>(config, &Scripted::says(reply).models());
            let (Value::Query(query), _) = call(&operator, turn(history, "And he?"), Value::Turn) else { panic!() };
            query.standalone
        };
        let json = r#"(input: "turns", model: "llm", form: Json)"#;
        let (yes, no) =
            (r#"{"class": "standalone"}"#, r#"{"class": "non-standalone", "reworded version": "And Ada?"}"#);
        assert_eq!(class(json, yes, &["user: a"]), Some(true));
        assert_eq!(class(json, no, &["user: a"]), Some(false));
        // No class: the first turn, an unusable reply, and a reply in the other form.
        assert_eq!(class(json, yes, &[]), None);
        assert_eq!(class(json, r#"{"class": "non-standalone"}"#, &["user: a"]), None);
        assert_eq!(class(PLAIN, "And Ada?", &["user: a"]), None);
    }

    #[test]
    fn the_first_turn_costs_no_call() {
        let model = Scripted::fails();
        assert_eq!(run(PLAIN, &model, &[], "What is it?"), ("What is it?".into(), vec![]));
        assert_eq!(model.calls(), 0);
    }

    #[test]
    fn what_cannot_be_used_falls_back_with_a_note() {
        let json = r#"(input: "turns", model: "llm", form: Json)"#;
        for (config, model, note) in [
            (PLAIN, Scripted::fails(), "no rewrite (inference failed: out of order); "),
            (PLAIN, Scripted::says(" \n"), "no rewrite (the model gave no text: its reply is empty); "),
            (PLAIN, Scripted::says("?"), "the rewrite is empty; the question is searched as asked"),
            (CUT, Scripted::says("When was"), "the rewrite was cut at 1 tokens; the question is searched as asked"),
            (PLAIN, Scripted::says(&"word ".repeat(81)), "the rewrite has 81 words"),
            (PLAIN, Scripted::says("I'm sorry, I cannot help with that."), "the model refused to rewrite"),
            (json, Scripted::says("When was Herbert born?"), "the rewrite is not a JSON object"),
        ] {
            let (text, warnings) = run(config, &model, &["user: a"], "When was he born?");
            assert_eq!(text, "When was he born?");
            assert!(warnings.len() == 1 && warnings[0].starts_with(note), "{warnings:?} {note}");
        }
    }

    #[test]
    fn rules_go_first_and_are_fallen_back_to() {
        let config = r#"(input: "turns", model: "llm", rules: true)"#;
        let model = Scripted::fails();
        let history = ["user: Who directed Inception?", "agent: Christopher Nolan"];
        let (text, warnings) = run(config, &model, &history, "What other movies did he direct?");
        assert_eq!(text, "What other movies did Christopher Nolan direct?");
        assert_eq!((model.calls(), warnings.len()), (0, 0));
        let (text, warnings) = run(config, &model, &["user: What is a savings bond?"], "And fees?");
        assert_eq!(text, "And fees? savings bond");
        assert!(warnings[0].ends_with("the question is searched as rewritten by rules"));
    }

    #[test]
    fn a_prompt_of_ones_own_is_checked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "Reword: {question} {passages}").unwrap();
        let config = format!(r#"(input: "turns", model: "llm", prompt: {:?})"#, file.path());
        let config: RewriteConfig = turnflow_engine::spec::from_str(&config).unwrap();
        let error = turnflow_engine::component::build_alone(&config, "test", &Scripted::fails().models())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("`{passages}` is not a placeholder of this prompt"), "{error}");
    }
}
