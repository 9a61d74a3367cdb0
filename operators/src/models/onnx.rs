//! An encoder in ONNX, run by ONNX Runtime: texts to vectors.
//!
//! ```ron
//! Onnx(path: "models/minilm/model.onnx", tokenizer: "models/minilm/tokenizer.json", pooling: Mean, max_tokens: 256)
//! ```
//!
//! Inputs are those of BERT and its kin: `input_ids`, `attention_mask` and, where the model
//! has it, `token_type_ids`, each int64 of shape `[batch, tokens]`. The output is either
//! token states `[batch, tokens, dimension]`, which are pooled here, or `[batch, dimension]`.
//! Sentence-BERT (Reimers and Gurevych 2019) is the source of mean pooling over the mask.

pub mod direct;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ndarray::Array2;
use ort::session::Session;
use ort::value::Tensor;
use serde::Deserialize;
use tokenizers::{Tokenizer, TruncationParams};
use turnflow_engine::component::{Ability, BuildError, Check, Model, ModelConfig, ModelKind};
use turnflow_engine::inference::{Backend, Embedder, InferenceError, Limits, Role, Service, Urgency, Vector};
use turnflow_engine::spec::{FilePath, from_tree};

use self::direct::Settings;
pub use super::runtime::Device;
use super::runtime::{Offsets, Tokens, read, require_inputs, session};

/// The table's entry.
pub const KIND: ModelKind = ModelKind {
    name: "Onnx",
    summary: "an encoder in ONNX: texts to vectors, and a tokenizer",
    parse: |tree, sources| Ok(Box::new(from_tree::<OnnxConfig>(tree, sources)?)),
};

/// How token states become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Pooling {
    /// The mean over the tokens that are not padding.
    #[default]
    Mean,
    /// The first token's.
    Cls,
    /// The last token's that is not padding.
    Last,
}

/// Fields of `Onnx`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnnxConfig {
    /// The model's file.
    pub path: FilePath,
    /// Its `tokenizer.json`.
    pub tokenizer: FilePath,
    /// How token states become one vector: `Mean` (default), `Cls`, `Last`.
    #[serde(default)]
    pub pooling: Pooling,
    /// Longer texts are cut to this many tokens, special tokens included. Default 256.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: usize,
    /// Whether vectors are scaled to length 1, so that their inner product is the cosine.
    /// Default true.
    #[serde(default = "default_normalize")]
    pub normalize: bool,
    /// Put before what is looked for (E5: `"query: "`). Default empty.
    #[serde(default)]
    pub query_prefix: String,
    /// Put before what is looked through (E5: `"passage: "`). Default empty.
    #[serde(default)]
    pub passage_prefix: String,
    /// `Cpu` (default) or `Cuda(n)`.
    #[serde(default)]
    pub device: Device,
    /// Threads of one batch on the processor. Default: as many as there are cores.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Most texts in a batch. Default 64.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// Most tokens in a batch, padding included. Default 2048, which keeps a small encoder's
    /// states in a processor's cache; a GPU wants more.
    #[serde(default = "default_batch_tokens")]
    pub batch_tokens: usize,
}

fn default_max_tokens() -> usize {
    256
}
fn default_normalize() -> bool {
    true
}
fn default_batch() -> usize {
    64
}
fn default_batch_tokens() -> usize {
    2048
}

impl ModelConfig for OnnxConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
        check.exists("tokenizer", &self.tokenizer);
        check.range("max_tokens", self.max_tokens, 8, 131_072);
        check.range("batch", self.batch, 1, 4096);
        check.range("batch_tokens", self.batch_tokens, 8, 10_000_000);
        if let Some(threads) = self.threads {
            check.range("threads", threads, 1, 1024);
        }
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Embed, Ability::Tokenize]
    }

    fn explain(&self) -> String {
        format!(
            "path: {:?}, pooling: {:?}, max_tokens: {}, normalize: {}, prefixes: {:?} {:?}, device: {:?}",
            self.path.written,
            self.pooling,
            self.max_tokens,
            self.normalize,
            self.query_prefix,
            self.passage_prefix,
            self.device
        )
    }

    fn load(&self, name: &str) -> Result<Model, BuildError> {
        self.open(name).map_err(|source| BuildError::Model { model: name.to_owned(), source })
    }
}

