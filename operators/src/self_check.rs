//! Checks with heuristics whether passages support an answer: Answers → Answers.
//!
//! ```ron
//! SelfCheck(input: "answer", min_relevance: 0.3, min_overlap: 0.5, numbers: true, span: 3, on_failure: Humble)
//! ```
//!
//! PolyU's verifier (section 2.3.3) checks four things: relevance to the question, word overlap with the evidence, that
//! numbers occur in the evidence, and that a span of the answer occurs in a passage. If the model named its evidence
//! (`Generate` and `Agent` with `words` read it), the span is that of the evidence: it must stand in a passage word for
//! word, or be the number of one, in which the answer's span is then looked for. An answer that fails is replaced
//! by a humble sentence with the status `idk`; with `on_failure: Flag` it is kept. The findings are written to
//! `checks.self_check` in both cases. An answer that already has the status `idk` passes unchanged.
//!
//! With a `model`, relevance is the cosine of question and answer; without one, it is the share of the question's words
//! that occur in the passages. The same answer gives the same findings. Cost: two model inputs with a `model`,
//! otherwise none.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::json;
use turnflow_engine::component::{
    BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, ScoreUse, TextEffect, built_at_once, config,
};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role};
use turnflow_engine::record::{Answer, PortType, Status, Value};

use crate::citations;
use crate::generate::EVIDENCE;
use crate::models::embedder;
use crate::shared_run::Runs;
use crate::words::{is_function, key, lower, words};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<SelfCheckConfig>(
    "SelfCheck",
    &[InputPort::one(PortType::Answers)],
    PortType::Answers,
    "answers that fail a check against their passages, replaced or flagged",
);

/// How to treat an answer that fails.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Replace it with the sentence and set the status `idk`.
    #[default]
    Humble,
    /// Keep it; only the findings record the failure.
    Flag,
}

/// Fields of `SelfCheck`.
#[config]
pub struct SelfCheckConfig {
    /// Input node that produces answers.
    _input: String,
    /// The model that compares question and answer. Default: none; words are compared.
    #[field(unset = "none")]
    pub model: Option<String>,
    /// Minimum relevance, 0 to 1: a cosine with a model, otherwise a share of words.
    #[field(default = 0.3, range = 0.0..=1.0)]
    pub min_relevance: f32,
    /// Minimum share of the answer's words that occur in the passages, 0 to 1.
    #[field(default = 0.5, range = 0.0..=1.0)]
    pub min_overlap: f32,
    /// Whether every number of the answer must occur in a passage or the question.
    #[field(default = true)]
    pub numbers: bool,
    /// Number of consecutive answer words (or the whole answer) that must occur in a passage. Evidence that the model
    /// named must occur whole. Default 3; 0 checks neither.
    #[field(default = 3, range = 0..=1000)]
    pub span: usize,
    /// How to treat an answer that fails: `Humble` or `Flag`. Default `Humble`.
    #[field(default)]
    pub on_failure: OnFailure,
    /// The sentence that replaces an answer that fails. Default `I am not confident of an answer: the documents do not
    /// bear one out.`
    #[field(default = "I am not confident of an answer: the documents do not bear one out.")]
    pub sentence: String,
}

impl OperatorConfig for SelfCheckConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn validate(&self, check: &mut Check<'_>) {
        if self.sentence.trim().is_empty() {
            check.error("wrong-value", "sentence", "the sentence is empty");
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let model = self.model.as_deref();
        model.map(|name| ModelUse { field: "model", name, capability: Capability::Embed }).into_iter().collect()
    }

    fn text_effect(&self) -> TextEffect {
        match self.on_failure {
            OnFailure::Humble => TextEffect::Whole,
            OnFailure::Flag => TextEffect::Unchanged,
        }
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let embedder = self.model.as_deref().map(|model| embedder(models, model, "SelfCheck")).transpose()?;
            Ok(Arc::new(SelfCheck { config: self.clone(), embedder }))
        })
    }
}

struct SelfCheck {
    config: SelfCheckConfig,
    embedder: Option<Arc<dyn Embedder>>,
}

/// Findings about an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Findings {
    /// Relevance to the question: of the answer (with a model) or of the passages (without).
    relevance: f32,
    /// Share of the answer's words that occur in the passages.
    overlap: f32,
    /// Numbers that occur neither in the passages nor in the question.
    unknown_numbers: Vec<String>,
    /// The longest run of the answer's words that occurs in a passage.
    span: String,
    /// Names of the config fields whose check failed.
    failed: Vec<&'static str>,
}

