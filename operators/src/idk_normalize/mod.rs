//! Normalises IDK answers: Answers → Answers.
//!
//! ```ron
//! IdkNormalize(input: "answer", sentence: "I do not know.", min_support: Some(0.3))
//! ```
//!
//! Removes prefixes that models put before an answer. An answer becomes the configured sentence with the status `idk`
//! if it matches one of the known phrases for not knowing, if it is empty, or if its passages support it less than
//! `min_support` (TechSSN, the normalisation after generation; RAGTUM answers the same way when no passage is left).
//!
//! With `ambiguous`, an answer that says in part that it does not know becomes the sentence too, and with `hedges` an
//! answer that doubts itself (TechSSN, section 3.11: answers that are ambiguous, or of low confidence).
//!
//! With `confidence`, the signals of `Evidence` are weighed to the probability that the question can be answered, which
//! is written to `checks.confidence`. An answer below the threshold becomes the sentence too. `turnflow calibrate`
//! learns the weights and the threshold from labelled tasks.
//!
//! With `judge`, a language model judges answers that the rules cannot decide: those that mention something missing
//! without starting with a phrase, and those that start with a phrase but continue (MTRAG, appendix F.3: yes, partial
//! or no). `yes` means that the answer is IDK; `partial` remains an answer; the verdict is written to `checks.idk`. If
//! the call fails or the reply cannot be parsed, the answer is kept, with a warning. The judge's prompt has the
//! placeholders `{question}` and `{answer}`. Cost: one model call for each such answer.

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
    BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, TextEffect, built_at_once,
};
use turnflow_engine::language::{Generator, SamplingFields};
use turnflow_engine::record::{Answer, PortType, Status, Value};
use turnflow_engine::spec::{FilePath, from_tree};

pub use confidence::Confidence;
pub use rules::{IdkRules, Said, label};
use rules::{Phrases, default_patterns, default_phrases, default_prefixes};

use crate::models::generator;
use crate::template::Template;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind {
    name: "IdkNormalize",
    inputs: &[InputPort::one(PortType::Answers)],
    output: PortType::Answers,
    summary: "answers without prefixes, and with one sentence for IDK",
    parse: |tree, sources| Ok(Box::new(from_tree::<IdkNormalizeConfig>(tree, sources)?)),
};

/// Fields of `IdkNormalize`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdkNormalizeConfig {
    /// Input node that produces answers.
    #[serde(rename = "input")]
    _input: String,
    /// The sentence that replaces an IDK answer. Default `I do not know: the documents do not say.`
    #[serde(default = "default_sentence")]
    pub sentence: String,
    /// Prefixes to remove from the start of an answer, ignoring letter case. Default: `Answer:` and similar labels.
    #[serde(default = "default_prefixes")]
    pub prefixes: Vec<String>,
    /// Regular expressions of prefixes to remove as well. Default: one that matches `Based on the sources,` and similar
    /// introductions.
    #[serde(default = "default_patterns")]
    pub patterns: Vec<String>,
    /// Phrases of IDK answers. An answer that starts with one of them, and does not continue with `but` or `however`,
    /// is IDK. Letter case and punctuation are ignored.
    #[serde(default = "default_phrases")]
    pub phrases: Vec<String>,
    /// Whether an answer is IDK too if it has a phrase of several words anywhere, and answers the rest. Default false.
    #[serde(default)]
    pub ambiguous: bool,
    /// Phrases of low confidence. An answer that has one of them anywhere is IDK. Letter case and punctuation are
    /// ignored. Default: none.
    #[serde(default)]
    pub hedges: Vec<String>,
    /// Minimum support by the passages, where it is measured (a cosine, −1 to 1). Default: no minimum.
    #[serde(default)]
    pub min_support: Option<f32>,
    /// Weights, bias and threshold for evidence, as `turnflow calibrate` writes them. Default: evidence is ignored.
    #[serde(default)]
    pub confidence: Option<Confidence>,
    /// The model that judges answers that the rules cannot decide. Default: none; such answers are kept.
    #[serde(default)]
    pub judge: Option<String>,
    /// File with the judge's prompt. Default: `operators/prompts/idk_judge.txt`.
    #[serde(default)]
    pub prompt: Option<FilePath>,
    /// Sampling settings of the judge. Omitted fields use the model's own settings.
    #[serde(default)]
    pub sampling: SamplingFields,
}

