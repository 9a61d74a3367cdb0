//! Sampling parameters of generation, and what is wrong with given ones.

use crate::component::config;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// Sampling parameters. An omitted field takes the value from the model's configuration,
/// or else the default stated here.
#[config(default)]
#[derive(PartialEq)]
pub struct SamplingFields {
    /// Maximum number of tokens to generate. Default: 256.
    pub max_tokens: Option<usize>,
    /// Sampling temperature. 0 always takes the most likely token; higher values vary more. Default: 0.
    pub temperature: Option<f32>,
    /// Sample from the most likely tokens whose probabilities sum to this value. Default: 1.
    pub top_p: Option<f32>,
    /// Sample from this many of the most likely tokens; 0 for all. Default: 0.
    pub top_k: Option<usize>,
    /// Divides the logits of tokens that already occur (Keskar et al. 2019). Default: 1.
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers; has an effect only if the temperature is above 0. Default: 0.
    pub seed: Option<u64>,
    /// Stop strings: generation ends before the first of these. Default: none.
    pub stop: Option<Vec<String>>,
    /// Number of beams of a beam search; 1 for no beam search. Default: 1.
    pub beams: Option<usize>,
    /// No n-gram of this many tokens occurs twice; 0 for no limit. Default: 0.
    pub no_repeat_ngram: Option<usize>,
    /// Exponent of the length in a finished beam's score: log probability / length ^ this. Default: 1.
    pub length_penalty: Option<f32>,
    /// If true, a beam search ends when it has as many finished beams as `beams`; if false, it
    /// continues while an unfinished beam could still score higher. Default: true.
    pub early_stopping: Option<bool>,
}

/// Sampling parameters with every field set; meanings as in [`SamplingFields`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of SamplingFields")]
pub struct Sampling {
    pub max_tokens: usize,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: usize,
    pub repetition_penalty: f32,
    pub seed: u64,
    pub stop: Vec<String>,
    pub beams: usize,
    pub no_repeat_ngram: usize,
    pub length_penalty: f32,
    pub early_stopping: bool,
    /// The replies that an operator asks for, of which the text is one. A model that computes likelihoods gives the
    /// most likely one, and the probability of each (`Generation::labels`); others write freely. Default: none.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The form of the reply that a caller asks for, as `response_format` of OpenAI's API. Only models whose kind takes forms
    /// get one. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Json>,
}

impl Sampling {
    /// The same for a reply that is one of these labels.
    pub fn of_labels<S: ToString>(self, labels: impl IntoIterator<Item = S>) -> Self {
        Self { labels: labels.into_iter().map(|label| label.to_string()).collect(), ..self }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            repetition_penalty: 1.0,
            seed: 0,
            stop: Vec::new(),
            beams: 1,
            no_repeat_ngram: 0,
            length_penalty: 1.0,
            early_stopping: true,
            labels: Vec::new(),
            format: None,
        }
    }
}

impl SamplingFields {
    /// The given fields, with `base` for the others.
    pub fn over(&self, base: &Sampling) -> Sampling {
        Sampling {
            max_tokens: self.max_tokens.unwrap_or(base.max_tokens),
            temperature: self.temperature.unwrap_or(base.temperature),
            top_p: self.top_p.unwrap_or(base.top_p),
            top_k: self.top_k.unwrap_or(base.top_k),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            seed: self.seed.unwrap_or(base.seed),
            stop: self.stop.clone().unwrap_or_else(|| base.stop.clone()),
            beams: self.beams.unwrap_or(base.beams),
            no_repeat_ngram: self.no_repeat_ngram.unwrap_or(base.no_repeat_ngram),
            length_penalty: self.length_penalty.unwrap_or(base.length_penalty),
            early_stopping: self.early_stopping.unwrap_or(base.early_stopping),
            labels: base.labels.clone(),
            format: base.format.clone(),
        }
    }

    /// The problems of the values, each in a few words.
    pub fn problems(&self) -> Vec<&'static str> {
        let mut problems = Vec::new();
        let mut wrong = |problem| problems.push(problem);
        if self.max_tokens == Some(0) {
            wrong("`max_tokens` must be at least 1");
        }
        if self.temperature.is_some_and(|value| !(0.0..=10.0).contains(&value)) {
            wrong("`temperature` must be 0 to 10");
        }
        if self.top_p.is_some_and(|value| !(value > 0.0 && value <= 1.0)) {
            wrong("`top_p` must be above 0 and at most 1");
        }
        if self.repetition_penalty.is_some_and(|value| !(value > 0.0 && value <= 10.0)) {
            wrong("`repetition_penalty` must be above 0 and at most 10");
        }
        if self.beams.is_some_and(|value| !(1..=64).contains(&value)) {
            wrong("`beams` must be 1 to 64");
        }
        if self.length_penalty.is_some_and(|value| !(-10.0..=10.0).contains(&value)) {
            wrong("`length_penalty` must be -10 to 10");
        }
        if self.stop.as_ref().is_some_and(|stop| stop.iter().any(String::is_empty)) {
            wrong("a stop string must not be empty");
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operators_sampling_goes_over_the_models() {
        let model = SamplingFields { max_tokens: Some(60), beams: Some(3), ..Default::default() };
        let model = model.over(&Sampling::default());
        let both = SamplingFields { beams: Some(1), ..Default::default() }.over(&model);
        assert_eq!((both.max_tokens, both.beams, both.top_p), (60, 1, 1.0));
    }
}
