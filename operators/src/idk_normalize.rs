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

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use regex::Regex;
use serde::Deserialize;
use turnflow_engine::component::{
    Ability, BuildError, Call, Check, InputPort, ModelUse, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind,
};
use turnflow_engine::language::{Generator, SamplingFields};
use turnflow_engine::record::{Answer, PortType, Status, Value};
use turnflow_engine::spec::{FilePath, from_tree};

use crate::models::generator;
use crate::reply::{clean, strip};
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

/// How evidence is weighed: the logistic function of a weighted sum.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confidence {
    /// The weight of each signal of `Evidence`, by name.
    pub weights: BTreeMap<String, f64>,
    /// What is added to the weighted sum.
    pub bias: f64,
    /// Least probability that an answer needs, 0 to 1.
    pub threshold: f64,
}

impl Confidence {
    /// The probability that the question can be answered, and the signals that are not there.
    fn of(&self, answer: &Answer) -> (f64, Vec<&str>) {
        let evidence = answer.checks.get("evidence");
        let mut sum = self.bias;
        let mut missing = Vec::new();
        for (name, weight) in &self.weights {
            match evidence.and_then(|evidence| evidence.get(name)?.as_f64()) {
                Some(value) => sum += weight * value,
                None => missing.push(name.as_str()),
            }
        }
        (1.0 / (1.0 + (-sum).exp()), missing)
    }
}

/// The places of the judge's prompt.
pub const PLACES: &[&str] = &["answer", "question"];
/// The judge's prompt.
pub const PROMPT: &str = include_str!("../prompts/idk_judge.txt");

/// An answer that says one of these somewhere may not know.
const HINTS: &[&str] = &[
    "not mention",
    "no information",
    "not specif",
    "unable to",
    "cannot",
    "can't",
    "not provide",
    "not contain",
    "not state",
    "not say",
    "not enough",
    "insufficient",
    "do not have",
    "don't have",
    "not sure",
    "not clear",
    "not know",
    "don't know",
    "unclear",
    "unknown",
];

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

fn default_prefixes() -> Vec<String> {
    ["answer:", "the answer is:", "response:", "agent:", "assistant:", "a:", "final answer:"].map(String::from).into()
}

fn default_patterns() -> Vec<String> {
    vec![r"(?i)based on the (provided |given |above )?(sources|passages|documents|context|information)( provided| given)?[,:]".into()]
}

fn default_phrases() -> Vec<String> {
    [
        "i do not know",
        "i don't know",
        "i am not sure",
        "i'm not sure",
        "i cannot answer",
        "i can't answer",
        "i am unable to answer",
        "i'm unable to answer",
        "i do not have enough information",
        "i don't have enough information",
        "i do not have specific information",
        "i don't have specific information",
        "there is not enough information",
        "there isn't enough information",
        "the context does not",
        "the passages do not",
        "the documents do not",
        "the provided context does not",
        "not mentioned in the",
        "no answer",
        "unanswerable",
        "idk",
        "unknown",
    ]
    .map(String::from)
    .into()
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
        self.sampling.validate("sampling", check);
        Template::check(self.prompt.as_ref(), "prompt", PLACES, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let judge = self.judge.as_deref();
        judge.map(|name| ModelUse { field: "judge", name, ability: Ability::Generate }).into_iter().collect()
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
    phrases: Vec<String>,
    patterns: Vec<Regex>,
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
                    call.notes.add(format!("no evidence of {}", missing.join(", ")));
                }
                answer.checks.insert("confidence".into(), ((probability * 1e6).round() / 1e6).into());
                if probability < confidence.threshold && answer.status != Status::Idk {
                    return Ok(Value::Answer(Arc::new(self.idk(answer))));
                }
            }
            if let (Verdict::Undecided, Some((judge, template))) = (verdict, &self.judge) {
                let places = [("question", answer.query.text.trim().into()), ("answer", answer.text.trim().into())];
                let sampling = self.config.sampling.over(judge.sampling());
                let said = judge.generate(template.fill(&places), sampling).await;
                match said.map(|generation| label(&generation.text)) {
                    Ok(Some(label)) => {
                        answer.checks.insert("idk".into(), label.into());
                        if label == "yes" {
                            answer = self.idk(answer);
                        }
                    }
                    Ok(None) => call.notes.add("whether the answer knows was not judged: the reply names no label"),
                    Err(error) => call.notes.add(format!("whether the answer knows was not judged ({error})")),
                }
            }
            Ok(Value::Answer(Arc::new(answer)))
        }
        .boxed()
    }
}

