//! A language model on an OpenAI-compatible server: prompts to texts.
//!
//! ```ron
//! OpenAi(
//!     url: "http://127.0.0.1:8080/v1", model: "local", key_env: None, context: 8192,
//!     timeout_s: 60, concurrency: 4, retries: 4, sampling: (max_tokens: 256, temperature: 0),
//! )
//! ```
//!
//! Sends `POST {url}/chat/completions` and reads the response as a stream, so that a server that hangs is detected
//! between two tokens. Responses that are not streamed are accepted too. Transient errors are retried: no connection,
//! no response in time, the statuses 408, 409, 425, 429 and 5xx, streams that end early, and the same faults reported
//! within a stream. The pause doubles each time, or follows `Retry-After`. Permanent errors (a wrong key, an unknown
//! model, a redirect, a response that is not JSON) fail at once.
//!
//! Thoughts are no part of the text, whether the server sends them in a field of their own or between tags. A response
//! without a text fails. A field that the server refuses (`max_tokens`, `temperature`, `stream_options` and others that
//! do not change what is asked) is renamed or left out from then on, with a warning; `body` and `limit_field` say so
//! from the start.
//!
//! The key is read from an environment variable and never occurs in an error, a log or a fingerprint.
//!
//! Deterministic as far as the server is: the temperature is 0 unless the pipeline sets another. Cost: one request for
//! each prompt, at most `concurrency` at a time.

mod bounded;
pub(super) mod client;
mod finish;
mod pauses;
mod refused;
#[cfg(test)]
#[path = "../../../../fuzz/src/replies.rs"]
mod replies;
mod request;
pub(super) mod server;
pub(super) mod stream;
mod surrogates;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Sampling, SamplingFields};
use turnflow_engine::spec::FilePath;

use self::request::Counter;
use self::server::Server;
use super::load_model;
use super::runtime::{Offsets, Tokens};

/// Entry in the model table.
pub const KIND: ModelKind = ModelKind::of::<OpenAiConfig>("OpenAi", "a language model on an OpenAI-compatible server");

/// Fields of `OpenAi`.
#[config]
pub struct OpenAiConfig {
    /// Base URL of the server, including `/v1`.
    pub url: String,
    /// The model's name on the server.
    pub model: String,
    /// Environment variable that holds the API key. Default: no key is sent.
    pub key_env: Option<String>,
    /// Time limit of one attempt, in seconds.
    #[field(default = 60.0, range = 0.001..=86_400.0)]
    pub timeout_s: f64,
    /// Time limit between two pieces of a response, in seconds.
    #[field(default = 30.0, range = 0.001..=86_400.0)]
    pub silence_s: f64,
    /// Maximum number of concurrent requests.
    #[field(default = 4, range = 1..=10_000)]
    pub concurrency: usize,
    /// Maximum number of retries after the first attempt.
    #[field(default = 4, range = 0..=100)]
    pub retries: usize,
    /// Pause before the first retry, in seconds; doubled for each further retry, less a jitter of up to a half that depends
    /// on the prompt.
    #[field(default = 0.5, range = 0.0..=3600.0)]
    pub pause_s: f64,
    /// Context length of the model in tokens, generated ones included.
    #[field(default = 8192, range = 16..=100_000_000)]
    pub context: usize,
    /// The model's `tokenizer.json`, for counting tokens. Default: none; the number is estimated as one token for every
    /// four bytes, and at least one for each word.
    pub tokenizer: Option<FilePath>,
    /// Whether requests at a temperature above 0 have a seed. Some servers refuse requests with one.
    #[field(default = true)]
    pub seeded: bool,
    /// The name of the field that limits the number of tokens. Default `max_tokens`; newer models of OpenAI take only
    /// `max_completion_tokens`.
    #[field(default = "max_tokens")]
    pub limit_field: String,
    /// Further fields of each request, such as `{"reasoning_effort": "low"}`. A field whose value is `None` is left out,
    /// such as `{"temperature": None}`.
    #[field(default)]
    pub body: BTreeMap<String, Option<serde_json::Value>>,
    /// Whether replies begin with thoughts that have no opening tag, because the server's chat template has written it.
    /// Default: the replies tell, and the first one is streamed only when it is known.
    pub unmarked_thoughts: Option<bool>,
    /// Default sampling settings, for fields that operators omit. The protocol supports only `max_tokens`,
    /// `temperature`, `top_p`, `seed` and `stop`.
    #[field(default)]
    pub sampling: SamplingFields,
}

