//! Shared by all ONNX text encoders: their common settings, and loading. They differ in the inputs that they make of a
//! text's tokens and in how they read the output.

use std::sync::Arc;

use turnflow_engine::component::{Check, Model};
use turnflow_engine::inference::{Backend, InferenceError, Limits, Priority, Service};
use turnflow_engine::spec::FilePath;

use super::runner::Runner;
use super::runtime::{Device, Offsets, Settings, Tokens, hash_file};
use super::text::{Inputs, Padding, Texts};

/// The settings that every encoder has.
pub(crate) struct EncoderSettings<'a> {
    pub path: &'a FilePath,
    pub tokenizer: &'a FilePath,
    pub device: Device,
    pub threads: Option<usize>,
    pub sizes: Sizes,
}

/// The limits of texts and batches.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Of a text, in tokens.
    pub max_tokens: usize,
    /// Of a batch, in texts.
    pub batch: usize,
    /// Of a batch, in tokens.
    pub batch_tokens: usize,
}

impl Sizes {
    /// The configured limits, or else those of the device: in texts, then in tokens.
    pub fn new(
        max_tokens: usize,
        configured: (Option<usize>, Option<usize>),
        device: Device,
        cpu: (usize, usize),
        gpu: (usize, usize),
    ) -> Self {
        let (batch, batch_tokens) = if device == Device::Cpu { cpu } else { gpu };
        let (batch, batch_tokens) = (configured.0.unwrap_or(batch), configured.1.unwrap_or(batch_tokens));
        Self { max_tokens, batch, batch_tokens }
    }
}

/// The cost of a batch besides its texts, in tokens; a batch is divided where that saves more padding. On the CPU, a
/// small encoder's call costs about as much as 16 tokens. A GPU is not filled by small batches, so only much padding
/// divides one.
fn batch_overhead(device: Device) -> usize {
    match device {
        Device::Cpu => 16,
        Device::Cuda(_) => 1024,
    }
}

/// A loaded encoder. `D` holds what a first run has determined.
pub(crate) struct Loaded<B: Backend, D> {
    pub service: Service<B>,
    pub texts: Texts,
    pub about: D,
}

impl<B: Backend, D> Loaded<B, D> {
    /// Runs the inputs of tokenized texts, in the order of the texts.
    pub async fn call(&self, inputs: Inputs<B::Input>, priority: Priority) -> Result<Vec<B::Output>, InferenceError> {
        self.service.call_parts(inputs.count, inputs.parts, priority).await
    }
}

impl EncoderSettings<'_> {
    pub fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", self.path);
        check.exists("tokenizer", self.tokenizer);
    }

    /// Loads the encoder. The returned model has a tokenizer and a meter; the caller adds its other capabilities.
    /// `make` builds the back end from its session and padding, on its own thread. `fingerprinted` contains the
    /// settings that change outputs.
    pub fn load<B: Backend, D: Send + Sync + 'static>(
        &self,
        name: &str,
        fingerprinted: &str,
        texts: impl FnOnce(&Tokens) -> Result<Texts, InferenceError>,
        make: impl FnOnce(Runner, Padding) -> Result<(B, D), InferenceError> + Send + 'static,
    ) -> Result<(Arc<Loaded<B, D>>, Model), InferenceError> {
        let tokens = Tokens::read(&self.tokenizer.path)?;
        let texts = texts(&tokens)?;
        let mut hasher = blake3::Hasher::new();
        hash_file(&mut hasher, &self.path.path)?;
        hasher.update(&tokens.bytes);
        hasher.update(fingerprinted.as_bytes());

        let limits = Limits {
            batch_inputs: self.sizes.batch,
            batch_tokens: self.sizes.batch_tokens,
            batch_overhead: batch_overhead(self.device),
            ..Limits::default()
        };
        let (path, device, threads) = (self.path.path.clone(), self.device, self.threads);
        let padding = Padding { token: tokens.pad.unwrap_or(0), device, most: self.sizes.max_tokens };
        let load = move || make(Runner::open(&path, device, threads, Settings::Service)?, padding);
        let (service, about) = Service::start(name, limits, load)?;
        let loaded = Arc::new(Loaded { service, texts, about });
        let counted = loaded.clone();
        let model = Model {
            name: name.to_owned(),
            fingerprint: hasher.finalize().to_hex().to_string(),
            tokenizer: Some(Arc::new(Offsets(tokens.tokenizer))),
            meter: Some(Arc::new(move || counted.service.usage())),
            ..Model::default()
        };
        Ok((loaded, model))
    }
}
