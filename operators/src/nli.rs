//! Checks whether passages entail an answer, with a natural language inference model: Answers → Answers.
//!
//! ```ron
//! Nli(input: "answer", model: "nli", labels: [Contradiction, Neutral, Entailment], min_entailment: Some(0.3))
//! ```
//!
//! Each passage (premise) is paired with each sentence of the answer (hypothesis), and a classifier's logits for the
//! pair go through a softmax. A sentence's entailment and contradiction are the highest over the passages; the answer's
//! are the means over its sentences. These are the first two parts of RePASs (Gokhan et al. 2024), the metric that
//! FusionRAG is evaluated with (section 2.4). They are written to `checks.nli`, together with those of each sentence.
//! An answer below `min_entailment` or above `max_contradiction` is replaced by a sentence with the status `idk`. An
//! answer that already has this status passes unchanged. The same answer gives the same scores. Cost: passages ×
//! sentences pairs.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use serde_json::json;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind, ScoreUse, TextEffect, built_at_once, config,
};
use turnflow_engine::inference::{InferenceError, PairScorer, Priority};
use turnflow_engine::record::{Answer, PortType, Status, Value};

use crate::citations;
use crate::models::pairs;
use crate::sentences::sentence_ranges;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<NliConfig>(
    "Nli",
    &[InputPort::one(PortType::Answers)],
    PortType::Answers,
    "how far passages entail or contradict an answer, by an NLI model",
);

/// A class of the NLI model.
#[config]
#[derive(Copy, PartialEq, Eq)]
pub enum Label {
    /// The premise contradicts the hypothesis.
    Contradiction,
    /// The premise says nothing about the hypothesis.
    Neutral,
    /// The premise entails the hypothesis.
    Entailment,
}

/// Fields of `Nli`.
#[config]
pub struct NliConfig {
    /// Input node that produces answers.
    _input: String,
    /// The model that classifies pairs.
    pub model: String,
    /// The model's classes, in the order of its outputs. Default: contradiction, neutral, entailment.
    #[field(default = vec![Label::Contradiction, Label::Neutral, Label::Entailment])]
    pub labels: Vec<Label>,
    /// Number of passages to use as premises, best first.
    #[field(default = 5, range = 1..=1000)]
    pub passages: usize,
    /// Minimum entailment of an answer, 0 to 1. Default: no minimum.
    #[field(unset = "any", range = 0.0..=1.0)]
    pub min_entailment: Option<f32>,
    /// Maximum contradiction of an answer, 0 to 1. Default: no maximum.
    #[field(unset = "any", range = 0.0..=1.0)]
    pub max_contradiction: Option<f32>,
    /// The sentence that replaces an answer outside these limits. Default `I do not know: the documents do not bear out
    /// an answer.`
    #[field(default = "I do not know: the documents do not bear out an answer.")]
    pub sentence: String,
}

impl OperatorConfig for NliConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn validate(&self, check: &mut Check<'_>) {
        for label in [Label::Contradiction, Label::Entailment] {
            if self.labels.iter().filter(|other| **other == label).count() != 1 {
                check.error("wrong-value", "labels", format!("`{label:?}` must occur exactly once"));
            }
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::ScorePairs }]
    }

    fn text_effect(&self) -> TextEffect {
        match (self.min_entailment, self.max_contradiction) {
            (None, None) => TextEffect::Unchanged,
            _ => TextEffect::Whole,
        }
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let scorer = pairs(models, &self.model, "Nli")?;
            if scorer.classes() != self.labels.len() {
                let message = format!("has {} classes, but `labels` lists {}", scorer.classes(), self.labels.len());
                return Err(BuildError::Model { model: self.model.clone(), source: InferenceError::Shape(message) });
            }
            let place = |label| self.labels.iter().position(|other| *other == label).unwrap_or_default();
            let (entailment, contradiction) = (place(Label::Entailment), place(Label::Contradiction));
            Ok(Arc::new(Nli { config: self.clone(), scorer, entailment, contradiction }))
        })
    }
}

struct Nli {
    config: NliConfig,
    scorer: Arc<dyn PairScorer>,
    entailment: usize,
    contradiction: usize,
}

/// A sentence's scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Scores {
    entailment: f32,
    contradiction: f32,
    /// The index of the passage that entails it most.
    passage: usize,
}

