//! Token counts of a request and its answer.

use std::sync::Arc;

use serde::Serialize;
use turnflow_engine::inference::tokens::Tokens;
use turnflow_engine::language::Generator;

use crate::served::Served;

/// Texts longer than this are counted in words: a tokenizer would take too long.
const LONG: usize = 64 * 1024;

/// Texts up to this many bytes are counted immediately: it takes about a millisecond.
const SHORT: usize = 4 * 1024;

/// Runs a computation that may take longer than other requests should wait. Zero if it panics.
pub async fn off_thread<T: Default + Send + 'static>(compute: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(compute).await.unwrap_or_default()
}

/// Counts tokens of the model that writes the answer, or words without such a model.
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

    /// The number of tokens of texts. Long texts are counted on a separate thread.
    pub async fn count_all<'a>(&self, texts: impl Iterator<Item = &'a str>) -> u64 {
        let texts: Vec<&str> = texts.collect();
        if self.0.is_none() || texts.iter().map(|text| text.len()).sum::<usize>() <= SHORT {
            return texts.iter().map(|text| self.count(text)).sum();
        }
        let (counter, texts) = (self.clone(), texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        off_thread(move || texts.iter().map(|text| counter.count(text)).sum()).await
    }
}

/// The model that writes a pipeline's answers, or else its first language model.
pub fn generator(served: &Served) -> Option<Arc<dyn Generator>> {
    let models = served.engine().models();
    let outline = served.outline();
    let named = outline.generator.as_ref().and_then(|name| models.get(name)).and_then(|model| model.generator.clone());
    named.or_else(|| models.values().find_map(|model| model.generator.clone()))
}

/// The tokens of a request: those that the language models have reported, if they do, and else counted ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Tokens of prompts.
    pub prompt: u64,
    /// Generated tokens.
    pub completion: u64,
    /// Those of prompts whose texts were in the inference cache.
    pub cached: u64,
}

impl Spent {
    /// The reported tokens. Without them, the messages and the answer have these numbers.
    pub fn of(reported: Tokens, messages: u64, answer: impl FnOnce() -> u64) -> Self {
        Self {
            prompt: if reported.prompt > 0 { reported.prompt } else { messages },
            completion: if reported.completion > 0 { reported.completion } else { answer() },
            cached: reported.cached_prompt,
        }
    }
}

/// Those of the tokens of prompts that were in a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Details {
    /// Their number.
    pub cached_tokens: u64,
}

/// The usage of a chat request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompts, or of the messages.
    pub prompt_tokens: u64,
    /// Tokens of the models' texts, or of the answer.
    pub completion_tokens: u64,
    /// The sum of both.
    pub total_tokens: u64,
    /// Those of the prompts that were in a cache.
    pub prompt_tokens_details: Details,
}

impl From<Spent> for Usage {
    fn from(Spent { prompt, completion, cached }: Spent) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: Details { cached_tokens: cached },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_tokens_count_before_counted_ones() {
        let reported = Tokens { prompt: 70, completion: 8, cached_prompt: 30, cached_completion: 0 };
        let usage = Usage::from(Spent::of(reported, 5, || unreachable!("the model has said it")));
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (70, 8, 78));
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 30);
        let counted = Usage::from(Spent::of(Tokens::default(), 5, || 3));
        assert_eq!((counted.prompt_tokens, counted.completion_tokens, counted.total_tokens), (5, 3, 8));
    }
}
