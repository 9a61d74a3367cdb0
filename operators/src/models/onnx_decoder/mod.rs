//! A language model in ONNX (a decoder with a cache), run by ONNX Runtime: prompts to texts, and likelihoods of texts.
//!
//! ```ron
//! OnnxDecoder(
//!     path: "models/smollm2/model.onnx", tokenizer: "models/smollm2/tokenizer.json",
//!     template: File("models/smollm2/chat_template.jinja"), context: 4096, batch: 8,
//!     sampling: (max_tokens: 256, temperature: 0),
//! )
//! ```
//!
//! Names of inputs and outputs are optimum's: `input_ids`, `attention_mask`, `position_ids` (if the model has it) and
//! `past_key_values.N.key`/`.value` in; `logits` and `present.N.key`/`.value` out, with caches in 32-bit floats. A
//! model with an input `num_logits_to_keep`, which the project's own conversion adds, does not compute logits that are
//! not needed.
//!
//! Prompts of different turns that wait at the same time are decoded together, and each leaves the batch when it has
//! ended. Later prompts form separate batches, which are stepped in turn. A prompt that is too long is cut in the parts
//! that allow it.
//!
//! Messages are plain text: a control token in a message (`<|im_end|>`) has no effect. Only the template writes control
//! tokens.
//!
//! A reply of a form that a caller gives is held to its JSON schema token by token ([`super::grammar`]).
//!
//! At temperature 0 the most likely token is taken; random numbers depend on the seed and the prompt. A prompt's text
//! does not depend on other texts in the batch: rows are padded by whole blocks, within which the runtime sums in the
//! same order.
//!
//! Likelihood is the mean of log P(token | context, tokens before). A context that is too long loses its start. Cost: a
//! prompt token costs one pass over the weights, shared by the whole prompt; a generated token costs one pass, shared
//! by the batch.

mod chat;
mod generate;
mod net;
mod serve;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use tokenizers::Tokenizer;
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Sampling, SamplingFields};
use turnflow_engine::spec::FilePath;

use self::chat::Chat;
use self::generate::Decoder;
use self::net::Net;
use self::serve::Serving;
use super::control::Encoder;
use super::load_model;
use super::runtime::{Device, Offsets, Settings, Tokens, hash_file, session};

/// Entry in the model table.
pub const KIND: ModelKind = ModelKind::of::<OnnxDecoderConfig>(
    "OnnxDecoder",
    "a language model in ONNX: text generation, likelihoods and a tokenizer",
);

/// How a chat is rendered to one text.
#[config]
#[derive(Default)]
pub enum Template {
    /// The ChatML format.
    #[default]
    ChatMl,
    /// A Jinja template file, such as the `chat_template.jinja` of a model repository.
    File(FilePath),
    /// The messages' texts, separated by empty lines, for models without a chat format.
    Plain,
}

/// Fields of `OnnxDecoder`.
#[config]
pub struct OnnxDecoderConfig {
    /// ONNX model file.
    pub path: FilePath,
    /// The model's `tokenizer.json`.
    pub tokenizer: FilePath,
    /// How a chat is rendered to one text: `ChatMl` (default), `File(path)` or `Plain`.
    #[field(default)]
    pub template: Template,
    /// Tokens that end a text. Default: those of `<|im_end|>`, `<|endoftext|>`, `</s>`, `<|eot_id|>`, `<|end|>`,
    /// `<end_of_turn>` and `<eos>` that the tokenizer has.
    pub eos: Option<Vec<String>>,
    /// The token for `bos_token` in templates. Default empty.
    #[field(default)]
    pub bos: String,
    /// Device: `Cpu` (default) or `Cuda(n)`, the NVIDIA GPU with index n. With `Cuda`, the cache is copied to and from
    /// the GPU.
    #[field(default)]
    pub device: Device,
    /// Number of CPU threads. Default: the number of cores.
    #[field(range = 1..=1024)]
    pub threads: Option<usize>,
    /// Maximum number of tokens of a prompt and its generated text together.
    #[field(default = 2048, range = 16..=1_000_000)]
    pub context: usize,
    /// Maximum number of texts that are decoded together; each beam counts as one.
    #[field(default = 8, range = 1..=1024)]
    pub batch: usize,
    /// Default sampling settings, for fields that operators omit.
    #[field(default)]
    pub sampling: SamplingFields,
}

/// End tokens of common model families.
const ENDS: [&str; 7] = ["<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<eos>"];

impl ModelConfig for OnnxDecoderConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
        check.exists("tokenizer", &self.tokenizer);
        if let Template::File(file) = &self.template {
            check.text("template", file);
        }
        if self.eos.as_ref().is_some_and(Vec::is_empty) {
            check.error("wrong-value", "eos", "at least one end token is required; omit `eos` for the default tokens");
        }
        check.sampling("sampling", &self.sampling);
        if self.sampling.over(&Sampling::default()).max_tokens >= self.context {
            check.error("out-of-range", "sampling", "`max_tokens` leaves no room for a prompt in `context`");
        }
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Generate, Capability::Likelihood, Capability::Tokenize]
    }

    fn takes_formats(&self) -> bool {
        true
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

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
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
            grammars: OnceLock::new(),
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
            Err(InferenceError::Tokenizer("none of the usual end tokens exists; set `eos`".into()))
        } else {
            Ok(ends)
        };
    };
    let id = |end: &String| {
        tokenizer
            .token_to_id(end)
            .ok_or_else(|| InferenceError::Tokenizer(format!("`eos` names {end:?}, which is not a token")))
    };
    given.iter().map(id).collect()
}