impl Operator for Nli {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let answer = call.answer(0)?;
            let text = citations::without(&answer.text);
            let sentences: Vec<String> =
                sentence_ranges(&text).into_iter().map(|(start, end)| text[start..end].to_owned()).collect();
            let hits = &answer.hits[..answer.hits.len().min(self.config.passages)];
            if answer.status != Status::Answered || sentences.is_empty() || hits.is_empty() {
                return Ok(Value::Answer(answer.clone()));
            }
            let asked =
                hits.iter().map(|hit| self.scorer.score(hit.chunk.text.to_string(), sentences.clone(), Priority::Turn));
            let logits = try_join_all(asked).await?;
            let scores = best(&logits, sentences.len(), self.entailment, self.contradiction);
            let mean = |of: fn(&Scores) -> f32| scores.iter().map(of).sum::<f32>() / scores.len() as f32;
            let (entailment, contradiction) = (mean(|one| one.entailment), mean(|one| one.contradiction));
            let each: Vec<_> = sentences
                .iter()
                .zip(&scores)
                .map(|(text, one)| {
                    json!({
                        "text": text,
                        "entailment": one.entailment,
                        "contradiction": one.contradiction,
                        "passage": one.passage + 1,
                    })
                })
                .collect();
            let mut checked = Answer::clone(answer);
            let found = json!({ "entailment": entailment, "contradiction": contradiction, "sentences": each });
            checked.checks.insert("nli".into(), found);
            let entailed = self.config.min_entailment.is_none_or(|least| entailment >= least);
            let consistent = self.config.max_contradiction.is_none_or(|most| contradiction <= most);
            if !(entailed && consistent) {
                checked.text = self.config.sentence.as_str().into();
                checked.status = Status::Idk;
            }
            Ok(Value::Answer(Arc::new(checked)))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + call.weight_of_passages(self.config.passages)
    }
}

/// Each sentence's highest scores over the passages. The shape of `logits` is `[passages][sentences][classes]`.
fn best(logits: &[Vec<Vec<f32>>], sentences: usize, entailment: usize, contradiction: usize) -> Vec<Scores> {
    let mut scores = vec![Scores::default(); sentences];
    for (passage, rows) in logits.iter().enumerate() {
        for (best, row) in scores.iter_mut().zip(rows) {
            let classes = softmax(row);
            let of = |class: usize| classes.get(class).copied().unwrap_or_default();
            if of(entailment) > best.entailment {
                (best.entailment, best.passage) = (of(entailment), passage);
            }
            best.contradiction = best.contradiction.max(of(contradiction));
        }
    }
    scores
}

/// The softmax of a model's logits: one probability for each class.
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{answer, call, operator};
    use crate::test_turn::turn;
    use turnflow_engine::component::Model;

    /// Entails what the premise contains, and contradicts sentences with "not".
    struct Contains;

    impl PairScorer for Contains {
        fn classes(&self) -> usize {
            3
        }
        fn score(
            &self,
            first: String,
            seconds: Vec<String>,
            _: Priority,
        ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>> {
            let logits = move |second: &String| match () {
                () if first.contains(second.as_str()) => vec![0.0, 0.0, 20.0],
                () if second.contains("not") => vec![20.0, 0.0, 0.0],
                () => vec![0.0, 20.0, 0.0],
            };
            let scores = seconds.iter().map(logits).collect();
            async move { Ok(scores) }.boxed()
        }
    }

    fn models() -> Models {
        let model = Model { name: "nli".into(), pairs: Some(Arc::new(Contains)), ..Model::default() };
        Models::from([("nli".to_owned(), Arc::new(model))])
    }

    fn run(config: &str, text: &str) -> Answer {
        let operator = operator::<NliConfig>(config, &models());
        let input = answer("q", text, &["The sea is deep.", "The sky is blue. It rains."]);
        let (Value::Answer(got), _) = call(&operator, turn(&[], "q"), input) else { panic!() };
        Answer::clone(&got)
    }

    #[test]
    fn sentences_are_scored_by_their_best_passage() {
        let got = run(r#"(input: "answer", model: "nli")"#, "The sky is blue. [2] It is not the sea. Hm, well.");
        let found = &got.checks["nli"];
        let near = |value: &serde_json::Value, want: f64| (value.as_f64().unwrap() - want).abs() < 1e-3;
        assert!(near(&found["entailment"], 1.0 / 3.0) && near(&found["contradiction"], 1.0 / 3.0), "{found}");
        assert_eq!((&found["sentences"][0]["passage"], found["sentences"].as_array().unwrap().len()), (&json!(2), 3));
        assert_eq!(got.status, Status::Answered);
    }

    #[test]
    fn what_is_not_entailed_or_is_contradicted_is_not_known() {
        for (limits, text, status) in [
            ("min_entailment: Some(0.5)", "It rains.", Status::Answered),
            ("min_entailment: Some(0.5)", "It snows.", Status::Idk),
            ("max_contradiction: Some(0.5)", "It does not.", Status::Idk),
            ("max_contradiction: Some(0.5)", "It snows.", Status::Answered),
        ] {
            let got = run(&format!(r#"(input: "answer", model: "nli", {limits})"#), text);
            assert_eq!(got.status, status, "{limits} {text}");
        }
    }

    #[test]
    fn labels_must_fit_the_model() {
        let config: NliConfig =
            turnflow_engine::spec::from_str(r#"(input: "a", model: "nli", labels: [Entailment, Contradiction])"#)
                .unwrap();
        let error = turnflow_engine::component::build_alone(&config, "test", &models()).err().unwrap().to_string();
        assert!(error.contains("has 3 classes, but `labels` lists 2"), "{error}");
    }
}
