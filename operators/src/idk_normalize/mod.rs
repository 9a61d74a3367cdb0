//! One way of not knowing: Answers → Answers.
//!
//! ```ron
//! IdkNormalize(input: "answer", sentence: "I do not know.", min_support: Some(0.3))
//! ```
//!
//! Prefixes that models put before an answer are taken off; an answer that says in any of
//! the known ways that it does not know becomes the configured sentence, with the status
//! `idk`; so does an empty one, and one that its passages support less than `min_support`
//! (TechSSN, the normalisation after generation; RAGTUM answers the same way when no passage
//! is left).
//!
//! With `confidence`, what `Evidence` measured is weighed to the probability that the question
//! can be answered, which goes to `checks.confidence`; an answer below the threshold becomes the
//! sentence too. `turnflow calibrate` learns the weights and the threshold on labelled tasks.
//!
//! With `judge`, a language model is asked about answers that the rules cannot decide: those
//! that speak of something missing without beginning so, or that begin so and go on (MTRAG,
//! appendix F.3: yes, partial or no). `yes` is not knowing; `partial` stays an answer; what it
//! said is in `checks.idk`. If it fails or cannot be understood the answer stands, with a note.
//! The judge's prompt has the places `{question}` and `{answer}`. Cost: a call for such answers.

mod confidence;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use regex::Regex;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Call, Capability, Check, InputPort, ModelUse, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind,
};
use turnflow_engine::language::{Generator, SamplingFields};
use turnflow_engine::record::{Answer, PortType, Status, Value};
use turnflow_engine::spec::{FilePath, from_tree};

pub use confidence::Confidence;
pub use rules::{IdkRules, Said, label};
use rules::{default_patterns, default_phrases, default_prefixes};

use crate::models::generator;
use crate::template::Template;

/// The table's entry.
pub const KIND: OperatorKind = OperatorKind {
    name: "IdkNormalize",
    inputs: &[InputPort::one(PortType::Answers)],
    output: PortType::Answers,
    summary: "prefixes taken off, and every way of not knowing brought to one sentence",
    parse: |tree, sources| Ok(Box::new(from_tree::<IdkNormalizeConfig>(tree, sources)?)),
};

/// Fields of `IdkNormalize`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdkNormalizeConfig {
    /// The node that gives answers.
    #[serde(rename = "input")]
    _input: String,
    /// What is said instead of an answer.
    #[serde(default = "default_sentence")]
    pub sentence: String,
    /// Taken off the front of an answer, letter case aside. Default: `Answer:` and its like.
    #[serde(default = "default_prefixes")]
    pub prefixes: Vec<String>,
    /// Regular expressions of what is taken off the front as well. Default: `Based on the
    /// sources,` and its like.
    #[serde(default = "default_patterns")]
    pub patterns: Vec<String>,
    /// An answer that begins with one of these, and does not go on with `but` or `however`, does
    /// not know. Letter case and punctuation aside.
    #[serde(default = "default_phrases")]
    pub phrases: Vec<String>,
    /// Least support (a cosine, −1 to 1) by the passages, where it is measured. Default: any.
    #[serde(default)]
    pub min_support: Option<f32>,
    /// How evidence is weighed, and how much there must be: what `turnflow calibrate` writes.
    /// Default: evidence is not looked at.
    #[serde(default)]
    pub confidence: Option<Confidence>,
    /// The model that decides where the rules cannot. Default: none, and such answers stand.
    #[serde(default)]
    pub judge: Option<String>,
    /// A file with the judge's prompt. Default: `operators/prompts/idk_judge.txt`.
    #[serde(default)]
    pub prompt: Option<FilePath>,
    /// How the judge generates; what is left out is the model's own.
    #[serde(default)]
    pub sampling: SamplingFields,
}

/// The places of the judge's prompt.
pub const PLACES: &[&str] = &["answer", "question"];
/// The judge's prompt.
pub const PROMPT: &str = include_str!("../../prompts/idk_judge.txt");

/// What an answer was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Knows,
    DoesNotKnow,
    Undecided,
}

fn default_sentence() -> String {
    "I do not know: the documents do not say.".into()
}