/// The placeholders of the judge's prompt.
pub const PLACES: &[&str] = &["answer", "question"];
/// The judge's built-in prompt.
pub const PROMPT: &str = include_str!("../../prompts/idk_judge.txt");

/// The verdict on an answer.
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
        if self.hedges.iter().any(|hedge| !hedge.contains(char::is_alphanumeric)) {
            check.error("wrong-value", "hedges", "a phrase has no words");
        }
        for pattern in &self.patterns {
            if let Err(error) = Regex::new(pattern) {
                check.error("wrong-value", "patterns", format!("`{pattern}` is not a regular expression: {error}"));
            }
        }
        if let Some(confidence) = &self.confidence {
            if !(0.0..=1.0).contains(&confidence.threshold) {
                check.error("out-of-range", "confidence", "the threshold must be a probability, 0 to 1");
            }
            if confidence.weights.values().chain([&confidence.bias]).any(|value| !value.is_finite()) {
                check.error("out-of-range", "confidence", "weights and bias must be finite numbers");
            }
        }
        check.sampling("sampling", &self.sampling);
        Template::check(self.prompt.as_ref(), "prompt", PLACES, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let judge = self.judge.as_deref();
        judge.map(|name| ModelUse { field: "judge", name, capability: Capability::Generate }).into_iter().collect()
    }

    fn text_effect(&self) -> TextEffect {
        // These read the whole text, or other values than the text.
        let reads_all = self.ambiguous || !self.hedges.is_empty() || self.judge.is_some() || self.confidence.is_some();
        if reads_all || self.min_support.is_some() {
            return TextEffect::Whole;
        }
        let rules = IdkRules::of(self.prefixes.clone(), &self.patterns, &self.phrases);
        TextEffect::Beginning(Arc::new(move |text| rules.certain(text).to_owned()))
    }

    fn explain(&self) -> String {
        let least = self.min_support.map_or("any".to_owned(), |support| support.to_string());
        let (prefixes, phrases, hedges) = (self.prefixes.len(), self.phrases.len(), self.hedges.len());
        let judge = self.judge.as_deref().unwrap_or("none");
        let confidence = self.confidence.as_ref().map_or("none".to_owned(), |confidence| {
            format!("{} signals, threshold {}", confidence.weights.len(), confidence.threshold)
        });
        format!(
            "sentence: {:?}, min_support: {least}, confidence: {confidence}, {prefixes} prefixes, {phrases} phrases, \
             ambiguous: {}, {hedges} hedges, judge: {judge}",
            self.sentence, self.ambiguous
        )
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let judge = match &self.judge {
                Some(model) => Some((
                    generator(models, model, "IdkNormalize")?,
                    Template::load(self.prompt.as_ref(), PROMPT, PLACES)?,
                )),
                None => None,
            };
            Ok(Arc::new(IdkNormalize::new(self.clone(), judge)))
        })
    }
}

struct IdkNormalize {
    config: IdkNormalizeConfig,
    rules: IdkRules,
    hedges: Phrases,
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
                    call.warnings.add(format!("missing evidence: {}", missing.join(", ")));
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
                    Ok(None) => call.warnings.add("the answer was not judged: the reply has no label"),
                    Err(error) => call.warnings.add(format!("the answer was not judged ({error})")),
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
        let hedges = Phrases::new(&config.hedges);
        Self { config, rules, hedges, judge }
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
        let is_unsure = |text| {
            self.rules.gives_up(text)
                || (self.config.ambiguous && self.rules.says(text) != Said::All)
                || self.hedges.occur_in(text)
        };
        if answer.status == Status::Idk || unsupported || text.is_empty() || is_unsure(text) {
            return (self.idk(answer.clone()), Verdict::DoesNotKnow);
        }
        let verdict = if self.rules.is_undecided(text) { Verdict::Undecided } else { Verdict::Knows };
        (Answer { text: text.into(), ..answer.clone() }, verdict)
    }
}
