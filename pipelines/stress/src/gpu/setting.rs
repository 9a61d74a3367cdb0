//! The models, texts and devices of the parts.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use turnflow_engine::component::{Model, load_alone};
use turnflow_engine::inference::{Embedder, PairScorer, Priority, Role, Vector};
use turnflow_engine::spec::FilePath;
use turnflow_operators::models::cross_encoder::CrossEncoderConfig;
use turnflow_operators::models::onnx::{Device, OnnxConfig, Pooling};

use super::{GpuArgs, device, files};
use crate::scale::texts;

/// Maximum length of a text in tokens.
pub(super) const TOKENS: usize = 256;
/// Maximum length of a pair in tokens.
const PAIR: usize = 512;
/// Texts in a call, as the corpus makes them.
const CALL: usize = 256;

/// The limits of batches.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// In texts.
    pub batch: usize,
    /// In tokens.
    pub tokens: usize,
}

/// The sizes that a GPU gets where they are not what is measured.
pub(super) const LARGE: Sizes = Sizes { batch: 256, tokens: 32_768 };

/// What every part needs.
pub(super) struct Setting {
    pub encoder: PathBuf,
    pub half: Option<PathBuf>,
    pub reranker: Option<PathBuf>,
    /// Different passages.
    pub texts: Vec<String>,
    /// The device that is measured.
    pub device: Device,
    /// Shortest time of one measurement in seconds.
    pub seconds: f64,
    pub gpu: i32,
    pub runtime: tokio::runtime::Runtime,
    pub watch: device::Watch,
}

impl Setting {
    pub fn new(args: &GpuArgs) -> anyhow::Result<Self> {
        let mut seen = HashSet::new();
        let mut texts = texts(&args.texts)?;
        texts.retain(|text| seen.insert(text.clone()));
        texts.truncate(args.limit);
        anyhow::ensure!(texts.len() >= 64, "`{}` has fewer than 64 different texts", args.texts.display());
        let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
        Ok(Self {
            encoder: args.encoder.clone(),
            half: args.half.clone(),
            reranker: args.reranker.clone(),
            texts,
            device: if args.cpu { Device::Cpu } else { Device::Cuda(args.gpu) },
            seconds: args.seconds,
            gpu: args.gpu,
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?,
            watch: device::Watch::start(args.gpu),
        })
    }

    /// The encoder, and the one in 16 bits if there is one, each with its name.
    pub fn encoders(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        [("32 bits", Some(&self.encoder)), ("16 bits", self.half.as_ref())]
            .into_iter()
            .filter_map(|(name, directory)| Some((name, directory?.as_path())))
    }

    /// Fields of an encoder.
    pub fn encoder(&self, directory: &Path, device: Device, sizes: Sizes) -> anyhow::Result<OnnxConfig> {
        let [path, tokenizer] = files(directory)?.map(given);
        Ok(OnnxConfig {
            path,
            tokenizer,
            pooling: Pooling::Mean,
            max_tokens: TOKENS,
            normalize: true,
            query_prefix: String::new(),
            passage_prefix: String::new(),
            adapter: None,
            device,
            threads: None,
            batch: Some(sizes.batch),
            batch_tokens: Some(sizes.tokens),
        })
    }

    /// The encoder in its inference service.
    pub fn open(&self, device: Device, sizes: Sizes) -> anyhow::Result<Encoder> {
        self.open_at(&self.encoder, device, sizes)
    }

    /// An encoder in its inference service.
    pub fn open_at(&self, directory: &Path, device: Device, sizes: Sizes) -> anyhow::Result<Encoder> {
        let model = load_alone(&self.encoder(directory, device, sizes)?, "encoder")?;
        let embedder = model.embedder.clone().ok_or_else(|| anyhow::anyhow!("the encoder makes no vectors"))?;
        Ok(Encoder { model, embedder })
    }

