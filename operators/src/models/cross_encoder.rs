//! A model of pairs in ONNX: a cross-encoder, or a classifier such as NLI.
//!
//! ```ron
//! CrossEncoder(path: "models/reranker/model.onnx", tokenizer: "models/reranker/tokenizer.json", max_tokens: 512)
//! ```
//!
//! Both texts go through the model together (Nogueira and Cho 2019). Inputs are those of BERT,
//! `token_type_ids` telling the texts apart where the model has them; the output is
//! `[batch, classes]`: one class for a reranker (its logit is the score), more for a
//! classifier. The longer text is cut first where a pair is too long.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ort::session::Session;
use serde::Deserialize;
use turnflow_engine::component::{Ability, BuildError, Check, Model, ModelConfig, ModelKind};
use turnflow_engine::inference::{Backend, InferenceError, Limits, PairScorer, Service, Urgency};
use turnflow_engine::spec::{FilePath, from_tree};

use super::runtime::{Device, Offsets, Settings, Tokens, hash_file, require_inputs, session};
use super::text::{Row, Texts, inputs};

/// The table's entry.
pub const KIND: ModelKind = ModelKind {
    name: "CrossEncoder",
    summary: "a model of pairs in ONNX: a cross-encoder, or a classifier such as NLI",
    parse: |tree, sources| Ok(Box::new(from_tree::<CrossEncoderConfig>(tree, sources)?)),
};

/// Fields of `CrossEncoder`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrossEncoderConfig {
    /// The model's file.
    pub path: FilePath,
    /// Its `tokenizer.json`.
    pub tokenizer: FilePath,
    /// Longer pairs are cut to this many tokens, special tokens included. Default 512.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: usize,
    /// `Cpu` (default) or `Cuda(n)`.
    #[serde(default)]
    pub device: Device,
    /// Threads of one batch on the processor. Default: as many as there are cores.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Most pairs in a batch. Default 32.
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// Most tokens in a batch, padding included. Default 4096.
    #[serde(default = "default_batch_tokens")]
    pub batch_tokens: usize,
}

fn default_max_tokens() -> usize {
    512
}
fn default_batch() -> usize {
    32
}
fn default_batch_tokens() -> usize {
    4096
}

impl ModelConfig for CrossEncoderConfig {
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
        &[Ability::ScorePairs, Ability::Tokenize]
    }

    fn explain(&self) -> String {
        format!("path: {:?}, max_tokens: {}, device: {:?}", self.path.written, self.max_tokens, self.device)
    }

    fn load(&self, name: &str) -> Result<Model, BuildError> {
        self.open(name).map_err(|source| BuildError::Model { model: name.to_owned(), source })
    }
}

impl CrossEncoderConfig {
    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let tokens = Tokens::read(&self.tokenizer.path)?;
        let texts = Texts::new(&tokens, self.max_tokens, "", "")?;
        let mut hasher = blake3::Hasher::new();
        hash_file(&mut hasher, &self.path.path)?;
        hasher.update(&tokens.bytes);
        hasher.update(format!("pairs {}", self.max_tokens).as_bytes());
        let config = self.clone();
        let limits = Limits { batch_inputs: self.batch, batch_tokens: self.batch_tokens, ..Limits::default() };
        let pad = tokens.pad.unwrap_or(0);
        let (service, classes) = Service::start(name, limits, move || {
            let session = session(&config.path.path, config.device, config.threads, Settings::Service)?;
            require_inputs(&session, &["input_ids", "attention_mask"])?;
            let mut encoder = Encoder { session, pad };
            let probe = encoder.run(&[&Pair { ids: vec![0, 0], types: vec![0, 1] }])?;
            Ok((encoder, probe.first().map_or(0, Vec::len)))
        })?;
        let scorer = Arc::new(Pairs { service, texts, classes });
        let counted = scorer.clone();
        Ok(Model {
            name: name.to_owned(),
            fingerprint: hasher.finalize().to_hex().to_string(),
            pairs: Some(Arc::new(Shared(scorer))),
            tokenizer: Some(Arc::new(Offsets(tokens.tokenizer))),
            meter: Some(Arc::new(move || counted.service.usage())),
            ..Model::default()
        })
    }
}

/// Tokens of both texts, and which text each is of.
struct Pair {
    ids: Vec<u32>,
    types: Vec<u32>,
}

struct Encoder {
    session: Session,
    pad: i64,
}

impl Encoder {
    fn infer(&mut self, batch: &[&Pair]) -> ort::Result<Result<Vec<Vec<f32>>, InferenceError>> {
        let rows: Vec<Row<'_>> = batch.iter().map(|pair| Row { ids: &pair.ids, types: &pair.types }).collect();
        let outputs = self.session.run(inputs(&self.session, self.pad, &rows)?)?;
        let (shape, values) = outputs[0].try_extract_tensor::<f32>()?;
        Ok(match shape.as_ref() {
            [rows] if *rows as usize == batch.len() => Ok(values.iter().map(|score| vec![*score]).collect()),
            [rows, classes] if *rows as usize == batch.len() => {
                Ok(values.chunks_exact((*classes).max(1) as usize).map(<[f32]>::to_vec).collect())
            }
            other => Err(InferenceError::Shape(format!("gives {other:?} for a batch of {} pairs", batch.len()))),
        })
    }
}

impl Backend for Encoder {
    type Input = Pair;
    type Output = Vec<f32>;

    fn cost(input: &Pair) -> usize {
        input.ids.len()
    }

    fn run(&mut self, batch: &[&Pair]) -> Result<Vec<Vec<f32>>, InferenceError> {
        self.infer(batch).unwrap_or_else(|error| Err(InferenceError::Failed(error.to_string())))
    }
}

struct Pairs {
    service: Service<Encoder>,
    texts: Texts,
    classes: usize,
}

struct Shared(Arc<Pairs>);

impl PairScorer for Shared {
    fn classes(&self) -> usize {
        self.0.classes
    }

    fn score(
        &self,
        first: String,
        seconds: Vec<String>,
        urgency: Urgency,
    ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>> {
        let this = self.0.clone();
        async move {
            let pairs = seconds.into_iter().map(|second| (first.clone(), second)).collect();
            let input = |encoding: &tokenizers::Encoding| Pair {
                ids: encoding.get_ids().to_vec(),
                types: encoding.get_type_ids().to_vec(),
            };
            let pairs = this.texts.encode_pairs(pairs, input).await?;
            this.service.call(pairs, urgency).await
        }
        .boxed()
    }
}