impl Operator for SelfCheck {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let answer = call.answer(0)?;
            if answer.status != Status::Answered {
                return Ok(Value::Answer(answer.clone()));
            }
            let text = citations::without(&answer.text);
            let passages: Vec<&str> = answer.hits.iter().map(|hit| &*hit.chunk.text).collect();
            let cosine = match &self.embedder {
                Some(embedder) => Some(self.cosine(embedder, &answer.query.text, &text).await?),
                None => None,
            };
            let named = answer.checks.get(EVIDENCE).and_then(|evidence| evidence.as_str());
            let findings = inspect(&answer.query.text, &text, named, &passages, cosine, &self.config);
            let mut checked = Answer::clone(answer);
            checked.checks.insert("self_check".into(), json!(findings));
            if !findings.failed.is_empty() && self.config.on_failure == OnFailure::Humble {
                checked.text = self.config.sentence.as_str().into();
                checked.status = Status::Idk;
            }
            Ok(Value::Answer(Arc::new(checked)))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + call.weight_of_passages(usize::MAX)
    }
}

impl SelfCheck {
    async fn cosine(&self, embedder: &Arc<dyn Embedder>, question: &str, text: &str) -> Result<f32, InferenceError> {
        let question = embedder.embed(vec![question.to_owned()], Role::Query, Priority::Turn);
        let text = embedder.embed(vec![text.to_owned()], Role::Passage, Priority::Turn);
        let (question, text) = futures::try_join!(question, text)?;
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        Ok(match (question.first(), text.first()) {
            (Some(a), Some(b)) => dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f32::MIN_POSITIVE),
            _ => 0.0,
        })
    }
}

fn inspect(
    question: &str,
    text: &str,
    named: Option<&str>,
    passages: &[&str],
    cosine: Option<f32>,
    config: &SelfCheckConfig,
) -> Findings {
    let evidence: HashSet<String> = passages.iter().flat_map(|passage| keys(passage)).collect();
    let share = |of: Vec<String>| match of.len() {
        // Without words to look for, none is missing.
        0 => 1.0,
        all => of.iter().filter(|key| evidence.contains(*key)).count() as f32 / all as f32,
    };
    let relevance = cosine.unwrap_or_else(|| share(keys(question)));
    let overlap = share(keys(text));
    let known: HashSet<String> = passages.iter().copied().chain([question]).flat_map(numbers).collect();
    let unknown_numbers: Vec<String> = numbers(text).into_iter().filter(|number| !known.contains(number)).collect();
    let (span, length, wanted) = evidence_span(text, named, passages, config.span);
    let mut failed = Vec::new();
    for (name, holds) in [
        ("min_relevance", relevance >= config.min_relevance),
        ("min_overlap", overlap >= config.min_overlap),
        ("numbers", !config.numbers || unknown_numbers.is_empty()),
        ("span", config.span == 0 || length >= wanted),
    ] {
        if !holds {
            failed.push(name);
        }
    }
    Findings { relevance, overlap, unknown_numbers, span, failed }
}

/// The checks that an answer fails, with the default thresholds and without a model, each as a sentence part.
pub(crate) fn problems(question: &str, text: &str, passages: &[&str]) -> Vec<String> {
    let config = SelfCheckConfig {
        _input: String::new(),
        model: None,
        min_relevance: SelfCheckConfig::default_min_relevance(),
        min_overlap: SelfCheckConfig::default_min_overlap(),
        numbers: SelfCheckConfig::default_numbers(),
        span: SelfCheckConfig::default_span(),
        on_failure: OnFailure::Flag,
        sentence: String::new(),
    };
    let findings = inspect(question, &citations::without(text), None, passages, None, &config);
    let told = |check: &&str| match *check {
        "min_relevance" => "the passages have few words of the question".to_owned(),
        "min_overlap" => "few words of the answer are in the passages".to_owned(),
        "numbers" => format!("no passage has the numbers {}", findings.unknown_numbers.join(", ")),
        _ => "no passage has a part of the answer word for word".to_owned(),
    };
    findings.failed.iter().map(told).collect()
}

/// Keys of the content words, which they share with their plurals, without duplicates.
fn keys(text: &str) -> Vec<String> {
    let mut keys: Vec<String> =
        words(text).iter().filter(|word| !is_function(word.text)).map(|word| key(word.text)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Numbers in one form: without thousands separators and trailing zeros of a fraction.
fn numbers(text: &str) -> Vec<String> {
    let mut numbers = Vec::new();
    for piece in text.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',')) {
        let piece = piece.trim_matches(['.', ',']);
        if piece.is_empty() {
            continue;
        }
        let number = piece.replace(',', "");
        let number = match number.split_once('.') {
            Some((whole, fraction)) if fraction.bytes().all(|b| b == b'0') => whole.to_owned(),
            Some(_) => number.trim_end_matches('0').to_owned(),
            None => number,
        };
        numbers.push(number);
    }
    numbers
}

