//! Generates an answer from passages with a language model: Hits or Prompts → Answers.
//!
//! ```ron
//! Generate(input: "kept", model: "llm", style: Grounded, passages: 5, history: 0)
//! ```
//!
//! Given hits, this operator builds the prompt from the query and the first passages (RAGTUM, section 4.4: the
//! rewritten query and the retrieved passages; MTRAG, appendix D.2: fewer than 150 words, grounded in the documents,
//! and a set phrase if they hold no answer). `style: Anchor` is TechSSN's anchor prompting (section 3.10), which uses 3
//! passages. Given a prompt (from `Prompt`), this operator sends it unchanged and ignores the fields that build
//! prompts.
//!
//! Without passages it calls no model and answers with the sentence `idk` (RAGTUM, section 4.4), unless
//! `without_passages: Ask` is set. If the model replies with that sentence, the status is `idk` too. Citations `[n]`
//! are checked: a citation of a passage that does not exist is removed with a warning, and the cited passages are
//! listed in `checks.citations`. An answer that reached the model's limit of tokens is marked in `checks.finish`. The
//! answer's hits are the prompt's passages that fit the model. If the model fails, or replies without a text, the turn
//! fails. Cost: one model call per turn.
//!
//! If the caller asks for a form, the answer is the model's reply, word for word, and `checks.form` says so.

mod draft;
mod form;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, json};
use turnflow_engine::component::{
    BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, ScoreUse, built_at_once, config,
};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Finish, Generator, Prompt, Sampling, SamplingFields};
use turnflow_engine::record::{Answer, Hit, PortType, Query, Status, Value};
use turnflow_engine::spec::FilePath;

use crate::models::generator;
use crate::passages::Length;
use crate::prompting::{self, Builder, Question, Style};
use crate::reply::{clean, strip, unquote};
use crate::template::Template;
use crate::{citations, words};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<GenerateConfig>(
    "Generate",
    &[InputPort::one(PortType::Hits).or(PortType::Prompts)],
    PortType::Answers,
    "an answer from a language model, with checked citations",
);

/// Labels at the end of prompts that models repeat at the start of a reply.
pub(crate) const LABELS: &[&str] = &["short answer:", "answer:", "assistant:"];

/// Fields of `Generate`.
#[config]
pub struct GenerateConfig {
    /// Input node that produces hits or prompts.
    _input: String,
    /// The model that writes the answer.
    pub model: String,
    /// Instruction for the model, if the input is hits: `Grounded`, `Anchor` or `Span`.
    #[field(default = Style::Grounded)]
    pub style: Style,
    /// Prompt file to use instead of `style`, with the placeholders `{question}`, `{passages}`, `{history}` and
    /// `{idk}`. Default: none.
    pub prompt: Option<FilePath>,
    /// Maximum number of passages in the prompt, best first.
    #[field(default = 5, range = 1..=1000)]
    pub passages: usize,
    /// Maximum length of each passage, in characters. Default: limited only by the model's context.
    #[field(range = 1..=1_000_000, unset = "all")]
    pub characters: Option<usize>,
    /// Fields of the passages' metadata to show before their texts, such as `["date", "source"]`.
    #[field(default)]
    pub metadata: Vec<String>,
    /// The question in the prompt, if the input is hits: `Searched` (default), the question as a rewriter says
    /// it, or `Asked`, the user's own words.
    #[field(default)]
    pub question: Question,
    /// Number of newest history utterances to include in the prompt.
    #[field(default)]
    pub history: usize,
    /// Maximum length of each history utterance, in characters.
    #[field(default = 600, range = 1..=1_000_000)]
    pub history_characters: usize,
    /// The answer if the passages do not answer the question. Default `I do not know.`
    #[field(default = "I do not know.")]
    pub idk: String,
    /// How to treat a turn without passages: `Idk` (default) answers with `idk`; `Ask` calls the model.
    #[field(default)]
    pub without_passages: WithoutPassages,
    /// Maximum number of words to keep from the answer's first line, for span answers. Default: the whole answer.
    #[field(range = 1..=10_000, unset = "all")]
    pub words: Option<usize>,
    /// Sampling settings. Omitted fields use the model's own settings.
    #[field(default)]
    pub sampling: SamplingFields,
}

/// How to treat a turn without passages.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum WithoutPassages {
    /// Answers with the sentence of `idk` and calls no model.
    #[default]
    Idk,
    /// Calls the model, which may reply that it does not know (MTRAG, section 6.1).
    Ask,
}

