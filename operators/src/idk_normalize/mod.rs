//! Normalises IDK answers: Answers → Answers.
//!
//! ```ron
//! IdkNormalize(input: "answer", sentence: "I do not know.", min_support: Some(0.3))
//! ```
//!
//! Removes prefixes that models put before an answer. An answer becomes the configured sentence with the status `idk`
//! if it declines, if it is empty or has nothing but citations, or if its passages support it less than `min_support`
//! or `min_shared` (TechSSN, the normalisation after generation; RAGTUM answers the same way when no passage is left).
//!
//! Whether it declines is read by the grammar of its clauses (`declines`), and by the configured phrases. With
//! `encoder`, a learned label corrects the rules: a logistic regression over the vectors of the answer's sentences.
//! A question back to the user is no IDK answer. Cost: one model input for each of the first 24 sentences.
//!
//! With `ambiguous`, an answer that says in part that it does not know becomes the sentence too, and with `hedges` an
//! answer that doubts itself (TechSSN, section 3.11: answers that are ambiguous, or of low confidence).
//!
//! With `confidence`, the signals of `Evidence` are weighed to the probability that the question can be answered, which
//! is written to `checks.confidence`. An answer below the threshold becomes the sentence too. `turnflow calibrate`
//! learns the weights and the threshold from labelled tasks.
//!
//! With `judge`, a language model judges answers that the rules cannot decide: those that mention something missing,
//! and those that decline in part (MTRAG, appendix F.3: yes, partial or no). `yes` means that the answer is IDK;
//! `partial` remains an answer; the verdict is written to `checks.idk`. If the call fails or the reply cannot be
//! parsed, the answer is kept, with a warning. The judge's prompt has the placeholders `{question}` and `{answer}`.
//! Cost: one model call for each such answer.

mod confidence;
mod rules;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use regex::Regex;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind, ScoreUse, TextEffect, config,
};
use turnflow_engine::inference::Embedder;
use turnflow_engine::language::{Generator, SamplingFields};
use turnflow_engine::record::{Answer, PortType, Status, Value};
use turnflow_engine::spec::FilePath;

pub use confidence::Confidence;
pub use rules::{IdkRules, label};
use rules::{Phrases, default_patterns, default_prefixes};

use crate::declines::{Head, Reader, Stance, prepare};
use crate::evidence::support;
use crate::generate::FORM;
use crate::models::{embedder, generator};
use crate::template::Template;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<IdkNormalizeConfig>(
    "IdkNormalize",
    &[InputPort::one(PortType::Answers)],
    PortType::Answers,
    "answers without prefixes, and with one sentence for IDK",
);

/// Fields of `IdkNormalize`.
#[config]
pub struct IdkNormalizeConfig {
    /// Input node that produces answers.
    _input: String,
    /// The sentence that replaces an IDK answer. Default `I do not know: the documents do not say.`
    #[field(default = "I do not know: the documents do not say.")]
    pub sentence: String,
    /// Prefixes to remove from the start of an answer, ignoring letter case. Default: `Answer:` and similar labels.
    #[field(default = default_prefixes())]
    pub prefixes: Vec<String>,
    /// Regular expressions of prefixes to remove as well. Default: one that matches `Based on the sources,` and similar
    /// introductions.
    #[field(default = default_patterns())]
    pub patterns: Vec<String>,
    /// Further phrases of IDK answers, such as those of other languages than English. An answer that starts with one of
    /// them, and does not continue with `but` or `however`, is IDK. Letter case and punctuation are ignored. Default:
    /// none; the grammar of English decides.
    #[field(default)]
    pub phrases: Vec<String>,
    /// The encoder of the learned label, which corrects the grammar. Default: none.
    pub encoder: Option<String>,
    /// File with the weights of the learned label. Default: built-in ones, for MiniLM.
    pub head: Option<FilePath>,
    /// Whether an answer is IDK too if it declines in part, and answers the rest.
    #[field(default)]
    pub ambiguous: bool,
    /// Phrases of low confidence. An answer that has one of them anywhere is IDK. Letter case and punctuation are ignored.
    #[field(default)]
    pub hedges: Vec<String>,
    /// Minimum support by the passages (a cosine, −1 to 1), where it is measured: by an operator before, or here with
    /// `encoder`. Default: no minimum.
    #[field(range = -1.0..=1.0)]
    pub min_support: Option<f32>,
    /// Minimum share of the answer's content words that its passages contain, 0 to 1. It is written to `checks.shared`.
    /// Default: no minimum.
    #[field(range = 0.0..=1.0)]
    pub min_shared: Option<f32>,
    /// Weights, bias and threshold for evidence, as `turnflow calibrate` writes them. Default: evidence is ignored.
    pub confidence: Option<Confidence>,
    /// The model that judges answers that the rules cannot decide. Default: none; such answers are kept.
    pub judge: Option<String>,
    /// File with the judge's prompt. Default: `operators/prompts/idk_judge.txt`.
    pub prompt: Option<FilePath>,
    /// Sampling settings of the judge. Omitted fields use the model's own settings.
    #[field(default)]
    pub sampling: SamplingFields,
}

