//! Turns prompts into tokens and tokens into texts, around the model's thread.

use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use serde_json::Value as Json;
use tokio::sync::{Semaphore, oneshot};
use turnflow_engine::inference::{InferenceError, Priority};
use turnflow_engine::language::{Finish, Generation, Generator, Likelihood, Prompt, Sampling, TextStream};

use super::super::control::Encoder;
use super::super::grammar::{Grammar, Grammars};
use super::super::search::Search;
use super::super::streamed::Streamed;
use super::chat::Chat;
use super::serve::{Job, Serving, Stops, Tell};

/// Grammars that are made for replies at the same time. The largest take seconds, and some hundred megabytes.
static FORMING: Semaphore = Semaphore::const_new(4);

/// The decoder: the model's thread, its tokenizer and its settings.
pub(super) struct Decoder {
    pub serving: Serving,
    pub encoder: Arc<Encoder>,
    pub chat: Chat,
    pub ends: Vec<u32>,
    pub context: usize,
    pub batch: usize,
    pub sampling: Sampling,
    pub grammars: OnceLock<Result<Grammars, InferenceError>>,
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

    /// The grammars of the forms that replies must have. The first call takes longest, since it looks at all tokens.
    fn grammars(&self) -> Result<&Grammars, InferenceError> {
        let grammars = self.grammars.get_or_init(|| Grammars::new(self.encoder.tokenizer(), &self.ends));
        grammars.as_ref().map_err(Clone::clone)
    }

    fn grammar(&self, sampling: &Sampling) -> Result<Option<Grammar>, InferenceError> {
        let Some(format) = &sampling.format else { return Ok(None) };
        self.grammars()?.of(format).map(Some)
    }

    async fn generate(
        self: Arc<Self>,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> Result<Generation, InferenceError> {
        // A label needs one token more if a blank stands before it.
        let of_label = |label: &String| Ok(self.encoder.text(label, false)?.len() + 1);
        let labels: Vec<usize> = sampling.labels.iter().map(of_label).collect::<Result<_, InferenceError>>()?;
        let (this, max_tokens) = (self.clone(), labels.into_iter().max().unwrap_or(sampling.max_tokens));
        // Fitting a long prompt tokenizes it some ten times, so it does not run on the threads of turns.
        let of_format = Sampling { format: sampling.format.clone(), ..Sampling::default() };
        let place = match &sampling.format {
            Some(_) => FORMING.acquire().await.ok(),
            None => None,
        };
        let prepare = move || {
            // It is kept if the caller leaves: the thread goes on.
            let _place = place;
            Ok::<_, InferenceError>((this.fit(prompt, max_tokens)?, this.grammar(&of_format)?))
        };
        let (fitted, grammar) =
            tokio::task::spawn_blocking(prepare).await.map_err(|error| InferenceError::Failed(error.to_string()))??;
        if !sampling.labels.is_empty() {
            return self.labelled(fitted, sampling.labels).await;
        }
        let Fitted { tokens: prompt, cut, left_out } = fitted;
        let prompt_tokens = prompt.len() as u64;
        // A form says itself where the text ends.
        let stop = if grammar.is_some() { Vec::new() } else { sampling.stop.clone() };
        let search = Search::new(sampling, self.ends.clone(), 0, prompt.clone());
        let search = Box::new(match grammar {
            Some(grammar) => search.formed(grammar),
            None => search,
        });
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

    /// The most likely of these labels after a prompt, and the probability of each.
    async fn labelled(&self, fitted: Fitted, labels: Vec<String>) -> Result<Generation, InferenceError> {
        let Fitted { tokens: mut prompt, cut, left_out } = fitted;
        if prompt.is_empty() {
            // The first scored token needs a token before it.
            prompt.push(self.ends[0]);
        }
        let mut texts: Vec<(Vec<u32>, usize)> = Vec::new();
        for label in &labels {
            // Without a chat format, the prompt ends with a word.
            let label = if self.chat.is_plain() { format!(" {label}") } else { label.clone() };
            let label = self.encoder.text(&label, false)?;
            texts.push(([&prompt[..], &label].concat(), label.len()));
        }
        let lengths = texts.iter().map(|(_, length)| *length);
        if let Some(tokens) = lengths.map(|length| prompt.len() + length).find(|tokens| *tokens > self.context) {
            return Err(InferenceError::TooLong { tokens, limit: self.context });
        }
        let mut sums = vec![0.0_f32; texts.len()];
        let mut lengths: Vec<usize> = texts.iter().map(|(_, length)| *length).collect();
        lengths.sort_unstable();
        lengths.dedup();
        for scored in lengths.into_iter().filter(|length| *length > 0) {
            let places: Vec<usize> = (0..texts.len()).filter(|at| texts[*at].1 == scored).collect();
            for places in places.chunks(self.batch) {
                let (reply, answer) = oneshot::channel();
                let texts = places.iter().map(|at| texts[*at].0.clone()).collect();
                self.serving.put(Job::Likelihood { texts, scored, reply }, Priority::Turn);
                let means = answer.await.map_err(|_| self.serving.ended())??;
                places.iter().zip(means).for_each(|(at, mean)| sums[*at] = mean * scored as f32);
            }
        }
        let most = sums.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = sums.iter().map(|sum| (sum - most).exp()).collect();
        let total: f32 = powers.iter().sum();
        let best = sums.iter().position(|sum| *sum == most).unwrap_or_default();
        Ok(Generation {
            text: labels[best].clone(),
            prompt_tokens: prompt.len() as u64,
            tokens: texts[best].1 as u64,
            cut,
            left_out,
            labels: powers.into_iter().map(|power| power / total).collect(),
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

    fn check_form(&self, form: &Json) -> Result<(), InferenceError> {
        self.0.grammars()?.check(form)
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
