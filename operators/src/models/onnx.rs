//! A text encoder in ONNX, run by ONNX Runtime: texts to vectors.
//!
//! ```ron
//! Onnx(path: "models/minilm/model.onnx", tokenizer: "models/minilm/tokenizer.json", pooling: Mean, max_tokens: 256)
//! ```
//!
//! Inputs are those of BERT-like models: `input_ids`, `attention_mask` and, if the model has it, `token_type_ids`, each
//! int64 of shape `[batch, tokens]`. The output is either token states of shape `[batch, tokens, dimension]`, which are
//! pooled here, or vectors of shape `[batch, dimension]`. Mean pooling over the attention mask follows Sentence-BERT
//! (Reimers and Gurevych 2019).

pub mod direct;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ort::session::Session;
use tokenizers::Encoding;
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::{
    Backend, Embedder, InferenceError, Priority, Role, TokenEmbedder, TokenVectors, Vector,
};
use turnflow_engine::spec::FilePath;

use super::runner::Runner;
pub use super::runtime::Device;
use super::runtime::Tokens;
use super::text::{Padding, Row, Texts, inputs};
use super::text_encoder::{EncoderSettings, Loaded, Sizes};
use super::{adapter, load_model};

/// Entry in the model table.
pub const KIND: ModelKind =
    ModelKind::of::<OnnxConfig>("Onnx", "a text encoder in ONNX: vectors, token states and a tokenizer");

/// How token states are pooled to one vector.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over the tokens without padding.
    #[default]
    Mean,
    /// The state of the first token.
    Cls,
    /// The state of the last token before padding.
    Last,
}

/// Fields of `Onnx`.
#[config]
pub struct OnnxConfig {
    /// ONNX model file.
    pub path: FilePath,
    /// The model's `tokenizer.json`.
    pub tokenizer: FilePath,
    /// How token states are pooled to one vector: `Mean` (default), `Cls` or `Last`.
    #[field(default)]
    pub pooling: Pooling,
    /// Maximum length of a text in tokens, special tokens included; longer texts are cut.
    #[field(default = 256, range = 8..=131_072)]
    pub max_tokens: usize,
    /// Whether vectors are scaled to unit length, so that their inner product is the cosine.
    #[field(default = true)]
    pub normalize: bool,
    /// Prefix of each query text (E5: `"query: "`). Default empty.
    #[field(default)]
    pub query_prefix: String,
    /// Prefix of each passage text (E5: `"passage: "`). Default empty.
    #[field(default)]
    pub passage_prefix: String,
    /// Query adapter, a file that `turnflow tune` writes: a linear map on the vectors of queries. Passages are not
    /// embedded again. Token vectors have none. Default: none.
    pub adapter: Option<FilePath>,
    /// Device: `Cpu` (default) or `Cuda(n)`, the NVIDIA GPU with index n.
    #[field(default)]
    pub device: Device,
    /// Number of CPU threads for one batch. Default: the number of cores.
    #[field(range = 1..=1024)]
    pub threads: Option<usize>,
    /// Maximum number of texts in a batch. Default 64, and 256 on a GPU.
    #[field(range = 1..=4096)]
    pub batch: Option<usize>,
    /// Maximum number of tokens in a batch, padding included. Default 2048, which keeps a small encoder's states in a CPU's cache, and 32768 on
    /// a GPU.
    #[field(range = 8..=10_000_000)]
    pub batch_tokens: Option<usize>,
}

impl ModelConfig for OnnxConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.settings().validate(check);
        adapter::validate(check, self.adapter.as_ref());
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Embed, Capability::Tokenize, Capability::EmbedTokens]
    }

    fn adapter(&self) -> Option<&FilePath> {
        self.adapter.as_ref()
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

impl OnnxConfig {
    fn sizes(&self) -> Sizes {
        Sizes::new(self.max_tokens, (self.batch, self.batch_tokens), self.device, (64, 2048), (256, 32_768))
    }

    /// The maximum texts and tokens of a batch.
    pub fn batches(&self) -> (usize, usize) {
        let sizes = self.sizes();
        (sizes.batch, sizes.batch_tokens)
    }

    fn settings(&self) -> EncoderSettings<'_> {
        let sizes = self.sizes();
        EncoderSettings {
            path: &self.path,
            tokenizer: &self.tokenizer,
            device: self.device,
            threads: self.threads,
            sizes,
        }
    }

    fn texts(&self, tokens: &Tokens) -> Result<Texts, InferenceError> {
        Texts::new(tokens, self.max_tokens, &self.query_prefix, &self.passage_prefix)
    }

    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let fingerprinted = format!(
            "{:?} {} {} {:?} {:?}",
            self.pooling, self.max_tokens, self.normalize, self.query_prefix, self.passage_prefix
        );
        let (pooling, normalize) = (self.pooling, self.normalize);
        let texts = |tokens: &_| self.texts(tokens);
        let (embedder, model) = self.settings().load(name, &fingerprinted, texts, move |runner, padding| {
            let mut encoder = Encoder::new(runner, pooling, normalize, padding);
            let probe = encoder.run(&[&Text { ids: vec![0, 0], states: None }])?;
            let dimension = probe.first().map_or(0, |vector| vector.len());
            let has_states = encoder.run(&[&Text { ids: vec![0, 0], states: Some(vec![true, true]) }]).is_ok();
            Ok((encoder, About { dimension, has_states }))
        })?;
        let has_states = embedder.about.has_states;
        let model = Model {
            embedder: Some(Arc::new(Shared(embedder.clone()))),
            token_embedder: has_states.then(|| Arc::new(Shared(embedder)) as _),
            ..model
        };
        adapter::adapted(model, self.adapter.as_ref())
    }
}

