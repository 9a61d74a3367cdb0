//! How many tokens a request and its answer have.

use std::sync::Arc;

use serde::Serialize;
use turnflow_engine::language::Generator;

use crate::app::Served;

/// Texts longer than this are counted in words: a tokenizer would take too long.
const LONG: usize = 64 * 1024;

/// Counts tokens: those of the model that writes the answer, or words if there is no such model.
#[derive(Clone)]
pub struct Counter(Option<Arc<dyn Generator>>);

impl Counter {
    /// The counter of a pipeline.
    pub fn of(served: &Served) -> Self {
        Self(generator(served))
    }

    /// The number of tokens of a text.
    pub fn count(&self, text: &str) -> u64 {
        let count = match &self.0 {
            Some(generator) if text.len() <= LONG => generator.count(text),
            _ => text.split_whitespace().count(),
        };
        count as u64
    }

    /// The number of tokens of texts.
    pub fn count_all<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> u64 {
        texts.into_iter().map(|text| self.count(text)).sum()
    }
}

/// The model that writes a pipeline's answers, or else its first language model.
pub fn generator(served: &Served) -> Option<Arc<dyn Generator>> {
    let models = served.engine().models();
    let outline = served.outline();
    let named = outline.generator.as_ref().and_then(|name| models.get(name)).and_then(|model| model.generator.clone());
    named.or_else(|| models.values().find_map(|model| model.generator.clone()))
}

/// The usage of a chat request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the messages.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
}

impl Usage {
    /// Of a request and an answer with so many tokens.
    pub fn new(prompt_tokens: u64, completion_tokens: u64) -> Self {
        Self { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }
}
