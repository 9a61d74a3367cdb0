//! An encoder-decoder in ONNX (T5-like models), run by ONNX Runtime: prompts to texts.
//!
//! ```ron
//! OnnxSeq2Seq(
//!     encoder: "models/flan-t5/encoder_model.onnx", decoder: "models/flan-t5/decoder_model.onnx",
//!     tokenizer: "models/flan-t5/tokenizer.json", start: "<pad>", eos: ["</s>"], max_input: 512,
//!     sampling: (max_tokens: 60, beams: 3, no_repeat_ngram: 3, length_penalty: 1.0, early_stopping: true),
//! )
//! ```
//!
//! Files and names are optimum's: the encoder takes `input_ids` and `attention_mask` and returns `last_hidden_state`;
//! the decoder without a cache takes `input_ids`, `encoder_attention_mask` and `encoder_hidden_states` and returns
//! `logits`. These models have no chat format: they read the messages' texts. The sampling in the example is that of a
//! published system for short grounded answers (TechSSN, its table of generation settings).
//!
//! Inputs that wait at the same time share a batch, and their beams share each step. The same prompt gives the same
//! text, except for rounding differences next to padding. Cost: without a cache, generating the n-th token costs the
//! decoder n tokens for each beam; texts are short.

mod net;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::{InferenceError, Limits, Priority, Service};
use turnflow_engine::language::{Finish, Generation, Generator, Prompt, Sampling, SamplingFields, TextStream};
use turnflow_engine::spec::FilePath;

use self::net::{Net, Request, Tell};
use super::control::Encoder;
use super::load_model;
use super::runtime::{Device, Offsets, Settings, Tokens, hash_file, session};
use super::streamed::Streamed;

/// Entry in the model table.
pub const KIND: ModelKind =
    ModelKind::of::<OnnxSeq2SeqConfig>("OnnxSeq2Seq", "an encoder-decoder in ONNX: text generation and a tokenizer");

/// Fields of `OnnxSeq2Seq`.
#[config]
pub struct OnnxSeq2SeqConfig {
    /// ONNX file of the encoder.
    pub encoder: FilePath,
    /// ONNX file of the decoder without a cache.
    pub decoder: FilePath,
    /// The models' `tokenizer.json`.
    pub tokenizer: FilePath,
    /// The token that the decoder starts with. Default `"<pad>"`, as for T5.
    #[field(default = "<pad>")]
    pub start: String,
    /// Tokens that end a text. Default `["</s>"]`.
    #[field(default = vec!["</s>".to_owned()])]
    pub eos: Vec<String>,
    /// Maximum number of input tokens of the encoder, special ones included; longer prompts are cut in the parts that allow
    /// it.
    #[field(default = 512, range = 8..=1_000_000)]
    pub max_input: usize,
    /// Minimum number of tokens before a text may end.
    #[field(default)]
    pub min_tokens: usize,
    /// Device: `Cpu` (default) or `Cuda(n)`, the NVIDIA GPU with index n.
    #[field(default)]
    pub device: Device,
    /// Number of CPU threads. Default: the number of cores.
    #[field(range = 1..=1024)]
    pub threads: Option<usize>,
    /// Maximum number of prompts in a batch.
    #[field(default = 8, range = 1..=1024)]
    pub batch: usize,
    /// Default sampling settings, for fields that operators omit.
    #[field(default)]
    pub sampling: SamplingFields,
}