/// The placeholders of the judge's prompt.
pub const PLACES: &[&str] = &["answer", "question"];
/// The labels of the judge.
pub const LABELS: [&str; 3] = ["yes", "partial", "no"];
/// The judge's built-in prompt.
pub const PROMPT: &str = include_str!("../../prompts/idk_judge.txt");

/// The verdict on an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Knows,
    DoesNotKnow,
    Undecided,
}

impl OperatorConfig for IdkNormalizeConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.sentence.trim().is_empty() {
            check.error("wrong-value", "sentence", "the sentence is empty");
        }
        if self.head.is_some() && self.encoder.is_none() {
            check.error("wrong-value", "head", "the weights need an `encoder`");
        }
        if let Some(head) = &self.head {
            check.text("head", head);
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
        let judge = judge.map(|name| ModelUse { field: "judge", name, capability: Capability::Generate });
        let encoder = self.encoder.as_deref();
        let encoder = encoder.map(|name| ModelUse { field: "encoder", name, capability: Capability::Embed });
        judge.into_iter().chain(encoder).collect()
    }

    fn text_effect(&self) -> TextEffect {
        // These read the whole text, or other values than the text.
        let reads_all = self.ambiguous || !self.hedges.is_empty() || self.judge.is_some() || self.encoder.is_some();
        if reads_all || self.confidence.is_some() || self.min_support.is_some() || self.min_shared.is_some() {
            return TextEffect::Whole;
        }
        let rules = IdkRules::of(self.prefixes.clone(), &self.patterns, &self.phrases);
        TextEffect::Beginning(Arc::new(move |text| rules.certain(text).to_owned()))
    }

    fn explain(&self) -> String {
        let least = |least: Option<f32>| least.map_or("any".to_owned(), |least| least.to_string());
        let (support, shared) = (least(self.min_support), least(self.min_shared));
        let encoder = self.encoder.as_deref().unwrap_or("none");
        let (prefixes, phrases, hedges) = (self.prefixes.len(), self.phrases.len(), self.hedges.len());
        let judge = self.judge.as_deref().unwrap_or("none");
        let confidence = self.confidence.as_ref().map_or("none".to_owned(), |confidence| {
            format!("{} signals, threshold {}", confidence.weights.len(), confidence.threshold)
        });
        format!(
            "sentence: {:?}, min_support: {support}, min_shared: {shared}, confidence: {confidence}, \
             {prefixes} prefixes, {phrases} phrases, ambiguous: {}, {hedges} hedges, encoder: {encoder}, judge: {judge}",
            self.sentence, self.ambiguous
        )
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        async move {
            prepare();
            let judge = match &self.judge {
                Some(model) => Some((
                    generator(models, model, "IdkNormalize")?,
                    Template::load(self.prompt.as_ref(), PROMPT, PLACES)?,
                )),
                None => None,
            };
            let mut operator = IdkNormalize::new(self.clone(), judge);
            if let Some(model) = &self.encoder {
                let embedder = embedder(models, model, "IdkNormalize")?;
                let reader = Reader::learned(embedder.clone(), Head::load(self.head.as_ref())?).await;
                operator.reader = reader.map_err(|source| BuildError::Model { model: model.clone(), source })?;
                operator.embedder = Some(embedder);
            }
            Ok(Arc::new(operator) as Arc<dyn Operator>)
        }
        .boxed()
    }
}

