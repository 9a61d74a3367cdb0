//! A language model in ONNX (a decoder with a cache), run by ONNX Runtime: prompts to texts,
//! and how likely texts are.
//!
//! ```ron
//! OnnxDecoder(
//!     path: "models/smollm2/model.onnx", tokenizer: "models/smollm2/tokenizer.json",
//!     template: File("models/smollm2/chat_template.jinja"), context: 4096, batch: 8,
//!     sampling: (max_tokens: 256, temperature: 0),
//! )
//! ```
//!
//! Names are optimum's: `input_ids`, `attention_mask`, `position_ids` (if the model has it)
//! and `past_key_values.N.key`/`.value` in; `logits` and `present.N.key`/`.value` out, with
//! caches in 32-bit floats. A model with an input `num_logits_to_keep`, as the project's own
//! conversion makes them, is spared the logits that nobody looks at.
//!
//! Prompts of different turns that wait at the same time are decoded together, and each
//! leaves when it has ended; those that come later are stepped in turn with them. What is too
//! long is cut where the prompt allows it.
//!
//! What messages say is text: a control token in it (`<|im_end|>`) is none. Only the template
//! writes control tokens.
//!
//! The temperature 0 takes the likeliest token; random numbers depend on the seed and the
//! prompt. A prompt's text does not depend on what else is decoded: rows are padded by whole
//! blocks, within which the runtime adds up in the same order.
//!
//! Likelihood is the mean of log P(token | context, tokens before); of a context that is too
//! long the beginning is left out. Cost: a token of a prompt costs one pass of the weights
//! shared by the prompt, a generated token one shared by the batch.

mod chat;
mod generate;
mod net;
mod serve;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Deserialize;
use tokenizers::Tokenizer;
use turnflow_engine::component::{BuildError, Capability, Check, Model, ModelConfig, ModelKind};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Sampling, SamplingFields};
use turnflow_engine::spec::{FilePath, from_tree};

use self::chat::Chat;
use self::generate::Decoder;
use self::net::Net;
use self::serve::Serving;
use super::control::Encoder;
use super::runtime::{Device, Offsets, Settings, Tokens, hash_file, session};

/// The table's entry.
pub const KIND: ModelKind = ModelKind {
    name: "OnnxDecoder",
    summary: "a language model in ONNX: prompts to texts, likelihoods, and a tokenizer",
    parse: |tree, sources| Ok(Box::new(from_tree::<OnnxDecoderConfig>(tree, sources)?)),
};

/// How a chat becomes one text.
#[derive(Clone, Debug, Default, Deserialize)]
pub enum Template {
    /// As ChatML writes it.
    #[default]
    ChatMl,
    /// By a template in Jinja, as models' repositories have it (`chat_template.jinja`).
    File(FilePath),
    /// The messages' texts with an empty line between them, for models that know no chat.
    Plain,
}

/// Fields of `OnnxDecoder`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnnxDecoderConfig {
    /// The model's file.
    pub path: FilePath,
    /// Its `tokenizer.json`.
    pub tokenizer: FilePath,
    /// How a chat becomes one text: `ChatMl` (default), `File(path)` or `Plain`.
    #[serde(default)]
    pub template: Template,
    /// Tokens that end a text. Default: those that models commonly end with, as far as the
    /// tokenizer has them (`<|im_end|>`, `<|endoftext|>`, `</s>`, `<|eot_id|>`, `<|end|>`,
    /// `<end_of_turn>`, `<eos>`).
    #[serde(default)]
    pub eos: Option<Vec<String>>,
    /// The token that templates know as `bos_token`. Default empty.
    #[serde(default)]
    pub bos: String,
    /// `Cpu` (default) or `Cuda(n)`, where the cache is copied from and to the GPU.
    #[serde(default)]
    pub device: Device,
    /// Threads on the processor. Default: as many as there are cores.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Tokens of a prompt and its text together, at most. Default 2048.
    #[serde(default = "default_context")]
    pub context: usize,
    /// Texts that are decoded together, at most; a beam counts as one. Default 8.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// How to generate, where operators leave it open.
    #[serde(default)]
    pub sampling: SamplingFields,
}

fn default_context() -> usize {
    2048
}
fn default_batch() -> usize {
    8
}

