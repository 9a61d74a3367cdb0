//! Combines evidence into the probability that a question can be answered.

use std::collections::BTreeMap;
use turnflow_engine::component::config;

use turnflow_engine::record::Answer;

/// Parameters of the confidence: the logistic function of a weighted sum.
#[config]
pub struct Confidence {
    /// The weight of each signal of `Evidence`, by name.
    pub weights: BTreeMap<String, f64>,
    /// Constant added to the weighted sum.
    pub bias: f64,
    /// Minimum probability for an answer to be kept, 0 to 1.
    pub threshold: f64,
}

impl Confidence {
    /// The probability that the question can be answered, and the names of missing signals.
    pub(super) fn of(&self, answer: &Answer) -> (f64, Vec<&str>) {
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