impl OnnxConfig {
    fn tokenizers(&self) -> Result<Tokenizers, InferenceError> {
        let Tokens { bytes, tokenizer: whole, pad } = Tokens::read(&self.tokenizer.path)?;
        let mut cut = whole.clone();
        let truncation = TruncationParams { max_length: self.max_tokens, ..Default::default() };
        cut.with_truncation(Some(truncation)).map_err(|error| InferenceError::Tokenizer(error.to_string()))?;
        Ok(Tokenizers { bytes, cut, whole, pad: pad.unwrap_or(0) })
    }

    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let Tokenizers { bytes: tokenizer_bytes, cut: tokenizer, whole, pad } = self.tokenizers()?;

        let mut hasher = blake3::Hasher::new();
        hasher.update(&read(&self.path.path)?);
        hasher.update(&tokenizer_bytes);
        let settings = format!(
            "{:?} {} {} {:?} {:?}",
            self.pooling, self.max_tokens, self.normalize, self.query_prefix, self.passage_prefix
        );
        hasher.update(settings.as_bytes());
        let fingerprint = hasher.finalize().to_hex().to_string();

        let config = self.clone();
        let limits = Limits { batch_inputs: self.batch, batch_tokens: self.batch_tokens, ..Limits::default() };
        let (service, dimension) = Service::start(name, limits, move || {
            let mut encoder = Encoder::load(&config, pad, Settings::Service)?;
            let probe = encoder.run(&[&vec![0, 0]])?;
            let dimension = probe.first().map_or(0, |vector| vector.len());
            Ok((encoder, dimension))
        })?;
        let embedder = Arc::new(OnnxEmbedder {
            service,
            dimension,
            tokenizer: Arc::new(tokenizer),
            query_prefix: self.query_prefix.as_str().into(),
            passage_prefix: self.passage_prefix.as_str().into(),
        });
        let counted = embedder.clone();
        Ok(Model {
            name: name.to_owned(),
            fingerprint,
            embedder: Some(Arc::new(Shared(embedder))),
            tokenizer: Some(Arc::new(Offsets(whole))),
            meter: Some(Arc::new(move || counted.service.usage())),
            ..Model::default()
        })
    }
}

/// What a `tokenizer.json` gives.
struct Tokenizers {
    bytes: Vec<u8>,
    /// Cuts texts to the model's length.
    cut: Tokenizer,
    whole: Tokenizer,
    pad: i64,
}

struct Encoder {
    session: Session,
    pooling: Pooling,
    normalize: bool,
    pad: i64,
    has_types: bool,
    /// Which output, by position.
    output: usize,
}

impl Encoder {
    fn load(config: &OnnxConfig, pad: i64, settings: Settings) -> Result<Self, InferenceError> {
        let session = session(&config.path.path, config.device, config.threads, settings)?;
        require_inputs(&session, &["input_ids", "attention_mask"])?;
        let has_types = session.inputs().iter().any(|input| input.name() == "token_type_ids");
        let output = session.outputs().iter().position(|output| output.name() == "last_hidden_state").unwrap_or(0);
        Ok(Self { session, pooling: config.pooling, normalize: config.normalize, pad, has_types, output })
    }

    fn infer(&mut self, batch: &[&Vec<u32>]) -> ort::Result<Result<Vec<Vector>, InferenceError>> {
        let tokens = batch.iter().map(|ids| ids.len()).max().unwrap_or(0).max(1);
        let mut ids = Array2::from_elem((batch.len(), tokens), self.pad);
        let mut mask = Array2::<i64>::zeros((batch.len(), tokens));
        for (row, text) in batch.iter().enumerate() {
            for (column, id) in text.iter().enumerate() {
                ids[(row, column)] = i64::from(*id);
                mask[(row, column)] = 1;
            }
        }
        let mut inputs = vec![
            ("input_ids", Tensor::from_array(ids)?.into_dyn()),
            ("attention_mask", Tensor::from_array(mask)?.into_dyn()),
        ];
        if self.has_types {
            let types = Array2::<i64>::zeros((batch.len(), tokens));
            inputs.push(("token_type_ids", Tensor::from_array(types)?.into_dyn()));
        }
        let outputs = self.session.run(inputs)?;
        let (shape, values) = outputs[self.output].try_extract_tensor::<f32>()?;
        let lengths = batch.iter().map(|ids| ids.len().max(1));
        let vectors: Vec<Vec<f32>> = match shape.as_ref() {
            [rows, width] if *rows as usize == batch.len() => {
                values.chunks_exact((*width).max(1) as usize).map(<[f32]>::to_vec).collect()
            }
            [rows, length, width] if *rows as usize == batch.len() => {
                let (length, width) = (*length as usize, (*width).max(1) as usize);
                let states = values.chunks_exact((length * width).max(1));
                states.zip(lengths).map(|(states, used)| pool(self.pooling, states, width, used)).collect()
            }
            other => {
                return Ok(Err(InferenceError::Shape(format!("gives {other:?} for a batch of {}", batch.len()))));
            }
        };
        Ok(Ok(vectors.into_iter().map(|vector| finish(vector, self.normalize)).collect()))
    }
}