impl ModelConfig for OnnxSeq2SeqConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("encoder", &self.encoder);
        check.exists("decoder", &self.decoder);
        check.exists("tokenizer", &self.tokenizer);
        if self.eos.is_empty() {
            check.error("wrong-value", "eos", "at least one end token is required");
        }
        check.sampling("sampling", &self.sampling);
        let most = self.sampling.over(&Sampling::default()).max_tokens;
        check.range("min_tokens", self.min_tokens, 0, most);
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Generate, Capability::Tokenize]
    }

    fn explain(&self) -> String {
        let sampling = self.sampling.over(&Sampling::default());
        format!(
            "encoder: {:?}, decoder: {:?}, max_input: {}, max_tokens: {}, beams: {}, no_repeat_ngram: {}, \
             length_penalty: {}, early_stopping: {}, temperature: {}, batch: {}, device: {:?}",
            self.encoder.written,
            self.decoder.written,
            self.max_input,
            sampling.max_tokens,
            sampling.beams,
            sampling.no_repeat_ngram,
            sampling.length_penalty,
            sampling.early_stopping,
            sampling.temperature,
            self.batch,
            self.device
        )
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

impl OnnxSeq2SeqConfig {
    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let Tokens { bytes, tokenizer, pad } = Tokens::read(&self.tokenizer.path)?;
        let id = |token: &String| {
            let missing = || InferenceError::Tokenizer(format!("no token {token:?}"));
            tokenizer.token_to_id(token).ok_or_else(missing)
        };
        let (start, ends) = (id(&self.start)?, self.eos.iter().map(id).collect::<Result<Vec<u32>, _>>()?);

        let mut hasher = blake3::Hasher::new();
        for file in [&self.encoder, &self.decoder] {
            hash_file(&mut hasher, &file.path)?;
        }
        hasher.update(&bytes);
        hasher.update(format!("{start} {ends:?} {} {}", self.max_input, self.min_tokens).as_bytes());
        let fingerprint = hasher.finalize().to_hex().to_string();

        let config = self.clone();
        let pad = pad.unwrap_or(i64::from(start));
        let batch_tokens = self.batch * self.max_input;
        let limits = Limits { batch_inputs: self.batch, batch_tokens, ..Limits::default() };
        let (service, ()) = Service::start(name, limits, move || {
            let open = |file: &FilePath| session(&file.path, config.device, config.threads, Settings::Service);
            let net = Net::new(open(&config.encoder)?, open(&config.decoder)?, start, ends, pad, config.min_tokens)?;
            Ok((net, ()))
        })?;
        let inner = Arc::new(Seq2Seq {
            service,
            encoder: Arc::new(Encoder::new(tokenizer.clone())),
            max_input: self.max_input,
            sampling: self.sampling.over(&Sampling::default()),
        });
        let counted = inner.clone();
        Ok(Model {
            name: name.to_owned(),
            fingerprint,
            tokenizer: Some(Arc::new(Offsets(tokenizer))),
            generator: Some(Arc::new(Shared(inner))),
            meter: Some(Arc::new(move || counted.service.usage())),
            ..Model::default()
        })
    }
}

struct Seq2Seq {
    service: Service<Net>,
    encoder: Arc<Encoder>,
    max_input: usize,
    sampling: Sampling,
}

/// Marks the request as abandoned when it is dropped.
#[derive(Default)]
struct Abandon(Arc<AtomicBool>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The model, shared by its futures.
struct Shared(Arc<Seq2Seq>);

impl Seq2Seq {
    fn fit(&self, prompt: Prompt) -> Result<(Vec<u32>, usize, usize), InferenceError> {
        let encode = |prompt: &Prompt| self.encoder.text(&prompt.plain(), true);
        let (prompt, cut) = prompt.fit(self.max_input, |prompt| Ok(encode(prompt)?.len()))?;
        Ok((encode(&prompt)?, cut, prompt.left_out()))
    }

    async fn generate(
        self: Arc<Self>,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> Result<Generation, InferenceError> {
        let this = self.clone();
        let (tokens, cut, left_out) = tokio::task::spawn_blocking(move || this.fit(prompt))
            .await
            .map_err(|error| InferenceError::Failed(error.to_string()))??;
        let (prompt_tokens, stop) = (tokens.len() as u64, sampling.stop.clone());
        let streamed = Arc::new(Streamed::new(stream.clone(), &stop));
        let tell = stream.is_wanted().then(|| {
            let (encoder, streamed) = (self.encoder.clone(), streamed.clone());
            Box::new(move |tokens: &[u32]| {
                if let Ok(text) = encoder.decode(tokens) {
                    streamed.so_far(&text);
                }
            }) as Tell
        });
        // Dropped together with this future, when no caller waits for it.
        let abandoned = Abandon::default();
        let found = self
            .service
            .call(vec![Request { tokens, sampling, tell, abandoned: abandoned.0.clone() }], Priority::Turn)
            .await?;
        let found =
            found.into_iter().next().ok_or_else(|| InferenceError::Failed("the model returned nothing".into()))?;
        let mut text = self.encoder.decode(&found.tokens)?;
        let mut finish = found.finish;
        if let Some(end) = stop.iter().filter_map(|stop| text.find(stop.as_str())).min() {
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