struct IdkNormalize {
    config: IdkNormalizeConfig,
    rules: IdkRules,
    reader: Reader,
    embedder: Option<Arc<dyn Embedder>>,
    hedges: Phrases,
    judge: Option<(Arc<dyn Generator>, Template)>,
}

impl Operator for IdkNormalize {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let mut answer = Answer::clone(call.answer(0)?);
            if answer.checks.contains_key(FORM) {
                // A sentence has not the form that the caller asks for.
                return Ok(Value::Answer(Arc::new(answer)));
            }
            let stance = self.rules.read(&self.reader, &answer.text).await.unwrap_or_else(|error| {
                call.warnings.add(format!("the learned label is missing ({error})"));
                self.rules.stance(&answer.text)
            });
            if let (Some(embedder), Some(_), None) = (&self.embedder, self.config.min_support, answer.support) {
                match support(&**embedder, &answer).await {
                    Ok(measured) => answer.support = measured,
                    Err(error) => call.warnings.add(format!("the support was not measured ({error})")),
                }
            }
            let (mut answer, verdict) = self.normalize(answer, stance);
            if let Some(confidence) = &self.config.confidence {
                let (probability, missing) = confidence.of(&answer);
                if !missing.is_empty() {
                    call.warnings.add(format!("missing evidence: {}", missing.join(", ")));
                }
                answer.checks.insert("confidence".into(), rounded(probability).into());
                if probability < confidence.threshold && answer.status != Status::Idk {
                    return Ok(Value::Answer(Arc::new(self.idk(answer))));
                }
            }
            if let (Verdict::Undecided, Some((judge, template))) = (verdict, &self.judge) {
                let said = template.quoted(answer.text.trim());
                let places = [("question", template.question(answer.query.question())), ("answer", (&*said).into())];
                let sampling = self.config.sampling.over(judge.sampling()).of_labels(LABELS);
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

/// Rounded to six decimals, the precision of single-precision floats.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

impl IdkNormalize {
    fn new(config: IdkNormalizeConfig, judge: Option<(Arc<dyn Generator>, Template)>) -> Self {
        let rules = IdkRules::of(config.prefixes.clone(), &config.patterns, &config.phrases);
        let hedges = Phrases::new(&config.hedges);
        Self { config, rules, reader: Reader::default(), embedder: None, hedges, judge }
    }

    fn idk(&self, answer: Answer) -> Answer {
        Answer { text: self.config.sentence.as_str().into(), status: Status::Idk, ..answer }
    }

    /// The answer without prefixes, or the sentence, by what its text does and by the measures of its support.
    fn normalize(&self, mut answer: Answer, stance: Stance) -> (Answer, Verdict) {
        let written = answer.text.clone();
        let text = self.rules.plain(&written);
        let mut unsupported = match (answer.support, self.config.min_support) {
            (Some(support), Some(least)) => support < least,
            _ => false,
        };
        if let Some(least) = self.config.min_shared.filter(|_| answer.status == Status::Answered) {
            let shared = shared::share(text, &answer.hits);
            answer.checks.insert("shared".into(), rounded(shared).into());
            // A question back is not taken from the passages.
            unsupported |= shared < f64::from(least) && stance != Stance::Asks;
        }
        let declines = stance == Stance::Declines || self.config.ambiguous && stance == Stance::Partly;
        if answer.status == Status::Idk || unsupported || declines || self.hedges.occur_in(text) {
            return (self.idk(answer), Verdict::DoesNotKnow);
        }
        let is_undecided = stance == Stance::Partly || self.rules.is_undecided(text);
        answer.text = text.into();
        (answer, if is_undecided { Verdict::Undecided } else { Verdict::Knows })
    }
}