    /// The cross-encoder in its inference service, if there is one.
    pub fn open_pairs(&self, device: Device, sizes: Sizes) -> anyhow::Result<Option<Pairs>> {
        let Some(directory) = &self.reranker else { return Ok(None) };
        let [path, tokenizer] = files(directory)?.map(given);
        let (batch, batch_tokens) = (Some(sizes.batch), Some(sizes.tokens));
        let config =
            CrossEncoderConfig { path, tokenizer, max_tokens: PAIR, device, threads: None, batch, batch_tokens };
        let model = load_alone(&config, "reranker")?;
        let scorer = model.pairs.clone().ok_or_else(|| anyhow::anyhow!("the cross-encoder scores no pairs"))?;
        Ok(Some(Pairs { _model: model, scorer }))
    }

    /// Embeds passages as the corpus does: all calls at once.
    pub fn embed(&self, encoder: &Encoder, texts: &[String]) -> anyhow::Result<Vec<Vector>> {
        self.calls(encoder, texts, CALL, Role::Passage, Priority::Corpus)
    }

    /// Embeds questions: each is a call, all at once.
    pub fn ask(&self, encoder: &Encoder, texts: &[String]) -> anyhow::Result<Vec<Vector>> {
        self.calls(encoder, texts, 1, Role::Query, Priority::Turn)
    }

    fn calls(
        &self,
        encoder: &Encoder,
        texts: &[String],
        size: usize,
        role: Role,
        priority: Priority,
    ) -> anyhow::Result<Vec<Vector>> {
        self.runtime.block_on(async {
            let calls: Vec<_> = texts
                .chunks(size)
                .map(|part| self.runtime.spawn(encoder.embedder.embed(part.to_vec(), role, priority)))
                .collect();
            let mut vectors = Vec::with_capacity(texts.len());
            for call in calls {
                vectors.extend(call.await??);
            }
            Ok(vectors)
        })
    }

    /// Scores of these passages for the first, one for each.
    pub fn score(&self, pairs: &Pairs, texts: &[String]) -> anyhow::Result<Vec<f32>> {
        let first = texts[0].clone();
        let scores = self.runtime.block_on(pairs.scorer.score(first, texts.to_vec(), Priority::Turn))?;
        Ok(scores.into_iter().flatten().collect())
    }

    /// Seconds of one call, after a first one that is not measured: the mean over at least [`Setting::seconds`].
    pub fn time(&self, mut call: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        call()?;
        let (begun, mut calls) = (Instant::now(), 0);
        while calls < 3 || begun.elapsed().as_secs_f64() < self.seconds {
            call()?;
            calls += 1;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(calls))
    }
}

/// A loaded encoder.
pub(super) struct Encoder {
    pub model: Model,
    embedder: Arc<dyn Embedder>,
}

/// A loaded cross-encoder.
pub(super) struct Pairs {
    _model: Model,
    scorer: Arc<dyn PairScorer>,
}

fn given(path: PathBuf) -> FilePath {
    FilePath { written: path.display().to_string(), path }
}

/// How far two results for the same texts are apart.
pub(super) struct Apart {
    /// Greatest difference of a value.
    pub most: f32,
    /// Smallest cosine of two vectors.
    pub cosine: f64,
    /// Results that are equal to the bit.
    pub equal: usize,
}

impl Apart {
    pub fn of(a: &[Vector], b: &[Vector]) -> Self {
        let mut apart = Self { most: 0.0, cosine: 1.0, equal: 0 };
        for (a, b) in a.iter().zip(b) {
            apart.equal += usize::from(a.iter().zip(b.iter()).all(|(a, b)| a.to_bits() == b.to_bits()));
            apart.most = a.iter().zip(b.iter()).map(|(a, b)| (a - b).abs()).fold(apart.most, f32::max);
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            apart.cosine = apart.cosine.min(dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
        }
        apart
    }
}

/// A path that a message shows.
pub(super) fn shown(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