/// Ends of texts in common families of models.
const ENDS: [&str; 7] = ["<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<eos>"];

impl ModelConfig for OnnxDecoderConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
        check.exists("tokenizer", &self.tokenizer);
        if let Template::File(file) = &self.template {
            check.text("template", file);
        }
        if self.eos.as_ref().is_some_and(Vec::is_empty) {
            check.error(
                "wrong-value",
                "eos",
                "without a token that ends texts, none ends; leave `eos` out for the usual",
            );
        }
        check.range("context", self.context, 16, 1_000_000);
        check.range("batch", self.batch, 1, 1024);
        if let Some(threads) = self.threads {
            check.range("threads", threads, 1, 1024);
        }
        check.sampling("sampling", &self.sampling);
        if self.sampling.over(&Sampling::default()).max_tokens >= self.context {
            check.error("out-of-range", "sampling", "`max_tokens` leaves no room for a prompt in `context`");
        }
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Generate, Capability::Likelihood, Capability::Tokenize]
    }

    fn explain(&self) -> String {
        let template = match &self.template {
            Template::ChatMl => "ChatMl".to_owned(),
            Template::Plain => "Plain".to_owned(),
            Template::File(file) => format!("{:?}", file.written),
        };
        let sampling = self.sampling.over(&Sampling::default());
        format!(
            "path: {:?}, template: {template}, context: {}, batch: {}, max_tokens: {}, temperature: {}, device: {:?}",
            self.path.written, self.context, self.batch, sampling.max_tokens, sampling.temperature, self.device
        )
    }

    fn load(&self, name: &str) -> Result<Model, BuildError> {
        self.open(name).map_err(|source| BuildError::Model { model: name.to_owned(), source })
    }
}

impl OnnxDecoderConfig {
    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let Tokens { bytes, tokenizer, pad } = Tokens::read(&self.tokenizer.path)?;
        let ends = ends(&tokenizer, self.eos.as_deref())?;
        let end = tokenizer.id_to_token(ends[0]).unwrap_or_default();
        let (chat, source) = Chat::read(&self.template, &self.bos, &end, |mark| tokenizer.token_to_id(mark).is_some())?;

        let mut hasher = blake3::Hasher::new();
        hash_file(&mut hasher, &self.path.path)?;
        hasher.update(&bytes);
        hasher.update(source.as_bytes());
        hasher.update(format!("{ends:?} {:?} {}", self.bos, self.context).as_bytes());
        let fingerprint = hasher.finalize().to_hex().to_string();

        let (path, device, threads, batch) = (self.path.path.clone(), self.device, self.threads, self.batch);
        let pad = pad.unwrap_or(i64::from(ends[0]));
        let load = move || Net::new(session(&path, device, threads, Settings::Service)?, pad);
        let serving = Serving::start(name, batch, load)?;
        let meter = serving.meter.clone();
        let decoder = Arc::new(Decoder {
            serving,
            encoder: Arc::new(Encoder::new(tokenizer.clone())),
            chat,
            ends,
            context: self.context,
            batch: self.batch,
            sampling: self.sampling.over(&Sampling::default()),
        });
        Ok(Model {
            name: name.to_owned(),
            fingerprint,
            tokenizer: Some(Arc::new(Offsets(tokenizer))),
            generator: Some(Arc::new(generate::Shared(decoder.clone()))),
            likelihood: Some(Arc::new(generate::Shared(decoder))),
            meter: Some(Arc::new(move || meter.usage())),
            ..Model::default()
        })
    }
}

/// The ids of the tokens that end a text; at least one.
fn ends(tokenizer: &Tokenizer, given: Option<&[String]>) -> Result<Vec<u32>, InferenceError> {
    let Some(given) = given else {
        let ends: Vec<u32> = ENDS.iter().filter_map(|end| tokenizer.token_to_id(end)).collect();
        return if ends.is_empty() {
            Err(InferenceError::Tokenizer(
                "it has none of the tokens that usually end texts; name them as `eos`".into(),
            ))
        } else {
            Ok(ends)
        };
    };
    let id = |end: &String| {
        tokenizer
            .token_to_id(end)
            .ok_or_else(|| InferenceError::Tokenizer(format!("`eos` names {end:?}, which is no token")))
    };
    given.iter().map(id).collect()
}