/// The label in a judge's reply: `yes`, `partial` or `no`.
pub fn label(reply: &str) -> Option<&'static str> {
    let reply = clean(reply).to_lowercase();
    let mut words = reply.split(|c: char| !c.is_alphanumeric());
    words.find_map(|word| ["yes", "partial", "no"].into_iter().find(|label| *label == word))
}

impl IdkNormalize {
    fn new(config: IdkNormalizeConfig, judge: Option<(Arc<dyn Generator>, Template)>) -> Self {
        let phrases = config.phrases.iter().map(|phrase| words(phrase)).filter(|phrase| !phrase.is_empty()).collect();
        // `check` has refused what is no regular expression.
        let patterns =
            config.patterns.iter().filter_map(|pattern| Regex::new(&format!("^(?:{pattern})")).ok()).collect();
        Self { config, phrases, patterns, judge }
    }

    fn idk(&self, answer: Answer) -> Answer {
        Answer { text: self.config.sentence.as_str().into(), status: Status::Idk, ..answer }
    }

    fn normalize(&self, answer: &Answer) -> (Answer, Verdict) {
        let text = self.plain(&answer.text);
        let unsupported = match (answer.support, self.config.min_support) {
            (Some(support), Some(least)) => support < least,
            _ => false,
        };
        if answer.status == Status::Idk || unsupported || text.is_empty() || self.gives_up(text) {
            return (self.idk(answer.clone()), Verdict::DoesNotKnow);
        }
        let said = words(text);
        let hints = || HINTS.iter().any(|hint| said.contains(hint));
        let undecided = hints() || self.phrases.iter().any(|phrase| said.contains(phrase.as_str()));
        let verdict = if undecided { Verdict::Undecided } else { Verdict::Knows };
        (Answer { text: text.into(), ..answer.clone() }, verdict)
    }

    /// The text without prefixes.
    fn plain<'t>(&self, text: &'t str) -> &'t str {
        let mut text = strip(text, &self.config.prefixes);
        while let Some(found) = self.patterns.iter().find_map(|pattern| pattern.find(text)).filter(|m| !m.is_empty()) {
            text = strip(&text[found.end()..], &self.config.prefixes);
        }
        text
    }

    /// An answer that starts by giving up and goes on to answer ("I do not have specific
    /// information on X. However, …") does answer.
    fn gives_up(&self, text: &str) -> bool {
        let said = words(text);
        let goes_on = ["however ", "but "].iter().any(|turn| said.contains(turn));
        self.phrases.iter().any(|phrase| {
            let begins =
                said == *phrase || said.strip_prefix(phrase.as_str()).is_some_and(|rest| rest.starts_with(' '));
            begins && !goes_on
        })
    }
}

/// What the rules say of a text alone, for those who judge answers that are given already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It says that it does not know, and no more.
    Nothing,
    /// It says so of a part, and goes on to answer.
    Part,
    /// It does not say so.
    All,
}

/// The rules of `IdkNormalize` for a text alone.
pub struct IdkRules(IdkNormalize);

impl IdkRules {
    /// With these phrases, or the operator's own.
    pub fn new(phrases: Option<Vec<String>>) -> Self {
        let config = IdkNormalizeConfig {
            _input: String::new(),
            sentence: default_sentence(),
            prefixes: default_prefixes(),
            patterns: default_patterns(),
            phrases: phrases.unwrap_or_else(default_phrases),
            min_support: None,
            confidence: None,
            judge: None,
            prompt: None,
            sampling: SamplingFields::default(),
        };
        Self(IdkNormalize::new(config, None))
    }

    /// What an answer's text says of not knowing.
    pub fn says(&self, text: &str) -> Said {
        let text = self.0.plain(text);
        if text.is_empty() || self.0.gives_up(text) {
            return Said::Nothing;
        }
        let said = words(text);
        // A single word ("unknown") within a sentence says nothing of the question.
        let phrases = self.0.phrases.iter().filter(|phrase| phrase.contains(' '));
        let partly = phrases.into_iter().any(|phrase| said.contains(phrase.as_str()));
        if partly { Said::Part } else { Said::All }
    }
}