impl OperatorConfig for GenerateConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn takes_format(&self) -> bool {
        // A span is not a whole reply.
        self.words.is_none()
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.idk.trim().is_empty() {
            check.error("wrong-value", "idk", "the sentence is empty");
        }
        check.sampling("sampling", &self.sampling);
        Template::check(self.prompt.as_ref(), "prompt", prompting::PLACES, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::Generate }]
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let generator = generator(models, &self.model, "Generate")?;
            let builder = Builder {
                template: self.style.template(self.prompt.as_ref())?,
                passages: self.passages,
                length: self.characters.map_or(Length::Whole, Length::Characters),
                metadata: self.metadata.clone(),
                question: self.question,
                history: self.history,
                history_characters: self.history_characters,
                idk: self.idk.clone(),
            };
            Ok(Arc::new(Generate { config: self.clone(), generator, builder }))
        })
    }
}

struct Generate {
    config: GenerateConfig,
    generator: Arc<dyn Generator>,
    builder: Builder,
}

impl Operator for Generate {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let (query, mut hits, prompt) = match call.inputs.first() {
                Some(Value::Prompt(made)) => (made.query.clone(), made.hits.clone(), made.prompt.clone()),
                _ => {
                    let hits = call.hits(0)?;
                    let kept = hits.hits[..hits.hits.len().min(self.config.passages)].to_vec();
                    let prompt = self.builder.prompt(&call.turn, hits.query.question(), &kept)?;
                    (hits.query.clone(), kept, prompt)
                }
            };
            if let Some(format) = &call.format {
                let sampling = Sampling {
                    format: Some((**format).clone()),
                    ..self.config.sampling.over(self.generator.sampling())
                };
                return self.formed(&call, query, hits, prompt, sampling).await;
            }
            if hits.is_empty() && self.config.without_passages == WithoutPassages::Idk {
                return Ok(self.answer(query, &self.config.idk, Status::Idk, hits, Map::new()));
            }
            let sampling = self.config.sampling.over(self.generator.sampling());
            let most = sampling.max_tokens;
            let form = Form { words: self.config.words, idk: plain(&self.config.idk) };
            let stream = draft::streamed(call.stream.clone(), form.clone(), hits.len());
            let generation = self.generator.generate_streamed(prompt, sampling, stream).await?;
            let mut checks = Map::new();
            if generation.finish == Finish::Length && self.config.words.is_none() {
                checks.insert("finish".into(), json!(generation.finish));
                call.warnings.add(format!("the answer was cut at {most} tokens"));
            }
            if generation.cut > 0 {
                call.warnings.add(format!("the last {} passages were cut to fit the model", generation.cut));
            }
            if let Some(doubt) = &generation.doubt {
                checks.insert("finish".into(), json!("unknown"));
                call.warnings.add(format!("the answer may be wrong or cut: {doubt}"));
            }
            // The model did not see the passages that did not fit.
            hits.truncate(hits.len().saturating_sub(generation.left_out));
            let cited = form.answer(&generation.text, hits.len());
            for number in &cited.removed {
                call.warnings.add(format!("removed citation [{number}]: no such passage"));
            }
            let text = cited.text.trim();
            if text.is_empty() && cited.removed.is_empty() {
                return Err(InferenceError::NoText("its reply is a label without an answer".to_owned()).into());
            }
            let status = if says_idk(text, &self.config.idk) { Status::Idk } else { Status::Answered };
            checks.insert("citations".into(), json!(cited.passages));
            // Only short answers name their evidence beside the answer.
            let named = self.config.words.and_then(|_| named_evidence(&generation.text));
            checks.extend(named.map(|evidence| (EVIDENCE.to_owned(), evidence.into())));
            Ok(self.answer(query, text, status, hits, checks))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + call.weight_of_passages(self.config.passages)
    }
}

impl Generate {
    /// A reply of the form that the caller asks for, word for word. The model is asked without passages, too: only it can give
    /// the form.
    async fn formed(
        &self,
        call: &Call,
        query: Query,
        mut hits: Vec<Hit>,
        mut prompt: Prompt,
        sampling: Sampling,
    ) -> Result<Value, OperatorError> {
        let is_object = form::is_object(&sampling);
        if is_object {
            form::ask_for_object(&mut prompt, &call.turn);
        }
        let written = self.generator.generate_streamed(prompt, sampling, call.stream.clone()).await;
        let generation = written.map_err(form::refused)?;
        hits.truncate(hits.len().saturating_sub(generation.left_out));
        let mut checks = Map::from_iter([(FORM.to_owned(), json!("json"))]);
        let text = generation.text.trim();
        if generation.finish == Finish::Length {
            checks.insert("finish".into(), json!(generation.finish));
        } else {
            form::check(text, is_object)?;
        }
        Ok(self.answer(query, text, Status::Answered, hits, checks))
    }
}

