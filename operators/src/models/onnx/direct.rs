//! The encoder without the inference service, as a baseline for measuring the service.

use turnflow_engine::inference::{Backend, InferenceError, Role, Vector};

use super::super::runner::Runner;
pub use super::super::runtime::Settings;
use super::super::runtime::Tokens;
use super::super::text::{Padding, Texts};
use super::{Encoder, OnnxConfig, Text};

/// A session that is called directly, on the caller's thread.
pub struct Direct {
    encoder: Encoder,
    texts: Texts,
}

impl Direct {
    /// Opens a separate session, with the same number of threads as the service's.
    pub fn open(config: &OnnxConfig, settings: Settings) -> Result<Self, InferenceError> {
        let tokens = Tokens::read(&config.tokenizer.path)?;
        let runner = Runner::open(&config.path.path, config.device, config.threads, settings)?;
        let token = tokens.pad.unwrap_or(0);
        let padding = Padding { token, device: config.device, most: config.max_tokens };
        let encoder = Encoder::new(runner, config.pooling, config.normalize, padding);
        Ok(Self { encoder, texts: config.texts(&tokens)? })
    }

    /// The tokens of a text, identical to those of the service.
    pub fn tokenize(&self, text: &str, role: Role) -> Result<Vec<u32>, InferenceError> {
        self.texts.tokens(text, role)
    }

    /// Runs one batch, padded to its longest text. Returns one vector for each text.
    pub fn run(&mut self, batch: &[&Vec<u32>]) -> Result<Vec<Vector>, InferenceError> {
        let texts: Vec<Text> = batch.iter().map(|ids| Text { ids: (*ids).clone(), states: None }).collect();
        self.encoder.run(&texts.iter().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use turnflow_engine::spec::FilePath;

    use super::super::{Device, Pooling};
    use super::*;

    /// `None`, with a message, if the model has not been fetched.
    fn open(name: &str) -> Option<Direct> {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
        let file = |name: &str, file: &str| {
            let path = models.join(name).join(file);
            path.exists().then(|| FilePath { written: path.display().to_string(), path })
        };
        let library = file("onnxruntime", "libonnxruntime.so");
        let files = library.and_then(|_| file(name, "model.onnx").zip(file(name, "tokenizer.json")));
        let Some((path, tokenizer)) = files else {
            assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{name} is not in {}", models.display());
            println!("skipped: {name} is not in {}; `turnflow models fetch` brings it", models.display());
            return None;
        };
        let config = OnnxConfig {
            adapter: None,
            path,
            tokenizer,
            pooling: Pooling::Mean,
            max_tokens: 256,
            normalize: true,
            query_prefix: String::new(),
            passage_prefix: String::new(),
            device: Device::Cpu,
            threads: Some(1),
            batch: None,
            batch_tokens: None,
        };
        Some(Direct::open(&config, Settings::Service).unwrap())
    }

    #[test]
    fn the_encoder_in_16_bits_gives_nearly_the_same_vectors() {
        let (Some(mut whole), Some(mut half)) = (open("minilm"), open("minilm-half")) else { return };
        let long = "records are kept for six years after the end of the relationship ".repeat(12);
        let texts = ["lamp", "When does the ferry leave the north pier?", &long];
        let tokens: Vec<Vec<u32>> = texts.iter().map(|text| whole.tokenize(text, Role::Passage).unwrap()).collect();
        let batch: Vec<&Vec<u32>> = tokens.iter().collect();
        for (whole, half) in whole.run(&batch).unwrap().iter().zip(half.run(&batch).unwrap()) {
            let cosine: f32 = whole.iter().zip(half.iter()).map(|(a, b)| a * b).sum();
            assert!(cosine > 0.9999, "{cosine}");
        }
    }

    /// The padded lengths are those of a GPU; the session runs on the CPU.
    #[test]
    fn a_batch_padded_further_gives_the_same_vectors() {
        for name in ["minilm", "minilm-int8", "e5-int8"] {
            let Some(mut direct) = open(name) else { continue };
            let long = "records are kept for six years after the end of the relationship ".repeat(12);
            let texts = ["lamp", "When does the ferry leave the north pier?", &long];
            let tokens: Vec<Vec<u32>> =
                texts.iter().map(|text| direct.tokenize(text, Role::Passage).unwrap()).collect();
            for batch in [&tokens[..1], &tokens[1..2], &tokens[..2], &tokens[..]] {
                let batch: Vec<&Vec<u32>> = batch.iter().collect();
                direct.encoder.padding.device = Device::Cpu;
                let exact = direct.run(&batch).unwrap();
                direct.encoder.padding.device = Device::Cuda(0);
                let padded = direct.run(&batch).unwrap();
                let longest = batch.iter().map(|tokens| tokens.len()).max().unwrap();
                assert_ne!(Device::Cuda(0).padded(longest, 256), longest, "nothing is padded");
                for (exact, padded) in exact.iter().zip(&padded) {
                    let apart = exact.iter().zip(padded.iter()).map(|(a, b)| (a - b).abs()).fold(0.0_f32, f32::max);
                    assert!(apart < 1e-5, "{name}: {apart} apart");
                }
            }
        }
    }
}
