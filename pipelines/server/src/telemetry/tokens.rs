//! The tokens of language models in spans and as a metric.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};
use turnflow_engine::inference::tokens::Tokens;

const INPUT: &str = "gen_ai.usage.input_tokens";
const OUTPUT: &str = "gen_ai.usage.output_tokens";
const KIND: &str = "gen_ai.token.type";
const USAGE: &str = "gen_ai.client.token.usage";

/// The metric.
pub(super) struct TokenUsage(Histogram<u64>);

impl TokenUsage {
    pub fn new(meter: &Meter) -> Self {
        let histogram = meter.u64_histogram(USAGE).with_unit("{token}");
        Self(histogram.with_description("Tokens that language models have read and written").build())
    }

    /// Adds the tokens of a call to the attributes of its span and to the metric, which has the labels of the call. What the
    /// inference cache had was not used.
    pub fn add(&self, tokens: Tokens, labels: &[KeyValue], span: &mut Vec<KeyValue>) {
        let kinds = [
            (INPUT, "input", tokens.prompt, tokens.cached_prompt),
            (OUTPUT, "output", tokens.completion, tokens.cached_completion),
        ];
        for (attribute, kind, all, cached) in kinds.into_iter().filter(|(_, _, all, _)| *all > 0) {
            span.push(KeyValue::new(attribute, i64::try_from(all).unwrap_or(i64::MAX)));
            if all > cached {
                self.0.record(all - cached, &[labels, &[KeyValue::new(KIND, kind)]].concat());
            }
        }
    }
}