/// How a model's text becomes an answer.
#[derive(Clone, Debug)]
struct Form {
    /// Maximum number of words of the first line.
    words: Option<usize>,
    /// The plain words of the sentence for an answer that does not know.
    idk: String,
}

impl Form {
    fn labels(&self) -> &'static [&'static str] {
        LABELS
    }

    fn unlabelled<'t>(&self, text: &'t str) -> &'t str {
        strip(text, LABELS)
    }

    /// The answer in a model's text, with its citations of passages 1 to `passages`.
    fn answer(&self, text: &str, passages: usize) -> citations::Cited {
        let text = clean(text);
        let text = self.unlabelled(&text);
        citations::check(self.words.map_or(text, |most| span(text, most)), passages)
    }
}

impl Generate {
    fn answer(
        &self,
        query: Query,
        text: &str,
        status: Status,
        hits: Vec<Hit>,
        checks: Map<String, serde_json::Value>,
    ) -> Value {
        Value::Answer(Arc::new(Answer { query, text: text.into(), status, hits, support: None, checks }))
    }
}

/// Whether the answer is only the `idk` sentence, ignoring punctuation and letter case.
pub(crate) fn says_idk(text: &str, idk: &str) -> bool {
    let text = plain(&citations::without(text));
    text.is_empty() || text == plain(idk)
}

/// The words of a text in lower case, separated by spaces.
fn plain(text: &str) -> String {
    words::words(text).iter().map(|word| words::lower(word.text)).collect::<Vec<_>>().join(" ")
}

/// The check of an answer that has the form for which its caller has asked: later nodes leave its text alone.
pub(crate) const FORM: &str = "form";

/// The check with the evidence that a model named for a short answer.
pub(crate) const EVIDENCE: &str = "evidence";

/// The evidence that a model names after a short answer: the rest of a line that begins with `Evidence:` or
/// `[Evidence]`.
pub(crate) fn named_evidence(text: &str) -> Option<String> {
    let of = |line: &str| {
        let line = line.trim().trim_start_matches(['*', '-', '#', ' ']);
        let label = ["evidence:", "[evidence]", "evidence**:", "evidence span:"]
            .into_iter()
            .find(|label| line.get(..label.len()).is_some_and(|start| start.eq_ignore_ascii_case(label)))?;
        let evidence = unquote(line[label.len()..].trim_start_matches(['*', ':', ' ']));
        (!evidence.is_empty()).then(|| evidence.to_owned())
    };
    clean(text).lines().find_map(of)
}