/// Lower-cased words joined by blanks, apostrophes kept and made one kind.
fn words(text: &str) -> String {
    let text = text.to_lowercase().replace('’', "'");
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{Scripted, answer, call, operator};
    use crate::test_turn::turn;
    use turnflow_engine::record::Query;

    fn normalize(text: &str, support: Option<f32>) -> (String, Status) {
        let config = IdkNormalizeConfig {
            _input: String::new(),
            sentence: "IDK.".into(),
            prefixes: default_prefixes(),
            phrases: default_phrases(),
            min_support: Some(0.3),
            patterns: default_patterns(),
            confidence: None,
            judge: None,
            prompt: None,
            sampling: SamplingFields::default(),
        };
        let query = Query::new("q");
        let answer = Answer {
            query,
            text: text.into(),
            status: Status::Answered,
            hits: vec![],
            checks: Default::default(),
            support,
        };
        let (answer, _) = IdkNormalize::new(config, None).normalize(&answer);
        (answer.text.to_string(), answer.status)
    }

    #[test]
    fn ways_of_not_knowing_become_one() {
        for text in [
            "I don’t know.",
            "Answer: I do not know the price",
            "",
            "  IDK ",
            "Unanswerable.",
            "The passages do not say.",
        ] {
            assert_eq!(normalize(text, None), ("IDK.".into(), Status::Idk), "{text:?}");
        }
    }

    #[test]
    fn answers_stay_without_their_prefixes() {
        for (text, want) in [
            ("Answer: Paris.", "Paris."),
            ("ANSWER: Response:  Paris.", "Paris."),
            ("Unknowns are solved for.", "Unknowns are solved for."),
            ("I do not know all. However, it is blue.", "I do not know all. However, it is blue."),
            ("Based on the sources, Paris.", "Paris."),
            ("Answer: based on the provided context: it is", "it is"),
            ("é", "é"),
        ] {
            assert_eq!(normalize(text, Some(0.9)), (want.into(), Status::Answered), "{text:?}");
        }
    }

    #[test]
    fn low_support_is_not_knowing() {
        assert_eq!(normalize("Paris.", Some(0.29)).1, Status::Idk);
        assert_eq!(normalize("Paris.", Some(0.3)).1, Status::Answered);
    }

    #[test]
    fn evidence_is_weighed() {
        let config = r#"(input: "answer", sentence: "IDK.",
            confidence: Some((weights: {"dense top": 4.0, "support": 1.0}, bias: -2.0, threshold: 0.6)))"#;
        let operator = operator::<IdkNormalizeConfig>(config, &Default::default());
        for (top, want, probability) in [(0.9, "Paris.", 0.832018), (0.5, "IDK.", 0.5)] {
            let Value::Answer(given) = answer("q", "Paris.", &[]) else { panic!() };
            let mut given = Answer::clone(&given);
            given.checks.insert("evidence".into(), serde_json::json!({"dense top": top}));
            let (Value::Answer(got), notes) = call(&operator, turn(&[], "q"), Value::Answer(Arc::new(given))) else {
                panic!()
            };
            assert_eq!((&*got.text, &got.checks["confidence"]), (want, &serde_json::json!(probability)));
            assert_eq!(notes, ["no evidence of support"]);
        }
    }

    #[test]
    fn the_judge_is_asked_where_rules_cannot_decide() {
        let config = r#"(input: "answer", sentence: "IDK.", judge: Some("llm"))"#;
        let undecided = "It is blue. The price is not mentioned.";
        for (text, judge, want, calls, label, notes) in [
            ("Paris.", Scripted::fails(), "Paris.", 0, None, 0),
            ("I do not know.", Scripted::fails(), "IDK.", 0, None, 0),
            (undecided, Scripted::says(" Yes."), "IDK.", 1, Some("yes"), 0),
            (undecided, Scripted::says("Label: partial"), undecided, 1, Some("partial"), 0),
            (undecided, Scripted::says("Hm"), undecided, 1, None, 1),
            (undecided, Scripted::fails(), undecided, 1, None, 1),
        ] {
            let operator = operator::<IdkNormalizeConfig>(config, &judge.models());
            let (Value::Answer(got), told) = call(&operator, turn(&[], "q"), answer("q", text, &[])) else { panic!() };
            let said = got.checks.get("idk").and_then(|label| label.as_str());
            assert_eq!((&*got.text, judge.calls(), said, told.len()), (want, calls, label, notes), "{text}");
        }
    }
}
