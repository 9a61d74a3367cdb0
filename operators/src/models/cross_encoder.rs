//! A pair classifier in ONNX: a cross-encoder, or a classifier such as NLI.
//!
//! ```ron
//! CrossEncoder(path: "models/reranker/model.onnx", tokenizer: "models/reranker/tokenizer.json", max_tokens: 512)
//! ```
//!
//! Both texts go through the model together (Nogueira and Cho 2019). Inputs are those of BERT; `token_type_ids`, if the
//! model has it, distinguishes the two texts. The output has the shape `[batch, classes]`: one class for a reranker
//! (its logit is the score), more for a classifier. If a pair is too long, the longer text is cut first.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ort::session::Session;
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::{Backend, InferenceError, PairScorer, Priority};
use turnflow_engine::spec::FilePath;

use super::load_model;
use super::runner::Runner;
use super::runtime::Device;
use super::text::{Padding, Row, Texts, inputs};
use super::text_encoder::{EncoderSettings, Loaded, Sizes};

/// Entry in the model table.
pub const KIND: ModelKind = ModelKind::of::<CrossEncoderConfig>(
    "CrossEncoder",
    "a pair classifier in ONNX: a cross-encoder, or a classifier such as NLI",
);

/// Fields of `CrossEncoder`.
#[config]
pub struct CrossEncoderConfig {
    /// ONNX model file.
    pub path: FilePath,
    /// The model's `tokenizer.json`.
    pub tokenizer: FilePath,
    /// Maximum length of a pair in tokens, special tokens included; longer pairs are cut.
    #[field(default = 512, range = 8..=131_072)]
    pub max_tokens: usize,
    /// Device: `Cpu` (default) or `Cuda(n)`, the NVIDIA GPU with index n.
    #[field(default)]
    pub device: Device,
    /// Number of CPU threads for one batch. Default: the number of cores.
    #[field(range = 1..=1024)]
    pub threads: Option<usize>,
    /// Maximum number of pairs in a batch. Default 32, and 128 on a GPU.
    #[field(range = 1..=4096)]
    pub batch: Option<usize>,
    /// Maximum number of tokens in a batch, padding included. Default 4096, and 32768 on
    /// a GPU.
    #[field(range = 8..=10_000_000)]
    pub batch_tokens: Option<usize>,
}

impl ModelConfig for CrossEncoderConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.settings().validate(check);
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::ScorePairs, Capability::Tokenize]
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

impl CrossEncoderConfig {
    fn settings(&self) -> EncoderSettings<'_> {
        let sizes =
            Sizes::new(self.max_tokens, (self.batch, self.batch_tokens), self.device, (32, 4096), (128, 32_768));
        EncoderSettings {
            path: &self.path,
            tokenizer: &self.tokenizer,
            device: self.device,
            threads: self.threads,
            sizes,
        }
    }

    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let texts = |tokens: &_| Texts::new(tokens, self.max_tokens, "", "");
        let fingerprinted = format!("pairs {}", self.max_tokens);
        let (scorer, model) = self.settings().load(name, &fingerprinted, texts, |runner, padding| {
            let mut encoder = Encoder { runner, padding };
            let probe = encoder.run(&[&Pair { ids: vec![0, 0], types: vec![0, 1] }])?;
            Ok((encoder, probe.first().map_or(0, Vec::len)))
        })?;
        Ok(Model { pairs: Some(Arc::new(Shared(scorer))), ..model })
    }
}

/// Tokens of both texts, and for each token the text that it belongs to.
struct Pair {
    ids: Vec<u32>,
    types: Vec<u32>,
}

struct Encoder {
    runner: Runner,
    padding: Padding,
}

fn infer(
    session: &mut Session,
    padding: Padding,
    batch: &[&Pair],
) -> ort::Result<Result<Vec<Vec<f32>>, InferenceError>> {
    let rows: Vec<Row<'_>> = batch.iter().map(|pair| Row { ids: &pair.ids, types: &pair.types }).collect();
    let outputs = session.run(inputs(session, padding, &rows)?)?;
    let (shape, values) = outputs[0].try_extract_tensor::<f32>()?;
    Ok(match shape.as_ref() {
        [rows] if *rows as usize == batch.len() => Ok(values.iter().map(|score| vec![*score]).collect()),
        [rows, classes] if *rows as usize == batch.len() => {
            Ok(values.chunks_exact((*classes).max(1) as usize).map(<[f32]>::to_vec).collect())
        }
        other => {
            Err(InferenceError::Shape(format!("returned the shape {other:?} for a batch of {} pairs", batch.len())))
        }
    })
}

impl Backend for Encoder {
    type Input = Pair;
    type Output = Vec<f32>;

    fn cost(input: &Pair) -> usize {
        input.ids.len()
    }

    fn run(&mut self, batch: &[&Pair]) -> Result<Vec<Vec<f32>>, InferenceError> {
        let Self { runner, padding } = self;
        runner.run(|session| infer(session, *padding, batch)).flatten()
    }
}

/// A loaded pair classifier. A first run determines its number of classes.
struct Shared(Arc<Loaded<Encoder, usize>>);

impl PairScorer for Shared {
    fn classes(&self) -> usize {
        self.0.about
    }

    fn score(
        &self,
        first: String,
        seconds: Vec<String>,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>> {
        let this = self.0.clone();
        async move {
            let pairs = seconds.into_iter().map(|second| (first.clone(), second)).collect();
            let input = |encoding: &tokenizers::Encoding| Pair {
                ids: encoding.get_ids().to_vec(),
                types: encoding.get_type_ids().to_vec(),
            };
            this.call(this.texts.encode_pairs(pairs, priority, input), priority).await
        }
        .boxed()
    }
}