/// The evidence span, its number of words, and how many it must have. It is the evidence that the model named, which
/// must occur whole; else a span of the answer, in the passage whose number was named, or in any.
fn evidence_span(text: &str, named: Option<&str>, passages: &[&str], least: usize) -> (String, usize, usize) {
    let of_answer = |passages: &[&str]| {
        let (span, length) = longest_span(text, passages);
        (span, length, least.min(words(text).len()))
    };
    let Some(named) = named else { return of_answer(passages) };
    let numbers = numbers(named);
    // Only its number, in any form: "[2]", "passage 2".
    let is_number = !words(named).iter().any(|word| {
        !is_function(word.text) && !word.text.starts_with(|c: char| c.is_ascii_digit()) && lower(word.text) != "passage"
    });
    match numbers.as_slice() {
        [number] if is_number => {
            let at = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            match at.and_then(|at| passages.get(at)) {
                Some(passage) => of_answer(&[passage]),
                None => (String::new(), 0, 1),
            }
        }
        _ => {
            let (span, length) = longest_span(named, passages);
            (span, length, words(named).len())
        }
    }
}

/// The longest run of the text's words that occurs in a passage, and its number of words.
fn longest_span(text: &str, passages: &[&str]) -> (String, usize) {
    let said = words(text);
    let lowered: Vec<String> = said.iter().map(|word| lower(word.text)).collect();
    let runs = Runs::of(&lowered);
    let (mut most, mut end) = (0, 0);
    for passage in passages {
        let there: Vec<String> = words(passage).iter().map(|word| lower(word.text)).collect();
        let found = runs.longest(there.iter().map(String::as_str));
        if found.1 > most {
            (end, most) = found;
        }
    }
    match most {
        0 => (String::new(), 0),
        _ => (text[said[end - most].start..said[end - 1].end].to_owned(), most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{answer, call, operator};
    use crate::test_turn::turn;

    const PASSAGE: &str = "The bridge was built in 1931 and cost 1,500.50 dollars.";

    fn failed(question: &str, text: &str) -> Vec<&'static str> {
        let config: SelfCheckConfig = turnflow_engine::spec::from_str(r#"(input: "answer")"#).unwrap();
        inspect(question, text, None, &[PASSAGE], None, &config).failed
    }

    #[test]
    fn evidence_that_the_model_named_must_stand_in_a_passage() {
        let config: SelfCheckConfig = turnflow_engine::spec::from_str(r#"(input: "answer")"#).unwrap();
        let passages = [PASSAGE, "The ferry has no bridge."];
        for (named, span, want) in [
            ("the bridge was built in 1931", "the bridge was built in 1931", vec![]),
            ("The bridge was built in 1931 by Ada", "The bridge was built in 1931", vec!["span"]),
            ("[1]", "1931", vec![]),
            ("passage 1", "1931", vec![]),
            ("[2]", "", vec!["span"]),
            ("[7]", "", vec!["span"]),
            ("1,500.50 dollars", "1,500.50 dollars", vec![]),
        ] {
            let found = inspect("When was the bridge built?", "1931", Some(named), &passages, None, &config);
            assert_eq!((&*found.span, found.failed), (span, want), "{named}");
        }
    }

    #[test]
    fn answers_that_stand_on_their_passages_pass() {
        for text in ["The bridge was built in 1931.", "1931", "Built in 1931, it cost 1500.5 dollars.", ""] {
            assert_eq!(failed("When was the bridge built?", text), Vec::<&str>::new(), "{text}");
        }
    }

    #[test]
    fn what_is_not_borne_out_is_told() {
        let asked = "When was the bridge built?";
        for (question, text, want) in [
            (asked, "The bridge was built in 1932.", vec!["numbers"]),
            (asked, "Engineers finished all towers, and the bridge was built.", vec!["min_overlap"]),
            (asked, "Bridge dollars cost", vec!["span"]),
            ("Who painted Guernica?", "The bridge was built in 1931.", vec!["min_relevance"]),
            (asked, "Picasso, 300 million", vec!["min_overlap", "numbers", "span"]),
        ] {
            assert_eq!(failed(question, text), want, "{text}");
        }
    }

    #[test]
    fn failing_is_humble_or_flagged() {
        for (config, want, status) in [
            (r#"(input: "answer", sentence: "Hm.")"#, "Hm.", Status::Idk),
            (r#"(input: "answer", on_failure: Flag)"#, "In 1932 [1].", Status::Answered),
        ] {
            let operator = operator::<SelfCheckConfig>(config, &Models::new());
            let input = answer("When was the bridge built?", "In 1932 [1].", &[PASSAGE]);
            let (Value::Answer(got), _) = call(&operator, turn(&[], "q"), input) else { panic!() };
            assert_eq!((&*got.text, got.status), (want, status));
            assert_eq!(got.checks["self_check"]["unknown_numbers"][0], "1932");
        }
    }

    #[test]
    fn the_longest_span_is_found() {
        assert_eq!(longest_span("He built it in 1931 and then", &[PASSAGE]), ("in 1931 and".into(), 3));
        assert_eq!(longest_span("", &[PASSAGE]), (String::new(), 0));
        assert_eq!(longest_span("x", &[]), (String::new(), 0));
    }
}