/// Token states, `[tokens, width]` flattened, to one vector; `used` tokens are not padding.
fn pool(pooling: Pooling, states: &[f32], width: usize, used: usize) -> Vec<f32> {
    let mut tokens = states.chunks_exact(width).take(used);
    match pooling {
        Pooling::Cls => tokens.next().map(<[f32]>::to_vec).unwrap_or_default(),
        Pooling::Last => tokens.next_back().map(<[f32]>::to_vec).unwrap_or_default(),
        Pooling::Mean => {
            let mut sum = vec![0.0; width];
            for token in tokens {
                sum.iter_mut().zip(token).for_each(|(sum, value)| *sum += value);
            }
            sum.iter_mut().for_each(|sum| *sum /= used as f32);
            sum
        }
    }
}

fn finish(mut vector: Vec<f32>, normalize: bool) -> Vector {
    if normalize {
        let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        if norm > 0.0 {
            vector.iter_mut().for_each(|value| *value /= norm);
        }
    }
    vector.into()
}

impl Backend for Encoder {
    type Input = Vec<u32>;
    type Output = Vector;

    fn cost(input: &Vec<u32>) -> usize {
        input.len()
    }

    fn run(&mut self, batch: &[&Vec<u32>]) -> Result<Vec<Vector>, InferenceError> {
        self.infer(batch).unwrap_or_else(|error| Err(InferenceError::Failed(error.to_string())))
    }
}

struct OnnxEmbedder {
    service: Service<Encoder>,
    dimension: usize,
    tokenizer: Arc<Tokenizer>,
    query_prefix: Arc<str>,
    passage_prefix: Arc<str>,
}

/// What an embedder's futures share.
struct Shared(Arc<OnnxEmbedder>);

impl Embedder for Shared {
    fn dimension(&self) -> usize {
        self.0.dimension
    }

    fn embed(
        &self,
        texts: Vec<String>,
        role: Role,
        urgency: Urgency,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let this = self.0.clone();
        async move {
            let ids = if texts.len() > 8 {
                // Many texts take long enough to keep them off the threads that turns run on.
                let for_thread = this.clone();
                tokio::task::spawn_blocking(move || for_thread.tokenize(texts, role))
                    .await
                    .map_err(|error| InferenceError::Tokenizer(error.to_string()))??
            } else {
                this.tokenize(texts, role)?
            };
            this.service.call(ids, urgency).await
        }
        .boxed()
    }
}

impl OnnxEmbedder {
    fn tokenize(&self, texts: Vec<String>, role: Role) -> Result<Vec<Vec<u32>>, InferenceError> {
        let prefix = match role {
            Role::Query => &self.query_prefix,
            Role::Passage => &self.passage_prefix,
        };
        let encode = |text: String| {
            let text = if prefix.is_empty() { text } else { format!("{prefix}{text}") };
            let encoding = self.tokenizer.encode_fast(text, true);
            encoding
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|error| InferenceError::Tokenizer(error.to_string()))
        };
        texts.into_iter().map(encode).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooling_leaves_padding_out() {
        let states = [1.0, 2.0, 3.0, 4.0, 100.0, 100.0];
        assert_eq!(pool(Pooling::Mean, &states, 2, 2), [2.0, 3.0]);
        assert_eq!(pool(Pooling::Cls, &states, 2, 2), [1.0, 2.0]);
        assert_eq!(pool(Pooling::Last, &states, 2, 2), [3.0, 4.0]);
        assert_eq!(&*finish(vec![3.0, 4.0], true), [0.6, 0.8]);
        assert_eq!(&*finish(vec![0.0, 0.0], true), [0.0, 0.0]);
    }
}