impl OperatorConfig for IdkNormalizeConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.sentence.trim().is_empty() {
            check.error("wrong-value", "sentence", "the sentence is empty");
        }
        if let Some(support) = self.min_support {
            check.range("min_support", support, -1.0, 1.0);
        }
        for pattern in &self.patterns {
            if let Err(error) = Regex::new(pattern) {
                check.error("wrong-value", "patterns", format!("`{pattern}` is no regular expression: {error}"));
            }
        }
        if let Some(confidence) = &self.confidence {
            if !(0.0..=1.0).contains(&confidence.threshold) {
                check.error("out-of-range", "confidence", "the threshold is a probability, 0 to 1");
            }
            if confidence.weights.values().chain([&confidence.bias]).any(|value| !value.is_finite()) {
                check.error("out-of-range", "confidence", "weights and bias are finite numbers");
            }
        }
        check.sampling("sampling", &self.sampling);
        Template::check(self.prompt.as_ref(), "prompt", PLACES, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let judge = self.judge.as_deref();
        judge.map(|name| ModelUse { field: "judge", name, capability: Capability::Generate }).into_iter().collect()
    }

    fn explain(&self) -> String {
        let least = self.min_support.map_or("any".to_owned(), |support| support.to_string());
        let (prefixes, phrases) = (self.prefixes.len(), self.phrases.len());
        let judge = self.judge.as_deref().unwrap_or("none");
        let confidence = self.confidence.as_ref().map_or("none".to_owned(), |confidence| {
            format!("{} signals, threshold {}", confidence.weights.len(), confidence.threshold)
        });
        format!(
            "sentence: {:?}, min_support: {least}, confidence: {confidence}, {prefixes} prefixes, {phrases} phrases, \
             judge: {judge}",
            self.sentence
        )
    }

    fn build(&self, models: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        let judge = match &self.judge {
            Some(model) => {
                Some((generator(models, model, "IdkNormalize")?, Template::load(self.prompt.as_ref(), PROMPT, PLACES)?))
            }
            None => None,
        };
        Ok(Arc::new(IdkNormalize::new(self.clone(), judge)))
    }
}

struct IdkNormalize {
    config: IdkNormalizeConfig,
    rules: IdkRules,
    judge: Option<(Arc<dyn Generator>, Template)>,
}

impl Operator for IdkNormalize {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let answer = call.answer(0)?;
            let (mut answer, verdict) = self.normalize(answer);
            if let Some(confidence) = &self.config.confidence {
                let (probability, missing) = confidence.of(&answer);
                if !missing.is_empty() {
                    call.warnings.add(format!("no evidence of {}", missing.join(", ")));
                }
                answer.checks.insert("confidence".into(), ((probability * 1e6).round() / 1e6).into());
                if probability < confidence.threshold && answer.status != Status::Idk {
                    return Ok(Value::Answer(Arc::new(self.idk(answer))));
                }
            }
            if let (Verdict::Undecided, Some((judge, template))) = (verdict, &self.judge) {
                let said = template.quoted(answer.text.trim());
                let places = [("question", template.question(&answer.query.text)), ("answer", (&*said).into())];
                let sampling = self.config.sampling.over(judge.sampling());
                let said = judge.generate(template.fill(&places), sampling).await;
                match said.map(|generation| label(&generation.text)) {
                    Ok(Some(label)) => {
                        answer.checks.insert("idk".into(), label.into());
                        if label == "yes" {
                            answer = self.idk(answer);
                        }
                    }
                    Ok(None) => call.warnings.add("whether the answer knows was not judged: the reply names no label"),
                    Err(error) => call.warnings.add(format!("whether the answer knows was not judged ({error})")),
                }
            }
            Ok(Value::Answer(Arc::new(answer)))
        }
        .boxed()
    }
}

impl IdkNormalize {
    fn new(config: IdkNormalizeConfig, judge: Option<(Arc<dyn Generator>, Template)>) -> Self {
        let rules = IdkRules::of(config.prefixes.clone(), &config.patterns, &config.phrases);
        Self { config, rules, judge }
    }

    fn idk(&self, answer: Answer) -> Answer {
        Answer { text: self.config.sentence.as_str().into(), status: Status::Idk, ..answer }
    }

    fn normalize(&self, answer: &Answer) -> (Answer, Verdict) {
        let text = self.rules.plain(&answer.text);
        let unsupported = match (answer.support, self.config.min_support) {
            (Some(support), Some(least)) => support < least,
            _ => false,
        };
        if answer.status == Status::Idk || unsupported || text.is_empty() || self.rules.gives_up(text) {
            return (self.idk(answer.clone()), Verdict::DoesNotKnow);
        }
        let verdict = if self.rules.is_undecided(text) { Verdict::Undecided } else { Verdict::Knows };
        (Answer { text: text.into(), ..answer.clone() }, verdict)
    }
}
