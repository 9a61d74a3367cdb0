//! Decomposes a question into simpler ones: Queries → Queries.
//!
//! ```ron
//! Decompose(input: "query", model: Some("llm"), most: 4)
//! ```
//!
//! PolyU's first step (section 2.3.3): sub-questions in the order in which they are to be answered, each searched
//! separately. A simple question stays whole. If a model is configured, it writes the sub-questions. Without a model,
//! or if its reply is unusable (which adds a warning), rules decompose the question. The rules handle several questions
//! in one, "who … and when …", comparisons ("the difference between X and Y", "X or Y"), and relative clauses ("the
//! actor who played Iron Man"), which are asked first. The whole question is one of the parts if it is needed to find
//! text that compares or joins them.
//!
//! Prompt placeholders: `{question}` and `{most}`. The same query gives the same parts if the model returns the same
//! text. Cost: one model call per turn if a model is configured; retrievers then search once for each part.

mod rules;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, built_at_once, config,
};
use turnflow_engine::language::{Finish, Generator, SamplingFields};
use turnflow_engine::record::{PortType, Query, Value};
use turnflow_engine::spec::FilePath;

use crate::models::generator;
use crate::reply::{clean, lines, strip};
use crate::template::Template;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<DecomposeConfig>(
    "Decompose",
    &[InputPort::one(PortType::Queries)],
    PortType::Queries,
    "a question split into simpler sub-questions",
);

const PLACES: &[&str] = &["question", "most"];
const PROMPT: &str = include_str!("../../prompts/decompose.txt");
/// Maximum number of words in a sub-question. Longer lines are not questions.
const LONGEST: usize = 60;

/// Fields of `Decompose`.
#[config]
pub struct DecomposeConfig {
    /// Input node that produces queries.
    _input: String,
    /// The model that decomposes questions. Default: none; rules decompose them.
    #[field(unset = "none (by rules)")]
    pub model: Option<String>,
    /// Maximum number of sub-questions.
    #[field(default = 4, range = 2..=100)]
    pub most: usize,
    /// Prompt file. Default: `operators/prompts/decompose.txt`.
    #[field(unset = "built-in")]
    pub prompt: Option<FilePath>,
    /// Sampling settings. Omitted fields use the model's own settings.
    #[field(default)]
    pub sampling: SamplingFields,
}

impl OperatorConfig for DecomposeConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.sampling("sampling", &self.sampling);
        Template::check(self.prompt.as_ref(), "prompt", PLACES, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let model = self.model.as_deref();
        model.map(|name| ModelUse { field: "model", name, capability: Capability::Generate }).into_iter().collect()
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let model = match &self.model {
                Some(model) => Some((
                    generator(models, model, "Decompose")?,
                    Template::load(self.prompt.as_ref(), PROMPT, PLACES)?,
                )),
                None => None,
            };
            Ok(Arc::new(Decompose { config: self.clone(), model }))
        })
    }
}

struct Decompose {
    config: DecomposeConfig,
    model: Option<(Arc<dyn Generator>, Template)>,
}

impl Operator for Decompose {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let query = call.query(0)?;
            let mut parts = None;
            if let Some((model, template)) = &self.model {
                let most = self.config.most.to_string();
                let places = [("question", template.question(&query.text)), ("most", most.as_str().into())];
                let sampling = self.config.sampling.over(model.sampling());
                match model.generate(template.fill(&places), sampling).await {
                    Ok(generation) => {
                        let text = match generation.finish {
                            Finish::Stop => generation.text.as_str(),
                            // The last line is not whole.
                            Finish::Length => {
                                generation.text.trim_end().rsplit_once('\n').map_or("", |(whole, _)| whole)
                            }
                        };
                        parts = read(text);
                        if parts.is_none() {
                            call.warnings.add("the sub-questions could not be parsed; rules were used");
                        }
                    }
                    Err(error) => call.warnings.add(format!("no sub-questions ({error}); rules were used")),
                }
            }
            let mut parts = parts.unwrap_or_else(|| rules::parts(&query.text, self.config.most));
            parts.truncate(self.config.most);
            if parts.len() < 2 {
                parts.clear();
            }
            let parts = parts.into_iter().map(Into::into).collect();
            Ok(Value::Query(Query { parts, ..query.clone() }))
        }
        .boxed()
    }
}

/// Parses the sub-questions in a reply. Returns `None` if the reply is a refusal or holds no questions.
fn read(reply: &str) -> Option<Vec<String>> {
    let reply = clean(reply);
    let mut parts: Vec<String> = Vec::new();
    for line in lines(&reply) {
        let line = strip(line, &["question:", "sub-question:", "subquestion:"]);
        let refuses = ["i'm sorry", "i am sorry", "i cannot", "as an ai"];
        if line.split_whitespace().count() > LONGEST
            || refuses.iter().any(|start| line.to_lowercase().starts_with(start))
        {
            return None;
        }
        // Skips introductions such as "Here are the questions:".
        let says = line.chars().any(char::is_alphanumeric) && !line.ends_with(':');
        if says && !parts.iter().any(|part| part == line) {
            parts.push(line.to_owned());
        }
    }
    (!parts.is_empty()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{Scripted, call, operator};
    use crate::test_turn::turn;

    fn run(config: &str, model: &Arc<Scripted>, question: &str) -> (Vec<String>, usize) {
        let operator = operator::<DecomposeConfig>(config, &model.models());
        let (Value::Query(query), warnings) = call(&operator, turn(&[], "q"), Value::Query(Query::new(question)))
        else {
            panic!()
        };
        assert_eq!(&*query.text, question);
        (query.parts.iter().map(ToString::to_string).collect(), warnings.len())
    }

    const BOTH: &str = "Who built it and when did it open?";

    #[test]
    fn the_models_lines_are_the_parts() {
        let config = r#"(input: "query", model: Some("llm"), most: 2)"#;
        let rules = vec!["Who built it".to_owned(), "when did it open?".to_owned()];
        for (model, want, warnings) in [
            (
                Scripted::says("Here they are:\n1. Who built it?\n2. \"When?\"\n3. Why?"),
                vec!["Who built it?".into(), "When?".into()],
                0,
            ),
            (Scripted::says(BOTH), vec![], 0),
            (Scripted::says("I'm sorry, no."), rules.clone(), 1),
            (Scripted::says(""), rules.clone(), 1),
            (Scripted::fails(), rules, 1),
        ] {
            assert_eq!(run(config, &model, BOTH), (want, warnings));
        }
    }

    #[test]
    fn without_a_model_rules_do() {
        let model = Scripted::fails();
        assert_eq!(run(r#"(input: "query")"#, &model, BOTH).0.len(), 2);
        assert_eq!(run(r#"(input: "query")"#, &model, "Who built it?").0, Vec::<String>::new());
        assert_eq!(model.calls(), 0);
    }
}