/// An input text.
struct Text {
    ids: Vec<u32>,
    /// The tokens whose states are requested; `None` for the pooled vector.
    states: Option<Vec<bool>>,
}

struct Encoder {
    runner: Runner,
    padding: Padding,
    reading: Reading,
}

/// How a model's output becomes vectors.
#[derive(Clone, Copy)]
struct Reading {
    pooling: Pooling,
    normalize: bool,
    /// Index of the output to read.
    output: usize,
}

impl Encoder {
    fn new(runner: Runner, pooling: Pooling, normalize: bool, padding: Padding) -> Self {
        let outputs = runner.session().outputs();
        let output = outputs.iter().position(|output| output.name() == "last_hidden_state").unwrap_or(0);
        Self { runner, padding, reading: Reading { pooling, normalize, output } }
    }
}

fn infer(
    session: &mut Session,
    padding: Padding,
    reading: Reading,
    batch: &[&Text],
) -> ort::Result<Result<Vec<Vector>, InferenceError>> {
    let Reading { pooling, normalize, output } = reading;
    let rows: Vec<Row<'_>> = batch.iter().map(|text| Row { ids: &text.ids, types: &[] }).collect();
    let outputs = session.run(inputs(session, padding, &rows)?)?;
    let (shape, values) = outputs[output].try_extract_tensor::<f32>()?;
    let vectors = match shape.as_ref() {
        [rows, _] if *rows as usize == batch.len() && batch.iter().any(|text| text.states.is_some()) => {
            return Ok(Err(InferenceError::Shape("returned one vector for each text, but no token states".to_owned())));
        }
        [rows, width] if *rows as usize == batch.len() => {
            let vectors = values.chunks_exact((*width).max(1) as usize);
            vectors.map(|vector| finish(vector.to_vec(), normalize)).collect()
        }
        [rows, length, width] if *rows as usize == batch.len() => {
            let (length, width) = (*length as usize, (*width).max(1) as usize);
            let texts = values.chunks_exact((length * width).max(1)).zip(batch);
            texts.map(|(states, text)| vector(states, width, text, pooling, normalize)).collect()
        }
        other => {
            return Ok(Err(InferenceError::Shape(format!(
                "returned the shape {other:?} for a batch of {}",
                batch.len()
            ))));
        }
    };
    Ok(Ok(vectors))
}

/// The pooled vector, or the concatenated token vectors.
fn vector(states: &[f32], width: usize, text: &Text, pooling: Pooling, normalize: bool) -> Vector {
    match &text.states {
        None => finish(pool(pooling, states, width, text.ids.len().max(1)), normalize),
        Some(wanted) => {
            let tokens = states.chunks_exact(width).zip(wanted).filter(|(_, wanted)| **wanted);
            // Always of unit length, whatever `normalize` says, because late interaction compares cosines.
            tokens.flat_map(|(state, _)| finish(state.to_vec(), true).to_vec()).collect()
        }
    }
}

/// Pools token states, a flattened `[tokens, width]`, to one vector. Only the first `used` tokens count.
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
    type Input = Text;
    type Output = Vector;

    fn cost(input: &Text) -> usize {
        input.ids.len()
    }

    fn run(&mut self, batch: &[&Text]) -> Result<Vec<Vector>, InferenceError> {
        let Self { runner, padding, reading } = self;
        runner.run(|session| infer(session, *padding, *reading, batch)).flatten()
    }
}

/// Properties that the first run determines.
struct About {
    dimension: usize,
    /// Whether the model returns token states.
    has_states: bool,
}

/// The loaded encoder, shared by its futures.
struct Shared(Arc<Loaded<Encoder, About>>);

impl Embedder for Shared {
    fn dimension(&self) -> usize {
        self.0.about.dimension
    }

    fn embed(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let this = self.0.clone();
        async move {
            let input = |encoding: &Encoding| Text { ids: encoding.get_ids().to_vec(), states: None };
            this.call(this.texts.encode(texts, role, priority, input), priority).await
        }
        .boxed()
    }
}

impl TokenEmbedder for Shared {
    fn dimension(&self) -> usize {
        self.0.about.dimension
    }

    fn embed_tokens(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<TokenVectors>, InferenceError>> {
        let this = self.0.clone();
        async move {
            let input: fn(&Encoding) -> Text = match role {
                Role::Query => |encoding| Text {
                    ids: encoding.get_ids().to_vec(),
                    states: Some(vec![true; encoding.get_ids().len()]),
                },
                Role::Passage => |encoding| Text {
                    ids: encoding.get_ids().to_vec(),
                    states: Some(encoding.get_special_tokens_mask().iter().map(|special| *special == 0).collect()),
                },
            };
            let vectors = this.call(this.texts.encode(texts, role, priority, input), priority).await?;
            let dimension = this.about.dimension;
            Ok(vectors.into_iter().map(|values| TokenVectors { dimension, values }).collect())
        }
        .boxed()
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
