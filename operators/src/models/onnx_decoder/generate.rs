//! Turns prompts into tokens and tokens into texts, around the model's thread.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use tokio::sync::oneshot;
use turnflow_engine::inference::{InferenceError, Priority};
use turnflow_engine::language::{Finish, Generation, Generator, Likelihood, Prompt, Sampling, TextStream};

use super::super::control::Encoder;
use super::super::search::Search;
use super::super::streamed::Streamed;
use super::chat::Chat;
use super::serve::{Job, Serving, Stops, Tell};

/// The decoder: the model's thread, its tokenizer and its settings.
pub(super) struct Decoder {
    pub serving: Serving,
    pub encoder: Arc<Encoder>,
    pub chat: Chat,
    pub ends: Vec<u32>,
    pub context: usize,
    pub batch: usize,
    pub sampling: Sampling,
}

/// A prompt that fits the model.
struct Fitted {
    tokens: Vec<u32>,
    cut: usize,
    left_out: usize,
}

/// The decoder, shared by its futures.
pub(super) struct Shared(pub Arc<Decoder>);

impl Decoder {
    fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>, InferenceError> {
        if self.chat.is_plain() {
            return self.encoder.text(&prompt.plain(), true);
        }
        self.encoder.rendered(&self.chat.render(prompt, |text| self.encoder.guarded(text).into_owned())?)
    }

    fn fit(&self, prompt: Prompt, max_tokens: usize) -> Result<Fitted, InferenceError> {
        let limit = self.context.saturating_sub(max_tokens);
        let (prompt, cut) = prompt.fit(limit, |prompt| Ok(self.tokens(prompt)?.len()))?;
        Ok(Fitted { tokens: self.tokens(&prompt)?, cut, left_out: prompt.left_out() })
    }

    async fn generate(
        self: Arc<Self>,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> Result<Generation, InferenceError> {
        let (this, max_tokens) = (self.clone(), sampling.max_tokens);
        // Fitting a long prompt tokenizes it some ten times, so it does not run on the threads of turns.
        let fitted = tokio::task::spawn_blocking(move || this.fit(prompt, max_tokens))
            .await
            .map_err(|error| InferenceError::Failed(error.to_string()))??;
        let Fitted { tokens: prompt, cut, left_out } = fitted;
        let prompt_tokens = prompt.len() as u64;
        let stop = sampling.stop.clone();
        let search = Box::new(Search::new(sampling, self.ends.clone(), 0, prompt.clone()));
        let stops = (!stop.is_empty()).then(|| {
            let (encoder, stop) = (self.encoder.clone(), stop.clone());
            let holds = move |tokens: &[u32]| encoder.decode(tokens).is_ok_and(|text| first(&text, &stop).is_some());
            Box::new(holds) as Stops
        });
        let streamed = Arc::new(Streamed::new(stream.clone(), &stop));
        let tell = stream.is_wanted().then(|| {
            let (encoder, streamed) = (self.encoder.clone(), streamed.clone());
            Box::new(move |tokens: &[u32]| {
                if let Ok(text) = encoder.decode(tokens) {
                    streamed.so_far(&text);
                }
            }) as Tell
        });
        let (reply, answer) = oneshot::channel();
        self.serving.put(Job::Generate { prompt, search, stops, tell, reply }, Priority::Turn);
        let found = answer.await.map_err(|_| self.serving.ended())??;
        let mut text = self.encoder.decode(&found.tokens)?;
        let mut finish = found.finish;
        if let Some(end) = first(&text, &stop) {
            text.truncate(end);
            finish = Finish::Stop;
        }
        streamed.end(&text);
        Ok(Generation {
            text,
            finish,
            prompt_tokens,
            tokens: found.tokens.len() as u64,
            cut,
            left_out,
            ..Generation::default()
        })
    }

    async fn likelihood(
        self: Arc<Self>,
        contexts: Vec<String>,
        text: String,
        priority: Priority,
    ) -> Result<Vec<f32>, InferenceError> {
        let this = self.clone();
        let encode = move || -> Result<(Vec<Vec<u32>>, usize), InferenceError> {
            let text = this.encoder.text(&text, false)?;
            if text.len() >= this.context {
                return Err(InferenceError::TooLong { tokens: text.len(), limit: this.context - 1 });
            }
            let whole = |context: String| {
                let mut tokens = this.encoder.text(&context, true)?;
                if tokens.is_empty() {
                    // The first scored token needs a token before it.
                    tokens.push(this.ends[0]);
                }
                tokens.drain(..(tokens.len() + text.len()).saturating_sub(this.context));
                tokens.extend(&text);
                Ok(tokens)
            };
            Ok((contexts.into_iter().map(whole).collect::<Result<_, _>>()?, text.len()))
        };
        let (texts, scored) =
            tokio::task::spawn_blocking(encode).await.map_err(|error| InferenceError::Failed(error.to_string()))??;
        if scored == 0 {
            return Ok(vec![0.0; texts.len()]);
        }
        // Only texts of equal length share a batch, because padding would change how sums are rounded.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&at| (texts[at].len(), at));
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        let mut texts: Vec<Option<Vec<u32>>> = texts.into_iter().map(Some).collect();
        let same = order.chunk_by(|a, b| lengths[*a] == lengths[*b]);
        let batches = same.flat_map(|same| same.chunks(self.batch)).map(|places| {
            let (reply, answer) = oneshot::channel();
            let texts = places.iter().filter_map(|&at| texts[at].take()).collect();
            self.serving.put(Job::Likelihood { texts, scored, reply }, priority);
            async { answer.await.map_err(|_| self.serving.ended())? }
        });
        let values = try_join_all(batches.collect::<Vec<_>>()).await?;
        let mut placed: Vec<(usize, f32)> = order.into_iter().zip(values.into_iter().flatten()).collect();
        placed.sort_unstable_by_key(|(at, _)| *at);
        Ok(placed.into_iter().map(|(_, value)| value).collect())
    }
}

/// Position of the first occurrence of any of these strings.
fn first(text: &str, strings: &[String]) -> Option<usize> {
    strings.iter().filter_map(|string| text.find(string.as_str())).min()
}

impl Generator for Shared {
    fn sampling(&self) -> &Sampling {
        &self.0.sampling
    }

    fn generate_streamed(
        &self,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        self.0.clone().generate(prompt, sampling, stream).boxed()
    }

    fn count(&self, text: &str) -> usize {
        self.0.encoder.text(text, false).map_or(0, |tokens| tokens.len())
    }
}

impl Likelihood for Shared {
    fn log_likelihood(
        &self,
        contexts: Vec<String>,
        text: String,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>> {
        self.0.clone().likelihood(contexts, text, priority).boxed()
    }
}
