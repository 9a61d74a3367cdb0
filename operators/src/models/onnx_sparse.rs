//! A learned sparse encoder in ONNX: texts to weighted terms.
//!
//! ```ron
//! OnnxSparse(path: "models/splade/model.onnx", tokenizer: "models/splade/tokenizer.json", max_tokens: 512)
//! ```
//!
//! SPLADE (Formal et al. 2021): each text becomes weights of the vocabulary's terms, log(1 + max(logit, 0)), maximised
//! over its tokens. Inputs are those of BERT. The output is either weights of shape `[batch, vocabulary]`, or logits of
//! shape `[batch, tokens, vocabulary]`, from which the weights are computed here. The same text gives the same terms in
//! any batch.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ort::session::Session;
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::{Backend, InferenceError, Priority, Role, SparseEmbedder, SparseVector};
use turnflow_engine::spec::FilePath;

use super::load_model;
use super::runner::Runner;
use super::runtime::Device;
use super::text::{Padding, Row, Texts, inputs};
use super::text_encoder::{EncoderSettings, Loaded, Sizes};

/// Entry in the model table.
pub const KIND: ModelKind = ModelKind::of::<OnnxSparseConfig>("OnnxSparse", "a learned sparse encoder in ONNX");

/// Fields of `OnnxSparse`.
#[config]
pub struct OnnxSparseConfig {
    /// ONNX model file.
    pub path: FilePath,
    /// The model's `tokenizer.json`.
    pub tokenizer: FilePath,
    /// Maximum length of a text in tokens, special tokens included; longer texts are cut.
    #[field(default = 256, range = 8..=131_072)]
    pub max_tokens: usize,
    /// Maximum number of terms to keep for a text, those with the greatest weights.
    #[field(default = 256, range = 1..=1_000_000)]
    pub terms: usize,
    /// Device: `Cpu` (default) or `Cuda(n)`, the NVIDIA GPU with index n.
    #[field(default)]
    pub device: Device,
    /// Number of CPU threads for one batch. Default: the number of cores.
    #[field(range = 1..=1024)]
    pub threads: Option<usize>,
    /// Maximum number of texts in a batch. Default 16, and 64 on a GPU: few, because the output has the whole vocabulary for each text.
    #[field(range = 1..=4096)]
    pub batch: Option<usize>,
    /// Maximum number of tokens in a batch, padding included. Default 2048, and 8192 on
    /// a GPU.
    #[field(range = 8..=10_000_000)]
    pub batch_tokens: Option<usize>,
}

impl ModelConfig for OnnxSparseConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.settings().validate(check);
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::EmbedSparse, Capability::Tokenize]
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

impl OnnxSparseConfig {
    fn settings(&self) -> EncoderSettings<'_> {
        let sizes = Sizes::new(self.max_tokens, (self.batch, self.batch_tokens), self.device, (16, 2048), (64, 8192));
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
        let fingerprinted = format!("sparse {} {}", self.max_tokens, self.terms);
        let terms = self.terms;
        let (embedder, model) = self.settings().load(name, &fingerprinted, texts, move |runner, padding| {
            let mut encoder = Encoder { runner, padding, terms };
            encoder.run(&[&vec![0, 0]])?;
            Ok((encoder, ()))
        })?;
        Ok(Model { sparse: Some(Arc::new(Shared(embedder))), ..model })
    }
}

struct Encoder {
    runner: Runner,
    padding: Padding,
    terms: usize,
}

fn infer(
    session: &mut Session,
    padding: Padding,
    most: usize,
    batch: &[&Vec<u32>],
) -> ort::Result<Result<Vec<SparseVector>, InferenceError>> {
    let rows: Vec<Row<'_>> = batch.iter().map(|ids| Row { ids, types: &[] }).collect();
    let outputs = session.run(inputs(session, padding, &rows)?)?;
    let (shape, values) = outputs[0].try_extract_tensor::<f32>()?;
    Ok(match shape.as_ref() {
        [rows, width] if *rows as usize == batch.len() => {
            let rows = values.chunks_exact((*width).max(1) as usize);
            Ok(rows.map(|weights| terms(weights.iter().copied().enumerate(), most)).collect())
        }
        [rows, length, width] if *rows as usize == batch.len() => {
            let (length, width) = (*length as usize, (*width).max(1) as usize);
            let texts = values.chunks_exact((length * width).max(1)).zip(batch);
            Ok(texts.map(|(logits, ids)| terms(pool(logits, width, ids.len()), most)).collect())
        }
        other => Err(InferenceError::Shape(format!("returned the shape {other:?} for a batch of {}", batch.len()))),
    })
}

/// The weight of each term, from logits of shape `[tokens, vocabulary]`. Only the first `used` tokens count.
fn pool(logits: &[f32], width: usize, used: usize) -> impl Iterator<Item = (usize, f32)> {
    let mut greatest = vec![0.0_f32; width];
    for token in logits.chunks_exact(width).take(used) {
        greatest.iter_mut().zip(token).for_each(|(most, logit)| *most = most.max(*logit));
    }
    greatest.into_iter().map(f32::ln_1p).enumerate()
}

/// The `most` terms with the greatest weights, in ascending order of term.
fn terms(weights: impl Iterator<Item = (usize, f32)>, most: usize) -> SparseVector {
    let mut terms: Vec<(u32, f32)> =
        weights.filter(|(_, weight)| *weight > 0.0).map(|(term, weight)| (term as u32, weight)).collect();
    if terms.len() > most {
        terms.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        terms.truncate(most);
        terms.sort_unstable_by_key(|(term, _)| *term);
    }
    terms.into()
}

impl Backend for Encoder {
    type Input = Vec<u32>;
    type Output = SparseVector;

    fn cost(input: &Vec<u32>) -> usize {
        input.len()
    }

    fn run(&mut self, batch: &[&Vec<u32>]) -> Result<Vec<SparseVector>, InferenceError> {
        let Self { runner, padding, terms } = self;
        runner.run(|session| infer(session, *padding, *terms, batch)).flatten()
    }
}

struct Shared(Arc<Loaded<Encoder, ()>>);

impl SparseEmbedder for Shared {
    fn embed_sparse(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>> {
        let this = self.0.clone();
        async move {
            let ids = this.texts.encode(texts, role, priority, |encoding| encoding.get_ids().to_vec());
            this.call(ids, priority).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weightiest_terms_are_kept_in_order() {
        let weights = [0.0, 0.5, -1.0, 2.0, 1.0];
        let kept = terms(weights.into_iter().enumerate(), 2);
        assert_eq!(&*kept, [(3, 2.0), (4, 1.0)]);
        assert_eq!(terms(weights.into_iter().enumerate(), 9).len(), 3);
    }

    #[test]
    fn a_terms_weight_is_its_greatest_over_the_tokens() {
        // Two tokens with three terms each, and one token of padding.
        let logits = [1.0, -1.0, 0.0, 0.0, -2.0, 3.0, 9.0, 9.0, 9.0];
        let weights: Vec<f32> = pool(&logits, 3, 2).map(|(_, weight)| weight).collect();
        assert_eq!(weights, [2.0_f32.ln(), 0.0, 4.0_f32.ln()]);
    }
}