/// The first `most` words of the first line.
pub(crate) fn span(text: &str, most: usize) -> &str {
    let line = text.lines().next().unwrap_or_default().trim();
    let ends = line.match_indices(char::is_whitespace).map(|(at, _)| at);
    // Consecutive spaces would count as words.
    let mut words = 0;
    let mut last = 0;
    for end in ends.chain([line.len()]) {
        words += usize::from(!line[last..end].trim().is_empty());
        last = end;
        if words == most {
            break;
        }
    }
    line[..last].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{Scripted, call, hits, operator};
    use crate::test_turn::turn;

    fn run(config: &str, model: &Arc<Scripted>, input: Value) -> (Answer, Vec<String>) {
        let operator = operator::<GenerateConfig>(config, &model.models());
        match call(&operator, turn(&["user: first", "agent: second"], "asked"), input) {
            (Value::Answer(answer), warnings) => (Answer::clone(&answer), warnings),
            (other, _) => panic!("{other:?}"),
        }
    }

    const CONFIG: &str = r#"(input: "hits", model: "llm", passages: 2)"#;

    #[test]
    fn evidence_beside_a_short_answer_is_kept_apart() {
        let model = Scripted::says("Short Answer: Paris\nEvidence: \"Paris it is.\"\nI hope that helps.");
        let (answer, _) =
            run(r#"(input: "hits", model: "llm", words: Some(5))"#, &model, hits("Where?", &["Paris it is."]));
        assert_eq!((&*answer.text, &answer.checks[EVIDENCE]), ("Paris", &serde_json::json!("Paris it is.")));
        let (answer, _) = run(CONFIG, &model, hits("Where?", &["Paris it is."]));
        assert!(answer.checks.get(EVIDENCE).is_none(), "a long answer may speak of evidence");
        for (text, want) in [
            ("1931\n**Evidence:** built in 1931", Some("built in 1931")),
            ("1931\n[Evidence] [2]", Some("[2]")),
            ("1931\nEvidence:", None),
            ("Evidence-based", None),
        ] {
            assert_eq!(named_evidence(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn the_question_is_as_it_was_searched_or_asked() {
        for (question, told) in [("Searched", "Where?"), ("Asked", "asked")] {
            let model = Scripted::says("There.");
            let config =
                format!(r#"(input: "hits", model: "llm", question: {question}, history: 2, history_characters: 3)"#);
            run(&config, &model, hits("Where?", &["Paris it is."]));
            let prompt = model.asked.lock()[0].0.plain();
            assert!(prompt.contains(&format!("Question: {told}")) && prompt.contains("Assistant: sec …"), "{prompt}");
        }
    }

    #[test]
    fn citations_are_checked_and_the_hits_are_the_prompts() {
        let model = Scripted::says("Answer: In Paris [1]. Or not [3].");
        let (answer, warnings) = run(CONFIG, &model, hits("Where?", &["Paris it is.", "Rome", "Oslo"]));
        assert_eq!((&*answer.text, answer.status, answer.hits.len()), ("In Paris [1]. Or not.", Status::Answered, 2));
        assert_eq!((answer.checks["citations"].to_string(), warnings.len()), ("[1]".into(), 1));
        let asked = model.asked.lock()[0].0.plain();
        assert!(asked.contains("[1] Paris it is.\n\n[2] Rome\n\nQuestion: Where?"), "{asked}");
    }

    #[test]
    fn the_hits_are_those_that_the_model_saw() {
        let mut model = Scripted::says("In Paris [1]. Or not [2].");
        Arc::get_mut(&mut model).unwrap().left_out = 1;
        let (answer, _) = run(CONFIG, &model, hits("Where?", &["Paris it is.", "Rome"]));
        assert_eq!((&*answer.text, answer.hits.len()), ("In Paris [1]. Or not.", 1));
    }

    #[test]
    fn without_passages_no_model_is_asked() {
        let model = Scripted::fails();
        let (answer, _) = run(CONFIG, &model, hits("Where?", &[]));
        assert_eq!((&*answer.text, answer.status, model.calls()), ("I do not know.", Status::Idk, 0));
    }

    #[test]
    fn the_set_sentence_is_not_knowing() {
        for (reply, status) in
            [("i do not know [1]", Status::Idk), ("[9]", Status::Idk), ("I do not know him.", Status::Answered)]
        {
            let (answer, _) = run(CONFIG, &Scripted::says(reply), hits("Where?", &["Paris"]));
            assert_eq!(answer.status, status, "{reply}");
        }
    }

    #[test]
    fn history_spans_and_cut_answers() {
        let config = r#"(input: "hits", model: "llm", style: Span, history: 1, words: Some(2))"#;
        let model = Scripted::says("Short Answer: in  Paris, of\ncourse");
        let (answer, _) = run(config, &model, hits("Where?", &["Paris"]));
        assert_eq!(&*answer.text, "in  Paris,");
        assert!(model.asked.lock()[0].0.plain().contains("Conversation so far:\nAssistant: second\n\nQuestion"));
        let config = r#"(input: "hits", model: "llm", style: Anchor, sampling: (max_tokens: 1))"#;
        let (answer, warnings) = run(config, &Scripted::says("Based on the sources, in"), hits("Where?", &["Paris"]));
        assert_eq!(answer.checks["finish"], "length");
        assert_eq!(warnings, ["the answer was cut at 1 tokens"]);
    }

    #[test]
    fn a_prompt_is_used_as_it_is() {
        let model = Scripted::says("x");
        let prompt = turnflow_engine::language::Prompt {
            messages: vec![turnflow_engine::language::Message::fixed(
                turnflow_engine::language::ChatRole::User,
                "made",
            )],
        };
        let Value::Hits(hits) = hits("q", &["a"]) else { panic!() };
        let made = turnflow_engine::record::PromptFor { query: hits.query.clone(), hits: hits.hits.clone(), prompt };
        let (answer, _) = run(CONFIG, &model, Value::Prompt(Arc::new(made)));
        assert_eq!((&*answer.text, model.asked.lock()[0].0.plain()), ("x", "made".into()));
    }
}