impl ModelConfig for OpenAiConfig {
    fn computes_here(&self) -> bool {
        false
    }

    fn takes_formats(&self) -> bool {
        true
    }

    fn validate(&self, check: &mut Check<'_>) {
        self.server().validate(check);
        if let Some(tokenizer) = &self.tokenizer {
            check.exists("tokenizer", tokenizer);
        }
        if let Some(name) = ["messages", "model"].into_iter().find(|name| self.body.contains_key(*name)) {
            check.error("wrong-value", "body", format!("`{name}` cannot be set here"));
        }
        if self.limit_field.trim().is_empty() {
            check.error("wrong-value", "limit_field", "the name is empty");
        }
        check.sampling("sampling", &self.sampling);
        let sampling = self.sampling.over(&Sampling::default());
        if let Some(field) = request::not_in_the_protocol(&sampling) {
            let message = format!("`{field}` is not supported by OpenAI-compatible servers; leave it out");
            check.error("wrong-value", "sampling", message);
        }
        if sampling.max_tokens >= self.context {
            check.error("out-of-range", "sampling", "`max_tokens` leaves no room for a prompt in `context`");
        }
    }

    fn capabilities(&self) -> &'static [Capability] {
        if self.tokenizer.is_some() { &[Capability::Generate, Capability::Tokenize] } else { &[Capability::Generate] }
    }

    fn explain(&self) -> String {
        let sampling = self.sampling.over(&Sampling::default());
        format!(
            "url: {}, model: {:?}, key: {}, context: {}, max_tokens: {}, temperature: {}, seeded: {}, \
             timeout: {} s, concurrency: {}, retries: {}{}",
            self.url,
            self.model,
            self.server().key(),
            self.context,
            sampling.max_tokens,
            sampling.temperature,
            self.seeded,
            self.timeout_s,
            self.concurrency,
            self.retries,
            self.departures(),
        )
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

impl OpenAiConfig {
    fn server(&self) -> Server<'_> {
        Server {
            url: &self.url,
            key_env: self.key_env.as_deref(),
            timeout_s: self.timeout_s,
            silence_s: self.silence_s,
            pause_s: self.pause_s,
            concurrency: self.concurrency,
            retries: self.retries,
        }
    }

    /// The settings of requests that differ from the usual ones.
    fn departures(&self) -> String {
        let mut all = String::new();
        if self.limit_field != Self::default_limit_field() {
            all.push_str(&format!(", limit_field: {}", self.limit_field));
        }
        for (name, value) in &self.body {
            let value = value.as_ref().map_or("left out".to_owned(), ToString::to_string);
            all.push_str(&format!(", {name}: {value}"));
        }
        all
    }

    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let tokens = self.tokenizer.as_ref().map(|file| Tokens::read(&file.path)).transpose()?;
        let mut hasher = blake3::Hasher::new();
        for part in ["OpenAi", &self.url, &self.model, &self.context.to_string()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        tokens.iter().for_each(|tokens| _ = hasher.update(&tokens.bytes));
        // Without them, the fingerprint is that of versions that had no such fields.
        hasher.update(self.departures().as_bytes());
        let counter = Counter { tokenizer: tokens.map(|tokens| tokens.tokenizer) };
        let tokenizer = counter.tokenizer.clone();
        let sampling = self.sampling.over(&Sampling::default());
        let client = self.server().client("chat/completions")?;
        let meter = client.meter.clone();
        let form = request::Form {
            seeded: self.seeded,
            limit_field: self.limit_field.clone(),
            body: self.body.clone(),
            unmarked_thoughts: self.unmarked_thoughts,
        };
        let generator = request::OpenAi::new(client, self.model.clone(), self.context, counter, sampling).with(form);
        Ok(Model {
            name: name.to_owned(),
            fingerprint: hasher.finalize().to_hex().to_string(),
            tokenizer: tokenizer.map(|tokenizer| Arc::new(Offsets(tokenizer)) as _),
            generator: Some(Arc::new(generator)),
            meter: Some(Arc::new(move || meter.usage())),
            ..Model::default()
        })
    }
}
